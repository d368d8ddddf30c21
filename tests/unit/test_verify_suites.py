# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Suites: which checks are asked when, for how long, and what is left of a run that was interrupted."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.verify import checks as table
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports
from ansible_collections.enplace.inference.plugins.plugin_utils import audit
from ansible_collections.enplace.inference.plugins.plugin_utils import plan as planner
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import RECIPES, RecipeError

from tests.sim.liar import ANSWERS, Simulated

ASK = "Where are the boats?"
CHECKS: list[dict[str, Any]] = [
    {"check": "identity", "context": 4096},
    {"check": "usage", "ask": ASK},
    {"check": "needles", "tokens": [600], "depths": 1, "suite": "full"},
    {"check": "healthy"},
]
FIGURE = {"name": "decode", "value": 1.0}


@pytest.fixture(autouse=True)
def _settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "SETTLE_S", 0.3)


@pytest.fixture
def server() -> Iterator[Simulated]:
    with Simulated() as made:
        yield made


def subject(server: Simulated, suite: str = "full", checks: list[dict[str, Any]] | None = None) -> reports.Subject:
    engine = {"name": "vllm", "version": "0.28.0"}
    asked = table.of_suite(checks or CHECKS, suite)
    return reports.Subject(server.url, "enplace/smoke", "", "0" * 64, engine, asked, suite=suite)


def names(suite: str) -> list[str]:
    return [check["check"] for check in table.of_suite(CHECKS, suite)]


# ---- which checks


def test_the_gate_leaves_out_what_only_somebody_who_wants_to_know_asks() -> None:
    assert names("gate") == names("bench") == ["identity", "usage", "healthy"]
    assert names("full") == names("soak") == ["identity", "usage", "needles", "healthy"]


@pytest.mark.parametrize(
    ("checks", "says"),
    [
        ([{"check": "healthy", "suite": "slow"}], "checks[0].suite: expected gate or full, found 'slow'"),
        ([{"check": "healthy", "suite": "bench"}], "checks[0].suite: expected gate or full, found 'bench'"),
        ([{"check": "healthy", "suite": ["gate"]}], "checks[0].suite: expected gate or full, found ['gate']"),
        ([{"check": "healthy", "suite": "full"}], "none is of the gate"),
        (
            [
                {"check": "known_answers", "prompts": [], "suite": "full"},
                {"check": "known_answers_in_flight"},
            ],
            "checks[1].prompts: missing, and no known_answers of the gate before it has any",
        ),
    ],
)
def test_a_suite_that_is_none_or_lacks_what_it_needs(checks: list[dict[str, Any]], says: str) -> None:
    assert any(says in problem for problem in table.validate_checks(checks)), table.validate_checks(checks)


# ---- a run that is interrupted


def test_a_run_tells_what_it_has_after_each_check(server: Simulated) -> None:
    told: list[dict[str, Any]] = []
    whole = reports.run(subject(server), {}, None, lambda: None, lambda report: told.append(copy.deepcopy(report)))
    statuses = [[check["status"] for check in report["checks"]] for report in told]
    assert statuses == [
        ["pass", "not run", "not run", "not run"],
        ["pass", "pass", "not run", "not run"],
        ["pass", "pass", "pass", "not run"],
        ["pass", "pass", "pass", "pass"],
    ]
    assert [report["complete"] or report["all_passed"] for report in told] == [False] * 4
    assert (whole["complete"], whole["all_passed"], whole["subject"]["suite"]) == (True, True, "full")


def interrupted(server: Simulated, path: Path) -> None:
    """A run that ends before its report is stored, as one that was killed does."""
    tell = reports.keep_unfinished(str(path))

    def until_the_second(report: dict[str, Any]) -> None:
        tell(report)
        if report["checks"][1]["status"] == "pass":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reports.run(subject(server), {}, None, lambda: None, until_the_second)


