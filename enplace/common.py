# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What the commands share: how a recipe is found, and how text reaches a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    RECIPES,
    REFERENCE,
    Place,
    Problem,
    Recipe,
    RecipeError,
    did_you_mean,
    find_recipe,
    load_recipe,
)

# What a terminal would obey instead of showing it.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Text that a terminal shows and does not obey. Line breaks and tabs stay."""
    return _OBEYED.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def one_line(text: str) -> str:
    """The same, in one line."""
    return clean(text.replace("\n", "\\n"))


def out(text: str = "") -> None:
    """A line of the result."""
    sys.stdout.write(clean(text) + "\n")


def err(text: str) -> None:
    """A line about the run."""
    sys.stderr.write(clean(text) + "\n")


def print_json(value: Any) -> None:
    """Data as JSON, readable, one key a line."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def folders(extra: Sequence[str]) -> list[Path]:
    """Where recipes are looked for: the caller's folders, ./recipes, those that ship."""
    here = Path("recipes")
    found = [Path(name) for name in extra] + ([here] if here.is_dir() else [])
    # In a checkout ./recipes leads to those that ship.
    return found if here.is_dir() and here.resolve() == RECIPES else [*found, RECIPES]


def shown(path: Path) -> str:
    """A path as people write it here: relative where it lies below the working directory."""
    text = os.path.abspath(path)
    below = os.path.relpath(text)
    return below if not below.startswith("..") else text


def is_path(target: str) -> bool:
    """Whether a target is meant as a path: it is there, or it looks like one."""
    return target.endswith((".yaml", ".yml")) or target.startswith((".", "/", "~")) or os.path.exists(target)


def split_path(target: str) -> tuple[Path, str]:
    """A path and, behind a colon, a variant."""
    path, colon, variant = target.rpartition(":")
    if colon and path.endswith((".yaml", ".yml")) and not os.path.exists(target):
        return Path(path).expanduser(), variant
    return Path(target).expanduser(), ""


def find_path(target: str, extra: Sequence[str]) -> tuple[Path, str]:
    """The file of a recipe, unread, and the variant's name, empty where none is named. Raises RecipeError."""
    if is_path(target) or is_path(split_path(target)[0].as_posix()):
        path, variant = split_path(target)
        return (path / "recipe.yaml" if os.path.isdir(path) else path), variant
    match = REFERENCE.fullmatch(target)
    searched = folders(extra)
    if match:
        for folder in searched:
            path = folder / match["name"] / "recipe.yaml"
            if os.path.isfile(path):
                return path, match["variant"] or ""
    try:
        # Not there, or no name at all: the loader says it in full, of an inventory's variable.
        find_recipe(target, searched)
    except RecipeError as error:
        raise RecipeError([replace(problem, where=one_line(target)[:100]) for problem in error.problems]) from None
    raise AssertionError("a recipe that is not there was found")


def find(target: str, extra: Sequence[str]) -> tuple[Recipe, list[str]]:
    """A valid recipe and the variants that are meant: the one named, else all of them. Raises RecipeError."""
    path, variant = find_path(target, extra)
    recipe = load_recipe(path)
    if variant and variant not in recipe.variants:
        where = recipe.document.place(("variants",))
        expected = did_you_mean(variant, recipe.variants)
        todo = f"name one as {recipe.name}:<variant>"
        raise RecipeError([Problem(where, "no such variant", variant, expected, todo, "reference")])
    return recipe, [variant] if variant else list(recipe.variants)


def find_one(target: str, extra: Sequence[str]) -> tuple[Recipe, str]:
    """The same for commands that need one variant. Raises RecipeError where it is not clear which."""
    recipe, variants = find(target, extra)
    if len(variants) != 1:
        where = recipe.document.place(("variants",))
        expected = "one of " + ", ".join(variants)
        todo = f"name one as {recipe.name}:<variant>"
        raise RecipeError([Problem(where, "the recipe has several variants", target, expected, todo, "reference")])
    return recipe, variants[0]


def about(problem: Problem, variant: str) -> bool:
    """Whether a finding concerns a variant: its own, or the whole recipe's."""
    field = problem.where.field if isinstance(problem.where, Place) else ""
    inside = f"variants.{variant}"
    return not field.startswith("variants.") or field == inside or field.startswith((f"{inside}.", f"{inside}["))


def unreadable(problems: Iterable[Problem]) -> bool:
    """Whether problems are about what was asked for rather than about what is in a recipe."""
    return any(problem.rule in ("unreadable", "reference") for problem in problems)


def finding(problem: Problem) -> str:
    """A finding as people and editors read it: file:line:column: severity: field: what [rule], and what to do."""
    where = problem.where
    if isinstance(where, Place):
        at = f":{where.line}:{where.column}" if where.line else ""
        head = f"{shown(where.path)}{at}: {problem.severity}: {where.field}: {problem.what}"
    else:
        head = f"{where}: {problem.severity}: {problem.what}"
    lines = [one_line(head) + f" [{problem.rule}]"]
    for label, text in (("expected", problem.expected), ("found", problem.found), ("what to do", problem.todo)):
        if text:
            # What a program said may have several lines; they stay below their label.
            lines.append(f"  {label}: " + clean(text).replace("\n", "\n    "))
    return "\n".join(lines)


def tell(problems: Iterable[Problem]) -> int:
    """Problems that end a command, on standard error; the exit status."""
    told = list(problems)
    for problem in told:
        err(finding(problem))
    return 2 if unreadable(told) else 1


def counted(number: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def recipes_below(folder: Path) -> Iterator[Path]:
    """Every recipe below a folder, in a fixed order."""
    yield from sorted(path for path in folder.rglob("recipe.yaml") if path.is_file())
