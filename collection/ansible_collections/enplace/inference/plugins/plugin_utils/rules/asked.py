# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of checks: each can pass on a right server, and together they prove what a recipe claims."""

from __future__ import annotations

from collections.abc import Iterator

from ..lint import Subject, number_of
from ..recipe import Problem
from .common import Catalogue, checks, context_of, figures, on, prefix_caching, text_of, tokens_of

catalogue = Catalogue()

# vLLM's default for max-logprobs.
DEFAULT_MAX_LOGPROBS = 20
LENGTH_CHECKS = ("prefix_cache", "needles")


@catalogue.rule(
    "check-tool-calls",
    "error",
    "Checks of tool calls are asked of a server that parses them.",
    "vLLM: enable-auto-tool-choice and tool-call-parser",
)
def tool_calls(subject: Subject) -> Iterator[Problem]:
    missing = [
        flag
        for flag, there in (
            ("enable-auto-tool-choice", on(subject, "enable-auto-tool-choice")),
            ("tool-call-parser", "tool-call-parser" in subject.arguments),
        )
        if not there
    ]
    # With the first flag alone the server does not start, which is another rule's finding.
    if missing and missing != ["tool-call-parser"]:
        for index, check in checks(subject, "tool_call", "tool_call_streamed", "tool_result"):
            yield Problem(
                subject.place("checks", index),
                f"the server parses no tool calls, so {check['check']} can only fail",
                f"no {' and no '.join(missing)}",
                "enable-auto-tool-choice: true and tool-call-parser",
                "add both arguments, or remove the check",
            )


@catalogue.rule(
    "check-logprobs",
    "error",
    "Checks ask for no more logprobs than max-logprobs allows.",
    f"vLLM: max-logprobs, {DEFAULT_MAX_LOGPROBS} where absent",
)
def logprobs(subject: Subject) -> Iterator[Problem]:
    limit = number_of(subject.arguments.get("max-logprobs", DEFAULT_MAX_LOGPROBS))
    if limit is None or limit < 0:
        return
    for index, check in checks(subject, "logprobs", "prompt_logprobs"):
        top = number_of(check.get("top", 20 if check["check"] == "logprobs" else 5))
        if top is not None and top > limit:
            yield Problem(
                subject.place("checks", index, "top"),
                "asks for more entries than the server gives",
                text_of(check.get("top", "absent (20)")),
                f"at most {limit:.0f} (max-logprobs)",
                "lower top, or raise max-logprobs",
            )


@catalogue.rule(
    "check-prefix-cache",
    "error",
    "The check prefix_cache is asked of a server that caches prefixes and says how much it found.",
    "vLLM: enable-prefix-caching, enable-prompt-tokens-details",
)
def prefix_cache(subject: Subject) -> Iterator[Problem]:
    missing = [] if prefix_caching(subject) else ["enable-prefix-caching"]
    if not on(subject, "enable-prompt-tokens-details"):
        missing.append("enable-prompt-tokens-details")
    if missing:
        for index, _check in checks(subject, "prefix_cache"):
            yield Problem(
                subject.place("checks", index),
                "the server does not cache prefixes, or does not report cached tokens, so this can only fail",
                f"no {' and no '.join(missing)}",
                "enable-prefix-caching: true and enable-prompt-tokens-details: true",
                "add both arguments, or remove the check",
            )


@catalogue.rule(
    "check-length",
    "error",
    "Prompts of checks fit the served context, with room for an answer.",
    "vLLM answers 400 to a prompt that leaves no room",
)
def length(subject: Subject) -> Iterator[Problem]:
    room = context_of(subject)
    if room is None:
        return
    for index, check in checks(subject, *LENGTH_CHECKS):
        lengths = check.get("tokens", [])
        for item, tokens in enumerate(lengths if isinstance(lengths, list) else []):
            found = number_of(tokens)
            if found is not None and found >= room:
                yield Problem(
                    subject.place("checks", index, "tokens", item),
                    "a prompt of this length leaves no room for an answer",
                    text_of(tokens),
                    f"less than {room} (max-model-len)",
                    "shorten it, or raise max-model-len",
                )


