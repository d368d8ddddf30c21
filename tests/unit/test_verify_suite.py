# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Every check against a simulated server: it passes an honest one, and fails for each lie that concerns it."""

from __future__ import annotations

import random
import socket
from typing import Any, cast

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.verify import checks as table
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports
from ansible_collections.enplace.inference.plugins.module_utils.verify import server as server_module
from ansible_collections.enplace.inference.plugins.module_utils.verify import texts
from ansible_collections.enplace.inference.plugins.module_utils.verify.cache import fitted
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import Metrics, Vitals, parse_metrics
from ansible_collections.enplace.inference.plugins.module_utils.verify.suite import CLASSES, Context
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.liar import ANSWERS, LIES, WIRE, Simulated
from tests.sim.smoke_model import suite as trained

PROMPTS = [{"ask": ask, "expect": [answer]} for ask, answer in ANSWERS.items()]
CHECKS: dict[str, dict[str, Any]] = {
    "identity": {"check": "identity", "version": "0.28.0", "model": "enplace/smoke", "context": 4096},
    "known_answers": {"check": "known_answers", "prompts": PROMPTS},
    "known_answers_in_flight": {"check": "known_answers_in_flight", "prompts": PROMPTS, "requests": 8},
    "logprobs": {"check": "logprobs", "ask": "Where are the boats?", "top": 20},
    "usage": {"check": "usage", "ask": "Where are the boats?"},
    "tool_call": {"check": "tool_call", "calls": 3},
    "tool_call_streamed": {"check": "tool_call_streamed"},
    "tool_result": {"check": "tool_result"},
    "prompt_logprobs": {"check": "prompt_logprobs", "ask": "Where are the boats?", "top": 5},
    "json_schema": {"check": "json_schema"},
    "logit_bias": {"check": "logit_bias", "ask": "Where are the boats?"},
    "min_p": {"check": "min_p", "ask": "Where are the boats?"},
    "min_tokens": {"check": "min_tokens", "ask": "Where are the boats?"},
    "bad_words": {"check": "bad_words", "ask": "Where are the boats?"},
    "seed": {"check": "seed", "ask": "Where are the boats?"},
    "prefix_cache": {"check": "prefix_cache", "tokens": [500, 700]},
    "needles": {"check": "needles", "tokens": [600], "depths": 2},
    "draft": {
        "check": "draft",
        "acceptance_min": 0.6,
        "acceptance_max": 0.9,
        "tokens_per_step_min": 2.3,
        "per_position_min": [0.75, 0.55],
        "requests": 3,
    },
    "kv_pool": {"check": "kv_pool", "tokens": 80000, "concurrency": 2},
    "healthy": {"check": "healthy"},
}
# These look at the unit and not at the server: see test_verify_journal.py.
ELSEWHERE = {"libraries", "log_line", "no_errors"}
FIRST_CHECKS = ("identity", "known_answers", "known_answers_in_flight", "logprobs", "usage")

