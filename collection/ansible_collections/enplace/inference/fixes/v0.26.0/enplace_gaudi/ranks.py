# SPDX-License-Identifier: Apache-2.0
"""The end of a rank that has failed."""

from __future__ import annotations

import logging
import os
from typing import NoReturn

logger = logging.getLogger("vllm.enplace")


def end(rank: int) -> NoReturn:
    """Leave the process. The others are a step ahead of this rank from now on, and would serve what does not fit.

    The executor sees a dead process and ends the engine. Nothing is torn down: collectives may wait for the others.
    """
    logger.critical("rank %d has failed and does not reply for this call: it ends, so that the engine does too", rank)
    logging.shutdown()
    os._exit(1)
