# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a value has the form that a JSON Schema describes: yes or no, and fast.

A recipe is nearly always right, and then only this answers. What is wrong with one that is not, jsonschema says: its
import takes longer than everything else that the linter does with a recipe, and its walk is slow. The keywords are
those of draft 2020-12 that the recipe schema uses; any other makes `compile_schema` raise, so that none is passed over.
A property test holds the two together.

Two things are stricter than the draft, here and in recipe.py: an integer is not written 4.0, and in a pattern `$` is
the end of the text, never the place before a last line break.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

# These say nothing about a value.
_SILENT = frozenset({"$schema", "$id", "$defs", "title", "description"})
# One walk over a mapping does all of these; `if` does its branches.
_OBJECT = ("properties", "additionalProperties", "propertyNames", "required")
_BRANCHES = ("then", "else")
_TYPES: Mapping[str, Check] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}


def pattern_of(text: str) -> re.Pattern[str]:
    """A schema's pattern as Python reads it. `$` is the end of the text: Python's own also fits before a last \\n."""
    out, escaped, inside = [], False, False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif inside:
            inside = char != "]"
        elif char == "[":
            inside = True
        elif char == "$":
            char = r"\Z"
        out.append(char)
    return re.compile("".join(out))


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON: true is not 1, 1.0 is 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def compile_schema(schema: Mapping[str, Any]) -> Check:
    """A function that says whether a value is valid. Raises ValueError for a keyword that is not known here."""
    return _Compiler(schema).check(schema)