# Checks that ask for the same kind of thing.
GROUPS = (
    ("tool_call", "tool_call_streamed", "tool_result"),
    ("prompt_logprobs", "json_schema", "logit_bias"),
    ("min_p", "min_tokens", "bad_words", "seed"),
    ("prefix_cache", "needles", "kv_pool"),
    ("draft", "kv_pool", "healthy"),
)

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
    "cut_short": ("known_answers", "known_answers_in_flight", "tool_result", "json_schema", "min_tokens"),
    "empty_text": ("known_answers", "known_answers_in_flight", "prompt_logprobs", "bad_words", "draft"),
    "crossed_rows": ("known_answers_in_flight",),
    "wrong_in_batch": ("known_answers_in_flight", "logit_bias"),
    "one_at_a_time": ("known_answers_in_flight",),
    "no_ignore_eos": ("known_answers_in_flight", "usage", "logit_bias", "min_p"),
    "top_capped": ("logprobs",),
    "no_logprobs": ("logprobs", "min_p", "prefix_cache"),
    "shifted_rows": ("logprobs",),
    "missing_row": ("logprobs", "min_p", "prefix_cache"),
    "placeholder": ("logprobs",),
    "doubled_entries": ("logprobs",),
    "unsorted": ("logprobs",),
    "certain": ("logprobs", "min_p"),
    "not_finite": ("logprobs", "min_p"),
    "frames_as_tokens": ("known_answers_in_flight", "usage"),
    "prompt_off_by_one": ("usage", "prompt_logprobs", "prefix_cache", "needles"),
    "wrong_total": ("usage",),
    "no_usage_in_stream": ("known_answers_in_flight", "usage", "tool_call_streamed"),
    "constant_usage": (
        *("known_answers_in_flight", "usage", "prompt_logprobs", "prefix_cache", "needles", "draft", "healthy"),
    ),
    "tokenize_wrong": ("usage", "prefix_cache", "needles"),
    "stream_cut": ("known_answers_in_flight", "usage", "tool_call_streamed"),
    "stream_error": ("known_answers_in_flight", "usage", "tool_call_streamed"),
    "stream_endless": ("known_answers_in_flight", "usage", "tool_call_streamed"),
    "no_call": ("tool_call", "tool_call_streamed", "tool_result"),
    "wrong_city": ("tool_call", "tool_call_streamed", "tool_result"),
    "more_arguments": ("tool_call", "tool_call_streamed", "tool_result"),
    "markup_left": ("tool_call", "tool_call_streamed", "tool_result"),
    "call_ends_as_text": ("tool_call", "tool_call_streamed", "tool_result"),
    "calls_without_tools": ("tool_call",),
    "ignores_tool_choice": ("tool_call",),
    "same_call_id": ("tool_call",),
    "call_in_one_frame": ("tool_call_streamed",),
    "call_twice_in_stream": ("tool_call_streamed",),
    "arguments_cut": ("tool_call_streamed",),
    "ignores_result": ("tool_result",),
    "constant_result": ("tool_result",),
    "result_of_before": ("tool_result",),
    "no_prompt_logprobs": ("prompt_logprobs",),
    "null_prompt_logprobs": ("prompt_logprobs",),
    "shifted_prompt_logprobs": ("prompt_logprobs",),
    "alike_prompt_logprobs": ("prompt_logprobs",),
    "capped_prompt_logprobs": ("prompt_logprobs",),
    "other_prompt": ("prompt_logprobs",),
    "ignores_schema": ("json_schema",),
    "schema_types": ("json_schema",),
    "schema_without_end": ("json_schema",),
    "schema_stays": ("json_schema",),
    "ignores_bias": ("logit_bias",),
    "ignores_ban": ("logit_bias",),
    "bias_stays": ("logit_bias",),
    "bias_on_all_rows": ("logit_bias",),
    "always_greedy": ("min_p", "seed"),
    "ignores_min_p": ("min_p",),
    "min_p_stays": ("min_p",),
    "min_p_greedy": ("min_p",),
    "ignores_min_tokens": ("min_tokens",),
    "min_tokens_past_end": ("min_tokens",),
    "min_tokens_stays": ("min_tokens",),
    "ignores_bad_words": ("bad_words",),
    "bad_words_stay": ("bad_words",),
    "bad_words_change_all": ("bad_words",),
    "ignores_seed": ("seed",),
    "one_seed": ("seed",),
    "seed_stays": ("seed",),
    "never_cached": ("prefix_cache",),
    "always_cached": ("prefix_cache", "needles"),
    "ignores_salt": ("prefix_cache", "needles"),
    "no_cached_tokens": ("prefix_cache",),
    "hits_not_counted": ("prefix_cache",),
    "cached_off_block": ("prefix_cache",),
    "cached_little": ("prefix_cache",),
    "cached_to_the_end": ("prefix_cache",),
    "cached_rounded_up": ("prefix_cache",),
    "boundary_changes_values": ("prefix_cache",),
    "cache_changes_values": ("prefix_cache",),
    "cache_changes_tokens": ("prefix_cache",),
    "noise": ("prefix_cache",),
    "no_hits_counter": ("prefix_cache",),
    "cuts_prompts": ("prefix_cache", "needles"),
    "cuts_prompts_quietly": ("needles",),
    "first_code_always": ("needles",),
    "any_code": ("needles",),
    "two_codes": ("needles",),
    "no_draft_counters": ("draft",),
    "nothing_drafted": ("draft",),
    "nothing_accepted": ("draft",),
    "all_accepted": ("draft",),
    "short_drafts": ("draft",),
    "later_positions_rare": ("draft",),
    "no_positions": ("draft",),
    "others_ask": ("draft",),
    "no_cache_config": ("prefix_cache", "kv_pool"),
    "small_pool": ("kv_pool",),
    "unknown_pool": ("kv_pool",),
    "little_concurrency": ("kv_pool",),
    "no_start_time": ("healthy",),
    "token_counter_falls": ("healthy",),
    "tokens_not_counted": ("healthy",),
    "restarts": EVERY,
    "counter_falls": EVERY,
    "answers_from_elsewhere": EVERY,
    "no_metrics": EVERY,
    "tells_nothing": EVERY,
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
    "crossed_rows": "differ from those alone",
    "one_at_a_time": "never decoded side by side",
    "top_capped": "not 20 distinct entries",
    "shifted_rows": "another token",
    "missing_row": "not one row for every token",
    "placeholder": "placeholders",
    "doubled_entries": "not 20 distinct entries",
    "unsorted": "not in order",
    "certain": "add up to more than 1|that min_p excludes",
    "not_finite": "not log-probabilities",
    "no_call": "call",
    "wrong_city": "arguments of the call are wrong",
    "more_arguments": "arguments of the call are wrong",
    "markup_left": "markup of a call",
    "call_ends_as_text": "finish_reason of",
    "calls_without_tools": "without any tool",
    "ignores_tool_choice": "under tool_choice none",
    "same_call_id": "the same id",
    "call_in_one_frame": "not streamed",
    "call_twice_in_stream": "does not hold one call",
    "arguments_cut": "not JSON",
    "ignores_result": "a call came after the tool's result",
    "constant_result": "does not use what the tool returned",
    "result_of_before": "does not use what the tool returned",
    "no_prompt_logprobs": "not one entry for every token",
    "null_prompt_logprobs": "its own token is missing",
    "shifted_prompt_logprobs": "its own token is missing",
    "alike_prompt_logprobs": "all alike",
    "capped_prompt_logprobs": "not 5 entries",
    "other_prompt": "not one entry for every token",
    "ignores_schema": "nobody can guess",
    "schema_types": "not what the schema says",
    "schema_without_end": "did not end by itself",
    "schema_stays": "is in the next",
    "ignores_bias": "+100 had no effect",
    "ignores_ban": "-100 had no effect",
    "bias_stays": "left over",
    "bias_on_all_rows": "wrong row",
    "always_greedy": "without min_p no token came|other seeds gave the same",
    "ignores_min_p": "that min_p excludes",
    "min_p_stays": "without min_p no token came",
    "min_p_greedy": "only the likeliest",
    "ignores_min_tokens": "shorter than min_tokens",
    "min_tokens_past_end": "came before min_tokens",
    "min_tokens_stays": "left over",
    "ignores_bad_words": "a bad word came",
    "bad_words_stay": "left over",
    "bad_words_change_all": "that is not said changes",
    "ignores_seed": "the same seed gave other tokens",
    "one_seed": "other seeds gave the same",
    "seed_stays": "without a seed gave the same",
    "never_cached": "no hit in 3 visits",
    "always_cached": "not cold",
    "ignores_salt": "another cache_salt|not cold",
    "no_cached_tokens": "no cached_tokens",
    "hits_not_counted": "count other hits",
    "cached_off_block": "no whole blocks",
    "cached_little": "too few blocks",
    "cached_to_the_end": "no whole blocks of the prompt",
    "cached_rounded_up": "no whole blocks of the prompt",
    "boundary_changes_values": "the log-probabilities differ",
    "cache_changes_values": "the log-probabilities differ",
    "cache_changes_tokens": "the tokens differ",
    "noise": "the log-probabilities differ",
    "no_hits_counter": "prefix_cache_hits_total",
    "cuts_prompts": "counts another prompt",
    "cuts_prompts_quietly": "codes were found",
    "first_code_always": "0/3 codes were found",
    "any_code": "0/3 codes were found",
    "two_codes": "1/3 codes were found",
    "no_draft_counters": "no counters of speculation",
    "nothing_drafted": "too little was drafted",
    "nothing_accepted": "too rarely",
    "all_accepted": "too often",
    "short_drafts": "a step gives too few tokens",
    "later_positions_rare": "at position 1",
    "no_positions": "positions of the draft are missing",
    "others_ask": "others asked",
    "small_pool": "smaller than the recipe counts on",
    "unknown_pool": "no kv_cache_size_tokens",
    "little_concurrency": "smaller than the recipe counts on",
    "no_start_time": "process_start_time_seconds",
    "token_counter_falls": "fell",
    "tokens_not_counted": "did not count the token",
    "restarts": "started anew",
    "counter_falls": "fell from",
    "answers_from_elsewhere": "something else answered",
    "no_metrics": "would go unseen",
    "tells_nothing": "/health was refused",
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
    monkeypatch.setattr(server_module, "COUNTED_S", 0.3)


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
    assert [check["status"] for check in report["checks"]] == ["pass"] * len(CHECKS)
    for check in report["checks"]:
        assert check["asked"]
        assert check["demanded"]
        assert check["evidence"]["completions"] >= (check["name"] != "kv_pool")


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_by_its_checks_and_by_no_other(lie: str) -> None:
    # A lie about one feature is told to the checks of that kind; all other lies are told to all.
    names = next((group for group in GROUPS if set(FOUND_BY[lie]) <= set(group)), EVERY)
    # Only what never ends needs an early deadline; a check that passes must not depend on how busy this machine is.
    early = FOUND_BY[lie] if lie == "stream_endless" else ()
    with Simulated(lie) as server:
        report = verify(server.url, *names, deadlines=dict.fromkeys(early, 2))
    assert report["all_passed"] is False
    found = {check["name"]: check["reason"] for check in report["checks"] if check["status"] == "fail"}
    if FOUND_BY[lie] == EVERY:  # after the first, nothing more is asked of a process that is not the same
        assert [check["status"] for check in report["checks"]] == ["fail", *["not run"] * (len(CHECKS) - 1)]
    else:
        assert tuple(found) == FOUND_BY[lie], reports.messages(report)
    for reason in found.values():
        assert any(said in reason for said in SAYS.get(lie, "").split("|")), reason


