# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What the kernel of a host tells: memory, processes, who listens, who holds an accelerator, who uses a folder.

Every place is below `root`, which is another folder in tests. Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_LISTENS = "0A"
_ANYWHERE = {"00000000", "0" * 32}
# Where the hierarchies of control groups are mounted: the only one, systemd's own of version 1, the hybrid's.
_CGROUPS = ("sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/unified")


@dataclass(frozen=True)
class Process:
    """A process, its command line (cut), and the systemd unit it belongs to (empty: none that is known)."""

    pid: int
    command: str
    unit: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command or 'unknown'})" + (f" of {self.unit}" if self.unit else "")


class Machine:
    """Questions to the kernel of this host."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def boot(self) -> str:
        """The identity of this boot. A container has none of its own, so its first process's start is part of it."""
        first = self._text("proc/1/stat").rpartition(")")[2].split()
        return self._text("proc/sys/kernel/random/boot_id").strip() + (f"-{first[19]}" if len(first) > 19 else "")

    def memory(self, name: str = "MemAvailable") -> int:
        """An entry of /proc/meminfo in bytes."""
        match = re.search(rf"^{name}:\s+(\d+) kB$", self._text("proc/meminfo"), re.MULTILINE)
        return int(match[1]) * 1024 if match else 0

    def largest(self, count: int = 3) -> list[tuple[Process, int]]:
        """The processes with the most memory of their own, and how much, in bytes."""
        sizes = []
        for pid in self._pids():
            match = re.search(r"^VmRSS:\s+(\d+) kB$", self._text(f"proc/{pid}/status"), re.MULTILINE)
            if match:
                sizes.append((int(match[1]) * 1024, pid))
        return [(self.process(pid), size) for size, pid in sorted(sizes, reverse=True)[:count]]

    def members(self, cgroup: str) -> list[int]:
        """The processes of a control group and of those below it; `cgroup` is as systemd names it (ControlGroup)."""
        found: set[int] = set()
        if cgroup.strip("/"):
            for place in _CGROUPS:
                for folder, _folders, _names in os.walk(self.root / place / cgroup.lstrip("/")):
                    with contextlib.suppress(OSError):
                        text = Path(folder, "cgroup.procs").read_text(encoding="ascii")
                        found.update(int(pid) for pid in text.split())
        return sorted(found)

    def listeners(self, port: int, addresses: Sequence[str]) -> list[Process]:
        """Who listens on a TCP port at one of the addresses (IPv4 or IPv6 as text; 0.0.0.0 and :: stand for all)."""
        wanted = set()
        for address in addresses:
            with contextlib.suppress(ValueError):
                wanted.add(_kernel_form(ipaddress.ip_address(address).packed))
        sockets = set()
        for table in ("proc/net/tcp", "proc/net/tcp6"):
            for line in self._text(table).splitlines()[1:]:
                fields = line.split()
                if len(fields) < 10 or fields[3] != _LISTENS:
                    continue
                address, _colon, number = fields[1].partition(":")
                anywhere = address in _ANYWHERE or bool(wanted & _ANYWHERE)
                if int(number, 16) == port and (anywhere or address in wanted):
                    sockets.add(f"socket:[{fields[9]}]")
        if not sockets:
            return []
        found = [self.process(pid) for pid, target in self._open_files() if target in sockets]
        # A socket that no process here has open is another container's, or a kernel's.
        return _once(found) or [Process(0, "nobody that can be seen from here")]

    def accelerator_holders(self, cards: Iterable[int]) -> list[Process]:
        """Who has one of the Gaudi cards open; none named: any of them. A card is named by its module number."""
        wanted = {str(card) for card in cards}
        found = []
        for pid, target in self._open_files():
            # The control nodes (accel_controlD*) are what monitoring holds, and it takes no card.
            match = re.fullmatch(r"/dev/accel/accel(\d+)", target)
            if match and (not wanted or self._module(match[1]) in wanted):
                found.append(self.process(pid))
        return _once(found)

    def users(self, folders: Iterable[Path]) -> dict[Path, list[Process]]:
        """For each folder that a process uses, which: a file below it mapped, as its program, or its working folder."""
        prefixes = {str(folder).rstrip("/") + "/": folder for folder in folders}
        used: dict[Path, list[Process]] = {}
        if not prefixes:
            return used
        for pid in self._pids():
            texts = [self._text(f"proc/{pid}/maps"), self._text(f"proc/{pid}/cmdline").replace("\0", "\n")]
            for link in ("exe", "cwd"):
                with contextlib.suppress(OSError):
                    texts.append(os.readlink(self.root / f"proc/{pid}/{link}") + "/")
            for prefix, folder in prefixes.items():
                if any(prefix in text for text in texts):
                    used.setdefault(folder, []).append(self.process(pid))
        return used

    def process(self, pid: int) -> Process:
        """A process by its number; one that has ended has no command."""
        words = self._text(f"proc/{pid}/cmdline").split("\0")
        command = " ".join(word for word in words if word)[:120] or self._text(f"proc/{pid}/comm").strip()
        unit = ""
        for line in self._text(f"proc/{pid}/cgroup").splitlines():
            for part in line.rpartition(":")[2].split("/"):
                if part.endswith(".service"):
                    unit = part
        return Process(pid, command, unit)

    def _module(self, node: str) -> str:
        """The module number of a card's node, which the driver tells; the node's own where it does not."""
        return self._text(f"sys/class/accel/accel{node}/device/module_id").strip() or node

    def _open_files(self) -> Iterator[tuple[int, str]]:
        for pid in self._pids():
            folder = self.root / f"proc/{pid}/fd"
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    with contextlib.suppress(OSError):
                        yield pid, os.readlink(folder / name)

    def _pids(self) -> list[int]:
        names = os.listdir(self.root / "proc")
        return sorted(int(name) for name in names if name.isdigit() and int(name) != os.getpid())

    def _text(self, path: str) -> str:
        try:
            return (self.root / path).read_bytes().decode("utf-8", errors="replace")
        except OSError:
            return ""


def _once(processes: Iterable[Process]) -> list[Process]:
    return list({process.pid: process for process in processes}.values())


def _kernel_form(packed: bytes) -> str:
    """An address as /proc/net/tcp has it: 32-bit words in the byte order of this machine, which is little-endian."""
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    return "".join(word[::-1].hex() for word in words).upper()
