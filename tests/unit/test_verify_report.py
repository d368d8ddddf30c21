# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""When a stored report still holds, how it is stored, and the module around it, in check mode and for real."""

from __future__ import annotations

import copy
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.enplace.inference.plugins.module_utils import files
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports
from ansible_collections.enplace.inference.plugins.modules import verify as module

from tests.sim.liar import WIRE, Simulated

RUN = "0123456789abcdef0123456789abcdef"
UNIT = reports.Unit("enplace-smoke.service", RUN, "active", 0)
CHECKS: list[dict[str, Any]] = [
    {"check": "identity", "context": 4096},
    {"check": "usage", "ask": "Where are the boats?"},
]
SUBJECT = reports.Subject(
    "http://127.0.0.1:8000",
    "enplace/smoke",
    "enplace/smoke:cpu",
    "a" * 64,
    {"name": "vllm", "version": "0.28.0"},
    CHECKS,
)


def good_report(**changes: Any) -> dict[str, Any]:
    return {
        "format": reports.FORMAT,
        "complete": True,
        "all_passed": True,
        "subject": SUBJECT.as_data(),
        "unit": UNIT.as_data(),
        "ended": "2026-12-01T01:30:00Z",
        "problems": [],
        "checks": [{"name": "identity", "status": "pass"}, {"name": "usage", "status": "pass"}],
        **changes,
    }


def with_subject(**changes: Any) -> dict[str, Any]:
    return good_report(subject={**SUBJECT.as_data(), **changes})


def test_a_good_report_of_the_same_run_holds() -> None:
    assert reports.why_not(good_report(), SUBJECT, UNIT) == ""


def test_a_check_that_is_refused_as_declared_speaks_for_the_server() -> None:
    checks = [{"name": "identity", "status": "pass"}, {"name": "usage", "status": "refused"}]
    assert reports.why_not(good_report(checks=checks), SUBJECT, UNIT) == ""


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (good_report(format=0), "format 0"),
        (good_report(complete=False), "interrupted"),
        (good_report(all_passed=False), "not every check passed"),
        (good_report(all_passed="yes"), "not every check passed"),
        (good_report(checks=[]), "not every check passed"),
        (good_report(checks=[{"status": "pass"}]), "not every check passed"),
        (good_report(checks=[{"status": "pass"}, {"status": "not run"}]), "not every check passed"),
        (good_report(checks=[{"status": "refused"}, {"status": "fail"}]), "not every check passed"),
        (good_report(checks=[{"status": "pass"}, "pass"]), "not every check passed"),
        (good_report(subject=None), "release"),
        (with_subject(release="b" * 64), "release"),
        (with_subject(engine={"name": "vllm", "version": "0.29.0"}), "engine"),
        (with_subject(checks_digest="0"), "checks"),
        (with_subject(suite="full"), "suite"),
        (with_subject(model="enplace/other"), "model"),
        (with_subject(recipe="enplace/other:cpu"), "recipe"),
        (with_subject(url="http://127.0.0.1:8001"), "address"),
        (good_report(unit=None), "started anew"),
        (good_report(unit={**UNIT.as_data(), "invocation": "f" * 32}), "started anew"),
    ],
)
def test_a_report_of_anything_else_does_not_hold(report: dict[str, Any], says: str) -> None:
    assert says in reports.why_not(report, SUBJECT, UNIT)


@pytest.mark.parametrize(
    ("unit", "says"),
    [
        (None, "no unit"),
        (reports.Unit(UNIT.name, RUN, "inactive", 0), "inactive"),
        (reports.Unit(UNIT.name, "e" * 32, "active", 0), "started anew"),
        (reports.Unit(UNIT.name, "", "active", 0), "started anew"),
    ],
)
def test_a_report_does_not_hold_for_another_run_of_the_unit(unit: reports.Unit | None, says: str) -> None:
    assert says in reports.why_not(good_report(), SUBJECT, unit)


def test_an_empty_invocation_never_matches_an_empty_one() -> None:
    nobody = reports.Unit(UNIT.name, "", "active", 0)
    assert reports.why_not(good_report(unit=nobody.as_data()), SUBJECT, nobody) != ""


