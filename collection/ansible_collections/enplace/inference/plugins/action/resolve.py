# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of enplace.inference.resolve: read and lint the recipe, ask the host once, say what cannot work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils import hub
from ..plugin_utils import plan as planner
from ..plugin_utils.recipe import RECIPES, Problem, Recipe, RecipeError, find_recipe


class ActionModule(ActionBase):
    """Never changes anything, on no host and in no mode."""

    _supports_check_mode = True
    _requires_connection = True
    _VALID_ARGS = frozenset({"python"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        del tmp
        variables = dict(task_vars or {})
        host = str(variables.get("inventory_hostname", "host"))
        try:
            settings = planner.read_settings(self._own_variables(variables))
            # A relative folder is the caller's: a playbook that runs from an installed collection has another one.
            settings["reports_dir"] = str(Path.cwd() / settings["reports_dir"])
            recipe, variant = find_recipe(settings["recipe"], self._folders(settings))
            warnings = self._demand(recipe, variant, settings)
            recipe, unpinned = planner.pin_in_memory(recipe, variant, self._look_up(settings))
            warnings += unpinned
            asked = planner.questions(recipe, variant, settings)
            facts = self._execute_module(
                module_name="enplace.inference.host_facts",
                module_args={**asked, "python": self._task.args.get("python", "/usr/bin/python3")},
                task_vars=variables,
            )
            if facts.get("failed") or facts.get("unreachable"):
                return {**result, **facts}
            plan = planner.make_plan(recipe, variant, settings, facts)
            problems = planner.judge(plan, facts, settings, host)
            if problems:
                raise RecipeError(problems)
        except RecipeError as error:
            count = len(error.problems)
            noun = "problem" if count == 1 else "problems"
            head = f"{host}: {count} {noun}; nothing was changed on the host."
            return {**result, "failed": True, "msg": "\n".join([head, *map(str, error.problems)]), "changed": False}
        if warnings:
            result["warnings"] = [*result.get("warnings", []), *warnings]
        return {**result, "changed": False, "plan": plan, "facts": facts, "settings": settings}

    def _demand(self, recipe: Recipe, variant: str, settings: dict[str, Any]) -> list[str]:
        """The linter's warnings about the variant. Raises RecipeError for its errors and for what cannot be applied."""
        findings = planner.lint(recipe, variant)
        errors = [problem for problem in findings if problem.severity == "error"]
        errors += planner.refusals(recipe, variant, settings)
        if errors:
            raise RecipeError(errors)
        # That a model is not pinned is said again below, with the commit that is taken instead.
        told = [p for p in findings if p.severity == "warning" and p.rule != planner.UNPINNED_RULE]
        return [_one_line(problem) for problem in told]

    def _look_up(self, settings: dict[str, Any]) -> planner.LookUp:
        """The hub, asked from the controller. The token of a host stays there; the controller's own is HF_TOKEN."""

        def look_up(repository: str, include: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
            endpoint, token = settings["hub_endpoint"], hub.token_of(os.environ)
            commit = hub.resolve_revision(endpoint, repository, "main", token)
            return commit, hub.manifest(endpoint, repository, commit, include, token)

        return look_up

    def _own_variables(self, variables: dict[str, Any]) -> dict[str, Any]:
        """The enplace_* inventory variables, templated; the recipe itself never is."""
        own = {name: value for name, value in variables.items() if name.startswith("enplace_")}
        return {name: self._templar.template(value) for name, value in own.items()}

    def _folders(self, settings: dict[str, Any]) -> list[Path]:
        return [Path.cwd() / folder for folder in settings["recipe_folders"]] + [RECIPES]


def _one_line(problem: Problem) -> str:
    """Ansible wraps warnings, so that line breaks in one are lost."""
    details = (("found", problem.found), ("expected", problem.expected), ("what to do", problem.todo))
    parts = [f"{problem.where}: {problem.what} ({problem.rule})"]
    return "; ".join(parts + [f"{label}: {text}" for label, text in details if text])
