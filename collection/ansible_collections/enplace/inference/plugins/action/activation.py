# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of the module activation: who asks, and whether the one who holds a host's lock is still there.

When ansible-playbook is killed, its workers and their connections live on, so that the host sees nobody leave. But a
controller knows its own processes: where the holder's is gone, nobody will read what that run says, and it is waited
for.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import typing as t

from ansible.plugins.action import ActionBase

MODULE = "enplace.inference.activation"

# What an activation may take beyond its release's own deadline for a start, and that deadline where none is said.
BEYOND_S, READY_TIMEOUT_S = 600, 900


def is_gone(held_by: str, user: str, controller: str) -> bool:
    """Whether a lock's holder is a process of this user on this controller that has ended."""
    match = re.search(r" for (\S+)@(\S+) pid (\d+):", held_by)
    if match is None or (match[1], match[2]) != (user, controller):
        return False
    try:
        os.kill(int(match[3]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def longest_s(arguments: t.Mapping[str, t.Any]) -> int:
    """Seconds after which a run that was left alone has ended."""
    try:
        manifest = json.loads(arguments["release"]["files"]["release.json"])
        return int(manifest["ready_timeout_s"]) + BEYOND_S
    except (KeyError, TypeError, ValueError):
        return READY_TIMEOUT_S + BEYOND_S


class ActionModule(ActionBase):
    """Runs the module, and once more, with patience, where an earlier run of the same controller was left alone."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        user, controller = getpass.getuser(), socket.gethostname()
        arguments["holder"] = arguments.get("holder") or f"{user}@{controller} pid {os.getppid()}"
        done = self._execute_module(MODULE, module_args=arguments, task_vars=task_vars)
        held_by = str(done.get("held_by", ""))
        if done.get("failed") and is_gone(held_by, user, controller):
            self._display.display(f"{self._task.delegate_to or (task_vars or {}).get('inventory_hostname')}: {held_by}")
            self._display.display("its controller is gone; waiting until it ends by itself")
            arguments["lock_timeout_s"] = max(longest_s(arguments), int(arguments.get("lock_timeout_s") or 0))
            done = self._execute_module(MODULE, module_args=arguments, task_vars=task_vars)
        result.update(done)
        return result
