# SPDX-License-Identifier: Apache-2.0
"""Activation on a real host with real systemd: what moving the unit does, power cuts, killed runs, two controllers.

The server is simulated (tests/sim/liar.py), so that a start takes seconds; units, checks and playbooks are real.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.module_utils import files
from ansible_collections.enplace.inference.plugins.module_utils.unit import (
    Unit,
    render,
    render_alive,
    render_environment,
)

from tests.sim.lab import Lab

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "collection" / "ansible_collections" / "enplace" / "inference"
HOST = "activation"
SLUG = "org-model-cpu"
UNIT = f"enplace-{SLUG}.service"
JOURNAL = "/var/lib/enplace/activation.json"
PORT = 8000
URL = f"http://127.0.0.1:{PORT}"
PLAY = [{"hosts": "all", "gather_facts": False, "become": True, "roles": ["enplace.inference.service"]}]
CHECKS = [
    {
        "check": "known_answers",
        "prompts": [
            {"ask": "What is 17 + 25? Reply with the number only.", "expect": ["42"]},
            {"ask": "Which planet is known as the red planet? Reply with one word.", "expect": ["Mars"]},
        ],
    }
]


@dataclass
class Site:
    """The host, and the playbooks that are run on it from here."""

    lab: Lab
    folder: Path
    client: dict[str, str]

    def ansible(self, playbook: str, **variables: Any) -> subprocess.Popen[str]:
        """A playbook's run, in a process group of its own."""
        (self.folder / "vars.json").write_text(json.dumps(variables))
        argv = ["ansible-playbook", "-i", str(self.folder / "inventory.yml"), playbook]
        return subprocess.Popen(
            [str(Path(sys.executable).parent / argv[0]), *argv[1:], "-e", f"@{self.folder / 'vars.json'}"],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def play(self, playbook: str, **variables: Any) -> tuple[int, str]:
        """Exit status and output of a playbook."""
        process = self.ansible(playbook, **variables)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def begin(self, release: dict[str, Any], **variables: Any) -> subprocess.Popen[str]:
        """Begin to activate a release."""
        return self.ansible(str(self.folder / "play.yml"), service_release=release, **variables)

    def activate(self, release: dict[str, Any], **variables: Any) -> tuple[int, str]:
        return self.play(str(self.folder / "play.yml"), service_release=release, **variables)

    def tell(self, *argv: str) -> str:
        return self.lab.exec(HOST, list(argv)).stdout.strip()

    def show(self, name: str, unit: str = UNIT) -> str:
        return self.tell("systemctl", "show", "--value", "--property", name, unit)

    def journal(self) -> dict[str, Any]:
        text = self.tell("cat", JOURNAL)
        return json.loads(text) if text else {}

    def last(self) -> dict[str, Any]:
        """The newest transaction of the history."""
        text = self.tell("sh", "-c", 'cat "$(ls -t /var/lib/enplace/activations/*.json | head -n 1)"')
        found: dict[str, Any] = json.loads(text)
        return found

    def wait_for(self, phase: str) -> None:
        """Wait until the open transaction is in a phase."""
        end = time.monotonic() + 60
        while (found := self.journal().get("phase")) != phase:
            assert time.monotonic() < end, f"expected phase {phase}, found {found}"
            time.sleep(0.05)

    def kill_module(self) -> None:
        """kill -9 of the module on the host."""
        holder = self.tell("cat", "/run/enplace/host.lock").split()
        assert holder[0] == "process"
        self.tell("kill", "-9", holder[1])

    def release(
        self, name: str, lie: str = "", slow_s: int = 0, pace_s: float = 0.001, ends: bool = False
    ) -> dict[str, Any]:
        """A release of a server that tells one lie, starts late, speaks slowly, or ends; `name` decides the digest."""
        digest = files.sha256_bytes(name.encode())
        path = f"/opt/enplace/releases/{SLUG}/{digest[:12]}"
        liar = f"/usr/bin/python3 /opt/simulated/liar.py --port {PORT} --pace {pace_s} --lie '{lie}'"
        serve = f"sleep {slow_s}; exec {liar}"
        python = f"{self.client['client_path']}/bin/python"
        ask = ["--url", URL, "--model", "enplace/smoke"]
        unit = Unit(
            description=f"{name}, simulated",
            slug=SLUG,
            user="enplace",
            argv=["/bin/sh", "-c", "exit 2" if ends else serve],
            ready_argv=[python, f"{path}/ready.py", *ask, "--deadline", "60"],
            environment={"RELEASE": name},
            ready_timeout_s=60,
            alive_argv=[python, f"{path}/alive.py", *ask],
        )
        alive_service, alive_timer = render_alive(unit)
        engine = {"name": "vllm", "version": "0.28.0"}
        texts = {
            "unit.service": render(unit),
            "environment.conf": render_environment(unit),
            "alive.service": alive_service,
            "alive.timer": alive_timer,
            **{f: (COLLECTION / "plugins" / "module_utils" / f).read_text() for f in ("ready.py", "alive.py")},
            "checks.json": files.json_text(
                {
                    "url": URL,
                    "model": "enplace/smoke",
                    "recipe": "org/model:cpu",
                    "release": digest,
                    "engine": engine,
                    "checks": CHECKS,
                    "python": python,
                    "report": f"/var/lib/enplace/reports/{SLUG}/latest.json",
                    "api_key_file": "",
                }
            ),
        }
        manifest = {
            "format": 2,
            "recipe": "org/model:cpu",
            "slug": SLUG,
            "digest": digest,
            "unit": UNIT,
            "engine": engine,
            "environment": {"path": self.client["client_path"], "digest": self.client["client_digest"]},
            "url": URL,
            "listen": "127.0.0.1",
            "port": PORT,
            "model": "enplace/smoke",
            "accelerator": "cpu",
            "cards": [],
            "standby": False,
            "ready_timeout_s": 60,
            "memory": {"start_bytes": None},
            "api_key_file": "",
            "files": {key: files.sha256_bytes(text.encode()) for key, text in texts.items()},
        }
        texts["release.json"] = files.json_text(manifest)
        return {"slug": SLUG, "recipe": "org/model:cpu", "digest": digest, "path": path, "unit": UNIT, "files": texts}

    def serves(self, release: dict[str, Any]) -> None:
        """Demand that a release serves, enabled, from where verified units lie, and that nothing else is left."""
        name = release["digest"][:12]
        assert self.tell("readlink", f"/opt/enplace/releases/{SLUG}/current") == name
        assert self.show("ActiveState") == "active"
        assert self.show("UnitFileState") == "enabled"
        assert self.show("FragmentPath") == f"/usr/local/lib/systemd/system/{UNIT}"
        assert self.show("NeedDaemonReload") == "no"
        variable = release["files"]["environment.conf"].rpartition("Environment=")[2].strip()
        assert variable in self.show("Environment").split()
        running = self.tell("sh", "-c", f"tr '\\0' '\\n' < /proc/{self.show('MainPID')}/environ")
        assert variable in running.splitlines()
        assert self.show("ActiveState", f"enplace-{SLUG}-alive.timer") == "active"
        places = "/run/systemd/system /var/lib/enplace /run/enplace"
        assert self.tell("sh", "-c", f"ls -A {places} | grep -e '^enplace' -e activation.json -e lock") == ""
        assert self.tell("sh", "-c", f"ls -A /opt/enplace/releases/{SLUG} | grep '^[.]'") == ""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab = Lab(ROOT)
    lab.down(HOST)
    lab.up(HOST)
    folder = tmp_path_factory.mktemp("site")
    inventory = yaml.safe_load((ROOT / "molecule" / "inventory.yml").read_text())
    inventory["all"]["hosts"] = {HOST: None}
    text = yaml.safe_dump(inventory, width=1000)
    for here in ("{{ inventory_dir }}/..", "{{ inventory_dir | dirname }}"):
        text = text.replace(here, str(ROOT))
    (folder / "inventory.yml").write_text(text)
    (folder / "play.yml").write_text(yaml.safe_dump(PLAY))
    made = Site(lab, folder, {})
    status, output = made.play(str(ROOT / "molecule" / "service" / "prepare.yml"))
    assert status == 0, output
    path = made.tell("sh", "-c", "ls -d /opt/enplace/environments/*")
    seal = json.loads(made.tell("cat", f"{path}/enplace-environment.json"))
    made.client = {"client_path": path, "client_digest": seal["digest"]}
    yield made
    lab.down(HOST)


def test_a_release_is_tried_as_a_candidate_and_the_same_run_goes_on_once_it_is_verified(site: Site) -> None:
    release = site.release("one", slow_s=2)
    process = site.begin(release)
    site.wait_for("ready")
    assert site.show("FragmentPath") == f"/run/systemd/system/{UNIT}"
    assert site.show("UnitFileState") != "enabled"
    invocation, pid = site.show("InvocationID"), site.show("MainPID")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    site.serves(release)
    assert (site.show("InvocationID"), site.show("MainPID"), site.show("NRestarts")) == (invocation, pid, "0")
    assert site.last()["invocation"] == invocation
    status, output = site.activate(release)
    assert (status, "changed=0" in output) == (0, True), output


def test_a_boot_starts_what_was_verified(site: Site) -> None:
    site.lab.restart(HOST, power_cut=True)
    _wait_active(site)
    site.serves(site.release("one", slow_s=2))


@pytest.mark.parametrize(
    ("name", "said"),
    [("lies", "the checks known_answers did not pass"), ("ends", f"{UNIT} failed")],
)
def test_a_bad_release_is_taken_back(site: Site, name: str, said: str) -> None:
    bad = site.release(name, lie="wrong_answer" if name == "lies" else "", ends=name == "ends")
    status, output = site.activate(bad)
    assert status != 0
    assert said in output
    before = f"release {site.release('one')['digest'][:12]} of {SLUG}"
    assert f"{before} serves again" in output
    assert f"{before} passed its checks" in output
    site.serves(site.release("one", slow_s=2))
    record = json.loads(site.tell("cat", f"/opt/enplace/releases/{SLUG}/failed/{bad['digest'][:12]}.json"))
    assert record["output"]
    status, output = site.activate(bad)
    assert status != 0
    assert "failed before and is not tried again" in output


@pytest.mark.parametrize("phase", ["ready", "verifying"])
def test_a_module_that_is_killed_is_taken_further(site: Site, phase: str) -> None:
    # Slow enough that the phase is still the same when the module is killed, on a busy machine too.
    starting = phase == "ready"
    release = site.release(f"killed-{phase}", slow_s=6 if starting else 0, pace_s=0.001 if starting else 0.3)
    process = site.begin(release)
    site.wait_for(phase)
    site.kill_module()
    process.communicate(timeout=60)
    assert process.returncode != 0
    invocation = site.show("InvocationID")
    status, output = site.activate(release)
    assert status == 0, output
    site.serves(release)
    assert site.show("InvocationID") == invocation, "it was not started again"


def test_a_power_cut_in_the_middle_boots_what_was_verified(site: Site) -> None:
    before = site.release("killed-verifying", pace_s=0.3)
    release = site.release("power-cut", slow_s=6)
    process = site.begin(release)
    site.wait_for("ready")
    assert site.show("FragmentPath") == f"/run/systemd/system/{UNIT}"
    site.lab.restart(HOST, power_cut=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    _wait_active(site)
    assert site.show("FragmentPath") == f"/usr/local/lib/systemd/system/{UNIT}"
    assert "RELEASE=killed-verifying" in site.show("Environment")
    assert site.journal()["phase"] == "ready"
    status, output = site.activate(before)
    assert status == 0, output
    site.serves(before)
    status, output = site.activate(release)
    assert status == 0, output
    site.serves(release)


@pytest.mark.parametrize("whole", [False, True], ids=["the controller", "the controller and its connection"])
def test_a_controller_that_is_gone_does_not_stop_the_host_and_the_next_one_waits(site: Site, whole: bool) -> None:
    release = site.release(f"gone-{whole}", slow_s=8)
    process = site.begin(release)
    site.wait_for("ready")
    status, output = site.activate(release)
    assert status != 0
    assert "another run is at work" in output
    assert f" pid {process.pid}: activating org/model:cpu" in output
    holder = site.journal()["holder"]
    for pid in [process.pid, *(_descendants(process.pid) if whole else [])]:
        os.kill(pid, signal.SIGKILL)
    # Not its output: the worker that lives on has that open, too.
    process.wait()
    if whole:
        end = time.monotonic() + 10
        while "orphaned since" not in site.tell("cat", "/run/enplace/host.lock"):
            assert time.monotonic() < end, site.tell("cat", "/run/enplace/host.lock")
            time.sleep(0.1)
    status, output = site.activate(release)
    assert status == 0, output
    assert "changed=0" in output
    site.serves(release)
    assert site.last()["holder"] == holder


def test_rollback_and_teardown(site: Site) -> None:
    status, output = site.play("playbooks/rollback.yml", enplace_rollback="org/model:cpu")
    assert status == 0, output
    site.serves(site.release("gone-False", slow_s=8))
    status, output = site.activate(site.release("gone-True", slow_s=8))
    assert status != 0
    assert "rolled back by" in output
    status, output = site.play("playbooks/teardown.yml", enplace_teardown="org/model:cpu")
    assert status == 0, output
    left = f"find / -xdev -name '*{SLUG}*' -not -path '/proc/*' -not -path '/var/lib/enplace/*' -not -path '/var/log/*'"
    assert site.tell("sh", "-c", left) == ""
    assert site.show("LoadState") == "not-found"
    assert site.tell("sh", "-c", f"ls /var/lib/enplace/reports/{SLUG} | head -n 1") != ""
    status, output = site.play("playbooks/teardown.yml", enplace_teardown="org/model:cpu")
    assert (status, "changed=0" in output) == (0, True), output


def _descendants(pid: int) -> list[int]:
    """Every process that was started by a process, and by those; workers of Ansible are in sessions of their own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                found += [int(folder.name), *_descendants(int(folder.name))]
    return found


def _wait_active(site: Site) -> None:
    end = time.monotonic() + 60
    while site.show("ActiveState") != "active":
        assert time.monotonic() < end
        with contextlib.suppress(subprocess.TimeoutExpired):
            time.sleep(0.3)
