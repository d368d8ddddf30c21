# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of enplace.inference.resolve: read and lint the recipes, ask the host twice, say what cannot work."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..plugin_utils import audit, hub, status
from ..plugin_utils import plan as planner
from ..plugin_utils.recipe import RECIPES, Problem, RecipeError

display = Display()


class ActionModule(ActionBase):
    """Never changes anything, on no host and in no mode."""

    _supports_check_mode = True
    _requires_connection = True
    _VALID_ARGS = frozenset({"python", "show", "verify"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        del tmp
        variables = dict(task_vars or {})
        host = str(variables.get("inventory_hostname", "host"))
        show, verify = (boolean(self._task.args.get(name, False)) for name in ("show", "verify"))
        try:
            settings = planner.read_settings(self._own_variables(variables))
            # A relative folder is the caller's: a playbook that runs from an installed collection has another one.
            settings["reports_dir"] = str(Path.cwd() / settings["reports_dir"])
            if verify and settings["verify_url"]:
                # Nothing of it is on the host, and nothing of the host's plan is asked.
                targets = planner.find_targets(settings, self._folders(settings))
                servers = audit.of_address(targets, settings, sys.executable)
                return {**result, "changed": False, "servers": servers, "settings": settings}
            targets, warnings = self._targets(settings)
            facts = self._ask(
                "host_facts",
                {
                    **planner.questions(targets, settings),
                    "python": self._task.args.get("python", "/usr/bin/python3"),
                },
                variables,
            )
            plan = planner.make_plan(targets, facts, settings["weights_source"])
            problems = planner.judge(plan, facts, settings, host)
            if problems:
                raise RecipeError(problems)
            state = self._ask("state", {**plan, "deep": settings["deep"]}, variables)
            if not (show or verify):
                problems = [_damage(host, item) for item in state["damaged"]]
            if problems:
                raise RecipeError(problems)
            servers = audit.of_host(targets, plan, state, settings) if verify else []
        except RecipeError as error:
            count = len(error.problems)
            noun = "problem" if count == 1 else "problems"
            head = f"{host}: {count} {noun}; nothing was changed on the host."
            return {**result, "failed": True, "msg": "\n".join([head, *map(str, error.problems)]), "changed": False}
        except NoAnswer as error:
            return {**result, **error.result}
        if warnings:
            result["warnings"] = [*result.get("warnings", []), *warnings]
        if show:
            display.display(status.text(host, state))
        self._keep_reports_to_copy(Path(settings["reports_dir"]) / host, state)
        # Of the process that people see, not of the one that works on this host.
        holder = f"{getpass.getuser()}@{socket.gethostname()} pid {os.getppid()}"
        found = {"plan": plan, "state": state, "settings": settings, "holder": holder, "servers": servers}
        return {**result, "changed": False, **found}

    def _ask(self, module: str, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """One execution of a module on the host. Raises NoAnswer where it fails."""
        found: dict[str, Any] = self._execute_module(
            module_name=f"enplace.inference.{module}", module_args=arguments, task_vars=variables
        )
        if found.get("failed") or found.get("unreachable"):
            raise NoAnswer(found)
        for key in ("changed", "invocation", "_ansible_parsed"):
            found.pop(key, None)
        return found

    def _targets(self, settings: dict[str, Any]) -> tuple[list[planner.Target], list[str]]:
        """What the host serves, with every commit known, and what is to be warned of.

        Raises RecipeError for the linter's errors and for what cannot be applied.
        """
        targets = planner.find_targets(settings, self._folders(settings))
        warnings: list[str] = []
        errors: list[Problem] = []
        for target in targets:
            findings = planner.lint(target.recipe, target.variant_name)
            errors += [problem for problem in findings if problem.severity == "error"]
            errors += planner.refusals(target.recipe, target.variant_name, settings)
            # That a model is not pinned is said again below, with the commit that is taken instead.
            told = [p for p in findings if p.severity == "warning" and p.rule != planner.UNPINNED_RULE]
            warnings += [_one_line(problem) for problem in told]
        if errors:
            raise RecipeError(errors)
        pinned = []
        for target in targets:
            recipe, unpinned = planner.pin_in_memory(target.recipe, target.variant_name, self._look_up(settings))
            pinned.append(replace(target, recipe=recipe))
            warnings += unpinned
        return pinned, warnings

    def _folders(self, settings: dict[str, Any]) -> list[Path]:
        """Where recipes are looked for, in this order."""
        return [Path.cwd() / name for name in settings["recipe_folders"]] + [RECIPES]

    def _keep_reports_to_copy(self, folder: Path, state: dict[str, Any]) -> None:
        """Drop the reports that the controller has: what is left is to be copied there."""
        for slug, server in state["servers"].items():
            report = server["report"]
            try:
                same = report is None or json.loads((folder / f"{slug}.json").read_text(encoding="utf-8")) == report
            except (OSError, ValueError):
                same = False
            server["report_is_here"] = same
            if same:
                server["report"] = None

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


class NoAnswer(Exception):
    """A module failed on the host, or did not reach it."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(result.get("msg", ""))
        self.result = result


def _damage(host: str, item: dict[str, str]) -> Problem:
    return Problem(
        f"{host} {item['path']}",
        f"is not as it was made ({item['what']}, {item['part']})",
        item["found"],
        item["expected"],
        "find out who changed it, or whether the disk fails; then remove the folder that enplace made it in (its name "
        "is a digest) and run again",
    )


def _one_line(problem: Problem) -> str:
    """Ansible wraps warnings, so that line breaks in one are lost."""
    details = (("found", problem.found), ("expected", problem.expected), ("what to do", problem.todo))
    parts = [f"{problem.where}: {problem.what} ({problem.rule})"]
    return "; ".join(parts + [f"{label}: {text}" for label, text in details if text])
