# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Weights fetched by the product: its logic and the real client, against the simulated hub and its faults."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import job, weights
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, read_json

from tests.sim.hub import hub

pytestmark = pytest.mark.integration

MODEL = "enplace/large"
GATED = "enplace/gated"
TOKEN = "hf_the_right_token"
#: More than the client writes at once (10 MiB), so that a cut in the middle leaves it something.
BYTES = 23_000_000
MIDDLE = 12_000_000
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("repositories")
    content = random.Random(2)
    files = {
        f"{MODEL}/{FILE}": content.randbytes(BYTES),
        f"{MODEL}/config.json": b"{}",
        f"{GATED}/config.json": b'{"gated": true}',
    }
    for name, data in files.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (made / f"{GATED}.json").write_text(json.dumps({"gated": True, "token": TOKEN}), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def repositories(root: Path) -> dict[str, hub.Repository]:
    return hub.load(root)


@pytest.fixture
def server(repositories: dict[str, hub.Repository]) -> Iterator[hub.Hub]:
    """A hub for one test: what another test made it wait for may wake up late, and be counted."""
    with hub.Hub(repositories, quiet=True) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


class Host:
    """A cache, and the client in front of it; `starts` is how often that was started, and with what of Xet."""

    def __init__(self, server: hub.Hub, folder: Path) -> None:
        self.server = server
        self.cache = folder / "cache"
        self.log = folder / "starts"
        client = folder / "hf"
        real = Path(sys.executable).with_name("hf")
        client.write_text(f'#!/bin/sh\necho "xet=${{HF_HUB_DISABLE_XET:-on}}" >> {self.log}\nexec {real} "$@"\n')
        client.chmod(0o755)
        self.request = weights.Request(cache=str(self.cache), hf=str(client), endpoint=server.url, stall_s=20.0)

    def model(self, name: str = MODEL, **changed: Any) -> weights.Model:
        repository = self.server.repositories[name]
        listed = hub.manifest(repository)
        (model,) = weights.parse_models(
            [{"repo": name, "revision": repository.revision, "files": listed["files"], **changed}]
        )
        return model

    def ensure(self, model: weights.Model | None = None, **options: Any) -> dict[str, Any]:
        request = weights.Request(**{**vars(self.request), **options})
        return weights.ensure(request, [model or self.model()])

    def starts(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def leftovers(self) -> list[str]:
        return [path.name for path in self.cache.rglob("*") if path.name.endswith(".incomplete")]

    def blobs(self) -> Path:
        return Path(weights.repository_path(str(self.cache), MODEL)) / "blobs"


@pytest.fixture
def host(server: hub.Hub, tmp_path: Path) -> Host:
    return Host(server, tmp_path)


def path_of(server: hub.Hub, name: str = FILE, repository: str = MODEL) -> str:
    return f"/{repository}/resolve/{server.repositories[repository].revision}/{name}"


# --- what comes ------------------------------------------------------------------------------------------------------


def test_each_byte_comes_once_and_a_second_run_asks_nothing(host: Host, server: hub.Hub) -> None:
    result = host.ensure()
    assert result["changed"]
    assert result["downloaded_bytes"] == BYTES + 2
    assert server.bytes_sent() == {path_of(server): BYTES, path_of(server, "config.json"): 2}
    server.clear_requests()
    assert not host.ensure()["changed"]
    assert server.requests() == []
    assert host.starts() == ["xet=on"]


def test_one_question_comes_before_the_client(host: Host, server: hub.Hub) -> None:
    host.ensure()
    first, second, *_ = server.requests()
    assert first["path"] == f"/api/models/{MODEL}/revision/{server.repositories[MODEL].revision}"
    assert second["path"] != first["path"]


def test_a_cut_connection_is_taken_up_where_it_was(host: Host, server: hub.Hub) -> None:
    server.add_fault(hub.Fault(f"*/{FILE}", "cut", after=MIDDLE))
    host.ensure()
    assert host.starts() == ["xet=on"]
    # What the client had read but not written yet comes twice: less than the piece that it writes at once.
    assert BYTES <= server.bytes_sent()[path_of(server)] <= BYTES + 10 * 1024 * 1024


def test_a_flipped_byte_is_refused_and_a_second_run_converges(host: Host, server: hub.Hub) -> None:
    server.add_fault(hub.Fault(f"*/{FILE}", "flip", after=MIDDLE))
    with pytest.raises(Failure, match="not the one in the recipe's manifest"):
        host.ensure()
    assert host.ensure()["downloaded_bytes"] == BYTES
    assert not host.ensure()["changed"]


def test_a_truncated_file_is_named_once_and_a_second_run_converges(host: Host) -> None:
    host.ensure()
    os.truncate(next(path for path in host.blobs().iterdir() if path.stat().st_size == BYTES), MIDDLE)
    with pytest.raises(Failure, match="changed after it had been verified") as caught:
        host.ensure()
    assert f"{MIDDLE} bytes" in caught.value.found
    assert host.ensure()["downloaded_bytes"] == BYTES
    assert not host.ensure()["changed"]


# --- the watchdog ----------------------------------------------------------------------------------------------------


def test_a_silent_hub_makes_the_client_start_again_and_its_part_is_lost(host: Host, server: hub.Hub) -> None:
    server.add_fault(hub.Fault(f"*/{FILE}", "stall", after=MIDDLE, seconds=60))
    result = host.ensure(stall_s=4.0)
    assert result["downloaded_bytes"] == BYTES + 2
    assert host.starts() == ["xet=on", "xet=on"]
    assert host.leftovers() == []
    # What hf 2.4 keeps of an unfinished file is nothing: the second process asks for all of it, without a range.
    gets = [entry for entry in server.requests() if entry["path"].endswith(FILE) and entry["method"] == "GET"]
    assert [entry["range"] for entry in gets] == [None, None]
    assert server.bytes_sent()[path_of(server)] >= BYTES + MIDDLE
    # The file that was whole is not asked for again.
    assert server.bytes_sent()[path_of(server, "config.json")] == 2


def test_a_hub_that_stays_silent_is_given_up_and_xet_is_tried_without(host: Host, server: hub.Hub) -> None:
    server.add_fault(hub.Fault(f"*/{FILE}", "stall", after=MIDDLE, seconds=30, times=100))
    with pytest.raises(Failure, match="the download stands still") as caught:
        host.ensure(stall_s=3.0)
    assert host.starts() == ["xet=on", "xet=on", "xet=1", "xet=1"]
    assert "of 23.0 MB came in 4 tries, the last 2 without Xet" in caught.value.found
    assert float(caught.value.found.split()[0]) > 10
    assert host.leftovers() == []
    server.clear_faults()
    assert host.ensure()["downloaded_bytes"] == BYTES


def test_a_slow_line_is_not_a_dead_one(host: Host, server: hub.Hub) -> None:
    # The client writes 10 MiB at once, every five seconds here: the file stands still for longer than the watch waits.
    server.add_fault(hub.Fault(f"*/{FILE}", "slow", rate=2_000_000))
    host.ensure(stall_s=3.0)
    assert host.starts() == ["xet=on"]
    assert server.bytes_sent()[path_of(server)] == BYTES


def test_what_killed_clients_left_goes_and_what_others_fetch_stays(host: Host) -> None:
    blobs = host.blobs()
    blobs.mkdir(parents=True)
    dead, alive = "a" * 64, "b" * 64
    for etag in (dead, alive):
        (blobs / f"{etag}.0123abcd.incomplete").write_bytes(b"x" * 1000)
    locks = host.cache / ".locks" / blobs.parent.name
    locks.mkdir(parents=True)
    with (locks / f"{alive}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        host.ensure()
    assert host.leftovers() == [f"{alive}.0123abcd.incomplete"]


# --- what is asked before --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "what", "todo"),
    [
        ("", "gated, and no token was sent", "accept the model's terms at"),
        ("hf_another", "has not been given access: its terms are not accepted", "with the account that the token"),
    ],
)
def test_a_gate_is_told_before_the_client_starts(host: Host, tmp_path: Path, token: str, what: str, todo: str) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    with pytest.raises(Failure, match=what) as caught:
        host.ensure(host.model(GATED), token_file=str(file) if token else "")
    assert todo in caught.value.todo
    assert "hf_another" not in str(caught.value)
    assert host.starts() == []


def test_the_right_token_opens_the_gate_if_nobody_else_can_read_it(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o640)
    with pytest.raises(Failure, match="open to others") as caught:
        host.ensure(host.model(GATED), token_file=str(file))
    assert "mode 0640" in caught.value.found
    assert TOKEN not in str(caught.value)
    file.chmod(0o400)
    assert host.ensure(host.model(GATED), token_file=str(file))["changed"]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"revision": "0" * 40}, "the repository, but not this revision"),
        ({"repo": "enplace/nothing"}, "does not have this repository"),
        (
            {"files": [{"path": "x", "bytes": 1, "sha256": "0" * 64}]},
            "does not have all files of the recipe's manifest",
        ),
    ],
)
def test_what_the_hub_does_not_have_is_told(host: Host, changed: dict[str, Any], what: str) -> None:
    with pytest.raises(Failure, match=what):
        host.ensure(host.model(**changed))
    assert host.starts() == []


