# SPDX-License-Identifier: Apache-2.0
"""What applies, checks and takes back fixes: packs, images, edits and the journal. `apply_all.py` is its command line.

Standard library only, Python 3.10 or newer, one file: it is copied into containers. Nothing that is fixed is imported.

A pack is written for one release, and every edit is placed in the release's own (stock) text. So a set of fixes gives
one text for each file, whatever was applied before, and the stock text, kept aside, brings everything back.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import difflib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK, USAGE, MISMATCH, CONFLICT, IO = 0, 2, 3, 4, 5

STATE_FOLDER = ".enplace-fixes"
LOCK_FILE = ".enplace-fixes.lock"
ASIDE = ".enplace-aside"
#: The package that holds the code of a pack, in the pack's folder and beside what is fixed.
MODULES = "enplace_gaudi"


class Refusal(Exception):
    """Why nothing was written: an exit status, and what a person needs to go on."""

    def __init__(
        self, code: int, what: str, where: str = "", expected: str = "", found: str = "", todo: str = ""
    ) -> None:
        super().__init__(what)
        self.code = code
        self.fields = {"what": what, "where": where, "expected": expected, "found": found, "what to do": todo}

    def __str__(self) -> str:
        lines = [self.fields["what"]]
        for label, text in list(self.fields.items())[1:]:
            if text:
                lines.append("  {}: {}".format(label, text.replace("\n", "\n    ")))
        return "\n".join(lines)


# Packs


@dataclass(frozen=True)
class Target:
    """A distribution that a pack changes, at one version, and the sha256 of every file of it that any fix touches."""

    distribution: str
    names: tuple[str, ...]
    package: str
    version: str
    commit: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Edit:
    """One change: where (file, function, anchor), what is done there, and the digest of what is around it."""

    fix: str
    file: str
    scope: str
    digest: str
    anchor: str
    do: str
    code: tuple[str, ...]


@dataclass(frozen=True)
class Fix:
    """One correction. `written` is False where the pack names it and holds no edits for it yet."""

    name: str
    opt_in: bool
    requires: tuple[str, ...]
    summary: str
    written: bool
    edits: tuple[Edit, ...] = ()
    modules: tuple[str, ...] = ()
    upstream: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Pack:
    """All fixes of one release, in the order in which they count."""

    profile: str
    folder: Path
    targets: tuple[Target, ...]
    fixes: tuple[Fix, ...]
    digest: str

    def fix(self, name: str) -> Fix:
        for fix in self.fixes:
            if fix.name == name:
                return fix
        known = [fix.name for fix in self.fixes]
        close = difflib.get_close_matches(name, known, 1, 0.5)
        raise Refusal(
            USAGE,
            f"the pack {self.profile} has no fix of this name",
            expected=f"did you mean {close[0]}?" if close else ", ".join(known),
            found=name,
            todo="correct the name; --list shows all of them",
        )

    def target(self, file: str) -> Target:
        package = file.split("/")[0]
        return next(target for target in self.targets if target.package == package)

    def choose(self, names: Iterable[str], only: bool, already: Iterable[str] = ()) -> list[str]:
        """Names of the fixes that are asked for, in the pack's order. Refuses what is not written or lacks another."""
        asked = {self.fix(name).name for name in names}
        if not only:
            asked |= {fix.name for fix in self.fixes if not fix.opt_in}
        missing = [name for name in self.order(asked) if not self.fix(name).written]
        if missing:
            raise Refusal(
                USAGE,
                "the pack names fixes that are not written yet",
                str(self.folder),
                "a pack whose fixes are all there",
                ", ".join(missing),
                "name the fixes that you want, with --only",
            )
        chosen = asked | set(already)
        for name in self.order(asked):
            lacking = [other for other in self.fix(name).requires if other not in chosen]
            if lacking:
                raise Refusal(
                    USAGE,
                    f"{name} builds upon a fix that is not applied",
                    expected=f"{name} with {', '.join(lacking)}",
                    found=f"{name} alone",
                    todo=f"name {', '.join(lacking)} too",
                )
        return self.order(chosen)

    def order(self, names: Iterable[str]) -> list[str]:
        wanted = set(names)
        return [fix.name for fix in self.fixes if fix.name in wanted]


