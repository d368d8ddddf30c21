# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""`enplace lock`: the locks of an engine, made anew by uv and compared with those that are there."""

from __future__ import annotations

import argparse
from dataclasses import replace

from ansible_collections.enplace.inference.plugins.plugin_utils import locks
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import RecipeError

from . import common


def run(options: argparse.Namespace) -> int:
    """The command. A locked file that was replaced under its version makes it end with 1 in any case."""
    try:
        outcomes = locks.lock(
            options.engine,
            platform=options.platform,
            exclude_newer=options.exclude_newer,
            check=options.check,
            uv=options.uv,
            find_links=options.find_links,
            index_url=options.index_url,
        )
    except RecipeError as error:
        # What the command line names is told apart from what uv or the index says.
        named = ("engine", "--exclude-newer", options.engine)
        return common.tell(
            replace(problem, rule="reference" if problem.where in named else "lock") for problem in error.problems
        )
    except OSError as error:
        common.err(f"{error.filename or options.engine}: cannot be written: {error.strerror}")
        return 1
    for outcome in outcomes:
        for line in outcome.lines():
            common.out(line)
    alarm = any(outcome.difference is not None and outcome.difference.alarming for outcome in outcomes)
    changed = any(not outcome.identical for outcome in outcomes)
    return 1 if alarm or (options.check and changed) else 0
