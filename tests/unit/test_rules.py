# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Every rule of the linter has a recipe that breaks it, and it alone, and one that keeps it.

The recipes are patches over three recipes that no rule has anything to say about (tests/unit/rules/bases).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import CHECKS
from ansible_collections.enplace.inference.plugins.plugin_utils import flags, memory
from ansible_collections.enplace.inference.plugins.plugin_utils.lint import SEVERITIES, Rule, Subject
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    ENGINES,
    RECIPES,
    Document,
    Place,
    Problem,
    load_engine,
    load_recipe,
    load_yaml,
    schema,
    validate,
)
from ansible_collections.enplace.inference.plugins.plugin_utils.rules import RULES, figures, fixes, forbid, safety
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent / "rules"
BASES = {path.stem: load_yaml(path).data for path in sorted((HERE / "bases").glob("*.yaml"))}


@dataclass(frozen=True)
class Case:
    """One patched recipe. also: rules that speak besides. own: the folder with its
    engines, where it is not what ships; packs: the fix packs of the tests."""

    rule: str
    base: str
    patch: Mapping[str, Any]
    bad: bool
    also: frozenset[str]
    own: str
    packs: bool

    def __str__(self) -> str:
        return f"{self.rule}-{'bad' if self.bad else 'good'}-{self.base}-{' '.join(self.patch)}"


def cases() -> Iterator[Case]:
    for path in sorted((HERE / "cases").glob("*.yaml")):
        for rule, entries in load_yaml(path).data.items():
            for entry in entries:
                assert ("bad" in entry) != ("good" in entry), f"{path} {rule}: {entry}"
                unknown = set(entry) - {"base", "bad", "good", "also", "own", "packs"}
                assert not unknown, f"{path} {rule}: {unknown}"
                yield Case(
                    rule,
                    entry["base"],
                    entry.get("bad", entry.get("good")),
                    "bad" in entry,
                    frozenset(entry.get("also", [])),
                    entry.get("own", ""),
                    entry.get("packs", False),
                )


CASES = list(cases())


def patched(base: str, patch: Mapping[str, Any]) -> Any:
    """A base with every path of the patch set, appended or, where the value is null, removed."""
    data = copy.deepcopy(BASES[base])
    removals = []
    for path, value in patch.items():
        parts = path.split(".") if path.startswith(("model.", "sources")) else ["variants", "v", *path.split(".")]
        target = data
        for part in parts[:-1]:
            target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
        last = parts[-1]
        if last == "+":
            target.append(value)
        elif value is None:
            removals.append((target, int(last) if isinstance(target, list) else last))
        else:
            target[int(last) if isinstance(target, list) else last] = value
    for target, key in removals:
        del target[key]
    return data


def written(data: Any, folder: Path) -> Document:
    path = folder / "example" / "model" / "recipe.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=False))
    return load_recipe(path).document


def engine_of(document: Document, *, own: str = "") -> Document:
    """The manifest that ships; that of the tests for versions that never were."""
    engine = document.data["variants"]["v"]["engine"]
    shipped = (ENGINES / engine["name"] / engine["version"] / "engine.yaml").is_file()
    return load_engine(
        engine["name"], engine["version"], engines=ENGINES if shipped and not own else HERE / (own or "engines")
    )