def test_a_passing_error_is_asked_again_and_a_lasting_one_told(host: Host, server: hub.Hub) -> None:
    server.add_fault(hub.Fault("*/revision/*", "status", status=503, times=3))
    with pytest.raises(Failure, match="does not answer as a hub does") as caught:
        host.ensure()
    assert "status 503" in caught.value.found
    assert host.starts() == []
    server.add_fault(hub.Fault("*/revision/*", "status", status=500))
    assert host.ensure()["changed"]


def test_a_refused_token_and_a_forbidden_address_are_told_apart(host: Host, server: hub.Hub, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    for status, token_file, what in (
        (401, str(file), "does not know the token"),
        (401, "", "it is private, or not there"),
        (403, str(file), "the hub forbids it"),
    ):
        server.add_fault(hub.Fault("*/revision/*", "status", status=status))
        with pytest.raises(Failure, match=what):
            host.ensure(token_file=token_file)


def test_nobody_there_and_somebody_else_there(host: Host, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Failure, match="cannot be reached") as caught:
        host.ensure(endpoint=f"http://127.0.0.1:{port}")
    assert "enplace_hub_endpoint" in caught.value.todo
    bundle = tmp_path / "ca.crt"
    with pytest.raises(Failure, match="CA bundle cannot be used"):
        host.ensure(endpoint=f"https://127.0.0.1:{port}", ca_bundle=str(bundle))


# --- offline ---------------------------------------------------------------------------------------------------------


def test_offline_names_what_is_missing_and_asks_nobody(host: Host, server: hub.Hub) -> None:
    with pytest.raises(Failure, match="not to ask any network") as caught:
        host.ensure(offline=True)
    assert f"{FILE}: no such file" in caught.value.found
    assert f"{FILE}: {BYTES} bytes, sha256" in caught.value.expected
    assert f"hf download {MODEL} --revision" in caught.value.todo
    assert server.requests() == []
    host.ensure()
    server.clear_requests()
    blob = next(path for path in host.blobs().iterdir() if path.stat().st_size == BYTES)
    assert not host.ensure(offline=True)["changed"]
    content = blob.read_bytes()
    blob.write_bytes(b"?" + content[1:])
    with pytest.raises(Failure, match="not to ask any network") as caught:
        host.ensure(offline=True)
    assert f"{FILE}: {BYTES} bytes, sha256" in caught.value.found
    assert blob.exists(), "offline nothing could replace it"
    blob.write_bytes(content)
    assert not host.ensure(offline=True)["changed"]
    assert server.requests() == []


# --- in the background, and two at once ------------------------------------------------------------------------------


def begin(host: Host, folder: Path, holder: str) -> Path:
    request = weights.Request(**{**vars(host.request), "holder": holder})
    model = host.model()
    return Path(job.start(lambda progress: weights.ensure(request, [model], progress=progress), str(folder)))


def wait(path: Path, seconds: float = 60.0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The last entry of a job, and those before it."""
    seen: list[dict[str, Any]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        entry = read_json(str(path)) or {}
        if entry.get("state") != job.RUNNING:
            return entry, seen
        seen.append(entry)
        time.sleep(0.1)
    raise AssertionError(f"no end within {seconds} s: {seen[-1:]}")


def test_a_job_tells_how_far_it_is_and_what_came_of_it(host: Host, server: hub.Hub, tmp_path: Path) -> None:
    server.add_fault(hub.Fault(f"*/{FILE}", "slow", rate=5_000_000))
    path = begin(host, tmp_path / "jobs", "me@here")
    assert path.stat().st_mode & 0o777 == 0o600
    entry, seen = wait(path)
    assert entry["state"] == job.DONE
    assert entry["result"]["downloaded_bytes"] == BYTES + 2
    told = [one for one in seen if one["phase"] == "downloading"]
    assert len({one["done"] for one in told}) > 1
    assert {one["total"] for one in told} == {BYTES + 2}
    assert entry["pid"] != os.getpid()


def test_a_failed_job_says_why(host: Host, server: hub.Hub, tmp_path: Path) -> None:
    server.add_fault(hub.Fault("*/revision/*", "status", status=404))
    entry, _ = wait(begin(host, tmp_path / "jobs", "me@here"))
    assert entry["state"] == job.FAILED
    assert "does not have this repository" in entry["message"]
    assert entry["failure"]["todo"]


def test_a_second_run_waits_for_the_first_and_names_it(host: Host, server: hub.Hub, tmp_path: Path) -> None:
    server.add_fault(hub.Fault(f"*/{FILE}", "slow", rate=5_000_000))
    first = begin(host, tmp_path / "jobs", "one@controller")
    while not host.starts():
        time.sleep(0.05)
    second = begin(host, tmp_path / "jobs", "two@controller")
    entry, seen = wait(second)
    assert entry["state"] == job.DONE
    assert entry["result"]["downloaded_bytes"] == 0
    assert any("waiting for another run" in one["phase"] and "one@controller" in one["phase"] for one in seen)
    assert wait(first)[0]["state"] == job.DONE
    assert server.bytes_sent()[path_of(server)] == BYTES


def test_a_killed_job_takes_its_client_with_it_and_the_next_run_goes_on(
    host: Host, server: hub.Hub, tmp_path: Path
) -> None:
    server.add_fault(hub.Fault(f"*/{FILE}", "stall", after=MIDDLE, seconds=120))
    path = begin(host, tmp_path / "jobs", "me@here")
    deadline = time.monotonic() + 30
    while not host.leftovers() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
    # Nobody holds the lock any more: the client has died with the job.
    result = host.ensure()
    assert result["changed"]
    # One of the job that was killed; where the machine is slow, the watch starts the other one once more.
    assert host.starts() in (["xet=on"] * 2, ["xet=on"] * 3)
    assert host.leftovers() == []
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
