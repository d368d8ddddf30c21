# SPDX-License-Identifier: Apache-2.0
"""Role service: a unit that runs, answers and starts at boot, from a release that names itself."""

from __future__ import annotations

import hashlib
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
    name = hashlib.sha256(b"simulated").hexdigest()[:12]
    assert host.file(f"{RELEASES}/current").linked_to == f"{RELEASES}/{name}"
    installed = host.file(f"/usr/local/lib/systemd/system/{UNIT}")
    assert installed.content_string == host.file(f"{RELEASES}/current/unit.service").content_string
    assert (installed.user, installed.mode) == ("root", 0o644)
    assert set(host.check_output(f"ls -A {RELEASES}").split()) == {name, "current"}
    assert host.service(UNIT).systemd_properties["FragmentPath"] == installed.path


def test_nothing_of_the_candidate_or_the_transaction_is_left(host: Host) -> None:
    assert host.check_output("ls -A /run/systemd/system | grep enplace || true") == ""
    assert not host.file("/var/lib/enplace/activation.json").exists
    assert not host.file("/run/enplace/host.lock").exists


def test_the_history_and_the_report_tell_of_the_run_that_serves(host: Host) -> None:
    files = host.check_output("ls /var/lib/enplace/activations").split()
    assert len(files) == 1
    history = json.loads(host.file(f"/var/lib/enplace/activations/{files[0]}").content_string)
    report = json.loads(host.file("/var/lib/enplace/reports/simulated/latest.json").content_string)
    running = host.service(UNIT).systemd_properties["InvocationID"]
    assert history["outcome"] == "committed"
    assert history["invocation"] == report["unit"]["invocation"] == running
    assert report["all_passed"] is True