@catalogue.rule(
    "check-deadline",
    "warning",
    "The deadline of a check with long prompts is above the times that were measured for them.",
    "the Spark page, Troubleshooting: 128 s to the first token of 250K; clients need generous timeouts",
)
def deadline(subject: Subject) -> Iterator[Problem]:
    for index, check in checks(subject, *LENGTH_CHECKS):
        limit, lengths = number_of(check.get("deadline_s")), check.get("tokens", [])
        longest = max((int(n) for n in map(number_of, lengths if isinstance(lengths, list) else []) if n), default=0)
        if limit is None:
            continue
        for _at, figure in figures(subject, "ttft", "time_to_answer"):
            length_there = figure.get("at", {}).get("prompt_tokens")
            seconds = number_of(figure.get("high", figure.get("value"))) or 0.0
            seconds /= 1000 if figure["unit"] == "ms" else 1
            if length_there is not None and length_there <= longest and seconds >= limit:
                yield Problem(
                    subject.place("checks", index, "deadline_s"),
                    f"a prompt of {length_there:,} tokens alone took {seconds:g} s",
                    text_of(check["deadline_s"]),
                    f"well above {seconds:g}",
                    "raise deadline_s",
                )
                break


@catalogue.rule(
    "check-figure",
    "error",
    "A check demands no more than the figures of the variant say was measured.",
    "one of the two is wrong where they differ",
)
def against_figures(subject: Subject) -> Iterator[Problem]:
    wanted = (
        ("kv_pool", "tokens", ("kv_pool_tokens",)),
        ("kv_pool", "concurrency", ("concurrency",)),
        ("prefix_cache", "block", ("cached_token_multiple", "kv_block_tokens")),
    )
    for name, key, metrics in wanted:
        known = _as_served(subject, metrics)
        for index, check in checks(subject, name):
            found = number_of(check.get(key))
            if found is None or not known:
                continue
            # A floor may be below what was measured; a block is what it is.
            right = found <= max(high for _low, high in known)
            if key == "block":
                right = any(low <= found <= high for low, high in known)
            if not right:
                yield Problem(
                    subject.place("checks", index, key),
                    f"is not what the figures of {' and '.join(metrics)} say",
                    text_of(check[key]),
                    " or ".join(f"{high:g}" if high < 1e5 else f"{high:.0f}" for _low, high in known),
                    "correct the check or the figure",
                )


def _as_served(subject: Subject, metrics: tuple[str, ...]) -> list[tuple[float, float]]:
    """Lowest and highest value of each figure that was measured as the variant is served, as far as its `at` says."""
    settings = {
        "kv_bytes": tokens_of(subject.arguments.get("kv-cache-memory-bytes")),
        "gpu_memory_utilization": number_of(subject.arguments.get("gpu-memory-utilization")),
        "context": context_of(subject),
        "draft_tokens": number_of(subject.speculation.get("num_speculative_tokens", 0)),
        "engine": subject.variant["engine"]["version"],
    }
    fitting: list[tuple[bool, tuple[float, float]]] = []
    for _index, figure in figures(subject, *metrics):
        at = figure.get("at", {})
        low = number_of(figure.get("low", figure.get("value")))
        high = number_of(figure.get("high", figure.get("value")))
        here = all(value is None or at.get(key, value) == value for key, value in settings.items())
        if here and low is not None and high is not None:
            fitting.append((settings["kv_bytes"] is not None and "kv_bytes" in at, (low, high)))
    # Where the pool is pinned, a figure that names its size says more than one that does not.
    pinned = [spread for exact, spread in fitting if exact]
    return pinned or [spread for _exact, spread in fitting]


@catalogue.rule(
    "check-batch",
    "warning",
    "known_answers_in_flight sends no more requests than the server runs at once.",
    "requests above max-num-seqs wait, and are not decoded side by side",
)
def batch(subject: Subject) -> Iterator[Problem]:
    limit = tokens_of(subject.arguments.get("max-num-seqs"))
    if limit is None or limit < 1:
        return
    for index, check in checks(subject, "known_answers_in_flight"):
        requests = number_of(check.get("requests", 8))
        if requests is not None and requests > limit:
            yield Problem(
                subject.place("checks", index, "requests"),
                f"the server runs {limit} at once, so the rest wait and prove nothing",
                text_of(check.get("requests", "absent (8)")),
                f"at most {limit} (max-num-seqs)",
                "lower requests, or raise max-num-seqs",
            )


@catalogue.rule(
    "checks-too-few",
    "warning",
    "A variant is checked for what it is and for right answers.",
    "vllm-gaudi#1612: weights loaded, HTTP 200, and every answer was garbage",
)
def too_few(subject: Subject) -> Iterator[Problem]:
    missing = [name for name in ("identity", "known_answers") if not any(checks(subject, name))]
    if missing:
        yield Problem(
            subject.place("checks"),
            "a server that answers wrongly, or is another engine, would pass",
            f"no check {' and no check '.join(missing)}",
            "identity and known_answers",
            "add them",
        )


RULES = tuple(catalogue)
