# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The client of the hub, asked against the simulated hub and against hubs that lie.

Real: HTTP on loopback. Simulated: the hub.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.plugin_utils import hub
from huggingface_hub.utils import filter_repo_objects
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.hub import hub as sim

TOKEN = "hf_the_right_token"
MODEL = "enplace/model"
GATED = "enplace/gated"
LARGE = random.Random(1).randbytes(100_000)
FILES = {
    "config.json": b'{"a": 1}',
    "README.md": b"",
    "sub/one two+three%20é.txt": b"four",
    "model-00001-of-00002.safetensors": LARGE,
    "model-00002-of-00002.safetensors": LARGE[:50_000],
}


@contextlib.contextmanager
def serving(server: http.server.HTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("repositories")
    for name, content in FILES.items():
        path = made / MODEL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (made / GATED).mkdir(parents=True)
    (made / GATED / "config.json").write_bytes(b"{}")
    (made / f"{GATED}.json").write_text(json.dumps({"gated": True, "token": TOKEN}))
    return made


@pytest.fixture(scope="module")
def everything(root: Path) -> Iterator[sim.Hub]:
    server = sim.Hub(sim.load(root), quiet=True, page_entries=2)
    with serving(server):
        yield server


@pytest.fixture
def server(everything: sim.Hub, monkeypatch: pytest.MonkeyPatch) -> sim.Hub:
    everything.clear_faults()
    everything.clear_requests()
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    monkeypatch.setenv("no_proxy", "*")
    return everything


def revision(server: sim.Hub, name: str = MODEL) -> str:
    return server.repositories[name].revision


def test_a_branch_becomes_its_commit_and_a_commit_stays(server: sim.Hub) -> None:
    commit = revision(server)
    assert hub.resolve_revision(server.url, MODEL) == commit
    assert hub.resolve_revision(server.url + "/", MODEL, commit) == commit


def test_a_manifest_is_that_of_the_content_over_all_pages(server: sim.Hub) -> None:
    found = hub.manifest(server.url, MODEL, revision(server))
    expected = [
        {"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for path, content in sorted(FILES.items())
    ]
    assert found == expected
    assert found == sim.manifest(server.repositories[MODEL])["files"]
    asked = [request["path"] for request in server.requests()]
    assert len([path for path in asked if "/tree/" in path]) == 3
    # A large file states its SHA-256, and is not read.
    assert not [path for path in asked if path.endswith(".safetensors")]


def test_include_takes_what_the_patterns_fit(server: sim.Hub) -> None:
    found = hub.manifest(server.url, MODEL, revision(server), ["model-*", "sub/"])
    assert [entry["path"][:6] for entry in found] == ["model-", "model-", "sub/on"]
    asked = [request["path"] for request in server.requests()]
    assert len([path for path in asked if "/resolve/" in path]) == 1
    with pytest.raises(hub.HubError, match=r"has no file to download.*\n.*a file that matches \*\.gguf"):
        hub.manifest(server.url, MODEL, revision(server), ["*.gguf"])


@given(
    st.lists(st.text("ab/.*?[]-", min_size=1, max_size=6), min_size=1, max_size=8),
    st.lists(st.text("ab/.*?[]-!", min_size=1, max_size=5), max_size=3),
)
def test_patterns_mean_what_the_hubs_own_client_takes_them_for(paths: list[str], include: list[str]) -> None:
    ours = [path for path in paths if hub.included(path, include)]
    assert ours == list(filter_repo_objects(paths, allow_patterns=include or None))


def test_a_gated_repository_needs_its_token(server: sim.Hub) -> None:
    commit = hub.resolve_revision(server.url, GATED)
    assert hub.manifest(server.url, GATED, commit, (), TOKEN)[0]["path"] == "config.json"
    with pytest.raises(hub.HubError, match="is gated") as caught:
        hub.manifest(server.url, GATED, commit)
    assert f"accept the model's terms at {server.url}/{GATED} and give a token" in str(caught.value)
    with pytest.raises(hub.HubError, match="use a token of that account") as caught:
        hub.manifest(server.url, GATED, commit, (), "hf_wrong_one")
    assert "hf_wrong_one" not in str(caught.value)


@pytest.mark.parametrize(
    ("repository", "wanted", "expected"),
    [
        ("enplace/nothing", "main", "is not there"),
        (MODEL, "v9", "has no revision v9"),
        (MODEL, "f" * 40, "has no revision ffff"),
        ("../etc", "main", "is not a repository's name"),
        ("a/b/c", "main", "is not a repository's name"),
        ("a b/c", "main", "is not a repository's name"),
    ],
)
def test_what_is_not_there_is_named(repository: str, wanted: str, expected: str, server: sim.Hub) -> None:
    with pytest.raises(hub.HubError) as caught:
        hub.resolve_revision(server.url, repository, wanted)
    assert expected in str(caught.value)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_fails_in_passing_is_tried_again(status: int, server: sim.Hub) -> None:
    server.add_fault(sim.Fault("*/revision/*", "status", status=status, times=2))
    assert hub.resolve_revision(server.url, MODEL) == revision(server)
    server.add_fault(sim.Fault("*/revision/*", "status", status=status, times=3))
    with pytest.raises(hub.HubError, match=rf"HTTP {status}"):
        hub.resolve_revision(server.url, MODEL)


@pytest.mark.parametrize("status", [400, 403, 404, 410])
def test_what_will_fail_again_is_asked_once(status: int, server: sim.Hub) -> None:
    server.add_fault(sim.Fault("*/revision/*", "status", status=status, times=9))
    with pytest.raises(hub.HubError, match=rf"HTTP {status}"):
        hub.resolve_revision(server.url, MODEL)
    assert len(server.requests()) == 1


def test_a_small_file_with_one_changed_byte_is_not_pinned(server: sim.Hub) -> None:
    server.add_fault(sim.Fault("*/resolve/*/config.json", "flip", after=2, times=9))
    with pytest.raises(hub.HubError, match=r"config\.json has not the digest that the hub states"):
        hub.manifest(server.url, MODEL, revision(server))


def test_a_cut_file_is_read_again(server: sim.Hub) -> None:
    server.add_fault(sim.Fault("*/resolve/*/config.json", "cut", after=3, times=2))
    assert len(hub.manifest(server.url, MODEL, revision(server))) == len(FILES)
    server.add_fault(sim.Fault("*/resolve/*/config.json", "cut", after=3, times=3))
    with pytest.raises(hub.HubError, match=r"could not be asked about config\.json"):
        hub.manifest(server.url, MODEL, revision(server))


def test_a_hub_that_says_nothing_is_given_up(everything: sim.Hub) -> None:
    everything.clear_faults()
    everything.add_fault(sim.Fault("*/resolve/*/config.json", "stall", seconds=1.0, times=9))
    with pytest.raises(hub.HubError, match="timed out"):
        hub.manifest(everything.url, MODEL, revision(everything), ["config.json"], timeout_s=0.1)
    everything.clear_faults()


def test_nobody_there_is_said(server: sim.Hub) -> None:
    with pytest.raises(hub.HubError, match="check network, proxy, certificates"):
        hub.resolve_revision("http://127.0.0.1:9", MODEL)


# --- hubs that lie ---------------------------------------------------------------------------------------------------

COMMIT = "a" * 40
Answer = tuple[int, dict[str, str], bytes]


class Liar(http.server.ThreadingHTTPServer):
    """Answers every request by a function, and remembers who asked with which token."""

    daemon_threads = True

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        self.seen: list[tuple[str, str | None]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            server: Liar

            def do_GET(self) -> None:
                self.server.seen.append((self.path, self.headers.get("Authorization")))
                status, headers, body = answer(self.path)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


def said(value: Any, **headers: str) -> Answer:
    return 200, headers, json.dumps(value).encode()


def file(**changes: Any) -> dict[str, Any]:
    oid = hashlib.sha1(b"blob 2\0{}", usedforsecurity=False).hexdigest()
    return {"type": "file", "path": "config.json", "size": 2, "oid": oid, **changes}


LFS = {"oid": "b" * 64, "size": 7, "pointerSize": 120}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([file(path="../x")], "leads out of the repository"),
        ([file(path="/etc/x")], "leads out of the repository"),
        ([file(path="a//b")], "leads out of the repository"),
        ([file(path="a\nb")], "leads out of the repository"),
        ([file(path=3)], "leads out of the repository"),
        ([file(size=-1)], "makes no sense"),
        ([file(size="2")], "makes no sense"),
        ([file(size=True)], "makes no sense"),
        ([file(), file()], "makes no sense"),
        ([file(lfs={**LFS, "oid": "main"})], "has no SHA-256"),
        ([file(lfs="yes")], "makes no sense"),
        ([file(size=hub.MAX_SMALL + 1)], "too large to be a small file"),
        ([file(size=3)], "has not the size"),
        ([file(size=1)], "too large"),
        ([file(oid="0" * 40)], "has not the digest"),
        ([], "an empty repository"),
        ({"error": "no"}, "is no list"),
    ],
)
def test_a_list_that_makes_no_sense_is_not_pinned(entries: Any, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with (
        serving(Liar(lambda path: said(entries) if "/tree/" in path else (200, {}, b"{}"))) as url,
        pytest.raises(hub.HubError) as caught,
    ):
        hub.manifest(url, MODEL, COMMIT)
    assert expected in str(caught.value)


def test_what_makes_sense_is_taken() -> None:
    large = file(path="model.bin", size=7, lfs=LFS)
    with serving(
        Liar(
            lambda path: (
                said([file(), large, {"type": "directory", "path": "x"}]) if "/tree/" in path else (200, {}, b"{}")
            )
        )
    ) as url:
        found = hub.manifest(url, MODEL, COMMIT)
    assert [entry["path"] for entry in found] == ["config.json", "model.bin"]
    assert found[1] == {"path": "model.bin", "bytes": 7, "sha256": "b" * 64}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, {}, b"<html>"), "is no JSON"),
        ((200, {}, b"[" * 100_000), "is no JSON"),
        (said({"sha": "main"}), "names no commit"),
        (said({}), "names no commit"),
        (said([]), "names no commit"),
        (said({"sha": "b" * 40}), "another commit than"),
        ((302, {"Location": "ftp://127.0.0.1/x"}, b""), "could not be asked"),
        ((302, {"Location": "file:///etc/passwd"}, b""), "is not allowed"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(
    answer: Answer, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with serving(Liar(lambda _path: answer)) as url, pytest.raises(hub.HubError) as caught:
        hub.resolve_revision(url, MODEL, COMMIT)
    assert expected in str(caught.value)


def test_pages_that_go_round_or_away_are_not_followed() -> None:
    with serving(Liar(lambda path: said([], Link=f'<{path}>; rel="next"'))) as url, pytest.raises(hub.HubError) as one:
        hub.manifest(url, MODEL, COMMIT)
    assert "goes round in circles" in str(one.value)
    away = Liar(lambda _path: said([], Link='<http://127.0.0.2/x>; rel="next"'))
    with serving(away) as url, pytest.raises(hub.HubError, match="is on another host"):
        hub.manifest(url, MODEL, COMMIT, (), TOKEN)


def test_a_huge_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_JSON", 1000)
    with serving(Liar(lambda _path: (200, {}, b" " * 5000))) as url, pytest.raises(hub.HubError, match="is too large"):
        hub.resolve_revision(url, MODEL)


def test_a_token_stays_with_the_hub_and_is_left_behind_at_another_address() -> None:
    other = Liar(lambda _path: said({"sha": COMMIT}))
    with serving(other) as elsewhere:

        def redirect(path: str) -> Answer:
            if path.startswith("/api/models"):
                return 307, {"Location": "/here"}, b""
            return 307, {"Location": f"{elsewhere}/there"}, b""

        first = Liar(redirect)
        with serving(first) as url:
            assert hub.resolve_revision(url, MODEL, "main", TOKEN) == COMMIT
    assert [token for _path, token in first.seen] == [f"Bearer {TOKEN}"] * 2
    assert other.seen == [("/there", None)]


def test_a_token_that_the_hub_repeats_is_in_no_message() -> None:
    answer = (400, {"X-Error-Message": f"bad token {TOKEN}"}, b"")
    with serving(Liar(lambda _path: answer)) as url, pytest.raises(hub.HubError, match=r"bad token \*\*\*") as caught:
        hub.resolve_revision(url, MODEL, "main", TOKEN)
    assert TOKEN not in str(caught.value)


def test_a_token_is_not_sent_in_clear_text() -> None:
    with pytest.raises(hub.HubError, match="in clear text") as caught:
        hub.resolve_revision("http://hub.example", MODEL, "main", TOKEN)
    assert TOKEN not in str(caught.value)


# --- address and token -----------------------------------------------------------------------------------------------


def test_the_address_is_the_given_one_then_the_variable_then_the_usual_one() -> None:
    assert hub.endpoint_of({}) == "https://huggingface.co"
    assert hub.endpoint_of({"HF_ENDPOINT": "https://hub.example/"}) == "https://hub.example"
    assert hub.endpoint_of({"HF_ENDPOINT": "https://hub.example"}, "http://127.0.0.1:8") == "http://127.0.0.1:8"


@pytest.mark.parametrize(
    "text", ["hub.example", "ftp://hub", "https://", "https://a b", "https://u:secret@hub", "https://h?x", "http://h:x"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(hub.HubError, match="is not the address of a hub") as caught:
        hub.endpoint_of({"HF_ENDPOINT": text})
    assert "secret" not in str(caught.value)


def test_the_token_comes_from_the_file_then_the_variable_then_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("hf_file\n")
    assert hub.token_of({}) is None
    assert hub.token_of({"HF_TOKEN": "hf_env"}) == "hf_env"
    assert hub.token_of({"HF_TOKEN": "hf_env", "HF_TOKEN_PATH": "/nowhere"}) == "hf_env"
    assert hub.token_of({"HF_TOKEN_PATH": str(path)}) == "hf_file"
    assert hub.token_of({"HF_TOKEN": "hf_env"}, path) == "hf_file"


@pytest.mark.parametrize("content", [b"", b"secret one\nsecret two", b"\xff\xfesecret", b"secret\x07"])
def test_a_token_that_is_none_is_refused_and_not_shown(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(hub.HubError) as caught:
        hub.token_of({}, path)
    assert "secret" not in str(caught.value)
    with pytest.raises(hub.HubError, match="cannot be read"):
        hub.token_of({}, tmp_path / "nothing")
