# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of the module weights: shows how far a download is.

A host that has everything costs one call of the module. Otherwise that call begins the work in a process of its own on
the host, and this plugin reads the file that tells how far it is, at growing intervals: one short command each time.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import socket
import time
import typing as t

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, sized

MODULE = "enplace.inference.weights"

#: Seconds between two looks: soon at first, seldom in the end. (from this many seconds on, that often)
INTERVALS = ((0, 1.0), (5, 3.0), (60, 5.0), (600, 15.0), (3600, 30.0))
#: Looks in a row that may tell nothing, because the host is not reached or its answer is not whole; the work goes on
#: there meanwhile.
LOST_LOOKS = 20
#: What a look prints around the file. On a terminal, which a connection may have, a host may say more: what a login
#: shell says, what other programs complain of.
ALIVE, GONE, MISSING, END = (f"enplace-job-{word}" for word in ("alive", "gone", "missing", "end"))

display = Display()


def interval(elapsed_s: float) -> float:
    """Seconds until the next look, when the work has gone on for so long."""
    return [pause for since, pause in INTERVALS if elapsed_s >= since][-1]


class Line:
    """What people see of one host's download. The rate is that of the last half minute or so."""

    SPAN_S = 30.0

    def __init__(self, host: str) -> None:
        self.host = host
        self._seen: list[tuple[float, int]] = []

    def text(self, entry: dict[str, t.Any], elapsed_s: float) -> str:
        phase = entry.get("phase", "")
        total, done = int(entry.get("total", 0)), int(entry.get("done", 0))
        if phase != "downloading" or not total:
            self._seen.clear()
            return f"[{self.host}] weights: {phase}, {spoken(elapsed_s)}"
        at = float(entry.get("at", 0.0))
        if self._seen and self._seen[-1][1] > done:
            # The client was started again, and what it had of unfinished files is gone.
            self._seen.clear()
        self._seen = [(then, had) for then, had in self._seen if at - then <= self.SPAN_S]
        rate = 0.0
        if self._seen and at > self._seen[0][0]:
            rate = (done - self._seen[0][1]) / (at - self._seen[0][0])
        self._seen.append((at, done))
        parts = [f"{sized(done)} of {sized(total)} ({100 * done // total} %)"]
        if rate >= 1000:
            parts += [f"{rate / 1e6:.1f} MB/s", f"{spoken((total - done) / rate)} left"]
        return "[{}] weights: {}: {}".format(self.host, entry.get("model", ""), ", ".join(parts))


def spoken(seconds: float) -> str:
    """A span of time for people: ``45 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class ActionModule(ActionBase):
    """Runs the module; where it began something, waits for the end of that and shows how far it is."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        arguments["background"] = True
        arguments["holder"] = f"{getpass.getuser()}@{socket.gethostname()}, process {os.getppid()}"
        result.update(self._execute_module(MODULE, module_args=arguments, task_vars=task_vars))
        path = result.pop("job", None)
        if not path:
            return result
        # What the call said of itself is not what came of the work.
        result = {key: value for key, value in result.items() if key not in ("changed", "invocation")}
        result.update(self._follow(path, str((task_vars or {}).get("inventory_hostname", "?"))))
        return result

    def _follow(self, path: str, host: str) -> dict[str, t.Any]:
        begin = time.monotonic()
        line = Line(host)
        lost = 0
        while True:
            elapsed = time.monotonic() - begin
            time.sleep(interval(elapsed))
            try:
                entry, said = self._look(path)
            except AnsibleConnectionFailure:
                if lost >= LOST_LOOKS:
                    raise
                entry, said = None, ""
            if entry is None:
                # No answer is not the answer that the process is gone.
                lost += 1
                if lost <= LOST_LOOKS:
                    continue
                return failed(
                    where=f"{path} on {host}",
                    found=f"looked {lost} times in a row, the last answer was {said[:200]!r}",
                    todo="run again: the work may be going on, and what it has by then is kept",
                )
            lost = 0
            state = entry.get("state")
            if state == "running" and entry["alive"]:
                display.display(line.text(entry, time.monotonic() - begin))
                continue
            self._low_level_execute_command("rm -f " + shlex.quote(path))
            if state == "done":
                return t.cast("dict[str, t.Any]", entry["result"])
            if state == "failed":
                return {
                    "failed": True,
                    "changed": False,
                    "msg": entry.get("message", ""),
                    "failure": entry.get("failure", {}),
                }
            if state is None:
                return failed(
                    where=f"{path} on {host}",
                    found="the file is gone: the host was restarted, or somebody removed it",
                    todo="run again: whole files are kept",
                )
            return failed(
                where=f"process {entry.get('pid', '?')} on {host}",
                found="it is gone, killed by somebody or by a lack of memory",
                todo="look at the host's journal, and run again: whole files are kept",
            )

    def _look(self, path: str) -> tuple[dict[str, t.Any] | None, str]:
        """The file's content, with ``alive``: whether its process is still there; and all that the host said.

        The content is empty where the host says that there is no file, and None where what it says is not whole.
        """
        # The process is asked for first: when it is gone, the file has its last word.
        quoted = shlex.quote(path)
        number = f"$(sed -n 's/^ *\"pid\": \\([0-9]*\\).*/\\1/p' {quoted} | head -n 1)"
        done = self._low_level_execute_command(
            f"if test ! -f {quoted}; then echo {MISSING}; exit 0; fi; "
            f"if test -d /proc/{number}/; then echo {ALIVE}; else echo {GONE}; fi; cat {quoted}; echo; echo {END}"
        )
        said = str(done.get("stdout", ""))
        if re.search(rf"^{MISSING}\r?$", said, re.MULTILINE):
            return {}, said
        found = re.search(rf"^({ALIVE}|{GONE})\r?$(.*)^{END}\r?$", said, re.MULTILINE | re.DOTALL)
        try:
            entry = json.loads(found[2]) if found else None
        except ValueError:
            entry = None
        if not found or not isinstance(entry, dict) or "state" not in entry:
            return None, said
        return {**entry, "alive": found[1] == ALIVE}, said


def failed(where: str, found: str, todo: str) -> dict[str, t.Any]:
    """What the task returns when nobody knows what came of the work."""
    failure = Failure(
        what="the download ended without a word",
        where=where,
        expected="that it tells what came of it",
        found=found,
        todo=todo,
    )
    return {"failed": True, "changed": False, "msg": str(failure), "failure": failure.fields()}
