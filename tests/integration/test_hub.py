# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated hub, asked by the real client of the Hugging Face Hub.

Real: the `hf` command, HTTP on loopback. Simulated: the hub.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.hub import hub

pytestmark = pytest.mark.integration

PROGRAM = Path(hub.__file__)
COMMITTED = PROGRAM.parent / "repositories"
HF = Path(sys.executable).with_name("hf")

SMOKE = "enplace/smoke"
LARGE = "enplace/large"
GATED = "enplace/gated"
NESTED = "enplace/nested"
TOKEN = "hf_the_right_token"
#: More than the client reads at once (10 MiB), so that a cut in the middle leaves it something to go on from.
LARGE_BYTES = 23_000_000
CUT_AT = 12_000_000


class Client:
    """The `hf` command with a cache of its own, pointed at a hub."""

    def __init__(self, endpoint: str, home: Path) -> None:
        self.home = home
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "HF_HOME": str(home),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "*",
        }

    def download(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `hf download`; the caller judges the exit status."""
        argv = [str(HF), "download", *arguments, "--quiet"]
        settings = {**self.environment, **environment}
        return subprocess.run(argv, env=settings, capture_output=True, text=True, check=False)

    def snapshot(self, name: str, revision: str) -> Path:
        return self.home / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / revision


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repositories: the committed one, one with a large file, a gated one, one with folders and odd names."""
    made = tmp_path_factory.mktemp("repositories")
    (made / "enplace").mkdir()
    (made / SMOKE).symlink_to(COMMITTED / SMOKE)
    files = {
        f"{LARGE}/model.safetensors": random.Random(1).randbytes(LARGE_BYTES),
        f"{GATED}/config.json": b'{"gated": true}',
        f"{NESTED}/README.md": b"",
        f"{NESTED}/a/b/c.json": b"{}",
        f"{NESTED}/a/one two+three%20é.txt": "four ß".encode(),
    }
    for name, content in files.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (made / f"{GATED}.json").write_text(json.dumps({"gated": True, "token": TOKEN}), encoding="utf-8")
    return made


@contextlib.contextmanager
def serving(root: Path, **options: Any) -> Iterator[hub.Hub]:
    with hub.Hub(hub.load(root), quiet=True, **options) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def module_server(root: Path) -> Iterator[hub.Hub]:
    with serving(root) as server:
        yield server


@pytest.fixture
def server(module_server: hub.Hub) -> hub.Hub:
    module_server.clear_faults()
    module_server.clear_requests()
    return module_server


@pytest.fixture
def client(server: hub.Hub, tmp_path: Path) -> Client:
    return Client(server.url, tmp_path)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def asked(server: hub.Hub, part: str, method: str = "GET") -> list[dict[str, Any]]:
    """The requests whose path has a part in it."""
    return [entry for entry in server.requests() if part in entry["path"] and entry["method"] == method]


def ask(
    server: hub.Hub, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None
) -> tuple[int, dict[str, str], bytes]:
    """One request: status, headers (names in small letters), body. The path goes out as it is."""
    connection = http.client.HTTPConnection(server.server_name, server.server_port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


# --- the client ------------------------------------------------------------------------------------------------------


def test_a_whole_repository(client: Client, server: hub.Hub, root: Path) -> None:
    done = client.download(SMOKE)
    assert done.returncode == 0, done.stderr
    revision = server.repositories[SMOKE].revision
    folder = client.snapshot(SMOKE, revision)
    assert done.stdout.strip() == str(folder)
    assert digests(folder) == digests(root / SMOKE)
    assert (folder.parents[1] / "refs" / "main").read_text(encoding="utf-8") == revision
    # What the client calls its copies is what it was told that they are.
    names = {Path(os.path.realpath(path)).name for path in folder.iterdir()}
    assert names == {file.etag for file in server.repositories[SMOKE].files.values()}


def test_a_pinned_revision(client: Client, server: hub.Hub, root: Path) -> None:
    revision = server.repositories[SMOKE].revision
    done = client.download(SMOKE, "config.json", "model.safetensors", "--revision", revision)
    assert done.returncode == 0, done.stderr
    everything = digests(root / SMOKE)
    wanted = {name: everything[name] for name in ("config.json", "model.safetensors")}
    assert digests(client.snapshot(SMOKE, revision)) == wanted
    assert not asked(server, "/revision/")
    assert all(revision in entry["path"] for entry in asked(server, "/resolve/"))


def test_folders_and_odd_names(client: Client, server: hub.Hub, root: Path) -> None:
    done = client.download(NESTED)
    assert done.returncode == 0, done.stderr
    assert digests(client.snapshot(NESTED, server.repositories[NESTED].revision)) == digests(root / NESTED)


def test_a_listing_in_pages(root: Path, tmp_path: Path) -> None:
    with serving(root, page_entries=2) as server:
        done = Client(server.url, tmp_path).download(SMOKE)
        assert done.returncode == 0, done.stderr
        assert len(asked(server, "/tree/")) == 3
        assert digests(Client(server.url, tmp_path).snapshot(SMOKE, server.repositories[SMOKE].revision)) == digests(
            root / SMOKE
        )


def test_a_cut_body_is_resumed(client: Client, server: hub.Hub, root: Path) -> None:
    server.add_fault(hub.Fault("*/model.safetensors", "cut", after=CUT_AT))
    done = client.download(LARGE)
    assert done.returncode == 0, done.stderr
    assert digests(client.snapshot(LARGE, server.repositories[LARGE].revision)) == digests(root / LARGE)
    first, second = asked(server, "model.safetensors")
    assert (first["status"], first["range"]) == (200, None)
    assert second["status"] == 206
    start = int(second["range"].removeprefix("bytes=").removesuffix("-"))
    assert 0 < start <= CUT_AT


def test_a_stalled_body_is_resumed(client: Client, server: hub.Hub, root: Path) -> None:
    server.add_fault(hub.Fault("*/model.safetensors", "stall", after=CUT_AT, seconds=20))
    done = client.download(LARGE, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert done.returncode == 0, done.stderr
    assert digests(client.snapshot(LARGE, server.repositories[LARGE].revision)) == digests(root / LARGE)
    statuses = [entry["status"] for entry in asked(server, "model.safetensors")]
    assert statuses[0] == 200
    assert set(statuses[1:]) == {206}


def test_a_passing_error_of_the_server_is_tried_again(client: Client, server: hub.Hub, root: Path) -> None:
    server.add_fault(hub.Fault("*/tree/*", "status", status=500))
    done = client.download(SMOKE)
    assert done.returncode == 0, done.stderr
    assert [entry["status"] for entry in asked(server, "/tree/")] == [500, 200]
    assert digests(client.snapshot(SMOKE, server.repositories[SMOKE].revision)) == digests(root / SMOKE)


def test_a_refused_file_fails_the_download(client: Client, server: hub.Hub) -> None:
    server.add_fault(hub.Fault("*/config.json", "status", status=403, times=100))
    done = client.download(SMOKE)
    assert done.returncode != 0
    assert "403" in done.stderr
    assert not (client.snapshot(SMOKE, server.repositories[SMOKE].revision) / "config.json").exists()


def test_wrong_bytes_pass_the_client_and_show_in_the_digest(client: Client, server: hub.Hub, root: Path) -> None:
    server.add_fault(hub.Fault("*/model.safetensors", "flip", after=500_000))
    done = client.download(SMOKE)
    # The client compares sizes alone: that is why the product compares digests.
    assert done.returncode == 0, done.stderr
    found, expected = digests(client.snapshot(SMOKE, server.repositories[SMOKE].revision)), digests(root / SMOKE)
    assert {name for name in expected if found[name] != expected[name]} == {"model.safetensors"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([SMOKE, "--revision", "v2"], "Revision not found"),
        ([SMOKE, "--revision", "0" * 40], "Revision not found"),
        (["enplace/nothing"], "Model 'enplace/nothing' not found"),
        (["enplace/nothing", "--revision", "0" * 40], "Model 'enplace/nothing' not found"),
        ([SMOKE, "nothing.json"], "File not found"),
    ],
)
def test_what_is_not_there_is_said_in_the_clients_words(client: Client, arguments: list[str], said: str) -> None:
    done = client.download(*arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert not list(client.home.rglob("snapshots/*/*"))


@pytest.mark.parametrize(("token", "status"), [("", 401), ("hf_another_token", 403)])
def test_a_gated_repository_is_refused(client: Client, server: hub.Hub, token: str, status: int) -> None:
    done = client.download(GATED, HF_TOKEN=token)
    assert done.returncode != 0
    assert "gated" in done.stderr.lower()
    assert {entry["status"] for entry in asked(server, "/resolve/", "HEAD")} == {status}
    assert not list(client.home.rglob("snapshots/*/*"))


def test_a_gated_repository_opens_with_its_token(client: Client, server: hub.Hub, root: Path) -> None:
    token = client.home / "token"
    token.write_text(TOKEN, encoding="utf-8")
    done = client.download(GATED, HF_TOKEN_PATH=str(token))
    assert done.returncode == 0, done.stderr
    assert digests(client.snapshot(GATED, server.repositories[GATED].revision)) == digests(root / GATED)


def test_the_cache_is_used_again_offline(client: Client, server: hub.Hub, root: Path) -> None:
    revision = server.repositories[SMOKE].revision
    before = client.download(SMOKE, "--revision", revision, HF_HUB_OFFLINE="1")
    assert before.returncode != 0
    assert client.download(SMOKE, "--revision", revision).returncode == 0
    server.clear_requests()
    done = client.download(SMOKE, "--revision", revision, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert server.requests() == []
    assert digests(Path(done.stdout.strip())) == digests(root / SMOKE)


def test_a_second_download_fetches_nothing(client: Client, server: hub.Hub) -> None:
    revision = server.repositories[SMOKE].revision
    assert client.download(SMOKE, "--revision", revision).returncode == 0
    server.clear_requests()
    assert client.download(SMOKE, "--revision", revision).returncode == 0
    assert asked(server, "/resolve/") == []


# --- the interface ---------------------------------------------------------------------------------------------------


def test_the_headers_of_a_large_and_of_a_small_file(server: hub.Hub) -> None:
    repository = server.repositories[SMOKE]
    for name, large in (("model.safetensors", True), ("config.json", False)):
        file = repository.files[name]
        status, headers, body = ask(server, "HEAD", f"/{SMOKE}/resolve/main/{name}")
        assert (status, body) == (200, b"")
        assert headers["etag"] == f'"{file.sha256 if large else file.oid}"'
        assert headers["content-length"] == str(file.size)
        assert headers["x-repo-commit"] == repository.revision
        assert headers["accept-ranges"] == "bytes"
        assert headers.get("x-linked-size") == (str(file.size) if large else None)
        assert headers.get("x-linked-etag") == (headers["etag"] if large else None)
        assert "simulated" in headers["server"]
        assert not [header for header in headers if "xet" in header]


@pytest.mark.parametrize(
    ("headers", "status", "part"),
    [
        ({"Range": "bytes=10-19"}, 206, slice(10, 20)),
        ({"Range": "bytes=-7"}, 206, slice(-7, None)),
        ({"Range": "bytes=10-", "If-Range": "ETAG"}, 206, slice(10, None)),
        ({"Range": "bytes=10-", "If-Range": '"another"'}, 200, slice(None)),
        ({"Range": "bytes=0-1,4-5"}, 200, slice(None)),
        ({}, 200, slice(None)),
    ],
)
def test_parts_of_a_file(server: hub.Hub, headers: dict[str, str], status: int, part: slice) -> None:
    file = server.repositories[SMOKE].files["config.json"]
    content = file.source.read_bytes()
    sent = {name: f'"{file.etag}"' if value == "ETAG" else value for name, value in headers.items()}
    found, received, body = ask(server, "GET", f"/{SMOKE}/resolve/main/config.json", sent)
    assert (found, body) == (status, content[part])
    first, end, _ = part.indices(file.size)
    assert received.get("content-range") == (f"bytes {first}-{end - 1}/{file.size}" if status == 206 else None)


def test_a_part_beyond_the_end(server: hub.Hub) -> None:
    size = server.repositories[SMOKE].files["config.json"].size
    path = f"/{SMOKE}/resolve/main/config.json"
    status, headers, _ = ask(server, "GET", path, {"Range": f"bytes={size}-"})
    assert (status, headers["content-range"]) == (416, f"bytes */{size}")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/enplace/nothing/resolve/main/config.json", "RepoNotFound"),
        ("/api/models/enplace/nothing", "RepoNotFound"),
        (f"/{SMOKE}/resolve/v2/config.json", "RevisionNotFound"),
        (f"/api/models/{SMOKE}/revision/v2", "RevisionNotFound"),
        (f"/api/models/{SMOKE}/tree/main/nothing", "EntryNotFound"),
        (f"/{SMOKE}/resolve/main/../smoke.json", "EntryNotFound"),
        (f"/{SMOKE}/resolve/main/%2e%2e/smoke.json", "EntryNotFound"),
        (f"/{SMOKE}/resolve/main/..%2fsmoke.json", "EntryNotFound"),
        (f"/{SMOKE}/resolve/main//etc/passwd", "EntryNotFound"),
        (f"/{SMOKE}/resolve/main/%00", "EntryNotFound"),
        ("/../../resolve/main/hub.py", "RepoNotFound"),
        ("/enplace/..%2f..%2fhub/resolve/main/hub.py", "RepoNotFound"),
        ("/enplace/smoke.json", None),
        ("/somewhere", None),
    ],
)
def test_nothing_else_is_served(server: hub.Hub, path: str, code: str | None) -> None:
    for method in ("GET", "HEAD"):
        status, headers, _ = ask(server, method, path)
        assert (status, headers.get("x-error-code")) == (404, code)


def test_what_is_no_http_is_refused(server: hub.Hub) -> None:
    with socket.create_connection((server.server_name, server.server_port), timeout=30) as connection:
        connection.sendall(b"GET / / HTTP/9\r\n\r\n")
        assert b"400" in connection.recv(4096)
    assert ask(server, "PUT", f"/{SMOKE}/resolve/main/config.json")[0] == 501
    assert ask(server, "GET", "/")[0] == 200


def test_a_repository_is_described(server: hub.Hub) -> None:
    repository = server.repositories[GATED]
    status, _, body = ask(server, "GET", f"/api/models/{GATED}/revision/{repository.revision}")
    found = json.loads(body)
    assert (status, found["id"], found["sha"], found["gated"]) == (200, GATED, repository.revision, "manual")
    assert found["siblings"] == [{"rfilename": "config.json"}]


def test_content_that_changes_after_the_start_is_not_served(tmp_path: Path) -> None:
    file = tmp_path / "org" / "model" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text("1", encoding="utf-8")
    with serving(tmp_path) as server:
        assert ask(server, "GET", "/org/model/resolve/main/config.json")[::2] == (200, b"1")
        file.write_text("22", encoding="utf-8")
        status, headers, body = ask(server, "GET", "/org/model/resolve/main/config.json")
        assert status == 500
        assert "config.json changed since the start" in headers["x-error-message"]
        assert b"22" not in body


def test_faults_and_requests_over_http(server: hub.Hub) -> None:
    path = f"/{SMOKE}/resolve/main/config.json"
    status, _, body = ask(server, "POST", "/_sim/faults", body={"path": path, "do": "flip", "after": 2})
    assert (status, [fault["do"] for fault in json.loads(body)]) == (200, ["flip"])
    content = server.repositories[SMOKE].files["config.json"].source.read_bytes()
    wrong = ask(server, "GET", path, {"Range": "bytes=1-4"})[2]
    assert wrong == bytes([content[1], content[2] ^ 0xFF, *content[3:5]])
    assert ask(server, "GET", path)[2] == content
    assert [entry["range"] for entry in json.loads(ask(server, "GET", "/_sim/requests")[2])] == ["bytes=1-4", None]
    ask(server, "POST", "/_sim/faults", body={"path": path, "do": "cut", "after": 5})
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(server, "GET", path)
    assert cut.value.partial == content[:5]
    ask(server, "POST", "/_sim/faults", body={"path": path, "do": "status", "status": 503})
    assert json.loads(ask(server, "DELETE", "/_sim/faults")[2]) == []
    assert ask(server, "GET", path)[0] == 200
    for bad in (
        {"path": path},
        {"path": path, "do": "cut", "when": 1},
        {"path": path, "do": "explode"},
        {"path": path, "do": "slow", "rate": 0},
        [1],
    ):
        assert ask(server, "POST", "/_sim/faults", body=bad)[0] == 400
    assert ask(server, "POST", path)[0] == 405


def test_sent_bytes_are_counted_and_slow_is_slow(server: hub.Hub) -> None:
    server.clear_bytes()
    path = f"/{SMOKE}/resolve/main/config.json"
    size = server.repositories[SMOKE].files["config.json"].size
    ask(server, "GET", path, {"Range": "bytes=10-19"})
    assert json.loads(ask(server, "GET", "/_sim/bytes")[2]) == {path: 10}
    server.add_fault(hub.Fault(path, "slow", rate=size))
    begin = time.monotonic()
    ask(server, "GET", path)
    assert time.monotonic() - begin > 0.9
    # Counted when the last byte was handed over, which the one who asked may have seen before.
    while server.bytes_sent() != {path: size + 10} and time.monotonic() < begin + 10:
        time.sleep(0.02)
    assert server.bytes_sent() == {path: size + 10}
    assert json.loads(ask(server, "DELETE", "/_sim/bytes")[2]) == {}


# --- the program -----------------------------------------------------------------------------------------------------


def start(*arguments: str) -> subprocess.Popen[str]:
    # Not the Python of this test, and nothing of this checkout: a test host has the standard library alone.
    argv = [sys.executable, "-I", "-S", str(PROGRAM), *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_program_serves_and_ends_when_told(root: Path) -> None:
    with start("--root", str(root), "--port", "0") as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "listening on" in line:
                break
        address = lines[-1].split("http://")[1].split(",")[0]
        host, _, port = address.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            assert b"simulated" in connection.getresponse().read()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert all("simulated hub" in line for line in lines)
    assert any(SMOKE in line and hub.load(root)[SMOKE].revision in line for line in lines)


def test_the_program_lists_what_recipes_pin(root: Path) -> None:
    with start("--root", str(root), "--list") as process:
        output, _ = process.communicate()
    listed = {entry["repository"]: entry for entry in json.loads(output)}
    assert process.returncode == 0
    assert set(listed) == {SMOKE, LARGE, GATED, NESTED}
    assert {file["path"]: file["sha256"] for file in listed[SMOKE]["files"]} == digests(root / SMOKE)


def test_the_program_does_not_start_on_bad_input(tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        with start(*arguments) as process:
            output, errors = process.communicate()
        assert (process.returncode, output, errors.count("\n")) == (1, "", 1)
        return errors

    assert "expected a folder with repositories, found No such file" in error("--root", str(tmp_path / "nothing"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in error("--root", str(tmp_path), "--port", port)
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "x").write_text("1", encoding="utf-8")
    recorded = "0" * 40
    (tmp_path / "org" / "model.json").write_text(json.dumps({"revision": recorded}), encoding="utf-8")
    said = error("--root", str(tmp_path))
    assert recorded in said
    assert str(tmp_path / "org" / "model") in said
