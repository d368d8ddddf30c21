# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Recipes and engine manifests as checked data.

A recipe is literal: it is read by this loader alone and never templated, so that the runner, the command line and a
playbook see the same bytes. Every value keeps the place it was read from, so that a message can point at it.

The loader walks over libyaml's events, once, without recursion, and takes less than YAML: no anchors (no bombs), no
tags (no objects), no second document, and no plain word that YAML 1.1 and YAML 1.2 read differently, because editors
read the one and Ansible the other.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import validate_checks

from .shape import compile_schema, pattern_of, repeated

COLLECTION = Path(__file__).resolve().parents[2]
RECIPES = COLLECTION / "recipes"
ENGINES = COLLECTION / "engines"
# A recipe is a page. The largest that ships has 55,000 bytes, 1,400 values and is 7 deep.
MAX_BYTES = 1_000_000
MAX_VALUES = 30_000
MAX_DEPTH = 32
# What every program that reads JSON can hold.
MAX_INTEGER = 2**63 - 1
# Beyond these a message tells nobody more.
MAX_PROBLEMS = 100
MAX_SHOWN = 100
REFERENCE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<variant>[a-z0-9-]+))?")

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
    """A YAML file as plain data, with the line and column (from 1) of every key and item, and of every key's value."""

    path: Path
    data: Any
    places: dict[Key, tuple[int, int]]
    values: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def place(self, key: Iterable[str | int]) -> Place:
        """Where the nearest value is that was really in the file."""
        full = tuple(key)
        for size in range(len(full), -1, -1):
            if full[:size] in self.places:
                line, column = self.places[full[:size]]
                return Place(self.path, line, column, field_name(full))
        return Place(self.path, 0, 0, field_name(full))

    def value_place(self, key: Iterable[str | int]) -> Place:
        """Where a value itself begins, behind its key; where `place` is for what was not in the file."""
        full = tuple(key)
        if full not in self.values:
            return self.place(full)
        line, column = self.values[full]
        return Place(self.path, line, column, field_name(full))


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
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if len(part) <= MAX_SHOWN else part[:MAX_SHOWN] + "..."
            text += f".{name}" if text else name
    return text or "(the whole file)"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The nearest known word as a question, else the list of what is known."""
    names = sorted(known)
    word = word[:MAX_SHOWN]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "one of " + ", ".join(names)


def load_yaml(path: Path) -> Document:
    """Read one YAML file strictly: UTF-8, one document, no anchors, tags, duplicate keys or templates.

    Raises RecipeError naming the file, the line and what to do.
    """
    return parse_yaml(path, _read(path))


def _refuse(
    where: str | Place, what: str, found: str = "", expected: str = "", todo: str = "", *, rule: str = "yaml"
) -> NoReturn:
    raise RecipeError([Problem(where, what, found, expected, todo, rule)])


def _read(path: Path) -> str:
    """The text of a file, as far as it can be a recipe's."""
    whole, unreadable = Place(path, 0, 0, field_name(())), "unreadable"
    try:
        # Opening one end of a pipe would wait for the other for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                _refuse(whole, "cannot be read", "no regular file", "a readable file", rule=unreadable)
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        todo = "check the path and who may read it"
        raise RecipeError([Problem(whole, "cannot be read", said, "a readable file", todo, unreadable)]) from error
    if len(content) > MAX_BYTES:
        found, todo = f"{max(status.st_size, len(content))} bytes", "a recipe is a page, not a data file"
        _refuse(whole, "too large", found, f"at most {MAX_BYTES} bytes", todo, rule=unreadable)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        where = Place(path, line, column, field_name(()))
        found = f"byte {error.start} is 0x{content[error.start]:02x}"
        raise RecipeError(
            [Problem(where, "is not UTF-8", found, "UTF-8 text", "save it as UTF-8", unreadable)]
        ) from error
    if text.startswith("\ufeff"):
        where = Place(path, 1, 1, field_name(()))
        todo = "save it as UTF-8 without a byte order mark"
        _refuse(where, "begins with a byte order mark", "U+FEFF", "text from the first byte on", todo, rule=unreadable)
    return text