def test_what_an_interrupted_run_found_is_kept_and_stands_for_nothing(server: Simulated, tmp_path: Path) -> None:
    path = tmp_path / "full" / "latest.json"
    interrupted(server, path)
    assert not path.exists()
    left = json.loads((path.parent / reports.UNFINISHED).read_text(encoding="utf-8"))
    assert [check["status"] for check in left["checks"]] == ["pass", "pass", "not run", "not run"]
    assert "interrupted" in reports.why_not(left, subject(server), None)
    # The next one makes an earlier report of it.
    whole = reports.run(subject(server), {}, None, lambda: None, reports.keep_unfinished(str(path)))
    reports.store(str(path), whole)
    assert not (path.parent / reports.UNFINISHED).exists()
    stored = [json.loads(entry.read_text(encoding="utf-8")) for entry in path.parent.glob("2*.json")]
    assert sorted(report["complete"] for report in stored) == [False, True]
    assert json.loads(path.read_text(encoding="utf-8"))["complete"] is True


def test_a_report_that_holds_is_not_touched_by_a_run_that_is_interrupted(server: Simulated, tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    reports.store(str(path), reports.run(subject(server), {}, None, lambda: None))
    before = path.read_bytes()
    interrupted(server, path)
    assert path.read_bytes() == before


def test_a_disk_that_takes_nothing_does_not_end_a_run(server: Simulated, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    path = tmp_path / "file" / "latest.json"
    report = reports.run(subject(server), {}, None, lambda: None, reports.keep_unfinished(str(path)))
    assert report["all_passed"] is True
    with pytest.raises(OSError, match="file"):
        reports.store(str(path), report)


# ---- soak and bench


def test_a_soak_begins_anew_until_its_time_is_over(server: Simulated) -> None:
    report = reports.run(subject(server, "soak"), {}, None, lambda: None, soak_s=2.0)
    assert report["rounds"] >= 2
    assert report["seconds"] >= 2.0
    assert report["all_passed"] is True
    assert [check["name"] for check in report["checks"]] == names("soak")


def test_a_soak_ends_with_the_round_that_does_not_pass(server: Simulated) -> None:
    def tell(report: dict[str, Any]) -> None:
        if report.get("rounds") == 2:
            server.lie = "wrong_version"

    report = reports.run(subject(server, "soak"), {}, None, lambda: None, tell, soak_s=60.0)
    assert report["rounds"] == 3
    assert (report["complete"], report["all_passed"]) == (True, False)
    assert report["checks"][0]["status"] == "fail"


@pytest.mark.parametrize("suite", ["gate", "full", "bench"])
def test_only_a_soak_has_rounds(server: Simulated, suite: str) -> None:
    report = reports.run(subject(server, suite), {}, None, lambda: None, soak_s=60.0)
    assert "rounds" not in report
    assert "figures" not in report


Measured = Callable[[Callable[[list[dict[str, Any]]], None]], list[dict[str, Any]]]


def test_figures_are_in_the_report_and_told_as_they_come(server: Simulated) -> None:
    told: list[Any] = []

    def measure(tell: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
        tell([FIGURE])
        return [FIGURE, FIGURE]

    report = reports.run(
        subject(server, "bench"),
        {},
        None,
        lambda: None,
        lambda so_far: told.append(len(so_far.get("figures", []))),
        measure=measure,
    )
    assert (report["figures"], report["all_passed"]) == ([FIGURE, FIGURE], True)
    assert told == [0, 0, 0, 1, 2]


def test_a_server_that_does_not_pass_is_not_measured() -> None:
    def measure(tell: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
        raise AssertionError("it was measured")

    with Simulated("wrong_version") as liar:
        report = reports.run(subject(liar, "bench"), {}, None, lambda: None, measure=measure)
    assert report["all_passed"] is False
    assert "figures" not in report


def test_what_cannot_be_measured_is_a_problem_and_no_figure(server: Simulated) -> None:
    def measure(tell: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
        raise Failure("vllm bench serve failed", found="exit status 1")

    report = reports.run(subject(server, "bench"), {}, None, lambda: None, measure=measure)
    assert "figures" not in report
    assert report["all_passed"] is False
    assert "vllm bench serve failed" in report["problems"][0]


# ---- servers that somebody else made


FOREIGN: list[dict[str, Any]] = [
    {"check": "known_answers", "prompts": [{"ask": ask, "expect": [answer]} for ask, answer in ANSWERS.items()]},
    {"check": "tool_call", "calls": 2},
    {"check": "json_schema"},
]


def test_a_server_that_tells_nothing_of_itself_is_asked_all_the_same_and_that_is_said() -> None:
    with Simulated("tells_nothing") as liar:
        asked = replace(subject(liar, checks=FOREIGN), release="")
        report = reports.run(asked, {}, None, lambda: None)
        managed = reports.run(replace(asked, release="a" * 64), {}, None, lambda: None)
        healthy = reports.run(replace(asked, checks=[{"check": "healthy"}]), {}, None, lambda: None)
    assert (report["all_passed"], [check["status"] for check in report["checks"]]) == (True, ["pass"] * 3)
    (note,) = report["notes"]
    assert "would go unseen" in note
    # Of a server that enplace made it is demanded; and what asks for it fails for anybody's.
    assert managed["all_passed"] is False
    assert managed["notes"] == []
    assert healthy["checks"][0]["status"] == "fail"


def test_a_server_that_ceases_to_tell_is_not_believed(server: Simulated) -> None:
    def tell(report: dict[str, Any]) -> None:
        if report["checks"][1]["status"] == "not run":
            server.lie = "tells_nothing"

    asked = replace(subject(server, checks=FOREIGN), release="")
    report = reports.run(asked, {}, None, lambda: None, tell)
    assert [check["status"] for check in report["checks"]] == ["pass", "fail", "not run"]
    assert "would go unseen" in report["checks"][1]["reason"]


# ---- what the playbook asks


def settings(**changes: Any) -> dict[str, Any]:
    given = {"recipes": ["enplace/smoke:cpu"], **changes}
    return planner.read_settings({f"enplace_{name}": value for name, value in given.items()})


def targets(asked: dict[str, Any]) -> list[planner.Target]:
    return planner.find_targets(asked, [RECIPES])


def of_address(**changes: Any) -> dict[str, Any]:
    asked = settings(**{"verify_url": "http://10.0.0.1:8000", **changes})
    (found,) = audit.of_address(targets(asked), asked, sys.executable)
    return found


def test_a_server_known_by_its_address_is_asked_what_the_recipe_asks() -> None:
    found = of_address()
    assert (found["here"], found["unit"], found["report"], found["python"]) == (True, "", "", sys.executable)
    assert (found["slug"], found["suite"]) == ("10-0-0-1-8000.full", "full")
    assert (found["model"], found["engine"]["version"]) == ("enplace/smoke", "0.28.0")
    assert "known_answers" in [check["check"] for check in found["checks"]]
    assert found["limit_s"] > sum(check.get("deadline_s", 60) for check in found["checks"])
    without = of_address(verify_without=["log_line", "libraries", "no_errors"], verify_model="m", verify_version="1.2")
    assert {"log_line", "libraries", "no_errors"}.isdisjoint(check["check"] for check in without["checks"])
    assert (without["model"], without["engine"]["version"]) == ("m", "1.2")


@pytest.mark.parametrize("given", ["http://10.0.0.1:8000/", "http://10.0.0.1:8000/v1", "http://10.0.0.1:8000/v1/"])
def test_an_address_may_be_written_as_clients_write_it(given: str) -> None:
    found = of_address(verify_url=given)
    assert (found["url"], found["slug"]) == ("http://10.0.0.1:8000", "10-0-0-1-8000.full")


def test_the_suite_bench_measures_what_the_recipe_says_beside_its_figures() -> None:
    found = of_address(verify_suite="bench")
    variant = planner.find_targets(settings(), [RECIPES])[0].variant
    assert (found["bench"], found["figures"]) == (variant["bench"], variant.get("figures", []))
    assert found["bench"]
    assert (of_address()["bench"], of_address()["figures"]) == ([], [])


def test_checks_of_ones_own_need_no_recipe() -> None:
    checks = [{"check": "identity", "version": "0.11.0"}, {"check": "healthy"}]
    found = of_address(recipes=None, verify_checks=checks, verify_model="m")
    assert (found["checks"], found["recipe"], found["engine"]) == (checks, "", {"name": "", "version": ""})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"recipes": None, "verify_checks": [{"check": "healthy"}]}, "the model's name is not known"),
        ({"verify_checks": [{"check": "helthy"}], "verify_model": "m"}, "did you mean healthy"),
        ({"verify_without": ["log_lime"]}, "did you mean log_line"),
        ({"verify_suite": "soak"}, "it is not said for how long"),
        (
            {"verify_checks": [{"check": "healthy"}], "verify_model": "m", "verify_without": ["healthy"]},
            "has no checks",
        ),
        ({"verify_checks": [{"check": "healthy"}], "verify_model": "m", "verify_suite": "bench"}, "nothing to measure"),
        ({"verify_suite": "fast"}, "one of gate, full, bench, soak"),
        ({"verify_hours": 0}, "a number above 0"),
        ({"verify_hours": "x"}, "a number above 0"),
        ({"recipes": None}, "enplace_recipes"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anybody_is_asked(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError) as error:
        of_address(**changes)
    assert says in "\n".join(map(str, error.value.problems))


def of_host(
    suite: str, current: str = "0123", active: str = "active", standby: bool = False, **changes: Any
) -> list[dict[str, Any]]:
    asked = settings(verify_suite=suite, verify_hours=0.5, **changes)
    release = "0123" * 16
    server = {
        **dict.fromkeys(("recipe", "url", "model", "unit", "python", "api_key_file"), "x"),
        "engine": {"name": "vllm", "version": "0.28.0"},
        "release": release,
        "standby": standby,
        "report": "/var/lib/enplace/reports/enplace-smoke-cpu/latest.json",
    }
    seen = {"current": current, "release": "0123", "active": active, "unit": "enplace-enplace-smoke-cpu.service"}
    other = {"current": "4567", "release": "4567", "active": "active", "unit": "enplace-other.service"}
    slug = "enplace-smoke-cpu"
    state = {"servers": {slug: seen, "other": other}}
    return audit.of_host(targets(asked), {"servers": {slug: server}}, state, asked)


def test_a_host_is_asked_where_its_servers_run() -> None:
    (found,) = of_host("soak")
    assert (found["here"], found["slug"], found["soak_hours"]) == (False, "enplace-smoke-cpu.soak", 0.5)
    assert found["report"] == "/var/lib/enplace/reports/enplace-smoke-cpu/soak/latest.json"
    assert found["limit_s"] > 1800
    assert (found["start"], found["instead_of"]) == (False, [])


def test_a_server_that_stands_by_is_started_only_when_told_to() -> None:
    assert of_host("full", active="inactive", standby=True) == []
    (found,) = of_host("full", active="inactive", standby=True, verify_standby=True)
    assert (found["start"], found["instead_of"]) == (True, ["enplace-other.service"])
    (runs,) = of_host("full", standby=True, verify_standby=True)
    assert (runs["start"], runs["instead_of"]) == (False, [])


@pytest.mark.parametrize(
    ("current", "says"), [("9999", "another release serves than the recipe says"), ("", "nothing serves")]
)
def test_a_recipe_says_nothing_about_another_release(current: str, says: str) -> None:
    with pytest.raises(RecipeError) as error:
        of_host("full", current=current)
    assert says in str(error.value.problems[0])
    assert "run site.yml first" in str(error.value.problems[0])
