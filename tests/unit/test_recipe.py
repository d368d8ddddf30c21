# SPDX-License-Identifier: Apache-2.0
"""Recipes as checked data: every mistake gets an error that says where, what was found, what was expected."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    RECIPES,
    RecipeError,
    find_recipe,
    load_engine,
    load_recipe,
    load_yaml,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SMOKE = RECIPES / "enplace" / "smoke" / "recipe.yaml"


def place(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "enplace" / "smoke" / "recipe.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(path: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    return str(caught.value)


def smoke() -> Any:
    return yaml.safe_load(SMOKE.read_text(encoding="utf-8"))


def test_every_shipped_recipe_is_valid() -> None:
    found = sorted(RECIPES.glob("*/*/recipe.yaml"))
    assert SMOKE in found
    for path in found:
        assert load_recipe(path).variants


def test_an_unknown_key_is_named_with_its_line_and_a_suggestion(tmp_path: Path) -> None:
    text = SMOKE.read_text(encoding="utf-8").replace("    ready:\n", "    redy:\n")
    message = problems_of(place(tmp_path, text))
    line = text.splitlines().index("    redy:") + 1
    assert f"recipe.yaml:{line}:5 variants.cpu.redy: unknown key" in message
    assert "did you mean ready?" in message
    assert "the key ready is missing" in message, "every problem is reported, not only the first"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max-model-len: 4096", "port: 9000", "enplace_port"),
        ("accelerator: cpu", "accelerator: tpu", "one of cpu, gb10, gaudi2"),
        ("context: 8192", "context: many", "a whole number"),
        ("timeout_s: 600", "timeout_s: 1", "at least 10"),
        ("check: identity", "check: identidy", "did you mean identity?"),
        ("top: 20", "topp: 20", "variants.cpu.checks[3].topp"),
        ("name: enplace/smoke\n", "name: enplace/smok\n", "differs from the folder"),
        ('VLLM_CPU_KVCACHE_SPACE: "1"', "VLLM_CPU_KVCACHE_SPACE: 1", "put the value in quotes"),
        ("enforce-eager: true", "enforce-eager: '{{ lookup(1) }}'", "literal, never templated"),
        ("path: config.json", "path: ../config.json", "text that matches"),
        ("path: config.json", "path: chat_template.jinja", "the file is listed twice"),
        ("  context: 8192\n", "  context: 8192\n  context: 1\n", "the key context occurs twice"),
        ("license: Apache-2.0", "license: &a Apache-2.0", "anchors and aliases are not used"),
        ("license: Apache-2.0", "license: [", "is not valid YAML"),
        ("summary: A tiny", "summary: !!python/object:os.system A tiny", "tags are not used here"),
    ],
)
def test_a_mistake_is_refused_with_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = SMOKE.read_text(encoding="utf-8")
    assert old in text
    message = problems_of(place(tmp_path, text.replace(old, new, 1)))
    assert expected in message
    assert "recipe.yaml:" in message, "the message names the file and the line"


def test_a_revision_that_can_move_is_refused(tmp_path: Path) -> None:
    data = smoke()
    data["variants"]["cpu"]["weights"]["revision"] = "main"
    assert "variants.cpu.weights.revision" in problems_of(place(tmp_path, yaml.safe_dump(data)))


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"- 1\n", b"a: b\n---\nc: d\n", b"\t- x", b"a" * 1_000_001, b"[" * 5000]
)
def test_no_file_is_read_by_half(tmp_path: Path, content: bytes) -> None:
    path = place(tmp_path, "")
    path.write_bytes(content)
    assert str(path) in problems_of(path)


def test_a_date_is_the_text_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("day: 2026-07-28\n", encoding="utf-8")
    assert load_yaml(path).data == {"day": "2026-07-28"}


def test_a_missing_recipe_is_named_with_what_there_is(tmp_path: Path) -> None:
    for reference, expected in (
        ("enplace/smoek:cpu", "did you mean enplace/smoke?"),
        ("enplace/smoke:gpu", "did you mean cpu?"),
        ("../../etc/passwd", "<org>/<model>:<variant>"),
    ):
        with pytest.raises(RecipeError) as caught:
            find_recipe(reference, [tmp_path, RECIPES])
        assert expected in str(caught.value)
    recipe, variant = find_recipe("enplace/smoke", [tmp_path, RECIPES])
    assert (recipe.name, variant) == ("enplace/smoke", "cpu")


def test_a_missing_engine_is_named_with_what_there_is() -> None:
    with pytest.raises(RecipeError, match=r"vllm 0\.28\.0"):
        load_engine("vllm", "0.28.1")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_wrong_types_anywhere_never_end_in_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    recipe = smoke()
    target: Any = recipe
    while True:
        key = data.draw(st.sampled_from(list(target) if isinstance(target, dict) else list(range(len(target)))))
        if not isinstance(target[key], (dict, list)) or not target[key] or data.draw(st.booleans()):
            break
        target = target[key]
    target[key] = data.draw(VALUES)
    path = place(tmp_path, yaml.safe_dump(recipe, allow_unicode=True))
    # A traceback of any other kind fails the test; that the message names the file is tested above.
    with contextlib.suppress(RecipeError):
        load_recipe(path)
