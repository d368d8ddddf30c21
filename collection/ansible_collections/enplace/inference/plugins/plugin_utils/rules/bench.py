# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of workloads: each is one that the server can take, and tells something."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.enplace.inference.plugins.module_utils.verify.bench import DEFAULTS, Workload

from ..lint import Subject
from ..recipe import Problem
from .common import Catalogue, context_of, text_of, tokens_of

catalogue = Catalogue()


def _workloads(subject: Subject) -> Iterator[tuple[int, Workload]]:
    for index, given in enumerate(subject.variant.get("bench", [])):
        yield index, Workload.of(given)


@catalogue.rule(
    "bench-length",
    "error",
    "Prompts and replies of a workload fit the served context.",
    "vLLM answers 400 to a request that is longer than max-model-len",
)
def length(subject: Subject) -> Iterator[Problem]:
    room = context_of(subject)
    for index, workload in _workloads(subject):
        tokens = workload.prompt_tokens + workload.output_tokens
        if room is not None and tokens > room:
            yield Problem(
                subject.place("bench", index, "prompt_tokens"),
                "prompt and reply together are longer than the context, so every request is refused",
                f"{workload.prompt_tokens} + {workload.output_tokens} (output_tokens) = {tokens}",
                f"at most {room} (max-model-len)",
                "shorten one of them, or raise max-model-len",
            )


@catalogue.rule(
    "bench-streams",
    "warning",
    "A workload has no more streams than the server runs at once.",
    "requests above max-num-seqs wait, and their time to the first token is that of the queue",
)
def streams(subject: Subject) -> Iterator[Problem]:
    limit = tokens_of(subject.arguments.get("max-num-seqs"))
    if limit is None or limit < 1:
        return
    for index, workload in _workloads(subject):
        if workload.streams > limit:
            yield Problem(
                subject.place("bench", index, "streams"),
                f"the server runs {limit} at once, so the rest wait and the figures are of the queue",
                text_of(workload.streams),
                f"at most {limit} (max-num-seqs)",
                "lower streams, or raise max-num-seqs",
            )


@catalogue.rule(
    "bench-requests",
    "error",
    "A workload has at least as many requests as streams.",
    "with fewer requests the streams are never all in flight",
)
def requests(subject: Subject) -> Iterator[Problem]:
    for index, workload in _workloads(subject):
        if workload.requests < workload.streams:
            yield Problem(
                subject.place("bench", index, "requests"),
                "these are too few requests to keep all streams busy",
                text_of(workload.requests),
                f"at least {workload.streams} (streams); several for each are better",
                "raise requests, or leave it out",
            )


@catalogue.rule(
    "bench-twice",
    "error",
    "No two workloads have the same streams and the same prompt length.",
    "a figure is known by its name, its streams and its prompt length",
)
def twice(subject: Subject) -> Iterator[Problem]:
    seen: dict[tuple[int, int], int] = {}
    for index, workload in _workloads(subject):
        where = (workload.streams, workload.prompt_tokens)
        before = seen.setdefault(where, index)
        if before != index:
            yield Problem(
                subject.place("bench", index),
                f"its figures could not be told from those of bench[{before}]",
                f"{workload.streams} streams, {workload.prompt_tokens} prompt_tokens",
                f"other streams ({DEFAULTS['streams']} where absent) or other prompt_tokens",
                "change one, or remove one of the two",
            )


RULES = tuple(catalogue)