def test_every_check_has_two_lies_of_its_own_and_every_lie_a_check() -> None:
    assert set(FOUND_BY) == set(LIES)
    assert set(CHECKS) == set(table.CHECKS) - ELSEWHERE
    for name in CHECKS:
        assert sum(name in found and found != EVERY for found in FOUND_BY.values()) >= 2, name
    assert all(FOUND_BY.values())


@pytest.mark.parametrize(
    ("lie", "name"),
    [(lie, name) for lie in WIRE for name in FIRST_CHECKS]
    # The others ask in the same way; of the wire they see one thing of each sort.
    + [
        (lie, name)
        for lie in ("html", "broken_off", "error_500")
        for name in CHECKS
        if name not in (*FIRST_CHECKS, "kv_pool")
    ]
    + [("stall", "needles")]
    # The one that streams before it asks for anything plain.
    + [(lie, "tool_call_streamed") for lie in ("gigabyte", "trickle", "invalid_json", "invalid_utf8")],
)
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
    assert [check["status"] for check in report["checks"]] == ["fail", *["not run"] * (len(CHECKS) - 1)]
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


def result(server: Simulated, check: dict[str, Any]) -> dict[str, Any]:
    """What one check came to."""
    subject = reports.Subject(server.url, "enplace/smoke", "", "0" * 64, {"name": "vllm", "version": "0.28.0"}, [check])
    (found,) = reports.run(subject, {}, None, lambda: None)["checks"]
    return dict(found)


