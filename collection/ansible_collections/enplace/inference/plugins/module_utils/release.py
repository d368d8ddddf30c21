# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Releases on a host: where their files lie, what is installed of them, and how what is there differs. Changes nothing.

A release is a folder that is never edited once it is complete. `current` beside it names the release of that recipe
that was verified last, `previous` the one before it. Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, read_json, sha256_bytes
from ansible_collections.enplace.inference.plugins.module_utils.systemd import STOPPED, Systemd

#: Format of release.json.
FORMAT = 2

#: Characters of the digest that name a release's folder.
DIGEST_NAME_LENGTH = 12

MANIFEST = "release.json"
UNIT = "unit.service"
ENVIRONMENT = "environment.conf"
CHECKS = "checks.json"
ALIVE_SERVICE, ALIVE_TIMER = "alive.service", "alive.timer"

#: Name of our drop-in. The owner's are in /etc/systemd/system, under other names.
DROPIN = "10-environment.conf"

#: How every unit of ours begins.
OURS = "# Written by enplace"


@dataclass(frozen=True)
class Layout:
    """Where things lie on a host. `root` is another folder in tests."""

    root: Path = Path("/")

    def at(self, path: str) -> Path:
        """An absolute path of the host."""
        return self.root / path.lstrip("/")

    @property
    def releases(self) -> Path:
        return self.at("/opt/enplace/releases")

    @property
    def environments(self) -> Path:
        return self.at("/opt/enplace/environments")

    @property
    def tools(self) -> Path:
        return self.at("/opt/enplace/tools")

    @property
    def units(self) -> Path:
        """Verified units. A boot starts what is here."""
        return self.at("/usr/local/lib/systemd/system")

    @property
    def candidates(self) -> Path:
        """The unit that is being tried. It wins over `units`, and a boot empties it."""
        return self.at("/run/systemd/system")

    @property
    def owners(self) -> Path:
        """Units and drop-ins of the host's owner, which win over all others."""
        return self.at("/etc/systemd/system")

    @property
    def journal(self) -> Path:
        """The open transaction."""
        return self.at("/var/lib/enplace/activation.json")

    @property
    def history(self) -> Path:
        return self.at("/var/lib/enplace/activations")

    @property
    def caches(self) -> Path:
        """What each unit compiles at run time, one folder a recipe."""
        return self.at("/var/cache/enplace")

    @property
    def lock(self) -> Path:
        return self.at("/run/enplace/host.lock")

    def folder(self, slug: str) -> Path:
        """The folder of all releases of a recipe."""
        return self.releases / slug

    def linked(self, slug: str, link: str) -> str:
        """The short digest that `current` or `previous` of a recipe names; empty where there is no such link."""
        try:
            return os.readlink(self.folder(slug) / link)
        except OSError:
            return ""

    def failed(self, slug: str, digest: str) -> Path:
        """The record of why a release is not tried again."""
        return self.folder(slug) / "failed" / f"{digest[:DIGEST_NAME_LENGTH]}.json"

    def recipes(self) -> list[str]:
        """Slugs of every recipe of which something is served or installed here, sorted."""
        found = set()
        if self.releases.is_dir():
            found = {entry.name for entry in self.releases.iterdir() if (entry / "current").is_symlink()}
        if self.units.is_dir():
            for path in self.units.glob("enplace-*.service"):
                slug = path.name[len("enplace-") : -len(".service")]
                liveness = slug.endswith("-alive") and path.with_suffix(".timer").exists()
                if not liveness and not path.is_symlink():
                    found.add(slug)
        return sorted(found)


def unit_of(slug: str) -> str:
    """The unit of a recipe."""
    return f"enplace-{slug}.service"


def timer_of(slug: str) -> str:
    """The timer that asks a recipe's server whether it is alive."""
    return f"enplace-{slug}-alive.timer"


def liveness_of(slug: str) -> str:
    """The unit that the timer starts."""
    return f"enplace-{slug}-alive.service"


@dataclass(frozen=True)
class Release:
    """One resolved recipe: `files` maps a name to its whole content; `digest` is 64 hex digits."""

    slug: str
    digest: str
    files: Mapping[str, str]
    recipe: str = ""
    layout: Layout = field(default_factory=Layout)

    @property
    def name(self) -> str:
        """The short digest, which names the folder."""
        return self.digest[:DIGEST_NAME_LENGTH]

    @property
    def path(self) -> Path:
        return self.layout.folder(self.slug) / self.name

    @property
    def unit(self) -> str:
        return unit_of(self.slug)

    @property
    def manifest(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.files[MANIFEST])
        return value

    @property
    def standby(self) -> bool:
        return bool(self.manifest.get("standby"))

    @property
    def timer(self) -> str:
        """The liveness timer; empty where the release has none."""
        return timer_of(self.slug) if ALIVE_TIMER in self.files else ""

    def in_folder(self, folder: Path) -> list[tuple[str, Path]]:
        """Name and place of the files that are installed as the unit, in a folder of units."""
        return [
            (name, path)
            for name, path in (
                (UNIT, folder / self.unit),
                (ENVIRONMENT, folder / f"{self.unit}.d" / DROPIN),
            )
            if name in self.files
        ]

    def installed(self) -> list[tuple[str, Path]]:
        """Name and place of every file that is installed once the release is verified."""
        alive = ((ALIVE_SERVICE, liveness_of(self.slug)), (ALIVE_TIMER, timer_of(self.slug)))
        return self.in_folder(self.layout.units) + [
            (name, self.layout.units / unit) for name, unit in alive if name in self.files
        ]