# What has no place in a text that people review: control characters, lone halves of surrogate pairs, line ends that
# editors do not count as such, and marks that turn the direction of writing, so that what is read is not what is there.
_INVISIBLE = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff"
_UNPRINTABLE = re.compile(rf"[{_INVISIBLE}]|\r(?!\n)")
_UNPRINTABLE_VALUE = re.compile(rf"[{_INVISIBLE}\r]")

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?")
# Read as different values by YAML 1.1 and 1.2, or as something other than what was meant by one of them.
_AMBIGUOUS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i:yes|no|on|off)"), "true or false to YAML 1.1 and text to YAML 1.2"),
    (re.compile(r"[-+]?0o?[0-9_]+"), "an octal number to one version of YAML and not to the other"),
    (re.compile(r"[-+]?0[xb][0-9A-Fa-f_]+"), "a number in another base than ten"),
    (re.compile(r"[-+]?[0-9][0-9_]*(?:_[0-9_]*)(?:\.[0-9_]*)?"), "a number to YAML 1.1 and text to YAML 1.2"),
    (re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"), "a number to the base of 60 to YAML 1.1"),
    (re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+"), "text to YAML 1.1 and a number to YAML 1.2"),
    (re.compile(r"[-+]?\.(?:inf|Inf|INF|nan|NaN|NAN)"), "no finite number"),
)
# Any text that does not begin like a number and is none of these is what it looks like.
_NUMERIC = frozenset("-+.0123456789")
_SWITCHES = frozenset({"yes", "no", "on", "off"})


class _Unclear(ValueError):
    """A plain word that is not one value to every reader: what it is, and what to do."""


def plain_value(text: str) -> Any:
    """The value of an unquoted word. Raises ValueError for one that is not the same value to every reader."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC and (len(text) > 3 or text.lower() not in _SWITCHES):
        return text
    if _INTEGER.fullmatch(text):
        # Not int() of a text of any length: that takes time, and Python itself refuses it from 4,300 digits on.
        if len(text) > 20 or abs(int(text)) > MAX_INTEGER:
            raise _Unclear("a number too large for other programs")
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise _Unclear("a number too large for other programs")
        return number
    for pattern, what in _AMBIGUOUS:
        if pattern.fullmatch(text):
            raise _Unclear(what)
    return text


class _Frame:
    """A mapping or a list that is being read. name: the key that waits for its value; None: a key comes next."""

    __slots__ = ("container", "key", "name")

    def __init__(self, container: dict[str, Any] | list[Any], key: Key) -> None:
        self.container = container
        self.key = key
        self.name: str | None = None


def parse_yaml(path: Path, text: str, *, pure: bool = False) -> Document:
    """The text of one file as data, as `load_yaml` reads it. pure: by Python's own scanner instead of libyaml's."""
    # The second search is the slower one.
    bad = _UNPRINTABLE_VALUE.search(text) and _UNPRINTABLE.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        where = Place(path, line, bad.start() - text.rfind("\n", 0, bad.start()), field_name(()))
        todo = "remove it; where a value needs it, write it as an escape in double quotes"
        _refuse(where, "has an invisible character", f"U+{ord(bad[0]):04X}", "text that can be seen", todo)
    loader = yaml.SafeLoader if pure else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    reader = _Reader(path)
    take = {
        yaml.ScalarEvent: reader.scalar,
        yaml.MappingStartEvent: reader.begin,
        yaml.SequenceStartEvent: reader.begin,
        yaml.MappingEndEvent: reader.end,
        yaml.SequenceEndEvent: reader.end,
        yaml.AliasEvent: reader.alias,
        yaml.DocumentStartEvent: reader.document,
        yaml.DocumentEndEvent: reader.nothing,
        yaml.StreamStartEvent: reader.nothing,
        yaml.StreamEndEvent: reader.nothing,
    }
    try:
        for event in yaml.parse(text, Loader=loader):
            take[type(event)](event)
    except yaml.YAMLError as error:
        raise RecipeError([*reader.problems, _syntax(path, text, error)]) from error
    if reader.problems:
        raise RecipeError(reader.problems)
    if not reader.documents or (reader.data is None and len(reader.values) == 1):
        _refuse(Place(path, 0, 0, field_name(())), "is empty", "nothing", "a mapping")
    return Document(path, reader.data, reader.places, reader.values)


def _syntax(path: Path, text: str, error: yaml.YAMLError) -> Problem:
    """What the scanner stumbled over, in words."""
    mark = getattr(error, "problem_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    what = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    context = getattr(error, "context", None)
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    # What comes before the first word of the line; the scanner may give up behind it.
    if "\t" in here[: len(here) - len(here.lstrip("- \t"))]:
        todo = "indent with spaces"
        return Problem(
            Place(path, line, column, field_name(())), "is indented with a tab", "a tab", "spaces", todo, "yaml"
        )
    found = f"{what}, {context}" if context else what
    return Problem(
        Place(path, line, column, field_name(())),
        "is not valid YAML",
        found,
        "one YAML document",
        "mend the line named, or the one before it",
        "yaml",
    )


class _Reader:
    """Builds data from events. What is wrong but does not stop the reading is collected."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: Any = None
        self.places: dict[Key, tuple[int, int]] = {}
        self.values: dict[Key, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self.documents = 0
        self.stack: list[_Frame] = []

    def at(self, event: Any, key: Key) -> Place:
        mark = event.start_mark
        return Place(self.path, mark.line + 1, mark.column + 1, field_name(key))

    def tell(self, event: Any, key: Key, what: str, found: str = "", expected: str = "", todo: str = "") -> None:
        self.problems.append(Problem(self.at(event, key), what, found, expected, todo, "yaml"))
        if len(self.problems) >= MAX_PROBLEMS:
            raise RecipeError(self.problems)

    def stop(self, event: Any, what: str, found: str, expected: str, todo: str) -> NoReturn:
        where = self.at(event, self.here())
        raise RecipeError([*self.problems, Problem(where, what, found, expected, todo, "yaml")])

    def here(self) -> Key:
        """The key that the next value belongs to."""
        if not self.stack:
            return ()
        frame = self.stack[-1]
        if isinstance(frame.container, list):
            return (*frame.key, len(frame.container))
        return frame.key if frame.name is None else (*frame.key, frame.name)

    def document(self, event: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            todo = "put it into a file of its own"
            self.stop(event, "has a second document", "---", "one YAML document", todo)
        if event.version or event.tags:
            self.stop(event, "directives are not used here", "%YAML or %TAG", "the recipe itself", "remove the line")

    def nothing(self, event: Any) -> None:
        """Beginning and end of the file, and the end of its document."""

    def end(self, event: Any) -> None:
        self.stack.pop()

    def alias(self, event: Any) -> None:
        self.stop(
            event,
            "anchors and aliases are not used here",
            f"*{event.anchor}"[:MAX_SHOWN],
            "every value written out",
            "write the value itself",
        )

    def plain_event(self, event: Any) -> None:
        """No anchor, no tag: both make a text mean what it does not show."""
        if event.anchor is not None:
            found = f"&{event.anchor}"[:MAX_SHOWN]
            self.stop(
                event, "anchors and aliases are not used here", found, "every value written out", "remove the anchor"
            )
        if event.tag is not None:
            found = str(event.tag)[:MAX_SHOWN]
            todo = "remove the tag; a text that looks like a number stands in quotes"
            self.stop(event, "tags are not used here", found, "text, a number, true or false", todo)

    def put(self, event: Any, value: Any) -> Key:
        """A value at its place; its key. Called for every value, hence the care."""
        mark = event.start_mark
        at = (mark.line + 1, mark.column + 1)
        if not self.stack:
            self.places[()] = self.values[()] = at
            self.data = value
            return ()
        frame = self.stack[-1]
        container = frame.container
        key: Key
        if isinstance(container, list):
            key = (*frame.key, len(container))
            self.places[key] = at
            container.append(value)
        else:
            name = str(frame.name)
            key = (*frame.key, name)
            container[name] = value
            frame.name = None
        self.values[key] = at
        if len(self.values) > MAX_VALUES:
            found, todo = f"more than {MAX_VALUES}", "a recipe is a page, not a data file"
            self.stop(event, "has too many values", found, f"at most {MAX_VALUES}", todo)
        return key

    def begin(self, event: Any) -> None:
        container: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.plain_event(event)
        if self.stack and isinstance(self.stack[-1].container, dict) and self.stack[-1].name is None:
            self.stop(event, "a key must be a plain word", "a list or mapping as key", "text", "write the key as text")
        if len(self.stack) >= MAX_DEPTH:
            found, todo = f"more than {MAX_DEPTH} levels", "a recipe of ordinary depth has less than ten"
            self.stop(event, "is nested too deeply", found, f"at most {MAX_DEPTH} levels", todo)
        self.stack.append(_Frame(container, self.put(event, container)))

    def scalar(self, event: Any) -> None:
        text: str = event.value
        if event.anchor is not None or event.tag is not None:
            self.plain_event(event)
        # The first of the pair: whether the text stands without quotes. Only in quotes are there escapes.
        bare = event.implicit[0]
        if not bare and event.style == '"' and (hidden := _UNPRINTABLE_VALUE.search(text)):
            found, todo = f"U+{ord(hidden[0]):04X}", "remove the escape"
            self.tell(event, self.here(), "has an invisible character", found, "text that can be seen", todo)
        if "{" in text and ("{{" in text or "{%" in text):
            todo = "write the value itself; what differs between hosts is an inventory variable"
            self.tell(event, self.here(), "recipes are literal, never templated", text[:80], "plain text", todo)
        if self.stack:
            frame = self.stack[-1]
            if frame.name is None and isinstance(frame.container, dict):
                self.name(event, frame, text)
                return
        value: Any = text
        if bare:
            try:
                value = plain_value(text)
            except _Unclear as unclear:
                shown = text if len(text) <= 40 else f"{text[:40]}... ({len(text)} characters)"
                what, expected = "is not the same value to every reader", "text in quotes, a number, or true or false"
                todo = "put it in quotes if it is text; else write true, false or the number in decimal digits"
                self.tell(event, self.here(), what, f"{shown}: {unclear}", expected, todo)
        self.put(event, value)

    def name(self, event: Any, frame: _Frame, text: str) -> None:
        """A key of a mapping; its value comes next."""
        key = (*frame.key, text)
        if text in frame.container:
            found, todo = f"the first is in line {self.places[key][0]}", "remove one of them"
            self.tell(event, key, f"the key {text[:80]} occurs twice", found, "each key once", todo)
        elif text == "<<":
            expected, todo = "every value written out", "write the values"
            self.tell(event, key, "merge keys are not used here", "<<", expected, todo)
        mark = event.start_mark
        self.places[key] = (mark.line + 1, mark.column + 1)
        frame.name = text


def schema() -> dict[str, Any]:
    """The recipe schema (JSON Schema 2020-12) as shipped with the collection."""
    loaded: dict[str, Any] = json.loads((RECIPES / "schema.json").read_text(encoding="utf-8"))
    return loaded


@lru_cache(maxsize=1)
def _is_valid() -> Callable[[Any], bool]:
    return compile_schema(schema())


@lru_cache(maxsize=1)
def validator() -> Any:
    """jsonschema's validator of recipes, with the two strict points of shape.py. Raises ImportError without it."""
    # Its import takes longer than all the rest of a lint run, and a recipe that is right does not need it.
    import jsonschema
    from jsonschema.exceptions import ValidationError

    def pattern(_validator: Any, text: str, instance: Any, _schema: Any) -> Iterator[Any]:
        if isinstance(instance, str) and not pattern_of(text).search(instance):
            yield ValidationError("does not match")

    def unique(_validator: Any, wanted: bool, instance: Any, _schema: Any) -> Iterator[Any]:
        if wanted and isinstance(instance, list) and repeated(instance) is not None:
            yield ValidationError("has repeated items")

    def integer(_checker: Any, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    base = jsonschema.Draft202012Validator
    strict = jsonschema.validators.extend(
        base, {"pattern": pattern, "uniqueItems": unique}, type_checker=base.TYPE_CHECKER.redefine("integer", integer)
    )
    return strict(schema())


def validate(document: Document) -> list[Problem]:
    """Everything that is wrong with the form of a recipe document, in the order of the file."""
    problems: list[Problem] = []
    if not _is_valid()(document.data):
        try:
            errors = validator().iter_errors(document.data)
        except ImportError as error:
            _refuse(
                "controller",
                "the recipe has not the form of the schema, and the Python package that says where is missing",
                str(error),
                "jsonschema >= 4.18",
                "pip install jsonschema beside ansible-core",
                rule="schema",
            )
        for found in errors:
            problems.extend(_explain(document, found))
            if len(problems) > MAX_PROBLEMS:
                break
    if not problems:
        problems = list(_cross_checks(document))
    problems = in_order(problems)
    if len(problems) > MAX_PROBLEMS:
        what, todo = f"there is more: only the first {MAX_PROBLEMS} findings are told", "correct these first"
        problems = [*problems[:MAX_PROBLEMS], Problem(document.place(()), what, todo=todo)]
    return problems


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Problems in the order of the file, each once."""
    return sorted(dict.fromkeys(problems), key=_order)


def _order(problem: Problem) -> tuple[int, int, str, str]:
    where = problem.where
    line, column = (where.line, where.column) if isinstance(where, Place) else (0, 0)
    return line, column, str(where), problem.what


# Errors of a schema in the words of a recipe ------------------------------------------------------------------------

_KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}
_SETTINGS = "use the inventory variable (enplace_listen, enplace_port, ...)"


def _explain(document: Document, error: Any) -> Iterator[Problem]:
    """One error of jsonschema as problems that point at the value."""
    key: Key = tuple(error.absolute_path)
    handler = _EXPLAINED.get(str(error.validator))
    if "propertyNames" in error.absolute_schema_path:
        yield _bad_name(document, key, error)
    elif handler is not None:
        yield from handler(document, key, error)
    else:
        yield _wrong(document, key, error)


def _unknown_keys(document: Document, key: Key, error: Any) -> Iterator[Problem]:
    known = error.schema.get("properties", {})
    for name in error.instance:
        if name not in known:
            yield Problem(
                document.place((*key, name)),
                "unknown key",
                str(name)[:MAX_SHOWN],
                did_you_mean(str(name), known),
                "correct the name or remove the line",
            )


def _missing_keys(document: Document, key: Key, error: Any) -> Iterator[Problem]:
    path = list(error.absolute_schema_path)
    if "else" in path and error.validator_value == ["files"]:
        # The other half of the rule about pins; a revision that is itself wrong is told by its own error.
        if re.fullmatch(r"[0-9a-f]{40}", str(error.instance.get("revision"))):
            yield Problem(
                document.place(key),
                "files is missing: the revision is pinned",
                "a revision without its files",
                "every file with its size and SHA-256",
                "run enplace pin, which writes them; or write revision: unpinned",
            )
        return
    for name in error.validator_value:
        if name not in error.instance:
            inner = error.schema.get("properties", {}).get(name, {})
            meaning = inner.get("description", "") if isinstance(inner, Mapping) else ""
            yield Problem(
                document.place(key),
                f"the key {name} is missing",
                _short(list(error.instance)) if error.instance else "an empty mapping",
                f"{name}: {_kind_of(inner)}",
                f"add it: {meaning[:1].lower()}{meaning[1:]}" if meaning else "add it",
            )


def _not(document: Document, key: Key, error: Any) -> Iterator[Problem]:
    if "then" not in error.absolute_schema_path or error.validator_value != {"required": ["files"]}:
        yield _wrong(document, key, error)
    elif isinstance(error.instance, dict) and error.instance.get("revision") == "unpinned":
        yield Problem(
            document.place((*key, "files")),
            "files is there although the revision is unpinned",
            f"{len(error.instance['files'])} file(s)" if isinstance(error.instance["files"], list) else "files",
            "files of one commit, or revision: unpinned without them",
            "run enplace pin, which writes both; or remove files",
        )


def _one_of(document: Document, key: Key, error: Any) -> Iterator[Problem]:
    branches = [_resolved(branch) for branch in error.validator_value]
    if all(set(branch) == {"required"} for branch in branches):
        # Exactly one of several keys.
        names = [name for branch in branches for name in branch["required"]]
        there = [name for name in names if isinstance(error.instance, dict) and name in error.instance]
        wanted = "exactly one of " + ", ".join(names)
        if there:
            todo = "split it: all conditions of a list must hold together"
            yield Problem(
                document.place((*key, there[1])), "says two things at once", " and ".join(there), wanted, todo
            )
        else:
            found = _short(error.instance) if error.instance else "an empty mapping"
            yield Problem(document.value_place(key), "says nothing to look at", found, wanted, "name one of them")
        return
    kinds = {
        branch["properties"]["kind"]["const"]: index
        for index, branch in enumerate(branches)
        if "const" in branch.get("properties", {}).get("kind", {})
    }
    if not kinds or not isinstance(error.instance, dict):
        expected = "a mapping" if kinds else "one of the forms of the schema"
        yield Problem(document.value_place(key), "has a wrong value", _short(error.instance), expected)
        return
    kind = error.instance.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        yield from _wrong_kind(document, key, error.instance, kinds, branches)
        return
    for inner in error.context:
        # Errors of the branch that is meant; those of the others say nothing.
        if inner.relative_schema_path[0] == kinds[kind]:
            yield from _explain(document, inner)


def _wrong_kind(
    document: Document, key: Key, instance: Mapping[str, Any], kinds: Mapping[str, int], branches: list[dict[str, Any]]
) -> Iterator[Problem]:
    if "kind" in instance:
        kind = instance["kind"]
        expected = did_you_mean(kind, kinds) if isinstance(kind, str) else "one of " + ", ".join(sorted(kinds))
        yield Problem(document.value_place((*key, "kind")), "is no kind of layer", _short(kind), expected)
        return
    # The branch with most of the keys that are there is likely the one that was meant.
    near = max(kinds, key=lambda name: len(set(instance) & set(branches[kinds[name]]["properties"])))
    yield Problem(
        document.value_place(key),
        "the key kind is missing",
        _short(list(instance)) if instance else "an empty mapping",
        "kind: one of " + ", ".join(sorted(kinds)),
        f"add it; the other keys are those of {near}" if instance else "add it",
    )


def _any_of(document: Document, key: Key, error: Any) -> Iterator[Problem]:
    branches = [_resolved(branch) for branch in error.validator_value]
    if all(set(branch) == {"required"} for branch in branches):
        wanted = "; or ".join(" and ".join(branch["required"]) for branch in branches)
        yield Problem(
            document.place(key),
            "states no value",
            _short(list(error.instance)) if error.instance else "an empty mapping",
            wanted,
            "add what the source states",
        )
        return
    # A text with a bad character or a list with a bad item is told by the branch of its own type.
    for inner in error.context:
        index = inner.relative_schema_path[0]
        kinds = branches[index].get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if inner.validator != "type" or len(inner.relative_path):
            if isinstance(error.instance, str) and "string" in kinds:
                what, expected = "has a wrong value", "text of one line, without control characters"
                found = _short(error.instance) if error.instance else "an empty text"
                yield Problem(document.value_place(key), what, found, expected)
                return
            if isinstance(error.instance, list) and "array" in kinds:
                yield from _explain(document, inner)
                return
    expected = "true or false, a number, text, a list of these, or a mapping"
    yield Problem(document.value_place(key), "has a wrong value", _short(error.instance), expected)


def _count(document: Document, key: Key, error: Any) -> Iterator[Problem]:
    schema_here, bound = error.schema, error.validator_value
    if "oneOf" in schema_here:
        # That says which keys, so that the number alone need not be told.
        return
    known = schema_here.get("properties", {})
    if schema_here.get("minProperties") == schema_here.get("maxProperties") == 1 and known:
        there = _short(list(error.instance)) if error.instance else "an empty mapping"
        expected = "exactly one of " + ", ".join(known)
        yield Problem(document.place(key), "has a wrong number of keys", there, expected, "keep one of them")
        return
    found = f"{len(error.instance)} entries" if error.instance else "an empty mapping"
    word = "at least" if error.validator == "minProperties" else "at most"
    yield Problem(document.place(key), "has a wrong value", found, f"{word} {bound} entry", "")


def _unique(document: Document, key: Key, error: Any) -> Iterator[Problem]:
    index = repeated(error.instance)
    at = (*key, index) if index is not None else key
    found = _short(error.instance[index]) if index is not None else ""
    yield Problem(document.value_place(at), "is listed twice", found, "each item once", "remove one of them")


def _bad_name(document: Document, key: Key, error: Any) -> Problem:
    """A key that is no valid name. jsonschema gives the name as the instance, and the mapping as the path."""
    name = str(error.instance)
    place = document.place((*key, name))
    shown = name[:MAX_SHOWN]
    if error.validator == "not":
        return Problem(place, "is not a recipe's to set", shown, "an argument of the model", _SETTINGS)
    todo = "write it without the leading dashes, with - for _" if key[-1:] == ("arguments",) else "correct the name"
    return Problem(place, "is not a valid name", shown, f"a name that matches {error.validator_value}", todo)


def _wrong(document: Document, key: Key, error: Any) -> Problem:
    """A single value that is not what the schema demands."""
    value, instance = error.validator_value, error.instance
    wording: dict[str, Callable[[Any], str]] = {
        "type": lambda v: _kind_of({"type": v}),
        # A short list is told whole: the nearest word of three is seldom the one that was meant.
        "enum": lambda v: did_you_mean(instance, v) if isinstance(instance, str) and len(v) > 8 else _choices(v),
        "const": json.dumps,
        "pattern": lambda v: f"text that matches {v}",
        "minimum": lambda v: f"at least {v}",
        "maximum": lambda v: f"at most {v}",
        "exclusiveMinimum": lambda v: f"more than {v}",
        "minItems": lambda v: f"at least {v} item(s)",
        "minLength": lambda v: f"at least {v} character(s)",
        "maxLength": lambda v: f"at most {v} characters",
    }
    expected = wording.get(str(error.validator), _short)(value)
    meaning = error.schema.get("description", "") if isinstance(error.schema, Mapping) else ""
    todo = f"this is: {meaning}" if meaning else ""
    if error.validator == "type":
        # YAML reads a bare 0123 or 1.0 as a number.
        if value == "string" and not isinstance(instance, (dict, list)) and instance is not None:
            todo = "put the value in quotes"
        elif value in ("integer", "number") and isinstance(instance, str) and re.fullmatch(r"[-+]?[0-9.]+", instance):
            todo = "remove the quotes"
        elif value == "integer" and isinstance(instance, float) and instance.is_integer():
            todo = "write it without a decimal point"
    elif key[-1:] == ("revision",) and error.validator == "pattern":
        expected = "a commit of 40 hex digits, or unpinned"
        todo = "tags and branches move; run enplace pin, which finds the commit"
    found = "nothing" if instance is None else "an empty text" if instance == "" else _short(instance)
    return Problem(document.value_place(key), "has a wrong value", found, expected, todo)


def _choices(values: Iterable[Any]) -> str:
    return "one of " + ", ".join(map(str, values))


def _kind_of(node: Any) -> str:
    """What a value is, in a few words."""
    node = _resolved(node) if isinstance(node, Mapping) else {}
    if "const" in node:
        return json.dumps(node["const"])
    if "enum" in node:
        return _choices(node["enum"])
    kind = node.get("type", "...")
    return _KINDS.get(kind, "...") if isinstance(kind, str) else " or ".join(_KINDS.get(k, k) for k in kind)


def _resolved(node: Mapping[str, Any]) -> dict[str, Any]:
    """A part of the schema with its reference followed."""
    target = node.get("$ref", "")
    if not target:
        return dict(node)
    return {**validator().schema["$defs"][target.rsplit("/", 1)[1]], **node}


_EXPLAINED: Mapping[str, Callable[[Document, Key, Any], Iterator[Problem]]] = {
    "additionalProperties": _unknown_keys,
    "required": _missing_keys,
    "not": _not,
    "oneOf": _one_of,
    "anyOf": _any_of,
    "minProperties": _count,
    "maxProperties": _count,
    "uniqueItems": _unique,
}


def _short(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        text = ", ".join(value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


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
        yield from _flags(document, key, variant)
        for text in validate_checks(variant["checks"]):
            match = re.match(r"checks\[(\d+)\](?:\.([A-Za-z0-9_]+))?", text)
            at: Key = (*key, "checks")
            if match:
                at = (*at, int(match[1]), *([match[2]] if match[2] else []))
            yield Problem(document.place(at), text)


def _flags(document: Document, key: Key, variant: Mapping[str, Any]) -> Iterator[Problem]:
    """Values that the program which gets them would read as flags of its own: a way past what a recipe may set."""
    lists: list[tuple[Key, Any]] = [((*key, "arguments", name), value) for name, value in variant["arguments"].items()]
    for model in ("weights", "draft"):
        weights = variant.get(model, {})
        lists.append(((*key, model, "include"), weights.get("include")))
        lists += [((*key, model, "files", n, "path"), item["path"]) for n, item in enumerate(weights.get("files", ()))]
    for at, value in lists:
        several = isinstance(value, list)
        for index, item in enumerate(value if several else [value]):
            if isinstance(item, str) and item.startswith("-") and not re.fullmatch(r"-[0-9]+(\.[0-9]+)?", item):
                place = document.value_place((*at, index) if several else at)
                todo = "write a flag as a key of its own; a value does not begin with -"
                yield Problem(place, "would be read as a flag", item[:MAX_SHOWN], "a value", todo)


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
    match = REFERENCE.fullmatch(reference)
    where, rule = "enplace_recipes", "reference"
    if not match:
        expected = "<org>/<model>:<variant>, for example enplace/smoke:cpu"
        _refuse(where, "is not a recipe's name", reference[:MAX_SHOWN], expected, "correct the name", rule=rule)
    searched = list(folders)
    for folder in searched:
        path = folder / match["name"] / "recipe.yaml"
        if os.path.isfile(path):
            recipe = load_recipe(path)
            break
    else:
        known = {os.fspath(p.parent.relative_to(folder)) for folder in searched for p in folder.glob("*/*/recipe.yaml")}
        todo = f"put <org>/<model>/recipe.yaml below one of: {', '.join(map(str, searched))}"
        _refuse(where, "no such recipe", reference, did_you_mean(match["name"], known), todo, rule=rule)
    variants = recipe.variants
    variant = match["variant"] or (next(iter(variants)) if len(variants) == 1 else "")
    if variant not in variants:
        expected = did_you_mean(variant, variants) if variant else "one of " + ", ".join(variants)
        todo = f"name one as {match['name']}:<variant>"
        _refuse(where, "no such variant", reference, expected, todo, rule=rule)
    return recipe, variant


def load_engine(name: str, version: str, *, engines: Path = ENGINES) -> Document:
    """The manifest of one engine version. Raises RecipeError, naming the versions there are."""
    path = engines / name / version / "engine.yaml"
    try:
        status = path.stat()
    except OSError:
        known = sorted(f"{p.parent.parent.name} {p.parent.name}" for p in engines.glob("*/*/engine.yaml"))
        # Another version is near by its letters, and still another engine.
        same_name = [text for text in known if text.startswith(f"{name} ")]
        _refuse(
            "engine",
            "no such engine",
            f"{name} {version}",
            "one of " + ", ".join(same_name) if same_name else did_you_mean(f"{name} {version}", known),
            "correct name or version, or add the engine's manifest",
            rule="engine-unknown",
        )
    return _manifest(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _manifest(path: Path, modified_ns: int, size: int) -> Document:
    # The time and the size are part of the key only: a manifest that was written again is read again.
    del modified_ns, size
    return load_yaml(path)
