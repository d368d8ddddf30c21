#!/usr/bin/env python3
# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated model hub for tests and the demo: not the Hugging Face Hub, and no mirror of it.

It speaks the part of the Hugging Face Hub's HTTP interface that `hf download` uses, and serves model repositories from
a folder:

    ROOT/ORGANISATION/NAME/         the files of a repository, any depth, no links among them
    ROOT/ORGANISATION/NAME.json     about it, all keys optional: {"revision": 40 hex, "gated": false, "token": "..."}

A repository has one commit, on branch `main`. Its revision is a digest of its content, so content cannot change under a
pinned revision; a recorded revision that disagrees with the content stops the hub at start. Only what was there at
start is served, by looking names up in a table: a request never becomes a path.

    GET       /api/models/ORG/NAME[/revision/REV]             the commit and its files
    GET       /api/models/ORG/NAME/tree/REV[/FOLDER]          the files with sizes and object ids, in pages
    HEAD, GET /ORG/NAME/resolve/REV/FILE                      one file; ETag, X-Repo-Commit, Range, If-Range

Large files carry X-Linked-Size and X-Linked-Etag, as on the real hub, but are sent from here: there is no redirect to
another host. Xet is not offered, so clients fall back to plain HTTP. An unknown repository is always answered with 404
(the real hub asks clients without a token to log in, with 401). A gated repository shows its list of files, and refuses
the files: 401 without a token, 403 with any token but the one in its NAME.json.

Tests can order faults, and can ask what was requested:

    POST      /_sim/faults    one fault, as JSON: see Fault
    GET       /_sim/faults    the faults that are left
    DELETE    /_sim/faults    forget them all
    GET       /_sim/requests  the latest requests, oldest first; DELETE forgets them
    GET       /_sim/bytes     bytes of files sent so far, by path; DELETE forgets them

Standard library only, Python 3.11 or newer.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import fnmatch
import hashlib
import http
import http.server
import json
import os
import re
import signal
import stat
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

SERVER = "enplace-simulated-hub/1"
BRANCH = "main"

#: What the hub keeps as large files whatever their size, and the size (bytes) from which it does so with any file.
LARGE_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx", ".msgpack", ".h5", ".npz", ".zip", ".gz")
LARGE_BYTES = 10_000_000

#: Files in one page of a tree.
PAGE_ENTRIES = 1000

CHUNK_BYTES = 1 << 16
KEPT_REQUESTS = 1000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
_REVISION = re.compile(r"[0-9a-f]{40}")


class HubError(Exception):
    """Something on the disk, or in a request to /_sim, that this program cannot work with. One line for people."""


# --- repositories ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class File:
    """One file of a repository. ``oid`` is git's SHA-1 of what git holds: the file, or the pointer to a large one."""

    path: str
    source: Path
    size: int
    sha256: str
    oid: str
    pointer_size: int | None
    identity: tuple[int, int, int]

    @property
    def large(self) -> bool:
        return self.pointer_size is not None

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid


@dataclasses.dataclass(frozen=True)
class Repository:
    """A repository at its one revision. ``files`` by path, sorted. ``token`` opens it, if it is gated."""

    name: str
    revision: str
    files: dict[str, File]
    gated: bool = False
    token: str = ""


