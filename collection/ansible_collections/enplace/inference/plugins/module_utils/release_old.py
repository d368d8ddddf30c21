# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Releases of one recipe on one host: stage the files, switch the unit, wait for a real answer, seal, or go back.

A release is a directory that is never edited once it is complete. `current` beside it names the release that was
verified last; it moves only when the checks have passed, so going back is: install the unit that `current` holds, and
start it. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.enplace.inference.plugins.module_utils import command
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, sync_folder, write_text

UNIT_FOLDER = Path("/etc/systemd/system")
MANIFEST = "release.json"
UNIT = "unit.service"


class Systemd:
    """The few calls to systemctl and journalctl that are needed."""

    def ask(self, *argv: str, timeout_s: float = 300) -> command.Result:
        """Run one of them; what it returned is the caller's to judge."""
        environment = {**command.base_environment(), "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
        return command.run(argv, env=environment, timeout_s=timeout_s)

    def call(self, *arguments: str) -> None:
        """systemctl ARGUMENTS. Raises Failure unless it succeeds."""
        done = self.ask("systemctl", *arguments)
        if not done.ok:
            raise Failure(f"systemctl {' '.join(arguments)} failed", found=done.said(), detail=done.tail())

    def show(self, unit: str) -> dict[str, str]:
        """State of a unit that may not exist, in systemd's own names: ActiveState, UnitFileState, InvocationID, ..."""
        names = "ActiveState,SubState,UnitFileState,Result,NRestarts,InvocationID,ExecMainStatus"
        done = self.ask("systemctl", "show", "--property", names, unit)
        if not done.ok:
            raise Failure(f"systemctl show {unit} failed", found=done.said(), detail=done.tail())
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def journal(self, unit: str, invocation: str, lines: int = 20) -> str:
        """The last lines that one start of a unit wrote, systemd's own about it included."""
        which = (
            [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"] if invocation else ["-u", unit]
        )
        return self.ask("journalctl", "--no-pager", "-o", "cat", "-n", str(lines), *which).stdout.rstrip()


@dataclass(frozen=True)
class Release:
    """What a release consists of. `files` maps a name to its whole content; `path` ends with the short digest."""

    path: Path
    unit: str
    files: Mapping[str, str]
    ready_timeout_s: int
    unit_folder: Path = UNIT_FOLDER

    @property
    def unit_path(self) -> Path:
        return self.unit_folder / self.unit

    @property
    def current(self) -> Path:
        return self.path.parent / "current"


@dataclass
class State:
    """What is there and how it differs from a release."""

    files: list[str] = field(default_factory=list)
    unit_before: str = ""
    unit_differs: bool = False
    active: bool = False
    starting: bool = False
    enabled: bool = False
    sealed: bool = False
    invocation: str = ""

    @property
    def staged(self) -> bool:
        return not self.files

    @property
    def serving(self) -> bool:
        """The unit that runs is this release's. Whether it answers is another question."""
        return self.staged and not self.unit_differs and self.active


def read_text(path: Path) -> str:
    """A file's text, or nothing when it does not exist. Bytes that are not UTF-8 are replaced: no release has them."""
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def look(release: Release, systemd: Systemd) -> State:
    """Compare the host with a release. Changes nothing."""
    shown = systemd.show(release.unit)
    unit_before = read_text(release.unit_path)
    unit_text = release.files[UNIT]
    return State(
        files=sorted(name for name, text in release.files.items() if read_text(release.path / name) != text),
        unit_before=unit_before,
        unit_differs=unit_before != unit_text,
        active=shown.get("ActiveState") == "active",
        starting=shown.get("ActiveState") in ("activating", "reloading"),
        enabled=shown.get("UnitFileState") == "enabled",
        sealed=release.current.is_symlink() and os.readlink(release.current) == release.path.name,
        invocation=shown.get("InvocationID", ""),
    )


def stage(release: Release) -> None:
    """Put the release's files in place, complete or not at all; the running unit is not touched."""
    aside = release.path.with_name(f".{release.path.name}.new")
    old = release.path.with_name(f".{release.path.name}.old")
    try:
        for left_over in (aside, old):
            shutil.rmtree(left_over, ignore_errors=True)
        release.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        aside.mkdir(mode=0o755)
        # The manifest last: a directory without it is no release.
        for name in sorted(release.files, key=lambda name: name == MANIFEST):
            write_text(str(aside / name), release.files[name])
        if release.path.exists():
            release.path.rename(old)
        aside.rename(release.path)
        sync_folder(str(release.path.parent))
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if old.exists() and not release.path.exists():
            old.rename(release.path)
        raise cannot_write(release.path, error) from error


def start(release: Release, systemd: Systemd, *, pause_s: float = 1.0) -> float:
    """Start the unit and wait until it is active, which its ExecStartPost makes mean: it answered a completion.

    Returns the seconds it took. Raises Failure with the last lines of the journal of that start.
    """
    begin = time.monotonic()
    # A unit that failed three times is locked by its start limit; the next release is not to blame.
    systemd.ask("systemctl", "reset-failed", release.unit)
    systemd.call("start", "--no-block", release.unit)
    end = begin + release.ready_timeout_s + 60
    restarts: str | None = None
    invocation = ""
    while True:
        shown = systemd.show(release.unit)
        state = shown.get("ActiveState")
        # A unit that has failed may have lost its invocation's name already.
        invocation = shown.get("InvocationID") or invocation
        if state == "active":
            return time.monotonic() - begin
        restarts = restarts if restarts is not None else shown.get("NRestarts")
        gave_up = state == "failed" or shown.get("NRestarts") != restarts or shown.get("SubState") == "auto-restart"
        if gave_up or time.monotonic() > end:
            what = "failed" if gave_up else f"did not answer a completion within {release.ready_timeout_s} s"
            raise Failure(
                f"{release.unit} {what}",
                where=str(release.path),
                expected="a completion",
                found=f"state {state}, result {shown.get('Result')}, exit status {shown.get('ExecMainStatus')}",
                todo=f"read the output below; the whole of it: journalctl -u {release.unit}",
                detail=systemd.journal(release.unit, invocation or shown.get("InvocationID", "")),
            )
        time.sleep(pause_s)


def activate(release: Release, state: State, systemd: Systemd) -> float:
    """From whatever runs to this release, started and answering. On failure the last verified release runs again.

    Returns the seconds from start to answer. Raises Failure, after going back.
    """
    if not state.staged:
        stage(release)
    try:
        if state.unit_differs:
            if state.active or state.starting:
                systemd.call("stop", release.unit)
            write_text(str(release.unit_path), release.files[UNIT])
            systemd.call("daemon-reload")
        return start(release, systemd)
    except (Failure, OSError) as error:
        failure = error if isinstance(error, Failure) else cannot_write(release.unit_path, error)
        if state.unit_differs:
            failure.what += "; " + revert(release, systemd)
        raise failure from error


def cannot_write(path: Path, error: OSError) -> Failure:
    """An operating system error while a file of a release was written, as an error for people."""
    return Failure(
        "a file of a release cannot be written; what was there is unchanged",
        where=str(path),
        expected="a folder that can be written",
        found=error.strerror or str(error),
        todo="free some space, or look at the disk, and run again",
    )


def seal(release: Release, systemd: Systemd) -> None:
    """Mark the running release as verified: enabled for boot, and what `current` names."""
    systemd.call("enable", release.unit)
    link = release.path.parent / ".current.new"
    link.unlink(missing_ok=True)
    link.symlink_to(release.path.name)
    os.replace(link, release.current)
    sync_folder(str(release.path.parent))


def revert(release: Release, systemd: Systemd) -> str:
    """Back to the last verified release, or to no unit at all. Returns what was done, as words for a message."""
    systemd.ask("systemctl", "stop", release.unit)
    target = os.readlink(release.current) if release.current.is_symlink() else ""
    text = read_text(release.path.parent / target / UNIT) if target else ""
    if not text or target == release.path.name:
        if target != release.path.name:
            systemd.ask("systemctl", "disable", release.unit)
            release.unit_path.unlink(missing_ok=True)
            systemd.ask("systemctl", "daemon-reload")
            systemd.ask("systemctl", "reset-failed", release.unit)
            return f"{release.unit} was removed, since no verified release was there before"
        return f"{release.unit} is stopped"
    if read_text(release.unit_path) != text:
        write_text(str(release.unit_path), text)
    systemd.ask("systemctl", "daemon-reload")
    try:
        seconds = start(
            Release(
                release.path.parent / target, release.unit, {UNIT: text}, release.ready_timeout_s, release.unit_folder
            ),
            systemd,
        )
    except Failure as error:
        return f"the last verified release {target} was put back but does not start: {error.what}, {error.found}"
    return f"the last verified release {target} serves again ({seconds:.0f} s)"
