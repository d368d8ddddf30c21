# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Recipes and engine manifests as checked data.

A recipe is literal: it is read by this loader alone and never templated, so that the runner, the command line and a
playbook see the same bytes. Every value keeps the place it was read from, so that a message can point at it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import validate_checks

try:
    import jsonschema
except ImportError as error:
    JSONSCHEMA_ERROR: ImportError | None = error
else:
    JSONSCHEMA_ERROR = None

COLLECTION = Path(__file__).resolve().parents[2]
RECIPES = COLLECTION / "recipes"
ENGINES = COLLECTION / "engines"
MAX_BYTES = 1_000_000
REFERENCE = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<variant>[a-z0-9-]+))?$"
)

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """A value in a file: line and column from 1, 0 where it is not in the file; field as people write it."""

    path: Path
    line: int
    column: int
    field: str

    def __str__(self) -> str:
        at = f":{self.line}:{self.column}" if self.line else ""
        return f"{self.path}{at} {self.field}"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, what was found, what was expected, what to do.

    rule and severity: of the linter's rule that found it (see lint.py).
    """

    where: str | Place
    what: str
    found: str = ""
    expected: str = ""
    todo: str = ""
    rule: str = "schema"
    severity: str = "error"

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}"]
        parts += [
            f"  {label}: {text}"
            for label, text in (("expected", self.expected), ("found", self.found), ("what to do", self.todo))
            if text
        ]
        return "\n".join(parts)


class RecipeError(Exception):
    """A file that cannot be used. `problems` holds every reason, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True)
class Document:
    """A YAML file as plain data, with the line and column (from 1) of every key and item."""

    path: Path
    data: Any
    places: dict[Key, tuple[int, int]]

    def place(self, key: Iterable[str | int]) -> Place:
        """Where the nearest value is that was really in the file."""
        full = tuple(key)
        for size in range(len(full), -1, -1):
            if full[:size] in self.places:
                line, column = self.places[full[:size]]
                return Place(self.path, line, column, field_name(full))
        return Place(self.path, 0, 0, field_name(full))


@dataclass(frozen=True)
class Recipe:
    """One validated recipe and the file it came from."""

    document: Document

    @property
    def name(self) -> str:
        return str(self.document.data["model"]["name"])

    @property
    def variants(self) -> dict[str, Any]:
        return dict(self.document.data["variants"])


def field_name(key: Iterable[str | int]) -> str:
    """`variants.cpu.checks[2].top` for ("variants", "cpu", "checks", 2, "top"); the empty key is the whole file."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text or "(the whole file)"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The nearest known word as a question, else the list of what is known."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "one of " + ", ".join(names)


def load_yaml(path: Path) -> Document:
    """Read one YAML file strictly: UTF-8, one document, no anchors, no duplicate keys, no templates.

    Raises RecipeError naming the file, the line and what to do.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise RecipeError(
                [
                    Problem(
                        str(path),
                        "too large",
                        f"{size} bytes",
                        f"at most {MAX_BYTES}",
                        "a recipe is a page, not a data file",
                    )
                ]
            )
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise RecipeError(
            [Problem(str(path), "cannot be read", error.strerror or str(error), "a readable file")]
        ) from error
    except UnicodeDecodeError as error:
        raise RecipeError(
            [Problem(str(path), "is not UTF-8", f"byte {error.start}", "UTF-8 text", "save it as UTF-8")]
        ) from error
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, (yaml.AnchorToken, yaml.AliasToken)):
                place = f"{path}:{token.start_mark.line + 1}:{token.start_mark.column + 1}"
                raise RecipeError(
                    [
                        Problem(
                            place, "anchors and aliases are not used here", f"{token.value}", "every value written out"
                        )
                    ]
                )
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        what = getattr(error, "problem", None) or str(error)
        raise RecipeError(
            [Problem(place, "is not valid YAML", what, "one YAML document", "mend the line named")]
        ) from error
    except RecursionError as error:
        raise RecipeError([Problem(str(path), "is nested too deeply", "", "a recipe of ordinary depth")]) from error
    if node is None:
        raise RecipeError([Problem(str(path), "is empty", "nothing", "a mapping")])
    places: dict[Key, tuple[int, int]] = {}
    problems: list[Problem] = []
    data = _construct(path, node, (), places, problems)
    if problems:
        raise RecipeError(problems)
    return Document(path, data, places)