def load(root: Path) -> dict[str, Repository]:
    """The repositories below a folder, by name. Raises HubError for anything that is not served as it lies there."""
    repositories = {}
    if not root.is_dir():
        raise HubError(f"{root}: expected a folder with repositories, found {_kind(root)}")
    for organisation in sorted(root.iterdir()):
        if not organisation.is_dir() or organisation.name.startswith("."):
            continue
        for folder in sorted(organisation.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                repository = load_repository(folder)
                repositories[repository.name] = repository
    return repositories


def load_repository(folder: Path) -> Repository:
    """One repository with its metadata. Raises HubError."""
    name = f"{folder.parent.name}/{folder.name}"
    if not all(_NAME.fullmatch(part) for part in name.split("/")):
        raise HubError(f"{folder}: expected names of letters, digits and _.-, found '{name}'")
    files = {file.path: file for file in sorted(_files(folder), key=lambda file: file.path)}
    if not files:
        raise HubError(f"{folder}: expected the files of a repository, found none")
    revision = revision_of(files.values())
    metadata = _metadata(folder.parent / f"{folder.name}.json")
    recorded = metadata.get("revision", revision)
    if recorded != revision:
        raise HubError(
            f"{folder.parent / folder.name}.json: field revision: expected {revision}, the digest of the content of "
            f"{folder}, found {recorded}: restore the content, or record the new revision"
        )
    return Repository(name, revision, files, metadata.get("gated", False), metadata.get("token", ""))


def revision_of(files: Iterable[File]) -> str:
    """The revision of a content: 40 hexadecimal digits that change with any path or byte, and with nothing else."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        digest.update(f"{file.path}\0{file.sha256}\n".encode())
    return digest.hexdigest()[:40]


def _metadata(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HubError(f"{path}: expected a JSON object, found: {error}") from error
    kinds = {"revision": str, "gated": bool, "token": str}
    if not isinstance(value, dict) or set(value) - set(kinds):
        raise HubError(f"{path}: expected a JSON object with {', '.join(kinds)}, found {json.dumps(value)[:200]}")
    for key, found in value.items():
        if not isinstance(found, kinds[key]):
            raise HubError(f"{path}: field {key}: expected a {kinds[key].__name__}, found {found!r}")
    return value


def _files(folder: Path) -> Iterator[File]:
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise HubError(f"{path}: expected plain files and folders, found {_kind(path)}")
        if path.is_file():
            yield _file(path, path.relative_to(folder).as_posix())


def _file(source: Path, path: str) -> File:
    with source.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        status = os.fstat(stream.fileno())
    size = status.st_size
    pointer_size = None
    if path.endswith(LARGE_SUFFIXES) or size >= LARGE_BYTES:
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
        pointer_size = len(pointer)
        oid = _git_oid(pointer)
    else:
        oid = _git_oid(source.read_bytes())
    return File(path, source, size, sha256, oid, pointer_size, identity(status))


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


def identity(status: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file is written to: size (bytes), time of modification (ns), inode."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def _kind(path: Path) -> str:
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        return error.strerror or "nothing"
    return {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFLNK: "a link"}.get(
        stat.S_IFMT(mode), "a special file"
    )


# --- ranges ----------------------------------------------------------------------------------------------------------


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """What part of `size` bytes a Range header asks for, as first and end (exclusive).

    None where all of it is to be sent: no header, one that RFC 9110 says to ignore (malformed, another unit), or
    several ranges at once, which this hub does not send. Raises ValueError where no byte can satisfy it (status 416).
    """
    match = re.fullmatch(r"bytes=[ \t]*(\d*)-(\d*)[ \t]*", header or "", flags=re.ASCII)
    if not match or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if first == "":
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= min(end, size):
        raise ValueError(f"no byte of {size} is in {header}")
    return start, end


# --- faults ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Fault:
    """What goes wrong, the next `times` times that a request fits.

    Attributes:
        path: pattern for the path of the request, as in a shell: `*/resolve/*/model.safetensors`.
        do: `status`: answer with `status` and nothing else;
            `slow`: send no more than `rate` bytes a second from byte `after` of the file on;
            `cut`: close the connection after byte `after` of the file;
            `stall`: be silent for `seconds` after byte `after` of the file (with `after` 0: before the headers);
            `flip`: send byte `after` of the file with all bits turned over, with headers as if all were well.
        method: HEAD or GET; empty for both. The body's faults are for GET alone, whatever is said here.
        times: how often.
        status: an HTTP status of 400 and more.
        after: byte of the file, counted from 0 whatever range is asked for.
        seconds: how long.
        rate: bytes a second.
    """

    path: str
    do: str
    method: str = ""
    times: int = 1
    status: int = 500
    after: int = 0
    seconds: float = 0.0
    rate: int = 1_000_000

    def __post_init__(self) -> None:
        demands = [
            ("path", isinstance(self.path, str) and self.path != "", "a pattern"),
            ("do", self.do in ("status", "cut", "stall", "flip", "slow"), "status, cut, stall, flip or slow"),
            ("method", self.method in ("", "HEAD", "GET"), "HEAD, GET or nothing"),
            ("times", type(self.times) is int and self.times > 0, "a number above 0"),
            ("status", type(self.status) is int and 400 <= self.status <= 599, "a status from 400 to 599"),
            ("after", type(self.after) is int and self.after >= 0, "a number of bytes"),
            ("rate", type(self.rate) is int and self.rate > 0, "bytes a second, above 0"),
            ("seconds", type(self.seconds) in (int, float) and self.seconds >= 0, "a number of seconds"),
        ]
        for field, good, expected in demands:
            if not good:
                raise HubError(f"fault: field {field}: expected {expected}, found {getattr(self, field)!r}")
        if self.do != "status":
            self.method = "GET"

    def fits(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in ("", method) and fnmatch.fnmatchcase(path, self.path)


# --- the server ------------------------------------------------------------------------------------------------------


class Hub(http.server.ThreadingHTTPServer):
    """Serves repositories on an address. `port` 0 takes a free one; `url` says where it is."""

    daemon_threads = True

    def __init__(
        self,
        repositories: dict[str, Repository],
        host: str = "127.0.0.1",
        port: int = 0,
        page_entries: int = PAGE_ENTRIES,
        quiet: bool = False,
    ) -> None:
        super().__init__((host, port), Handler)
        self.repositories = repositories
        self.page_entries = page_entries
        self.quiet = quiet
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._bytes: collections.Counter[str] = collections.Counter()
        self._requests: collections.deque[dict[str, Any]] = collections.deque(maxlen=KEPT_REQUESTS)

    def server_bind(self) -> None:
        # As in the base of our base, less the look-up of our own name, which can take seconds without a name server.
        super(http.server.HTTPServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{self.server_name}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that goes away is what some tests are about, and nothing to report.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def add_fault(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def faults(self) -> list[dict[str, Any]]:
        with self._lock:
            return [dataclasses.asdict(fault) for fault in self._faults]

    def clear_faults(self) -> None:
        with self._lock:
            self._faults.clear()

    def take_fault(self, method: str, path: str) -> Fault | None:
        """The first fault that fits a request, one time less of it."""
        with self._lock:
            for fault in self._faults:
                if fault.fits(method, path):
                    fault.times -= 1
                    if not fault.times:
                        self._faults.remove(fault)
                    return fault
        return None

    def remember(self, entry: dict[str, Any]) -> None:
        with self._lock:
            self._requests.append(entry)

    def count(self, path: str, sent: int) -> None:
        with self._lock:
            self._bytes[path] += sent

    def bytes_sent(self) -> dict[str, int]:
        with self._lock:
            return dict(self._bytes)

    def clear_bytes(self) -> None:
        with self._lock:
            self._bytes.clear()

    def requests(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._requests)

    def clear_requests(self) -> None:
        with self._lock:
            self._requests.clear()


class Answer(Exception):
    """Ends the handling of a request with a status; `code` and `message` as clients of the hub know them."""

    def __init__(self, status: int, code: str = "", message: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def version_string(self) -> str:
        return SERVER

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        if not self.command:
            # What came was no HTTP, so there is nothing to say about it but the answer.
            self.log_message("no request %d", int(code))
            return
        status = int(code)
        self.log_message("%s %s %d", self.command, self.path, status)
        if not self.path.startswith("/_sim/"):
            entry = {"method": self.command, "path": self.path, "status": status, "range": self.headers.get("Range")}
            self.server.remember(entry)

    def log_message(self, format: str, *args: Any) -> None:
        if not self.server.quiet:
            print(f"simulated hub: {self.client_address[0]} {format % args}", file=sys.stderr, flush=True)

    # The names are the base class's.
    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        # Split before decoding: a %2F is part of a name.
        parts = [urllib.parse.unquote(part) for part in url.path.split("/")[1:]]
        try:
            if parts[0] == "_sim":
                self._simulation(parts[1:])
                return
            if self.command not in ("GET", "HEAD"):
                raise Answer(405, message="this simulated hub only serves", headers={"Allow": "GET, HEAD"})
            fault = self.server.take_fault(self.command, url.path)
            if fault and fault.do == "status":
                raise Answer(fault.status, message=f"fault injected by a test: status {fault.status}")
            if parts == [""]:
                names = ", ".join(sorted(self.server.repositories)) or "no repository"
                self._send(f"A simulated model hub, for tests. It serves: {names}\n".encode(), "text/plain")
            elif parts[:2] == ["api", "models"] and len(parts) >= 4:
                self._api(self._repository(parts[2], parts[3]), parts[4:], urllib.parse.parse_qs(url.query))
            elif len(parts) >= 5 and parts[2] == "resolve":
                repository = self._repository(parts[0], parts[1])
                self._resolve(repository, parts[3], "/".join(parts[4:]), fault)
            else:
                raise Answer(404, message="not a part of the interface that this simulated hub has")
        except Answer as answer:
            self._send_error(answer)

    def _send_error(self, answer: Answer) -> None:
        headers = dict(answer.headers)
        if answer.code:
            headers["X-Error-Code"] = answer.code
        if answer.message:
            headers["X-Error-Message"] = answer.message
        phrase = answer.message or http.HTTPStatus(answer.status).phrase
        self._send(json.dumps({"error": phrase}).encode(), "application/json", answer.status, headers)

    def _send(self, body: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        # What is left of a request's body would be taken for the next request.
        self.close_connection = self.close_connection or self.command == "POST"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), "application/json", status, headers)

    # --- the hub's interface ---

    def _repository(self, organisation: str, name: str) -> Repository:
        try:
            return self.server.repositories[f"{organisation}/{name}"]
        except KeyError:
            raise Answer(404, "RepoNotFound", "Repository not found") from None

    def _demand_revision(self, repository: Repository, revision: str) -> None:
        if revision not in (BRANCH, repository.revision):
            raise Answer(404, "RevisionNotFound", "Invalid rev id")

    def _api(self, repository: Repository, parts: Sequence[str], query: dict[str, list[str]]) -> None:
        if not parts or (parts[0] == "revision" and len(parts) == 2):
            self._demand_revision(repository, parts[1] if parts else BRANCH)
            self._json(
                {
                    "id": repository.name,
                    "modelId": repository.name,
                    "sha": repository.revision,
                    "private": False,
                    "gated": "manual" if repository.gated else False,
                    "disabled": False,
                    "tags": [],
                    "siblings": [{"rfilename": path} for path in repository.files],
                },
                headers={"X-Repo-Commit": repository.revision},
            )
        elif parts[0] == "tree" and len(parts) >= 2:
            self._demand_revision(repository, parts[1])
            self._tree(repository, "/".join(parts[2:]), query)
        else:
            raise Answer(404, message="not a part of the interface that this simulated hub has")

    def _tree(self, repository: Repository, folder: str, query: dict[str, list[str]]) -> None:
        recursive = query.get("recursive", ["false"])[-1].lower() in ("true", "1")
        entries = tree(repository, folder.strip("/"), recursive)
        if not entries:
            raise Answer(404, "EntryNotFound", f"{folder} does not exist on {BRANCH}")
        try:
            start = int(query.get("cursor", ["0"])[-1])
            limit = min(int(query.get("limit", [str(self.server.page_entries)])[-1]), self.server.page_entries)
        except ValueError:
            start, limit = -1, 0
        if start < 0 or limit < 1:
            raise Answer(400, message="cursor and limit must be numbers that this hub gave, or none")
        headers = {"X-Repo-Commit": repository.revision}
        if start + limit < len(entries):
            again = {"recursive": str(recursive), "limit": str(limit), "cursor": str(start + limit)}
            path = urllib.parse.urlsplit(self.path).path
            # An absolute address, as the hub gives; clients reach us by the name in Host.
            host = self.headers.get("Host") or self.server.url.removeprefix("http://")
            headers["Link"] = f'<http://{host}{path}?{urllib.parse.urlencode(again)}>; rel="next"'
        self._json(entries[start : start + limit], headers=headers)

    def _demand_access(self, repository: Repository) -> None:
        if not repository.gated:
            return
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        said = f"Access to model {repository.name} is restricted"
        if scheme != "Bearer" or not token:
            raise Answer(401, "GatedRepo", f"{said}. You must be authenticated to access it.")
        if token != repository.token:
            raise Answer(403, "GatedRepo", f"{said} and you are not in the authorized list.")

    def _resolve(self, repository: Repository, revision: str, path: str, fault: Fault | None) -> None:
        self._demand_access(repository)
        self._demand_revision(repository, revision)
        file = repository.files.get(path)
        if file is None:
            headers = {"X-Repo-Commit": repository.revision}
            raise Answer(404, "EntryNotFound", "Entry not found", headers)
        part = None
        # Only GET has ranges; one that is for another content than ours is not for this answer.
        if self.command == "GET" and self.headers.get("If-Range", f'"{file.etag}"') == f'"{file.etag}"':
            try:
                part = parse_range(self.headers.get("Range"), file.size)
            except ValueError as error:
                headers = {"Content-Range": f"bytes */{file.size}"}
                raise Answer(416, message=str(error), headers=headers) from error
        with self._open(file) as stream:
            if fault and fault.do == "stall" and fault.after == 0:
                time.sleep(fault.seconds)
            first, end = part or (0, file.size)
            self.send_response(206 if part else 200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(end - first))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{file.etag}"')
            self.send_header("X-Repo-Commit", repository.revision)
            if part:
                self.send_header("Content-Range", f"bytes {first}-{end - 1}/{file.size}")
            if file.large:
                self.send_header("X-Linked-Size", str(file.size))
                self.send_header("X-Linked-Etag", f'"{file.etag}"')
            self.end_headers()
            if self.command == "GET":
                self._body(stream, first, end, fault)

    @contextlib.contextmanager
    def _open(self, file: File) -> Iterator[BinaryIO]:
        """The file, as long as it is the one whose digests are announced."""
        try:
            stream = file.source.open("rb")
        except OSError as error:
            raise Answer(500, message=f"{file.path}: {error.strerror}; restart the simulated hub") from error
        with stream:
            if identity(os.fstat(stream.fileno())) != file.identity:
                raise Answer(500, message=f"{file.path} changed since the start; restart the simulated hub")
            yield stream

    def _body(self, stream: BinaryIO, first: int, end: int, fault: Fault | None) -> None:
        stream.seek(first)
        position = first
        while position < end:
            length = min(CHUNK_BYTES, end - position)
            if fault and position < fault.after:
                # So that a chunk starts at the byte that the fault is about.
                length = min(length, fault.after - position)
            if fault and fault.do == "cut" and position >= fault.after:
                self.close_connection = True
                return
            if fault and fault.do == "stall" and position == fault.after > 0:
                self.wfile.flush()
                time.sleep(fault.seconds)
            chunk = bytearray(stream.read(length))
            if len(chunk) < length:
                self.close_connection = True
                return
            if fault and fault.do == "flip" and position == fault.after:
                chunk[0] ^= 0xFF
            if fault and fault.do == "slow" and position >= fault.after:
                time.sleep(length / fault.rate)
            self.wfile.write(chunk)
            self.server.count(urllib.parse.urlsplit(self.path).path, length)
            position += length

    # --- what tests order ---

    def _simulation(self, parts: Sequence[str]) -> None:
        known = {"faults": ("GET", "POST", "DELETE"), "requests": ("GET", "DELETE"), "bytes": ("GET", "DELETE")}
        hub = self.server
        if len(parts) != 1 or parts[0] not in known:
            raise Answer(404, message=f"expected one of {', '.join('/_sim/' + name for name in known)}")
        if self.command not in known[parts[0]]:
            raise Answer(405, message=f"expected {', '.join(known[parts[0]])}")
        if self.command == "POST":
            try:
                value = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
                hub.add_fault(Fault(**value))
            except (ValueError, TypeError, HubError) as error:
                raise Answer(400, message=f"not a fault: {error}") from error
        elif self.command == "DELETE":
            forget = {"faults": hub.clear_faults, "requests": hub.clear_requests, "bytes": hub.clear_bytes}
            forget[parts[0]]()
        self._json({"faults": hub.faults, "requests": hub.requests, "bytes": hub.bytes_sent}[parts[0]]())


def tree(repository: Repository, folder: str = "", recursive: bool = True) -> list[dict[str, Any]]:
    """Files and folders below a folder, as the hub's interface lists them. Empty where there is no such folder."""
    prefix = f"{folder}/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for file in repository.files.values():
        if not file.path.startswith(prefix):
            continue
        steps = file.path[len(prefix) :].split("/")
        for depth in range(1, len(steps) if recursive else min(len(steps), 2)):
            path = prefix + "/".join(steps[:depth])
            # Git's own id of the folder is of no use to any client that we know.
            oid = hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()
            entries[path] = {"type": "directory", "oid": oid, "size": 0, "path": path}
        if recursive or len(steps) == 1:
            entry: dict[str, Any] = {"type": "file", "oid": file.oid, "size": file.size, "path": file.path}
            if file.large:
                entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
            entries[file.path] = entry
    return [entries[path] for path in sorted(entries)]


def manifest(repository: Repository) -> dict[str, Any]:
    """A repository as a recipe pins it: name, revision, and path, bytes and sha256 of each file."""
    files = [{"path": file.path, "bytes": file.size, "sha256": file.sha256} for file in repository.files.values()]
    return {"repository": repository.name, "revision": repository.revision, "files": files}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C. 0 when asked to stop; 1 with one line on stderr when it cannot start."""
    parser = argparse.ArgumentParser(description="A simulated model hub, for tests and the demo.")
    parser.add_argument("--root", type=Path, required=True, metavar="DIR", help="folder with ORGANISATION/NAME folders")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print what would be served, with digests, and end")
    arguments = parser.parse_args(argv)
    try:
        repositories = load(arguments.root)
        if arguments.list:
            print(json.dumps([manifest(repository) for repository in repositories.values()], indent=2))
            return 0
        hub = Hub(repositories, arguments.host, arguments.port)
    except HubError as error:
        print(f"simulated hub: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"simulated hub: cannot listen on {arguments.host}:{arguments.port}: {error.strerror}", file=sys.stderr)
        return 1
    # As the first process of a container this hears no signal that it does not ask for.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    for repository in repositories.values():
        gated = ", gated" if repository.gated else ""
        files = len(repository.files)
        print(f"simulated hub: {repository.name} at {repository.revision}, {files} files{gated}", file=sys.stderr)
    print(f"simulated hub: listening on {hub.url}, for tests only", file=sys.stderr, flush=True)
    with hub, contextlib.suppress(KeyboardInterrupt):
        hub.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
