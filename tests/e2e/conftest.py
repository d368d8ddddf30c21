# SPDX-License-Identifier: Apache-2.0
"""Hosts of the end-to-end tests. They begin bare; it is the demo's own host, so what is tested is what is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sim.lab import Lab

from .plays import ROOT, Play, play

HOST = "demo1"


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    made = Lab(ROOT)
    made.hub()
    yield made
    made.down("tight", "closed")


@pytest.fixture(scope="session")
def demo(lab: Lab) -> str:
    """A bare host of the demo inventory."""
    lab.down(HOST)
    lab.up(HOST)
    return HOST


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Play]:
    def start(*arguments: str, **options: object) -> Play:
        return play(tmp_path, *arguments, **options)  # type: ignore[arg-type]

    return start


@pytest.fixture
def inventory_for(tmp_path: Path) -> Callable[[str], Path]:
    """The demo inventory for a host of another name, group variables included."""

    def write(name: str) -> Path:
        folder = tmp_path / "inventory"
        folder.mkdir()
        (folder / "hosts.yml").write_text(f"demo:\n  hosts:\n    {name}:\n", encoding="utf-8")
        variables = (ROOT / "inventories" / "demo" / "group_vars" / "demo.yml").read_text(encoding="utf-8")
        (folder / "group_vars").mkdir()
        text = variables.replace("{{ inventory_dir }}/../..", str(ROOT))
        (folder / "group_vars" / "demo.yml").write_text(text, encoding="utf-8")
        return folder

    return write


def state_of(lab: Lab, host: str) -> list[str]:
    """What a run could change on a host, a line each: files (owner, mode, size), packages, users, units."""
    commands = {
        # Compiled Python files are written by whoever imports a module first, and sudo notes its first use.
        "file": "find /etc /opt /usr /home /root /var/lib/enplace -xdev"
        " -not -path '*/__pycache__*' -not -name .sudo_as_admin_successful"
        " -printf '%p %u %g %m %s %l\\n' | sort",
        "package": "dpkg-query -W",
        "user": "getent passwd; getent group",
        # The timer starts the question whether a server is alive every minute: each is another run of that service.
        "unit": "systemctl list-unit-files --no-legend 'enplace*' | sort;"
        " systemctl show --property Id,ActiveState,InvocationID 'enplace*' | awk -v RS= '!/-alive[.]service/'",
    }
    state = []
    for kind, command in commands.items():
        lines = lab.exec(host, ["sh", "-c", command]).stdout.splitlines()
        assert kind == "unit" or lines, f"{kind}: nothing was found, so nothing could be compared"
        state += [f"{kind} {line}" for line in lines]
    return state


def changes(before: list[str], after: list[str]) -> list[str]:
    """What went and what came between two states; empty where nothing did."""
    old, new = set(before), set(after)
    return [f"- {line}" for line in before if line not in new] + [f"+ {line}" for line in after if line not in old]
