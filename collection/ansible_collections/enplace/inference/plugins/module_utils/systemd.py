# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The few calls to systemctl and journalctl that are needed. Standard library only, Python 3.9 or newer."""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.enplace.inference.plugins.module_utils import command
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

#: What is asked of a unit, in systemd's own names.
PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "Result",
    "NRestarts",
    "InvocationID",
    "ActiveEnterTimestamp",
    "ExecMainStatus",
    "FragmentPath",
    "DropInPaths",
    "NeedDaemonReload",
    "ControlGroup",
)

#: A unit that is neither running nor on its way to it.
STOPPED = ("inactive", "failed", "")

#: Longest wait for a stop; an engine's own limit (TimeoutStopSec) is below it.
STOP_TIMEOUT_S = 900.0


class Systemd:
    """The system's service manager."""

    def ask(self, *argv: str, timeout_s: float = 300) -> command.Result:
        """Run one of its programs; what it returned is the caller's to judge."""
        environment = {**command.base_environment(), "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
        return command.run(argv, env=environment, timeout_s=timeout_s)

    def call(self, *arguments: str) -> None:
        """systemctl ARGUMENTS. Raises Failure unless it succeeds."""
        done = self.ask("systemctl", *arguments)
        if not done.ok:
            raise Failure(f"systemctl {' '.join(arguments)} failed", found=done.said(), detail=done.tail())

    def show_all(self, units: Iterable[str]) -> dict[str, dict[str, str]]:
        """State of units that may not exist, by name, each in systemd's own names. One call for all of them."""
        names = list(dict.fromkeys(units))
        if not names:
            return {}
        done = self.ask("systemctl", "show", "--property", ",".join(PROPERTIES), "--", *names)
        if not done.ok:
            raise Failure(f"systemctl show {' '.join(names)} failed", found=done.said(), detail=done.tail())
        blocks = [
            dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            for block in done.stdout.strip("\n").split("\n\n")
        ]
        # In the order asked for: the name it is known by (Id) is another one for an alias.
        return dict(zip(names, blocks))

    def show(self, unit: str) -> dict[str, str]:
        """State of one unit, as `show_all` gives it."""
        return self.show_all([unit])[unit]

    def reload(self) -> None:
        """Read all unit files anew; what runs goes on."""
        self.call("daemon-reload")

    def start(self, *units: str) -> None:
        """Ask for a start and do not wait for it. A unit locked by its start limit is freed first."""
        # The release that comes next is not to blame for what the one before it did.
        self.ask("systemctl", "reset-failed", "--", *units)
        self.call("start", "--no-block", "--", *units)

    def stop(self, *units: str) -> None:
        """Stop units and wait until they are stopped; one that does not exist is. Raises Failure where one stays."""
        if not units:
            return
        done = self.ask("systemctl", "stop", "--", *units, timeout_s=STOP_TIMEOUT_S)
        if done.ok:
            return
        for unit, shown in self.show_all(units).items():
            if shown.get("ActiveState", "") not in STOPPED:
                raise Failure(
                    f"{unit} cannot be stopped",
                    expected="inactive",
                    found=f"{shown.get('ActiveState')}; systemctl stop: {done.said()}",
                    todo=f"look at systemctl status {unit}",
                    detail=done.tail(),
                )

    def forget(self, *units: str) -> None:
        """Let units be no longer listed as failed, those that do not exist included."""
        self.ask("systemctl", "reset-failed", "--", *units)

    def enable(self, unit: str) -> None:
        """Let a unit start with the host."""
        self.call("enable", "--quiet", "--", unit)

    def disable(self, unit: str) -> None:
        """Let a unit no longer start with the host. One that does not exist is disabled."""
        done = self.ask("systemctl", "disable", "--quiet", "--", unit)
        if not done.ok and self.show(unit).get("UnitFileState", "") not in ("", "disabled", "static", "bad"):
            raise Failure(f"systemctl disable {unit} failed", found=done.said(), detail=done.tail())

    def journal(self, unit: str, invocation: str, lines: int = 20) -> str:
        """The last lines that one start of a unit wrote, systemd's own about it included."""
        which = (
            [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"] if invocation else ["-u", unit]
        )
        return self.ask("journalctl", "--no-pager", "-o", "cat", "-n", str(lines), *which).stdout.rstrip()
