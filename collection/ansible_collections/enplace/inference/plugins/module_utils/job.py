# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work on a host that outlives the call that began it, and a file that tells how far it is.

A module that is called over ssh says nothing until it ends. Work that takes hours is therefore done by a process of its
own; whoever began it reads the file now and then, and if he dies the work goes on to its end.

Standard library only, Python 3.9 or newer. Nothing here knows Ansible.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, read_json, remove, write_json

#: Where the files lie, for root; readable for root alone, because a failure quotes a program's output.
FOLDER = "/run/enplace/jobs"
#: Seconds between two writes of the file while nothing but a number changes.
WRITE_EVERY_S = 1.0
#: Files of ended jobs that nobody fetched are kept as long as this, in seconds.
KEEP_S = 86400.0

RUNNING, DONE, FAILED = "running", "done", "failed"


class Progress:
    """How far a piece of work is. Says it to nobody: what a call in the foreground uses."""

    def tell(self, **fields: Any) -> None:
        """Fields as they are now; those not named keep their values."""


class FileProgress(Progress):
    """`Progress` in a file, replaced as a whole each time: ``state``, ``pid``, ``at`` (seconds) and what was told."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._value: dict[str, Any] = {"state": RUNNING, "pid": os.getpid(), "phase": "beginning"}
        self._written = 0.0

    def tell(self, **fields: Any) -> None:
        urgent = any(self._value.get(name) != fields.get(name) for name in ("state", "phase") if name in fields)
        self._value.update(fields)
        if urgent or time.monotonic() - self._written >= WRITE_EVERY_S:
            self._value["at"] = time.time()
            write_json(self.path, self._value, mode=0o600)
            self._written = time.monotonic()


def start(work: Callable[[Progress], dict[str, Any]], folder: str = FOLDER) -> str:
    """Do ``work`` in a process of its own that nobody waits for; the path of its file.

    At the end the file has ``state`` done and ``result``, or failed with ``message`` and ``failure`` (the error's
    fields). The process has a session of its own, so that it ends neither with a terminal nor with a connection.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _tidy(folder)
    path = os.path.join(folder, f"{secrets.token_hex(8)}.json")
    write_json(path, {"state": RUNNING, "pid": os.getpid(), "phase": "beginning", "at": time.time()}, mode=0o600)
    # Held open by the new process until the file names it: a file that names this one would soon speak of a process
    # that is gone.
    named, naming = os.pipe()
    child = os.fork()
    if child:
        os.close(naming)
        os.waitpid(child, 0)
        os.read(named, 1)
        os.close(named)
        return path
    # No exception may leave this: the caller's code would then run twice.
    try:
        os.setsid()
        if not os.fork():
            _run(work, path, naming)
    finally:
        os._exit(0)


def _run(work: Callable[[Progress], dict[str, Any]], path: str, naming: int) -> None:
    """Do the work; `naming` is a pipe that is closed when the file names this process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    progress = FileProgress(path)
    outcome: dict[str, Any] = {}
    try:
        progress.tell(state=RUNNING, pid=os.getpid(), phase="working")
        os.dup2(null, naming)
        os.closerange(3, 1024)
        outcome = {"state": DONE, "result": work(progress)}
    except Failure as failure:
        outcome = {"state": FAILED, "message": str(failure), "failure": failure.fields()}
    except OSError as error:
        outcome = {"state": FAILED, "message": f"{error.filename or path}: {error.strerror or error}"}
    finally:
        # Nobody reads what this process prints.
        progress.tell(**(outcome or {"state": FAILED, "message": traceback.format_exc(limit=-5)}))


def _tidy(folder: str) -> None:
    """Remove what nobody came for: files of processes that are gone, a day old."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        entry = read_json(path) or {}
        dead = not os.path.exists("/proc/{}".format(entry.get("pid", 0)))
        if dead and time.time() - float(entry.get("at", 0.0)) > KEEP_S:
            remove(path)
