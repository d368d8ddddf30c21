# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The linter: what it adds to a finding, what comes first, and that nothing it meets is a traceback or silence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.plugin_utils import lint, rules
from ansible_collections.enplace.inference.plugins.plugin_utils.lint import (
    OWN_RULES,
    SEVERITIES,
    Rule,
    Subject,
    catalogue,
    lint_document,
    lint_path,
    run_rules,
)
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    ENGINES,
    RECIPES,
    Document,
    Place,
    Problem,
    load_engine,
    load_yaml,
)
from ansible_collections.enplace.inference.plugins.plugin_utils.rules import safety

SMOKE = RECIPES / "enplace" / "smoke" / "recipe.yaml"


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = SMOKE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "enplace" / "smoke" / "recipe.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def smoke() -> Subject:
    document = load_yaml(SMOKE)
    engine = document.data["variants"]["cpu"]["engine"]
    return Subject(document, "cpu", load_engine(engine["name"], engine["version"]))


def test_the_catalogue_is_every_rule_once() -> None:
    found = catalogue()
    assert found[: len(OWN_RULES)] == list(OWN_RULES)
    assert found[len(OWN_RULES) :] == list(rules.RULES)
    assert len({rule.id for rule in found}) == len(found)
    for rule in found:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id)
        assert rule.severity in SEVERITIES
        assert rule.summary.endswith(".")
        assert rule.source
    for rule in OWN_RULES:
        assert list(rule.check(smoke())) == []


def test_what_ships_has_no_error() -> None:
    for path in sorted(RECIPES.glob("*/*/recipe.yaml")):
        found = [problem for problem in lint_path(path) if problem.severity == "error"]
        # A recipe may wait for its engine; it is refused until that is there.
        assert [str(problem) for problem in found if problem.rule != "engine-unknown"] == []


def test_a_finding_has_the_id_and_the_severity_of_its_rule(tmp_path: Path) -> None:
    path = changed(tmp_path, "max-model-len: 4096", "max-model-len: 1000000")
    (problem,) = [problem for problem in lint_path(path) if problem.rule == "context-exceeds-model"]
    rule = next(rule for rule in rules.RULES if rule.id == problem.rule)
    assert problem.severity == rule.severity == "error"
    assert isinstance(problem.where, Place)
    assert problem.where.field == "variants.cpu.arguments.max-model-len"


def test_the_schema_comes_first_and_alone(tmp_path: Path) -> None:
    path = changed(tmp_path, "max-model-len: 4096", "max-model-len: 1000000\n      Redy: 1")
    found = lint_path(path)
    assert {problem.rule for problem in found} == {"schema"}
    assert {problem.severity for problem in found} == {"error"}