def profiles(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/pack.json"))


def load_pack(folder: Path) -> Pack:
    """The pack in a folder: pack.json, a file for each fix that is written, and the modules that they install."""
    texts: list[bytes] = []

    def read(path: Path) -> bytes:
        content = path.read_bytes()
        texts.append(path.name.encode() + b"\0" + content + b"\0")
        return content

    path = folder / "pack.json"
    try:
        data = json.loads(read(path))
        targets = tuple(
            Target(
                item["distribution"],
                (item["distribution"], *item.get("also", [])),
                item.get("package", item["distribution"]),
                item["version"],
                item.get("commit", ""),
                item.get("files", {}),
            )
            for item in data["targets"]
        )
        fixes = []
        for item in data["fixes"]:
            common = (item["name"], item["opt_in"], tuple(item["requires"]), item["summary"])
            path = folder / f"{item['name']}.json"
            if not path.is_file():
                fixes.append(Fix(*common, written=False))
                continue
            more = json.loads(read(path))
            edits = tuple(
                Edit(item["name"], e["file"], e["in"], e["digest"], e["at"], e["do"], tuple(e["code"]))
                for e in more.get("edits", [])
            )
            upstream = tuple(more.get("fixed_upstream", []))
            fixes.append(Fix(*common, True, edits, tuple(more.get("modules", [])), upstream))
        for name in sorted({name for fix in fixes for name in fix.modules}):
            path = folder / MODULES / name
            read(path)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Refusal(
            USAGE,
            "this is not a fix pack",
            str(path),
            "the pack as it was shipped",
            f"{type(error).__name__}: {error}",
            "copy the folder of the fixes anew",
        ) from error
    return Pack(data["profile"], folder, targets, tuple(fixes), sha256(b"".join(texts)))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(content: bytes | None) -> str | None:
    return None if content is None else sha256(content)


# Syntax trees

#: What an equal program may differ in: where names are stored or loaded is said by their place.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def shape(node: Any) -> str:
    """A syntax tree as text, without comments, docstrings, quotes and line breaks, and the same on all Pythons."""
    if isinstance(node, ast.AST):
        parts = []
        for name in node._fields:
            value: Any = getattr(node, name, None)
            if name in _IGNORED_FIELDS or (value is None and not isinstance(node, ast.Constant)) or value == []:
                continue
            if name == "body" and isinstance(node, (*_SCOPES, ast.Module)):
                value = _without_docstring(value)
            parts.append(f"{name}={shape(value)}")
        return f"{type(node).__name__}({','.join(parts)})"
    if isinstance(node, list):
        return "[" + ",".join(shape(item) for item in node) + "]"
    return f"{type(node).__name__}:{node!r}"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_text else body


def _any(node: Any) -> bool:
    """Whether a part of an anchor is `...`, which stands for anything."""
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def matches(pattern: Any, node: Any) -> bool:
    """Whether a tree is what an anchor describes. `...` in the anchor is any expression, any arguments, any body."""
    if isinstance(pattern, ast.expr) and _any(pattern):
        return isinstance(node, ast.expr)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, list):
        return len(pattern) == len(node) and all(matches(a, b) for a, b in zip(pattern, node, strict=True))
    if not isinstance(pattern, ast.AST):
        return bool(pattern == node)
    if isinstance(pattern, _SCOPES) and _any_body(pattern):
        return bool(pattern.name == node.name)
    skipped = set(_IGNORED_FIELDS)
    if isinstance(pattern, ast.Call) and len(pattern.args) == 1 and _any(pattern.args[0]) and not pattern.keywords:
        skipped |= {"args", "keywords"}
    if _any_body(pattern):
        skipped |= {"body", "orelse", "handlers", "finalbody"}
    return all(
        matches(getattr(pattern, name, None), getattr(node, name, None))
        for name in pattern._fields
        if name not in skipped
    )


def _any_body(pattern: ast.AST) -> bool:
    body = getattr(pattern, "body", None)
    return isinstance(body, list) and len(body) == 1 and _any(body[0])


def find_scope(tree: ast.Module, scope: str) -> list[ast.AST]:
    """The functions or classes of a dotted name; the module itself for the empty name."""
    found: list[ast.AST] = [tree]
    for name in filter(None, scope.split(".")):
        found = [node for parent in found for node in _defined_in(parent) if node.name == name]
    return found


def _defined_in(parent: ast.AST) -> Iterator[Any]:
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, _SCOPES):
            yield child
        elif isinstance(child, ast.stmt):
            yield from _defined_in(child)