def parse(value: Mapping[str, Any], layout: Layout | None = None) -> Release:
    """A release from a plan's data: slug, recipe, digest, path, unit, files. Raises Failure if they do not agree."""
    layout = layout or Layout()
    release = Release(value["slug"], value["digest"], dict(value["files"]), value.get("recipe", ""), layout)

    def refuse(field_name: str, expected: str, found: object) -> Failure:
        return Failure(
            "the plan of a release is not valid",
            where=f"release.{field_name}",
            expected=expected,
            found=str(found),
            todo="plan and collection are of different versions: run again from one checkout",
        )

    digits = set(release.digest) <= set("0123456789abcdef")
    if len(release.digest) != 64 or not digits:
        raise refuse("digest", "64 hexadecimal digits", release.digest)
    missing = sorted({UNIT, MANIFEST, CHECKS} - set(release.files))
    if missing:
        raise refuse("files", f"at least {UNIT}, {CHECKS} and {MANIFEST}", f"{', '.join(missing)} missing")
    wrong = [name for name in release.files if os.path.basename(name) != name or name in ("", ".", "..")]
    if wrong:
        raise refuse("files", "plain file names", ", ".join(wrong))
    if value.get("unit", release.unit) != release.unit:
        raise refuse("unit", release.unit, value["unit"])
    if Path(value.get("path", release.path)) != release.path:
        raise refuse("path", str(release.path), value["path"])
    manifest = release.manifest
    if manifest.get("format") != FORMAT or manifest.get("digest") != release.digest:
        found = f"format {manifest.get('format')}, digest {manifest.get('digest')}"
        raise refuse(f"files[{MANIFEST}]", f"format {FORMAT}, digest {release.digest}", found)
    return release


def load(layout: Layout, slug: str, name: str) -> Release:
    """A release from its folder, as it was staged. Raises Failure if it is not whole.

    `name` is its short digest.
    """
    folder = layout.folder(slug) / name
    manifest = read_json(str(folder / MANIFEST))

    def refuse(where: Path, expected: str, found: str) -> Failure:
        return Failure(
            f"the release {name} of {slug} is not whole",
            where=str(where),
            expected=expected,
            found=found,
            todo="run site.yml, which stages releases anew",
        )

    if manifest is None:
        raise refuse(folder / MANIFEST, "the manifest of a release", "no such file, or no JSON object")
    if manifest.get("format") != FORMAT:
        raise refuse(folder / MANIFEST, f"format {FORMAT}", f"format {manifest.get('format')}")
    files = {MANIFEST: read_text(folder / MANIFEST)}
    for file_name, digest in sorted(manifest.get("files", {}).items()):
        content = read_bytes(folder / file_name)
        if content is None or sha256_bytes(content) != digest:
            raise refuse(folder / file_name, f"sha256 {digest}", _said(content))
        files[file_name] = content.decode("utf-8", errors="replace")
    return Release(slug, str(manifest.get("digest", "")), files, str(manifest.get("recipe", "")), layout)


def read_bytes(path: Path) -> bytes | None:
    """A file's content; None where there is no file."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_text(path: Path) -> str:
    """A file's text, or nothing when it does not exist. Bytes that are not UTF-8 are replaced: no release has them."""
    content = read_bytes(path)
    return "" if content is None else content.decode("utf-8", errors="replace")


def _said(content: bytes | None) -> str:
    return "no such file" if content is None else f"sha256 {sha256_bytes(content)}"


def difference(what: str, path: Path | str, expected: str, found: str) -> dict[str, str]:
    """One thing that is not as a release says. Never holds what a file says, only how it is called."""
    return {"what": what, "path": str(path), "expected": expected, "found": found}


@dataclass(frozen=True)
class State:
    """How a host differs from a release.

    sealed: `current` names the release. invocation: systemd's identity of the unit's present run.
    other_dropins: the owner's own, which are no difference. journal: the open transaction's, of whatever recipe; None
    where none is open. failed: why the release is not tried again; None where nothing is known against it.
    """

    release: Release
    found: Sequence[Mapping[str, str]] = ()
    unit_before: str = ""
    sealed: bool = False
    staged: bool = False
    installed: bool = False
    active: bool = False
    starting: bool = False
    enabled: bool = False
    invocation: str = ""
    other_dropins: Sequence[str] = ()
    journal: Mapping[str, Any] | None = None
    failed: Mapping[str, Any] | None = None

    @property
    def serving(self) -> bool:
        """The unit that runs is this release's, as it was verified. Whether it answers is another question."""
        return self.sealed and self.installed and self.active

    def differences(self) -> list[dict[str, str]]:
        """Everything that differs: what, path, expected, found. None: the host is as the release says."""
        return [dict(item) for item in self.found]


