# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Locks of engines: made by the real uv for another machine, compared with what was there, written whole or not at all.

A lock is a function of what its manifest records: requirements, overrides, wheels that fit, Python and a moment after
which nothing counts. So it can be made again byte for byte, which `check` does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ansible_collections.enplace.inference.plugins.module_utils.environment import parse_lock
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, write_text

from .engines import Platform, load_engine, platforms
from .recipe import ENGINES, Document, Problem, RecipeError, did_you_mean

# Seconds; a lock of 190 packages takes 15 with an empty cache.
TIMEOUT_S = 600.0
# Of uv's own variables these reach it: where the index is and whom to trust. Others would make other locks elsewhere.
_PASSED = ("UV_CACHE_DIR", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
# A file may show up in an index, and weeks later in mirrors that hold back what is new, after the moment it says it was
# uploaded at.
SETTLED_DAYS = 21


class LockError(RecipeError):
    """A lock cannot be made or read."""


def _refuse(where: str, what: str, found: str = "", expected: str = "", todo: str = "") -> LockError:
    return LockError([Problem(where, what, found, expected, todo)])


# Differences ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rehashed:
    """A version whose files are not those that were locked. gone, new: SHA-256 that only the old, only the new has."""

    name: str
    version: str
    gone: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def alarming(self) -> bool:
        """Whether a file that was locked is not there any more; that there are more files is not."""
        return bool(self.gone)


@dataclass(frozen=True)
class Difference:
    """What two locks differ in. added, removed: name and version; changed: name, old and new version."""

    added: tuple[tuple[str, str], ...] = ()
    removed: tuple[tuple[str, str], ...] = ()
    changed: tuple[tuple[str, str, str], ...] = ()
    rehashed: tuple[Rehashed, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.rehashed)

    @property
    def alarming(self) -> tuple[Rehashed, ...]:
        """Versions of which a locked file is gone or replaced. An index does not let a published file be replaced."""
        return tuple(entry for entry in self.rehashed if entry.alarming)

    def lines(self) -> list[str]:
        """For people, what is alarming first."""
        told = [
            f"ALARM {entry.name} {entry.version}: the same version has other files now ({len(entry.gone)} locked "
            f"hashes gone, {len(entry.new)} new). Published files do not change: find out who changed them before "
            "you use this lock"
            for entry in self.alarming
        ]
        told += [f"+ {name} {version}" for name, version in self.added]
        told += [f"- {name} {version}" for name, version in self.removed]
        told += [f"~ {name} {old} -> {new}" for name, old, new in self.changed]
        told += [
            f"= {entry.name} {entry.version}: {len(entry.new)} further files were published"
            for entry in self.rehashed
            if not entry.alarming
        ]
        return told


def difference(old: str, new: str) -> Difference:
    """What two texts of locks differ in; comments and order do not count. Raises LockError for what is no lock."""
    before, after = _pins(old, "the old lock"), _pins(new, "the new lock")
    rehashed = []
    for name, version in sorted(before.keys() & after.keys()):
        gone, fresh = before[name, version] - after[name, version], after[name, version] - before[name, version]
        if gone or fresh:
            rehashed.append(Rehashed(name, version, tuple(sorted(gone)), tuple(sorted(fresh))))
    left, came = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    one_left, one_came = _alone(left), _alone(came)
    changed = tuple((name, one_left[name], one_came[name]) for name in sorted(one_left.keys() & one_came.keys()))
    moved = {name for name, _old, _new in changed}
    return Difference(
        added=tuple(pin for pin in came if pin[0] not in moved),
        removed=tuple(pin for pin in left if pin[0] not in moved),
        changed=changed,
        rehashed=tuple(rehashed),
    )


def _alone(pins: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Version by name, of the names that occur once."""
    versions: dict[str, list[str]] = {}
    for name, version in pins:
        versions.setdefault(name, []).append(version)
    return {name: found[0] for name, found in versions.items() if len(found) == 1}


def _pins(text: str, where: str) -> dict[tuple[str, str], frozenset[str]]:
    """Hashes by name and version; one version in several lines, for several markers, counts once."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    try:
        for pin in parse_lock(text, where):
            key = (pin.name, pin.version)
            found[key] = found.get(key, frozenset()) | frozenset(pin.hashes)
    except Failure as failure:
        raise _refuse(failure.where, failure.what, failure.found, failure.expected, failure.todo) from failure
    return found


# Making one ----------------------------------------------------------------------------------------------------------


def arguments(platform: Platform) -> tuple[list[str], list[str]]:
    """The command that makes a lock in the manifest's folder, in two parts: what is alike for all, and the rest."""
    first = ["uv", "pip", "compile", "--no-header", "--generate-hashes", "--only-binary", ":all:"]
    first += ["--python-version", platform.python, "--python-platform", platform.tag]
    rest = ["--torch-backend", platform.torch_backend] if platform.torch_backend else []
    if platform.overrides:
        rest += ["--override", platform.overrides.name]
    rest += ["--exclude-newer", platform.exclude_newer, platform.requirements.name, "-o", platform.lock.name]
    return first, rest


def header(platform: Platform) -> str:
    """The comment at the top of a lock: what it is, and how to make it again."""
    first, rest = arguments(platform)
    return (
        f"# Complete, hash-locked requirements of {platform}. Made in this folder by:\n"
        f"#   {' '.join(first)} \\\n#     {' '.join(rest)}\n"
    )


def compile_lock(
    platform: Platform,
    *,
    uv: str = "uv",
    find_links: Sequence[str] = (),
    index_url: str = "",
    timeout_s: float = TIMEOUT_S,
) -> str:
    """The text of a platform's lock, made anew by uv. Nothing is written. Raises LockError.

    uv: the command. find_links: folders or addresses with wheels besides the index; PyTorch's own index is not asked
    where they are given, so they must hold what it would. index_url: the package index, where it is not uv's own.
    The versions of a lock that is there do not count.
    """
    program = _find(uv)
    first, rest = arguments(platform)
    if find_links and platform.torch_backend:
        rest = rest[2:]
    for place in find_links:
        rest += ["--find-links", place]
    with tempfile.TemporaryDirectory(prefix="enplace-lock-") as folder:
        out = Path(folder) / "lock.txt"
        rest[rest.index("-o") + 1] = str(out)
        argv = [program, *first[1:], *rest, "--quiet"]
        try:
            ran = subprocess.run(
                argv,
                cwd=platform.requirements.parent,
                env=_environment(os.environ, index_url),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            todo = "check the network and the index; what was downloaded is kept"
            raise _refuse(str(platform), "uv did not end", f"after {timeout_s:.0f} s", "a lock", todo) from error
        if ran.returncode != 0 or not out.is_file():
            said = "\n".join((ran.stderr or ran.stdout).strip().splitlines()[-20:])
            raise _refuse(str(platform), "uv makes no lock", f"return code {ran.returncode}", "a lock", _advice(said))
        text = out.read_text(encoding="utf-8")
    if "://" in text:
        found = next(line for line in text.splitlines() if "://" in line)
        raise _refuse(str(platform), "the lock names an address", found[:160], "name==version with hashes")
    made = header(platform) + text
    _pins(made, str(platform.lock))
    return made


def _environment(own: Mapping[str, str], index_url: str) -> dict[str, str]:
    env = {name: value for name, value in own.items() if not name.startswith(("UV_", "PIP_")) or name in _PASSED}
    env.update({"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"})
    if index_url:
        env["UV_DEFAULT_INDEX"] = index_url
    return env


def _find(uv: str) -> str:
    program = shutil.which(uv)
    if program is None:
        todo = "install it (https://docs.astral.sh/uv), or name it by --uv"
        raise _refuse("uv", "is missing: locks are made by it", f"no command {uv} on PATH", "uv 0.8 or newer", todo)
    return program


def uv_version(uv: str = "uv") -> str:
    """Version of uv, such as 0.13.9. Raises LockError where it does not run."""
    program = _find(uv)
    try:
        ran = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _refuse(program, "does not run", str(error)[:200], "uv 0.8 or newer") from error
    match = re.match(r"uv ([0-9]+(?:\.[0-9]+)+)", ran.stdout)
    if ran.returncode != 0 or not match:
        found = (ran.stdout + ran.stderr).strip()[:200] or f"return code {ran.returncode}"
        raise _refuse(program, "does not say its version", found, "uv 0.8 or newer", "install it anew")
    return match[1]


def _advice(said: str) -> str:
    if re.search(r"dns error|error sending request|Connection refused|timed out", said):
        return f"check the network, and the index. uv says:\n{said}"
    if "No solution found" in said:
        return f"correct requirements, overrides or exclude_newer of the manifest. uv says:\n{said}"
    return f"uv says:\n{said}"


# The command ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of one platform. identical: byte for byte what was there. written: whether the file was replaced.

    difference: from the lock that was there; None where there was none. made_by, recorded: versions of uv, of this run
    and of the manifest.
    """

    platform: Platform
    identical: bool
    written: bool
    difference: Difference | None
    made_by: str
    recorded: str

    def lines(self) -> list[str]:
        """For people: the platform and its state, then what differs."""
        if self.identical:
            state = "is what it was"
        elif self.difference is None:
            state = "is new"
        elif not self.difference:
            state = "differs in comments or order alone"
        else:
            state = "differs"
        told = [f"{self.platform}: {self.platform.lock.name} {state}{', and is written' if self.written else ''}"]
        if self.difference:
            told += [f"  {line}" for line in self.difference.lines()]
        if not self.identical and self.made_by != self.recorded:
            told.append(f"  the manifest records uv {self.recorded}, this is uv {self.made_by}")
        return told


def lock(
    reference: str,
    *,
    platform: str = "",
    exclude_newer: str = "",
    check: bool = False,
    engines: Path = ENGINES,
    uv: str = "uv",
    find_links: Sequence[str] = (),
    index_url: str = "",
) -> list[Outcome]:
    """Make the locks that `<engine>` or `<engine>/<version>` names; what came of each. Raises RecipeError.

    platform: only this one, by its accelerator or its lock's name. exclude_newer: another moment than the manifest
    records, as 2026-07-28 or 2026-07-28T00:00:00Z; the manifest is told. It must lie
    `SETTLED_DAYS` back. check: nothing is written.
    uv, find_links, index_url: as for `compile_lock`.
    """
    moment = _moment(exclude_newer)
    version = uv_version(uv)
    chosen = [
        (document, index, entry)
        for document in _manifests(reference, engines)
        for index, entry in enumerate(platforms(document))
        if platform in ("", entry.accelerator, entry.lock.name, entry.lock.name.removesuffix(".lock.txt"))
    ]
    if not chosen:
        known = [entry.accelerator for document in _manifests(reference, engines) for entry in platforms(document)]
        raise _refuse(reference, "has no such platform", platform, did_you_mean(platform, known), "name one of these")
    if not check:
        for _document, _index, entry in chosen:
            _demand_settled(moment or entry.exclude_newer)
    outcomes = []
    for document, index, entry in chosen:
        wanted = replace(entry, exclude_newer=moment or entry.exclude_newer)
        before = entry.lock.read_text(encoding="utf-8") if entry.lock.is_file() else None
        text = compile_lock(wanted, uv=uv, find_links=find_links, index_url=index_url)
        identical = text == before
        if not identical and not check:
            write_text(str(wanted.lock), text)
            record(document, index, {"exclude_newer": wanted.exclude_newer, "uv": version})
        found = None if before is None else difference(before, text)
        outcomes.append(Outcome(wanted, identical, not identical and not check, found, version, entry.uv))
    return outcomes


def _moment(text: str) -> str:
    if not text or _MOMENT.fullmatch(text):
        return text
    if not _DAY.fullmatch(text):
        raise _refuse("--exclude-newer", "is no date", text, "2026-07-28 or 2026-07-28T00:00:00Z", "correct it")
    return f"{text}T00:00:00Z"


def _demand_settled(moment: str) -> None:
    """Raises LockError for a moment so near that the index may not have all of its files yet: no lock for good."""
    settled = datetime.now(UTC) - timedelta(days=SETTLED_DAYS)
    latest = settled.strftime("%Y-%m-%dT%H:%M:%SZ")
    if moment > latest:
        what = "is so near that the index may still get files of before it: another run would lock them"
        raise _refuse("exclude_newer", what, moment, f"{latest} or earlier", "name an earlier day by --exclude-newer")


def _manifests(reference: str, engines: Path) -> list[Document]:
    name, _slash, version = reference.partition("/")
    if version:
        return [load_engine(name, version, engines=engines, locks=False)]
    found = sorted(path.parent.name for path in engines.glob(f"{name}/*/engine.yaml")) if name.isprintable() else []
    if not found:
        known = sorted({path.parent.parent.name for path in engines.glob("*/*/engine.yaml")})
        raise _refuse(
            "engine", "no such engine", reference, did_you_mean(name, known), "<engine> or <engine>/<version>"
        )
    return [load_engine(name, version, engines=engines, locks=False) for version in found]


def record(document: Document, index: int, values: Mapping[str, str]) -> None:
    """Write values of a platform's `locked` into its manifest, each at its place; every other byte stays.

    Raises LockError where a value is not written on one line, or was changed since it was read.
    """
    path = document.path
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for name, value in values.items():
        old = document.data["platforms"][index]["locked"][name]
        place = document.value_place(("platforms", index, "locked", name))
        line = lines[place.line - 1]
        head, tail = line[: place.column - 1], line[place.column - 1 :]
        match = re.match(r"\"([^\"\n]*)\"|'([^'\n]*)'|([^\s,}#]+)", tail)
        if match is None or old not in match.groups():
            todo = "run again; if it is written over several lines, write it on one"
            raise _refuse(str(place), "cannot be replaced in the manifest", tail.strip()[:80], old, todo)
        lines[place.line - 1] = head + tail.replace(old, value, 1)
    text = "".join(lines)
    if text != path.read_text(encoding="utf-8"):
        write_text(str(path), text, mode=path.stat().st_mode & 0o777)
