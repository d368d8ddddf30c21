# SPDX-License-Identifier: Apache-2.0
"""What a host is and holds, asked of this machine and of recorded ones."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import host_facts as facts
from ansible_collections.enplace.inference.plugins.module_utils.environment import SEAL_NAME

ME = pwd.getpwuid(os.geteuid()).pw_name
MY_GROUP = grp.getgrgid(os.getegid()).gr_name


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def test_this_machine() -> None:
    found = facts.system()
    said = subprocess.run(["uname", "-m", "-r"], capture_output=True, text=True, check=True).stdout.split()
    assert [found["kernel"], found["arch"]] == said
    assert found["memory"]["total_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < found["memory"]["available_bytes"] <= found["memory"]["total_bytes"]
    assert found["cpus"] == len(os.sched_getaffinity(0))
    assert found["systemd"]["running"] == Path("/run/systemd/system").is_dir()


def test_a_recorded_machine(tmp_path: Path) -> None:
    release = '# x\nID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n'
    write(tmp_path, "etc/os-release", release)
    write(tmp_path, "proc/meminfo", "MemTotal:  1000 kB\nMemAvailable:    10 kB\nSwapFree: 1 kB\nHugePages_Total: 3\n")
    assert facts.os_release(str(tmp_path)) == {
        "id": "ubuntu",
        "version": "24.04",
        "codename": "noble",
        "name": "Ubuntu 24.04.3 LTS",
    }
    assert facts.memory(str(tmp_path)) == {
        "total_bytes": 1024000,
        "available_bytes": 10240,
        "swap_free_bytes": 1024,
    }
    assert facts.systemd(str(tmp_path))["running"] is False
    assert facts.os_release("/no/such/root")["id"] == ""


def test_interpreters() -> None:
    version = ".".join(str(part) for part in sys.version_info[:3])
    assert facts.python(sys.executable) == {"path": sys.executable, "version": version}
    assert facts.python("/no/such/python") == {"path": "/no/such/python", "version": ""}
    assert facts.python("/bin/false") == {"path": "/bin/false", "version": ""}


def test_paths_that_are_there_and_that_are_not(tmp_path: Path) -> None:
    absent = str(tmp_path / "a" / "b")
    found = facts.paths([str(tmp_path), absent])
    assert found[str(tmp_path)]["exists"] is True
    assert found[absent]["exists"] is False
    assert found[absent]["existing"] == str(tmp_path.resolve())
    assert found[absent]["device"] == tmp_path.stat().st_dev
    free = shutil.disk_usage(tmp_path).free
    assert abs(found[absent]["free_bytes"] - free) < free / 10 + 10**8


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian")
def test_debian_packages() -> None:
    found = facts.packages(["dpkg", "no-such-package", "base-files"])
    said = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "dpkg"], capture_output=True, text=True, check=True)
    assert found["installed"]["dpkg"] == said.stdout
    assert found["missing"] == ["no-such-package"]
    assert found["error"] == ""
    assert facts.packages([]) == {"installed": {}, "missing": [], "error": ""}


def test_users_and_groups() -> None:
    entry = pwd.getpwuid(os.geteuid())
    assert facts.users([ME, "no-such-user"]) == {
        ME: {"uid": entry.pw_uid, "gid": entry.pw_gid, "home": entry.pw_dir, "shell": entry.pw_shell},
        "no-such-user": None,
    }
    found = facts.groups([MY_GROUP, "no-such-group"])
    assert found["no-such-group"] is None
    mine = found[MY_GROUP]
    assert mine is not None
    assert mine["gid"] == os.getegid()


def test_directories_that_differ(tmp_path: Path) -> None:
    right, wrong, taken, lost = (tmp_path / name for name in ("right", "wrong", "taken", "lost"))
    right.mkdir(mode=0o755)
    wrong.mkdir(mode=0o700)
    taken.touch()
    lost.symlink_to("nowhere")
    wanted = [
        {"path": str(path), "owner": ME, "group": MY_GROUP, "mode": "755"}
        for path in (right, wrong, taken, lost, tmp_path / "absent", taken / "below")
    ]
    expected = {"owner": ME, "group": MY_GROUP, "mode": "0755"}
    assert facts.directories(wanted) == [
        {"path": str(wrong), "expected": expected, "found": {**expected, "mode": "0700"}},
        {"path": str(taken), "expected": expected, "found": {"type": "not a folder"}},
        {"path": str(lost), "expected": expected, "found": {"type": "a link that leads nowhere"}},
        {"path": str(tmp_path / "absent"), "expected": expected, "found": None},
        {"path": str(taken / "below"), "expected": expected, "found": {"type": "something below a file"}},
    ]
    assert facts.directories([{"path": str(wrong), "owner": ME}]) == []
    with pytest.raises(ValueError, match="invalid literal"):
        facts.directories([{"path": str(right), "mode": "rwx"}])


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    family, address = request.param
    with socket.socket(family, socket.SOCK_STREAM) as server:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        server.listen()
        yield address, server.getsockname()[1]


def test_who_listens(listening: tuple[str, int]) -> None:
    address, port = listening
    (entry,) = facts.listeners([port])
    assert (entry["port"], entry["address"], entry["pid"]) == (port, address, os.getpid())
    assert entry["command"].split() == " ".join(Path("/proc/self/cmdline").read_text().split("\0")).split()
    assert facts.listeners([]) == []


def test_a_connection_is_no_listener(listening: tuple[str, int]) -> None:
    with socket.create_connection(listening) as client:
        assert facts.listeners([client.getsockname()[1]]) == []


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/enplace-x.service\n", "enplace-x.service"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "session-3.scope"),
        # Version 1 and 2 together: systemd's own tree says it, version 2 says nothing.
        ("12:cpu:/\n1:name=systemd:/system.slice/enplace-x.service\n0::/\n", "enplace-x.service"),
        ("1:name=systemd:/libpod_parent/libpod-1/system.slice/a.service\n0::/b.service\n", "a.service"),
        ("0::/system.slice/x.service/payload\n", "x.service"),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_the_unit_of_a_process(tmp_path: Path, text: str, unit: str) -> None:
    write(tmp_path, "proc/7/cgroup", text)
    assert facts.unit_of(7, str(tmp_path)) == unit
    assert facts.unit_of(8, str(tmp_path)) == ""


def test_a_listener_whose_process_cannot_be_seen(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1\n"
    write(tmp_path, "proc/net/tcp", head + line + line.replace(" 0A ", " 01 ").replace("4242", "4343"))
    expected = {"port": 8000, "address": "127.0.0.1", "pid": 0, "command": "", "unit": ""}
    if sys.byteorder == "little":
        assert facts.listeners([8000], str(tmp_path)) == [expected]


def test_environments_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "aaaaaaaaaaaa").mkdir()
    (tmp_path / "something").mkdir()
    write(
        tmp_path, f"bbbbbbbbbbbb/{SEAL_NAME}", '{"digest": "bb", "python": "3.11.2", "fingerprint": {}, "records": {}}'
    )
    found = facts.environments([str(tmp_path), str(tmp_path / "cccccccccccc"), "/no/such/folder"])
    assert [(Path(entry["path"]).name, entry["state"], entry["sealed"]) for entry in found] == [
        ("aaaaaaaaaaaa", "unfinished", False),
        ("bbbbbbbbbbbb", "drifted", False),
        ("cccccccccccc", "absent", False),
    ]
    assert found[1]["digest"] == "bb"
    assert {entry["name"] for entry in found[1]["drift"]} >= {"python"}


def test_units_without_systemd_say_why() -> None:
    if Path("/run/systemd/system").is_dir():
        assert facts.units(["no-such.service"])["no-such.service"]["LoadState"] == "not-found"
    else:
        assert facts.units(["no-such.service"])["no-such.service"]["error"]
    assert facts.units([]) == {}


# --- network ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_proxy_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Proxy:
    """Answers one CONNECT in one way, and keeps what it was asked."""

    def __init__(self, answer: bytes) -> None:
        self.asked = b""
        self.answer = answer
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:word@127.0.0.1:{self.server.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        connection, _address = self.server.accept()
        with connection:
            while not self.asked.endswith(b"\r\n\r\n"):
                part = connection.recv(4096)
                if not part:
                    return
                self.asked += part
            connection.sendall(self.answer)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_server_that_takes_connections_and_one_that_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_url = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
        shut_url = f"https://127.0.0.1:{closed_port()}"
        found = facts.reachable([open_url, shut_url, "http://no-such-host.invalid", "nonsense", "http://h:x"], 2)
    assert [entry["url"] for entry in found][:2] == [open_url, shut_url]
    assert [entry["ok"] for entry in found] == [True, False, False, False, False]
    assert "refused" in found[1]["error"]
    assert all(entry["error"] for entry in found[1:])
    assert facts.reachable([]) == []


@pytest.mark.parametrize(
    ("answer", "ok"),
    [(b"HTTP/1.1 200 Connection established\r\n\r\n", True), (b"HTTP/1.1 403 Forbidden\r\n\r\n", False)],
)
def test_a_proxy_is_asked_and_its_answer_counts(monkeypatch: pytest.MonkeyPatch, answer: bytes, ok: bool) -> None:
    proxy = Proxy(answer)
    monkeypatch.setenv("https_proxy", proxy.url)
    (entry,) = facts.reachable(["https://hub.example:8443/x"], 5)
    proxy.thread.join(5)
    proxy.server.close()
    assert entry["ok"] is ok
    assert entry["via"] == proxy.url.replace("user:word@", "")
    assert proxy.asked.startswith(b"CONNECT hub.example:8443 HTTP/1.1\r\nHost: hub.example:8443\r\n")
    assert b"Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n" in proxy.asked
    assert ok or "403" in entry["error"]
    assert "word" not in str(entry)


def test_no_proxy_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert facts.reachable([url], 2)[0]["ok"] is False
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert facts.reachable([url], 2)[0]["ok"] is True