def find_anchor(scope: ast.AST, anchor: str, do: str) -> list[Any]:
    """The nodes in a scope that an anchor describes: expressions for the edit `expression`, else statements."""
    pattern: Any = ast.parse(anchor).body[0]
    if do == "expression":
        return [node for node in ast.walk(scope) if isinstance(node, ast.expr) and matches(pattern.value, node)]
    return [node for node in ast.walk(scope) if isinstance(node, ast.stmt) and matches(pattern, node)]


def surroundings(scope: ast.AST, node: ast.AST) -> ast.AST:
    """What an edit's digest is of: the enclosing function; in a class or a module the statement alone."""
    return scope if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) else node


class Source:
    """A source file: its text, its tree, and where things are in it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.tree = ast.parse(content)
        self.starts = [0]
        for line in content.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)

    def place(self, edit: Edit, strict: bool = True) -> Splice:
        """Where an edit goes. Raises LookupError with the reason: not there, more than once, or changed around it."""
        scopes = find_scope(self.tree, edit.scope)
        if len(scopes) != 1:
            raise LookupError(f"{edit.scope} is defined {len(scopes)} times")
        nodes = find_anchor(scopes[0], edit.anchor, edit.do)
        if len(nodes) != 1:
            raise LookupError(f"the anchor is there {len(nodes)} times")
        node = nodes[0]
        if strict and sha256(shape(surroundings(scopes[0], node)).encode()) != edit.digest:
            raise LookupError("the code around the anchor is not the one that the fix was written for")
        return self._splice(edit, node)

    def _splice(self, edit: Edit, node: Any) -> Splice:
        begin = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        if edit.do == "expression":
            return Splice(edit, begin, end, 2, 0, "\n".join(edit.code).encode())
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
        line_begin = self.starts[first - 1]
        line_end = min(self.starts[node.end_lineno], len(self.content))
        indent = node.col_offset
        before = self.content[self.starts[node.lineno - 1] : begin]
        after = self.content[end:line_end].strip()
        if before.strip() or (after and not after.startswith(b"#")):
            raise LookupError("the anchor's statement shares its lines with another")
        lines = [f"# enplace: {edit.fix}", *edit.code]
        text = "".join(" " * indent + line + "\n" if line else "\n" for line in lines).encode()
        if edit.do == "before":
            return Splice(edit, line_begin, line_begin, 1, 0, text)
        if not self.content[:line_end].endswith(b"\n"):
            text = b"\n" + text
        if edit.do == "after":
            return Splice(edit, line_end, line_end, 0, -indent, text)
        if edit.do == "replace":
            return Splice(edit, line_begin, line_end, 2, 0, text)
        raise LookupError(f"no such kind of edit: {edit.do}")

    def edited(self, edits: Sequence[Edit], strict: bool = True) -> bytes:
        """The text with all edits. They are placed in the text as it is, so that none depends on another."""
        splices = []
        for edit in edits:
            try:
                splices.append(self.place(edit, strict))
            except LookupError as error:
                raise Misplaced(edit, str(error.args[0])) from error
        splices.sort(key=lambda splice: (splice.begin, splice.kind, splice.depth))
        parts, done = [], 0
        for splice in splices:
            if splice.begin < done:
                raise Misplaced(splice.edit, "another edit changes the same code")
            parts += [self.content[done : splice.begin], splice.text]
            done = splice.end
        return b"".join([*parts, self.content[done:]])


@dataclass(frozen=True)
class Splice:
    """Bytes that take the place of others. Of those at one place: what follows inner code, what precedes, the rest."""

    edit: Edit
    begin: int
    end: int
    kind: int
    depth: int
    text: bytes


class Misplaced(Exception):
    """An edit that has no place in a text."""

    def __init__(self, edit: Edit, reason: str) -> None:
        super().__init__(reason)
        self.edit = edit
        self.reason = reason


# Images


@dataclass(frozen=True)
class Found:
    """An installed distribution."""

    distribution: str
    package: str
    root: str
    version: str
    commit: str
    metadata: importlib.metadata.Distribution = field(repr=False)

    def installed(self, file: str) -> str:
        """The digest of a file as the installer wrote it down; nothing where it did not."""
        for item in self.metadata.files or ():
            if str(item) == file and item.hash is not None and item.hash.mode == "sha256":
                return str(item.hash.value)
        return ""


def search_path() -> list[str]:
    """Where this interpreter finds packages, without the folder of this program and the one it was started in."""
    own = os.path.dirname(os.path.realpath(__file__))
    return [entry for entry in sys.path if entry and os.path.realpath(entry) != own]


def find_target(target: Target, path: Sequence[str]) -> Found:
    """Where a distribution is installed. Nothing of it is imported."""
    copies = [item for name in target.names for item in importlib.metadata.distributions(name=name, path=list(path))]
    if not copies:
        raise Refusal(
            MISMATCH,
            f"{target.distribution} is not installed",
            "\n".join(path),
            f"{target.distribution} {target.version}",
            "no distribution of this name",
            "run this with the Python that serves, inside the container or the environment",
        )
    found = copies[0]
    version = found.version or "unknown"
    root = str(found.locate_file("")).rstrip("/")
    info = f"{root}: {target.distribution}"
    twice = [item.version for item in copies if str(item.locate_file("")).rstrip("/") == root]
    if len(twice) > 1:
        raise Refusal(
            MISMATCH,
            f"{target.distribution} is installed twice in one folder",
            root,
            f"{target.distribution} {target.version} alone",
            ", ".join(twice),
            "uninstall it until nothing is left, then install the right one",
        )
    if version.split("+")[0] != target.version:
        raise Refusal(
            MISMATCH,
            f"{target.distribution} has another version",
            info,
            target.version,
            version,
            "take the image that the recipe names, or the profile of this version",
        )
    origin = _direct_url(found)
    if origin.get("dir_info", {}).get("editable"):
        raise Refusal(
            MISMATCH,
            f"{target.distribution} is an editable install, so its files are somebody's checkout",
            info,
            "an ordinary install",
            str(origin.get("url", "")),
            "install it without -e, or change the checkout itself",
        )
    init = os.path.join(root, target.package, "__init__.py")
    if not os.path.isfile(init):
        raise Refusal(
            MISMATCH,
            f"the files of {target.distribution} cannot be changed where they are",
            root,
            f"the folder {target.package}, beside what the installer wrote of it",
            "an archive" if os.path.isfile(root) else "no such folder",
            "install it as an ordinary folder of files",
        )
    shadow = next((entry for entry in path if os.path.isfile(os.path.join(entry, target.package, "__init__.py"))), root)
    if os.path.realpath(shadow) != os.path.realpath(root):
        raise Refusal(
            MISMATCH,
            f"another copy of {target.package} would be imported",
            shadow,
            root,
            shadow,
            "take its folder out of PYTHONPATH, or start from another folder",
        )
    if os.path.islink(os.path.join(root, target.package)):
        raise Refusal(
            MISMATCH,
            f"the folder of {target.package} is a link",
            os.path.join(root, target.package),
            "a folder of its own",
            os.path.realpath(os.path.join(root, target.package)),
            "install it as an ordinary folder of files",
        )
    commit = _commit(origin, os.path.join(root, target.package, "_version.py"))
    return Found(target.distribution, target.package, os.path.realpath(root), version, commit, found)


def _direct_url(found: importlib.metadata.Distribution) -> dict[str, Any]:
    try:
        value = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _commit(origin: Mapping[str, Any], version_file: str) -> str:
    """The commit that was installed, where the installation says it; else nothing. It informs: digests decide."""
    commit = str(origin.get("vcs_info", {}).get("commit_id", ""))
    if not commit:
        with contextlib.suppress(OSError):
            text = Path(version_file).read_text(encoding="utf-8", errors="replace")
            said = re.search(r"commit_id\S*\s*=\s*.*?'g?([0-9a-f]{7,40})'", text)
            commit = said.group(1) if said else ""
    return commit


# The run


@dataclass(frozen=True)
class Change:
    """What becomes of one file: from one digest to another; None is no file."""

    path: str
    before: str | None
    after: str | None


class Site:
    """The installed distributions of a pack, what was applied to them, and how that is changed."""

    def __init__(self, pack: Pack, path: Sequence[str], accept_changed: bool = False) -> None:
        self.pack = pack
        self.accept_changed = accept_changed
        self.found = {target.package: find_target(target, path) for target in pack.targets}
        self.home = self.found[pack.targets[0].package].root
        self.folder = os.path.join(self.home, STATE_FOLDER)

    # What there is

    @property
    def journal_path(self) -> str:
        return os.path.join(self.folder, "journal.json")

    @property
    def state_path(self) -> str:
        return os.path.join(self.folder, "state.json")

    def state(self) -> dict[str, Any]:
        """What was applied: `profile`, `pack`, `applied`, `files`. Empty where nothing was."""
        state = _read_json(self.state_path)
        if state and state.get("profile") != self.pack.profile:
            raise Refusal(
                CONFLICT,
                "the fixes of another profile are applied here",
                self.state_path,
                f"nothing, or fixes of {self.pack.profile}",
                f"profile {state.get('profile')}: {', '.join(state.get('applied', []))}",
                f"take them back first: --profile {state.get('profile')} --revert",
            )
        return state

    def interrupted(self) -> bool:
        return os.path.exists(self.journal_path)

    def absolute(self, file: str) -> str:
        package = file.split("/")[0]
        root = self.found[package].root if package in self.found else self.home
        return os.path.join(root, *file.split("/"))

    def image(self) -> list[dict[str, Any]]:
        """What was found, beside what the pack is for."""
        return [
            {
                "distribution": target.distribution,
                "root": self.found[target.package].root,
                "version": self.found[target.package].version,
                "commit": self.found[target.package].commit or None,
                "wanted_version": target.version,
                "wanted_commit": target.commit or None,
            }
            for target in self.pack.targets
        ]

    def differing(self) -> list[str]:
        """Files that are not as the last run left them."""
        return [
            file
            for file, digests in self.state().get("files", {}).items()
            if digest_of(self.absolute(file)) != digests["after"]
        ]

    # What is to be

    def stock(self, file: str) -> bytes:
        """A file's text before any fix. Refuses a file that is neither stock nor as the last run left it."""
        path = self.absolute(file)
        content = read_plain(path)
        noted = self.state().get("files", {}).get(file)
        current = sha256(content)
        if noted and current == noted["after"] and current != noted["before"]:
            return self._blob(noted["before"])
        if current == self.pack.target(file).files.get(file) or (noted and current == noted["before"]):
            return content
        if noted:
            raise Refusal(
                CONFLICT,
                "a file was changed after the fixes were applied",
                path,
                f"sha256 {noted['after']}",
                f"sha256 {current}",
                "put the package back as it was installed, and run again",
            )
        if self.accept_changed and b"\r" not in content:
            return content
        raise self._not_stock(file, path, content)

    def _not_stock(self, file: str, path: str, content: bytes) -> Refusal:
        """Why a file is not the release's, as well as it can be told."""
        target = self.pack.target(file)
        wanted = target.files.get(file, "")
        found = f"sha256 {sha256(content)}"
        if b"\r" in content and sha256(content.replace(b"\r\n", b"\n")) == wanted:
            found += "\nthe release's file with the line ends of Windows (CRLF)"
        else:
            noted = self.found[target.package].installed(file)
            if noted == _record_hash(content):
                found += "\nas it was installed, so the package is another build"
            elif noted:
                found += "\nnot as it was installed: somebody, or a disk, changed it"
            found += "\n" + "\n".join(self._anchors(file, content))
        return Refusal(
            MISMATCH,
            f"a file is not the one of {target.distribution} {target.version}",
            path,
            f"sha256 {wanted}",
            found,
            "put the package back as the image has it; --accept-changed-files takes one whose functions are the same",
        )

    def _anchors(self, file: str, content: bytes) -> list[str]:
        try:
            source = Source(content)
        except (SyntaxError, ValueError) as error:
            return [f"it is no Python source: {error}"]
        lines = []
        for fix in self.pack.fixes:
            edits = [edit for edit in fix.edits if edit.file == file]
            reasons = []
            for edit in edits:
                try:
                    source.place(edit)
                except LookupError as error:
                    reasons.append(f"{edit.scope or 'module'}: {error.args[0]}")
            if reasons:
                known = "already fixed upstream; " if fixed_upstream(fix, {file: source}) else ""
                lines.append(f"{fix.name}: {known}{'; '.join(reasons)}")
        return lines or ["all functions that fixes touch are as they are in the release"]

    def texts(self, names: Sequence[str]) -> dict[str, bytes | None]:
        """The content of every file that any fix of the pack touches, with these fixes applied. None is no file."""
        edits: dict[str, list[Edit]] = {}
        modules: set[str] = set()
        for name in names:
            fix = self.pack.fix(name)
            for edit in fix.edits:
                edits.setdefault(edit.file, []).append(edit)
            modules.update(fix.modules)
        result: dict[str, bytes | None] = dict.fromkeys(self.state().get("files", {}))
        for file in result:
            if not file.startswith(MODULES + "/"):
                result[file] = self.stock(file)
        for file, changes in edits.items():
            stock = self.stock(file)
            try:
                text = Source(stock).edited(changes)
                compile(text, self.absolute(file), "exec", dont_inherit=True)
            except (Misplaced, SyntaxError, ValueError) as error:
                raise self._cannot_place(file, error) from error
            result[file] = text
        for module in sorted(modules | ({"__init__.py"} if modules else set())):
            text = (self.pack.folder / MODULES / module).read_bytes()
            compile(text, module, "exec", dont_inherit=True)
            result[f"{MODULES}/{module}"] = text
        return result

    def _cannot_place(self, file: str, error: Exception) -> Refusal:
        if not isinstance(error, Misplaced):
            return Refusal(
                MISMATCH,
                "a file is no Python source, before or after its fixes",
                self.absolute(file),
                "Python",
                f"{type(error).__name__}: {error}",
                "put the package back as it was installed",
            )
        edit = error.edit
        known = fixed_upstream(self.pack.fix(edit.fix), {file: Source(self.stock(file))})
        return Refusal(
            MISMATCH,
            f"{edit.fix} is already in this file, from upstream" if known else f"{edit.fix} does not fit this file",
            f"{self.absolute(file)}, in {edit.scope or 'the module'}",
            f"{edit.anchor}, once, in the function that the fix was written for",
            error.reason,
            "put the package back as the image has it, or take the profile of its version",
        )

    def plan(self, names: Sequence[str]) -> tuple[list[Change], dict[str, bytes], dict[str, Any]]:
        """What has to change so that these fixes alone are applied: changes, contents by digest, the new state."""
        blobs: dict[str, bytes] = {}
        changes, files = [], {}
        noted = self.state().get("files", {})
        for file, text in sorted(self.texts(names).items()):
            path = self.absolute(file)
            ours = file.startswith(MODULES + "/")
            current = None if ours and not os.path.lexists(path) else read_plain(path)
            if ours and current is not None and sha256(current) != noted.get(file, {}).get("after", ""):
                raise Refusal(
                    CONFLICT,
                    "a file is in the way that no run of these fixes wrote",
                    path,
                    "no such file",
                    f"sha256 {sha256(current)}",
                    "find out whose it is, and move it away",
                )
            stock = None if ours else self.stock(file)
            for content in (current, text, stock):
                if content is not None:
                    blobs[sha256(content)] = content
            change = Change(path, _digest(current), _digest(text))
            if current != text:
                changes.append(change)
            if text != stock:
                files[file] = {"before": _digest(stock), "after": change.after}
        state = {
            "format": 1,
            "profile": self.pack.profile,
            "pack": self.pack.digest,
            "applied": list(names),
            "image": self.image(),
            "files": files,
        }
        return changes, blobs, state if names else {}

    def reach(self, names: Sequence[str]) -> list[Change]:
        """Apply these fixes and no others. Returns what was changed; nothing is written where nothing differs."""
        state = self.state()
        if not self.interrupted() and self.is_reached(state, names):
            return []
        self._writable([])
        with contextlib.ExitStack() as stack:
            for root in sorted({found.root for found in self.found.values()}):
                stack.enter_context(lock(root))
            self.recover()
            if self.is_reached(self.state(), names):
                return []
            changes, blobs, state = self.plan(names)
            self._writable(changes)
            self._carry_out(changes, blobs, state)
            return changes

    def is_reached(self, state: Mapping[str, Any], names: Sequence[str]) -> bool:
        if not names and not state:
            # A run that was killed at its very end leaves a folder or a lock, which the next one removes.
            locks = [os.path.join(found.root, LOCK_FILE) for found in self.found.values()]
            return not any(os.path.lexists(path) for path in (self.folder, *locks))
        same = state.get("applied") == list(names) and state.get("pack") == self.pack.digest
        return same and not self.differing()

    # How it is done

    def _writable(self, changes: Sequence[Change]) -> None:
        for folder in sorted(
            {
                *(found.root for found in self.found.values()),
                *(_existing(os.path.dirname(change.path)) for change in changes),
            }
        ):
            read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
            if read_only or not os.access(folder, os.W_OK | os.X_OK):
                raise Refusal(
                    IO,
                    "a folder cannot be written to",
                    folder,
                    "a folder that this user may change",
                    "a file system that is mounted read-only" if read_only else f"not writable for user {os.geteuid()}",
                    "run as its owner, in a container whose file system may be written to",
                )

    def _carry_out(self, changes: Sequence[Change], blobs: Mapping[str, bytes], state: dict[str, Any]) -> None:
        """Keep everything that is needed to go on or back; then write the journal; then do what it says."""
        kept = os.path.join(self.folder, "blobs")
        os.makedirs(kept, exist_ok=True)
        for digest, content in blobs.items():
            if digest_of(os.path.join(kept, digest)) != digest:
                _write(os.path.join(kept, digest), content)
        before = self.state()
        _write_json(self.journal_path, {"changes": [vars(change) for change in changes], "state": state})
        try:
            self._follow_journal()
        except OSError as error:
            back = [Change(change.path, change.after, change.before) for change in changes]
            try:
                _write_json(self.journal_path, {"changes": [vars(change) for change in back], "state": before})
                self._follow_journal()
            except OSError as second:
                raise Refusal(
                    IO,
                    "writing failed, and so did going back",
                    self.journal_path,
                    "files that can be written",
                    f"{error}; {second}",
                    "make room or writable what is named; the next run goes on from the journal",
                ) from second
            raise

    def recover(self) -> bool:
        """Finish what a run that was killed has begun. True if there was something. The lock is held."""
        if not self.interrupted():
            return False
        self._follow_journal()
        return True

    def _follow_journal(self) -> None:
        """Bring all files to where the journal says. Each step can be done twice."""
        journal = _read_json(self.journal_path)
        changes = [Change(**item) for item in journal["changes"]]
        todo = []
        for change in changes:
            current = digest_of(change.path)
            if current == change.after:
                continue
            if current != change.before:
                raise Refusal(
                    CONFLICT,
                    "a run was cut off, and a file was changed since",
                    change.path,
                    f"sha256 {change.before} or {change.after}",
                    f"sha256 {current}",
                    "put the package back as it was installed, remove the journal's folder, and run again",
                )
            todo.append(change)
        for change in todo:
            if change.after is not None:
                if not os.path.isdir(os.path.dirname(change.path)):
                    os.mkdir(os.path.dirname(change.path))
                    os.chmod(os.path.dirname(change.path), 0o755)
                _write(change.path + ASIDE, self._blob(change.after), like=change.path)
        for change in todo:
            if change.after is None:
                os.unlink(change.path)
            else:
                os.replace(change.path + ASIDE, change.path)
        for change in changes:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(change.path + ASIDE)
            _forget_compiled(change.path)
            if change.after is None:
                _remove_empty(os.path.dirname(change.path))
            if os.path.isdir(os.path.dirname(change.path)):
                _sync_folder(os.path.dirname(change.path))
        self._commit(journal["state"])

    def _commit(self, state: Mapping[str, Any]) -> None:
        if state:
            _write_json(self.state_path, state)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.state_path)
        os.unlink(self.journal_path)
        if not state:
            shutil.rmtree(self.folder)
            return
        needed = {digests["before"] for digests in state["files"].values()}
        kept = os.path.join(self.folder, "blobs")
        for name in os.listdir(kept):
            if name not in needed:
                os.unlink(os.path.join(kept, name))

    def _blob(self, digest: str) -> bytes:
        path = os.path.join(self.folder, "blobs", digest)
        content = read_plain(path)
        if sha256(content) != digest:
            raise Refusal(
                CONFLICT,
                "a text that was kept aside has changed",
                path,
                f"sha256 {digest}",
                f"sha256 {sha256(content)}",
                "put the package back as it was installed, remove the folder, and run again",
            )
        return content

    def diff(self, names: Sequence[str]) -> str:
        """What would change, as a unified diff."""
        changes, blobs, _texts = self.plan(names)
        lines: list[str] = []
        for change in changes:
            old, new = (blobs[d].decode().splitlines(True) if d else [] for d in (change.before, change.after))
            lines += difflib.unified_diff(old, new, change.path, change.path)
        return "".join(lines)


