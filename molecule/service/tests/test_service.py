# SPDX-License-Identifier: Apache-2.0
"""Role service: a unit that runs, answers and starts at boot, from a release that names itself."""

from __future__ import annotations

import json

from testinfra.host import Host

UNIT = "enplace-simulated.service"
RELEASES = "/opt/enplace/releases/simulated"


def test_the_unit_runs_as_the_service_user_and_starts_at_boot(host: Host) -> None:
    service = host.service(UNIT)
    assert service.is_running
    assert service.is_enabled
    properties = service.systemd_properties
    assert properties["NRestarts"] == "0"
    assert host.process.get(pid=int(properties["MainPID"])).user == "enplace"


def test_it_answers(host: Host) -> None:
    question = {"role": "user", "content": "What is 17 + 25? Reply with the number only."}
    body = json.dumps({"model": "enplace/smoke", "messages": [question]})
    program = (
        "import sys, urllib.request as r;"
        "q = r.Request(sys.argv[1], sys.argv[2].encode(), {'Content-Type': 'application/json'});"
        "print(r.urlopen(q, timeout=10).read().decode())"
    )
    url = "http://127.0.0.1:8100/v1/chat/completions"
    reply = json.loads(host.check_output("python3 -c %s %s %s", program, url, body))
    assert reply["choices"][0]["message"]["content"] == "42"


def test_started_meant_that_a_completion_was_seen(host: Host) -> None:
    journal = host.check_output(f"journalctl --unit {UNIT} --output cat --no-pager")
    assert "enplace: ready after" in journal


def test_current_names_the_release_whose_unit_is_installed(host: Host) -> None:
    assert host.file(f"{RELEASES}/current").linked_to == f"{RELEASES}/0123456789ab"
    installed = host.file(f"/etc/systemd/system/{UNIT}")
    assert installed.content_string == host.file(f"{RELEASES}/current/unit.service").content_string
    assert (installed.user, installed.mode) == ("root", 0o644)
    assert host.check_output(f"ls -A {RELEASES}").split() == ["0123456789ab", "current"]
