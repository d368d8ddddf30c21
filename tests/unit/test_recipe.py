# SPDX-License-Identifier: Apache-2.0
"""Recipes as checked data: every mistake gets an error that says where, what was found, what was expected."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    RECIPES,
    Place,
    RecipeError,
    find_recipe,
    load_engine,
    load_recipe,
    load_yaml,
    parse_yaml,
    schema,
    validate,
    validator,
)
from ansible_collections.enplace.inference.plugins.plugin_utils.shape import compile_schema, repeated, same
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
        ("path: config.json", "path: --local-dir=x", "text that matches"),
        ("path: config.json", "path: --local-dir", "would be read as a flag"),
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


LARGE = RECIPES / "Qwen" / "Qwen3-Coder-Next" / "recipe.yaml"
GAUDI = "variants.gaudi2-bf16-tp4"


@pytest.mark.parametrize(
    ("old", "new", "field", "what", "expected"),
    [
        (
            "kind: attention, count: 12",
            "kind: atention, count: 12",
            "model.geometry.layers[0].kind",
            "no kind",
            "did you mean attention?",
        ),
        (
            "{kind: attention, count: 12,",
            "{count: 12,",
            "model.geometry.layers[0]",
            "kind is missing",
            "kind: one of attention",
        ),
        (
            "{kind: attention, count: 12,",
            "{kind: attention, coumt: 12,",
            "model.geometry.layers[0].coumt",
            "unknown key",
            "did you mean count?",
        ),
        (
            "{kind: attention, count: 12,",
            "{kind: attention,",
            "model.geometry.layers[0]",
            "the key count is missing",
            "count: a whole number",
        ),
        (
            "{kind: attention, count: 12,",
            "{kind: attention, count: some,",
            "model.geometry.layers[0].count",
            "wrong value",
            "a whole number",
        ),
        (
            "{kind: attention, count: 12, kv_heads: 2, head_size: 256}",
            "twelve",
            "model.geometry.layers[0]",
            "wrong value",
            "a mapping",
        ),
        (
            "{kind: attention, count: 12,",
            "{kind: sliding_attention, count: 12,",
            "model.geometry.layers[0]",
            "the key window is missing",
            "window: a whole number",
        ),
        (
            "[{environment: PT_HPU_LAZY_MODE,",
            "[{enviroment: PT_HPU_LAZY_MODE,",
            GAUDI + ".forbid[0].if[0].enviroment",
            "unknown key",
            "did you mean environment?",
        ),
        (
            "[{environment: PT_HPU_LAZY_MODE,",
            "[{",
            GAUDI + ".forbid[0].if[0]",
            "says nothing to look at",
            "exactly one of argument, environment",
        ),
        (
            "[{environment: PT_HPU_LAZY_MODE,",
            "[{environment: A, argument: b,",
            GAUDI + ".forbid[0].if[0].environment",
            "two things at once",
            "exactly one of",
        ),
        (
            "tolerance: {percent: 5}",
            "tolerance: {percent: 5, exact: true}",
            GAUDI + ".figures[1].tolerance",
            "wrong number of keys",
            "exactly one of percent, absolute, exact",
        ),
        (
            "tolerance: {percent: 5}",
            "tolerance: {}",
            GAUDI + ".figures[1].tolerance",
            "wrong number of keys",
            "exactly one of",
        ),
        (
            "tolerance: {percent: 5}",
            "tolerance: {percent: 0}",
            GAUDI + ".figures[1].tolerance.percent",
            "wrong value",
            "more than 0",
        ),
        ("value: 3800136", "note: none", GAUDI + ".figures[1]", "states no value", "value; or low and high; or stdev"),
        (
            "metric: kv_pool_tokens",
            "metric: kv_pool_token",
            GAUDI + ".figures[1].metric",
            "wrong value",
            "did you mean kv_pool_tokens?",
        ),
        (
            "opt_in: [gdn-prefix-cache]",
            "opt_in: [gdn-prefix-cache, gdn-prefix-cache]",
            GAUDI + ".fixes.opt_in[1]",
            "is listed twice",
            "each item once",
        ),
        (
            "opt_in: [gdn-prefix-cache]",
            "opt_in: [../x]",
            GAUDI + ".fixes.opt_in[0]",
            "wrong value",
            "text that matches",
        ),
        (
            "tensor-parallel-size: 4",
            "tensor_parallel_size: 4",
            GAUDI + ".arguments.tensor_parallel_size",
            "not a valid name",
            "a name that matches",
        ),
        (
            "tensor-parallel-size: 4",
            "tensor-parallel-size: [4, [5]]",
            GAUDI + ".arguments.tensor-parallel-size[1]",
            "wrong value",
            "text or a whole number or a number",
        ),
        (
            "tensor-parallel-size: 4",
            "tensor-parallel-size: []",
            GAUDI + ".arguments.tensor-parallel-size",
            "wrong value",
            "at least 1 item",
        ),
        (
            "tensor-parallel-size: 4",
            "tensor-parallel-size: ''",
            GAUDI + ".arguments.tensor-parallel-size",
            "wrong value",
            "text of one line",
        ),
        (
            "tensor-parallel-size: 4",
            "tensor-parallel-size: |\n        4",
            GAUDI + ".arguments.tensor-parallel-size",
            "wrong value",
            "text of one line",
        ),
        (
            "tensor-parallel-size: 4",
            "tensor-parallel-size:",
            GAUDI + ".arguments.tensor-parallel-size",
            "wrong value",
            "true or false",
        ),
        (
            "tensor-parallel-size: 4",
            "tensor-parallel-size: --port",
            GAUDI + ".arguments.tensor-parallel-size",
            "would be read as a flag",
            "a value",
        ),
        (
            "tensor-parallel-size: 4",
            "tensor-parallel-size: [1, --port=1]",
            GAUDI + ".arguments.tensor-parallel-size[1]",
            "would be read as a flag",
            "a value",
        ),
        (
            "tensor-parallel-size: 4",
            "nnodes: 4",
            GAUDI + ".arguments.nnodes",
            "is not a recipe's to set",
            "an argument of the model",
        ),
        ("count: 4\n", "count: 4.0\n", GAUDI + ".count", "wrong value", "a whole number"),
        ("count: 4\n", "count: '4'\n", GAUDI + ".count", "wrong value", "a whole number"),
        (
            "revision: unpinned",
            "revision: main",
            GAUDI + ".weights.revision",
            "wrong value",
            "a commit of 40 hex digits",
        ),
        (
            "revision: unpinned",
            "revision: " + "a" * 40,
            GAUDI + ".weights",
            "files is missing: the revision is pinned",
            "every file",
        ),
        (
            "revision: unpinned",
            "files: [{path: a, bytes: 1, sha256: " + "b" * 64 + "}]\n      revision: unpinned",
            GAUDI + ".weights.files",
            "files is there although",
            "enplace pin",
        ),
        (
            "revision: unpinned\n      bytes: 159000000000",
            "bytes: 1",
            GAUDI + ".weights",
            "the key revision is missing",
            "revision: text",
        ),
        (
            "repository: Qwen/Qwen3-Coder-Next\n",
            "repository: |\n        Qwen/Qwen3-Coder-Next\n",
            GAUDI + ".weights.repository",
            "wrong value",
            "text that matches",
        ),
        (
            "repository: Qwen/Qwen3-Coder-Next\n",
            "repository: ../../etc\n",
            GAUDI + ".weights.repository",
            "wrong value",
            "text that matches",
        ),
        (
            "engine: {name: vllm-gaudi, version: 0.26.0,",
            "engine: {name: ../vllm, version: 0.26.0,",
            GAUDI + ".engine.name",
            "wrong value",
            "text that matches",
        ),
        ("  gaudi2-bf16-tp4:", "  Gaudi2 BF16:", "variants.Gaudi2 BF16", "is not a valid name", "a name that matches"),
        ("schema: 1", "schema: 2", "schema", "wrong value", "1"),
        ("schema: 1", "schema: true", "schema", "wrong value", "1"),
        (
            'PT_HPU_LAZY_MODE: "0"',
            "PT_HPU_LAZY_MODE: 0",
            GAUDI + ".environment.PT_HPU_LAZY_MODE",
            "wrong value",
            "text",
        ),
    ],
)
def test_an_error_of_the_schema_points_at_the_value_and_says_what_to_write(
    tmp_path: Path, old: str, new: str, field: str, what: str, expected: str
) -> None:
    text = LARGE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "Qwen" / "Qwen3-Coder-Next" / "recipe.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    problems = [p for p in caught.value.problems if getattr(p.where, "field", "") == field and what in p.what]
    assert problems, str(caught.value)
    assert len(caught.value.problems) <= 2, f"one mistake is told once: {caught.value}"
    (problem,) = problems
    assert expected in f"{problem.expected} {problem.todo}"
    assert len(problem.found) <= 100
    # The place is that of the text that was changed, or of what it belongs to.
    assert isinstance(problem.where, Place)
    line = text.count("\n", 0, text.index(old)) + 1
    assert line - 3 <= problem.where.line <= line + 1


def test_many_mistakes_are_not_a_flood(tmp_path: Path) -> None:
    text = SMOKE.read_text(encoding="utf-8") + "".join(f"key{n}: 1\n" for n in range(5000))
    begin = time.monotonic()
    with pytest.raises(RecipeError) as caught:
        load_recipe(place(tmp_path, text))
    assert len(caught.value.problems) == 101
    assert "only the first 100" in str(caught.value)
    assert time.monotonic() - begin < 20


def test_a_long_name_is_shown_in_part(tmp_path: Path) -> None:
    text = SMOKE.read_text(encoding="utf-8") + f"{'k' * 1000}: 1\n"
    assert len(problems_of(place(tmp_path, text))) < 1000


def test_a_revision_that_can_move_is_refused(tmp_path: Path) -> None:
    data = smoke()
    data["variants"]["cpu"]["weights"]["revision"] = "main"
    assert "variants.cpu.weights.revision" in problems_of(place(tmp_path, yaml.safe_dump(data)))


@pytest.mark.parametrize(
    ("content", "said", "at"),
    [
        (b"", "is empty", ""),
        (b"# nothing\n", "is empty", ""),
        (b"---\n", "is empty", ""),
        (b"null\n", "is empty", ""),
        (b"\xff\xfe", "is not UTF-8", ":1:1"),
        (b"a: b\nc: \xe4\n", "is not UTF-8", ":2:4"),
        (b"\xef\xbb\xbfa: b\n", "begins with a byte order mark", ":1:1"),
        (b"- 1\n", "has a wrong value", ":1:1"),
        (b"text\n", "has a wrong value", ":1:1"),
        (b"a: b\n---\nc: d\n", "has a second document", ":2:1"),
        (b"%YAML 1.1\n---\na: b\n", "directives are not used", ":1:1"),
        (b"%TAG ! tag:example.com,2026:\n---\na: b\n", "directives are not used", ":1:1"),
        (b"\t- x", "is indented with a tab", ":1:1"),
        (b"a:\n\tb: c\n", "is indented with a tab", ":2:1"),
        (b"a: [\n", "is not valid YAML", ":2:1"),
        (b"a: 'b\n", "is not valid YAML", ":2:1"),
        (b"a: b: c\n", "is not valid YAML", ":1:5"),
        (b"a: \x00\n", "has an invisible character", ":1:4"),
        (b"a: b\x1b[31m\n", "has an invisible character", ":1:5"),
        ("a: b\u202ec\n".encode(), "has an invisible character", ":1:5"),
        ("a: b\u2028c\n".encode(), "has an invisible character", ":1:5"),
        (b"a: b\rc: d\n", "has an invisible character", ":1:5"),
        (b'a: "\\e[31m"\n', "has an invisible character", ":1:4"),
        (b'a: "\\0"\n', "has an invisible character", ":1:4"),
        (b"a" * 1_000_001, "too large", ""),
        (b"[" * 5000, "nest", ""),
        (b"[" * 900, "is nested too deeply", ":1:33"),
        (b"- " * 5000, "is nested too deeply", ":1:65"),
        (b"{a: " * 5000, "is nested too deeply", ":1:129"),
        (b"? " * 5000, "a key must be a plain word", ":1:3"),
        (b"- 1\n" * 40_000, "has too many values", ":30000:3"),
        (b"[1]: 2\n", "a key must be a plain word", ":1:1"),
        (b"{a: 1}: 2\n", "a key must be a plain word", ":1:1"),
        (b"a: &x [1]\nb: *x\n", "anchors and aliases are not used", ":1:4"),
        (b"&x a: 1\n", "anchors and aliases are not used", ":1:1"),
        (b"a: 1\n*x : 2\n", "anchors and aliases are not used", ":2:1"),
        (b"<<: {a: 1}\n", "merge keys are not used", ":1:1"),
        (b"a: !!python/object/apply:os.system [true]\n", "tags are not used", ":1:4"),
        (b"a: !!binary aGVsbG8=\n", "tags are not used", ":1:4"),
        (b"a: !!str 1\n", "tags are not used", ":1:4"),
        (b"a: !own 1\n", "tags are not used", ":1:4"),
        (b"a: ! 1\n", "tags are not used", ":1:4"),
        (b"!!map {a: 1}\n", "tags are not used", ":1:1"),
        (b"a: '{{ x }}'\n", "never templated", ":1:4"),
        (b"'{{ x }}': 1\n", "never templated", ":1:1"),
        (b"a: |\n  x\n  {% if x %}\n", "never templated", ":1:4"),
    ],
)
def test_no_file_is_read_by_half(tmp_path: Path, content: bytes, said: str, at: str) -> None:
    path = place(tmp_path, "")
    path.write_bytes(content)
    begin = time.monotonic()
    message = problems_of(path)
    assert f"{path}{at}{' ' if at else ''}" in message
    assert said in message
    assert time.monotonic() - begin < 5, "a file that is refused is refused soon"


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "unreadable name"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "recipe.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "unreadable name":
        path = Path(f"{path}\0")
    with pytest.raises(RecipeError, match="cannot be read") as caught:
        load_yaml(path)
    assert [problem.rule for problem in caught.value.problems] == ["unreadable"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-07-28", "2026-07-28"),
        ("0.24.0", "0.24.0"),
        ("568afb3a", "568afb3a"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("0", 0),
        ("-7", -7),
        ("9223372036854775807", 9223372036854775807),
        ("1.0", 1.0),
        ("-0.5", -0.5),
        ("1.5e+3", 1500.0),
        ("'yes'", "yes"),
        ('"0123"', "0123"),
        ("Tokyo", "Tokyo"),
        ("yesterday", "yesterday"),
        ("y", "y"),
        ("N", "N"),
        ("-", None),
        ("--flag", "--flag"),
        ("1 and more", "1 and more"),
        ("=", "="),
    ],
)
def test_a_plain_word_is_what_it_looks_like(tmp_path: Path, text: str, value: Any) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"a: {text}\n", encoding="utf-8")
    if text == "-":
        with pytest.raises(RecipeError):
            load_yaml(path)
        return
    found = load_yaml(path).data["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        *("yes", "No", "ON", "off"),
        *("0123", "0o17", "-017", "0x1F", "0b11"),
        *("1_000", "1_000.5", "1:30", "190:20:30", "1:30.5"),
        *("1e3", "12e34", "1.5e3", ".5E-3x"[:-1].replace("-", ""), "1E400"),
        *(".inf", "-.Inf", ".NaN"),
        *("9223372036854775808", "9" * 5000, "1" + "0" * 400 + ".0"),
    ],
)
def test_a_word_that_readers_take_differently_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"a: {text}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match="is not the same value to every reader") as caught:
        load_yaml(path)
    assert len(str(caught.value)) < 600
    path.write_text(f"a: '{text}'\n", encoding="utf-8")
    assert load_yaml(path).data == {"a": text}


def test_places_of_keys_and_values() -> None:
    text = "a:\n  b: [x, {c: 1}]\n  'd': >-\n    text\ne:\n- f\n- - g\n"
    for pure in (False, True):
        document = parse_yaml(Path("x.yaml"), text, pure=pure)
        assert document.data == {"a": {"b": ["x", {"c": 1}], "d": "text"}, "e": ["f", ["g"]]}
        assert document.places == {
            (): (1, 1),
            ("a",): (1, 1),
            ("a", "b"): (2, 3),
            ("a", "b", 0): (2, 7),
            ("a", "b", 1): (2, 10),
            ("a", "b", 1, "c"): (2, 11),
            ("a", "d"): (3, 3),
            ("e",): (5, 1),
            ("e", 0): (6, 3),
            ("e", 1): (7, 3),
            ("e", 1, 0): (7, 5),
        }
        assert document.values["a", "b"] == (2, 6)
        assert document.values["a", "d"] == (3, 8)
        assert str(document.value_place(("a", "d"))) == "x.yaml:3:8 a.d"
        assert str(document.place(("a", "new", 3))) == "x.yaml:1:1 a.new[3]"


def test_both_scanners_read_the_shipped_recipes_alike() -> None:
    for path in sorted(RECIPES.glob("*/*/recipe.yaml")):
        text = path.read_text(encoding="utf-8")
        fast, slow = parse_yaml(path, text), parse_yaml(path, text, pure=True)
        assert (fast.data, fast.places, fast.values) == (slow.data, slow.places, slow.values)
        assert fast.data == json.loads(json.dumps(fast.data))


def test_a_date_is_the_text_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("day: 2026-07-28\n", encoding="utf-8")
    assert load_yaml(path).data == {"day": "2026-07-28"}


def test_a_missing_recipe_is_named_with_what_there_is(tmp_path: Path) -> None:
    for reference, expected in (
        ("enplace/smoek:cpu", "did you mean enplace/smoke?"),
        ("enplace/smoke:gpu", "did you mean cpu?"),
        ("../../etc/passwd", "<org>/<model>:<variant>"),
        ("enplace/smoke:cpu\n", "<org>/<model>:<variant>"),
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


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


# The quick answer and the thorough one -----------------------------------------------------------------------------


SCHEMA = schema()
QUICK = compile_schema(SCHEMA)
GOOD = [load_yaml(path).data for path in sorted(RECIPES.glob("*/*/recipe.yaml"))]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 100)
    | st.sampled_from(
        [1.0, 0.5, -1.0, "", "a", "a/b\n", "unpinned", "a" * 40, "gated_delta", "1.2", [], {}, [1, 1.0], [True, 1]]
    )
)


def changed(data: st.DataObject, recipe: Any) -> None:
    """Change one thing somewhere: another value, a key less, a key more, an item twice."""
    target: Any = recipe
    while True:
        key = data.draw(st.sampled_from(list(target) if isinstance(target, dict) else list(range(len(target)))))
        if not isinstance(target[key], (dict, list)) or not target[key] or data.draw(st.integers(0, 4)) == 0:
            break
        target = target[key]
    how = data.draw(st.sampled_from(["set", "remove", "add", "double"]))
    value = copy.deepcopy(data.draw(LEAVES))
    if how == "remove":
        del target[key]
    elif how == "add" and isinstance(target, dict):
        target[data.draw(st.sampled_from(["files", "kind", "exact", "fix", "x", "X y", "port", "value"]))] = value
    elif how == "double" and isinstance(target, list):
        target.append(copy.deepcopy(target[key]))
    else:
        target[key] = value


@settings(max_examples=400)
@given(st.data())
def test_the_quick_answer_is_that_of_jsonschema(data: st.DataObject) -> None:
    recipe = copy.deepcopy(GOOD[data.draw(st.integers(0, len(GOOD) - 1))])
    for _ in range(data.draw(st.integers(1, 3))):
        changed(data, recipe)
    errors = list(validator().iter_errors(recipe))
    assert QUICK(recipe) == (not errors), [str(error.message) for error in errors]
    if errors:
        document = parse_yaml(LARGE, "a: 1\n")
        found = validate(type(document)(LARGE, recipe, document.places))
        assert found, f"an error that nobody is told: {errors}"


def test_a_keyword_that_is_not_known_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="multipleOf"):
        compile_schema({"properties": {"a": {"multipleOf": 2}}})
    with pytest.raises(ValueError, match=r"other\.json"):
        compile_schema({"$ref": "other.json"})


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [(1, 1.0, True), (1, True, False), ([1], [True], False), ({"a": 1}, {"a": 1.0}, True), ({"a": 1}, {"b": 1}, False)],
)
def test_equality_is_that_of_json(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) == equal
    assert (repeated([one, other]) == 1) == equal
