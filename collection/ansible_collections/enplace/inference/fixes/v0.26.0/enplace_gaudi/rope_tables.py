# SPDX-License-Identifier: Apache-2.0
"""Tables of rotary embeddings, computed on the CPU: a device's cos and sin may be wrong for large angles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Whatever names a device gets the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        if func is torch.Tensor.to:
            args = tuple("cpu" if isinstance(item, torch.device) else item for item in args)
        return func(*args, **kwargs)


def on_cpu(compute: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    """A table, computed on the CPU and moved to where the engine builds the model."""
    device = torch.get_default_device()
    with torch.device("cpu"), OnCpu():
        table = compute(*arguments)
    return table.to(device)