@pytest.mark.parametrize(
    ("content", "rule"), [(b"\xff", "unreadable"), (b"a: [", "yaml"), (b"", "yaml"), (b"a: 1\n", "schema")]
)
def test_what_cannot_be_read_is_a_finding(tmp_path: Path, content: bytes, rule: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    assert {problem.rule for problem in lint_path(path)} == {rule}
    assert [problem.rule for problem in lint_path(tmp_path / "none.yaml")] == ["unreadable"]


def test_an_engine_that_is_not_there_is_said_once_at_its_place(tmp_path: Path) -> None:
    path = changed(tmp_path, "version: 0.28.0", "version: 0.1.0")
    (problem,) = lint_path(path)
    assert (problem.rule, problem.severity) == ("engine-unknown", "error")
    assert isinstance(problem.where, Place)
    assert problem.where.field == "variants.cpu.engine.version"
    assert problem.where.line > 0
    assert "vllm 0.28.0" in problem.expected


def test_another_folder_of_engines(tmp_path: Path) -> None:
    assert [problem.rule for problem in lint_path(SMOKE, engines=tmp_path)] == ["engine-unknown"]
    assert [problem.rule for problem in lint_path(SMOKE, engines=ENGINES) if problem.severity == "error"] == []


def test_findings_come_in_the_order_of_the_file_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(subject: Subject) -> Iterator[Problem]:
        for key in ("checks", "arguments", "host", "arguments"):
            yield Problem(subject.place(key), "is there")

    monkeypatch.setattr(rules, "RULES", (Rule("made-up", "note", "None.", "here", check),))
    found = lint_document(load_yaml(SMOKE))
    assert [getattr(problem.where, "field", "") for problem in found] == [
        "variants.cpu.host",
        "variants.cpu.arguments",
        "variants.cpu.checks",
    ]
    assert {(problem.rule, problem.severity) for problem in found} == {("made-up", "note")}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "error", [KeyError("x"), RecursionError("deep"), AssertionError(), ZeroDivisionError("\x1b[1m")]
)
def test_a_rule_that_crashes_is_a_finding_and_the_others_run(error: Exception, late: bool) -> None:
    def crashes(subject: Subject) -> Iterator[Problem]:
        if late:
            yield Problem(subject.place("host"), "is there")
        raise error

    def works(subject: Subject) -> Iterator[Problem]:
        yield Problem(subject.place("checks"), "is there")

    made = [Rule("crashes", "note", "None.", "here", crashes), Rule("works", "warning", "None.", "here", works)]
    found = run_rules(made, smoke())
    assert [(problem.rule, problem.severity) for problem in found] == [("rule-crashed", "error"), ("works", "warning")]
    assert "crashes" in found[0].what
    assert type(error).__name__ in found[0].found
    assert isinstance(found[0].where, Place)
    assert found[0].where.line > 0


def test_an_interrupt_is_not_a_crash_of_a_rule() -> None:
    def stopped(subject: Subject) -> Iterator[Problem]:
        raise KeyboardInterrupt(subject.name)

    with pytest.raises(KeyboardInterrupt):
        run_rules([Rule("stopped", "note", "None.", "here", stopped)], smoke())


def test_what_several_rules_need_is_made_once() -> None:
    subject, other = smoke(), smoke()
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    assert [subject.once("n", make), subject.once("n", make), subject.once("m", make), other.once("n", make)] == [
        0,
        0,
        1,
        2,
    ]
    assert subject == other, "what was made is no part of what a subject is"


def test_a_subject_without_optional_parts() -> None:
    data = {"model": {}, "variants": {"v": {"arguments": {"speculative-config": 3}}}}
    subject = Subject(Document(Path("x"), data, {}), "v", Document(Path("y"), None, {}))
    assert (subject.environment, subject.speculation, subject.fixes, subject.variables("*")) == (
        {},
        {},
        frozenset(),
        [],
    )
    assert str(subject.model_place("name")) == "x model.name"
    assert lint.SEVERITIES[0] == "error"


SECRETS = [
    "hf_" + "a" * 24,
    "sk-" + "a" * 24,
    "nvapi-" + "a" * 24,
    *(f"gh{letter}_" + "a" * 34 for letter in "oprsu"),
    "github_pat_" + "a" * 34,
    "glpat-" + "a" * 24,
    "AKIA" + "A" * 16,
    *(f"xox{letter}-" + "a" * 12 for letter in "abeprs"),
    "-----BEGIN RSA PRIVATE KEY-----",
    "eyJ" + "a" * 12 + ".eyJ" + "a" * 12 + ".a",
    "http://name:word@host",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_found_by_the_quick_look_too(tmp_path: Path, text: str) -> None:
    """The rule looks for a few marks before it looks closely; what is found closely has one of them."""
    assert safety.SECRET_VALUE.search(text), "the closer look finds it"
    path = changed(tmp_path, "summary: the whole", f"summary: '{text} the whole")
    path.write_text(
        path.read_text(encoding="utf-8").replace("no accelerator\n", "no accelerator'\n", 1), encoding="utf-8"
    )
    assert "secret-in-recipe" in {problem.rule for problem in lint_path(path)}
