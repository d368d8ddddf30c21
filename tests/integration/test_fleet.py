# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The role weights on three test hosts: progress, a dead controller, and a fleet that downloads once.

Real: hosts, ssh, Ansible, the client, rsync. Simulated: the hub, which counts the bytes that it sends.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sim.hub import hub as simulated
from tests.sim.lab import Lab

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ["fleet1", "fleet2", "fleet3"]
MODEL = "enplace/large"
#: Large enough for a daemon to be killed in the middle of one.
SIZES = {"config.json": 2, "model-1.safetensors": 20_000_000, "model-2.safetensors": 300_000_000}
CACHE = "/var/lib/enplace/hub"
REPOSITORY = f"{CACHE}/models--enplace--large"

PREPARE = """
- hosts: fleet
  gather_facts: false
  become: true
  tasks:
    - ansible.builtin.import_role: {name: enplace.inference.host}
      vars:
        host_packages: [python3-venv, rsync]
        host_user: enplace
        host_directories:
          - {path: /opt/enplace}
          - {path: /opt/enplace/tools}
          - {path: /var/cache/enplace}
          - {path: /var/cache/enplace/uv}
          - {path: /var/lib/enplace, owner: enplace, group: enplace}
          - {path: /var/lib/enplace/hub, owner: enplace, group: enplace, mode: "0750"}
        host_tools: {path: "{{ tools_path }}", digest: "{{ tools_digest }}", lock: "{{ tools_lock }}"}
        host_find_links: "{{ find_links }}"
        host_ca_bundle: "{{ ca_bundle }}"
"""
# As the role serve does it: only hosts that lack something go through the role.
FETCH = """
- hosts: fleet
  gather_facts: false
  become: true
  tasks:
    - enplace.inference.fleet: {state: look, models: "{{ models }}"}
      register: looked
    - ansible.builtin.include_role: {name: enplace.inference.weights}
      vars:
        weights_models: "{{ models }}"
        weights_hf: "{{ tools_path }}/bin/hf"
        weights_endpoint: http://hub.enplace.test:8080
        weights_source: "{{ source }}"
        weights_fleet_address: "{{ enplace_fleet_address }}"
        weights_deep: "{{ deep | default(false) }}"
        weights_stall_s: 20
      when: looked.whole | length == 0 or deep | default(false) | bool
"""