def _construct(
    path: Path, node: yaml.Node, key: Key, places: dict[Key, tuple[int, int]], problems: list[Problem]
) -> Any:
    places.setdefault(key, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here = f"{path}:{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
            if not isinstance(key_node, yaml.ScalarNode):
                problems.append(Problem(here, "a key must be a plain word", "a list or mapping as key"))
                continue
            name = key_node.value
            if name in mapping:
                problems.append(
                    Problem(here, f"the key {name} occurs twice", expected="each key once", todo="remove one of them")
                )
                continue
            child = (*key, name)
            places[child] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            mapping[name] = _construct(path, value_node, child, places, problems)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_construct(path, item, (*key, index), places, problems) for index, item in enumerate(node.value)]
    if "{{" in node.value or "{%" in node.value:
        here = f"{path}:{node.start_mark.line + 1}:{node.start_mark.column + 1} {field_name(key)}"
        todo = "write the value itself; what differs between hosts is an inventory variable"
        problems.append(Problem(here, "recipes are literal, never templated", node.value[:80], "plain text", todo))
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        here = f"{path}:{node.start_mark.line + 1}:{node.start_mark.column + 1} {field_name(key)}"
        problems.append(
            Problem(here, "cannot be read as a value", f"{node.value[:80]} ({error})", "text, a number or true/false")
        )
        return None
    finally:
        loader.dispose()
    # A bare 2026-07-28 is a date to YAML; here it is the text that was written.
    return value if isinstance(value, (str, int, float, bool, type(None))) else node.value


def schema() -> dict[str, Any]:
    """The recipe schema (JSON Schema 2020-12) as shipped with the collection."""
    loaded: dict[str, Any] = json.loads((RECIPES / "schema.json").read_text(encoding="utf-8"))
    return loaded