def look(release: Release, systemd: Systemd) -> State:
    """Compare the host with a release. Changes nothing."""
    return look_all([release], systemd)[0]


def look_all(releases: Sequence[Release], systemd: Systemd) -> list[State]:
    """Compare the host with several releases, with one question to systemd for all of them. Changes nothing."""
    names = [release.unit for release in releases] + [release.timer for release in releases if release.timer]
    shown = systemd.show_all(names)
    return [_look(release, shown) for release in releases]


def _look(release: Release, shown: Mapping[str, Mapping[str, str]]) -> State:
    layout = release.layout
    unit = shown.get(release.unit, {})
    found: list[dict[str, str]] = []
    staged = [
        difference("release file", release.path / name, *sums)
        for name, text in sorted(release.files.items())
        for sums in _sums(release.path / name, text)
    ]
    found += staged
    current = layout.linked(release.slug, "current")
    if current != release.name:
        found.append(
            difference("current", release.path.parent / "current", release.name, current or "no verified release")
        )
    installed = []
    for name, path in release.installed():
        for expected, seen in _sums(path, release.files[name]):
            changed = _names(read_text(path), release.files[name]) if path.exists() else []
            seen = f"{', '.join(changed)} differs" if changed else seen
            installed.append(difference("drop-in" if name == ENVIRONMENT else "unit", path, expected, seen))
    shadow = layout.owners / release.unit
    # A link in /etc may be `systemctl mask`, which UnitFileState tells.
    if shadow.is_file() and not shadow.is_symlink():
        installed.append(difference("unit", shadow, f"none, for the unit is {layout.units / release.unit}", "a file"))
    for _name, path in release.in_folder(layout.candidates):
        if path.exists():
            installed.append(difference("candidate", path, "none", "a unit of an activation that did not end"))
    if not installed and unit.get("NeedDaemonReload") == "yes":
        installed.append(difference("property NeedDaemonReload", release.unit, "no", "yes: systemctl daemon-reload"))
    found += installed
    found += _states(release, unit, shown.get(release.timer, {}) if release.timer else None)
    journal = read_json(str(layout.journal))
    if journal is None and layout.journal.exists():
        journal = {"phase": "unknown"}
    if journal is not None:
        seen = f"phase {journal.get('phase')} of {journal.get('slug')} since {journal.get('begun')}"
        found.append(difference("activation", layout.journal, "none open", seen))
    return State(
        release=release,
        found=found,
        unit_before=read_text(layout.units / release.unit),
        sealed=current == release.name,
        staged=not staged,
        installed=not installed,
        active=unit.get("ActiveState") == "active",
        starting=unit.get("ActiveState") in ("activating", "reloading"),
        enabled=unit.get("UnitFileState") == "enabled",
        invocation=unit.get("InvocationID", ""),
        other_dropins=_other_dropins(release, unit),
        journal=journal,
        failed=read_json(str(layout.failed(release.slug, release.digest))),
    )


def _states(release: Release, unit: Mapping[str, str], timer: Mapping[str, str] | None) -> Iterable[dict[str, str]]:
    enabled, active = ("disabled", "inactive") if release.standby else ("enabled", "active")
    wanted = [(release.unit, unit)] + ([(release.timer, timer)] if timer is not None else [])
    for name, shown in wanted:
        state = shown.get("UnitFileState") or "not installed"
        if state != enabled and not (enabled == "disabled" and state == "not installed"):
            yield difference("property UnitFileState", name, enabled, state)
        state = shown.get("ActiveState", "unknown")
        if state != active and not (active == "inactive" and state in STOPPED):
            yield difference("property ActiveState", name, active, state)


def _other_dropins(release: Release, unit: Mapping[str, str]) -> list[str]:
    folders = (release.layout.units, release.layout.candidates)
    ours = {path for folder in folders for _name, path in release.in_folder(folder)}
    return [path for path in unit.get("DropInPaths", "").split() if Path(path) not in ours]


def _sums(path: Path, text: str) -> list[tuple[str, str]]:
    """Nothing where a file is as it should be; else the sum it should have, and what is there."""
    content, expected = read_bytes(path), text.encode("utf-8")
    return [] if content == expected else [(f"sha256 {sha256_bytes(expected)}", _said(content))]


def _names(before: str, after: str) -> list[str]:
    """The names of the settings in which two unit files differ, sorted."""
    one, other = _settings(before), _settings(after)
    return sorted(key for key in set(one) | set(other) if one.get(key) != other.get(key))


def _settings(text: str) -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";")):
            name = key.strip()
            if name == "Environment":
                # The value may be a secret of the owner's; a variable's name is not.
                name += " " + value.strip().lstrip('"').partition("=")[0]
            settings.setdefault(name, []).append(value)
    return settings


def unwanted(layout: Layout, wanted: Iterable[str]) -> list[str]:
    """Recipes that are served or installed here and are not wanted, by slug."""
    kept = set(wanted)
    return [slug for slug in layout.recipes() if slug not in kept]
