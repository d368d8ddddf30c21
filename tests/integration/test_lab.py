# SPDX-License-Identifier: Apache-2.0
"""Real test hosts, of a checkout of their own so that no other test sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.lab import Lab, LabError

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("checkout"))
    yield made
    made.down(everything=True)


@pytest.fixture(scope="module")
def pair(lab: Lab) -> tuple[str, str]:
    lab.up("one", "two")
    return "one", "two"


def out(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def inspected(lab: Lab, name: str, form: str) -> str:
    return out(lab.podman.run("container", "inspect", "--format", form, lab.host(name).container))


def test_a_host_is_a_plain_debian_with_systemd_and_sudo(lab: Lab, pair: tuple[str, str]) -> None:
    one, _ = pair
    assert out(lab.ssh(one, ["systemctl", "is-system-running"])) == "running"
    assert out(lab.ssh(one, ["sudo", "id", "-u"])) == "0"
    assert "bookworm" in out(lab.ssh(one, ["cat", "/etc/os-release"]))
    assert lab.ssh(one, ["id", "enplace"]).returncode == 1, "the product makes its user itself"
    assert int(out(lab.ssh(one, ["df", "--output=size", "--block-size=1M", "/dev/shm"])).split()[-1]) >= 1024


def test_arguments_reach_a_host_as_they_are(lab: Lab, pair: tuple[str, str]) -> None:
    awkward = ["a b", "$HOME", "'", '"', "\\", "", "*"]
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    assert json.loads(out(lab.ssh(pair[0], ["python3", "-c", program, *awkward]))) == awkward
    assert json.loads(out(lab.exec(pair[0], ["python3", "-c", program, *awkward]))) == awkward


def test_hosts_differ_and_reach_each_other(lab: Lab, pair: tuple[str, str]) -> None:
    one, two = pair
    assert out(lab.ssh(one, ["cat", "/etc/machine-id"])) != out(lab.ssh(two, ["cat", "/etc/machine-id"]))
    keys = {out(lab.exec(name, ["cat", "/etc/ssh/ssh_host_ed25519_key.pub"])).split()[1] for name in pair}
    assert len(keys) == 2
    connect = f"import socket; print(socket.create_connection(('{lab.address(two)}', 22), 5).recv(3).decode())"
    assert out(lab.ssh(one, ["python3", "-c", connect])) == "SSH"


@pytest.mark.parametrize("power_cut", [False, True])
def test_address_key_and_files_outlive_a_restart(lab: Lab, pair: tuple[str, str], power_cut: bool) -> None:
    one, _ = pair
    stopped = "/run/systemd/system/stopped.service"
    unit = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/usr/bin/touch /opt/in-order\n"
    lab.exec(one, ["sh", "-c", f"rm -f /opt/in-order; cat > {stopped}; systemctl start stopped"], stdin=unit)
    before = (lab.address(one), (lab.folder / "known_hosts").read_text(encoding="utf-8"))
    lab.stop(one, power_cut=power_cut)
    assert lab.host(one).state == "exited"
    lab.start(one)
    assert out(lab.ssh(one, ["hostname"])) == one
    assert (lab.address(one), (lab.folder / "known_hosts").read_text(encoding="utf-8")) == before
    # A shutdown stops services in order; a power cut does not.
    assert (lab.exec(one, ["test", "-e", "/opt/in-order"]).returncode == 0) is not power_cut


def test_a_host_with_another_key_is_refused(lab: Lab, pair: tuple[str, str]) -> None:
    one, two = pair
    known = lab.folder / "known_hosts"
    right = known.read_text(encoding="utf-8")
    keys = {name: [line.split(" ", 1)[1] for line in right.splitlines() if line.startswith(name)] for name in pair}
    known.write_text("".join(f"{one} {key}\n" for key in keys[two]), encoding="utf-8")
    try:
        done = lab.ssh(one, ["true"])
        assert done.returncode == 255
        assert "Host key verification failed" in done.stderr
    finally:
        known.write_text(right, encoding="utf-8")


def test_up_again_changes_nothing(lab: Lab, pair: tuple[str, str]) -> None:
    def started() -> list[str]:
        return [inspected(lab, name, "{{.Id}} {{.State.StartedAt}}") for name in pair]

    before = started()
    assert [host.name for host in lab.up(*pair)] == list(pair)
    assert started() == before


def test_other_settings_for_an_existing_host_are_refused(lab: Lab, pair: tuple[str, str]) -> None:
    with pytest.raises(LabError) as error:
        lab.up(pair[0], tmpfs={"/opt": "64m"})
    assert (error.value.where, error.value.expected, error.value.found) == ("tmpfs", "/opt:64m", "none")


@pytest.mark.parametrize("name", ["hub", "Demo", "a_b", "-a", "", "a.b", "x" * 33])
def test_a_bad_name_is_refused(lab: Lab, name: str) -> None:
    with pytest.raises(LabError, match="no name for a test host"):
        lab.up(name)
    assert name not in [host.name for host in lab.hosts()]


def test_a_host_without_a_network_reaches_nothing(lab: Lab, pair: tuple[str, str]) -> None:
    lab.up("closed", network=False, tmpfs={"/opt": "64m"})
    try:
        assert "default" not in out(lab.ssh("closed", ["ip", "route"]))
        assert lab.ssh("closed", ["getent", "hosts", "hub.enplace.test"]).returncode != 0
        connect = f"import socket; socket.create_connection(('{lab.address(pair[0])}', 22), 5)"
        assert "Network is unreachable" in lab.ssh("closed", ["python3", "-c", connect]).stderr
        assert out(lab.ssh("closed", ["df", "--output=size", "--block-size=1M", "/opt"])).split()[-1] == "64"
        lab.restart("closed")
        assert "default" not in out(lab.ssh("closed", ["ip", "route"]))
    finally:
        lab.down("closed")


def test_a_host_killed_with_its_monitor_comes_back_with_its_files(lab: Lab, pair: tuple[str, str]) -> None:
    """As when a CI job's processes are all killed: nobody is left to write down that the container ended."""
    one, _ = pair
    out(lab.ssh(one, ["sudo", "touch", "/opt/kept"]))
    pids = inspected(lab, one, "{{.State.ConmonPid}} {{.State.Pid}}").split()
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)
    for _ in range(100):
        if not Path(f"/proc/{pids[1]}").exists():
            break
        time.sleep(0.1)
    assert lab.host(one).state != "running"
    lab.up(one)
    assert out(lab.ssh(one, ["ls", "/opt/kept"])) == "/opt/kept"