def test_a_cache_that_hits_on_the_third_visit_only_is_a_cache() -> None:
    with Simulated(lazy_cache=True) as server:
        check = result(server, CHECKS["prefix_cache"])
    assert check["status"] == "pass", check
    assert [row["hit_on_repeat"] for row in check["evidence"]["rows"]] == [2] * 5


def test_noise_is_told_from_a_cache_that_changes_the_reply() -> None:
    with Simulated("noise") as server:
        noise = result(server, CHECKS["prefix_cache"])
    with Simulated("cache_changes_values") as server:
        changed = result(server, CHECKS["prefix_cache"])
    assert "noise of the engine" in noise["todo"]
    assert "the cache changes the reply" in changed["todo"]


@pytest.mark.parametrize("lie", ["noise", "cache_changes_values"])
def test_without_exact_only_the_tokens_must_be_the_same(lie: str) -> None:
    with Simulated(lie) as server:
        check = result(server, {**CHECKS["prefix_cache"], "exact": False})
    assert check["status"] == "pass", check
    assert not any(row["same_logprobs"] for row in check["evidence"]["rows"])
    with Simulated("cache_changes_tokens") as server:
        assert result(server, {**CHECKS["prefix_cache"], "exact": False})["status"] == "fail"


@pytest.mark.parametrize(("block", "status"), [(64, "pass"), (32, "pass"), (48, "fail")])
def test_cached_tokens_are_a_multiple_of_the_recipes_block(block: int, status: str) -> None:
    with Simulated() as server:
        assert result(server, {**CHECKS["prefix_cache"], "block": block})["status"] == status


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ({"check": "prefix_cache", "tokens": [128]}, "a length is too short"),
        ({"check": "prefix_cache", "tokens": [4090]}, "does not fit the context"),
        ({"check": "needles", "tokens": [600, 4090]}, "does not fit the context"),
        ({"check": "needles", "tokens": [128]}, "no prompt of this length could be made"),
        ({"check": "draft", "acceptance_min": 0.8, "requests": 4}, "too rarely"),
        ({"check": "draft", "acceptance_min": 0.5, "requests": 1}, "too little was drafted"),
    ],
)
def test_what_cannot_be_shown_is_not_shown(check: dict[str, Any], says: str) -> None:
    with Simulated() as server:
        found = result(server, check)
    assert found["status"] == "fail"
    assert says in found["reason"]


