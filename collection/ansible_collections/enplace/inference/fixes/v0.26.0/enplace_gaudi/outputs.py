# SPDX-License-Identifier: Apache-2.0
"""What a request has generated so far, where the worker does not keep it: under async scheduling."""

from __future__ import annotations

from typing import Any


def uses_outputs(params: Any) -> bool:
    """Whether sampling for these parameters looks at what was generated."""
    return params is not None and bool(
        params.min_tokens
        or params.bad_words_token_ids
        or params.frequency_penalty
        or params.presence_penalty
        or params.repetition_penalty != 1.0
    )


class Generated:
    """Tokens that were sampled on the device, by request. Fetched once a step, and only while a request needs them."""

    def __init__(self) -> None:
        self.taken: Any = None
        self.since: dict[str, tuple[list[int], list[int]]] = {}

    def take(self, runner: Any) -> None:
        """Add what the last step has sampled. The scheduler's own list wins where it sent one anew."""
        batch = runner.input_batch
        self.since = {name: lists for name, lists in self.since.items() if name in runner.requests}
        for name, request in runner.requests.items():
            if name not in self.since or self.since[name][0] is not request.output_token_ids:
                self.since[name] = (request.output_token_ids, [])
        sampled = batch.prev_sampled_token_ids
        if sampled is None or sampled is self.taken:
            return
        self.taken = sampled
        tokens = sampled.tolist()
        for name, row in batch.prev_req_id_to_index.items():
            if name in self.since and row < len(tokens):
                self.since[name][1].append(tokens[row])

    def of(self, name: str, known: list[int]) -> list[int]:
        return [*known, *self.since[name][1]] if name in self.since else known


def with_generated(runner: Any, rows: list[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    """Requests with what they have generated, as the sampler is to see it."""
    if not runner.use_async_scheduling:
        return rows
    if not any(uses_outputs(request.sampling_params) for request in runner.requests.values()):
        runner.enplace_generated = None
        return rows
    if getattr(runner, "enplace_generated", None) is None:
        runner.enplace_generated = Generated()
    runner.enplace_generated.take(runner)
    return [(name, runner.enplace_generated.of(name, known)) for name, known in rows]