def test_a_hub_that_fails_says_why_and_leaves_nothing(lab: Lab) -> None:
    folder = lab.root / "tests" / "sim" / "hub"
    (folder / "repositories").mkdir(parents=True)
    (folder / "hub.py").write_text("raise SystemExit('no repositories today')\n", encoding="utf-8")
    with pytest.raises(LabError) as error:
        lab.hub()
    assert "no repositories today" in error.value.found
    assert "hub" not in [host.name for host in lab.hosts()]


def test_the_hub_follows_its_program(lab: Lab, pair: tuple[str, str]) -> None:
    folder = lab.root / "tests" / "sim" / "hub"
    (folder / "repositories").mkdir(parents=True, exist_ok=True)
    program = "import http.server, sys\nassert sys.argv[1:3] == ['--root', '/srv/hub/repositories']\n{}\n"
    serve = "http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[6]), bind=sys.argv[4])"
    (folder / "hub.py").write_text(program.format(serve), encoding="utf-8")
    first = lab.hub()
    assert lab.hub() == first
    ask = ["curl", "--silent", "--head", "http://hub.enplace.test:8080/"]
    assert "200" in out(lab.ssh(pair[0], ask)).splitlines()[0]
    renamed = "http.server.SimpleHTTPRequestHandler.server_version = 'Second/1'; " + serve
    (folder / "hub.py").write_text(program.format(renamed), encoding="utf-8")
    assert lab.hub().address == first.address
    assert "Second/1" in out(lab.ssh(pair[0], ask))


def test_nothing_is_left(lab: Lab, pair: tuple[str, str]) -> None:
    lab.down(everything=True)
    assert lab.hosts() == []
    assert list(lab.podman.networks.glob(f"*{lab.checkout}*")) == []
    assert [path.name for path in lab.folder.iterdir()] == ["lock"]
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert f"en{lab.checkout}" not in links