def found(document: Document, *, own: str = "") -> list[tuple[Rule, Problem]]:
    subject = Subject(document, "v", engine_of(document, own=own))
    return [(rule, problem) for rule in RULES for problem in rule.check(subject)]


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fix packs of the tests instead of those that ship."""
    monkeypatch.setattr(fixes, "FIXES", HERE / "packs")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_speaks_where_it_is_broken_and_only_there(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if case.packs:
        request.getfixturevalue("packs")
    findings = found(written(patched(case.base, case.patch), tmp_path), own=case.own)
    expected = case.also | ({case.rule} if case.bad else set())
    assert {rule.id for rule, _ in findings} == expected, "\n".join(f"{rule.id}: {p}" for rule, p in findings)
    for rule, problem in findings:
        assert isinstance(problem.where, Place), f"{rule.id}: no place"
        assert problem.where.line > 0
        for part in ("what", "found", "expected", "todo"):
            assert getattr(problem, part).strip(), f"{rule.id} does not say {part}: {problem}"
        assert len(problem.what) <= 250, f"{rule.id}: a message is one or two short lines"


# Those of the flags have their pairs, and the demand for them, in test_flags.py.
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in flags.RULES], ids=lambda rule: rule.id)
def test_every_rule_has_a_recipe_that_breaks_it_and_one_that_keeps_it(rule: Rule) -> None:
    mine = {case.bad for case in CASES if case.rule == rule.id}
    assert mine == {True, False}, f"tests/unit/rules/cases: a bad and a good recipe for {rule.id}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_what_must_hold_and_whence(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id)
    assert rule.severity in SEVERITIES
    assert rule.summary.endswith(".")
    assert "\n" not in rule.summary
    assert rule.source.strip()


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in RULES]
    assert sorted(set(ids)) == sorted(ids)
    assert {case.rule for case in CASES} <= set(ids), "a case names a rule that is not there"


@pytest.mark.parametrize("base", sorted(BASES))
def test_a_right_recipe_is_left_alone(base: str, tmp_path: Path) -> None:
    findings = found(written(BASES[base], tmp_path))
    assert not findings, "\n".join(f"{rule.id}: {problem}" for rule, problem in findings)


def test_a_secret_is_not_repeated_in_the_message(tmp_path: Path) -> None:
    data = patched("cpu", {"environment.VLLM_API_KEY": "swordfish", "environment.X": "sk-" + "swordfish" * 3})
    data["sources"] = {"page": {"title": "Page", "url": "https://me:swordfish@example.org/"}}
    problems = [problem for rule, problem in found(written(data, tmp_path)) if rule.id == "secret-in-recipe"]
    assert len(problems) == 3
    assert not any("swordfish" in str(problem) for problem in problems)


def test_what_concerns_the_recipe_is_said_once(tmp_path: Path) -> None:
    data = patched("cpu", {"model.active_parameters": 700_000_000})
    data["sources"] = {"page": {"title": "Page", "date": "2026-02-30"}}
    data["variants"]["w"] = copy.deepcopy(data["variants"]["v"])
    document = written(data, tmp_path)
    engine = engine_of(document)
    said = [rule.id for name in "vw" for rule in RULES for _ in rule.check(Subject(document, name, engine))]
    assert sorted(said) == ["date-impossible", "model-numbers", "source-unused"]


def test_every_metric_of_the_schema_has_its_units() -> None:
    figure = schema()["$defs"]["figure"]["properties"]
    assert set(figures.UNITS) == set(figure["metric"]["enum"])
    assert {unit for units in figures.UNITS.values() for unit in units} <= set(figure["unit"]["enum"])


def test_the_kinds_and_qualifiers_of_a_condition_are_those_of_the_schema() -> None:
    keys = set(schema()["$defs"]["condition"]["properties"])
    assert keys == {*forbid.KINDS, *forbid.QUALIFIERS, "absent"}


def test_secret_names_spare_what_only_sounds_like_one() -> None:
    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "VLLM_API_KEY",
        "AWS_ACCESS_KEY_ID",
        "DB_PASSWORD",
        "WANDB_API_KEY",
    ):
        assert safety.SECRET_NAME.search(name), name
    for name in ("HF_TOKEN_PATH", "TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "KEYBOARD", "VLLM_CACHE_KEY"):
        assert not safety.SECRET_NAME.search(name), name


# The pack that ships.
PROFILE = [
    "async-discard-counter",
    "hybrid-decode-pad",
    "resumed-prefill-logits",
    "prompt-order",
    "sampling-rows-refresh",
    "bad-words-index",
    "logitsprocs-rows",
    "structured-output-rows",
    "seeded-sampling",
    "gather-logprobs-int32",
    "prompt-logprobs",
    "logprobs-decode-guard",
    "rope-cpu-cache",
    "rank-exception-fatal",
]


def test_the_pack_holds_the_profile_and_its_opt_in_fix_in_order() -> None:
    pack = fixes.load_packs(fixes.FIXES)["v0.26.0"]
    assert [fix.name for fix in pack.fixes] == [*PROFILE, "gdn-prefix-cache"]
    assert pack.names - pack.by_default == {"gdn-prefix-cache"}
    assert (pack.engine, pack.version) == ("vllm-gaudi", "0.26.0")


def test_a_fix_comes_after_what_it_builds_upon_and_says_what_it_mends() -> None:
    for pack in fixes.load_packs(fixes.FIXES).values():
        before: set[str] = set()
        for fix in pack.fixes:
            assert set(fix.requires) <= before, f"{fix.name} comes before one of {fix.requires}"
            assert fix.name not in before
            assert fix.summary.endswith(".")
            before.add(fix.name)
        assert {name for fix in pack.fixes if not fix.opt_in for name in fix.requires} <= pack.by_default


def test_targets_are_named_by_whole_commits() -> None:
    for path in fixes.FIXES.glob("*/pack.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        assert path.parent.name == data["profile"]
        for target in data["targets"]:
            assert re.fullmatch(r"[0-9a-f]{40}", target["commit"])


def test_a_broken_pack_is_named(tmp_path: Path) -> None:
    path = tmp_path / "v1" / "pack.json"
    path.parent.mkdir()
    path.write_text('{"profile": "v1"}')
    with pytest.raises(ValueError, match=re.escape(str(path))):
        fixes.load_packs(tmp_path)


# Whatever a recipe of the right form holds, no rule ends in a traceback.
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=12)
ODD = st.sampled_from(
    [
        "1",
        "0",
        "true",
        "-1",
        "256K",
        "nan",
        "inf",
        "1e999",
        "hf_" + "a" * 34,
        "ray",
        "mtp",
        "eagle3",
        "ngram",
        "humming",
        "9" * 400,
    ]
)
NUMBER = st.integers(-(10**18), 10**18) | st.floats(allow_nan=True, allow_infinity=True) | st.just(10**400)
SCALAR = st.booleans() | NUMBER | TEXT | ODD
NESTED = st.recursive(
    SCALAR | st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)
SPECULATION = st.dictionaries(
    st.sampled_from(["method", "model", "num_speculative_tokens", "revision"]), NESTED | ODD, max_size=4
)
# A value that begins with a dash is refused by the form already, unless it is a number.
WORD = TEXT.filter(lambda text: not text.startswith("-"))
ARGUMENT = (
    st.booleans()
    | WORD
    | ODD
    | NUMBER
    | st.lists(WORD | ODD | NUMBER, min_size=1, max_size=3)
    | st.dictionaries(TEXT, NESTED, max_size=3)
    | SPECULATION
)
FLAGS = [
    *sorted({name for base in BASES.values() for name in base["variants"]["v"]["arguments"]}),
    "data-parallel-size",
    "distributed-executor-backend",
    "hf-overrides",
    "max-logprobs",
    "moe-backend",
    "no-enable-prefix-caching",
    "pipeline-parallel-size",
    "rope-scaling",
    "trust-remote-code",
]
NAMES = [
    "CUDA_VISIBLE_DEVICES",
    "HF_TOKEN",
    "PT_HPU_LAZY_MODE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TRITON_PTXAS_PATH",
    "VLLM_COMPACT_GDN",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    "VLLM_SKIP_WARMUP",
    "x",
]
CONDITION = st.fixed_dictionaries(
    {},
    optional={
        "equals": TEXT | ODD | NUMBER | st.booleans(),
        "in": st.lists(TEXT | ODD | NUMBER | st.booleans(), min_size=1, max_size=3),
        "at_least": NUMBER,
        "at_most": NUMBER,
        "absent": st.just(True),
    },
)


@st.composite
def variants(draw: st.DrawFn) -> Any:
    """A base with arguments, variables, conditions, figures and identity drawn at random."""
    data = copy.deepcopy(BASES[draw(st.sampled_from(sorted(BASES)))])
    variant = data["variants"]["v"]
    variant["accelerator"] = draw(st.sampled_from(["cpu", "gb10", "gaudi2"]))
    variant["count"] = draw(st.integers(1, 64))
    variant["precision"] = draw(TEXT | st.sampled_from(["nvfp4", "NVFP4", "bf16"]))
    variant["arguments"] = {
        **variant["arguments"],
        **draw(st.dictionaries(st.sampled_from(FLAGS), ARGUMENT, max_size=6)),
    }
    for flag in draw(st.lists(st.sampled_from(FLAGS), max_size=3)):
        variant["arguments"].pop(flag, None)
    variant["environment"] = draw(st.dictionaries(st.sampled_from(NAMES), TEXT | ODD, max_size=5))
    for part in draw(st.lists(st.sampled_from(["draft", "fixes", "figures", "verified", "inferred"]), max_size=3)):
        variant.pop(part, None)
    if draw(st.booleans()):
        data["model"].pop("geometry", None)
        data["model"].pop("tensors", None)
    if draw(st.booleans()):
        key = draw(
            st.sampled_from(
                [
                    {"argument": draw(st.sampled_from(FLAGS))},
                    {"environment": draw(st.sampled_from([*NAMES, "*", "VLLM_*", "["]))},
                    {"engine": draw(st.sampled_from(["0.26.0", "v0.26.0", "x"]))},
                    {"fix": "prompt-order"},
                    {"speculative_method": draw(st.sampled_from(["mtp", "*", "["]))},
                ]
            )
        )
        variant["forbid"] = [{"if": [{**key, **draw(CONDITION)}], "reason": "No."}]
    if draw(st.booleans()):
        figure = {"metric": draw(st.sampled_from(sorted(figures.UNITS))), "unit": "s", "source": draw(TEXT)}
        variant["figures"] = [{**figure, **draw(st.sampled_from([{"stdev": 1}, {"low": 2, "high": 1}, {"value": -1}]))}]
    if draw(st.booleans()):
        huge = draw(st.sampled_from([1, 10**18, 10**400]))
        variant["weights"]["files"][0]["bytes"] = data["model"]["parameters"] = huge
        variant["checks"].append({"check": "kv_pool", "tokens": 10**18, "concurrency": 10**18})
        pool = draw(st.sampled_from(["kv_pool_tokens", "concurrency", "ttft"]))
        variant["figures"] = [
            {"metric": pool, "value": huge, "unit": "ms", "at": {"prompt_tokens": 1000}, "source": "page"}
        ]
    return data


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(data=variants())
def test_no_rule_ends_in_a_traceback(data: Any) -> None:
    document = Document(Path("/r/example/model/recipe.yaml"), data, {(): (1, 1)})
    assert not validate(document), "the drawn recipe is of the right form"
    subject = Subject(document, "v", engine_of(document))
    for rule in RULES:
        # The arithmetic of memory is in doubles, and holds for sizes that a double can hold.
        if rule in memory.RULES and beyond_double(data):
            continue
        for problem in rule.check(subject):
            assert str(problem)


def beyond_double(data: Any) -> bool:
    """Whether a value holds a number, or its text, that no double does."""
    if isinstance(data, (dict, list)):
        return any(map(beyond_double, data.values() if isinstance(data, dict) else data))
    return (isinstance(data, int) and abs(data) > 10**100) or (isinstance(data, str) and "9" * 100 in data)


def test_every_shipped_recipe_can_be_put_to_the_rules() -> None:
    for path in sorted(RECIPES.glob("*/*/recipe.yaml")):
        document = load_yaml(path)
        for name, variant in document.data["variants"].items():
            engine = variant["engine"]
            if (ENGINES / engine["name"] / engine["version"] / "engine.yaml").is_file():
                subject = Subject(document, name, load_engine(engine["name"], engine["version"]))
                errors = [(r.id, p) for r in RULES if r.severity == "error" for p in r.check(subject)]
                assert not errors, "\n".join(f"{rule}: {problem}" for rule, problem in errors)


def test_the_checks_that_rules_name_are_there() -> None:
    named = {"draft", "identity", "kv_pool", "known_answers", "known_answers_in_flight", "logprobs", "needles"}
    named |= {"prefix_cache", "prompt_logprobs", "tool_call", "tool_call_streamed", "tool_result"}
    assert named <= set(CHECKS)
    assert CHECKS["logprobs"].own["top"].default == 20
    assert CHECKS["prompt_logprobs"].own["top"].default == 5
    assert CHECKS["known_answers_in_flight"].own["requests"].default == 8
