# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What each engine version takes: its flags and environment variables, and the rules that follow from them.

The tables, engines/<engine>/<version>/flags.json and environment.json, are read out of the engine itself by
engines/extract.py, whose text says what each key means. A rule here says no more than what that version of the engine
would say at its start, minutes into a run, or would not say at all: it takes a misspelt variable for no variable.

`changes(old, new)` is the report of an upgrade: what the newer version added, removed and changed, one line each.
`history(name)` names the versions that have a flag, a variable, or one of a flag's values.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from .lint import Rule, Subject
from .recipe import ENGINES, Document, Key, Problem, RecipeError

# Variables that no engine declares, because libraries, the interpreter or the system read them.
KNOWN_PREFIXES = (
    "AWS_",
    "CCL_",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "CUTE_DSL_",
    "DG_",
    "DEEP_GEMM_",
    "FLASHINFER_",
    "GC_",
    "GLOO_",
    "GOMP_",
    "HABANA_",
    "HCCL_",
    "HF_",
    "HIP_",
    "HL_",
    "HPU_",
    "HUGGINGFACE_",
    "I_MPI_",
    "KMP_",
    "LC_",
    "LD_",
    "LMCACHE_",
    "LOG_LEVEL_",
    "MALLOC_",
    "MKL_",
    "MOONCAKE_",
    "MPI_",
    "NCCL_",
    "NIXL_",
    "NUMEXPR_",
    "NVIDIA_",
    "NVSHMEM_",
    "NVTE_",
    "OMP_",
    "OPENBLAS_",
    "OTEL_",
    "PT_",
    "PYTHON",
    "PYTORCH_",
    "RAY_",
    "SAFETENSORS_",
    "SSL_",
    "TIKTOKEN_",
    "TILELANG_",
    "TOKENIZERS_",
    "TORCH",
    "TRANSFORMERS_",
    "TRITON_",
    "TVM_",
    "UCX_",
    "XDG_",
    "XLA_",
)
KNOWN_NAMES = frozenset(
    {
        "CC",
        "CXX",
        "DO_NOT_TRACK",
        "HOME",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "LANG",
        "MAX_JOBS",
        "NO_PROXY",
        "PATH",
        "REQUESTS_CA_BUNDLE",
        "TMPDIR",
        "TZ",
        "USER",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    }
)
YES = frozenset({"1", "true", "yes", "on", "t", "y"})
NO = frozenset({"0", "false", "no", "off", "f", "n", ""})
# Two ways to say the same; everything else here looks at the first.
BETTER = MappingProxyType(
    {
        "spec-method": ("speculative-config", "method"),
        "spec-model": ("speculative-config", "model"),
        "spec-tokens": ("speculative-config", "num_speculative_tokens"),
    }
)
# Flags whose values may each be a JSON object, though the parser takes text.
OBJECTS_AS_TEXT = frozenset({"lora-modules"})
# argparse takes what looks like this for a value although it begins with a dash.
_NEGATIVE = re.compile(r"-\d+")
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Value:
    """How one value is read: a flag's, or that of a key of a flag's JSON. See engines/extract.py for each field."""

    type: str = "any"
    none: bool = False
    human: bool = False
    auto: bool = False
    list: bool = False
    optional: bool = False
    no: bool = False
    repeat: bool = False
    required: bool = False
    short: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    config: str = ""
    deprecated: str | None = None
    default: Any = None
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None


@dataclass(frozen=True)
class Config:
    """The keys of a JSON object. open: unknown keys are ignored by the engine, not refused."""

    keys: Mapping[str, Value]
    open: bool = False


@dataclass(frozen=True)
class Variable:
    """How the text of an environment variable is read. on, off: words that turn it on and off; empty for no switch."""

    on: frozenset[str] = frozenset()
    off: frozenset[str] = frozenset()
    strict: bool = False
    takes: str = ""
    choices: tuple[str, ...] = ()
    caseless: bool = False
    deprecated: str | None = None
    default: str | None = None


class Spelling(NamedTuple):
    """What a flag's name, as somebody typed it, stands for.

    name: the long name, without dashes; negated: its --no- form; keys: what a dotted name says of the JSON.
    """

    name: str
    negated: bool = False
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class FlagTable:
    """Everything one engine version takes.

    engine, version: of the manifest; base: of the vLLM below a plug-in, else the same. declared: variables of the
    engines' own tables; read: names and patterns that their sources read besides; documented: read by neither.
    """

    engine: str
    version: str
    base: tuple[str, str]
    flags: Mapping[str, Value]
    configs: Mapping[str, Config]
    parsers: Mapping[str, tuple[str, ...]]
    declared: Mapping[str, Variable]
    read: tuple[str, ...] = ()
    documented: tuple[str, ...] = ()
    # Of the base alone: what vLLM itself calls known.
    own_variables: frozenset[str] = frozenset()

    @cached_property
    def forms(self) -> Mapping[str, Spelling]:
        """Every long name that the parser has, the --no- forms among them."""
        positive = {name: Spelling(name) for name in self.flags}
        return positive | {f"no-{name}": Spelling(name, True) for name, value in self.flags.items() if value.no}

    @property
    def name(self) -> str:
        """The engine as people name it, with what its flags come from."""
        own = f"{self.engine} {self.version}"
        return own if self.base == (self.engine, self.version) else f"{own} ({self.base[0]} {self.base[1]})"

    def reads(self, variable: str) -> bool:
        """Whether some part of the engine reads a variable of this name."""
        return variable in self.declared or any(fnmatch.fnmatchcase(variable, pattern) for pattern in self.read)