def read_plain(path: str) -> bytes:
    """The content of a plain file. Refuses a link: what it points to belongs to somebody else."""
    if os.path.islink(path):
        raise Refusal(
            MISMATCH,
            "a file is a link",
            path,
            "a plain file",
            f"a link to {os.readlink(path)}",
            "install the package with its files copied",
        )
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        raise Refusal(
            MISMATCH,
            "a file is missing",
            path,
            "the release's file",
            "nothing",
            "put the package back as it was installed",
        ) from None


def digest_of(path: str) -> str | None:
    """The sha256 of a file; None where there is none."""
    try:
        with open(path, "rb") as stream:
            return sha256(stream.read())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _record_hash(content: bytes) -> str:
    """A digest as an installer's RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _existing(folder: str) -> str:
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _write(path: str, content: bytes, like: str = "") -> None:
    """Write a file anew and flush it; with the mode and owner of another where that one exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "xb") as stream:
        stream.write(content)
        stream.flush()
        if like and os.path.exists(like):
            status = os.stat(like)
            os.fchmod(stream.fileno(), status.st_mode & 0o7777)
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(stream.fileno(), status.st_uid, status.st_gid)
        elif like:
            os.fchmod(stream.fileno(), 0o644)
        os.fsync(stream.fileno())


def _write_json(path: str, value: Mapping[str, Any]) -> None:
    _write(path + ASIDE, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())
    os.replace(path + ASIDE, path)
    _sync_folder(os.path.dirname(path))


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.load(stream)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Refusal(
            CONFLICT,
            "what an earlier run wrote down cannot be read",
            path,
            "JSON",
            str(error),
            "put the package back as it was installed, remove the folder, and run again",
        ) from error
    return value if isinstance(value, dict) else {}


