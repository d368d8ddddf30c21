# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Engine manifests: read as strictly as recipes, and compared with the files that they name.

The linter takes a manifest as it is (recipe.load_engine); what is built from one takes it from here, checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import recipe as recipes
from .recipe import ENGINES, Document, Key, Problem, RecipeError, did_you_mean, in_order
from .shape import compile_schema, pattern_of

SCHEMA = ENGINES / "schema.json"
MAX_SHOWN = 100


@dataclass(frozen=True)
class Platform:
    """Where one engine version can be installed, and with which lock.

    lock, requirements, overrides: absolute paths; overrides is None where there are none. exclude_newer: a moment, as
    uv takes it. tag: wheels that fit, as uv names them. uv: the version that wrote the lock.
    """

    engine: str
    version: str
    accelerator: str
    arch: str
    python: str
    lock: Path
    requirements: Path
    overrides: Path | None
    tag: str
    exclude_newer: str
    torch_backend: str | None
    uv: str

    def __str__(self) -> str:
        return f"{self.engine} {self.version} for {self.accelerator}, {self.arch}, Python {self.python}"


def load_engine(name: str, version: str, *, engines: Path = ENGINES, locks: bool = True) -> Document:
    """The checked manifest of one engine version. Raises RecipeError with every problem.

    locks: whether the locks must be there; False for who makes them.
    """
    document = recipes.load_engine(name, version, engines=engines)
    problems = validate(document, locks=locks)
    if problems:
        raise RecipeError(problems)
    return document


def platforms(document: Document) -> list[Platform]:
    """The platforms of a checked manifest, in its order."""
    folder = document.path.parent
    found = []
    for entry in document.data["platforms"]:
        locked = entry["locked"]
        overrides = locked.get("overrides")
        found.append(
            Platform(
                engine=document.data["engine"],
                version=document.data["version"],
                accelerator=entry["accelerator"],
                arch=entry["arch"],
                python=entry["python"],
                lock=folder / entry["lock"],
                requirements=folder / locked["requirements"],
                overrides=folder / overrides if overrides else None,
                tag=locked["platform"],
                exclude_newer=locked["exclude_newer"],
                torch_backend=entry.get("torch_backend"),
                uv=locked["uv"],
            )
        )
    return found


def validate(document: Document, *, locks: bool = True) -> list[Problem]:
    """Everything that is wrong with a manifest, in the order of the file: its form, then what it names."""
    if not _is_valid()(document.data):
        problems = in_order(problem for error in _errors(document.data) for problem in _explain(document, error))
        if problems:
            return problems
    return in_order(_cross_checks(document, locks))


@lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """The schema of manifests (JSON Schema 2020-12)."""
    loaded: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return loaded


@lru_cache(maxsize=1)
def _is_valid() -> Callable[[Any], bool]:
    return compile_schema(schema())