# ---------------------------------------------------------------- the tables


def load_flags(engine: Document) -> FlagTable:
    """The table of the engine that a manifest describes: flags.json beside it, or its base's; variables of both.

    A manifest of your own need not bring the tables of a version that ships with the collection. Raises RecipeError
    where there is no table, or it is of another version.
    """
    data = engine.data if isinstance(engine.data, Mapping) else {}
    folder = _folder(engine.path.parent)
    base = data.get("base")
    base_folder = folder
    if isinstance(base, Mapping) and not (folder / "flags.json").is_file():
        base_folder = _folder(engine.path.parents[2] / str(base.get("engine")) / str(base.get("version")))
    return _table(folder, base_folder, _stamp(folder), _stamp(base_folder))


def _folder(beside: Path) -> Path:
    """Where the tables of the engine version lie that a folder is named after."""
    shipped = ENGINES / beside.parent.name / beside.name
    return beside if (beside / "environment.json").is_file() or not shipped.is_dir() else shipped


def load_version(version: str, *, engine: str = "vllm", engines: Path = ENGINES) -> FlagTable:
    """The table of an engine version by name; no manifest is needed. Raises RecipeError."""
    folder = engines / engine / version
    return _table(folder, folder, _stamp(folder), _stamp(folder))


def _stamp(folder: Path) -> tuple[float, ...]:
    # Part of a cache's key only: a table that was written again is read again.
    found = []
    for name in ("flags.json", "environment.json"):
        try:
            found.append((folder / name).stat().st_mtime)
        except OSError:
            found.append(0.0)
    return tuple(found)


@lru_cache(maxsize=32)
def _table(folder: Path, base: Path, *stamps: tuple[float, ...]) -> FlagTable:
    del stamps  # Part of the key only.
    flags = _read(base / "flags.json")
    variables = _read(base / "environment.json")
    plugin = _read(folder / "environment.json") if folder != base else {"declared": {}, "read": [], "documented": []}
    declared = {
        name: Variable(
            **{
                **entry,
                "on": frozenset(entry.get("on", "").split()),
                "off": frozenset(entry.get("off", "").split()),
                "choices": tuple(entry.get("choices", ())),
            }
        )
        for name, entry in {**variables["declared"], **plugin["declared"]}.items()
    }
    read = tuple(sorted({*variables["read"], *plugin["read"]}))
    return FlagTable(
        folder.parent.name,
        folder.name,
        (base.parent.name, base.name),
        {name: _value(entry) for name, entry in flags["flags"].items()},
        {
            name: Config({key: _value(v) for key, v in entry["keys"].items()}, entry.get("extra") == "ignore")
            for name, entry in flags["configs"].items()
        },
        {name: tuple(found) for name, found in flags["parsers"].items()},
        declared,
        read,
        tuple(name for name in (*variables["documented"], *plugin["documented"]) if name not in {*declared, *read}),
        frozenset(variables["declared"]),
    )


def _value(entry: Mapping[str, Any]) -> Value:
    facts: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}
    return Value(**facts)


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(
            [
                Problem(
                    str(path),
                    "no table of flags and variables",
                    getattr(error, "strerror", None) or str(error),
                    "a table made from the engine",
                    f"make it with engines/extract.py make {path.parent.name}",
                )
            ]
        ) from error
    named = f"{data.get('engine')} {data.get('version')}"
    if named != f"{path.parent.parent.name} {path.parent.name}":
        raise RecipeError(
            [
                Problem(
                    str(path),
                    "the table is of another engine than its folder",
                    named,
                    f"{path.parent.parent.name} {path.parent.name}",
                    f"make it anew with engines/extract.py make {path.parent.name}",
                )
            ]
        )
    return data


def versions(*, engine: str = "vllm", engines: Path = ENGINES, table: str = "flags.json") -> tuple[str, ...]:
    """Versions of an engine that have a table, oldest first."""
    return tuple(sorted((path.parent.name for path in (engines / engine).glob(f"*/{table}")), key=_order))


def _order(version: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.+-]", version))


def history(name: str, *, value: str | None = None, engine: str = "vllm", engines: Path = ENGINES) -> tuple[str, ...]:
    """Versions of an engine, oldest first, that know a name.

    name: a flag's long name without dashes (max-model-len), a key of a flag's JSON (speculative-config.method), or a
    variable (VLLM_PORT). value: only versions that take this value of it.
    """
    found = []
    for version in versions(engine=engine, engines=engines):
        table = load_version(version, engine=engine, engines=engines)
        entry, key = name.split(".", 1) if "." in name else (name, "")
        if not key and (re.fullmatch(r"[A-Z][A-Z0-9_]*", name)):
            variable = table.declared.get(name)
            if table.reads(name) and (value is None or (variable is not None and value in variable.choices)):
                found.append(version)
            continue
        flag = table.flags.get(entry)
        if flag is not None and key:
            flag = table.configs[flag.config].keys.get(key) if flag.config in table.configs else None
        if flag is None:
            continue
        taken = {str(choice) for choice in (*flag.choices, *flag.names, *_parser_names(table, name))}
        if value is None or value in taken:
            found.append(version)
    return tuple(found)


