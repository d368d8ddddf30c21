# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What is made of reports: their schema holds for real ones; pages show all and obey nothing; garbage is refused."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from enplace import charts, report
from enplace.main import main
from tests.sim import reports

SCHEMA = json.loads(report.SCHEMA.read_text(encoding="utf-8"))
MARKUP = "<script>alert(1)</script><img src=http://192.0.2.1/x.png>"


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    return reports.made()


@pytest.fixture
def bad(good: dict[str, Any]) -> dict[str, Any]:
    """One check of each status, a problem beside them, and markup in all of them."""
    made: dict[str, Any] = json.loads(json.dumps(good))
    states = [("fail", "wrong"), ("refused", "it has none"), ("not run", "it was gone")]
    for check, (status, reason) in zip(made["checks"][1:], states, strict=False):
        check |= {"status": status, "reason": f"{reason} {MARKUP}", "evidence": {"text": MARKUP}}
    made["checks"][1] |= {"expected": "42", "found": "43", "todo": "look | there"}
    return {**made, "all_passed": False, "problems": [f"it did not stay up {MARKUP}"]}


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("lie", ["", "wrong_answer", "wrong_model", "unhealthy_after", "wrong_context"])
def test_reports_of_real_runs_have_the_form_of_the_schema(lie: str) -> None:
    made = reports.made(lie)
    jsonschema.validate(made, SCHEMA)
    assert made["all_passed"] is (lie == "")


def test_measured_figures_have_the_form_of_the_schema(good: dict[str, Any]) -> None:
    jsonschema.validate({**good, "figures": reports.figures()}, SCHEMA)


