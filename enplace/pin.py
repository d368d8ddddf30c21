# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""`enplace pin`: the commit of a repository and its files, written into a recipe.

The text is changed where the scanner says that a value stands, and nowhere else: comments, layout and every other line
stay as they are, byte by byte. What was written is read back and compared before the file is replaced.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.enplace.inference.plugins.plugin_utils import hub
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    Document,
    Problem,
    RecipeError,
    did_you_mean,
    load_yaml,
    parse_yaml,
    plain_value,
    validate,
)

from . import common
from .show import size_text

PARTS = ("weights", "draft")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# What the schema demands of a path, and what stands without quotes in a flow mapping whatever YAML is read by.
_BARE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9._/+-]*")


@dataclass(frozen=True)
class Pin:
    """What is to be written: a variant's weights or draft at a commit. files: path, bytes, sha256 of each."""

    variant: str
    part: str
    repository: str
    before: str
    commit: str
    files: tuple[Mapping[str, Any], ...]

    @property
    def bytes(self) -> int:
        return sum(int(item["bytes"]) for item in self.files)


def run(options: argparse.Namespace) -> int:
    """The command."""
    try:
        path, variant = common.find_path(options.reference, options.recipes)
        document = load_yaml(path)
        _demand_valid(document)
        names = _variants(document, variant)
        try:
            endpoint = hub.endpoint_of(os.environ, options.endpoint or "")
            token = hub.token_of(os.environ, options.token_file)
        except hub.HubError as error:
            # The command line or the environment, not the hub.
            raise RecipeError([replace(problem, rule="reference") for problem in error.problems]) from None
        wanted = list(_wanted(document, names, update=options.update))
        pins = ask(document, wanted, endpoint, token)
        # With --update most is what it was.
        pins = [pin for pin in pins if _differs(document, pin)]
        for pin in pins:
            common.out(
                f"{pin.variant} {pin.part}: {pin.repository} {pin.before} -> {pin.commit}, "
                f"{common.counted(len(pin.files), 'file')}, {size_text(pin.bytes)}"
            )
        if not pins:
            common.out(f"{common.shown(path)}: pinned, nothing to change")
            return 0
        before = path.read_bytes()
        after = apply(path, before, pins)
        if options.check:
            common.out(f"{common.shown(path)}: would change")
            return 1
        replace_file(path, before, after)
        common.out(f"{common.shown(path)}: written")
        for pin in pins:
            _remind(document, pin)
    except hub.HubError as error:
        return common.tell(replace(problem, rule="hub") for problem in error.problems)
    except RecipeError as error:
        return common.tell(error.problems)
    except OSError as error:
        common.err(f"{error.filename or options.reference}: cannot be written: {error.strerror}; nothing was changed")
        return 1
    return 0


# What is to be pinned -------------------------------------------------------------------------------------------------


def _demand_valid(document: Document) -> None:
    """A recipe whose only fault is its pins. Raises RecipeError for any other."""
    data = copy.deepcopy(document.data)
    variants = data.get("variants") if isinstance(data, dict) else None
    for variant in variants.values() if isinstance(variants, dict) else ():
        for part in PARTS:
            weights = variant.get(part) if isinstance(variant, dict) else None
            if isinstance(weights, dict) and isinstance(weights.get("revision"), str):
                weights["revision"] = "unpinned"
                weights.pop("files", None)
    problems = validate(Document(document.path, data, document.places, document.values))
    if problems:
        raise RecipeError(problems)


def _variants(document: Document, name: str) -> list[str]:
    known = list(document.data["variants"])
    if name and name not in known:
        where = document.place(("variants",))
        raise RecipeError([Problem(where, "no such variant", name, did_you_mean(name, known), "", "reference")])
    return [name] if name else known


def _wanted(document: Document, names: Sequence[str], *, update: bool) -> Iterator[tuple[str, str, str]]:
    """Variant, part and the revision to ask the hub for."""
    for name in names:
        for part in PARTS:
            weights = document.data["variants"][name].get(part)
            if weights is None:
                continue
            revision = weights["revision"]
            if update or revision == "unpinned":
                yield name, part, "main"
            elif not _COMMIT.fullmatch(revision) or "files" not in weights:
                # A branch or a tag becomes its commit; a commit gets its files.
                yield name, part, revision


def ask(document: Document, wanted: Sequence[tuple[str, str, str]], endpoint: str, token: str | None) -> list[Pin]:
    """What the hub says. Variants that share a repository ask once. Raises HubError."""
    commits: dict[tuple[str, str], str] = {}
    manifests: dict[tuple[str, str, tuple[str, ...]], tuple[Mapping[str, Any], ...]] = {}
    pins = []
    for name, part, revision in wanted:
        weights = document.data["variants"][name][part]
        repository, include = weights["repository"], tuple(weights.get("include", ()))
        if (repository, revision) not in commits:
            commits[repository, revision] = hub.resolve_revision(endpoint, repository, revision, token)
        commit = commits[repository, revision]
        if (repository, commit, include) not in manifests:
            found = hub.manifest(endpoint, repository, commit, include, token)
            manifests[repository, commit, include] = tuple(found)
        files = manifests[repository, commit, include]
        pins.append(Pin(name, part, repository, str(weights["revision"]), commit, files))
    return pins


