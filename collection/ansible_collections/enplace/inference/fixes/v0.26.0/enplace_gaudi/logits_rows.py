# SPDX-License-Identifier: Apache-2.0
"""Logits processors for a call of the sampler that takes some of the batch, in an order of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

#: Where the engine's own processors live: those of others have to be asked whatever a request wants.
BUILT_IN = "vllm.v1.sample.logits_processor"


@dataclass
class Update:
    """What the engine's processors read of a change of the batch."""

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, Any, Any, list[int]]]
    moved: Sequence[Any] = field(default_factory=tuple)

    def __bool__(self) -> bool:
        return True


def uses_processors(params: Any) -> bool:
    return params is not None and bool(params.logit_bias or params.min_tokens or params.min_p)


def for_rows(batch: Any, rows: Sequence[tuple[str, list[int]]]) -> Any:
    """The batch's processors, told of exactly the rows of this call. Rows that pad it repeat a request and get none."""
    requests = batch.enplace_requests
    processors = list(batch.logitsprocs.all)
    wanted = any(uses_processors(requests[name].sampling_params) for name, _row in rows)
    custom = any(not type(processor).__module__.startswith(BUILT_IN) for processor in processors)
    used = batch.enplace_processor_rows
    if not (wanted or custom or used):
        return batch.logitsprocs
    added = []
    seen: set[str] = set()
    for row, (name, outputs) in enumerate(rows):
        if name not in seen:
            request = requests[name]
            added.append((row, request.sampling_params, request.prompt_token_ids, outputs))
        seen.add(name)
    now = {row for row, *_more in added}
    update = Update(len(rows), sorted(used - now), added)
    for processor in processors:
        processor.update_state(update)
    batch.enplace_processor_rows = now if wanted or custom else set()
    return batch.logitsprocs
