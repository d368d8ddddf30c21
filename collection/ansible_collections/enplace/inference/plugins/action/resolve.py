# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of enplace.inference.resolve: read the recipe, ask the host once, say what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils import plan as planner
from ..plugin_utils.recipe import RECIPES, RecipeError, find_recipe


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
        return {**result, "changed": False, "plan": plan, "facts": facts, "settings": settings}

    def _own_variables(self, variables: dict[str, Any]) -> dict[str, Any]:
        """The enplace_* inventory variables, templated; the recipe itself never is."""
        own = {name: value for name, value in variables.items() if name.startswith("enplace_")}
        return {name: self._templar.template(value) for name, value in own.items()}

    def _folders(self, settings: dict[str, Any]) -> list[Path]:
        return [Path.cwd() / folder for folder in settings["recipe_folders"]] + [RECIPES]
