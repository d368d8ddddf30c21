# SPDX-License-Identifier: Apache-2.0
"""The matrix of faults and checks is whole, its page tells what was run and nothing else, and its proxy is one."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.verify.suite import CLASSES

from tests.matrix import faults, table
from tests.matrix.table import Result, Results
from tests.sim.liar import Simulated
from tests.sim.proxy import CHAT, Ask, CutOffError, Fault, Proxy

NO_CHECK_FINDS = {"large pool"}
BODY = {"model": "enplace/smoke", "messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0}


def test_every_check_is_in_the_matrix_and_has_two_faults() -> None:
    assert list(faults.CHECKS) == list(CLASSES)
    for name in CLASSES:
        assert sum(name in case.found_by for case in faults.CASES) >= 2, name
        # And is not there to be failed by everything.
        assert any(name in case.beside for case in faults.CASES), name


def test_every_check_finds_a_fault_that_no_other_finds() -> None:
    alone = {case.found_by[0] for case in faults.CASES if len(case.found_by) == 1 and not case.final}
    # Who answers wrongly alone does so in a batch as well.
    assert set(CLASSES) - alone == {"known_answers"}


def test_every_fault_has_a_name_a_reason_and_checks_that_exist() -> None:
    assert len({case.name for case in faults.CASES}) == len(faults.CASES)
    for case in faults.CASES:
        assert case.does.endswith("."), case.name
        assert case.like.endswith("."), case.name
        assert {*case.found_by, *case.beside} <= set(CLASSES), case.name
        assert set(case.asks_only) <= set(case.found_by), case.name
        assert not set(case.found_by) & set(case.beside), case.name
        assert case.beside, case.name
        assert bool(case.found_by) != (case.name in NO_CHECK_FINDS), case.name
        assert bool(case.says) == bool(case.found_by), case.name


def test_a_page_tells_of_each_fault_that_was_run_and_of_no_other(tmp_path: Path) -> None:
    results = Results(tmp_path / "reports" / "matrix.json", everything=False)
    results.add(Result("", passed=["identity", "usage", "healthy"]))
    results.add(Result("total wrong", "A sum.", "A count.", ["usage"], ["identity"]))
    results.add(Result("dies", "Gone.", "Memory.", ["usage", "identity"], [], ["healthy"]))
    results.add(Result("large pool", "Large.", "A wrong sum.", [], ["identity"]))
    results.add(Result("one id", "The same.", "A position.", ["identity"], ["usage"], wrong="tool_call passed"))
    text = table.page(json.loads(results.path.read_text(encoding="utf-8")))
    assert "4 faults on " in text
    assert "1 with a result that must not be" in text
    assert "Without a fault all 3 checks passed." in text
    assert "| total wrong | A sum. | A count. | `usage` | `identity` |" in text
    assert "| dies | Gone. | Memory. | `usage`, `identity`, and then not run: `healthy` |  |" in text
    assert "| large pool | Large. | A wrong sum. | no check | `identity` |" in text
    assert "| one id | The same. | A position. | NOT AS IT MUST BE: tool_call passed | `usage` |" in text
    assert "| `usage` | total wrong, dies | 1 |" in text
    assert "| `identity` | dies | 0 |" in text
    assert "| `healthy` |" not in text


def asked(url: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    data = None if body is None else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, data, headers)
    return connection.getresponse()


@pytest.mark.parametrize(
    ("path", "body"),
    [("/version", None), ("/metrics", None), ("/nowhere", None), ("/tokenize", BODY), (CHAT, {**BODY, "model": "x"})],
)
def test_without_a_fault_every_byte_is_passed_on(path: str, body: Any) -> None:
    with Simulated() as server, Proxy(server.url) as proxy:
        own, passed = asked(server.url, path, body), asked(proxy.url, path, body)
        assert passed.status == own.status
        told = [{**dict(reply.getheaders()), "Date": ""} for reply in (own, passed)]
        assert told[0] == told[1]
        assert passed.read() == own.read()


def test_a_key_is_passed_on() -> None:
    with Simulated(key="secret") as server, Proxy(server.url) as proxy:
        assert asked(proxy.url, "/version").status == 401
        assert asked(proxy.url, "/version", Authorization="Bearer secret").status == 200


def test_a_stream_is_passed_on_as_it_comes() -> None:
    body = {**BODY, "stream": True, "ignore_eos": True, "max_tokens": 20}
    with Simulated(pace_s=0.02) as server, Proxy(server.url) as proxy:
        reply = asked(proxy.url, CHAT, body)
        begin = time.monotonic()
        first = reply.readline()
        came = time.monotonic() - begin
        rest = reply.read()
        whole = time.monotonic() - begin
        assert first + rest == asked(server.url, CHAT, body).read()
    assert first.startswith(b"data: ")
    assert came < whole / 2


def test_a_fault_changes_what_is_asked_and_what_is_answered() -> None:
    class Louder(Fault):
        def asked(self, ask: Ask) -> None:
            if ask.chat:
                ask.body["messages"][0]["content"] = "What is the capital of France? Reply with one word."

        def answered(self, ask: Ask, reply: Any) -> Any:
            return {"said": reply["choices"][0]["message"]["content"].upper()} if ask.chat else reply

        def streamed(self, ask: Ask, chunk: Any) -> list[Any]:
            return []

        def ended(self, ask: Ask) -> list[Any]:
            return [{"said": "in the end"}]

        def metrics(self, page: str) -> str:
            return "none\n"

        def instead(self, ask: Ask) -> tuple[int, Any] | None:
            return (503, {}) if ask.path == "/health" else None

    with Simulated() as server, Proxy(server.url, Louder()) as proxy:
        assert json.load(asked(proxy.url, CHAT, BODY)) == {"said": "PARIS"}
        streamed = asked(proxy.url, CHAT, {**BODY, "stream": True}).read()
        assert streamed == b'data: {"said": "in the end"}\n\ndata: [DONE]\n\n'
        assert asked(proxy.url, "/metrics").read() == b"none\n"
        assert asked(proxy.url, "/health").status == 503
        assert asked(proxy.url, "/version").read() == asked(server.url, "/version").read()


def test_a_fault_can_end_the_connection_and_the_process() -> None:
    class Ends(Fault):
        def asked(self, ask: Ask) -> None:
            if ask.path == "/version":
                raise CutOffError
            self.proxy.dead = True

    with Simulated() as server, Proxy(server.url, Ends()) as proxy:
        for path in ("/version", "/version", "/metrics", "/health"):
            if path == "/metrics":
                assert asked(proxy.url, path).status == 200
            else:
                with pytest.raises(http.client.RemoteDisconnected):
                    asked(proxy.url, path)