def without(key: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        del data[key]

    return change


def put(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (without("checks"), "checks"),
        (put("format", 2), "format"),
        (put("extra", 1), "extra"),
        (put("ended", "yesterday"), "ended"),
        (put("figures", [reports.figure("decode", "tokens/s", 1.0, streams=0)]), "figures[0].streams"),
        (put("figures", [reports.figure("decode", "tokens/s", 1.0, values=[])]), "figures[0].values"),
        (lambda data: data["checks"][0].update(status="skipped"), "checks[0].status"),
        (lambda data: data["subject"].pop("release"), "subject.release"),
    ],
)
def test_a_file_that_is_no_report_is_named_with_its_field_and_the_others_are_written(
    tmp_path: Path,
    good: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
    field: str,
) -> None:
    broken = json.loads(json.dumps(good))
    change(broken)
    path = reports.put(tmp_path, broken, host="a-broken")
    other = reports.put(tmp_path, good, host="b-good")
    assert main(["report", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert str(path) in said.err
    assert field in said.err
    for word in ("found:", "expected:", "to do:"):
        assert word in said.err
    assert "b-good/enplace-smoke-cpu: passed: 6 of 6 checks passed" in said.out
    assert other.with_suffix(".html").is_file()
    assert not path.with_suffix(".html").exists()
    assert "a-broken/enplace-smoke-cpu.json" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": NaN}', b"\xff\xfe", b"[" * 100_000, b"[]"])
def test_garbage_is_told_and_not_thrown(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert main(["report", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
    assert path.read_bytes() == content


def test_a_path_without_reports_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        assert main(["report", str(path)]) == 2
        assert str(path) in capsys.readouterr().err


def test_a_report_is_read_and_never_written(tmp_path: Path, good: dict[str, Any]) -> None:
    path = reports.put(tmp_path, good)
    before = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
    assert main(["report", str(path)]) == 0
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before
    names = {each.name for each in path.parent.iterdir()}
    assert names == {*(f"enplace-smoke-cpu.{kind}" for kind in ("json", "html", "md", "xml")), "history"}


def test_junit_has_a_case_for_each_check_and_each_problem(tmp_path: Path, bad: dict[str, Any]) -> None:
    root = ElementTree.fromstring(report.junit(report.read(reports.put(tmp_path, bad))))
    suite = root[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "7",
        "failures": "2",
        "errors": "0",
        "skipped": "1",
    }
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    failure = cases["known_answers"].find("failure")
    assert failure is not None
    assert "found: 43" in (failure.text or "")
    assert [child.tag for child in cases["identity"]] == []
    assert [child.tag for child in cases["logprobs"]] == ["system-out"]
    assert "it has none" in (cases["logprobs"][0].text or "")
    assert cases["usage"][0].tag == "skipped"
    assert "it was gone" in (cases["usage"][0].get("message") or "")


def test_characters_that_xml_may_not_hold_are_made_visible(tmp_path: Path, bad: dict[str, Any]) -> None:
    bad["checks"][1]["reason"] = "a\x00b\x1b[31m\ud800\uffffc"
    found = report.read(reports.put(tmp_path, json.loads(json.dumps(bad).replace(r"\ud800", ""))))
    ElementTree.fromstring(report.junit(found))
    assert "\x1b" not in report.markdown(found) + report.page(found, [])


def test_markdown_keeps_text_of_a_server_within_its_cell(tmp_path: Path, bad: dict[str, Any]) -> None:
    text = report.markdown(report.read(reports.put(tmp_path, bad)))
    assert "| Check | Result |" in text
    assert r"look \| there" in text
    assert "<script>" not in text.replace(r"\<", "")
    assert "http://192" not in text
    assert "## Performance" not in text


def test_a_page_shows_markup_as_text(tmp_path: Path, bad: dict[str, Any]) -> None:
    text = report.page(report.read(reports.put(tmp_path, bad)), [])
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("&lt;script&gt;") >= 4
    assert "<svg" not in text


def test_a_page_has_charts_and_the_recipes_figures_only_where_figures_were_measured(
    tmp_path: Path, good: dict[str, Any]
) -> None:
    found = report.read(reports.put(tmp_path, {**good, "figures": reports.figures()}))
    text = report.page(found, [])
    assert text.count("<svg") == 3
    assert "61.0, ±5%" in text
    assert "not within" in text
    assert "58.8 to 60.6 in 3 passes" in text
    assert "| Test | Result |" in report.markdown(found)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "pass"),
        ({"problems": ["it fell"]}, "fail"),
        ({"complete": False}, "fail"),
        ({"all_passed": False}, "fail"),
        ({"checks": []}, "not run"),
        ({"figures": [reports.figure("decode", "tokens/s", 1.0, alarms=["noise"])]}, "pass"),
        ({"figures": [reports.figure("decode", "tokens/s", 1.0, within=True)]}, "pass"),
        ({"figures": [reports.figure("decode", "tokens/s", 1.0, within=False)]}, "warning"),
        ({"figures": [reports.figure("decode", "tokens/s", 1.0, within=False)], "all_passed": False}, "fail"),
    ],
)
def test_a_report_passed_only_where_all_of_it_did(
    tmp_path: Path, good: dict[str, Any], changes: dict[str, Any], status: str
) -> None:
    assert report.read(reports.put(tmp_path, {**good, **changes})).status == status


def test_a_figure_outside_its_tolerance_and_an_alarm_are_seen_first_and_fail_nothing(
    tmp_path: Path, good: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = reports.put(tmp_path, {**good, "figures": reports.figures()})
    assert main(["report", str(tmp_path)]) == 0
    assert "passed, figures outside tolerance: 6 of 6 checks passed, 1 figure outside" in capsys.readouterr().out
    outside = "decode, 1 stream, prompt of 2,048 tokens: 55.5 tokens/s is not within the recipe's 75.0, ±5%"
    alarm = "Alarm: noise: the passes differ by more than the tolerance (decode, 1 stream, prompt of 8,192 tokens)"
    page = path.with_suffix(".html").read_text(encoding="utf-8")
    for text in ("passed, figures outside tolerance", outside.replace("'", "&#39;"), alarm):
        assert text in page[: page.index('id="checks"')]
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert '<span aria-hidden="true">!</span> passed, figures outside tolerance' in index
    assert "1 figure outside tolerance, 1 figure with an alarm" in index
    markdown = path.with_suffix(".md").read_text(encoding="utf-8")
    assert "## Figures to look at" in markdown[: markdown.index("## Checks")]
    suite = ElementTree.parse(path.with_suffix(".xml")).getroot().find("testsuite")
    assert suite is not None
    assert suite.get("failures") == "0"
    assert outside in (suite.findtext("system-out") or "")


def test_figures_as_they_should_be_are_not_among_those_to_look_at(tmp_path: Path, good: dict[str, Any]) -> None:
    found = report.read(reports.put(tmp_path, {**good, "figures": reports.figures()[:1]}))
    assert found.warnings == []
    assert "Figures to look at" not in report.page(found, []) + report.markdown(found)
    assert "system-out" not in report.junit(found)


def test_one_alarm_of_several_figures_is_told_once(tmp_path: Path, good: dict[str, Any]) -> None:
    figures = [reports.figure(name, "ms", 1.0, alarms=["busy"]) for name in ("ttft", "decode")]
    found = report.read(reports.put(tmp_path, {**good, "figures": figures}))
    assert found.warnings == ["Alarm: busy (ttft, 1 stream; decode, 1 stream)"]
    assert found.counts.endswith(", 2 figures with an alarm")


def test_acceptance_by_position_has_a_row_for_each_load() -> None:
    figures = [
        reports.figure("acceptance", "ratio", value, position=0, prompt_tokens=length, draft_tokens=1)
        for value, length in ((0.7, 128), (0.4, 3000))
    ]
    (chart,) = charts.charts(figures)
    assert "1 stream, prompt of 128 tokens: 0: 0.7; 1 stream, prompt of 3,000 tokens: 0: 0.4" in chart.words
    assert report.figure_name(figures[1]) == "acceptance, 1 stream, 1 token drafted, prompt of 3,000 tokens, position 0"


def test_earlier_reports_are_kept_once_each_and_twenty_at_most(tmp_path: Path, good: dict[str, Any]) -> None:
    for day in range(1, 24):
        path = reports.put(tmp_path, {**good, "ended": f"2026-11-{day:02}T00:00:00Z"})
        for _ in range(2):
            assert main(["report", str(path)]) == 0
    kept = sorted(each.name for each in (path.parent / "history" / path.stem).iterdir())
    assert kept == [f"202611{day:02}T000000Z.json" for day in range(4, 24)]


def test_a_page_says_what_changed_since_the_report_before(tmp_path: Path, good: dict[str, Any]) -> None:
    old = json.loads(json.dumps(good))
    old["ended"] = "2026-11-01T00:00:00Z"
    old["subject"]["release"] = "b" * 64
    old["checks"][0] |= {"status": "fail", "reason": "another"}
    old |= {"all_passed": False, "figures": [reports.figure("decode", "tokens/s", 50.0)]}
    new = {**good, "figures": [reports.figure("decode", "tokens/s", 60.0)]}
    assert main(["report", str(reports.put(tmp_path, old))]) == 0
    assert main(["report", str(reports.put(tmp_path, new))]) == 0
    text = (tmp_path / "demo1" / "enplace-smoke-cpu.html").read_text(encoding="utf-8")
    for told in ("another release", "identity: failed, now passed", "decode, 1 stream: 50.0, now 60.0 tokens/s"):
        assert told in text


def test_figures_that_only_differ_within_their_spread_did_not_move() -> None:
    assert not report.moved(reports.figure("a", "ms", 100.0), reports.figure("a", "ms", 101.0))
    assert report.moved(reports.figure("a", "ms", 100.0), reports.figure("a", "ms", 110.0))


def test_two_checks_of_one_name_are_two_cases(tmp_path: Path, good: dict[str, Any]) -> None:
    found = report.read(reports.put(tmp_path, {**good, "checks": [good["checks"][0]] * 2}))
    cases = [case.get("name") for case in ElementTree.fromstring(report.junit(found)).iter("testcase")]
    assert cases == ["identity", "identity (2)"]


# What drafts gain -----------------------------------------------------------------------------------------------------


def benched(
    folder: Path, name: str, *figures: dict[str, Any], model: str = "enplace/smoke", host: str = "demo1"
) -> None:
    """A report of a host with these figures, made up."""
    made = reports.made()
    made["subject"] |= {"model": model, "suite": "bench"}
    reports.put(folder, {**made, "figures": list(figures)}, host, name)


def decode(value: float, **more: Any) -> dict[str, Any]:
    return reports.figure("decode", "tokens/s", value, **{"prompt_tokens": 128, **more})


def gains(folder: Path) -> list[tuple[str, str, float]]:
    """(report with the draft, load, ratio) of all hosts, each compared within its own."""
    read = [report.read(path) for path in report.reports_in(folder)]
    hosts = {each.host for each in read}
    found = [gain for host in sorted(hosts) for gain in report.speedups([each for each in read if each.host == host])]
    return sorted((gain.report.name, gain.load, gain.ratio) for gain in found)


def test_a_draft_is_compared_with_the_same_load_without_one(tmp_path: Path) -> None:
    benched(tmp_path, "k0.bench", decode(50.0), decode(20.0, streams=8, alarms=["noise"]))
    benched(tmp_path, "k3.bench", decode(100.0, draft_tokens=3), decode(7.0, draft_tokens=3, prompt_tokens=256))
    benched(tmp_path, "k1.bench", decode(60.0, draft_tokens=1), decode(10.0, draft_tokens=1, streams=8))
    assert gains(tmp_path) == [
        ("k1.bench", "decode, 1 stream, 1 token drafted, prompt of 128 tokens", 1.2),
        ("k1.bench", "decode, 8 streams, 1 token drafted, prompt of 128 tokens", 0.5),
        ("k3.bench", "decode, 1 stream, 3 tokens drafted, prompt of 128 tokens", 2.0),
    ]
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "What drafts gain on this host" in page
    assert "Alarm: without a draft: noise" in page


@pytest.mark.parametrize("other", [{"host": "demo2"}, {"model": "enplace/another"}])
def test_nothing_is_compared_across_hosts_and_models(tmp_path: Path, other: dict[str, str]) -> None:
    benched(tmp_path, "k0.bench", decode(50.0), **other)
    benched(tmp_path, "k3.bench", decode(100.0, draft_tokens=3))
    assert gains(tmp_path) == []
    assert main(["report", str(tmp_path)]) == 0
    assert "What drafts gain" not in (tmp_path / "index.html").read_text(encoding="utf-8")