def _parser_names(table: FlagTable, flag: str) -> tuple[str, ...]:
    return table.parsers.get({"tool-call-parser": "tool", "reasoning-parser": "reasoning"}.get(flag, ""), ())


def when(known: Sequence[str], version: str, engine: str = "vllm") -> str:
    """In words, which versions have what this version has not; empty where none has it."""
    if not known:
        return ""
    if _order(known[0]) > _order(version):
        return f"it came with {engine} {known[0]}" + (
            f", and is gone since {_after(known[-1])}" if _gone(known) else ""
        )
    if _order(known[-1]) < _order(version):
        return f"it was removed: the last with it is {engine} {known[-1]}"
    return f"it is in {engine} " + ", ".join(known)


def _gone(known: Sequence[str]) -> bool:
    return known[-1] != versions()[-1] and known[-1] in versions()


def _after(version: str) -> str:
    every = versions()
    return every[every.index(version) + 1]


# ------------------------------------------------------------ how names are typed


def spelling(word: str, table: FlagTable) -> Spelling | None:
    """The flag that argparse would take a word for, or None where it would take it for none, or for several.

    As vLLM's parser does: `_` counts as `-` before the first dot, a beginning that fits one flag alone is that flag,
    short names have one dash or are written without any, `--no-x` turns x off, and `--x.key` is a key of the JSON of x.
    """
    if word in table.flags:
        return Spelling(word)
    bare, *keys = word.split(".")
    short = f"-{bare.removeprefix('-')}"
    long = bare.removeprefix("--").replace("_", "-")
    found = table.forms.get(long)
    if found is None:
        for name, value in table.flags.items():
            if short in value.short or f"--{long}" in value.short:
                found = Spelling(name)
    if found is None and long:
        near = {form for name, form in table.forms.items() if name.startswith(long)}
        found = near.pop() if len(near) == 1 else None
    return found._replace(keys=tuple(keys)) if found is not None else None


def known_like(word: str, names: Iterable[str], limit: int = 3) -> str:
    """The nearest known words as a question; empty where none is near."""
    close = difflib.get_close_matches(word, list(names), n=limit, cutoff=0.7)
    return f"did you mean {' or '.join(close)}?" if close else ""


def human_int(text: str) -> int | None:
    """A count as vLLM reads it: "8k" is 8,000, "8K" 8,192, "25.6k" 25,600; None for what it refuses ("25.6K")."""
    match = _HUMAN.fullmatch(text.strip())
    if match:
        number, suffix = match.groups()
        if suffix in _BINARY:
            return int(number) * _BINARY[suffix] if number.isdecimal() else None
        text, factor = number, _DECIMAL[suffix]
        return int(float(text) * factor) if len(text) < 300 else None
    found = _number(int, text)
    return None if found is None else int(found)


# ---------------------------------------------------------------- what is found


# One finding before it has a place: rule, key below the argument, what, found, expected, what to do.
class _Finding(NamedTuple):
    rule: str
    key: Key
    what: str
    found: str
    expected: str
    todo: str = ""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 100 else shown[:97] + "..."


def _listed(names: Iterable[Any], limit: int = 40) -> str:
    shown = [str(name) for name in names]
    more = f", and {len(shown) - limit} more" if len(shown) > limit else ""
    return "one of " + ", ".join(shown[:limit]) + more


def _bounds(value: Value, number: float) -> str:
    """The bound that a number breaks, in words; empty where it keeps all."""
    for bound, text, broken in (
        (value.gt, "above", value.gt is not None and number <= value.gt),
        (value.ge, "at least", value.ge is not None and number < value.ge),
        (value.lt, "below", value.lt is not None and number >= value.lt),
        (value.le, "at most", value.le is not None and number > value.le),
    ):
        if broken:
            return f"{text} {bound:g}"
    return ""


def check_argument(name: str, value: Any, table: FlagTable) -> list[_Finding]:
    """What is wrong with one argument of a recipe; each finding without its place."""
    flag = table.flags.get(name)
    if flag is None:
        return [_unknown_flag(name, value, table)]
    if name in BETTER:
        other, key = BETTER[name]
        return [
            _Finding(
                "flag-spelling",
                (),
                f"{name} is a second way to say it",
                name,
                f"{other}: {{{key}: ...}}",
                f"write it as the key {key} of {other}",
            )
        ]
    found = list(_flag_value(name, flag, value, table))
    if flag.deprecated is not None:
        instead = f"use {flag.deprecated}" if flag.deprecated else "remove it before the version that no longer has it"
        found.append(_Finding("flag-deprecated", (), f"{name} is deprecated", name, "a flag that stays", instead))
    return found


def _unknown_flag(name: str, value: Any, table: FlagTable) -> _Finding:
    meant = spelling(name, table)
    if meant is not None:
        right = f"{meant.name}: {'false' if meant.negated and value is True else '...'}"
        if meant.keys:
            right = f"{meant.name}: {{{meant.keys[0]}: ...}}"
        return _Finding(
            "flag-spelling", (), "not the full name of a flag", name, right, f"write {right.removesuffix(': ...')}"
        )
    engine, version = table.base
    known = when(history(name, engine=engine), version, engine)
    if known:
        return _Finding("flag-removed", (), f"{table.name} has no flag {name}", name, known, "remove it")
    near = known_like(name, table.flags)
    return _Finding(
        "flag-unknown",
        (),
        f"{table.name} has no flag {name}",
        name,
        near or "a flag of this version",
        "correct the name",
    )


