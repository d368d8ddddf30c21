# SPDX-License-Identifier: Apache-2.0
"""Role environment: a venv that holds exactly what its lock says, and is sealed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from testinfra.host import Host

LOCK = Path(__file__).parents[1] / "requirements.lock.txt"
# Names and versions of the lock that are for this platform.
PINNED = dict(re.findall(r"^([a-z0-9-]+)==(\S+)(?: ; sys_platform != 'emscripten')? \\$", LOCK.read_text(), re.M))


@pytest.fixture
def environment(host: Host) -> str:
    """The environment that has the alias; other scenarios make others."""
    found = host.check_output("ls -d /opt/enplace/environments/*/lib/python3*/site-packages/a_client-1.2.3.dist-info")
    assert len(found.split()) == 1
    return "/".join(found.split("/")[:5])


def versions(host: Host, environment: str) -> dict[str, str]:
    program = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    return json.loads(host.check_output("%s -I -c %s", f"{environment}/bin/python", program))  # type: ignore[no-any-return]


def test_it_holds_what_the_lock_pins_and_nothing_else(host: Host, environment: str) -> None:
    assert len(PINNED) > 5
    found = {name.lower().replace("_", "-"): version for name, version in versions(host, environment).items()}
    assert found == {**PINNED, "a-client": "1.2.3"}


def test_it_works(host: Host, environment: str) -> None:
    client = host.check_output("%s -I -c %s", f"{environment}/bin/python", "import openai; print(openai.__version__)")
    assert client == PINNED["openai"]


def test_the_seal_names_the_digest_that_names_the_folder(host: Host, environment: str) -> None:
    seal = json.loads(host.file(f"{environment}/enplace-environment.json").content_string)
    assert re.fullmatch("[0-9a-f]{64}", seal["digest"])
    assert environment.rpartition("/")[2] == seal["digest"][:12]


def test_nothing_was_left_behind_by_the_build(host: Host) -> None:
    folders = host.check_output("ls -A /opt/enplace/environments").split()
    assert all(re.fullmatch("[0-9a-f]{12}", name) for name in folders)
    assert host.check_output("find /tmp /root -newer /opt/enplace/environments -name '*requirements*'") == ""


def test_files_are_copies_that_another_environment_cannot_change(host: Host, environment: str) -> None:
    assert host.check_output(f"find {environment}/lib -type f -links +1 | head -n 3") == ""