def _errors(data: Any) -> Iterator[Any]:
    # Slow to import, and only needed to say what is wrong.
    import jsonschema
    from jsonschema.exceptions import ValidationError

    def pattern(_validator: Any, text: str, instance: Any, _schema: Any) -> Iterator[Any]:
        if isinstance(instance, str) and not pattern_of(text).search(instance):
            yield ValidationError("does not match")

    def integer(_checker: Any, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    # As strict as shape.py, which has the first word.
    base = jsonschema.Draft202012Validator
    types = base.TYPE_CHECKER.redefine("integer", integer)
    strict = jsonschema.validators.extend(base, {"pattern": pattern}, type_checker=types)
    yield from strict(schema()).iter_errors(data)


def _explain(document: Document, error: Any) -> Iterator[Problem]:
    """One error of jsonschema in words, at the value's place."""
    key: Key = tuple(error.absolute_path)
    value, instance = error.validator_value, error.instance
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        for name in instance:
            if name not in known:
                yield Problem(
                    document.place((*key, name)),
                    "unknown key",
                    str(name)[:MAX_SHOWN],
                    did_you_mean(str(name), known),
                    "correct the name or remove the line",
                )
    elif error.validator == "required":
        for name in value:
            if name not in instance:
                meaning = error.schema.get("properties", {}).get(name, {}).get("description", "")
                found = _short(list(instance)) if instance else "an empty mapping"
                todo = f"add it: {meaning[:1].lower()}{meaning[1:]}" if meaning else "add it"
                yield Problem(document.place(key), f"the key {name} is missing", found, name, todo)
    elif error.validator == "oneOf":
        yield from _one_of(document, key, error)
    else:
        yield Problem(
            document.value_place(key), "has a wrong value", _short(instance), _expected(error), _meaning(error)
        )


def _one_of(document: Document, key: Key, error: Any) -> Iterator[Problem]:
    branches = error.validator_value
    if all(set(branch) == {"required"} for branch in branches):
        names = [name for branch in branches for name in branch["required"]]
        there = [name for name in names if name in error.instance]
        found = " and ".join(there) or "none of them"
        yield Problem(document.place(key), "must say one thing", found, "exactly one of " + ", ".join(names))
        return
    kinds = {}
    for index, branch in enumerate(branches):
        definition = schema()["$defs"][branch["$ref"].rsplit("/", 1)[1]]
        kinds[definition["properties"]["kind"]["const"]] = index
    kind = error.instance.get("kind") if isinstance(error.instance, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        place = document.value_place((*key, "kind")) if kind is not None else document.place(key)
        expected = did_you_mean(kind, kinds) if isinstance(kind, str) else "kind: one of " + ", ".join(sorted(kinds))
        yield Problem(place, "is of no known kind", _short(kind), expected, "correct kind")
        return
    for inner in error.context:
        # What the branches of other kinds say is of no interest.
        if inner.relative_schema_path[0] == kinds[kind]:
            yield from _explain(document, inner)


def _expected(error: Any) -> str:
    value = error.validator_value
    wording: dict[str, Callable[[Any], str]] = {
        "type": str,
        "enum": lambda v: "one of " + ", ".join(map(str, v)),
        "const": json.dumps,
        "pattern": lambda v: f"text that matches {v}",
        "minimum": lambda v: f"at least {v}",
        "minItems": lambda v: f"at least {v} item(s)",
        "minLength": lambda v: f"at least {v} character(s)",
        "uniqueItems": lambda v: "each item once",
    }
    return wording.get(str(error.validator), _short)(value)


def _meaning(error: Any) -> str:
    meaning = error.schema.get("description", "") if isinstance(error.schema, Mapping) else ""
    if error.validator == "type" and error.validator_value == "string" and isinstance(error.instance, (int, float)):
        return "put the value in quotes"
    return f"this is: {meaning}" if meaning else ""


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _cross_checks(document: Document, locks: bool) -> Iterator[Problem]:
    data, folder = document.data, document.path.resolve().parent
    for key, expected in (("engine", folder.parent.name), ("version", folder.name)):
        if data[key] != expected:
            yield Problem(
                document.value_place((key,)),
                "differs from the folder",
                data[key],
                expected,
                "rename the folder, or correct the value",
            )
    seen: dict[tuple[str, str, str], int] = {}
    for index, entry in enumerate(data["platforms"]):
        place = ("platforms", index)
        what = (entry["accelerator"], entry["arch"], entry["python"])
        if what in seen:
            found, first = ", ".join(what), f"platforms[{seen[what]}]"
            yield Problem(document.place(place), "is described twice", found, f"once, as {first}", "remove one")
        seen.setdefault(what, index)
        if not entry["locked"]["platform"].startswith(entry["arch"] + "-"):
            yield Problem(
                document.value_place((*place, "locked", "platform")),
                "is of another machine than the platform",
                entry["locked"]["platform"],
                entry["arch"] + "-...",
                "lock for the machine that the platform is for",
            )
        files: dict[Key, str] = {("lock",): entry["lock"]} if locks else {}
        files |= {("locked", k): entry["locked"][k] for k in ("requirements", "overrides") if k in entry["locked"]}
        for name, file in files.items():
            if not (folder / file).is_file():
                yield Problem(
                    document.value_place((*place, *name)),
                    "is not there",
                    file,
                    f"a file in {folder}",
                    f"run enplace lock {data['engine']}/{data['version']}" if name == ("lock",) else "add it",
                )
        if entry["accelerator"] == "gb10" and "cuda" not in entry:
            yield Problem(
                document.place(place), "the key cuda is missing", "", "the CUDA version of the lock", "add it"
            )