def _flag_value(name: str, flag: Value, value: Any, table: FlagTable) -> Iterator[_Finding]:
    if flag.type == "bool":
        if value is False and not flag.no:
            yield _Finding("flag-type", (), f"{name} has no --no- form", "false", "true, or nothing", "remove the line")
        elif not isinstance(value, bool):
            todo = "write it without quotes" if str(value).lower() in YES | NO else ""
            yield _Finding("flag-type", (), f"{name} is a switch", _text(value), "true or false", todo)
        return
    if isinstance(value, bool):
        if value is False or not flag.optional:
            yield _Finding("flag-type", (), f"{name} takes a value, not a switch", _text(value), _wanted(flag), "")
        return
    if isinstance(value, Mapping):
        if flag.config or flag.type in ("json", "json or text"):
            yield from _object(flag.config, value, table, (), name)
        elif name not in OBJECTS_AS_TEXT:
            yield _Finding("flag-type", (), f"{name} takes no mapping", _text(value), _wanted(flag), "")
        return
    if flag.type == "json" or (flag.type == "json or text" and str(value).lstrip().startswith("{")):
        yield from _json_text(name, flag, value)
        return
    items = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not flag.list:
        yield _Finding(
            "flag-type", (), f"{name} takes one value", _text(value), _wanted(flag), "write the value itself"
        )
        return
    for index, item in enumerate(items):
        yield from _scalar(name, flag, item, (index,) if isinstance(value, list) else (), table)


def _json_text(name: str, flag: Value, value: Any) -> Iterator[_Finding]:
    """JSON that a recipe writes as text, or a value that is no JSON object at all."""
    if isinstance(value, list):
        shown = json.dumps(value, ensure_ascii=False)
        yield _Finding(
            "flag-type", (), f"{name} takes JSON, not several values", _text(value), "JSON as text", f"write '{shown}'"
        )
        return
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        if not (flag.none and value in ("", "None")):
            yield _Finding("flag-type", (), f"{name} takes JSON", _text(value), "a mapping", "write it as a mapping")
        return
    if isinstance(parsed, dict):
        todo = "write it as a mapping, key by key: text is not checked further"
        yield _Finding("flag-json-text", (), f"{name} is JSON in text", _text(value), "a mapping", todo)
    elif flag.config or not isinstance(parsed, list):
        yield _Finding("flag-type", (), f"{name} takes a JSON object", _text(value), "a mapping", "")


def _wanted(flag: Value) -> str:
    if flag.choices:
        return _listed(flag.choices)
    kinds = {"int": "a whole number", "float": "a number", "text": "text", "json": "a mapping"}
    words = " or ".join(kinds.get(kind, kind) for kind in flag.type.split(" or "))
    if flag.human:
        words += ", such as 32768, 32k (thousands) or 32K (of 1,024 each)"
    if flag.auto:
        words += ", or auto"
    return f"one or several of: {words}" if flag.list else words


def _scalar(name: str, flag: Value, item: Any, key: Key, table: FlagTable) -> Iterator[_Finding]:
    """One value of a flag, as the parser gets it: text."""
    text = str(item)
    if text.startswith("-") and len(text) > 1 and " " not in text and not _NEGATIVE.fullmatch(text):
        yield _Finding(
            "flag-type",
            key,
            f"a value of {name} begins with a dash, and the parser takes it for a flag",
            text,
            _wanted(flag),
            "a value must not begin with a dash, but for whole negative numbers",
        )
        return
    if flag.none and text in ("", "None"):
        return
    number: float | None = None
    if flag.type == "int":
        if flag.auto and text.lower() == "auto":
            return
        number = human_int(text) if flag.human else _number(int, text)
    elif flag.type == "float":
        number = _number(float, text)
    if flag.type in ("int", "float"):
        if number is None:
            match = _HUMAN.fullmatch(text.strip())
            todo = ""
            if match and not flag.human:
                todo = f"write the number itself; {name} takes no {match[2]}"
            elif match:
                todo = (
                    f"{match[2]} counts 1,024s and takes whole numbers: {match[1]}{match[2].lower()} counts thousands"
                )
            yield _Finding("flag-type", key, f"{name} takes {_wanted(flag)}", text, _wanted(flag), todo)
            return
        broken = _bounds(flag, number)
        if broken:
            yield _Finding("flag-range", key, f"{name} is out of range", text, broken, "")
    choices = tuple(str(choice) for choice in flag.choices)
    if choices and text not in choices:
        yield _choice("flag-choice", key, name, text, choices, table)
    elif flag.names and text.lower() not in {known.lower() for known in flag.names}:
        yield _choice("flag-name", key, name, text, flag.names, table)


def _choice(rule: str, key: Key, name: str, text: str, choices: Sequence[Any], table: FlagTable) -> _Finding:
    engine, version = table.base
    known = when(history(name, value=text, engine=engine), version, engine)
    near = known_like(text, [str(choice) for choice in choices], 1)
    what = f"{table.name} does not know this value of {name}" if rule == "flag-choice" else f"not a known {name}"
    return _Finding(rule, key, what, text, _listed(choices), "; ".join(filter(None, (near, known))))


