# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The table of checks, the validation of a recipe's list, and the matcher of answers."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.module_utils.verify import checks as table
from ansible_collections.enplace.inference.plugins.module_utils.verify.suite import CLASSES
from ansible_collections.enplace.inference.plugins.modules import verify as module

SUM = {"ask": "What is 17 + 25?", "expect": ["42"]}
CAPITAL = {"ask": "What is the capital of France?", "expect": ["Paris"]}
GOOD: list[dict[str, Any]] = [
    {"check": "identity", "version": "0.28.0", "model": "enplace/smoke", "context": 4096},
    {"check": "known_answers", "temperature": 0, "prompts": [SUM, CAPITAL]},
    {"check": "known_answers_in_flight", "requests": 8},
    {"check": "logprobs", "top": 20, "ask": "Hello"},
    {"check": "usage", "ask": "Hello"},
]
MORE: list[dict[str, Any]] = [
    {"check": "tool_call", "calls": 5, "temperature": 0.6},
    {"check": "tool_call_streamed"},
    {"check": "tool_result", "rounds": 3},
    {"check": "prompt_logprobs", "ask": "Hello", "top": 5},
    {"check": "json_schema"},
    {"check": "logit_bias", "ask": "Hello"},
    {"check": "prefix_cache", "tokens": [2048, 4096], "block": 256, "exact": False},
    {"check": "min_p", "ask": "Hello", "min_p": 0.2, "temperature": 1.2},
    {"check": "min_tokens", "ask": "Hello", "max_tokens": 32},
    {"check": "bad_words", "ask": "Hello", "refused": "speculation"},
    {"check": "seed", "ask": "Hello"},
    {"check": "needles", "tokens": [1000, 250000], "depths": 3},
    {"check": "draft", "acceptance_min": 0.6, "acceptance_max": 0.99, "per_position_min": [0.9]},
    {"check": "kv_pool", "tokens": 1_000_000, "concurrency": 3.5},
    {"check": "log_line", "pattern": "Using '?FLASHINFER_CUTLASS'? NvFp4 MoE backend"},
    {"check": "log_line", "pattern": "MARLIN", "absent": True},
    {"check": "libraries", "versions": {"torch": "2.13.0"}},
    {"check": "no_errors", "apart_from": "known"},
    {"check": "healthy"},
]


def known(*prompts: Any) -> list[dict[str, Any]]:
    return [{"check": "known_answers", "prompts": list(prompts)}]


def test_good_checks_have_no_problem() -> None:
    assert table.validate_checks(GOOD) == []
    assert table.validate_checks([*GOOD, *MORE]) == []
    assert {check["check"] for check in [*GOOD, *MORE]} == set(table.CHECKS)


def test_every_check_has_its_code_and_every_code_its_entry() -> None:
    assert set(table.CHECKS) == set(CLASSES)


