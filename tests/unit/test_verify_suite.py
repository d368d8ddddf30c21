# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Every check against a simulated server: it passes an honest one, and fails for each lie that concerns it."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import Vitals, parse_metrics

from tests.sim.liar import ANSWERS, LIES, WIRE, Simulated

PROMPTS = [{"ask": ask, "expect": [answer]} for ask, answer in ANSWERS.items()]
CHECKS: dict[str, dict[str, Any]] = {
    "identity": {"check": "identity", "version": "0.28.0", "model": "enplace/smoke", "context": 4096},
    "known_answers": {"check": "known_answers", "prompts": PROMPTS},
    "known_answers_in_flight": {"check": "known_answers_in_flight", "prompts": PROMPTS, "requests": 8},
    "logprobs": {"check": "logprobs", "ask": "Where are the boats?", "top": 20},
    "usage": {"check": "usage", "ask": "Where are the boats?"},
}

# For each lie, the checks that must find it. The others must pass: a check that fails for anything proves little.
EVERY = tuple(CHECKS)
FOUND_BY: dict[str, tuple[str, ...]] = {
    "wrong_version": ("identity",),
    "wrong_model": ("identity",),
    "wrong_context": ("identity",),
    "other_model_answers": ("identity",),
    "any_name": ("identity",),
    "wrong_answer": ("known_answers", "known_answers_in_flight"),
    "inside_a_number": ("known_answers", "known_answers_in_flight"),
    "says_everything": ("known_answers", "known_answers_in_flight"),
    "cut_short": ("known_answers", "known_answers_in_flight"),
    "empty_text": ("known_answers", "known_answers_in_flight"),
    "crossed_rows": ("known_answers_in_flight",),
    "wrong_in_batch": ("known_answers_in_flight",),
    "one_at_a_time": ("known_answers_in_flight",),
    "no_ignore_eos": ("known_answers_in_flight", "usage"),
    "top_capped": ("logprobs",),
    "no_logprobs": ("logprobs",),
    "shifted_rows": ("logprobs",),
    "missing_row": ("logprobs",),
    "placeholder": ("logprobs",),
    "doubled_entries": ("logprobs",),
    "unsorted": ("logprobs",),
    "certain": ("logprobs",),
    "not_finite": ("logprobs",),
    "frames_as_tokens": ("known_answers_in_flight", "usage"),
    "prompt_off_by_one": ("usage",),
    "wrong_total": ("usage",),
    "no_usage_in_stream": ("known_answers_in_flight", "usage"),
    "constant_usage": ("known_answers_in_flight", "usage"),
    "tokenize_wrong": ("usage",),
    "stream_cut": ("known_answers_in_flight", "usage"),
    "stream_error": ("known_answers_in_flight", "usage"),
    "stream_endless": ("known_answers_in_flight", "usage"),
    "restarts": EVERY,
    "counter_falls": EVERY,
    "answers_from_elsewhere": EVERY,
    "no_metrics": EVERY,
    "unhealthy_after": EVERY,
}
# What the message must say, where a lie could be found for a wrong reason.
SAYS = {
    "wrong_version": "version differs",
    "wrong_model": "not served",
    "wrong_context": "context length",
    "other_model_answers": "names another model",
    "any_name": "not refused",
    "wrong_answer": "7/8 answers are right",
    "inside_a_number": "7/8 answers are right",
    "says_everything": "another prompt's answer",
    "cut_short": "did not end by itself",
    "empty_text": "0/8 answers are right",
    "crossed_rows": "differ from those alone",
    "wrong_in_batch": "differ from those alone",
    "one_at_a_time": "never decoded side by side",
    "top_capped": "not 20 distinct entries",
    "shifted_rows": "another token",
    "missing_row": "not one row for every token",
    "placeholder": "placeholders",
    "doubled_entries": "not 20 distinct entries",
    "unsorted": "not in order",
    "certain": "add up to more than 1",
    "not_finite": "not log-probabilities",
    "restarts": "started anew",
    "counter_falls": "fell from",
    "answers_from_elsewhere": "something else answered",
    "no_metrics": "would go unseen",
    "gigabyte": "too large",
    "compressed": "compressed",
    "invalid_json": "not JSON",
    "invalid_utf8": "not text",
    "html": "not JSON",
    "json_list": "no object",
    "trickle": "deadline passed",
    "stall": "deadline passed",
    "stream_endless": "deadline passed",
    "error_500": "refused",
    "error_401": "refused",
    "redirect": "refused",
    "broken_off": "no answer",
}