def _number(kind: Callable[[str], float], text: str) -> float | None:
    try:
        return kind(text)
    except (ValueError, OverflowError):
        return None


def _object(config: str, value: Mapping[str, Any], table: FlagTable, key: Key, path: str) -> Iterator[_Finding]:
    """The keys of a JSON object, against the class that reads it; every key passes where no class does."""
    known = table.configs.get(config)
    if known is None:
        return
    for name, item in value.items():
        here = (*key, name)
        entry = known.keys.get(name)
        if entry is None:
            yield _unknown_key(name, known, table, here, path)
            continue
        yield from _field(entry, item, table, here, f"{path}.{name}")
    for name, entry in known.keys.items():
        if entry.required and name not in value:
            yield _Finding("flag-json-key", key, f"{path} has no {name}", "nothing", f"{name}: ...", f"add {name}")


def _unknown_key(name: str, known: Config, table: FlagTable, key: Key, path: str) -> _Finding:
    engine, version = table.base
    whole = f"{path}.{name}"
    gone = when(history(whole, engine=engine), version, engine) if whole.count(".") == 1 else ""
    near = known_like(name.replace("-", "_"), known.keys)
    what = f"{table.name} does not know this key of {path}" + (", and ignores it" if known.open else "")
    return _Finding("flag-json-key", key, what, name, near or _listed(known.keys), gone or "correct the name")


def _field(entry: Value, item: Any, table: FlagTable, key: Key, path: str) -> Iterator[_Finding]:
    kinds = set(entry.type.split(" or "))
    expected = _wanted(Value(entry.type, choices=entry.choices)) + (", or null" if entry.none else "")
    if item is None:
        if not entry.none and "any" not in kinds:
            yield _Finding("flag-json-value", key, f"{path} is not null", "null", expected)
        return
    fits = (
        "any" in kinds
        or ("bool" in kinds and isinstance(item, bool))
        or ("int" in kinds and isinstance(item, int) and not isinstance(item, bool))
        or ("float" in kinds and isinstance(item, (int, float)) and not isinstance(item, bool))
        or ("text" in kinds and isinstance(item, str))
        or ("list" in kinds and isinstance(item, list))
        or ("json" in kinds and isinstance(item, Mapping))
    )
    if not fits:
        yield _Finding("flag-json-value", key, f"{path} has a value of the wrong type", _text(item), expected)
        return
    if isinstance(item, Mapping):
        yield from _object(entry.config, item, table, key, path)
    elif isinstance(item, (int, float)) and not isinstance(item, bool) and _bounds(entry, item):
        yield _Finding("flag-json-value", key, f"{path} is out of range", _text(item), _bounds(entry, item))
    elif entry.choices and item not in entry.choices:
        yield _choice("flag-json-value", key, path, _text(item), entry.choices, table)._replace(
            what=f"{table.name} does not know this value of {path}"
        )
    elif entry.names and isinstance(item, str) and _plain(item) not in {_plain(known) for known in entry.names}:
        yield _choice("flag-name", key, path, item, entry.names, table)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def check_variable(name: str, text: str, table: FlagTable) -> list[_Finding]:
    """What is wrong with one environment variable of a recipe; each finding without its place."""
    if not table.reads(name):
        return _unread_variable(name, table)
    variable = table.declared.get(name)
    if variable is None:
        return []
    found = []
    problem = _variable_value(name, text, variable)
    if problem is not None:
        found.append(problem)
    if variable.deprecated is not None:
        todo = f"use {variable.deprecated}" if variable.deprecated else "remove it"
        found.append(
            _Finding("environment-deprecated", (), f"{name} is deprecated", name, "a variable that is read", todo)
        )
    return found


def _unread_variable(name: str, table: FlagTable) -> list[_Finding]:
    if name in table.documented:
        what = f"{table.name} documents {name}, and its own source does not read it"
        if name.startswith("VLLM_"):
            return [_Finding("environment-unread", (), what, name, "a variable that has an effect", "remove it")]
        return []
    if name.startswith("VLLM_"):
        engine, version = table.base
        known = when(history(name, engine=engine), version, engine)
        other = _plugins_with(name, table)
        near = known_like(name, [*table.declared, *(word for word in table.read if "*" not in word)])
        expected = known or other or near or "a variable of this version"
        return [
            _Finding(
                "environment-unknown",
                (),
                f"{table.name} does not read {name}",
                name,
                expected,
                "remove it: it has no effect here" if known or other else "correct the name",
            )
        ]
    if name in KNOWN_NAMES or name.startswith(KNOWN_PREFIXES):
        return []
    near = known_like(name, [*table.declared, *table.read, *table.documented, *KNOWN_NAMES])
    todo = "correct the name, or say in notes what reads it"
    return [
        _Finding("environment-unfamiliar", (), f"nothing known reads {name}", name, near or "a known variable", todo)
    ]


def _plugins_with(name: str, table: FlagTable) -> str:
    """The other engine, if any, whose variable this is."""
    for path in sorted(ENGINES.glob("*/*/environment.json")):
        engine, version = path.parent.parent.name, path.parent.name
        if engine not in (table.engine, table.base[0]):
            data = _read(path)
            if name in data["declared"] or name in data["read"]:
                return f"it is a variable of {engine} {version}"
    return ""


