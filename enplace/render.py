# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""`enplace render`: what serves a variant. Nothing is printed of a recipe that a host would refuse."""

from __future__ import annotations

import argparse
import sys

from ansible_collections.enplace.inference.plugins.plugin_utils import render
from ansible_collections.enplace.inference.plugins.plugin_utils.lint import lint_document
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import RecipeError

from . import common


def run(options: argparse.Namespace) -> int:
    """The command."""
    try:
        recipe, variant = common.find_one(options.reference, options.recipes)
        # What comes out is often piped into a shell.
        found = [problem for problem in lint_document(recipe.document) if common.about(problem, variant)]
        errors = [problem for problem in found if problem.severity == "error"]
        if errors:
            raise RecipeError(errors)
        if options.json:
            common.print_json(render.data(recipe, variant))
        else:
            # As it is: a shell and systemd are to read exactly this.
            sys.stdout.write(render.shell(recipe, variant) if options.shell else render.unit(recipe, variant))
    except RecipeError as error:
        return common.tell(error.problems)
    return 0
