# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The command `enplace`. What it knows is in the collection beside it; this package asks and prints.

The collection's folder goes on Python's path here, for this process alone. In an environment's own path Ansible would
find the collection from every folder on the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
__version__ = "1.0.0"

_COLLECTION = str(ROOT / "collection")
if _COLLECTION not in sys.path:
    sys.path.append(_COLLECTION)
