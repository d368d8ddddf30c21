# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells of a host: from a made-up /proc where the hardware is not here, else from the real."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.machine import Machine


def process(root: Path, pid: int, command: str, unit: str = "", files: tuple[str, ...] = (), rss_kb: int = 0) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    (folder / "cgroup").write_text(f"0::/system.slice/{unit}\n" if unit else "0::/user.slice\n")
    (folder / "status").write_text(f"Name:\tx\nVmRSS:\t   {rss_kb} kB\n")
    for number, target in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(target)


def test_holders_of_cards_are_named_by_the_modules_number(tmp_path: Path) -> None:
    process(tmp_path, 101, "vllm serve", "enplace-x.service", ("/dev/accel/accel0", "/dev/null"))
    process(tmp_path, 102, "python3 train.py", "", ("/dev/accel/accel5", "/dev/accel/accel5"))
    process(tmp_path, 103, "hl-smi", "", ("/dev/accel/accel_controlD0",))
    node = tmp_path / "sys" / "class" / "accel" / "accel5" / "device"
    node.mkdir(parents=True)
    (node / "module_id").write_text("3\n")
    machine = Machine(tmp_path)
    assert [holder.pid for holder in machine.accelerator_holders([])] == [101, 102]
    assert [str(holder) for holder in machine.accelerator_holders([3])] == ["process 102 (python3 train.py)"]
    assert [str(holder) for holder in machine.accelerator_holders([0, 1])] == [
        "process 101 (vllm serve) of enplace-x.service"
    ]
    assert machine.accelerator_holders([5]) == []


@pytest.mark.parametrize("place", ["sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/unified"])
def test_the_processes_of_a_unit_are_found_in_every_layout_of_control_groups(tmp_path: Path, place: str) -> None:
    below = tmp_path / place / "system.slice" / "x.service" / "worker"
    below.mkdir(parents=True)
    (below / "cgroup.procs").write_text("12\n7\n")
    (below.parent / "cgroup.procs").write_text("")
    machine = Machine(tmp_path)
    assert machine.members("/system.slice/x.service") == [7, 12]
    assert machine.members("/system.slice/y.service") == []
    assert machine.members("") == []


def test_memory_and_the_largest_processes(tmp_path: Path) -> None:
    process(tmp_path, 1, "small", rss_kb=10)
    process(tmp_path, 2, "large one", rss_kb=3000)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:  200 kB\nMemAvailable:   100 kB\n")
    machine = Machine(tmp_path)
    assert (machine.memory(), machine.memory("MemTotal")) == (102_400, 204_800)
    assert [(found.command, size) for found, size in machine.largest(1)] == [("large one", 3_072_000)]


@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_listener_is_found_by_port_and_address(address: str, family: socket.AddressFamily) -> None:
    machine = Machine()
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        listener.listen()
        port = listener.getsockname()[1]
        # This process itself is never named, so that nobody is.
        assert len(machine.listeners(port, [address])) == 1
        assert len(machine.listeners(port, ["0.0.0.0" if family == socket.AF_INET else "::"])) == 1
        assert machine.listeners(port, ["192.0.2.1"]) == []
    assert machine.listeners(port, [address]) == []


def test_a_boot_has_a_name_that_stays(tmp_path: Path) -> None:
    assert Machine().boot() == Machine().boot() != ""
    first = tmp_path / "proc" / "1"
    first.mkdir(parents=True)
    names = []
    for start in ("100", "200"):
        (first / "stat").write_text("1 (systemd (x)) " + " ".join(["S", *["0"] * 18, start, "0"]))
        names.append(Machine(tmp_path).boot())
    assert names == ["-100", "-200"], "a container's second start in one boot of its machine"


def test_a_process_that_has_ended_has_no_name() -> None:
    assert str(Machine().process(4_194_305)) == "process 4194305 (unknown)"
    assert "python" in Machine().process(os.getpid()).command
