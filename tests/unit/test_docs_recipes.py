# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""docs/recipes.md is true: its recipes are valid, its fragments fit, and what it names exists."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import CHECKS
from ansible_collections.enplace.inference.plugins.plugin_utils import lint
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import load_recipe, schema

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "recipes.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACES = {"# at the top of the file": (), "# in model": ("model",), "# in a variant": ("variants", "cpu-bf16")}


def text() -> str:
    """The page."""
    return PAGE.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Every fenced block of one language, in the order of the page."""
    return [match[2] for match in BLOCK.finditer(text()) if match[1] == language]


def whole_recipes() -> list[str]:
    """Blocks that are a whole recipe."""
    return [block for block in blocks("yaml") if re.search(r"^schema: 1$", block, re.MULTILINE)]


def fragments() -> list[str]:
    """Blocks that are a part of a recipe; the first line says of which."""
    return [block for block in blocks("yaml") if block not in whole_recipes()]


def place(tmp_path: Path, data: Any) -> Path:
    path: Path = tmp_path / data["model"]["name"] / "recipe.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def test_the_page_has_a_whole_recipe_and_fragments() -> None:
    assert len(whole_recipes()) == 1
    assert len(fragments()) >= 8


def test_the_whole_recipe_is_valid_as_printed_and_lint_finds_no_error(tmp_path: Path) -> None:
    printed = whole_recipes()[0]
    path = tmp_path / yaml.safe_load(printed)["model"]["name"] / "recipe.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(printed, encoding="utf-8")
    load_recipe(path)
    assert [str(problem) for problem in lint.lint_path(path) if problem.severity == "error"] == []


@pytest.mark.parametrize("fragment", fragments(), ids=lambda block: block.splitlines()[1][:40])
def test_every_fragment_fits_where_it_says(tmp_path: Path, fragment: str) -> None:
    first = fragment.splitlines()[0]
    assert first in PLACES, f"the first line of a fragment is one of {', '.join(PLACES)}"
    data = copy.deepcopy(yaml.safe_load(whole_recipes()[0]))
    target = data
    for key in PLACES[first]:
        target = target[key]
    for key, value in yaml.safe_load(fragment).items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            target[key] = {**target[key], **value}
        else:
            target[key] = value
    load_recipe(place(tmp_path, data))


def test_the_geometry_table_names_every_key_of_every_kind_of_layer() -> None:
    section = text().split("## Geometry", 1)[1].split("\n## ", 1)[0]
    definitions = schema()["$defs"]
    for name in ("attention", "sliding", "latent", "gated_delta"):
        kind = definitions[name]["properties"]["kind"]["const"]
        for key in definitions[name]["required"]:
            if key != "kind":
                assert re.search(rf"^\| (`{kind}`|) *\| `{key}` \|", section, re.MULTILINE), (kind, key)


def test_every_check_is_named() -> None:
    section = text().split("## Checks", 1)[1].split("\n## ", 1)[0]
    assert [name for name in CHECKS if f"`{name}`" not in section] == []


def test_links_within_the_page_lead_to_a_heading() -> None:
    headings = {re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-")
                for line in re.findall(r"^#+ (.*)$", text(), re.MULTILINE)}  # fmt: skip
    assert set(re.findall(r"\]\(#([^)]+)\)", text())) <= headings


def test_files_and_links_named_exist() -> None:
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text()):
        assert (PAGE.parent / link).exists(), link
    for path in re.findall(r"`(recipes/[^`<>* ]+)`", text()):
        assert (ROOT / path).exists(), path