def test_unit_is_read_from_what_systemctl_prints() -> None:
    assert reports.parse_unit("x.service", f"NRestarts=2\nInvocationID={RUN}\nActiveState=active\n") == reports.Unit(
        "x.service", RUN, "active", 2
    )
    assert reports.parse_unit("x.service", "") == reports.Unit("x.service", "", "unknown", 0)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_report_is_no_report(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "latest.json"
    path.write_bytes(content)
    report, why = reports.read_report(str(path))
    assert report is None
    assert "stored report" in why


def test_a_report_behind_a_link_or_of_another_user_is_not_believed(tmp_path: Path) -> None:
    real = tmp_path / "elsewhere.json"
    files.write_json(str(real), good_report())
    link = tmp_path / "latest.json"
    link.symlink_to(real)
    assert reports.read_report(str(link))[0] is None
    if os.geteuid() == 0:
        os.chown(real, 12345, -1)
        assert reports.read_report(str(real)) == (None, "the stored report is not a plain file of our own")
    assert reports.read_report(str(tmp_path / "absent.json")) == (None, "there is no report yet")


def test_reports_are_kept_and_the_oldest_go(tmp_path: Path) -> None:
    latest = tmp_path / "reports" / "latest.json"
    for number in range(reports.KEEP + 3):
        reports.store(str(latest), good_report(ended=f"2026-12-01T01:30:{number:02}Z", number=number))
    names = sorted(entry.name for entry in latest.parent.iterdir())
    assert names == [*(f"20261201T0130{number:02}Z.json" for number in range(3, reports.KEEP + 3)), "latest.json"]
    assert json.loads(latest.read_text())["number"] == reports.KEEP + 2
    assert latest.stat().st_mode & 0o777 == 0o644


def test_two_reports_of_one_second_are_both_kept(tmp_path: Path) -> None:
    latest = tmp_path / "latest.json"
    for number in range(12):
        reports.store(str(latest), good_report(number=number))
    numbers = {json.loads(entry.read_text())["number"] for entry in tmp_path.iterdir() if entry != latest}
    assert numbers == set(range(2, 12))


def test_a_report_that_cannot_be_written_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = tmp_path / "latest.json"
    reports.store(str(latest), good_report(number=1))
    before = sorted(entry.name for entry in tmp_path.iterdir())

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        reports.store(str(latest), good_report(number=2, ended="2026-12-01T02:00:00Z"))
    assert json.loads(latest.read_text())["number"] == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


def test_the_controllers_copy_has_the_same_bytes() -> None:
    report = good_report(note="Buenos días", figure=0.1, small=1e-7, flag=None, list=[1, [], {}])
    expression = trust_as_template("{{ report | to_nice_json(indent=2, ensure_ascii=False) }}\n")
    assert Templar(DataLoader(), {"report": report}).template(expression) == files.json_text(report)


# ---- the module


class Host:
    """A host with a simulated systemctl that tells what a file says."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "unit-state"
        self.report = folder / "reports" / "enplace-smoke-cpu" / "latest.json"
        programs = folder / "programs"
        programs.mkdir()
        systemctl = programs / "systemctl"
        systemctl.write_text(f"#!/bin/sh\ncat {self.state}\n")
        systemctl.chmod(0o755)
        self.path = str(programs)
        self.runs()

    def runs(self, invocation: str = RUN, active: str = "active") -> None:
        self.state.write_text(f"NRestarts=0\nInvocationID={invocation}\nActiveState={active}\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setenv("PATH", f"{made.path}:{os.environ['PATH']}")
    monkeypatch.setattr(reports, "SETTLE_S", 0.3)
    return made


@pytest.fixture
def honest() -> Iterator[Simulated]:
    with Simulated() as server:
        yield server


def run(capsys: pytest.CaptureFixture[str], host: Host, url: str, **changes: Any) -> dict[str, Any]:
    """Run the module in this process; its result."""
    arguments = {
        "url": url,
        "model": "enplace/smoke",
        "recipe": "enplace/smoke:cpu",
        "checks": copy.deepcopy(CHECKS),
        "engine": {"name": "vllm", "version": "0.28.0"},
        "release": "a" * 64,
        "unit": UNIT.name,
        "report": str(host.report),
        "host": {"inventory_name": "demo"},
        **changes,
    }
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_checks_run_once_and_then_the_report_holds(capsys: Any, host: Host, honest: Simulated) -> None:
    first = run(capsys, host, honest.url)
    assert (first["changed"], first["evidence"], first["why"]) == (True, "new", "there is no report yet")
    assert first["report"]["all_passed"] is True
    assert first["failures"] == []
    assert json.loads(host.report.read_text()) == first["report"]
    assert first["report"]["host"] == {"inventory_name": "demo"}
    asked = len(honest.asked)
    second = run(capsys, host, honest.url)
    assert (second["changed"], second["evidence"], second["why"]) == (False, "stored", "")
    assert second["report"] == first["report"]
    assert second["verified_at"] == first["report"]["ended"]
    assert len(honest.asked) == asked


def test_a_report_that_holds_is_found_without_the_client(
    capsys: Any, host: Host, honest: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, host, honest.url)
    for name in [name for name in sys.modules if name.split(".")[0] == "openai"]:
        monkeypatch.delitem(sys.modules, name)
    assert run(capsys, host, honest.url)["evidence"] == "stored"
    assert "openai" not in sys.modules


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"release": "b" * 64}, "release"),
        ({"checks": CHECKS[:1]}, "checks"),
        ({"again": True}, "again"),
        ({"unit": None}, "no unit"),
    ],
)
def test_checks_run_again_when_something_changed(
    capsys: Any, host: Host, honest: Simulated, changes: dict[str, Any], says: str
) -> None:
    run(capsys, host, honest.url)
    asked = len(honest.asked)
    result = run(capsys, host, honest.url, **changes)
    assert result["changed"] is True
    assert says in result["why"]
    assert len(honest.asked) > asked


def test_checks_run_again_after_a_restart_of_the_unit(capsys: Any, host: Host, honest: Simulated) -> None:
    run(capsys, host, honest.url)
    host.runs(invocation="f" * 32)
    result = run(capsys, host, honest.url)
    assert result["changed"] is True
    assert "started anew" in result["why"]
    assert run(capsys, host, honest.url)["changed"] is False


def test_check_mode_asks_and_writes_nothing_and_tells_the_truth(capsys: Any, host: Host, honest: Simulated) -> None:
    before = run(capsys, host, honest.url, _ansible_check_mode=True, _ansible_diff=True)
    assert (before["changed"], before["evidence"]) == (True, "none")
    assert "2 checks would run: there is no report yet" in before["diff"]["after"]
    assert honest.asked == []
    assert not host.report.exists()
    run(capsys, host, honest.url)
    asked, written = len(honest.asked), host.report.read_bytes()
    after = run(capsys, host, honest.url, _ansible_check_mode=True)
    assert (after["changed"], after["evidence"]) == (False, "stored")
    assert len(honest.asked) == asked
    assert host.report.read_bytes() == written


def test_check_mode_does_not_need_a_running_unit(capsys: Any, host: Host, honest: Simulated) -> None:
    host.runs(invocation="", active="inactive")
    result = run(capsys, host, honest.url, _ansible_check_mode=True)
    assert result["changed"] is True
    assert "failed" not in result


def test_a_failed_check_fails_the_module_and_is_stored(capsys: Any, host: Host) -> None:
    with Simulated("wrong_total") as server:
        result = run(capsys, host, server.url)
        assert result["failed"] is True
        assert result["changed"] is True
        assert result["msg"].startswith(f"1 of 2 checks did not pass at {server.url} (enplace/smoke):\nusage: ")
        assert "expected: total_tokens" in result["msg"]
        assert "found: total_tokens" in result["msg"]
        assert str(host.report) in result["msg"]
        assert json.loads(host.report.read_text()) == result["report"]
        again = run(capsys, host, server.url)
    assert again["failed"] is True
    assert again["why"] == "not every check passed"


def ends_with_a_stored_report(capsys: Any, host: Host, url: str, **changes: Any) -> dict[str, Any]:
    """The first check of a module run that ends as failed, soon, with its report on disk and all else not run."""
    begin = time.monotonic()
    result = run(capsys, host, url, **changes)
    assert time.monotonic() - begin < 15
    assert result["failed"] is True
    assert result["report"]["all_passed"] is False
    assert json.loads(host.report.read_text()) == result["report"]
    first, *others = result["report"]["checks"]
    assert first["status"] == "fail"
    assert first["reason"]
    assert {check["status"] for check in others} <= {"fail", "not run"}
    assert f"{first['name']}: {first['reason']}" in result["msg"]
    return dict(first)


EARLY = [{**check, "deadline_s": 2} for check in CHECKS]


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("lie", WIRE)
def test_whatever_the_wire_brings_ends_with_a_report(
    capsys: Any, host: Host, monkeypatch: pytest.MonkeyPatch, lie: str, everywhere: bool
) -> None:
    monkeypatch.setattr(reports, "VITALS_S", 1.0)
    with Simulated(lie, everywhere=everywhere) as server:
        ends_with_a_stored_report(capsys, host, server.url, checks=EARLY)


def test_a_stream_without_end_ends_with_a_report(capsys: Any, host: Host) -> None:
    with Simulated("stream_endless") as server:
        check = ends_with_a_stored_report(capsys, host, server.url, checks=EARLY[1:])
    assert check["reason"] == "the deadline passed"


def test_nobody_at_the_port_ends_with_a_report(capsys: Any, host: Host) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        check = ends_with_a_stored_report(capsys, host, url)
    assert check["reason"] == f"no answer from {url}"


def test_a_port_that_takes_connections_and_says_nothing_ends_with_a_report(
    capsys: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "VITALS_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        check = ends_with_a_stored_report(capsys, host, url, checks=EARLY)
    assert check["reason"] == "the deadline passed"


def test_another_models_name_ends_with_a_report(capsys: Any, host: Host, honest: Simulated) -> None:
    check = ends_with_a_stored_report(capsys, host, honest.url, model="enplace/other")
    assert check["reason"] == "the model is not served"
    assert "enplace/smoke" in check["found"]
    check = ends_with_a_stored_report(capsys, host, honest.url, model="enplace/other", checks=CHECKS[1:])
    assert "HTTP 404" in check["found"]
    assert "the model's name" in check["todo"]


def test_a_key_that_is_wanted_and_not_given_ends_with_a_report(capsys: Any, host: Host) -> None:
    with Simulated(key="k" * 32) as server:
        check = ends_with_a_stored_report(capsys, host, server.url)
    assert "HTTP 401" in check["found"]
    assert "enplace_api_key_file" in check["todo"]


def test_tls_where_there_is_none_ends_with_a_report(capsys: Any, host: Host, honest: Simulated) -> None:
    check = ends_with_a_stored_report(capsys, host, honest.url.replace("http:", "https:"))
    assert "SSL" in check["found"]


def test_a_certificate_that_nobody_vouches_for_ends_with_a_report(capsys: Any, host: Host, tmp_path: Path) -> None:
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*made, *names], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server = Simulated()
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    with server:
        check = ends_with_a_stored_report(capsys, host, server.url.replace("http:", "https:"))
    assert "CERTIFICATE_VERIFY_FAILED" in check["found"]
    assert server.asked == []


def test_a_stopped_unit_fails_the_module_without_a_question(capsys: Any, host: Host, honest: Simulated) -> None:
    host.runs(invocation="", active="failed")
    result = run(capsys, host, honest.url)
    assert result["failed"] is True
    assert "enplace-smoke.service is failed" in result["msg"]
    assert {check["status"] for check in result["report"]["checks"]} == {"not run"}
    assert honest.asked == []


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_wrong_parameter_is_named_before_anything_is_asked(
    capsys: Any, host: Host, honest: Simulated, check_mode: bool
) -> None:
    checks = [*CHECKS, {"check": "logprobs", "ask": "x", "topp": 5}]
    result = run(capsys, host, honest.url, checks=checks, _ansible_check_mode=check_mode)
    assert result["failed"] is True
    assert result["problems"] == ["checks[2].topp: unknown parameter of logprobs; did you mean top?"]
    assert honest.asked == []
    assert not host.report.exists()


def test_an_address_without_a_scheme_is_refused(capsys: Any, host: Host) -> None:
    result = run(capsys, host, "127.0.0.1:8000")
    assert result["failed"] is True
    assert "expected http://" in result["msg"]


def test_a_report_that_cannot_be_written_fails_but_is_returned(capsys: Any, host: Host, honest: Simulated) -> None:
    host.report.parent.parent.write_text("a file where a folder belongs")
    result = run(capsys, host, honest.url)
    assert result["failed"] is True
    assert str(host.report) in result["msg"]
    assert result["report"]["all_passed"] is True


def test_without_the_client_nothing_is_asked(
    capsys: Any, host: Host, honest: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_client", lambda: False)
    result = run(capsys, host, honest.url)
    assert result["failed"] is True
    assert "openai" in result["msg"]
    assert honest.asked == []


def test_diff_shows_what_each_check_said_before_and_says_now(capsys: Any, host: Host) -> None:
    with Simulated() as server:
        run(capsys, host, server.url)
        server.lie = "wrong_total"
        result = run(capsys, host, server.url, again=True, _ansible_diff=True)
    assert "usage: pass" in result["diff"]["before"]
    assert "usage: fail" in result["diff"]["after"]
