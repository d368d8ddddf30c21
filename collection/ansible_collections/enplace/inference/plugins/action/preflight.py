# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of enplace.inference.preflight: ask the host twice, put the facts to every trap, show the table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..plugin_utils import plan as planner
from ..plugin_utils import traps
from ..plugin_utils.preflight.common import repositories
from ..plugin_utils.recipe import RecipeError
from .resolve import ActionModule as Resolve
from .resolve import NoAnswer

display = Display()


class ActionModule(Resolve):
    """Never changes anything, on no host and in no mode."""

    _VALID_ARGS = frozenset()

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = ActionBase.run(self, tmp, task_vars)
        variables = dict(task_vars or {})
        host = str(variables.get("inventory_hostname", "host"))
        try:
            settings = planner.read_settings(self._own_variables(variables), recipes_required=False)
            settings["reports_dir"] = str(Path.cwd() / settings["reports_dir"])
            targets = planner.find_targets(settings, self._folders(settings))
            wish = traps.wish_of([target.variant for target in targets])
            found = self._ask("accelerator_facts", {"now": time.time()}, variables)
            urls = repositories(traps.Facts(found, {}, wish))
            facts = traps.Facts(found, self._ask("host_facts", {"reachable": urls}, variables), wish)
        except RecipeError as error:
            head = f"{host}: the inventory or a recipe is wrong; the host was not asked."
            return {**result, "failed": True, "msg": "\n".join([head, *map(str, error.problems)]), "changed": False}
        except NoAnswer as error:
            return {**result, **error.result}
        findings = traps.judge(facts)
        display.display(traps.text(host, findings))
        return {
            **result,
            "changed": False,
            "counts": traps.counted(findings),
            "document": traps.document(host, facts, findings),
            "settings": settings,
        }