def validate(document: Document) -> list[Problem]:
    """Everything that is wrong with a recipe document, in the order of the file."""
    if JSONSCHEMA_ERROR is not None:
        raise RecipeError(
            [
                Problem(
                    "controller",
                    "the Python package jsonschema is missing",
                    str(JSONSCHEMA_ERROR),
                    "jsonschema >= 4.18",
                    "pip install jsonschema beside ansible-core",
                )
            ]
        )
    problems: list[Problem] = []
    for error in jsonschema.Draft202012Validator(schema()).iter_errors(document.data):
        problems.extend(_explain(document, error))
    if not problems:
        problems = list(_cross_checks(document))
    return in_order(problems)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Problems in the order of the file, each once."""
    return sorted(dict.fromkeys(problems), key=_order)


def _order(problem: Problem) -> tuple[int, int, str, str]:
    where = problem.where
    line, column = (where.line, where.column) if isinstance(where, Place) else (0, 0)
    return line, column, str(where), problem.what


def _explain(document: Document, error: Any) -> Iterator[Problem]:
    key: Key = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {})
        for name in error.instance:
            if name not in known:
                yield Problem(
                    document.place((*key, name)),
                    "unknown key",
                    str(name),
                    did_you_mean(str(name), known),
                    "correct the name or remove the line",
                )
        return
    if error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance:
                yield Problem(
                    document.place(key),
                    f"the key {name} is missing",
                    "",
                    f"{name}: ...",
                    "add it; see docs/recipes.md or the schema",
                )
        return
    if "propertyNames" in error.absolute_schema_path:
        name = str(error.instance)
        if error.validator == "not":
            yield Problem(
                document.place((*key, name)),
                "is not a recipe's to set",
                name,
                "an argument of the model",
                "use the inventory variable (enplace_listen, enplace_port, ...)",
            )
        else:
            yield Problem(
                document.place((*key, name)),
                "is not a valid name",
                name,
                f"a name that matches {error.validator_value}",
            )
        return
    wording: dict[str, Callable[[Any], str]] = {
        "type": lambda v: f"a value of type {v if isinstance(v, str) else ' or '.join(v)}",
        "enum": lambda v: "one of " + ", ".join(map(str, v)),
        "const": json.dumps,
        "pattern": lambda v: f"text that matches {v}",
        "minimum": lambda v: f"at least {v}",
        "maximum": lambda v: f"at most {v}",
        "minItems": lambda v: f"at least {v} item(s)",
        "minProperties": lambda v: f"at least {v} entry",
        "minLength": lambda v: f"at least {v} character(s)",
        "maxLength": lambda v: f"at most {v} characters",
        "anyOf": lambda v: "true or false, a number, text, a list of these, or a mapping",
    }
    expected = wording.get(str(error.validator), _short)(error.validator_value)
    # YAML reads a bare 0123 or 1.0 as a number.
    unquoted = (
        error.validator == "type" and error.validator_value == "string" and not isinstance(error.instance, (dict, list))
    )
    todo = "put the value in quotes" if unquoted else ""
    yield Problem(document.place(key), "has a wrong value", _short(error.instance), expected, todo)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else text[:97] + "..."


def _cross_checks(document: Document) -> Iterator[Problem]:
    data = document.data
    name = data["model"]["name"]
    folder = "/".join(document.path.resolve().parts[-3:-1])
    if folder != name:
        yield Problem(
            document.place(("model", "name")), "differs from the folder", name, folder, "rename the folder or the model"
        )
    for variant_name, variant in data["variants"].items():
        key: Key = ("variants", variant_name)
        for model in ("weights", "draft"):
            for index, path in _repeated(item["path"] for item in variant.get(model, {}).get("files", [])):
                place = document.place((*key, model, "files", index))
                yield Problem(place, "the file is listed twice", path, "each file once")
        for text in validate_checks(variant["checks"]):
            match = re.match(r"checks\[(\d+)\](?:\.([A-Za-z0-9_]+))?", text)
            at: Key = (*key, "checks")
            if match:
                at = (*at, int(match[1]), *([match[2]] if match[2] else []))
            yield Problem(document.place(at), text)


def _repeated(values: Iterable[str]) -> Iterator[tuple[int, str]]:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            yield index, value
        seen.add(value)


def load_recipe(path: Path) -> Recipe:
    """Read and validate one recipe file; RecipeError holds all of its problems."""
    document = load_yaml(path)
    problems = validate(document)
    if problems:
        raise RecipeError(problems)
    return Recipe(document)


def find_recipe(reference: str, folders: Iterable[Path]) -> tuple[Recipe, str]:
    """The recipe and the variant that `<org>/<model>[:<variant>]` names, from the first folder that has it.

    Without a variant the recipe must have exactly one. Raises RecipeError.
    """
    match = REFERENCE.match(reference)
    if not match:
        raise RecipeError(
            [
                Problem(
                    "enplace_recipe",
                    "is not a recipe's name",
                    reference,
                    "<org>/<model>:<variant>, for example enplace/smoke:cpu",
                )
            ]
        )
    searched = list(folders)
    for folder in searched:
        path = folder / match["name"] / "recipe.yaml"
        if path.is_file():
            recipe = load_recipe(path)
            break
    else:
        known = [os.fspath(p.parent.relative_to(folder)) for folder in searched for p in folder.glob("*/*/recipe.yaml")]
        looked = ", ".join(map(str, searched))
        raise RecipeError(
            [
                Problem(
                    "enplace_recipe",
                    "no such recipe",
                    reference,
                    did_you_mean(match["name"], known),
                    f"put <org>/<model>/recipe.yaml below one of: {looked}",
                )
            ]
        )
    variants = recipe.variants
    variant = match["variant"] or (next(iter(variants)) if len(variants) == 1 else "")
    if variant not in variants:
        raise RecipeError(
            [
                Problem(
                    "enplace_recipe",
                    "no such variant",
                    reference,
                    did_you_mean(variant, variants) if variant else "one of " + ", ".join(variants),
                    f"name one as {match['name']}:<variant>",
                )
            ]
        )
    return recipe, variant


def load_engine(name: str, version: str, *, engines: Path = ENGINES) -> Document:
    """The manifest of one engine version. Raises RecipeError, naming the versions there are."""
    path = engines / name / version / "engine.yaml"
    if not path.is_file():
        known = [f"{p.parent.parent.name} {p.parent.name}" for p in engines.glob("*/*/engine.yaml")]
        raise RecipeError(
            [Problem("engine", "no such engine", f"{name} {version}", did_you_mean(f"{name} {version}", known))]
        )
    return load_yaml(path)
