# SPDX-License-Identifier: Apache-2.0
"""The key of a server's interface: what its file must be, and that it reaches the server and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import api_key, launch, ready
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports
from ansible_collections.enplace.inference.plugins.module_utils.verify import server as servers

from tests.sim.liar import Simulated
from tests.unit.test_verify_suite import CHECKS

KEY = "sk-.0123456789_~/+=abcdef="


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No test masks another one's key."""
    yield
    servers._keys.clear()


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(api_key, "OWNER", os.geteuid())
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    return path


def test_a_key_is_read_whatever_its_line_ends_with(key_file: Path) -> None:
    assert api_key.read_key(str(key_file)) == KEY
    key_file.write_text(KEY)
    key_file.chmod(0o400)
    assert api_key.read_key(str(key_file)) == KEY
    api_key.check_key_file(str(key_file))


@pytest.mark.parametrize(
    ("content", "mode", "found"),
    [
        (KEY, 0o640, "mode 0640"),
        (KEY, 0o604, "mode 0604"),
        (KEY, 0o700, "mode 0700"),
        (KEY[:15], 0o600, "15 characters"),
        ("", 0o600, "0 characters"),
        (f"{KEY}\n{KEY}\n", 0o600, "2 lines"),
        (f"{KEY}\n\n", 0o600, "2 lines"),
        (f"{KEY}\r\n", 0o600, "other characters"),
        (f"{KEY} {KEY}", 0o600, "other characters"),
        (f"{KEY}é", 0o600, "other characters"),
        (KEY * 300, 0o600, "more than 4096 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_not_shown(
    key_file: Path, content: str, mode: int, found: str
) -> None:
    key_file.write_text(content)
    key_file.chmod(mode)
    with pytest.raises(Failure) as failure:
        api_key.check_key_file(str(key_file))
    assert found in failure.value.found
    assert str(key_file) in str(failure.value)
    assert KEY[:8] not in str(failure.value)


def test_only_a_plain_file_of_root_is_one(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = key_file.with_name("link")
    link.symlink_to(key_file)
    pipe = key_file.with_name("pipe")
    os.mkfifo(pipe, 0o600)
    for path, found in (
        (link, "symbolic"),
        (pipe, "no plain file"),
        (key_file.parent, "no plain"),
        ("/none", "No such"),
    ):
        with pytest.raises(Failure) as failure:
            api_key.check_key_file(str(path))
        assert found in failure.value.found
    own = os.geteuid()
    monkeypatch.setattr(api_key, "OWNER", own + 1)
    assert api_key.read_key(str(key_file)) == KEY, "on a controller it is the user's own"
    monkeypatch.setattr(os, "geteuid", lambda: own + 2)
    with pytest.raises(Failure, match="a file of user"):
        api_key.check_key_file(str(key_file))


# ---- starting the engine


def release(folder: Path) -> Path:
    """The programs as they lie in a release, without a collection around them."""
    for name in ("launch.py", "ready.py"):
        (folder / name).write_bytes(Path(str(launch.__file__)).with_name(name).read_bytes())
    return folder / "launch.py"


def test_the_engine_gets_the_key_in_its_environment_and_nowhere_else(tmp_path: Path, key_file: Path) -> None:
    (tmp_path / "api-key").write_text(f"{KEY}\n")
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['VLLM_API_KEY'], os.getpid()]))"
    program += "; import launch; launch.Guard"
    argv = [sys.executable, "-S", str(release(tmp_path)), sys.executable, "-c", program, "--a", "b c"]
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path), "RUNTIME_DIRECTORY": str(run_folder)}
    for _ in range(2):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.read()) == [["--a", "b c"], KEY, process.pid]
        assert process.returncode == 0
        (left,) = run_folder.iterdir()
        assert (left.name, left.read_text(), left.stat().st_mode & 0o7777) == ("api-key", KEY, 0o400)


