# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Every rule of the linter, in the order in which findings of equal place are shown."""

from __future__ import annotations

from ..lint import Rule

RULES: tuple[Rule, ...] = ()
