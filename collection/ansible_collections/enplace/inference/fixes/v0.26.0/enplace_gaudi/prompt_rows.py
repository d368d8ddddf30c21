# SPDX-License-Identifier: Apache-2.0
"""Logprobs of a prompt, a few hundred rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

#: Rows of one call. Every call has this many, so that all prompts share one graph.
ROWS = 256


def rows_of(
    hidden: torch.Tensor, tokens: torch.Tensor, place: int, names: Sequence[str], lengths: Mapping[str, int]
) -> Any:
    """The hidden states of one prompt, in whatever layout the model gives those of all: flat, padded or joined."""
    if hidden.dim() == 2 and tokens.dim() == 2:
        hidden = hidden.view(*tokens.shape, -1)
    if hidden.shape[0] == 1 and len(names) > 1:
        begin = sum(lengths[name] for name in names[:place])
        return hidden[0, begin : begin + lengths[names[place]]]
    return hidden[place]


def fill(runner: Any, hidden: torch.Tensor, begin: int, targets: torch.Tensor, number: int, result: Any) -> None:
    """Write the logprobs of these rows into the tensors of the whole prompt, from row ``begin`` on."""
    for first in range(0, len(targets), ROWS):
        part = hidden[first : min(first + ROWS, len(targets))]
        count = len(part)
        wanted = targets[first : first + count]
        if count < ROWS:
            part = torch.nn.functional.pad(part, (0, 0, 0, ROWS - count))
            wanted = torch.nn.functional.pad(wanted, (0, ROWS - count))
        logprobs = runner.sampler.compute_logprobs(runner.model.compute_logits(part))
        found = runner._gather_prompt_logprobs_hpu(logprobs, number, wanted)
        here = slice(begin + first, begin + first + count)
        result.logprob_token_ids[here].copy_(found.logprob_token_ids[:count], non_blocking=True)
        result.logprobs[here].copy_(found.logprobs[:count], non_blocking=True)
        result.selected_token_ranks[here].copy_(found.selected_token_ranks[:count], non_blocking=True)
