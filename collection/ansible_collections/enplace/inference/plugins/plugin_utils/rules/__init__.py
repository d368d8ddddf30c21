# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Every rule of the linter.

Each module holds the rules of one subject as plain functions, each with its id, its severity, one sentence that says
what must hold, and where that is known from. A rule gets one variant (see lint.Subject) of a recipe that the schema
accepts and yields what is wrong. The tests demand a recipe that breaks each rule, and it alone, and one that keeps it.
"""

from __future__ import annotations

from .. import flags, memory
from ..lint import Rule
from . import asked, bench, figures, fixes, forbid, gaudi, hosts, locked, safety, spark, speculation

RULES: tuple[Rule, ...] = (
    *hosts.RULES,
    *locked.RULES,
    *gaudi.RULES,
    *spark.RULES,
    *speculation.RULES,
    *fixes.RULES,
    *safety.RULES,
    *asked.RULES,
    *bench.RULES,
    *figures.RULES,
    *forbid.RULES,
    *memory.RULES,
    *flags.RULES,
)
