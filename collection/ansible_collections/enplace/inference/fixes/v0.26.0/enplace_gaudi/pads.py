# SPDX-License-Identifier: Apache-2.0
"""The block that padding writes to, in the units of the tensor that it is written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def kernel_blocks(num_blocks: int, groups: Sequence[Any], kernel_block_size: int, rows: Mapping[str, int]) -> int:
    """How many kernel blocks the blocks of the KV cache are, which is also the number of the spare one behind them.

    A hybrid's KV block holds several kernel blocks. ``groups`` are those of attention layers, ``rows`` the lengths of
    the tensors as allocated, by layer. Raises RuntimeError where the spare block is not the last of a tensor: padding
    would write into the KV cache of a request, or behind its end.
    """
    sizes = {group.kv_cache_spec.block_size for group in groups}
    if len(sizes) != 1 or next(iter(sizes)) % kernel_block_size:
        raise RuntimeError(
            f"blocks of {sorted(sizes)} tokens are not a whole number of kernel blocks of {kernel_block_size}"
        )
    spare: int = num_blocks * (next(iter(sizes)) // kernel_block_size)
    for group in groups:
        for layer in group.layer_names:
            if layer in rows and rows[layer] != (spare + 1) * kernel_block_size:
                raise RuntimeError(
                    f"{layer} has {rows[layer]} rows, expected {(spare + 1) * kernel_block_size}: "
                    f"{spare} kernel blocks of {kernel_block_size}, and a spare one for padding"
                )
    return spare


def pad_block(runner: Any, config: Any, num_blocks: int, caches: Mapping[str, Any]) -> int:
    """The number of the block that padding writes to. Without layers of a fixed state, blocks are kernel blocks."""
    if runner.num_mamba_like_layers == 0:
        return num_blocks
    groups = [group for group in config.kv_cache_groups if hasattr(group.kv_cache_spec, "head_size")]
    rows = {layer: len(caches[layer][0]) for group in groups for layer in group.layer_names if layer in caches}
    return kernel_blocks(num_blocks, groups, runner.attn_block_size, rows)