def _sync_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _forget_compiled(path: str) -> None:
    """Remove the compiled forms of a source file. Some kinds of them are trusted without a look at the source."""
    stem = os.path.basename(path)[: -len(".py")]
    compiled = list(Path(os.path.dirname(path), "__pycache__").glob(f"{stem}.*.pyc"))
    compiled.append(Path(importlib.util.cache_from_source(path)))
    for item in compiled:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            item.unlink()


def _remove_empty(folder: str) -> None:
    for path in (os.path.join(folder, "__pycache__"), folder):
        with contextlib.suppress(OSError):
            os.rmdir(path)


@contextlib.contextmanager
def lock(root: str) -> Iterator[None]:
    """One run at a time for everything below a folder. The kernel frees the lock when its holder dies."""
    path = os.path.join(root, LOCK_FILE)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 200).decode("utf-8", "replace").strip()
            os.close(handle)
            raise Refusal(
                CONFLICT,
                "another run is changing these packages",
                path,
                "nobody holds the lock",
                holder or "a holder that has not written its name yet",
                "wait for it, and run again",
            ) from None
        # A holder removes the file before it lets go: then this handle has locked a file without a name.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                break
        os.close(handle)
    try:
        os.write(handle, f"process {os.getpid()} since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n".encode())
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(handle)


