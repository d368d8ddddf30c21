# SPDX-License-Identifier: Apache-2.0
"""Hosts of the end-to-end tests. They begin bare; the demo's own host is used, so that what is tested is what is shown."""

from __future__ import annotations

import hashlib
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


def state_of(lab: Lab, host: str) -> dict[str, str]:
    """What a run could change on a host, each part as a digest: files (with owner, mode, size), packages, users, units."""
    commands = {
        # A package index or a log that changes by itself is not a change of the host.
        "files": "find /etc /opt /usr /home /root /var/lib/enplace /var/cache/enplace -xdev -not -path '/var/cache/enplace/uv/*'"
        " -not -path '/etc/systemd/system/*.wants*' -printf '%p %u %g %m %s %l\\n' 2>/dev/null | sort",
        "packages": "dpkg-query -W",
        "users": "getent passwd; getent group",
        "units": "systemctl list-unit-files --no-legend 'enplace*' | sort; systemctl list-units --no-legend --all 'enplace*' | sort",
    }
    state = {}
    for name, command in commands.items():
        done = lab.exec(host, ["sh", "-c", command])
        assert name == "units" or done.stdout, f"{name}: nothing was found, so nothing could be compared"
        state[name] = hashlib.sha256(done.stdout.encode()).hexdigest()[:16] + f" {len(done.stdout.splitlines())} lines"
    return state