def test_without_its_key_no_engine_is_started(tmp_path: Path) -> None:
    program = release(tmp_path)
    run_folder = str(tmp_path / "run")
    os.mkdir(run_folder)
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path), "RUNTIME_DIRECTORY": run_folder}
    for given, said in ({}, "CREDENTIALS_DIRECTORY is not set"), (environment, "No such file"):
        argv = [sys.executable, "-S", str(program), "/bin/true"]
        done = subprocess.run(argv, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 2, "no restart may follow"
        assert said in done.stderr
    (tmp_path / "api-key").write_text("\n")
    assert "is empty" in subprocess.run(argv, env=environment, capture_output=True, text=True, check=False).stderr
    (tmp_path / "api-key").write_text(f"{KEY}\n")
    argv = [sys.executable, "-S", str(program), "/no/such/engine"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "/no/such/engine" in done.stderr
    assert KEY not in done.stderr


class App:
    """What the guard is put before."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.sent: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.called.append(scope.get("path", scope["type"]))

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def ask(self, guard: launch.Guard, path: str, *headers: tuple[bytes, bytes], **scope: str) -> bool:
        """Whether a request reaches the app."""
        self.called.clear()
        self.sent.clear()
        asyncio.run(
            guard({"type": "http", "method": "POST", "path": path, "headers": headers, **scope}, None, self.send)
        )
        return bool(self.called)


def test_the_guard_wants_the_key_for_whatever_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    app = App()
    guard = launch.Guard(app)
    right = (b"Authorization", f"Bearer {KEY}".encode())
    for path in ("/v1/models", "/invocations", "/tokenize", "/", "/health/", "//v1/models", "/HEALTH", "/docs", ""):
        assert not app.ask(guard, path)
        assert app.sent[0]["status"] == 401
        assert json.loads(app.sent[1]["body"])["error"]["code"] == 401
        for bad in (
            b"",
            b"Bearer",
            b"Bearer ",
            f"Bearer {KEY}x".encode(),
            f"Basic {KEY}".encode(),
            KEY.encode(),
            b"\xff",
        ):
            assert not app.ask(guard, path, (b"authorization", bad))
        assert app.ask(guard, path, (b"accept", b"x"), right)
        assert app.sent == []
    assert all(app.ask(guard, path) for path in launch.OPEN)
    assert app.ask(guard, "/invocations", method="OPTIONS")
    assert app.ask(guard, "", type="lifespan")
    assert not app.ask(guard, "/v1/realtime", type="websocket")
    assert app.sent[0]["type"] == "websocket.close"
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(KeyError):
        launch.Guard(app)


# ---- asking with it


def test_readiness_is_asked_with_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulated(key=KEY) as server:
        ok, reason = ready.answers(server.url, "enplace/smoke", 5)
        assert (ok, "HTTP 401" in reason) == (False, True)
        assert ready.answers(server.url, "enplace/smoke", 5, KEY)[0]
    assert ready.find_key() == ""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert ready.find_key() == ""
    (tmp_path / "api-key").write_text(f"{KEY}\n")
    (tmp_path / "other").write_text("x" * 20)
    assert ready.find_key() == KEY
    assert ready.find_key(str(tmp_path / "other")) == "x" * 20


def test_readiness_shows_no_key_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulated("echoes_headers", key=KEY) as server:
        for limit in range(250, 600, 7):
            monkeypatch.setattr(ready, "MAX_SHOWN", limit)
            reason = ready.answers(server.url, "enplace/smoke", 5, KEY)[1]
            assert "***" in reason
            assert not leaks(reason)


def leaks(text: str) -> bool:
    """Whether a text holds a part of the key that says something."""
    return any(KEY[at : at + 6] in text for at in range(len(KEY) - 5))


def test_the_key_goes_nowhere_else() -> None:
    with Simulated() as other, Simulated("redirect_all") as server:
        server.elsewhere = other.url
        assert "HTTP 302" in ready.answers(server.url, "enplace/smoke", 5, KEY)[1]
        asked = servers.Server(server.url, "enplace/smoke", servers.Deadline(5), KEY)
        with pytest.raises(servers.CheckFailed):
            asked.get_json("/v1/models")
        with pytest.raises(servers.CheckFailed):
            asked.models()
        assert server.keys
        assert other.keys == []


def run(server: Simulated, key_file: str, *checks: dict[str, Any]) -> dict[str, Any]:
    engine = {"name": "vllm", "version": "0.28.0"}
    subject = reports.Subject(server.url, "enplace/smoke", "", "0" * 64, engine, list(checks), key_file)
    return reports.run(subject, {}, None, lambda: None)


def test_a_server_with_a_key_passes_with_it_and_says_what_is_missing_without(key_file: Path) -> None:
    checks = [CHECKS["identity"], CHECKS["usage"]]
    with Simulated(key=KEY) as server:
        good = run(server, str(key_file), *checks)
        assert reports.messages(good) == []
        assert good["all_passed"] is True
        assert not leaks(json.dumps(good))
        assert server.keys
        servers._keys.clear()
        bad = run(server, "", *checks)
        assert "enplace_api_key_file" in bad["checks"][0]["todo"]


def test_a_wrong_key_is_told_from_a_missing_one(key_file: Path) -> None:
    with Simulated(key="another-key-of-some-length") as server:
        report = run(server, str(key_file), CHECKS["identity"])
    assert "the key is not the server's" in report["checks"][0]["todo"]


def test_a_server_that_answers_without_the_key_does_not_pass(key_file: Path) -> None:
    with Simulated("key_ignored", key=KEY) as server:
        report = run(server, str(key_file), CHECKS["identity"])
    assert [check["status"] for check in report["checks"]] == ["pass"]
    assert report["all_passed"] is False
    open_to_all = [line.rpartition(" ")[2] for line in report["problems"]]
    assert open_to_all == list(reports.GUARDED)
    assert report["problems"][0] == "the server answers without a key: HTTP 200 from /v1/models"


def test_a_way_round_the_key_is_found(key_file: Path) -> None:
    with Simulated("key_below_v1", key=KEY) as server:
        report = run(server, str(key_file), CHECKS["identity"])
    assert report["all_passed"] is False
    assert [line.rpartition(" ")[2] for line in report["problems"]] == ["/invocations", "/tokenize"]


@pytest.mark.parametrize("lie", ["echoes_headers", "key_in_replies"])
def test_a_key_that_comes_back_is_in_no_report(key_file: Path, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [CHECKS[name] for name in ("known_answers", "usage", "logprobs", "tool_call", "json_schema")]
    for limit in (10, 17, 50, 300):
        monkeypatch.setattr(servers, "MAX_SHOWN", limit)
        with Simulated(lie, key=KEY) as server:
            report = run(server, str(key_file), *checks)
            assert server.keys
        assert report["all_passed"] is False
        assert not leaks(json.dumps(report, ensure_ascii=False))
        assert not leaks("\n".join(reports.messages(report)))
    assert "***" in json.dumps(report)


def test_a_key_file_that_cannot_be_used_stops_the_checks(key_file: Path) -> None:
    key_file.chmod(0o644)
    with Simulated(key=KEY) as server, pytest.raises(Failure, match="0644"):
        run(server, str(key_file), CHECKS["identity"])
    assert server.asked == []