# Other sources


def fixed_upstream(fix: Fix, sources: Mapping[str, Source]) -> bool:
    """Whether a source holds what upstream's own correction of the defect looks like."""
    for sign in fix.upstream:
        source = sources.get(sign["file"])
        for scope in find_scope(source.tree, sign["in"]) if source else ():
            if find_anchor(scope, sign["at"], sign["do"]):
                return True
    return False


def relocate(pack: Pack, trees: Sequence[Path]) -> list[dict[str, str]]:
    """Where every edit of a pack is in another source: same, moved, changed, fixed upstream, or unknown without one.

    Moved is the same function elsewhere, or an anchor that is still there once in a function that has changed.
    """
    sources: dict[str, Source | None] = {}
    for file in sorted({edit.file for fix in pack.fixes for edit in fix.edits}):
        tree = next((tree for tree in trees if (tree / file.split("/")[0]).is_dir()), None)
        if tree is not None:
            sources[file] = Source((tree / file).read_bytes()) if (tree / file).is_file() else None
    there = {file: source for file, source in sources.items() if source is not None}
    rows = []
    for fix in pack.fixes:
        upstream = fixed_upstream(fix, there)
        for edit in fix.edits:
            verdict, detail = _relocated(edit, sources)
            if upstream and verdict != "unknown":
                verdict = "fixed upstream"
            row = {"fix": fix.name, "file": edit.file, "in": edit.scope, "at": edit.anchor}
            rows.append({**row, "verdict": verdict, "detail": detail})
    return rows


def _relocated(edit: Edit, sources: Mapping[str, Source | None]) -> tuple[str, str]:
    if edit.file not in sources:
        return "unknown", "no source of this package was named"
    source = sources[edit.file]
    if source is not None:
        try:
            source.place(edit)
            return "same", ""
        except LookupError:
            pass
        with contextlib.suppress(LookupError):
            source.place(edit, strict=False)
            return "moved", "the anchor is there once, the code around it has changed"
    name = edit.scope.rpartition(".")[2]
    for file, other in sources.items():
        for node in ast.walk(other.tree) if other is not None and name else ():
            if isinstance(node, _SCOPES) and sha256(shape(node).encode()) == edit.digest:
                return "moved", f"the function is in line {node.lineno} of {file}"
    return "changed", "the file is gone" if source is None else "the anchor is gone, or there more than once"
