# SPDX-License-Identifier: Apache-2.0
"""The rendered unit as real systemd reads it: every argument and variable arrives as it was."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.unit import Unit, render

from tests.sim.lab import Lab
from tests.unit.test_unit_file import AWKWARD

pytestmark = pytest.mark.integration

HOST = "units"
SLUG = "org-model-cpu"
NAME = f"enplace-{SLUG}.service"
OUT = f"/var/cache/enplace/{SLUG}/seen.json"
PROGRAM = (
    "import json, os, sys\n"
    "own = {name: value for name, value in os.environ.items() if name.startswith('T_')}\n"
    f"json.dump({{'argv': sys.argv[1:], 'env': own}}, open('{OUT}', 'w'))\n"
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab(Path(__file__).resolve().parents[2])
    made.down(HOST)
    made.up(HOST)
    made.exec(HOST, ["install", "-d", "-o", "admin", "/var/lib/enplace"])
    yield made
    made.down(HOST)


def unit(argv: list[str], environment: dict[str, str]) -> str:
    return render(
        Unit(
            description="100% of $it",
            slug=SLUG,
            user="admin",
            argv=argv,
            ready_argv=["/bin/true"],
            environment=environment,
            ready_timeout_s=30,
        )
    )


def put(lab: Lab, text: str) -> None:
    done = lab.exec(HOST, ["tee", f"/etc/systemd/system/{NAME}"], stdin=text)
    assert done.returncode == 0
    assert lab.exec(HOST, ["systemctl", "daemon-reload"]).returncode == 0


def test_arguments_and_variables_arrive_as_they_were(lab: Lab) -> None:
    environment = {f"T_{index}": text for index, text in enumerate(AWKWARD) if text.isprintable()}
    put(lab, unit(["/usr/bin/python3", "-c", PROGRAM, *AWKWARD], environment))
    verify = lab.exec(HOST, ["systemd-analyze", "verify", f"/etc/systemd/system/{NAME}"])
    assert (verify.returncode, verify.stderr) == (0, "")
    started = lab.exec(HOST, ["systemctl", "start", NAME])
    end = time.monotonic() + 20
    while not (seen := lab.exec(HOST, ["cat", OUT]).stdout):
        journal = lab.exec(HOST, ["journalctl", "--no-pager", "-u", NAME]).stdout
        assert time.monotonic() < end, f"the program wrote nothing: {started.stderr}\n{journal}"
        time.sleep(0.2)
    assert json.loads(seen) == {"argv": AWKWARD, "env": environment}


def test_the_unit_leaves_little_open(lab: Lab) -> None:
    put(lab, unit(["/bin/true"], {}))
    done = lab.exec(HOST, ["systemd-analyze", "security", "--no-pager", "--threshold=35", NAME])
    assert done.returncode == 0, done.stdout[-2000:]
