# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m enplace`."""

from __future__ import annotations

import sys

from .main import main

sys.exit(main())
