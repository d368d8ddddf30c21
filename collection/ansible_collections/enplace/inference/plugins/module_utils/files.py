# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on a host: written whole or not at all, hashed in parallel, locked against a second run.

Standard library only, Python 3.9 or newer. Nothing here knows Ansible.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

#: Bytes read at once when hashing: large enough that hashlib releases the interpreter lock for nearly all the time.
HASH_CHUNK_BYTES = 4 * 1024 * 1024


class Failure(Exception):
    """An error a person can act on: what, where, expected, found, what to do.

    ``str()`` gives one line per field; fields that do not apply are left out. ``detail`` holds the last lines of a
    program's own output.
    """

    def __init__(
        self, what: str, where: str = "", expected: str = "", found: str = "", todo: str = "", detail: str = ""
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.todo = todo
        self.detail = detail

    def __str__(self) -> str:
        lines = [self.what]
        named = (
            ("where", self.where),
            ("expected", self.expected),
            ("found", self.found),
            ("what to do", self.todo),
            ("output", self.detail),
        )
        for label, text in named:
            if text:
                lines.append("  {}: {}".format(label, text.replace("\n", "\n    ")))
        return "\n".join(lines)

    def fields(self) -> dict[str, str]:
        """The same as data, for a module's result: keys what, where, expected, found, todo (only those set).

        The detail is left out: Ansible prints a result's message and all of its fields, and the message has it.
        """
        names = ("what", "where", "expected", "found", "todo")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


def is_disk_full(error: BaseException | str) -> bool:
    """Whether an exception or a program's output says that the disk (or the quota) is full."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error)
    return "No space left on device" in text or "os error 28" in text or "Disk quota exceeded" in text


def write_bytes(path: str, content: bytes, mode: int = 0o644, uid: int = -1, gid: int = -1) -> None:
    """Write ``content`` aside, flush it to the disk and rename it to ``path``, so that no reader sees a part of it.

    The folder must exist. Raises OSError; then ``path`` is as it was and nothing is left beside it.
    """
    folder = os.path.dirname(path) or "."
    handle, aside = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if uid != -1 or gid != -1:
                os.fchown(stream.fileno(), uid, gid)
            os.fsync(stream.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        raise
    sync_folder(folder)


def write_text(path: str, content: str, mode: int = 0o644, uid: int = -1, gid: int = -1) -> None:
    """`write_bytes` for text, as UTF-8."""
    write_bytes(path, content.encode("utf-8"), mode, uid, gid)


def write_json(path: str, value: Any, mode: int = 0o644, uid: int = -1, gid: int = -1) -> None:
    """`write_text` of `json_text`: the same value gives the same bytes."""
    write_text(path, json_text(value), mode, uid, gid)


def json_text(value: Any) -> str:
    """JSON with sorted keys, two spaces of indent and a newline at the end."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def canonical_json(value: Any) -> bytes:
    """JSON for digests: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file or it does not hold an object."""
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.load(stream)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def sync_folder(path: str) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: str) -> None:
    """Flush a file's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_bytes(content: bytes) -> str:
    """SHA-256 as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: str) -> str:
    """SHA-256 of a file's content as 64 hexadecimal digits."""
    return _hash_file(path, hashlib.sha256())


def git_blob_sha1(path: str) -> str:
    """The name git gives to a file's content: SHA-1 over a header with its size and the content, 40 digits."""
    digest = hashlib.sha1(f"blob {os.path.getsize(path)}\0".encode("ascii"), usedforsecurity=False)
    return _hash_file(path, digest)


def _hash_file(path: str, digest: Any) -> str:
    with open(path, "rb", buffering=0) as stream:
        while True:
            chunk = stream.read(HASH_CHUNK_BYTES)
            if not chunk:
                return str(digest.hexdigest())
            digest.update(chunk)


