# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hub's client at work, watched: how many bytes have come, and whether any still do.

What hf 2.4 keeps: whole files. Each process names its unfinished files anew (``<etag>.<8 hex digits>.incomplete``), and
none goes on with another's, so what a killed one leaves is removed here. Within one process a cut or silent connection
is taken up again where it was, with a Range header, five times without a byte in between.

Standard library only, Python 3.9 or newer. Nothing here knows Ansible.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
import time
from collections.abc import Callable

from ansible_collections.enplace.inference.plugins.module_utils.files import remove

#: Bytes that the client's connections must have got to count as alive while no file grows. The client writes plain HTTP
#: in pieces of 10 MiB, which on a slow line are minutes apart; less than this is what it takes to shake hands.
ALIVE_BYTES = 256 * 1024

_INCOMPLETE = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})(\.[0-9a-f]{8})?\.incomplete")


def bytes_in(folder: str) -> int:
    """Bytes that are really in a folder's files: holes of files that were made long at once do not count."""
    total = 0
    for status in _stats(folder):
        total += min(status.st_size, status.st_blocks * 512)
    return total


def _stats(folder: str) -> list[os.stat_result]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found.append(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        pass
    return found


def remove_unfinished(repository: str) -> int:
    """Remove unfinished files of clients that are no more from a repository's folder in the cache; their bytes.

    A client at work, ours or another tool's, holds the lock of the file that it fetches; that file is left alone.
    """
    freed = 0
    for path, etag in unfinished(repository):
        lock = os.path.join(os.path.dirname(repository), ".locks", os.path.basename(repository), etag + ".lock")
        if not _is_locked(lock):
            freed += os.lstat(path).st_blocks * 512
            remove(path)
    return freed


def unfinished(repository: str) -> list[tuple[str, str]]:
    """Unfinished files of a repository's folder in the cache, with the ETags of what they were to be."""
    folder = os.path.join(repository, "blobs")
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    matches = ((name, _INCOMPLETE.fullmatch(name)) for name in names)
    return [(os.path.join(folder, name), match.group(1)) for name, match in matches if match]


def _is_locked(path: str) -> bool:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


class Watchdog:
    """Says after each look whether bytes still come: files grew, or connections received, within ``stall_s`` seconds.

    ``told`` is called with the bytes that are in the folder at each look. ``most`` is the largest of them.
    """

    def __init__(self, folder: str, stall_s: float, told: Callable[[int], None]) -> None:
        self.folder, self.stall_s, self.told = folder, stall_s, told
        self.most = bytes_in(folder)
        self._seen: list[tuple[int, int, int]] = []
        self._received: dict[int, int] = {}
        self._since = time.monotonic()

    def __call__(self, pid: int) -> bool:
        now = time.monotonic()
        have = bytes_in(self.folder)
        self.most = max(self.most, have)
        self.told(have)
        seen = [(status.st_ino, status.st_size, status.st_blocks) for status in _stats(self.folder)]
        received = received_bytes(pid)
        news = sum(max(0, count - self._received.get(inode, 0)) for inode, count in received.items())
        if seen != self._seen or news >= ALIVE_BYTES:
            self._seen, self._received, self._since = seen, received, now
        return now - self._since < self.stall_s


def received_bytes(pid: int) -> dict[int, int]:
    """Bytes that each TCP connection of a process group has received so far, by the socket's inode; empty: nobody says.

    Asked of the kernel as ss(8) does (sock_diag(7)), which a minimal host need not have.
    """
    inodes = set()
    for member in _group(pid):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{member}/fd"):
                with contextlib.suppress(OSError):
                    match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{member}/fd/{name}"))
                    if match:
                        inodes.add(int(match.group(1)))
    found: dict[int, int] = {}
    if inodes:
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                found.update(_tcp_received(family, inodes))
            except (OSError, struct.error):
                continue
    return found


def _group(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(name)) == pid:
                    found.append(int(name))
    return found


def _tcp_received(family: int, inodes: set[int]) -> dict[int, int]:
    # struct nlmsghdr, then struct inet_diag_req_v2: TCP, INET_DIAG_INFO, all states, any address.
    ask = (
        struct.pack("=IHHII", 72, 20, 0x301, 1, 0) + struct.pack("=BBBBI", family, 6, 1 << 1, 0, 0xFFFFFFFF) + bytes(48)
    )
    found: dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:
        diag.settimeout(5)
        diag.send(ask)
        while True:
            data = diag.recv(1 << 18)
            at = 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind in (2, 3) or length < 16:
                    return found
                (inode,) = struct.unpack_from("=I", data, at + 16 + 68)
                if inode in inodes:
                    found[inode] = _bytes_received(data[at + 16 + 72 : at + length])
                at += (length + 3) & ~3


def _bytes_received(attributes: bytes) -> int:
    """``tcpi_bytes_received`` out of the attributes of one connection; kernels have it since 4.1."""
    at = 0
    while at + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if kind == 2 and length >= 4 + 136:
            return int(struct.unpack_from("=Q", attributes, at + 4 + 128)[0])
        if length < 4:
            break
        at += (length + 3) & ~3
    return 0
