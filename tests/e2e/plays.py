# SPDX-License-Identifier: Apache-2.0
"""Run playbooks as a user would, and count: tasks, changes, SSH executions."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Play:
    """One finished run. `changed` and `failed` hold task names, in order; `seconds` is wall time."""

    rc: int
    text: str
    seconds: float
    changed: list[str] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ssh_executions(self) -> int:
        """Commands sent through ssh, as Ansible's own log at -vvv counts them; file transfers included."""
        return len(re.findall(r"SSH: EXEC (?:sshpass|ssh|sftp|scp) ", self.text))

    @property
    def recap(self) -> str:
        """The line of the one host in PLAY RECAP."""
        match = re.search(r"^\S+ +: ok=.*$", self.text, re.M)
        return match[0] if match else ""

    @property
    def message(self) -> str:
        """The last failure's message."""
        return str(self.failed[-1]["msg"]) if self.failed else ""


def play(
    tmp_path: Path,
    *arguments: str,
    playbook: str = "site.yml",
    folder: Path = ROOT,
    environment: dict[str, str] | None = None,
) -> Play:
    """Run ansible-playbook in `folder` with -vvv and return what happened."""
    scratch = tmp_path / "runner"
    scratch.mkdir(exist_ok=True)
    begin = time.monotonic()
    runner = ansible_runner.run(
        private_data_dir=str(scratch),
        project_dir=str(folder),
        playbook=playbook,
        cmdline=shlex.join(("-vvv", *arguments)),
        # The checkout's own Ansible, whatever the shell's PATH says.
        envvars={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **(environment or {})},
        quiet=True,
        rotate_artifacts=1,
    )
    # The runner forces colours.
    text = re.sub(r"\x1b\[[0-9;]*m", "", runner.stdout.read())
    result = Play(runner.rc, text, time.monotonic() - begin)
    for event in runner.events:
        data = event.get("event_data", {})
        if event["event"] == "runner_on_ok" and data["res"].get("changed"):
            result.changed.append(data["task"])
        elif event["event"] in ("runner_on_failed", "runner_on_unreachable"):
            result.failed.append({"task": data["task"], "msg": data["res"].get("msg", "")})
    return result