@pytest.mark.parametrize(
    ("checks", "where", "says"),
    [
        (None, "checks", "expected a list"),
        ([], "checks", "empty"),
        (["identity"], "checks[0]", "expected a mapping"),
        ([{"version": "1"}], "checks[0].check", "missing"),
        ([{"check": "logprob"}], "checks[0].check", "did you mean logprobs?"),
        ([{"check": ["logprobs"]}], "checks[0].check", "unknown check"),
        ([*GOOD, {"check": "logprobs", "ask": "x", "topp": 3}], "checks[5].topp", "did you mean top?"),
        ([{"check": "usage"}], "checks[0].ask", "missing"),
        ([{"check": "usage", "ask": " "}], "checks[0].ask", "blanks"),
        ([{"check": "usage", "ask": 3}], "checks[0].ask", "quote it"),
        ([{"check": "identity", "version": 0.28}], "checks[0].version", "quote it"),
        ([{"check": "identity", "context": True}], "checks[0].context", "a whole number"),
        ([{"check": "identity", "context": 0}], "checks[0].context", "at least 1"),
        ([{"check": "identity", "deadline_s": 1.5}], "checks[0].deadline_s", "a whole number"),
        ([{"check": "logprobs", "ask": "x", "top": "20"}], "checks[0].top", "a whole number"),
        ([{"check": "prefix_cache"}], "checks[0].tokens", "missing"),
        ([{"check": "prefix_cache", "tokens": 4096}], "checks[0].tokens", "write [4096]"),
        ([{"check": "prefix_cache", "tokens": []}], "checks[0].tokens", "1 to 32 lengths"),
        ([{"check": "prefix_cache", "tokens": list(range(200, 233))}], "checks[0].tokens", "1 to 32 lengths"),
        ([{"check": "needles", "tokens": [200, "300"]}], "checks[0].tokens[1]", "a whole number"),
        ([{"check": "needles", "tokens": [200, 300.5]}], "checks[0].tokens[1]", "a whole number"),
        ([{"check": "needles", "tokens": [True]}], "checks[0].tokens[0]", "a whole number"),
        ([{"check": "needles", "tokens": [5]}], "checks[0].tokens[0]", "at least 128"),
        ([{"check": "needles", "tokens": [10**9]}], "checks[0].tokens[0]", "at most 16777216"),
        ([{"check": "needles", "tokens": [200, 300, 200]}], "checks[0].tokens[2]", "name each length once"),
        ([{"check": "prefix_cache", "tokens": [200], "exact": "yes"}], "checks[0].exact", "without quotes"),
        ([{"check": "prefix_cache", "tokens": [200], "exact": 1}], "checks[0].exact", "true or false"),
        ([{"check": "log_line", "pattern": "("}], "checks[0].pattern", "a regular expression"),
        ([{"check": "log_line", "pattern": ".*"}], "checks[0].pattern", "matches an empty line"),
        ([{"check": "log_line", "pattern": ""}], "checks[0].pattern", "matches an empty line"),
        ([{"check": "log_line", "pattern": 3}], "checks[0].pattern", "as text"),
        ([{"check": "log_line"}], "checks[0].pattern", "missing"),
        ([{"check": "draft"}], "checks[0].acceptance_min", "missing"),
        ([{"check": "draft", "acceptance_min": 60}], "checks[0].acceptance_min", "at most 1"),
        (
            [{"check": "draft", "acceptance_min": 0.9, "acceptance_max": 0.9}],
            "checks[0].acceptance_max",
            "more than acceptance_min",
        ),
        ([{"check": "draft", "acceptance_min": 0, "per_position_min": 0.5}], "checks[0].per_position_min", "a list"),
        (
            [{"check": "draft", "acceptance_min": 0, "per_position_min": [0.5, 50]}],
            "checks[0].per_position_min[1]",
            "from 0 to 1",
        ),
        ([{"check": "libraries", "versions": "torch"}], "checks[0].versions", "a mapping"),
        ([{"check": "libraries", "versions": {}}], "checks[0].versions", "a mapping"),
        ([{"check": "libraries", "versions": {"torch": 2.1}}], "checks[0].versions.torch", "quote it"),
        ([{"check": "no_errors", "apart_from": ".*"}], "checks[0].apart_from", "matches an empty line"),
        ([{"check": "kv_pool"}], "checks[0].tokens", "missing"),
        ([{"check": "tool_call", "calls": 0}], "checks[0].calls", "at least 1"),
        ([{"check": "tool_result", "rounds": 1}], "checks[0].rounds", "at least 2"),
        ([{"check": "healthy", "ask": "x"}], "checks[0].ask", "unknown parameter"),
        ([{"check": "seed", "ask": "x", "temperature": 0}], "checks[0].temperature", "at least 0.1"),
        ([{"check": "min_p", "ask": "x", "refused": True}], "checks[0].refused", "expected text"),
        ([{"check": "min_p", "ask": "x", "refused": ""}], "checks[0].refused", "blanks"),
        ([{"check": "healthy", "refused": "no"}], "checks[0].refused", "unknown parameter"),
        ([{"check": "known_answers_in_flight"}], "checks[0].prompts", "missing"),
        (
            [{"check": "known_answers_in_flight", "prompts": [SUM, CAPITAL], "requests": 1}],
            "checks[0].requests",
            "at least 2",
        ),
        ([GOOD[2], GOOD[1]], "checks[0].prompts", "missing"),
        ([GOOD[0], GOOD[0]], "checks[1]", "the same as checks[0]"),
        (known(SUM), "checks[0].prompts", "at least 2"),
        (known(SUM, {**SUM, "ask": "What is 40 + 2?"}), "checks[0].prompts", "one constant reply"),
        (known(SUM, {"ask": "Say 7", "expect": ["7"]}), "checks[0].prompts[1].expect", "echo"),
        (known(SUM, {"ask": "What is 3 + 4?", "expect": [7]}), "checks[0].prompts[1].expect", "quote it"),
        (known(SUM, {"ask": "What is 3 + 4?", "expect": ["."]}), "checks[0].prompts[1].expect", "words or digits"),
        (known(SUM, {"ask": "What is 3 + 4?", "expect": "7"}), "checks[0].prompts[1].expect", "a list"),
        (known(SUM, {"ask": "x", "expects": ["7"]}), "checks[0].prompts[1].expects", "did you mean expect?"),
        (known(SUM, "x"), "checks[0].prompts[1]", "{ask"),
    ],
)
def test_bad_checks_are_named_with_their_place(checks: Any, where: str, says: str) -> None:
    problems = table.validate_checks(checks)
    assert any(problem.startswith(f"{where}: ") and says in problem for problem in problems), problems


