# SPDX-License-Identifier: Apache-2.0
"""Readiness is a real completion: every server that only looks ready is refused, with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.ready import alive, answers, wait


class Server(ThreadingHTTPServer):
    """A simulated server whose replies a test sets: path -> (status, body)."""

    replies: dict[str, tuple[int, Any]]
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    """Answers as the server was told."""

    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        status, body = self.server.replies.get(self.path, (404, "no such path"))
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


COMPLETION = {"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": 1}}


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(("127.0.0.1", 0), Handler)
    running.asked = []
    running.replies = {
        "/health": (200, b""),
        "/v1/models": (200, {"data": [{"id": "org/model"}]}),
        "/v1/chat/completions": (200, COMPLETION),
    }
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_a_server_that_completes_is_ready(server: Server) -> None:
    assert answers(url(server), "org/model", 5) == (True, "1 token generated")
    assert server.asked.count("/health") == 2, "it must be healthy after the completion as well"


@pytest.mark.parametrize(
    ("path", "reply", "reason"),
    [
        ("/health", (503, b""), "HTTP 503"),
        ("/v1/models", (200, {"data": [{"id": "other"}]}), "not org/model"),
        ("/v1/models", (200, b"<html>"), "JSONDecodeError"),
        ("/v1/chat/completions", (500, {"error": "engine died"}), "engine died"),
        ("/v1/chat/completions", (200, {"choices": [], "usage": {"completion_tokens": 0}}), "no token"),
        ("/v1/chat/completions", (200, {}), "KeyError"),
        ("/v1/chat/completions", (200, b""), "JSONDecodeError"),
    ],
)
def test_a_server_that_only_looks_ready_is_not(server: Server, path: str, reply: tuple[int, Any], reason: str) -> None:
    server.replies[path] = reply
    ok, found = answers(url(server), "org/model", 5)
    assert not ok
    assert reason in found


def test_an_open_port_alone_is_not_ready() -> None:
    ok, reason = wait("http://127.0.0.1:9", "org/model", 0.2, pause_s=0.05)
    assert not ok
    assert "refused" in reason
    assert alive(os.getpid())


def test_a_process_that_has_ended_is_not_waited_for() -> None:
    process = subprocess.Popen(["true"])
    time.sleep(0.3)
    # Not collected yet: its entry in /proc is still there.
    assert not alive(process.pid)
    assert wait("http://127.0.0.1:9", "org/model", 60, pid=process.pid)[1].endswith("has ended")
    process.wait()
    assert not alive(process.pid)


def test_the_proxy_of_the_environment_is_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert answers(url(server), "org/model", 5)[0]