class _Compiler:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.made: dict[str, list[Check]] = {}

    def check(self, schema: Any) -> Check:
        if isinstance(schema, bool):
            return lambda value: schema
        steps = [self.object(schema)] if any(name in schema for name in _OBJECT) else []
        for name, value in schema.items():
            if name in _SILENT or name in _OBJECT or name in _BRANCHES:
                continue
            maker = getattr(self, f"on_{name.lstrip('$')}", None)
            if maker is None:
                raise ValueError(f"the keyword {name} is not known here")
            steps.append(maker(value, schema))
        if not steps:
            return lambda value: True
        if len(steps) == 1:
            return steps[0]
        if len(steps) == 2:
            first, second = steps
            return lambda value: first(value) and second(value)

        def every(value: Any) -> bool:
            for step in steps:  # noqa: SIM110 - a generator would take twice as long, and this is nearly all the work
                if not step(value):
                    return False
            return True

        return every

    def on_ref(self, target: str, schema: Mapping[str, Any]) -> Check:
        if not target.startswith("#/$defs/"):
            raise ValueError(f"only definitions of the schema itself are known here, not {target}")
        name = target.removeprefix("#/$defs/")
        if name not in self.made:
            # Filled afterwards: a definition may name itself.
            self.made[name] = []
            self.made[name].append(self.check(self.root["$defs"][name]))
        box = self.made[name]
        if box:
            return box[0]

        def later(value: Any) -> Any:
            return box[0](value)

        return later

    def on_type(self, kinds: str | list[str], schema: Mapping[str, Any]) -> Check:
        if isinstance(kinds, str):
            return _TYPES[kinds]
        checks = [_TYPES[kind] for kind in kinds]
        return lambda value: any(check(value) for check in checks)

    def on_const(self, wanted: Any, schema: Mapping[str, Any]) -> Check:
        return lambda value: same(value, wanted)

    def on_enum(self, choices: list[Any], schema: Mapping[str, Any]) -> Check:
        if all(isinstance(choice, str) for choice in choices):
            words = frozenset(choices)
            return lambda value: isinstance(value, str) and value in words
        return lambda value: any(same(value, choice) for choice in choices)

    def on_pattern(self, text: str, schema: Mapping[str, Any]) -> Check:
        search = pattern_of(text).search
        return lambda value: not isinstance(value, str) or search(value) is not None

    def on_minLength(self, bound: int, schema: Mapping[str, Any]) -> Check:
        return lambda value: not isinstance(value, str) or len(value) >= bound

    def on_maxLength(self, bound: int, schema: Mapping[str, Any]) -> Check:
        return lambda value: not isinstance(value, str) or len(value) <= bound

    def on_minimum(self, bound: float, schema: Mapping[str, Any]) -> Check:
        return lambda value: not isinstance(value, (int, float)) or isinstance(value, bool) or value >= bound

    def on_maximum(self, bound: float, schema: Mapping[str, Any]) -> Check:
        return lambda value: not isinstance(value, (int, float)) or isinstance(value, bool) or value <= bound

    def on_exclusiveMinimum(self, bound: float, schema: Mapping[str, Any]) -> Check:
        return lambda value: not isinstance(value, (int, float)) or isinstance(value, bool) or value > bound

    def on_minItems(self, bound: int, schema: Mapping[str, Any]) -> Check:
        return lambda value: not isinstance(value, list) or len(value) >= bound

    def on_minProperties(self, bound: int, schema: Mapping[str, Any]) -> Check:
        return lambda value: not isinstance(value, dict) or len(value) >= bound

    def on_maxProperties(self, bound: int, schema: Mapping[str, Any]) -> Check:
        return lambda value: not isinstance(value, dict) or len(value) <= bound

    def on_uniqueItems(self, wanted: bool, schema: Mapping[str, Any]) -> Check:
        if not wanted:
            return lambda value: True
        return lambda value: not isinstance(value, list) or repeated(value) is None

    def on_items(self, inner: Any, schema: Mapping[str, Any]) -> Check:
        check = self.check(inner)

        def items(value: Any) -> bool:
            if isinstance(value, list):
                for item in value:
                    if not check(item):
                        return False
            return True

        return items

    def object(self, schema: Mapping[str, Any]) -> Check:
        """properties, additionalProperties, propertyNames and required in one walk."""
        known = {name: self.check(inner) for name, inner in schema.get("properties", {}).items()}
        rest = self.check(schema.get("additionalProperties", True))
        open_ended = schema.get("additionalProperties", True) is True
        names = self.check(schema["propertyNames"]) if "propertyNames" in schema else None
        required = tuple(schema.get("required", ()))

        def walk(value: Any) -> bool:
            if not isinstance(value, dict):
                return True
            for name in required:
                if name not in value:
                    return False
            for name, item in value.items():
                if names is not None and not names(name):
                    return False
                check = known.get(name)
                if check is not None:
                    if not check(item):
                        return False
                elif not open_ended and not rest(item):
                    return False
            return True

        return walk

    def on_anyOf(self, branches: list[Any], schema: Mapping[str, Any]) -> Check:
        checks = [self.check(branch) for branch in branches]
        return lambda value: any(check(value) for check in checks)

    def on_oneOf(self, branches: list[Any], schema: Mapping[str, Any]) -> Check:
        checks = [self.check(branch) for branch in branches]
        return lambda value: sum(check(value) for check in checks) == 1

    def on_not(self, inner: Any, schema: Mapping[str, Any]) -> Check:
        check = self.check(inner)
        return lambda value: not check(value)

    def on_if(self, inner: Any, schema: Mapping[str, Any]) -> Check:
        condition = self.check(inner)
        then, otherwise = self.check(schema.get("then", True)), self.check(schema.get("else", True))
        return lambda value: then(value) if condition(value) else otherwise(value)


def repeated(items: list[Any]) -> int | None:
    """Index of the first item that occurs before it, None where there is none."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        text = json.dumps(_plain(item), sort_keys=True)
        if text in seen:
            return index
        seen.add(text)
    return None


def _plain(item: Any) -> Any:
    # As JSON sees it 1.0 is 1.
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, dict):
        return {str(name): _plain(value) for name, value in item.items()}
    return [_plain(value) for value in item] if isinstance(item, list) else item