def test_all_problems_are_told_at_once() -> None:
    problems = table.validate_checks([{"check": "logprobs", "topp": 1, "max_tokens": 0}, {"check": "usge"}])
    assert [problem.split(":")[0] for problem in problems] == [
        "checks[0].topp",
        "checks[0].max_tokens",
        "checks[0].ask",
        "checks[1].check",
    ]


def test_defaults_are_filled_in_and_the_prompts_are_handed_on() -> None:
    filled = table.with_defaults(GOOD)
    assert filled[2]["prompts"] == GOOD[1]["prompts"]
    assert table.with_defaults([MORE[6]])[0]["exact"] is False
    assert table.with_defaults([{"check": "prefix_cache", "tokens": [200]}])[0] == {
        "check": "prefix_cache",
        "tokens": [200],
        "block": None,
        "boundaries": True,
        "exact": True,
        "seed": None,
        "deadline_s": 1800,
        "suite": "gate",
    }
    assert filled[3] == {
        "check": "logprobs",
        "ask": "Hello",
        "top": 20,
        "max_tokens": 32,
        "refused": None,
        "deadline_s": 300,
        "suite": "gate",
    }


def test_digest_is_that_of_what_is_asked_and_not_of_how_it_is_written() -> None:
    written_out = copy.deepcopy(GOOD)
    written_out[3]["max_tokens"] = 32
    assert table.checks_digest(written_out) == table.checks_digest(GOOD)
    changed = copy.deepcopy(GOOD)
    changed[1]["prompts"][0]["expect"] = ["43"]
    assert table.checks_digest(changed) != table.checks_digest(GOOD)


def test_digest_changes_with_the_code_of_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = table.checks_digest(GOOD)
    monkeypatch.setattr(table, "REVISION", table.REVISION + 1)
    assert table.checks_digest(GOOD) != before


@pytest.mark.parametrize("reply", ["42", "The answer is 42.", "It is 42, I think", "= 42!", "**42**"])
def test_answer_is_found(reply: str) -> None:
    assert table.answers(reply, ["42"])


@pytest.mark.parametrize("reply", ["", "1420", "4.42", "42.5", "42,000", "-42", "\u221242", "x42", "forty-two"])
def test_answer_is_not_found_where_it_is_not(reply: str) -> None:
    assert not table.answers(reply, ["42"])


@pytest.mark.parametrize("reply", ["buenos d\u00edas", "\u00a1Buenos di\u0301as!", "BUENOS D\u00cdAS"])
def test_answer_is_compared_as_people_read_it(reply: str) -> None:
    assert table.answers(reply, ["Buenos d\u00edas"])


def test_the_module_names_every_check() -> None:
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]["checks"]["description"]
    assert set(re.findall(r"C\((\w+)\)", documented[1])) == set(table.CHECKS)


def test_the_table_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
        f"sys.path.append({str(next(p for p in sys.path if p.endswith('collection')))!r}); "
        "import ansible_collections.enplace.inference.plugins.module_utils.verify.checks as c; "
        "assert c.CHECKS; print(sorted(m for m in sys.modules if m.split('.')[0] in ('openai', 'ansible', 'yaml')))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