@pytest.fixture(autouse=True)
def _settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated server counts at once; nothing is to be waited for."""
    monkeypatch.setattr(reports, "SETTLE_S", 0.3)


def verify(url: str, *names: str, deadlines: dict[str, int] | None = None) -> dict[str, Any]:
    early = deadlines or {}
    checks = [{**CHECKS[name], **({"deadline_s": early[name]} if name in early else {})} for name in names]
    subject = reports.Subject(url, "enplace/smoke", "", "0" * 64, {"name": "vllm", "version": "0.28.0"}, checks)
    return reports.run(subject, {}, None, lambda: None)


def test_an_honest_server_passes_everything() -> None:
    with Simulated() as server:
        report = verify(server.url, *CHECKS)
    assert reports.messages(report) == []
    assert report["all_passed"] is True
    assert [check["status"] for check in report["checks"]] == ["pass"] * 5
    for check in report["checks"]:
        assert check["asked"]
        assert check["demanded"]
        assert check["evidence"]["completions"] >= 1


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_by_its_checks_and_by_no_other(lie: str) -> None:
    # Only what never ends needs an early deadline; a check that passes must not depend on how busy this machine is.
    early = FOUND_BY[lie] if lie == "stream_endless" else ()
    with Simulated(lie) as server:
        report = verify(server.url, *CHECKS, deadlines=dict.fromkeys(early, 3))
    assert report["all_passed"] is False
    found = {check["name"]: check["reason"] for check in report["checks"] if check["status"] == "fail"}
    if FOUND_BY[lie] == EVERY:  # after the first, nothing more is asked of a process that is not the same
        assert [check["status"] for check in report["checks"]] == ["fail", *["not run"] * 4]
    else:
        assert tuple(found) == FOUND_BY[lie], reports.messages(report)
    for reason in found.values():
        assert SAYS.get(lie, "") in reason


def test_every_check_has_two_lies_of_its_own_and_every_lie_a_check() -> None:
    assert set(FOUND_BY) == set(LIES)
    for name in CHECKS:
        assert sum(name in found and found != EVERY for found in FOUND_BY.values()) >= 2, name
    assert all(FOUND_BY.values())


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("lie", WIRE)
def test_whatever_the_wire_brings_ends_as_a_failed_check(lie: str, name: str) -> None:
    with Simulated(lie) as server:
        report = verify(server.url, name, deadlines={name: 1} if lie in ("trickle", "stall") else {})
    check = report["checks"][0]
    assert check["status"] == "fail"
    assert SAYS[lie] in check["reason"]
    assert reports.messages(report)[0].startswith(f"{name}: {check['reason']}\n  expected: ")


def test_a_closed_port_fails_the_first_check_and_leaves_the_others_unasked() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        report = verify(url, *CHECKS)
    assert [check["status"] for check in report["checks"]] == ["fail", *["not run"] * 4]
    assert report["all_passed"] is False
    first = report["checks"][0]
    assert first["reason"] == f"no answer from {url}"
    assert "refused" in first["found"]
    assert "unit runs" in first["todo"]
    assert all("no answer" in check["reason"] for check in report["checks"][1:])


def test_a_server_that_dies_between_checks_is_found() -> None:
    with Simulated("restarts") as server:
        report = verify(server.url, "known_answers", "logprobs")
    assert [check["status"] for check in report["checks"]] == ["fail", "not run"]


def test_a_unit_that_is_not_active_is_not_asked() -> None:
    unit = reports.Unit("enplace-x.service", "", "failed", 3)
    with Simulated() as server:
        subject = reports.Subject(server.url, "enplace/smoke", "", "0", {"version": "0.28.0"}, [CHECKS["identity"]])
        report = reports.run(subject, {}, unit, lambda: unit)
        assert server.asked == []
    assert report["all_passed"] is False
    assert report["checks"][0]["status"] == "not run"
    assert "enplace-x.service is failed" in reports.messages(report)[0]


def test_a_unit_that_was_started_anew_meanwhile_spoils_the_report() -> None:
    before = reports.Unit("enplace-x.service", "a" * 32, "active", 0)
    after = reports.Unit("enplace-x.service", "b" * 32, "active", 1)
    with Simulated() as server:
        subject = reports.Subject(server.url, "enplace/smoke", "", "0", {"version": "0.28.0"}, [{"check": "identity"}])
        report = reports.run(subject, {}, before, lambda: after)
    assert [check["status"] for check in report["checks"]] == ["pass"]
    assert report["all_passed"] is False
    assert "did not stay up" in reports.messages(report)[0]


def test_replies_known_from_alone_are_not_asked_for_twice() -> None:
    with Simulated() as server:
        verify(server.url, "known_answers")
        once = server.asked.count("POST /v1/chat/completions")
        verify(server.url, "known_answers", "known_answers_in_flight")
        both = server.asked.count("POST /v1/chat/completions") - once
    assert (once, both) == (8, 8 + 8 + 8)


def test_two_requests_in_flight_are_a_batch_of_two() -> None:
    batch = {**CHECKS["known_answers_in_flight"], "requests": 3, "prompts": PROMPTS[:2]}
    with Simulated() as server:
        subject = reports.Subject(server.url, "enplace/smoke", "", "0", {"version": "0.28.0"}, [batch])
        report = reports.run(subject, {}, None, lambda: None)
    assert report["checks"][0]["evidence"]["passed"] == "3/3", reports.messages(report)


def test_metrics_are_summed_over_labels_by_their_exact_name() -> None:
    page = (
        "# HELP x\n"
        'vllm:request_success_total{a="1 2"} 3.0\n'
        'vllm:request_success_total{a="}"} 4\n'
        'vllm:request_success_created{a="1"} 1.7e+09\n'
        "process_start_time_seconds 1.7e+09 1700\n"
        "nonsense\nx NaN\nx abc\n"
    )
    totals = parse_metrics(page)
    assert totals["vllm:request_success_total"] == 7
    assert totals["process_start_time_seconds"] == 1.7e9
    assert "x" not in totals


def test_vitals_without_a_counter_still_tell_a_restart() -> None:
    assert Vitals(1.0, None).since(Vitals(1.0, None)) == ""
    assert "anew" in Vitals(2.0, None).since(Vitals(1.0, None))
    assert "came or went" in Vitals(1.0, 5.0).since(Vitals(1.0, None))
