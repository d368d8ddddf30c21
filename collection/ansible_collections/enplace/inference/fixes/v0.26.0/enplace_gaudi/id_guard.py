# SPDX-License-Identifier: Apache-2.0
"""Token ids that no tokenizer knows. Decoding one raises, and an error there ends every request of the API server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

logger = logging.getLogger("vllm.enplace")
#: Seconds between two messages: a fault of a device gives one for every token.
PAUSE_S = 60.0
_last = [float("-inf")]


def known(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The ids that the tokenizer can decode."""
    top = getattr(tokenizer, "max_token_id", None)
    limit = len(tokenizer) if top is None else max(top + 1, len(tokenizer))
    return [number for number in ids if 0 <= number < limit]


def convert(tokenizer: Any, ids: Sequence[int], plain: Callable[[Any, list[int]], list[str]]) -> list[str] | None:
    """The texts of ids of which some are unknown; those get an empty text. None where all are known."""
    good = known(tokenizer, ids)
    if len(good) == len(ids):
        return None
    valid = set(good)
    if time.monotonic() - _last[0] >= PAUSE_S:
        _last[0] = time.monotonic()
        bad = sorted(set(ids) - valid)
        logger.error("logprobs hold token ids outside the vocabulary, shown as empty texts: %s", bad[:5])
    texts = iter(plain(tokenizer, good))
    return [next(texts) if number in valid else "" for number in ids]
