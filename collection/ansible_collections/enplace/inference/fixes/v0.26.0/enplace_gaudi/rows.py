# SPDX-License-Identifier: Apache-2.0
"""Which row of the batch belongs to which request, and in which order prompts run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def by_row(values: Mapping[int, T], indices: Sequence[int]) -> dict[int, T]:
    """Values that are kept by index in the batch, by row of a call that takes some of the batch.

    Rows that pad a call repeat an index; they get nothing, or they would use up what belongs to the first.
    """
    result: dict[int, T] = {}
    seen: set[int] = set()
    for row, index in enumerate(indices):
        if index in values and index not in seen:
            result[row] = values[index]
        seen.add(index)
    return result


def is_recomputed(request: Any) -> bool:
    """Whether tokens that a request has emitted are prompt now: all of them where it resumes after a preemption.

    One that was only left out of a step lacks its last token alone, and goes on as a decode.
    """
    outputs = len(request.output_token_ids)
    known = len(request.prompt_token_ids) + outputs
    return bool(request.num_computed_tokens == 0 or (outputs > 0 and request.num_computed_tokens < known - 1))


def swaps(current: Sequence[T], wanted: Sequence[T]) -> list[tuple[int, int]]:
    """Exchanges of two places that bring one order into the other."""
    order = list(current)
    result = []
    for place, item in enumerate(wanted):
        other = order.index(item)
        if other != place:
            order[place], order[other] = order[other], order[place]
            result.append((place, other))
    return result


def put_prompts_in_order(runner: Any, scheduler_output: Any) -> None:
    """Prompts run in the order in which they were scheduled: one may read the blocks of another, never of a later one.

    The batch holds decodes first. A swap copies a row of tokens, so nothing is done where no prompt has context.
    """
    batch = runner.input_batch
    places = [place for place in range(batch.num_reqs) if runner._is_prompt(place, scheduler_output)]
    if not any(batch.num_computed_tokens_cpu[place] > 0 for place in places):
        return
    rank = {request: number for number, request in enumerate(scheduler_output.num_scheduled_tokens)}
    ids = [batch.req_ids[place] for place in places]
    for one, other in swaps(ids, sorted(ids, key=rank.__getitem__)):
        batch.swap_states(places[one], places[other])


def drop_partial(runner: Any, scheduler_output: Any, tokens: list[list[int]]) -> None:
    """Forget what was sampled after a part of a prompt. A step with structured output gives every request a row."""
    batch = runner.input_batch
    for place in range(batch.num_reqs):
        end = batch.num_computed_tokens_cpu[place] + scheduler_output.num_scheduled_tokens[batch.req_ids[place]]
        if end < batch.num_prompt_tokens[place]:
            tokens[place] = []