def _variable_value(name: str, text: str, variable: Variable) -> _Finding | None:
    word = text.lower()
    if variable.on:
        right = f"{_best(variable.on)} or {_best(variable.off)}"
        refused = variable.strict and text not in variable.on | variable.off and _number(int, text) is None
        if refused:
            return _Finding("environment-value", (), f"the engine refuses this value of {name}", text, right, "")
        if text in variable.off and word in YES:
            return _Finding(
                "environment-value",
                (),
                f"this value of {name} is read as off",
                text,
                right,
                f"write {_best(variable.on)}",
            )
        if text in variable.on and word in NO:
            return _Finding(
                "environment-value",
                (),
                f"this value of {name} is read as on",
                text,
                right,
                f"write {_best(variable.off)}",
            )
        return None
    if variable.choices:
        taken = {choice.lower() for choice in variable.choices} if variable.caseless else set(variable.choices)
        if (word if variable.caseless else text) not in taken:
            near = known_like(word, variable.choices, 1)
            return _Finding(
                "environment-value",
                (),
                f"the engine refuses this value of {name}",
                text,
                _listed(variable.choices),
                near,
            )
        return None
    kinds: dict[str, tuple[Callable[[str], float], str]] = {
        "int": (int, "a whole number"),
        "float": (float, "a number"),
    }
    if variable.takes in kinds:
        kind, expected = kinds[variable.takes]
        if _number(kind, text) is None:
            return _Finding("environment-value", (), f"the engine refuses this value of {name}", text, expected, "")
    return None


def _best(words: Iterable[str]) -> str:
    return min(words, key=lambda word: (len(word), word))


# ------------------------------------------------------- what contradicts what


@dataclass(frozen=True)
class _Arguments:
    """The arguments of a variant, as the engine would understand them."""

    values: Mapping[str, Any]
    table: FlagTable

    def on(self, name: str) -> bool:
        return self.values.get(name) is True

    def int(self, name: str, default: int | None = None) -> int | None:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            return default
        return human_int(str(value))

    def json(self, name: str) -> Mapping[str, Any]:
        value = self.values.get(name)
        return value if isinstance(value, Mapping) else {}


# The engine refuses the first without the second.
NEEDS = (
    ("enable-log-outputs", "enable-log-requests"),
    ("enable-eplb", "enable-expert-parallel"),
    ("enable-elastic-ep", "enable-eplb"),
    ("numa-bind-nodes", "numa-bind"),
    ("numa-bind-cpus", "numa-bind"),
)
# The engine refuses both at once.
EXCLUDE = (
    ("enable-per-request-metrics", "disable-log-stats"),
    ("data-parallel-hybrid-lb", "data-parallel-external-lb"),
)
# The engine refuses a flag beside the same setting in the JSON of another.
TWICE = (
    ("attention-backend", "attention-config", "backend"),
    ("cudagraph-capture-sizes", "compilation-config", "cudagraph_capture_sizes"),
    ("max-cudagraph-capture-size", "compilation-config", "max_cudagraph_capture_size"),
    ("enable-flashinfer-autotune", "kernel-config", "enable_flashinfer_autotune"),
)


def _given(arguments: _Arguments, name: str) -> bool:
    return name in arguments.values and arguments.values[name] is not False


def check_together(arguments: Mapping[str, Any], variables: Iterable[str], table: FlagTable) -> list[_Finding]:
    """Arguments that each are right, and that the engine refuses together. The key begins with the argument's name."""
    given = _Arguments(arguments, table)
    found = []

    def add(key: Key, what: str, shown: str, expected: str, todo: str) -> None:
        found.append(_Finding("flag-conflict", key, what, shown, expected, todo))

    for name, needed in NEEDS:
        if _given(given, name) and needed in table.flags and not given.on(needed):
            add((name,), f"{name} needs {needed}", f"no {needed}", f"{needed}: true", f"add {needed}: true")
    for name, other in EXCLUDE:
        if _given(given, name) and _given(given, other):
            add((name,), f"{name} and {other} exclude each other", f"{name}, {other}", "one of the two", "remove one")
    for name, holder, key in TWICE:
        if name in arguments and given.json(holder).get(key) is not None:
            add((name,), f"{name} is also set in {holder}", f"{holder}.{key}", "one of the two", f"remove {name}")
    outputs = given.json("structured-outputs-config")
    backend = outputs.get("backend", "auto")
    for key, backends in (
        ("disable_any_whitespace", ("xgrammar", "guidance")),
        ("disable_additional_properties", ("guidance",)),
    ):
        if outputs.get(key) is True and backend not in backends:
            named = " or ".join(backends)
            add(
                ("structured-outputs-config", key),
                f"{key} needs the backend {named}",
                str(backend),
                f"backend: {named}",
                "name the backend",
            )
    transfer = given.json("kv-transfer-config")
    if transfer.get("kv_connector") is not None and transfer.get("kv_role") is None:
        add(
            ("kv-transfer-config", "kv_connector"),
            "kv_connector needs kv_role",
            "no kv_role",
            "kv_role: kv_producer, kv_consumer or kv_both",
            "add kv_role",
        )
    _speculation(given, add)
    _scheduler(given, add)
    if given.on("fail-on-environ-validation"):
        for name in variables:
            if name.startswith("VLLM_") and name not in table.own_variables:
                add(
                    ("fail-on-environ-validation",),
                    f"with it vLLM refuses {name}, which it does not declare",
                    name,
                    "only variables that vLLM declares",
                    "remove fail-on-environ-validation",
                )
    return found