def _differs(document: Document, pin: Pin) -> bool:
    weights = document.data["variants"][pin.variant][pin.part]
    return bool(weights["revision"] != pin.commit or weights.get("files") != list(map(dict, pin.files)))


def _remind(document: Document, pin: Pin) -> None:
    """What a person should look at: a size that was concluded is known now."""
    field = f"{pin.part}.bytes"
    inferred = document.data["variants"][pin.variant].get("inferred", [])
    if any(entry["field"] == field for entry in inferred):
        common.out(f"{pin.variant}: the hub states {field} now; remove its entry of `inferred`")


# The text ------------------------------------------------------------------------------------------------------------


def apply(path: Path, before: bytes, pins: Sequence[Pin]) -> bytes:
    """The recipe's text with the pins in it. Raises RecipeError where the result would not be what was meant."""
    text = before.decode("utf-8")
    document = parse_yaml(path, text)
    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    newline = "\r\n" if "\r\n" in text else "\n"
    edits: list[tuple[int, int, str]] = []
    data = copy.deepcopy(document.data)
    for pin in pins:
        node = _child(_child(_child(root, "variants"), pin.variant), pin.part)
        edits += _edits(text, node, pin, newline)
        weights = data["variants"][pin.variant][pin.part]
        weights["revision"], weights["files"] = pin.commit, [dict(item) for item in pin.files]
        if "bytes" in weights:
            weights["bytes"] = pin.bytes
    for start, end, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[end:]
    written = parse_yaml(path, text)
    problems = validate(written)
    if problems:
        raise RecipeError(problems)
    if written.data != data:
        todo = "report this with the recipe; write the pin by hand meanwhile"
        raise RecipeError([Problem(str(path), "cannot be pinned: its layout is not understood", todo=todo)])
    return text.encode("utf-8")


def _edits(text: str, node: yaml.MappingNode, pin: Pin, newline: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and replacement of every change for one pin."""
    revision = _child(node, "revision")
    yield revision.start_mark.index, revision.end_mark.index, _scalar(pin.commit)
    size = _find(node, "bytes")
    if size is not None and size[1].value != str(pin.bytes):
        yield size[1].start_mark.index, size[1].end_mark.index, str(pin.bytes)
    entries = [
        f"{{path: {_scalar(item['path'])}, bytes: {item['bytes']}, sha256: {_scalar(item['sha256'])}}}"
        for item in pin.files
    ]
    files = _find(node, "files")
    key = next(name for name, _ in node.value if name.value == "revision")
    if node.flow_style:
        # In braces indentation means nothing; a line for each entry all the same.
        indent = newline + " " * (node.start_mark.column + 2)
        listed = "files: [" + ",".join(indent + entry for entry in entries) + "]"
        if files is None:
            yield revision.end_mark.index, revision.end_mark.index, f", {listed}"
        else:
            yield files[0].start_mark.index, _end(files[1]), listed
        return
    indent = newline + " " * key.start_mark.column
    listed = "files:" + "".join(f"{indent}  - {entry}" for entry in entries)
    if files is None:
        # Behind the comment that the line may end with.
        line_end = text.find(newline, revision.end_mark.index)
        line_end = len(text) if line_end < 0 else line_end
        yield line_end, line_end, indent + listed
    else:
        yield files[0].start_mark.index, _end(files[1]), listed


def _find(node: yaml.MappingNode, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    return next(((key, value) for key, value in node.value if key.value == name), None)


def _child(node: Any, name: str) -> Any:
    found = _find(node, name)
    assert found is not None, name
    return found[1]


def _end(node: yaml.Node) -> int:
    """Where a value really ends: a block's own end mark lies behind the comments and empty lines that follow it."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


def _scalar(text: str) -> str:
    """Text as it may stand in a flow mapping; in quotes where any reader would take it for something else."""
    return text if _BARE.fullmatch(text) and _means_itself(text) else f'"{text}"'


def _means_itself(text: str) -> bool:
    try:
        return bool(plain_value(text) == text)
    except ValueError:
        return False


# The file ------------------------------------------------------------------------------------------------------------


def replace_file(path: Path, before: bytes, after: bytes) -> None:
    """Replace a file as a whole: written aside, flushed, renamed. Raises RecipeError where it is not what was read."""
    # A link stays one.
    real = path.resolve()
    handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    try:
        with open(handle, "wb") as stream:
            stream.write(after)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, stat.S_IMODE(real.stat().st_mode))
        if real.read_bytes() != before:
            todo = "look at what changed, and run enplace pin again"
            problem = Problem(str(path), "was changed meanwhile; nothing was written", "another content", todo=todo)
            raise RecipeError([problem])
        os.replace(name, real)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(real.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
