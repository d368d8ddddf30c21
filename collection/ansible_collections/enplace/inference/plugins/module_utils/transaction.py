# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The journal of a transaction on a host, what became of the earlier ones, and the lock that lets one run at a time.

The journal is written and flushed before what it announces begins. So whatever ends a run, a power cut included, the
next one reads how far it came. Neither journal nor history ever holds what a file of a release says.
Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import files
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.release import Layout

FORMAT = 1

#: Finished transactions that are kept.
KEPT = 20

#: In order. From `commit` on there is no way back, only the rest of the way.
PHASES = ("staged", "checked", "stopping", "waiting", "starting", "ready", "verifying", "commit")

#: Nothing of it is taken further; what it began is taken back.
UNDOING = "undoing"

#: Seconds an orphaned run is waited for beyond its release's own deadline.
ORPHAN_S = 600.0

#: Seconds between two looks at whether somebody still reads what the run says.
WATCH_S = 1.0


def now() -> str:
    """The time as it is written everywhere: 2026-12-01T01:30:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Transaction:
    """An open transaction: `data` is what its journal holds."""

    def __init__(self, layout: Layout, data: dict[str, Any]) -> None:
        self.layout = layout
        self.data = data

    @classmethod
    def open(cls, layout: Layout, kind: str, slug: str, boot: str, holder: str, **more: Any) -> Transaction:
        """A new one of a kind (`activate`, `remove`), not written before its first phase."""
        begun = now()
        name = f"{re.sub('[^0-9TZ]', '', begun)}-{slug}"
        number = 1
        while (layout.history / f"{name}{f'-{number}' if number > 1 else ''}.json").exists():
            number += 1
        data = {
            "format": FORMAT,
            "id": name if number == 1 else f"{name}-{number}",
            "kind": kind,
            "slug": slug,
            "boot": boot,
            "holder": holder,
            "begun": begun,
            "phase": "",
            "phases": [],
            **more,
        }
        return cls(layout, data)

    @property
    def phase(self) -> str:
        return str(self.data["phase"])

    def enter(self, phase: str, **notes: Any) -> None:
        """Write that a phase begins, before it does."""
        self.data["phase"] = phase
        self.data["phases"].append({"phase": phase, "at": now()})
        self.note(**notes)

    def note(self, **notes: Any) -> None:
        """Write what has to be known to finish or undo it."""
        self.data.update(notes)
        os.makedirs(self.layout.journal.parent, mode=0o755, exist_ok=True)
        files.write_json(str(self.layout.journal), self.data, mode=0o600)

    def finish(self, outcome: str, **notes: Any) -> None:
        """Move it to the history. `outcome`: committed, reverted (the release failed), undone (the run was cut off)."""
        self.data.update(notes, outcome=outcome, ended=now())
        os.makedirs(self.layout.history, mode=0o755, exist_ok=True)
        files.write_json(str(self.layout.history / f"{self.data['id']}.json"), self.data, mode=0o600)
        files.remove(str(self.layout.journal))
        files.sync_folder(str(self.layout.journal.parent))
        for path in history(self.layout)[:-KEPT]:
            files.remove(str(self.layout.history / path))


def pending(layout: Layout) -> Transaction | None:
    """The transaction that an earlier run left open; None where there is none.

    Raises Failure for a journal that cannot be read: no run ever leaves one.
    """
    if not os.path.lexists(layout.journal):
        return None
    data = _own_json(layout.journal)
    slugs = [data.get("slug"), *data.get("retire", {})] if data else []
    sound = all(isinstance(slug, str) and re.fullmatch(r"[a-z0-9-]+", slug) for slug in slugs)
    if data is None or data.get("format") != FORMAT or not sound:
        raise Failure(
            "the journal of an earlier run cannot be read",
            where=str(layout.journal),
            expected=f"a JSON object of format {FORMAT}, in a plain file of our own",
            found="something else" if data is None or not sound else f"format {data.get('format')}",
            todo="look at what runs (systemctl status 'enplace-*'), remove the file, and run again",
        )
    return Transaction(layout, data)


def _own_json(path: Path) -> dict[str, Any] | None:
    """The object in a plain file of our own; None for anything else: others may write into the folder above."""
    try:
        state = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
        return None
    return files.read_json(str(path))


def history(layout: Layout) -> list[str]:
    """File names of the finished transactions, oldest first."""
    if not layout.history.is_dir():
        return []
    names = [name for name in os.listdir(layout.history) if re.match(r"\d{8}T\d{6}Z-.*\.json$", name)]
    # Of one second: each was written once, when it ended.
    return sorted(names, key=lambda name: (name[:16], (layout.history / name).stat().st_mtime_ns))


def last_committed(layout: Layout) -> dict[str, Any] | None:
    """The newest transaction that was committed; None where there is none."""
    for name in reversed(history(layout)):
        data = _own_json(layout.history / name)
        if data is not None and data.get("outcome") == "committed":
            return data
    return None


@contextlib.contextmanager
def hold(
    layout: Layout,
    purpose: str,
    holder: str,
    lock_timeout_s: float = 0.0,
    orphan_wait_s: float = ORPHAN_S,
    output: int = 1,
) -> Iterator[files.Lock]:
    """The host's lock. Raises Failure that names its holder if that is alive and does not end in time.

    `output` is the file that the caller's answer is written to. When nobody reads it any more, the holder is marked as
    orphaned; it goes on to its end, and those who come wait for it.
    """
    os.makedirs(layout.lock.parent, mode=0o755, exist_ok=True)
    with files.Lock(str(layout.lock), purpose, holder, lock_timeout_s, orphan_wait_s) as lock, watched(lock, output):
        yield lock


@contextlib.contextmanager
def watched(lock: files.Lock, output: int = 1) -> Iterator[None]:
    """While it lasts, the holder of a lock is marked as orphaned when nobody reads `output` any more."""
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(lock, output, done), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _watch(lock: files.Lock, output: int, done: threading.Event) -> None:
    poll = select.poll()
    # Nothing is asked for: an error or a hang-up is always told. A file never has one.
    poll.register(output, 0)
    while not done.wait(WATCH_S):
        if poll.poll(0):
            lock.mark_orphaned()
            return
