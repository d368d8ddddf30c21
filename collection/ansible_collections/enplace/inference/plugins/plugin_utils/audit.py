# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What is to be asked of servers that run, by the playbook verify. Pure, controller side.

Each is a mapping with what the role verify takes, and `here`: whether the controller asks, because the server is known
by its address alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import (
    BENCH,
    CHECKS,
    SOAK,
    of_suite,
    validate_checks,
)
from ansible_collections.enplace.inference.plugins.module_utils.verify.child import deadline_s

from .plan import Target, complete_checks
from .recipe import Problem, RecipeError, did_you_mean

# Seconds of a workload without a deadline of its own.
WORKLOAD_S = 1800


def of_host(
    targets: Sequence[Target], plan: Mapping[str, Any], state: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The servers of a host that enplace made; standby ones that do not run only where they are to be started.

    Raises RecipeError where another release serves than the recipe says: the recipe's checks say nothing about it.
    """
    problems, found = [], []
    serving = [server["unit"] for server in state["servers"].values() if server["active"] == "active"]
    for target in targets:
        server, seen = plan["servers"][target.slug], state["servers"][target.slug]
        start = server["standby"] and seen["active"] != "active"
        if start and not settings["verify_standby"]:
            continue
        if not str(server["release"]).startswith(seen["current"] or "-"):
            what = "another release serves than the recipe says" if seen["current"] else "nothing serves"
            todo = "run site.yml first; playbooks/status.yml names what differs"
            problems.append(Problem(target.where(), what, seen["current"] or "none", seen["release"], todo))
            continue
        suite = settings["verify_suite"]
        folder = Path(server["report"]).parent
        asked = {
            key: server[key]
            for key in ("recipe", "url", "model", "engine", "release", "unit", "python", "api_key_file")
        }
        found.append(
            {
                **asked,
                **_suite(target, settings, f"{target.slug}.{suite}"),
                "report": str(folder / suite / "latest.json"),
                "ready_timeout_s": target.variant["ready"]["timeout_s"],
                "here": False,
                "start": start,
                # What the start of a standby server stops, and is to serve again.
                "instead_of": serving if start else [],
            }
        )
    if problems:
        raise RecipeError(problems)
    return found


def of_address(targets: Sequence[Target], settings: Mapping[str, Any], python: str) -> list[dict[str, Any]]:
    """One server that somebody else made, asked by the controller with `python`. Raises RecipeError."""
    name = "inventory enplace_verify_url"
    # As clients of the interface write it, too.
    url = re.sub(r"(/v1)?/*$", "", str(settings["verify_url"]))
    given = settings["verify_checks"]
    if given is None and len(targets) != 1:
        found = ", ".join(target.reference for target in targets) or "none"
        todo = "set enplace_recipes to one recipe, or give checks of your own: enplace_verify_checks and _model"
        raise RecipeError([Problem(name, "it is not said which recipe's checks to ask", found, "one recipe", todo)])
    target = targets[0] if given is None else None
    model = settings["verify_model"]
    if target is not None:
        model = model or target.variant.get("served_name", target.recipe.name)
        engine = dict(target.variant["engine"])
    else:
        engine = {"name": "", "version": ""}
        problems = validate_checks(given)
        if problems:
            where = "inventory enplace_verify_checks"
            raise RecipeError([Problem(where, text, "", "checks as in a recipe") for text in problems])
    if not model:
        raise RecipeError([Problem(name, "the model's name is not known", "", "enplace_verify_model", "set it")])
    if settings["verify_version"]:
        engine["version"] = settings["verify_version"]
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"^https?://", "", url).lower()).strip("-")
    return [
        {
            "recipe": target.reference if target else "",
            "url": url,
            "model": model,
            "engine": engine,
            "release": "",
            "unit": "",
            "python": python,
            "api_key_file": settings["verify_api_key_file"] or "",
            "report": "",
            "here": True,
            "start": False,
            "instead_of": [],
            **_suite(target, settings, f"{slug}.{settings['verify_suite']}"),
        }
    ]


def _suite(target: Target | None, settings: Mapping[str, Any], slug: str) -> dict[str, Any]:
    """What the suite asks. Raises RecipeError where the recipe has nothing for it, or nothing would be left."""
    suite = settings["verify_suite"]
    variant: Mapping[str, Any] = target.variant if target else {}
    place = f"{target.reference}" if target else "inventory enplace_verify_checks"
    everything = complete_checks(variant["checks"], variant) if target else list(settings["verify_checks"])
    without = settings["verify_without"]
    unknown = [name for name in without if name not in CHECKS]
    if unknown:
        where = "inventory enplace_verify_without"
        raise RecipeError([Problem(where, "unknown check", name, did_you_mean(name, CHECKS)) for name in unknown])
    checks = [check for check in of_suite(everything, suite) if check["check"] not in without]
    if not checks:
        raise RecipeError([Problem(place, f"has no checks for the suite {suite}", "none", "at least one check")])
    bench = list(variant.get("bench", [])) if suite == BENCH else []
    if suite == BENCH and not bench:
        todo = "add bench to the variant, see docs/recipes.md"
        raise RecipeError([Problem(place, "has nothing to measure", "no bench", "a list of workloads", todo)])
    hours = (settings["verify_hours"] or variant.get("soak", {}).get("hours")) if suite == SOAK else 0
    if suite == SOAK and not hours:
        todo = "set enplace_verify_hours, or soak: {hours: ...} in the variant"
        raise RecipeError([Problem(place, "it is not said for how long", "no soak", "a number of hours", todo)])
    limit = deadline_s(checks) * (2 if suite == SOAK else 1) + hours * 3600
    return {
        "slug": slug,
        "suite": suite,
        "checks": checks,
        "bench": bench,
        "figures": list(variant.get("figures", [])) if bench else [],
        "soak_hours": hours,
        # What is not ended by then hangs: every check and every workload has its own deadline.
        "limit_s": int(limit + sum(workload.get("deadline_s", WORKLOAD_S) for workload in bench)),
    }
