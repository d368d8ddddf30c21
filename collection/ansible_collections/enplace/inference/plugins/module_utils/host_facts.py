# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host is and holds: read only, recorded as data, judged elsewhere.

Standard library only, Python 3.9 or newer. Every function takes the roots it reads from, so that tests can give it
recorded ones.
"""

from __future__ import annotations

import base64
import grp
import os
import pwd
import socket
import stat
import struct
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.command import run
from ansible_collections.enplace.inference.plugins.module_utils.environment import inspect, interpreter_version
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, space

#: State of a listening socket in /proc/net/tcp.
_LISTEN = "0A"

UNIT_PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "UnitFileState",
    "MainPID",
    "NRestarts",
    "ExecMainCode",
    "ExecMainStatus",
    "FragmentPath",
    "DropInPaths",
    "NeedDaemonReload",
)


def system(root: str = "/") -> dict[str, Any]:
    """Architecture, kernel, host name, OS, CPUs, memory in bytes, and whether systemd runs the host."""
    names = os.uname()
    return {
        "arch": names.machine,
        "kernel": names.release,
        "hostname": names.nodename,
        "os": os_release(root),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": memory(root),
        "systemd": systemd(root),
    }


def systemd(root: str = "/") -> dict[str, Any]:
    """``running``: whether systemd is the first process; ``state`` as systemctl says (running, degraded, ...)."""
    if not os.path.isdir(os.path.join(root, "run/systemd/system")):
        return {"running": False, "state": "not the first process"}
    try:
        # Its return code is that of the state: anything but "running" is not 0.
        said = run(["systemctl", "is-system-running"], timeout_s=30)
    except Failure as failure:
        return {"running": False, "state": f"{failure.what}: {failure.where}"}
    return {"running": True, "state": said.stdout.strip() or said.tail(1)}


def os_release(root: str = "/") -> dict[str, str]:
    """``id``, ``version``, ``codename`` and ``name`` from os-release; empty texts where it says nothing."""
    fields: dict[str, str] = {}
    for path in ("etc/os-release", "usr/lib/os-release"):
        try:
            with open(os.path.join(root, path), encoding="utf-8") as stream:
                for line in stream:
                    key, equals, value = line.strip().partition("=")
                    if equals and not key.startswith("#"):
                        fields.setdefault(key, value.strip("\"'"))
            break
        except FileNotFoundError:
            continue
    return {
        "id": fields.get("ID", ""),
        "version": fields.get("VERSION_ID", ""),
        "codename": fields.get("VERSION_CODENAME", ""),
        "name": fields.get("PRETTY_NAME", ""),
    }


def memory(root: str = "/") -> dict[str, int]:
    """``total_bytes``, ``available_bytes`` and ``swap_free_bytes``."""
    fields: dict[str, int] = {}
    with open(os.path.join(root, "proc/meminfo"), encoding="ascii") as stream:
        for line in stream:
            key, _colon, value = line.partition(":")
            number = value.split()
            if number:
                fields[key] = int(number[0]) * (1024 if number[1:] == ["kB"] else 1)
    return {
        "total_bytes": fields.get("MemTotal", 0),
        "available_bytes": fields.get("MemAvailable", 0),
        "swap_free_bytes": fields.get("SwapFree", 0),
    }


def python(path: str) -> dict[str, str]:
    """Path and version of an interpreter; the version is empty if it does not start."""
    return {"path": path, "version": interpreter_version(path)}


def paths(wanted: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By path: whether it exists, and the room there or at its nearest parent that exists (``existing``).

    Further keys: mount, device (equal numbers mean the same room), free_bytes, total_bytes.
    """
    result = {}
    for path in wanted:
        room = space(path)
        result[path] = {
            "exists": os.path.lexists(path),
            "existing": room.existing,
            "mount": room.mount,
            "device": room.device,
            "free_bytes": room.free,
            "total_bytes": room.total,
        }
    return result


def packages(names: Sequence[str]) -> dict[str, Any]:
    """Installed Debian packages: ``{installed: {name: version}, missing: [name], error: text}``.

    On a host without dpkg every name is missing and ``error`` says why.
    """
    result: dict[str, Any] = {"installed": {}, "missing": [], "error": ""}
    if not names:
        return result
    try:
        said = run(["dpkg-query", "--show", "--showformat=${db:Status-Status}\t${Package}\t${Version}\n", *names])
    except Failure as failure:
        result["missing"] = sorted(set(names))
        result["error"] = failure.what + ": " + failure.where
        return result
    for line in said.stdout.splitlines():
        status, _tab, rest = line.partition("\t")
        name, _tab, version = rest.partition("\t")
        if status == "installed":
            result["installed"][name] = version
    result["missing"] = sorted(name for name in set(names) if name.partition(":")[0] not in result["installed"])
    return result