Add = Callable[[Key, str, str, str, str], None]


def _speculation(given: _Arguments, add: Add) -> None:
    speculation = given.json("speculative-config")
    if speculation.get("tensor_parallel_size") is not None:
        add(
            ("speculative-config", "tensor_parallel_size"),
            "it is there only to be refused",
            "tensor_parallel_size",
            "draft_tensor_parallel_size",
            "rename it",
        )
    low, high = speculation.get("prompt_lookup_min"), speculation.get("prompt_lookup_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        add(
            ("speculative-config", "prompt_lookup_min"),
            "prompt_lookup_min is above prompt_lookup_max",
            str(low),
            f"at most {high}",
            "",
        )
    synthetic = speculation.get("rejection_sample_method") == "synthetic"
    for key in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
        if speculation.get(key) is not None and not synthetic:
            add(
                ("speculative-config", key),
                f"{key} needs the method synthetic",
                "another method",
                "rejection_sample_method: synthetic",
                f"remove {key}",
            )
    tensor, draft = given.int("tensor-parallel-size", 1), speculation.get("draft_tensor_parallel_size")
    if isinstance(draft, int) and tensor is not None and draft not in (1, tensor):
        add(
            ("speculative-config", "draft_tensor_parallel_size"),
            "a draft runs on one card or on all",
            str(draft),
            f"1 or {tensor}",
            "",
        )


def _scheduler(given: _Arguments, add: Add) -> None:
    batched, sequences = given.int("max-num-batched-tokens"), given.int("max-num-seqs")
    context, threshold = given.int("max-model-len"), given.int("long-prefill-token-threshold")
    if batched is not None and sequences is not None and batched < sequences:
        add(
            ("max-num-batched-tokens",),
            "max-num-batched-tokens is below max-num-seqs",
            str(batched),
            f"at least {sequences}",
            "",
        )
    chunked = given.values.get("enable-chunked-prefill")
    if chunked is False and batched is not None and context is not None and batched < context:
        add(
            ("max-num-batched-tokens",),
            "without chunked prefill a prompt is computed in one batch",
            str(batched),
            f"at least {context} (max-model-len)",
            "raise it, or leave chunked prefill on",
        )
    if threshold is not None and context is not None and 0 < context < threshold:
        add(
            ("long-prefill-token-threshold",),
            "the threshold is above max-model-len",
            str(threshold),
            f"at most {context}",
            "",
        )
    adapters, on_host = given.int("max-loras", 1), given.int("max-cpu-loras")
    if given.on("enable-lora") and on_host is not None and adapters is not None and on_host < adapters:
        add(("max-cpu-loras",), "max-cpu-loras is below max-loras", str(on_host), f"at least {adapters}", "")
    tensor, decode = given.int("tensor-parallel-size", 1), given.int("decode-context-parallel-size", 1)
    prefill = given.int("prefill-context-parallel-size", 1)
    if prefill == 1 and tensor and decode and decode > 0 and tensor % decode:
        add(
            ("decode-context-parallel-size",),
            "it divides the cards of tensor parallelism",
            str(decode),
            f"a divisor of {tensor} (tensor-parallel-size)",
            "",
        )


# --------------------------------------------------------------- an upgrade


@dataclass(frozen=True)
class Change:
    """One difference of two engine versions. kind: flag, key, parser, variable. what: added, removed, changed."""

    what: str
    kind: str
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.kind} {self.name}" + (f": {self.detail}" if self.detail else "")


def changes(old: FlagTable, new: FlagTable) -> tuple[Change, ...]:
    """What a change of the engine version means for recipes, in the order flags, keys, parsers, variables."""
    found = list(_differences("flag", old.flags, new.flags))
    for name in sorted({flag.config for table in (old, new) for flag in table.flags.values() if flag.config}):
        before, after = old.configs.get(name, Config({})), new.configs.get(name, Config({}))
        labels = sorted(flag for flag, value in {**old.flags, **new.flags}.items() if value.config == name)
        for change in _differences("key", before.keys, after.keys):
            found.append(Change(change.what, "key", f"{labels[0]}.{change.name}", change.detail))
    for kind in sorted({*old.parsers, *new.parsers}):
        a, b = set(old.parsers.get(kind, ())), set(new.parsers.get(kind, ()))
        found += [Change("added", f"{kind} parser", name) for name in sorted(b - a)]
        found += [Change("removed", f"{kind} parser", name) for name in sorted(a - b)]
    found += _differences("variable", old.declared, new.declared)
    return tuple(found)