def test_a_long_prompt_leaves_less_for_the_reply() -> None:
    with Simulated() as server:
        assert result(server, {"check": "needles", "tokens": [4000], "depths": 1})["status"] == "pass"
        assert result(server, {"check": "prefix_cache", "tokens": [4000]})["status"] == "pass"


def test_a_prompt_of_a_quarter_million_tokens_gets_there_and_back() -> None:
    with Simulated(context=262_144) as server:
        check = result(server, {"check": "needles", "tokens": [250_000], "depths": 1})
    assert check["status"] == "pass", check
    assert check["evidence"]["rows"][0]["prompt_tokens"] >= 0.97 * 250_000


def test_the_seed_of_what_was_made_up_is_evidence() -> None:
    with Simulated() as server:
        made_up, fixed = result(server, CHECKS["needles"]), result(server, CHECKS["usage"])
    assert len(made_up["evidence"]["seed"]) == 16
    assert "seed" not in fixed["evidence"]
    with Simulated("any_code") as server:
        assert len(result(server, CHECKS["needles"])["evidence"]["seed"]) == 16


def test_a_seed_of_the_recipe_asks_the_same_in_every_run() -> None:
    with Simulated() as server:
        same = [result(server, {**CHECKS["needles"], "seed": "smoke"})["evidence"] for _ in range(2)]
        other = [result(server, CHECKS["needles"])["evidence"] for _ in range(2)]
    assert same[0]["rows"] == same[1]["rows"]
    assert same[0]["seed"] == "smoke"
    assert other[0]["rows"] != other[1]["rows"]


@given(st.integers(500, 3000), st.floats(0, 1), st.integers(0, 2**32))
def test_a_prompt_is_fitted_to_its_length_and_made_up_again_from_its_seed(length: int, depth: float, seed: int) -> None:
    def made() -> Any:
        check = CLASSES["needles"]({"check": "needles"}, Context("0.28.0"))
        check.rng = random.Random(seed)
        return fitted(check, cast("Any", Letters()), length, depth)

    prompt = made()
    assert 0.9 * length <= prompt.tokens <= length
    assert len(prompt.text) == prompt.tokens - Letters.AROUND
    assert prompt.text.count(f"The code of the {prompt.place} is {prompt.code}.") == 1
    assert made() == prompt


class Letters:
    """A tokenizer with a token for every letter, and some around the prompt."""

    AROUND = 17

    def token_count(self, text: str) -> int:
        return len(text) + self.AROUND


def test_labels_are_read_with_what_they_quote() -> None:
    metrics = Metrics('x{a="1",b="say \\"hi\\", a=2"} 1\nx{a="2",b=""} 2\nx_total 5\n')
    assert metrics.labels("x") == [{"a": "1", "b": 'say \\"hi\\", a=2'}, {"a": "2", "b": ""}]
    assert metrics.by_label("x", "a") == {"1": 1, "2": 2}
    assert metrics.total("x") == 3
    assert metrics.total("y") is None


def test_the_texts_are_of_the_form_that_the_smoke_model_knows() -> None:
    for name in ("CITIES", "PLACES", "COLOURS", "ANIMALS", "NAMES", "WEATHER_TOOL"):
        assert getattr(texts, name) == getattr(trained, name)
    assert list(texts.CONDITIONS) == trained.CONDITIONS
    ours, theirs = random.Random(1), random.Random(1)
    assert [texts.filler(ours) for _ in range(50)] == [trained.filler(theirs) for _ in range(50)]
    for name, values in (
        ("needle", ("harbor", "jade lynx")),
        ("needle_question", ("harbor",)),
        ("weather_question", ("Lima",)),
        ("weather_result", (7, "foggy")),
        ("person_question", ("Hugo",)),
    ):
        assert getattr(texts, name)(*values) == getattr(trained, name)(*values)
    lines = [trained.filler(theirs) for _ in range(9)]
    prompt = texts.haystack_prompt(lines, 0.5, texts.needle("tower", "jade lynx"), "tower")
    assert prompt.startswith("Read the notes.\n")
    assert (
        trained.haystack_prompt(" ".join([*lines[:4], trained.needle("tower", "jade lynx"), *lines[4:]]), "tower")
        == prompt
    )
