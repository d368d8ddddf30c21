# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What a recipe says the engine refuses: it must be refused, with HTTP 400 and a message, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import CHECKS

from tests.sim.liar import Simulated

WHY = "not under speculation"
ASK = "Where are the boats?"
# What a request of each check has, and a plain one has not.
KEYS = {
    "logprobs": "logprobs",
    "prompt_logprobs": "prompt_logprobs",
    "json_schema": "response_format",
    "logit_bias": "logit_bias",
    "min_p": "min_p",
    "min_tokens": "min_tokens",
    "bad_words": "bad_words",
    "seed": "seed",
}


@pytest.fixture(autouse=True)
def _settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "SETTLE_S", 0.3)


def verify(server: Simulated, *names: str) -> dict[str, Any]:
    checks = [
        {"check": name, "refused": WHY, **({"ask": ASK} if "ask" in CHECKS[name].parameters else {})} for name in names
    ]
    subject = reports.Subject(server.url, "enplace/smoke", "", "0" * 64, {"version": "0.28.0"}, checks)
    return reports.run(subject, {}, None, lambda: None)


def test_every_check_that_may_be_refused_is_here() -> None:
    assert set(KEYS) == {name for name, spec in CHECKS.items() if "refused" in spec.parameters}


def test_what_is_refused_as_declared_is_good_and_not_passed() -> None:
    with Simulated(refuses=tuple(KEYS.values())) as server:
        report = verify(server, *KEYS)
    assert report["all_passed"] is True, reports.messages(report)
    for check in report["checks"]:
        assert (check["status"], check["reason"]) == ("refused", WHY)
        assert check["evidence"]["status"] == 400
        assert "is not supported" in check["evidence"]["message"]
        assert check["evidence"]["completions"] == 2
    assert reports.tally(report["checks"]) == "0 of 8 passed, 8 refused as declared"


@pytest.mark.parametrize("name", KEYS)
def test_what_is_answered_must_not_be_declared_as_refused(name: str) -> None:
    with Simulated() as server:
        report = verify(server, name)
    assert report["all_passed"] is False
    assert report["checks"][0]["status"] == "fail"
    assert report["checks"][0]["reason"] == "the engine does what the recipe says it refuses"


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        ("refuses_with_500", "the refusal is not one"),
        ("refuses_without_a_word", "the refusal is not one"),
        ("refuses_and_dies", "was refused"),
        ("refuses_all", "was refused"),
        ("stall", "deadline passed"),
        ("html", "not JSON"),
    ],
)
@pytest.mark.parametrize("name", ["logit_bias", "json_schema"])
def test_an_error_of_another_kind_is_no_refusal(lie: str, says: str, name: str) -> None:
    with Simulated(lie, refuses=tuple(KEYS.values())) as server:
        check = {"check": name, "refused": WHY, "deadline_s": 2, **({"ask": ASK} if name == "logit_bias" else {})}
        subject = reports.Subject(server.url, "enplace/smoke", "", "0" * 64, {"version": "0.28.0"}, [check])
        report = reports.run(subject, {}, None, lambda: None)
    assert report["all_passed"] is False
    assert report["checks"][0]["status"] == "fail"
    assert says in report["checks"][0]["reason"]


def test_a_server_that_is_unwell_after_a_refusal_fails() -> None:
    with Simulated("unhealthy_after", refuses=("min_p",)) as server:
        report = verify(server, "min_p", "seed")
    assert [check["status"] for check in report["checks"]] == ["fail", "not run"]


def test_what_is_refused_though_the_recipe_does_not_say_so_fails() -> None:
    with Simulated(refuses=("min_p",)) as server:
        subject = reports.Subject(
            server.url, "enplace/smoke", "", "0" * 64, {"version": "0.28.0"}, [{"check": "min_p", "ask": ASK}]
        )
        (check,) = reports.run(subject, {}, None, lambda: None)["checks"]
    assert (check["status"], check["reason"]) == ("fail", "POST /v1/chat/completions was refused")
    assert "min_p is not supported" in check["found"]


@pytest.mark.parametrize(
    ("status", "good"),
    [("pass", True), ("refused", True), ("fail", False), ("not run", False), ("", False), (None, False), (True, False)],
)
def test_two_statuses_speak_for_a_server_and_all_else_does_not(status: Any, good: bool) -> None:
    assert reports.good({"name": "x", "status": status}) is good


def test_what_is_no_check_does_not_speak_for_a_server() -> None:
    assert not any(map(reports.good, [None, "pass", [], {}]))


def test_a_tally_tells_the_refused_from_the_passed() -> None:
    checks = [{"status": status} for status in ("pass", "refused", "fail", "not run", "pass")]
    assert reports.tally(checks) == "2 of 5 passed, 1 refused as declared"
    assert reports.tally(checks[:1]) == "1 of 1 passed"
    assert reports.tally([]) == ""