def _differences(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        if name not in old:
            yield Change("added", kind, name)
        elif name not in new:
            yield Change("removed", kind, name)
        elif old[name] != new[name]:
            yield Change("changed", kind, name, _difference(old[name], new[name]))


def _difference(old: Any, new: Any) -> str:
    parts = []
    for part in fields(old):
        a, b = getattr(old, part.name), getattr(new, part.name)
        if a == b:
            continue
        if isinstance(a, (tuple, frozenset)) and isinstance(b, (tuple, frozenset)):
            gone, come = sorted(map(str, set(a) - set(b))), sorted(map(str, set(b) - set(a)))
            parts += [f"{part.name} without {', '.join(gone)}"] if gone else []
            parts += [f"{part.name} with {', '.join(come)}"] if come else []
        else:
            parts.append(f"{part.name} {_text(a)} -> {_text(b)}")
    return "; ".join(parts)


# ------------------------------------------------------------------ the rules


_last: tuple[Subject, list[tuple[Key, _Finding]]] | None = None


def _findings(subject: Subject) -> list[tuple[Key, _Finding]]:
    """Everything about one variant. All rules ask for the same one in turn, so the last answer is kept."""
    global _last
    if _last is None or _last[0] is not subject:
        _last = subject, list(_find(subject))
    return _last[1]


def _find(subject: Subject) -> Iterator[tuple[Key, _Finding]]:
    try:
        table = load_flags(subject.engine)
    except RecipeError as error:
        problem = error.problems[0]
        yield (
            ("engine",),
            _Finding(
                "flag-table",
                (),
                f"{problem.what}: flags and variables are not checked",
                str(problem.where),
                problem.expected,
                problem.todo,
            ),
        )
        return
    meant: dict[Spelling, str] = {}
    for name, value in subject.arguments.items():
        for finding in check_argument(name, value, table):
            yield ("arguments", name, *finding.key), finding
        same = spelling(name, table)
        if same is not None:
            same = Spelling(same.name)
            if same in meant:
                yield (
                    ("arguments", name),
                    _Finding(
                        "flag-repeated",
                        (),
                        f"{name} and {meant[same]} are the same flag",
                        name,
                        "each flag once",
                        f"remove one of them; the full name is {same.name}",
                    ),
                )
            meant.setdefault(same, name)
        yield from _parsers(subject, name, value, table)
    for name, text in subject.environment.items():
        for finding in check_variable(name, text, table):
            yield ("environment", name), finding
    for finding in check_together(subject.arguments, subject.environment, table):
        yield ("arguments", *finding.key), finding


def _parsers(subject: Subject, name: str, value: Any, table: FlagTable) -> Iterator[tuple[Key, _Finding]]:
    plugin = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}.get(name)
    known = _parser_names(table, name)
    if plugin and isinstance(value, str) and value not in known and plugin not in subject.arguments:
        yield ("arguments", name), _choice("flag-choice", (), name, value, known, table)


def _rule(rule_id: str, severity: str, summary: str, source: str) -> Rule:
    def check(subject: Subject) -> Iterator[Problem]:
        for key, finding in _findings(subject):
            if finding.rule == rule_id:
                yield Problem(
                    subject.place(*key), finding.what, finding.found, finding.expected, finding.todo, rule_id, severity
                )

    return Rule(rule_id, severity, summary, source, check)


_PARSER = "the engine's own argument parser, read by engines/extract.py"
_CONFIG = "the engine's config classes, read by engines/extract.py"
_ENVS = "the engine's table of environment variables, read by engines/extract.py"

RULES: tuple[Rule, ...] = (
    _rule("flag-table", "warning", "The engine version has a table of its flags and variables.", "engines/extract.py"),
    _rule("flag-unknown", "error", "Every argument is a flag of the engine version.", _PARSER),
    _rule("flag-removed", "error", "An argument is not a flag that only other versions of the engine have.", _PARSER),
    _rule("flag-spelling", "error", "A flag has its full name, its positive form, and one way to say it.", _PARSER),
    _rule("flag-repeated", "error", "A flag is given once, under one name.", _PARSER),
    _rule("flag-type", "error", "The value of a flag is of the type that the engine's parser reads.", _PARSER),
    _rule("flag-range", "error", "The number of a flag is within the bounds of the engine's config class.", _CONFIG),
    _rule("flag-choice", "error", "The value of a flag is one that the engine version knows.", _PARSER),
    _rule("flag-name", "warning", "A name that a plug-in could add is one that the engine itself knows.", _CONFIG),
    _rule("flag-json-text", "error", "JSON is written as a mapping, so that every rule can read it.", _PARSER),
    _rule("flag-json-key", "error", "Keys of a JSON-valued flag are those of the class that reads it.", _CONFIG),
    _rule("flag-json-value", "error", "Values within a JSON-valued flag are those its class accepts.", _CONFIG),
    _rule("flag-conflict", "error", "Arguments are not such that the engine refuses them together.", _CONFIG),
    _rule("flag-deprecated", "warning", "A flag is not one that the engine calls deprecated.", _PARSER),
    _rule("environment-unknown", "error", "A VLLM_ variable is one that the engine version reads.", _ENVS),
    _rule("environment-unread", "warning", "A documented variable is also read by the engine's source.", _ENVS),
    _rule(
        "environment-unfamiliar",
        "warning",
        "A variable is read by the engine, or is one of a library or the system.",
        _ENVS,
    ),
    _rule("environment-value", "error", "The text of a variable means to the engine what it says.", _ENVS),
    _rule("environment-deprecated", "warning", "A variable is not one that the engine calls deprecated.", _ENVS),
)
