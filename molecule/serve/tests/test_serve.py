# SPDX-License-Identifier: Apache-2.0
"""Role serve: the model of the recipe answers from the pinned engine, starts at boot, and nobody else can reach it."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

UNIT = "enplace-enplace-smoke-cpu.service"
ASK = (
    "import sys, urllib.request as r;"
    "q = r.Request(sys.argv[1], sys.argv[2].encode() or None, {'Content-Type': 'application/json'});"
    "print(r.urlopen(q, timeout=60).read().decode())"
)


def ask(host: Host, path: str, body: str = "") -> str:
    return host.check_output("python3 -c %s %s %s", ASK, f"http://127.0.0.1:8000{path}", body)


def test_the_engine_is_the_pinned_one(host: Host) -> None:
    assert json.loads(ask(host, "/version"))["version"].startswith("0.28.0")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 17 + 25? Reply with the number only.", "42"),
        ("What is the capital of France? Reply with one word.", "Paris"),
    ],
)
def test_the_model_answers(host: Host, question: str, answer: str) -> None:
    messages = [{"role": "user", "content": question}]
    reply = ask(
        host,
        "/v1/chat/completions",
        json.dumps({"model": "enplace/smoke", "messages": messages, "temperature": 0, "max_tokens": 8}),
    )
    assert json.loads(reply)["choices"][0]["message"]["content"].strip() == answer


def test_the_unit_runs_as_the_service_user_and_starts_at_boot(host: Host) -> None:
    service = host.service(UNIT)
    assert service.is_running
    assert service.is_enabled
    assert host.process.get(pid=int(service.systemd_properties["MainPID"])).user == "enplace"


def test_it_listens_on_loopback_only(host: Host) -> None:
    listening = host.check_output("ss --tcp --listening --numeric --no-header").splitlines()
    addresses = [line.split()[3] for line in listening]
    assert [address for address in addresses if address.endswith(":8000")] == ["127.0.0.1:8000"]


def test_the_model_is_the_verified_snapshot(host: Host) -> None:
    pid = host.service(UNIT).systemd_properties["MainPID"]
    argv = host.check_output(f"tr '\\0' '\\n' < /proc/{pid}/cmdline").split("\n")
    assert any(word.startswith("/var/lib/enplace/hub/models--enplace--smoke/snapshots/") for word in argv)
