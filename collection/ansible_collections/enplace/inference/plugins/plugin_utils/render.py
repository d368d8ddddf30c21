# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""A variant as the commands that serve it: for a person's shell, as data, and as the unit that a host gets.

What is quoted for a shell is quoted here and only here, by shlex.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import unit as unit_file

from . import plan as planner
from .engines import load_engine
from .recipe import Problem, Recipe, RecipeError

UNPINNED = "unpinned"
# Set by the person who runs the commands: a checkout of enplace, or the folder `fixes` of an installed collection.
FIXES = '"$ENPLACE/fixes/apply_all.py"'


def environment(variant: Mapping[str, Any]) -> dict[str, str]:
    """The server's own variables, in the recipe's order."""
    return dict(variant.get("environment", {}))


def fix_arguments(variant: Mapping[str, Any]) -> list[str] | None:
    """Arguments of fixes/apply_all.py: the profile, then the opt-in fixes. None where the variant has no fixes."""
    fixes = variant.get("fixes")
    if fixes is None:
        return None
    return ["--profile", fixes["profile"], *fixes.get("opt_in", [])]


def pinned(weights: Mapping[str, Any]) -> str | None:
    """The commit of a repository, None where it is not pinned yet."""
    revision = str(weights["revision"])
    return None if revision == UNPINNED else revision


def arguments(variant: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's flags in the recipe's order, with the draft's repository put into speculative-config."""
    found = dict(variant["arguments"])
    draft = variant.get("draft")
    if draft is not None and isinstance(found.get("speculative-config"), Mapping):
        config = {**found["speculative-config"], "model": draft["repository"]}
        if pinned(draft):
            config["revision"] = pinned(draft)
        found["speculative-config"] = config
    return found


def command(recipe: Recipe, variant_name: str) -> list[list[str]]:
    """`vllm serve REPOSITORY` and its flags, each flag a list of its own with its values beside it."""
    variant = recipe.variants[variant_name]
    weights = variant["weights"]
    lines = [["vllm", "serve", weights["repository"]]]
    revision = pinned(weights)
    if revision:
        lines.append(["--revision", revision])
    served = variant.get("served_name", recipe.name)
    if served != weights["repository"]:
        lines.append(["--served-model-name", served])
    return lines + [unit_file.argv_of({name: value}) for name, value in arguments(variant).items()]


def data(recipe: Recipe, variant_name: str) -> dict[str, Any]:
    """The same as data: what a program needs that starts the server by itself."""
    variant = recipe.variants[variant_name]
    fixes = fix_arguments(variant)
    return {
        "recipe": f"{recipe.name}:{variant_name}",
        "engine": dict(variant["engine"]),
        "nodes": variant.get("nodes", 1),
        "environment": environment(variant),
        "fixes": None if fixes is None else ["python3", "fixes/apply_all.py", *fixes],
        "argv": [word for line in command(recipe, variant_name) for word in line],
    }


def shell(recipe: Recipe, variant_name: str) -> str:
    """A script for a POSIX shell: exported variables, the fixes, the server. $ENPLACE is a checkout of enplace.

    No value of the recipe is ever read by the shell as anything but itself.
    """
    variant = recipe.variants[variant_name]
    engine = variant["engine"]
    lines = [f"# {recipe.name}:{variant_name}, {engine['name']} {engine['version']}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment(variant).items()]
    fixes = fix_arguments(variant)
    if fixes is not None:
        lines += ["", "# Stops where the engine is not the one that the fixes are for."]
        lines.append(f"python3 {FIXES} {_words(fixes)} || exit 1")
    lines.append("")
    nodes = variant.get("nodes", 1)
    if nodes > 1:
        lines.append(
            f"# On each of {nodes} hosts, with --nnodes {nodes} --node-rank 0 (1, ...) and the first one's address"
        )
        lines.append("# as --master-addr; with --headless on all but the first.")
    lines.append(" \\\n  ".join(_words(words) for words in command(recipe, variant_name)))
    return "\n".join(lines) + "\n"


def _words(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))


def unit(recipe: Recipe, variant_name: str) -> str:
    """The systemd unit that a host with default settings gets. Raises RecipeError where no lock is for the variant.

    Two folders differ from host to host, because their names are digests of what is found there: they are written as
    @environment@ and @release@.
    """
    variant = recipe.variants[variant_name]
    engine = load_engine(variant["engine"]["name"], variant["engine"]["version"], locks=False)
    platforms = [entry for entry in engine.data["platforms"] if entry["accelerator"] == variant["accelerator"]]
    if not platforms:
        have = ", ".join(sorted({entry["accelerator"] for entry in engine.data["platforms"]})) or "none"
        where = recipe.document.place(("variants", variant_name, "accelerator"))
        todo = "use another version of the engine, or another accelerator"
        raise RecipeError([Problem(where, "the engine has no lock for it", variant["accelerator"], have, todo)])
    settings = planner.read_settings({"enplace_recipes": [f"{recipe.name}:{variant_name}"]})
    return planner.unit_text(recipe, variant_name, settings)
