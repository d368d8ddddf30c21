# SPDX-License-Identifier: Apache-2.0
"""Random numbers of requests with a seed of their own, drawn on the CPU."""

from __future__ import annotations

import torch


def fill(row: torch.Tensor, generator: torch.Generator) -> None:
    """Fill a row with exponential noise from a generator, which may live on another device."""
    if generator.device == row.device:
        row.exponential_(generator=generator)
        return
    noise = torch.empty(row.shape, dtype=row.dtype, device=generator.device)
    row.copy_(noise.exponential_(generator=generator))