def sha256_files(paths: Iterable[str], threads: int = 0) -> dict[str, str]:
    """SHA-256 of many files, several at a time: ``{path: 64 hexadecimal digits}``.

    ``threads`` 0 means one for each CPU, at most 32. Raises OSError for a file that cannot be read.
    """
    # The largest first: one that comes last keeps one CPU at work and all others waiting.
    unique = sorted(set(paths), key=lambda path: (-os.path.getsize(path), path))
    workers = threads or min(32, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        return dict(zip(unique, pool.map(sha256_file, unique)))


def remove(path: str) -> bool:
    """Remove a file, a link or a folder with all it holds. True if there was something."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return False
    return True


@dataclass(frozen=True)
class Space:
    """Room on the filesystem that holds, or would hold, a path. Sizes in bytes; ``free`` is for ordinary users."""

    path: str
    existing: str
    mount: str
    device: int
    free: int
    total: int


def sized(count: int) -> str:
    """A number of bytes for people: ``12 bytes``, ``1.2 MB``, ``34.0 GB``."""
    if count < 1_000_000:
        return f"{count} bytes"
    unit, name = (1e9, "GB") if count >= 1_000_000_000 else (1e6, "MB")
    return f"{count / unit:.1f} {name}"


def space(path: str) -> Space:
    """Room at ``path``, or at its nearest parent that exists."""
    existing = os.path.abspath(path)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    existing = os.path.realpath(existing)
    figures = os.statvfs(existing)
    return Space(
        path=path,
        existing=existing,
        mount=_mount_of(existing),
        device=os.stat(existing).st_dev,
        free=figures.f_bavail * figures.f_frsize,
        total=figures.f_blocks * figures.f_frsize,
    )


def _mount_of(path: str) -> str:
    """The mount point above a real path. Read from the kernel: a bind mount keeps its device number."""
    best = "/"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            points = [line.split(" ")[4] for line in stream if line.count(" ") >= 5]
    except OSError:
        return best
    for raw in points:
        point = raw.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best = point
    return best


class Held(Failure):
    """A lock that somebody else holds; `found` is what its file says of the holder."""


class Lock:
    """A lock file: ``with Lock(path, "building X"):``. The kernel frees it when its holder dies.

    Raises Failure if somebody else holds it, and says who: at once, or after ``wait_s`` seconds. A holder that nobody
    waits for any more (`mark_orphaned`) is waited for ``orphan_wait_s`` seconds instead, for it will end by itself.
    ``holder`` says on whose behalf the lock is taken. ``handle`` is the open file: a program that inherits it keeps the
    lock until it ends, too.
    """

    #: What the lock file of an orphaned holder has in it.
    ORPHANED = "orphaned since"
    #: Seconds between two tries.
    PAUSE_S = 0.5

    def __init__(
        self, path: str, purpose: str, holder: str = "", wait_s: float = 0.0, orphan_wait_s: float = 0.0
    ) -> None:
        self.path = path
        self.purpose = purpose
        self.holder = holder
        self.wait_s = wait_s
        self.orphan_wait_s = max(wait_s, orphan_wait_s)
        self.handle = -1

    def __enter__(self) -> Lock:
        begin = time.monotonic()
        while True:
            handle = self._open()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                found = os.read(handle, 4096).decode("utf-8", "replace").strip()
                os.close(handle)
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                limit_s = self.orphan_wait_s if self.ORPHANED in found else self.wait_s
                if time.monotonic() - begin < limit_s:
                    time.sleep(self.PAUSE_S)
                    continue
                raise Held(
                    what=f"another run is at work: {self.purpose}",
                    where=self.path,
                    expected="nobody holds the lock" + (f", for {limit_s:.0f} s at most" if limit_s else ""),
                    found=found or "a holder that has not written its name yet",
                    todo="wait until it, or the program it started, has ended and run again; the dead keep no lock",
                ) from None
            # A holder removes the file before it lets go: then this handle locks a file that has no name any more.
            try:
                current = os.stat(self.path).st_ino == os.fstat(handle).st_ino
            except FileNotFoundError:
                current = False
            if current:
                break
            os.close(handle)
        by = f" for {self.holder}" if self.holder else ""
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} since {_now()}{by}: {self.purpose}\n".encode())
        self.handle = handle
        return self

    def _open(self) -> int:
        """The lock file. It may lie in a folder where others write, and what is locked is emptied."""
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise self._no_lock("a link or a folder" if error.errno != errno.ENXIO else "no plain file") from None
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
            return handle
        os.close(handle)
        raise self._no_lock("a file with a second name" if stat.S_ISREG(status.st_mode) else "no plain file")

    def _no_lock(self, found: str) -> Failure:
        return Failure(
            f"the lock cannot be taken: {self.purpose}",
            where=self.path,
            expected="a plain file, or none",
            found=found,
            todo="find out who put it there, remove it, and run again",
        )

    def mark_orphaned(self) -> None:
        """Tell those who come that nobody waits for this holder any more, and that it goes on to its end by itself."""
        os.write(self.handle, f"{self.ORPHANED} {_now()}\n".encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self.handle)
        self.handle = -1


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a mapping without the entries that are None."""
    return {key: value for key, value in mapping.items() if value is not None}