def users(names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """Users by name: uid, gid, home and shell, or None."""
    result: dict[str, dict[str, Any] | None] = {}
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            result[name] = None
        else:
            result[name] = {"uid": entry.pw_uid, "gid": entry.pw_gid, "home": entry.pw_dir, "shell": entry.pw_shell}
    return result


def groups(names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """Groups by name: gid and members, or None."""
    result: dict[str, dict[str, Any] | None] = {}
    for name in names:
        try:
            entry = grp.getgrnam(name)
        except KeyError:
            result[name] = None
        else:
            result[name] = {"gid": entry.gr_gid, "members": sorted(entry.gr_mem)}
    return result


def directories(wanted: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """The folders that are not as wanted: ``path``, ``expected`` and ``found``.

    ``expected`` holds what was asked for of owner, group and mode (four octal digits), ``found`` the same keys with
    what is there; None if there is nothing, ``{"type": ...}`` if something else than a folder lies there.
    """
    result = []
    for entry in wanted:
        expected = {key: entry[key] for key in ("owner", "group", "mode") if entry.get(key)}
        if "mode" in expected:
            expected["mode"] = "{:04o}".format(int(expected["mode"], 8))
        found = _folder(entry["path"], expected)
        if found != expected:
            result.append({"path": entry["path"], "expected": expected, "found": found})
    return result


def _folder(path: str, keys: Mapping[str, str]) -> dict[str, str] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return {"type": "a link that leads nowhere"} if os.path.islink(path) else None
    except NotADirectoryError:
        return {"type": "something below a file"}
    if not stat.S_ISDIR(status.st_mode):
        return {"type": "not a folder"}
    found = {
        "owner": _name(pwd.getpwuid, status.st_uid),
        "group": _name(grp.getgrgid, status.st_gid),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
    }
    return {key: found[key] for key in keys}


def files(wanted: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """The files that are not as wanted, root's and with this content and mode: `path`, `content`, `mode` and `found`.

    `found` is for people: what differs.
    """
    return [
        {**{key: entry[key] for key in ("path", "content", "mode")}, "found": found}
        for entry in wanted
        for found in [_file(entry["path"], entry["content"], int(entry["mode"], 8))]
        if found
    ]


def _file(path: str, content: str, mode: int) -> str:
    """What of a file is not as wanted; empty: nothing."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            return "no plain file"
        with open(path, "rb") as stream:
            same = stream.read(len(content.encode("utf-8")) + 1) == content.encode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    except OSError as error:
        return error.strerror or str(error)
    found = [] if same else ["other content"]
    if status.st_uid != os.geteuid():
        found.append(f"owner {_name(pwd.getpwuid, status.st_uid)}")
    if stat.S_IMODE(status.st_mode) != mode:
        found.append(f"mode {stat.S_IMODE(status.st_mode):04o}")
    return ", ".join(found)


def _name(look_up: Any, number: int) -> str:
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)


# --- ports -----------------------------------------------------------------------------------------------------------


def listeners(ports: Sequence[int], root: str = "/") -> list[dict[str, Any]]:
    """Who listens on the given TCP ports: one entry for each address and process.

    Keys: port, address, pid (0 if unknown), command (one line), unit (the systemd unit, empty if none). The owner of a
    socket of another user is only seen by root.
    """
    sockets: dict[str, tuple[int, str]] = {}
    for name in ("tcp", "tcp6"):
        try:
            with open(os.path.join(root, "proc/net", name), encoding="ascii") as stream:
                lines = stream.read().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) < 10 or fields[3] != _LISTEN:
                continue
            address, _colon, port = fields[1].partition(":")
            if int(port, 16) in ports:
                sockets[fields[9]] = (int(port, 16), _address(address))
    if not sockets:
        return []
    holders = _holders(set(sockets), root)
    result = []
    for inode, (number, address) in sockets.items():
        for pid in holders.get(inode) or [0]:
            entry: dict[str, Any] = {"port": number, "address": address, "pid": pid, "command": "", "unit": ""}
            if pid:
                entry["command"] = _command(pid, root)
                entry["unit"] = unit_of(pid, root)
            result.append(entry)
    return sorted(result, key=lambda entry: (entry["port"], entry["address"], entry["pid"]))


def _address(raw: str) -> str:
    # The kernel prints each 32-bit word in the order of the machine.
    words = [struct.pack("=I", int(raw[start : start + 8], 16)) for start in range(0, len(raw), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def _holders(inodes: set[str], root: str) -> dict[str, list[int]]:
    result: dict[str, list[int]] = {}
    proc = os.path.join(root, "proc")
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        folder = os.path.join(proc, name, "fd")
        try:
            handles = os.listdir(folder)
        except OSError:
            continue
        seen = set()
        for handle in handles:
            try:
                target = os.readlink(os.path.join(folder, handle))
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                seen.add(target[8:-1])
        for inode in seen:
            result.setdefault(inode, []).append(int(name))
    return {inode: sorted(pids) for inode, pids in result.items()}


def _command(pid: int, root: str) -> str:
    try:
        with open(os.path.join(root, "proc", str(pid), "cmdline"), "rb") as stream:
            return stream.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def unit_of(pid: int, root: str = "/") -> str:
    """The systemd unit a process belongs to, from its control group; empty if none.

    Where both cgroup versions are mounted, systemd keeps its own tree in version 1 (``name=systemd``), and the line of
    version 2 may say nothing: the former is asked first.
    """
    lines: dict[str, str] = {}
    try:
        with open(os.path.join(root, "proc", str(pid), "cgroup"), encoding="utf-8", errors="replace") as stream:
            for line in stream:
                _number, _colon, rest = line.rstrip("\n").partition(":")
                controllers, _colon, path = rest.partition(":")
                lines[controllers] = path
    except OSError:
        return ""
    for controllers in ("name=systemd", ""):
        parts = lines.get(controllers, "").split("/")
        found = [part for part in parts if part.endswith((".service", ".scope", ".socket", ".mount"))]
        if found:
            return found[-1]
    return ""


# --- environments, units, network ------------------------------------------------------------------------------------


def environments(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The environments at the given paths; of a folder that is none itself, those in it that are named by a digest.

    Keys: path, sealed (complete and as it was sealed), state (absent, unfinished, sealed or drifted), digest, python,
    drift.
    """
    result = []
    for path in (found for wanted in paths for found in _below(wanted)):
        state = inspect(path)
        result.append(
            {
                "path": path,
                "sealed": state.state == "sealed",
                "state": state.state,
                "digest": state.seal.get("digest", ""),
                "python": state.seal.get("python", ""),
                "drift": [drift.as_dict() for drift in state.drift],
            }
        )
    return result


def _below(path: str) -> list[str]:
    if _is_digest_name(os.path.basename(path.rstrip("/"))):
        return [path]
    try:
        names = sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [os.path.join(path, name) for name in names if _is_digest_name(name)]


def _is_digest_name(name: str) -> bool:
    return len(name) == 12 and not set(name) - set("0123456789abcdef")


def units(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """What systemd says of the given units: the properties `UNIT_PROPERTIES` as texts, or ``{"error": why}``."""
    if not names:
        return {}
    try:
        said = run(["systemctl", "show", "--property=" + ",".join(UNIT_PROPERTIES), "--", *names], timeout_s=30)
    except Failure as failure:
        return {name: {"error": f"{failure.what}: {failure.where}"} for name in names}
    blocks = [block for block in said.stdout.split("\n\n") if block.strip()]
    if not said.ok or len(blocks) != len(names):
        return {name: {"error": said.tail(3) or said.said()} for name in names}
    result = {}
    for name, block in zip(names, blocks):
        fields = {}
        for line in block.strip().splitlines():
            key, _equals, value = line.partition("=")
            fields[key] = value
        result[name] = fields
    return result


def reachable(urls: Sequence[str], timeout_s: float = 3.0) -> list[dict[str, Any]]:
    """Whether the servers of the given URLs take a TCP connection, directly or through the proxy that the environment
    names: ``{url, ok, via, error}`` each, all asked at the same time."""
    if not urls:
        return []
    with ThreadPoolExecutor(max_workers=min(8, len(urls))) as pool:
        return list(pool.map(lambda url: _reach(url, timeout_s), urls))


def _reach(url: str, timeout_s: float) -> dict[str, Any]:
    parts = urllib.parse.urlsplit(url)
    result = {"url": url, "ok": False, "via": "", "error": ""}
    try:
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError as error:
        result["error"] = str(error)
        return result
    if not host or not port:
        result["error"] = "expected http://host or https://host"
        return result
    proxy = urllib.request.getproxies_environment().get(parts.scheme, "")
    if proxy and urllib.request.proxy_bypass(f"{host}:{port}"):
        proxy = ""
    try:
        if proxy:
            result["via"] = _without_credentials(proxy)
            _connect_through(proxy, parts.scheme, host, port, timeout_s)
        else:
            socket.create_connection((host, port), timeout=timeout_s).close()
        result["ok"] = True
    except (OSError, ValueError) as error:
        result["error"] = str(error) or type(error).__name__
    return result


def _without_credentials(url: str) -> str:
    parts = urllib.parse.urlsplit(url if "://" in url else "http://" + url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))


def _connect_through(proxy: str, scheme: str, host: str, port: int, timeout_s: float) -> None:
    parts = urllib.parse.urlsplit(proxy if "://" in proxy else "http://" + proxy)
    place = (parts.hostname or "", parts.port or 3128)
    with socket.create_connection(place, timeout=timeout_s) as connection:
        if scheme == "http" or parts.scheme != "http":
            # A plain request goes to the proxy itself; TLS to the proxy, or SOCKS, is not spoken here.
            return
        connection.settimeout(timeout_s)
        name = f"[{host}]" if ":" in host else host
        request = f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n"
        if parts.username:
            request += f"Proxy-Authorization: Basic {_basic(parts)}\r\n"
        connection.sendall((request + "\r\n").encode("ascii"))
        answer = connection.recv(4096).decode("latin-1").split("\r\n", 1)[0]
    if answer.split(" ")[1:2] != ["200"]:
        raise OSError("the proxy answered: {}".format(answer or "nothing"))


def _basic(parts: urllib.parse.SplitResult) -> str:
    text = "{}:{}".format(urllib.parse.unquote(parts.username or ""), urllib.parse.unquote(parts.password or ""))
    return base64.b64encode(text.encode("utf-8")).decode("ascii")