class Fleet:
    """The hosts, the hub, and plays over them."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.hub = f"http://{lab.address('hub')}:8080"
        shared = yaml.safe_load((ROOT / "molecule" / "inventory.yml").read_text(encoding="utf-8"))["all"]["vars"]
        (self.model,) = (simulated.manifest(one) for one in simulated.load(folder / "hub").values())
        paths = {
            "checkout": str(ROOT),
            "ansible_ssh_common_args": f"-F '{lab.ssh_config}'",
            "ansible_control_path_dir": str(lab.folder / "cp"),
            "models": [{"repo": self.model["repository"], **{k: self.model[k] for k in ("revision", "files")}}],
        }
        hosts = {name: {"enplace_fleet_address": lab.address(name)} for name in HOSTS}
        inventory = {"all": {"vars": {**shared, **paths}}, "fleet": {"hosts": hosts}, "away": {"hosts": {"gone": {}}}}
        (folder / "inventory.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
        (folder / "prepare.yml").write_text(PREPARE, encoding="utf-8")
        (folder / "fetch.yml").write_text(FETCH, encoding="utf-8")

    def command(self, playbook: str, *arguments: str) -> list[str]:
        ansible = str(Path(sys.executable).with_name("ansible-playbook"))
        return [ansible, "-i", str(self.folder / "inventory.yml"), str(self.folder / playbook), *arguments]

    def play(self, playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(playbook, *arguments), cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
        )

    def fetch(self, source: str, *arguments: str) -> str:
        done = self.play("fetch.yml", "-e", f"source={source}", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def begin(self, source: str, *arguments: str) -> subprocess.Popen[str]:
        command = self.command("fetch.yml", "-e", f"source={source}", *arguments)
        return subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def sh(self, host: str, script: str) -> str:
        done = self.lab.exec(host, ["sh", "-c", script])
        assert done.returncode == 0, f"{host}: {script}: {done.stdout}{done.stderr}"
        return str(done.stdout).strip()

    def wait(self, host: str, condition: str, seconds: float = 60.0) -> None:
        self.sh(host, f"timeout {seconds:.0f} sh -c {shlex.quote(f'until {condition}; do sleep 0.05; done')}")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.hub}/_sim/{path}", data=data, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
            return json.load(response)

    def sent(self) -> dict[str, int]:
        """Bytes that the hub has sent, by file."""
        return {path.rsplit("/", 1)[1]: count for path, count in self.ask("GET", "bytes").items()}

    def blob(self, host: str, name: str = "model-2.safetensors") -> str:
        return self.sh(host, f"readlink -f {REPOSITORY}/snapshots/{self.model['revision']}/{name}")

    def demand_whole(self, *hosts: str) -> None:
        """Every byte, by sha256sum; layout and owner as the client makes them; nothing left over."""
        wanted = {file["path"]: file["sha256"] for file in self.model["files"]}
        for host in hosts or HOSTS:
            lines = self.sh(host, f"cd {REPOSITORY}/snapshots/{self.model['revision']} && sha256sum *").splitlines()
            assert {name: digest for digest, name in (line.split() for line in lines)} == wanted
            assert self.sh(host, f"find {REPOSITORY}/snapshots -type l | wc -l") == str(len(wanted))
            assert self.sh(host, f"find {REPOSITORY} ! -user enplace") == ""
            assert self.sh(host, f"find {REPOSITORY}/blobs -type f ! -perm 644") == ""
            assert self.sh(host, f"find {CACHE} -name '*.incomplete' -o -name enplace-partial") == ""
            assert self.sh(host, "systemctl is-active enplace-fleet || true") == "inactive"
            assert self.sh(host, "ls /run/enplace-fleet 2>/dev/null || true") == ""
            assert self.sh(host, "ls /run/enplace/jobs 2>/dev/null || true") == ""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    content = random.Random(3)
    for name, size in SIZES.items():
        path = folder / "hub" / MODEL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            for start in range(0, size, 20_000_000):
                stream.write(content.randbytes(min(20_000_000, size - start)))
    # Of a checkout of its own: the demo's hub is another one, which others may be using.
    program = Path("tests", "sim", "hub", "hub.py")
    (folder / "checkout" / program).parent.mkdir(parents=True)
    shutil.copyfile(ROOT / program, folder / "checkout" / program)
    lab = Lab(folder / "checkout")
    lab.up(*HOSTS)
    lab.hub(folder / "hub")
    fleet = Fleet(lab, folder)
    prepared = fleet.play("prepare.yml")
    assert prepared.returncode == 0, prepared.stdout + prepared.stderr
    yield fleet
    lab.down(everything=True)


@pytest.fixture
def fleet(made: Fleet) -> Fleet:
    """Hosts without weights, a hub without faults."""
    for host in HOSTS:
        made.sh(host, f"rm -rf {CACHE}/* {CACHE}/.locks")
    for what in ("faults", "requests", "bytes"):
        made.ask("DELETE", what)
    return made


def test_the_hub_sends_each_byte_once_whatever_the_number_of_hosts(fleet: Fleet) -> None:
    said = fleet.fetch("fleet")
    assert fleet.sent() == SIZES, said
    fleet.demand_whole()
    assert "[fleet1] weights: enplace/large@" in said
    assert "[fleet3] weights: enplace/large@" in said
    fleet.ask("DELETE", "requests")
    again = fleet.play("fetch.yml", "-e", "source=fleet", "-v")
    assert "changed=0" in again.stdout
    assert "weights: " not in again.stdout
    assert fleet.ask("GET", "requests") == []


def test_a_host_alone_takes_from_one_that_is_not_in_the_play(fleet: Fleet) -> None:
    fleet.fetch("hub", "-l", "fleet2")
    fleet.ask("DELETE", "bytes")
    said = fleet.fetch("fleet", "-l", "fleet3")
    assert fleet.sent() == {}, said
    fleet.demand_whole("fleet2", "fleet3")


def test_a_host_alone_asks_the_hub_where_neighbours_have_nothing_or_are_gone(fleet: Fleet) -> None:
    said = fleet.fetch("fleet", "-l", "fleet3", "-e", '{"weights_fleet_hosts": ["gone", "fleet2"]}')
    assert fleet.sent() == SIZES, said
    fleet.demand_whole("fleet3")


def test_a_neighbour_that_cannot_give_is_named_and_the_hub_is_asked(fleet: Fleet) -> None:
    fleet.fetch("hub", "-l", "fleet1")
    fleet.ask("DELETE", "bytes")
    fleet.sh("fleet1", "chmod -x /usr/bin/rsync")
    try:
        said = fleet.fetch("fleet", "-l", "fleet2")
    finally:
        fleet.sh("fleet1", "chmod +x /usr/bin/rsync")
    assert "fleet1 offers nothing: weights cannot be offered to other hosts: rsync is not there" in " ".join(
        said.split()
    )
    assert fleet.sent() == SIZES, said
    fleet.demand_whole("fleet2")


def test_a_flipped_byte_at_the_source_is_found_by_who_takes_it(fleet: Fleet) -> None:
    fleet.fetch("hub", "-l", "fleet1")
    fleet.ask("DELETE", "bytes")
    blob = fleet.blob("fleet1")
    # The time of modification stays: to the source the file is the one that it verified.
    flip = (
        f"touch -r {blob} /tmp/then && printf X | dd of={blob} bs=1 seek=1000000 conv=notrunc status=none "
        f"&& touch -r /tmp/then {blob}"
    )
    fleet.sh("fleet1", flip)
    said = fleet.fetch("fleet", "-l", "fleet2")
    assert "model-2.safetensors on fleet1 is damaged" in " ".join(said.split())
    # The damaged file alone comes from the hub.
    assert fleet.sent() == {"model-2.safetensors": SIZES["model-2.safetensors"]}
    fleet.demand_whole("fleet2")
    # Told to look deeply, the source finds it, says so once, and is whole after a second run.
    first = fleet.play("fetch.yml", "-e", "source=fleet", "-e", "deep=true", "-l", "fleet1")
    assert first.returncode != 0
    assert "was changed after it had been verified" in first.stdout
    fleet.fetch("fleet", "-l", "fleet1")
    fleet.demand_whole("fleet1")


def test_a_daemon_killed_in_the_middle_is_started_again_and_the_file_goes_on(fleet: Fleet) -> None:
    fleet.fetch("hub", "-l", "fleet1")
    fleet.ask("DELETE", "bytes")
    running = fleet.begin("fleet", "-l", "fleet2")
    part = f"{REPOSITORY}/enplace-partial/{fleet.blob('fleet1').rsplit('/', 1)[1]}"
    fleet.wait("fleet2", f"test $(stat -c %s {part} 2>/dev/null || echo 0) -gt 1000000")
    fleet.sh("fleet1", "systemctl kill --signal KILL enplace-fleet")
    kept = int(fleet.sh("fleet2", f"stat -c %s {part}"))
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0, said
    assert 1_000_000 < kept < SIZES["model-2.safetensors"], "the daemon was not killed in the middle"
    assert fleet.sent() == {}, said
    fleet.demand_whole("fleet2")


def test_a_taker_cut_off_in_the_middle_goes_on_in_the_next_run(fleet: Fleet) -> None:
    fleet.fetch("hub", "-l", "fleet1")
    fleet.ask("DELETE", "bytes")
    running = fleet.begin("fleet", "-l", "fleet2")
    part = f"{REPOSITORY}/enplace-partial/{fleet.blob('fleet1').rsplit('/', 1)[1]}"
    fleet.wait("fleet2", f"test $(stat -c %s {part} 2>/dev/null || echo 0) -gt 1000000")
    # The job and its rsync die; the controller says so.
    fleet.sh("fleet2", "kill -9 $(sed -n 's/^ *\"pid\": \\([0-9]*\\).*/\\1/p' /run/enplace/jobs/*.json)")
    said, _ = running.communicate(timeout=120)
    assert running.returncode != 0
    assert "ended without a word" in said
    kept = int(fleet.sh("fleet2", f"stat -c %s {part}"))
    assert kept > 1_000_000
    inode = fleet.sh("fleet2", f"stat -c %i {part}")
    said = fleet.fetch("fleet", "-l", "fleet2")
    assert fleet.sh("fleet2", f"stat -c %i {fleet.blob('fleet2')}") == inode, "the same file was continued"
    assert fleet.sent() == {}, said
    fleet.demand_whole("fleet2")


def test_a_secret_is_in_no_argument_list_and_no_output_and_strangers_get_nothing(fleet: Fleet) -> None:
    fleet.fetch("hub", "-l", "fleet1")
    running = fleet.begin("fleet", "-l", "fleet2", "-vvv")
    # Held in the middle, in one command: on a quick machine the transfer would be over before the first try.
    held = f'until test -n "$(ls {REPOSITORY}/enplace-partial 2>/dev/null)"; do sleep 0.01; done; pkill -STOP -x rsync'
    fleet.sh("fleet2", f"timeout 120 sh -c '{held}'")
    lists = [fleet.sh(host, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '") for host in ("fleet1", "fleet2")]
    user, _, secret = fleet.sh("fleet1", "cat /run/enplace-fleet/secrets").partition(":")
    mode = fleet.sh("fleet1", "stat -c '%a %U' /run/enplace-fleet/secrets")
    address = fleet.lab.address("fleet1")
    tries = {
        (host, name, password): fleet.lab.exec(
            host, ["sh", "-c", f"RSYNC_PASSWORD={password} rsync rsync://{name}@{address}:8730/hub/ 2>&1"]
        ).stdout
        for host, name, password in (("fleet2", user, "wrong"), ("fleet2", "root", secret), ("fleet3", user, secret))
    }
    fleet.sh("fleet2", "pkill -CONT -x rsync")
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0, said
    assert len(secret) == 40
    assert mode == "600 enplace"
    assert not [text for text in lists if secret in text]
    assert secret not in said
    for who, answer in tries.items():
        assert "@ERROR" in str(answer), (who, answer)
    # Of versions of rsync some deny a host that is not named, and some do not even tell it that there is something.
    refused = str(tries["fleet3", user, secret])
    assert "access denied" in refused or "Unknown module" in refused, refused
    fleet.demand_whole("fleet1", "fleet2")


def test_a_killed_controller_does_not_stop_the_download_and_the_next_run_waits_for_it(fleet: Fleet) -> None:
    fleet.ask("POST", "faults", {"path": "*/model-2.safetensors", "do": "slow", "rate": 20_000_000})
    running = fleet.begin("hub", "-l", "fleet1")
    fleet.wait("fleet1", f"ls {REPOSITORY}/blobs/*.incomplete >/dev/null 2>&1")
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    said = fleet.fetch("hub", "-l", "fleet1")
    assert "waiting for another run (process " in said
    assert "changed=" in said
    assert fleet.sent() == SIZES, said
    fleet.sh("fleet1", "rm -f /run/enplace/jobs/*")
    fleet.demand_whole("fleet1")


def test_check_mode_downloads_nothing_and_offers_nothing(fleet: Fleet) -> None:
    said = fleet.fetch("fleet", "--check")
    assert fleet.sent() == {}, said
    for host in HOSTS:
        assert fleet.sh(host, f"ls -A {CACHE}") == ""
        assert fleet.sh(host, "systemctl is-active enplace-fleet || true") == "inactive"
