# SPDX-License-Identifier: Apache-2.0
"""Every check against a real engine: all pass, and each fails for the faults that concern it, and for no other."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.proxy import CHAT, Proxy

from .faults import CASES, CHECKS, MODEL, Case
from .table import Result, Results

Run = Callable[[Case | None], list[dict[str, Any]]]


def test_without_a_fault_everything_passes(run: Run, results: Results) -> None:
    found = run(None)
    wrong = "; ".join(f"{check['name']}: {check['reason']}" for check in found if check["status"] != "pass")
    results.add(Result("", passed=[check["name"] for check in found if check["status"] == "pass"], wrong=wrong))
    assert wrong == ""
    assert [check["name"] for check in found] == list(CHECKS)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_fault_is_found_by_its_checks_and_by_no_other(case: Case, run: Run, results: Results) -> None:
    found = run(case)
    failed = {check["name"]: check["reason"] for check in found if check["status"] == "fail"}
    not_run = [check["name"] for check in found if check["status"] == "not run"]
    asked = case.found_by if results.everything else case.asks_only or case.found_by
    wrong = [f"{name} passed" for name in asked if name not in failed]
    wrong += [f"{name} failed: {reason}" for name, reason in failed.items() if name not in asked]
    wrong += [
        f"{name} failed for another reason: {failed[name]}"
        for name in asked
        if name in failed and not any(said in failed[name] for said in case.says.split("|"))
    ]
    wrong += [f"{name} was not run" for name in not_run if not case.final]
    passed = [check["name"] for check in found if check["status"] == "pass"]
    results.add(Result(case.name, case.does, case.like, list(failed), passed, not_run, "; ".join(wrong)))
    assert wrong == []


def _asked(url: str, path: str, body: dict[str, Any] | None) -> tuple[int, str, bytes]:
    """Status, type and content of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/health", None),
        ("/version", None),
        ("/nowhere", None),
        ("/tokenize", {"model": MODEL, "prompt": "Hello"}),
        (CHAT, {"model": "enplace/not-served", "messages": [{"role": "user", "content": "Hello"}]}),
        (CHAT, {"model": MODEL, "messages": []}),
    ],
)
def test_the_proxy_by_itself_changes_no_byte(server: str, path: str, body: dict[str, Any] | None) -> None:
    with Proxy(server) as proxy:
        assert _asked(proxy.url, path, body) == _asked(server, path, body)


def test_the_proxy_by_itself_passes_a_stream_on(server: str) -> None:
    ask = {"role": "user", "content": "What is the capital of France? Reply with one word."}
    body = {"model": MODEL, "messages": [ask], "temperature": 0, "stream": True}
    with Proxy(server) as proxy:
        passed, own = _asked(proxy.url, CHAT, body), _asked(server, CHAT, body)
    assert passed[:2] == own[:2]
    assert passed[2].endswith(b"data: [DONE]\n\n")

    def told(content: bytes) -> list[Any]:
        events = [event.removeprefix(b"data: ") for event in content.split(b"\n\n") if event]
        return [json.loads(event)["choices"] for event in events[:-1]]

    assert told(passed[2]) == told(own[2])
