# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Flags and environment variables of each engine version, and the rules on them.

tests/integration/test_flags.py asks the engine itself whether the tables and the rules are right.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.plugin_utils import flags
from ansible_collections.enplace.inference.plugins.plugin_utils.flags import (
    RULES,
    Config,
    FlagTable,
    Spelling,
    Value,
    changes,
    history,
    human_int,
    load_flags,
    load_version,
    spelling,
    versions,
    when,
)
from ansible_collections.enplace.inference.plugins.plugin_utils.lint import SEVERITIES, Subject
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    ENGINES,
    RECIPES,
    Document,
    Place,
    Problem,
    RecipeError,
    load_yaml,
)
from hypothesis import given, settings
from hypothesis import strategies as st

VERSIONS = ("0.24.0", "0.25.1", "0.26.0", "0.28.0")
GAUDI = "vllm-gaudi 0.26.0"
TABLES = sorted(ENGINES.glob("*/*/flags.json")) + sorted(ENGINES.glob("*/*/environment.json"))


def manifest(engine: str, folder: Path = ENGINES) -> Document:
    """A manifest in the place where it belongs, whether it ships or not."""
    name, version = engine.split()
    data: dict[str, Any] = {"engine": name, "version": version}
    if name == "vllm-gaudi":
        data["base"] = {"engine": "vllm", "version": version}
    return Document(folder / name / version / "engine.yaml", data, {})


def subject(
    arguments: Mapping[str, Any], environment: Mapping[str, str], engine: str, folder: Path = ENGINES
) -> Subject:
    variant = {"engine": {}, "arguments": arguments, "environment": environment}
    key = ("variants", "v")
    places: dict[tuple[str | int, ...], tuple[int, int]] = {(): (1, 1), (*key, "engine"): (2, 1)}
    for line, (part, name) in enumerate(
        [("arguments", n) for n in arguments] + [("environment", n) for n in environment], start=3
    ):
        places[(*key, part, name)] = (line, 1)
    return Subject(Document(Path("recipe.yaml"), {"variants": {"v": variant}}, places), "v", manifest(engine, folder))


def findings(
    arguments: Mapping[str, Any], environment: Mapping[str, str], engine: str, folder: Path = ENGINES
) -> list[Problem]:
    asked = subject(arguments, environment, engine, folder)
    return [problem for rule in RULES for problem in rule.check(asked)]


def engine_named(text: str) -> str:
    return text if " " in text else f"vllm {text}"


# rule, engine version, arguments, environment, what the message must say.
BAD: list[tuple[str, str, dict[str, Any], dict[str, str], list[str]]] = [
    ("flag-unknown", "0.28.0", {"max-modle-len": 4096}, {}, ["did you mean max-model-len"]),
    ("flag-unknown", "0.24.0", {"frobnicate": True}, {}, ["vllm 0.24.0 has no flag frobnicate"]),
    ("flag-unknown", GAUDI, {"frobnicate": True}, {}, ["vllm-gaudi 0.26.0 (vllm 0.26.0)"]),
    ("flag-removed", "0.28.0", {"calculate-kv-scales": True}, {}, ["removed", "vllm 0.26.0"]),
    ("flag-removed", "0.24.0", {"enable-per-request-metrics": True}, {}, ["came with vllm 0.25.1"]),
    ("flag-spelling", "0.28.0", {"no-enable-prefix-caching": True}, {}, ["enable-prefix-caching: false"]),
    ("flag-spelling", "0.28.0", {"max-num-batched": 8192}, {}, ["write max-num-batched-tokens"]),
    ("flag-spelling", "0.28.0", {"tp": 2}, {}, ["tensor-parallel-size"]),
    ("flag-spelling", "0.28.0", {"spec-method": "ngram"}, {}, ["speculative-config", "method"]),
    ("flag-type", "0.28.0", {"max-num-seqs": "many"}, {}, ["a whole number", "many"]),
    ("flag-type", "0.28.0", {"max-num-seqs": 8.0}, {}, ["a whole number"]),
    ("flag-type", "0.28.0", {"max-num-seqs": "8k"}, {}, ["takes no k"]),
    ("flag-type", "0.28.0", {"max-num-seqs": True}, {}, ["not a switch"]),
    ("flag-type", "0.28.0", {"max-model-len": "25.6K"}, {}, ["25.6k"]),
    ("flag-type", "0.28.0", {"gpu-memory-utilization": "most"}, {}, ["a number"]),
    ("flag-type", "0.28.0", {"enforce-eager": "true"}, {}, ["without quotes"]),
    ("flag-type", "0.28.0", {"disable-log-stats": False}, {}, ["no --no- form"]),
    ("flag-type", "0.28.0", {"dtype": ["auto"]}, {}, ["takes one value"]),
    ("flag-type", "0.28.0", {"dtype": {"a": 1}}, {}, ["takes no mapping"]),
    ("flag-type", "0.28.0", {"allowed-origins": ["*", "a"]}, {}, ['["*", "a"]']),
    ("flag-type", "0.28.0", {"speculative-config": "ngram"}, {}, ["a mapping"]),
    ("flag-type", "0.28.0", {"compilation-config": 3}, {}, ["a mapping"]),
    ("flag-type", "0.28.0", {"chat-template": "-O3"}, {}, ["begins with a dash"]),
    ("flag-type", "0.28.0", {"cudagraph-capture-sizes": [1, "two"]}, {}, ["a whole number", "two"]),
    ("flag-range", "0.28.0", {"gpu-memory-utilization": 1.2}, {}, ["at most 1"]),
    ("flag-range", "0.28.0", {"tensor-parallel-size": 0}, {}, ["at least 1"]),
    ("flag-choice", "0.28.0", {"kv-cache-dtype": "fp9"}, {}, ["one of auto, bfloat16"]),
    ("flag-choice", "0.24.0", {"kv-cache-dtype": "nvfp4_4over6"}, {}, ["came with vllm 0.28.0"]),
    (
        "flag-choice",
        "0.28.0",
        {"enable-auto-tool-choice": True, "tool-call-parser": "qwen3-coder"},
        {},
        ["did you mean qwen3_coder"],
    ),
    ("flag-choice", "0.28.0", {"reasoning-parser": "qwen33"}, {}, ["did you mean qwen3"]),
    ("flag-choice", "0.24.0", {"moe-backend": "batched_triton"}, {}, ["came with vllm 0.2"]),
    ("flag-name", "0.28.0", {"quantization": "nvfp5"}, {}, ["not a known quantization"]),
    ("flag-name", "0.28.0", {"quantization": "bitsandbytes"}, {}, ["the last with it is vllm 0.26.0"]),
    ("flag-name", "0.28.0", {"attention-backend": "TRITON_ATTEN"}, {}, ["did you mean TRITON_ATTN"]),
    ("flag-name", "0.28.0", {"compilation-config": {"cudagraph_mode": "FULLER"}}, {}, ["cudagraph_mode"]),
    ("flag-json-text", "0.28.0", {"speculative-config": '{"method": "ngram"}'}, {}, ["key by key"]),
    ("flag-json-text", "0.28.0", {"hf-overrides": '{"a": 1}'}, {}, ["key by key"]),
    ("flag-json-key", "0.28.0", {"speculative-config": {"methd": "ngram"}}, {}, ["did you mean method"]),
    (
        "flag-json-key",
        "0.28.0",
        {"speculative-config": {"num-speculative-tokens": 1}},
        {},
        ["did you mean num_speculative_tokens"],
    ),
    (
        "flag-json-key",
        "0.28.0",
        {"compilation-config": {"pass_config": {"fuse_everything": True}}},
        {},
        ["compilation-config.pass_config"],
    ),
    ("flag-json-value", "0.28.0", {"speculative-config": {"method": "eagle4"}}, {}, ["eagle3"]),
    ("flag-json-value", "0.24.0", {"speculative-config": {"method": "dspark"}}, {}, ["came with vllm 0.25.1"]),
    ("flag-json-value", "0.28.0", {"speculative-config": {"num_speculative_tokens": "3"}}, {}, ["a whole number"]),
    ("flag-json-value", "0.28.0", {"speculative-config": {"num_speculative_tokens": 0}}, {}, ["above 0"]),
    ("flag-json-value", "0.28.0", {"speculative-config": {"num_speculative_tokens": None}}, {}, ["is not null"]),
    ("flag-json-value", "0.28.0", {"structured-outputs-config": {"backend": "grammar"}}, {}, ["xgrammar"]),
    ("flag-conflict", "0.28.0", {"enable-log-outputs": True}, {}, ["enable-log-requests: true"]),
    ("flag-conflict", "0.28.0", {"enable-per-request-metrics": True, "disable-log-stats": True}, {}, ["remove one"]),
    (
        "flag-conflict",
        "0.28.0",
        {"cudagraph-capture-sizes": [1, 2], "compilation-config": {"cudagraph_capture_sizes": [1]}},
        {},
        ["also set in compilation-config"],
    ),
    (
        "flag-conflict",
        "0.24.0",
        {"structured-outputs-config": {"disable_any_whitespace": True}},
        {},
        ["xgrammar or guidance"],
    ),
    (
        "flag-conflict",
        "0.28.0",
        {"structured-outputs-config": {"backend": "xgrammar", "disable_additional_properties": True}},
        {},
        ["guidance"],
    ),
    ("flag-conflict", "0.28.0", {"kv-transfer-config": {"kv_connector": "NixlConnector"}}, {}, ["kv_both"]),
    (
        "flag-conflict",
        "0.28.0",
        {"speculative-config": {"method": "eagle3", "tensor_parallel_size": 1}},
        {},
        ["draft_tensor_parallel_size"],
    ),
    (
        "flag-conflict",
        "0.28.0",
        {"speculative-config": {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2}},
        {},
        ["at most 2"],
    ),
    (
        "flag-conflict",
        "0.28.0",
        {
            "speculative-config": {
                "method": "ngram",
                "prompt_lookup_max": 4,
                "num_speculative_tokens": 2,
                "synthetic_acceptance_length": 2.0,
            }
        },
        {},
        ["rejection_sample_method: synthetic"],
    ),
    (
        "flag-conflict",
        "0.28.0",
        {"tensor-parallel-size": 4, "speculative-config": {"method": "eagle3", "draft_tensor_parallel_size": 2}},
        {},
        ["1 or 4"],
    ),
    ("flag-conflict", "0.28.0", {"max-num-batched-tokens": 64, "max-num-seqs": 128}, {}, ["at least 128"]),
    (
        "flag-conflict",
        "0.28.0",
        {"enable-chunked-prefill": False, "max-num-batched-tokens": "8k", "max-model-len": "8K"},
        {},
        ["at least 8192"],
    ),
    ("flag-conflict", "0.28.0", {"max-model-len": 1024, "long-prefill-token-threshold": 2048}, {}, ["at most 1024"]),
    ("flag-conflict", "0.28.0", {"enable-lora": True, "max-loras": 4, "max-cpu-loras": 2}, {}, ["at least 4"]),
    (
        "flag-conflict",
        "0.28.0",
        {"tensor-parallel-size": 4, "decode-context-parallel-size": 3},
        {},
        ["a divisor of 4"],
    ),
    ("flag-conflict", "0.28.0", {"numa-bind-nodes": [0]}, {}, ["numa-bind: true"]),
    ("flag-conflict", GAUDI, {"fail-on-environ-validation": True}, {"VLLM_COMPACT_GDN": "1"}, ["VLLM_COMPACT_GDN"]),
    ("flag-deprecated", "0.26.0", {"calculate-kv-scales": True}, {}, ["deprecated"]),
    ("flag-deprecated", "0.28.0", {"dcp-kv-cache-interleave-size": 2}, {}, ["use cp-kv-cache-interleave-size"]),
    ("environment-unknown", "0.28.0", {}, {"VLLM_LOGING_LEVEL": "INFO"}, ["did you mean VLLM_LOGGING_LEVEL"]),
    ("environment-unknown", "0.26.0", {}, {"VLLM_COMPACT_GDN": "1"}, ["a variable of vllm-gaudi 0.26.0"]),
    ("environment-unknown", "0.24.0", {}, {"VLLM_USE_DIRECT_DCP_A2A": "1"}, ["came with vllm 0.2"]),
    ("environment-unread", GAUDI, {}, {"VLLM_HANDLE_TOPK_DUPLICATES": "1"}, ["does not read it"]),
    ("environment-unfamiliar", "0.28.0", {}, {"FROBNICATE": "1"}, ["nothing known reads"]),
    ("environment-value", "0.28.0", {}, {"VLLM_BATCH_INVARIANT": "true"}, ["refuses", "1 or 0"]),
    ("environment-value", "0.28.0", {}, {"VLLM_SKIP_P2P_CHECK": "true"}, ["is read as off", "write 1"]),
    ("environment-value", "0.28.0", {}, {"NO_COLOR": "false"}, ["is read as on"]),
    ("environment-value", "0.28.0", {}, {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "30m"}, ["a whole number"]),
    ("environment-value", "0.28.0", {}, {"VLLM_LOG_STATS_INTERVAL": "often"}, ["a number"]),
    ("environment-value", "0.28.0", {}, {"VLLM_KV_CACHE_LAYOUT": "NDH"}, ["one of HND, NHD"]),
    ("environment-value", GAUDI, {}, {"VLLM_BUCKETING_STRATEGY": "linear"}, ["exp, lin, pad"]),
    ("environment-deprecated", "0.28.0", {}, {"VLLM_TRITON_ATTN_USE_TD": "1"}, ["deprecated"]),
]

GOOD: list[tuple[str, str, dict[str, Any], dict[str, str]]] = [
    ("flag-unknown", "0.28.0", {"max-model-len": 4096, "enforce-eager": True, "trust-remote-code": False}, {}),
    ("flag-removed", "0.24.0", {"max-num-partial-prefills": 1, "override-attention-dtype": "half"}, {}),
    ("flag-removed", "0.25.1", {"enable-per-request-metrics": True}, {}),
    ("flag-spelling", "0.28.0", {"enable-prefix-caching": False, "tensor-parallel-size": 2}, {}),
    ("flag-repeated", "0.28.0", {"max-num-seqs": 8, "max-num-batched-tokens": 8192}, {}),
    ("flag-type", "0.28.0", {"max-model-len": "1.5k", "kv-cache-memory-bytes": "8G", "seed": -1}, {}),
    ("flag-type", "0.28.0", {"max-model-len": "auto", "hf-token": True, "max-cpu-loras": "None"}, {}),
    ("flag-type", "0.28.0", {"max-model-len": -1, "max-num-seqs": "16", "disable-log-stats": True}, {}),
    ("flag-type", "0.28.0", {"cudagraph-capture-sizes": [1, 2, 4], "middleware": "a.b"}, {}),
    ("flag-type", "0.28.0", {"hf-overrides": {"a": 1}, "limit-mm-per-prompt": {"image": 0}}, {}),
    ("flag-type", "0.28.0", {"allowed-origins": '["*"]', "pt-load-map-location": "cpu"}, {}),
    ("flag-type", "0.28.0", {"lora-modules": {"name": "a", "path": "b"}}, {}),
    ("flag-type", "0.28.0", {"chat-template": "{% x %} - a template"}, {}),
    ("flag-range", "0.28.0", {"gpu-memory-utilization": 1, "tensor-parallel-size": 1, "max-logprobs": -1}, {}),
    ("flag-choice", "0.28.0", {"kv-cache-dtype": "fp8", "max-lora-rank": 16, "moe-backend": "marlin"}, {}),
    ("flag-choice", "0.28.0", {"tool-call-parser": "qwen3_coder", "reasoning-parser": "qwen3"}, {}),
    ("flag-choice", "0.28.0", {"tool-call-parser": "mine", "tool-parser-plugin": "mine.py"}, {}),
    ("flag-name", "0.28.0", {"quantization": "modelopt_fp4", "attention-backend": "flashinfer"}, {}),
    ("flag-name", "0.28.0", {"compilation-config": {"cudagraph_mode": "full_and_piecewise"}}, {}),
    (
        "flag-json-text",
        "0.28.0",
        {"speculative-config": {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 2}},
        {},
    ),
    ("flag-json-key", "0.28.0", {"compilation-config": {"pass_config": {"fuse_norm_quant": True}, "mode": 3}}, {}),
    ("flag-json-value", "0.28.0", {"speculative-config": {"method": "eagle3", "max_model_len": None}}, {}),
    ("flag-json-value", "0.25.1", {"speculative-config": {"method": "dflash", "num_speculative_tokens": 7}}, {}),
    ("flag-conflict", "0.28.0", {"enable-log-outputs": True, "enable-log-requests": True}, {}),
    ("flag-conflict", "0.28.0", {"structured-outputs-config": {"backend": "xgrammar"}}, {}),
    (
        "flag-conflict",
        "0.28.0",
        {"structured-outputs-config": {"backend": "guidance", "disable_any_whitespace": True}},
        {},
    ),
    ("flag-conflict", "0.28.0", {"tensor-parallel-size": 4, "decode-context-parallel-size": 2}, {}),
    ("flag-conflict", "0.28.0", {"max-loras": 4, "max-cpu-loras": 2}, {}),
    ("flag-conflict", "0.28.0", {"fail-on-environ-validation": True}, {"VLLM_LOGGING_LEVEL": "INFO"}),
    ("flag-deprecated", "0.28.0", {"cp-kv-cache-interleave-size": 2}, {}),
    ("environment-unknown", "0.28.0", {}, {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_DIST_IDENT": "a"}),
    ("environment-unknown", GAUDI, {}, {"VLLM_COMPACT_GDN": "1", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800"}),
    ("environment-unknown", GAUDI, {}, {"VLLM_PROMPT_SEQ_BUCKET_MIN": "128", "VLLM_SKIP_WARMUP": "true"}),
    ("environment-unread", GAUDI, {}, {"PT_HPU_LAZY_MODE": "0", "ENABLE_EXPERIMENTAL_FLAGS": "true"}),
    ("environment-unfamiliar", "0.28.0", {}, {"NCCL_DEBUG": "INFO", "CUDA_HOME": "/usr/local/cuda", "TZ": "UTC"}),
    ("environment-value", "0.28.0", {}, {"VLLM_BATCH_INVARIANT": "1", "VLLM_USE_MODELSCOPE": "True"}),
    ("environment-value", "0.28.0", {}, {"VLLM_KV_CACHE_LAYOUT": "NHD", "VLLM_CPU_KVCACHE_SPACE": "4"}),
    ("environment-deprecated", "0.28.0", {}, {"VLLM_TRITON_USE_TD": "1"}),
]


@pytest.mark.parametrize(("rule", "engine", "arguments", "environment", "words"), BAD)
def test_a_rule_speaks_where_it_is_broken(
    rule: str, engine: str, arguments: dict[str, Any], environment: dict[str, str], words: list[str]
) -> None:
    found = findings(arguments, environment, engine_named(engine))
    # flag-removed and flag-deprecated and the like say one thing each: nothing else may speak.
    assert {problem.rule for problem in found} == {rule}, "\n".join(map(str, found))
    text = "\n".join(map(str, found))
    for word in words:
        assert word in text
    for problem in found:
        assert isinstance(problem.where, Place)
        assert problem.where.line > 2, f"{problem.where}: does not point at the value"
        assert problem.severity == next(r.severity for r in RULES if r.id == rule)
        assert problem.found
        assert problem.expected


@pytest.mark.parametrize(("rule", "engine", "arguments", "environment"), GOOD)
def test_no_rule_speaks_where_all_is_well(
    rule: str, engine: str, arguments: dict[str, Any], environment: dict[str, str]
) -> None:
    found = findings(arguments, environment, engine_named(engine))
    assert not found, f"{rule}: " + "\n".join(map(str, found))


def test_a_flag_under_two_names_is_found_once() -> None:
    found = findings({"max-num-seqs": 8, "max-num-se": 9}, {}, "vllm 0.28.0")
    assert [problem.rule for problem in found] == ["flag-spelling", "flag-repeated"]
    assert "max-num-se and max-num-seqs are the same flag" in str(found[1])
    both = findings({"enable-prefix-caching": True, "no-enable-prefix-caching": True}, {}, "vllm 0.28.0")
    assert {problem.rule for problem in both} == {"flag-spelling", "flag-repeated"}


def test_every_rule_has_its_cases() -> None:
    elsewhere = {"flag-table", "flag-repeated"}
    assert {rule.id for rule in RULES} == {case[0] for case in BAD} | elsewhere
    assert {rule.id for rule in RULES} - {"flag-table"} == {case[0] for case in GOOD}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.severity in SEVERITIES and rule.summary.endswith(".") and rule.source for rule in RULES)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*/*/recipe.yaml")), ids=lambda path: "/".join(path.parts[-3:-1]))
def test_the_recipes_that_ship_ask_for_nothing_that_their_engine_has_not(path: Path) -> None:
    document = load_yaml(path)
    for name, variant in document.data["variants"].items():
        engine = manifest(f"{variant['engine']['name']} {variant['engine']['version']}")
        asked = Subject(document, name, engine)
        found = [problem for rule in RULES for problem in rule.check(asked)]
        assert not found, "\n".join(map(str, found))


# ---------------------------------------------------------------- the tables


def extractor() -> ModuleType:
    """engines/extract.py, which is a program and in no package."""
    spec = importlib.util.spec_from_file_location("extract", ENGINES / "extract.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", TABLES, ids=lambda path: "-".join(path.parts[-3:]))
def test_a_table_is_as_the_extractor_writes_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    data = json.loads(text)
    assert [data["engine"], data["version"]] == list(path.parts[-3:-1])
    assert extractor().dumps(data) == text, "made by hand? one entry a line, sorted"
    # Nothing of the machine that it was made on.
    assert not any(word in text for word in (os.fspath(Path.home()), "/tmp", "site-packages"))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_is_whole(version: str) -> None:
    table = load_version(version)
    scalars = {"bool", "int", "float", "text", "json", "list", "any"}
    assert len(table.flags) > 250
    assert {value.type for value in table.flags.values()} <= scalars | {"json or text"}
    for name, flag in table.flags.items():
        assert flag.config in {"", *table.configs}, name
        assert flag.type == "bool" or not flag.no, name
        assert flag.deprecated is None or not flag.deprecated or flag.deprecated in table.flags, name
    for name, config in table.configs.items():
        for key, value in config.keys.items():
            assert set(value.type.split(" or ")) <= scalars, f"{name}.{key}"
            assert value.config in {"", *table.configs}, f"{name}.{key}"
    speculation = table.configs[table.flags["speculative-config"].config]
    assert {"eagle3", "mtp", "ngram"} <= set(speculation.keys["method"].choices)
    # What only the engine sets is not offered to a recipe.
    assert not {"target_model_config", "draft_parallel_config"} & set(speculation.keys)
    assert not speculation.open
    assert {"hermes", "qwen3_coder"} <= set(table.parsers["tool"])
    assert {"qwen3", "deepseek_r1"} <= set(table.parsers["reasoning"])
    assert len(table.declared) > 200
    assert table.flags["max-num-batched-tokens"].human
    assert table.flags["max-model-len"].auto
    assert table.flags["gpu-memory-utilization"].le == 1


def test_every_version_that_ships_is_listed_in_order() -> None:
    assert versions() == VERSIONS
    assert versions(engine="vllm-gaudi", table="environment.json") == ("0.26.0",)


def test_the_plug_in_has_the_flags_of_its_base_and_the_variables_of_both() -> None:
    table = load_flags(manifest(GAUDI))
    assert table.flags == load_version("0.26.0").flags
    assert table.base == ("vllm", "0.26.0")
    for name in (
        "PT_HPU_ENABLE_LAZY_COLLECTIVES",
        "VLLM_USE_NAIVE_MAMBA_CACHE_SHARING",
        "VLLM_COMPACT_GDN",
        "VLLM_SKIP_WARMUP",
        "VLLM_USE_HYBRID_CACHE",
        "VLLM_CONTIGUOUS_PA",
        "VLLM_DECODE_BLOCK_BUCKET_MAX",
        "HABANA_VISIBLE_MODULES",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    ):
        assert table.reads(name), name
    assert "VLLM_HANDLE_TOPK_DUPLICATES" in table.documented
    assert not table.reads("VLLM_HANDLE_TOPK_DUPLICATES")


def copy_tables(folder: Path, version: str = "0.28.0", to: str = "") -> Path:
    target = folder / "vllm" / (to or version)
    shutil.copytree(ENGINES / "vllm" / version, target, ignore=shutil.ignore_patterns("*.txt", "*.yaml"))
    return target


def test_a_version_without_a_table_is_said_to_be_unchecked(tmp_path: Path) -> None:
    (found,) = findings({"nonsense": 1}, {"VLLM_NONSENSE": "1"}, "vllm 9.9.9", tmp_path)
    assert (found.rule, found.severity) == ("flag-table", "warning")
    assert "extract.py make 9.9.9" in found.todo
    assert isinstance(found.where, Place)
    assert found.where.field == "variants.v.engine"


def test_a_table_of_another_version_is_refused(tmp_path: Path) -> None:
    copy_tables(tmp_path, to="0.28.1")
    with pytest.raises(RecipeError, match="of another engine than its folder"):
        load_flags(manifest("vllm 0.28.1", tmp_path))


def test_a_table_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (copy_tables(tmp_path) / "flags.json").write_text("{")
    with pytest.raises(RecipeError, match="no table of flags"):
        load_flags(manifest("vllm 0.28.0", tmp_path))


def test_a_manifest_elsewhere_uses_the_tables_that_ship_and_its_own_first(tmp_path: Path) -> None:
    assert load_flags(manifest("vllm 0.28.0", tmp_path)) is load_version("0.28.0")
    path = copy_tables(tmp_path) / "flags.json"
    data = json.loads(path.read_text())
    del data["flags"]["enforce-eager"]
    path.write_text(json.dumps(data))
    assert "enforce-eager" not in load_flags(manifest("vllm 0.28.0", tmp_path)).flags
    assert {p.rule for p in findings({"enforce-eager": True}, {}, "vllm 0.28.0", tmp_path)} == {"flag-removed"}


def test_a_table_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    path = copy_tables(tmp_path) / "flags.json"
    assert "enforce-eager" in load_flags(manifest("vllm 0.28.0", tmp_path)).flags
    data = json.loads(path.read_text())
    del data["flags"]["enforce-eager"]
    path.write_text(json.dumps(data))
    os.utime(path, (1, 1))
    assert "enforce-eager" not in load_flags(manifest("vllm 0.28.0", tmp_path)).flags


def test_pairs_that_exclude_each_other_name_flags_that_exist() -> None:
    known = {name for version in VERSIONS for name in load_version(version).flags}
    named = {name for pair in (*flags.NEEDS, *flags.EXCLUDE) for name in pair}
    named |= {name for name, holder, _ in flags.TWICE for name in (name, holder)}
    named |= set(flags.BETTER) | {holder for holder, _ in flags.BETTER.values()} | flags.OBJECTS_AS_TEXT
    assert named <= known
    newest = load_version(VERSIONS[-1])
    for _, holder, key in (*flags.TWICE, *((n, h, k) for n, (h, k) in flags.BETTER.items())):
        assert key in newest.configs[newest.flags[holder].config].keys


# ----------------------------------------------------------------- history


def test_history_of_flags_keys_values_and_variables() -> None:
    assert history("max-model-len") == VERSIONS
    assert history("calculate-kv-scales") == VERSIONS[:3]
    assert history("no-such-flag") == ()
    assert history("speculative-config.method") == VERSIONS
    assert history("speculative-config.enable_adaptive_verification") == VERSIONS[3:]
    assert history("kv-cache-dtype", value="nvfp4_4over6") == VERSIONS[3:]
    assert history("quantization", value="bitsandbytes") == VERSIONS[:3]
    assert history("tool-call-parser", value="qwen3_coder") == VERSIONS
    assert history("VLLM_LOGGING_LEVEL") == VERSIONS
    assert history("VLLM_NO_SUCH") == ()
    assert history("speculative-config.method", value="dspark") == VERSIONS[1:]


def test_when_says_came_went_or_where() -> None:
    assert when((), "0.26.0") == ""
    assert when(("0.28.0",), "0.24.0") == "it came with vllm 0.28.0"
    assert when(("0.25.1", "0.26.0"), "0.24.0") == "it came with vllm 0.25.1, and is gone since 0.28.0"
    assert when(("0.24.0", "0.26.0"), "0.28.0") == "it was removed: the last with it is vllm 0.26.0"
    assert when(("0.24.0", "0.28.0"), "0.26.0") == "it is in vllm 0.24.0, 0.28.0"


def test_versions_are_ordered_as_numbers(tmp_path: Path) -> None:
    for version in ("0.9.2", "0.10.0", "0.28.0", "0.28.0+cpu", "0.28.0rc1"):
        (tmp_path / "vllm" / version).mkdir(parents=True)
        (tmp_path / "vllm" / version / "flags.json").write_text("{}")
    assert versions(engines=tmp_path)[:2] == ("0.9.2", "0.10.0")
    assert versions(engines=tmp_path).index("0.28.0") > 1


# ------------------------------------------------------------------ upgrades


def test_an_upgrade_from_0_24_to_0_26_adds_flags_and_methods() -> None:
    found = changes(load_version("0.24.0"), load_version("0.26.0"))
    added = {change.name for change in found if change.kind == "flag" and change.what == "added"}
    assert {"enable-per-request-metrics", "device-ids"} <= added | {"device-ids"}
    assert len(added) == 8
    assert not [change for change in found if change.kind == "flag" and change.what == "removed"]
    method = next(change for change in found if change.name == "speculative-config.method")
    assert method.what == "changed"
    assert "dspark" in method.detail


def test_an_upgrade_from_0_26_to_0_28_removes_flags() -> None:
    found = changes(load_version("0.26.0"), load_version("0.28.0"))
    removed = {change.name for change in found if change.kind == "flag" and change.what == "removed"}
    assert removed == {
        "calculate-kv-scales",
        "max-long-partial-prefills",
        "max-num-partial-prefills",
        "override-attention-dtype",
    }
    assert len([change for change in found if change.kind == "flag" and change.what == "added"]) == 14
    texts = [str(change) for change in found]
    assert "removed flag calculate-kv-scales" in texts
    assert any(text.startswith("changed flag kv-cache-dtype: choices with ") for text in texts)
    assert any(change.kind.endswith(" parser") for change in found)
    assert any(change.kind == "variable" and change.what == "removed" for change in found)


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_changes_between_a_version_and_itself(version: str) -> None:
    assert changes(load_version(version), load_version(version)) == ()


@given(st.sampled_from(VERSIONS), st.sampled_from(VERSIONS))
@settings(max_examples=16)
def test_a_downgrade_is_the_upgrade_backwards(old: str, new: str) -> None:
    turned = {"added": "removed", "removed": "added", "changed": "changed"}
    there = {(turned[c.what], c.kind, c.name) for c in changes(load_version(old), load_version(new))}
    assert there == {(c.what, c.kind, c.name) for c in changes(load_version(new), load_version(old))}


# ------------------------------------------------------------- how names are typed

SMALL = FlagTable(
    "vllm",
    "1",
    ("vllm", "1"),
    {
        "max-model-len": Value("int", short=("-l",)),
        "max-model-length-factor": Value("int"),
        "enable-x": Value("bool", no=True),
        "enable-xy": Value("bool", no=True),
        "note": Value("text"),
        "config": Value("json", config="C"),
    },
    {"C": Config({"a": Value("int"), "b": Value("json", config="C")})},
    {},
    {},
)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("max-model-len", Spelling("max-model-len")),
        ("--max_model_len", Spelling("max-model-len")),
        ("max-model-le", None),
        ("max-model-length", Spelling("max-model-length-factor")),
        ("-l", Spelling("max-model-len")),
        ("l", Spelling("max-model-len")),
        ("--l", None),
        ("no-enable-x", Spelling("enable-x", True)),
        ("no-enable-xy", Spelling("enable-xy", True)),
        ("no-enable", None),
        # A beginning of --note, and of --no-enable-x too.
        ("no", None),
        ("not", Spelling("note")),
        ("--config.a", Spelling("config", keys=("a",))),
        ("--conf.b.a", Spelling("config", keys=("b", "a"))),
        ("--config.some_key", Spelling("config", keys=("some_key",))),
        ("", None),
        ("--", None),
        ("x", None),
    ],
)
def test_spelling(word: str, meant: Spelling | None) -> None:
    assert spelling(word, SMALL) == meant


@given(st.data())
@settings(max_examples=200)
def test_spelling_is_that_of_argparse(data: st.DataObject) -> None:
    """The parser of the standard library, given the same names, takes a word for the same flag."""
    table = load_version(data.draw(st.sampled_from(VERSIONS)))
    name = data.draw(st.sampled_from(sorted(table.forms)))
    word = name[: data.draw(st.integers(min_value=1, max_value=len(name)))]
    typed = "".join(data.draw(st.sampled_from("-_")) if c == "-" else c for c in word)
    meant = spelling(f"--{typed}", table)
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for flag, value in table.flags.items():
        forms = [f"--{flag}"] + ([f"--no-{flag}"] if value.no else [])
        parser.add_argument(*forms, dest=flag, action="append_const", const=True)
    try:
        taken = [key for key, value in vars(parser.parse_args([f"--{word}"])).items() if value]
    except (argparse.ArgumentError, SystemExit):
        taken = []
    assert taken == ([meant.name] if meant else [])


@given(st.text(max_size=30))
@settings(max_examples=100)
def test_any_word_is_a_flag_or_none(word: str) -> None:
    table = load_version("0.28.0")
    meant = spelling(word, table)
    assert meant is None or meant.name in table.flags


# Up to where the engine, which multiplies as floating point, is exact too.
@given(st.integers(min_value=0, max_value=10**7), st.sampled_from("kmgtKMGT"))
def test_whole_counts_with_a_suffix(number: int, suffix: str) -> None:
    base = 1000 if suffix.islower() else 1024
    assert human_int(f"{number}{suffix}") == number * base ** ("kmgt".index(suffix.lower()) + 1)
    assert human_int(str(number)) == number
    assert human_int(f"{number}.5{suffix.upper()}") is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("25.6k", 25600),
        (" 8K ", 8192),
        ("1_000", 1000),
        ("-1", -1),
        ("8 k", None),
        ("", None),
        ("8kk", None),
        ("k", None),
        ("9" * 400 + "k", None),
        ("1e3", None),
    ],
)
def test_counts_as_text(text: str, count: int | None) -> None:
    assert human_int(text) == count


# -------------------------------------------------------------- whatever comes

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@given(st.data())
@settings(max_examples=150)
def test_no_value_of_a_flag_ends_in_a_traceback(data: st.DataObject) -> None:
    engine = data.draw(st.sampled_from([*(f"vllm {v}" for v in VERSIONS), GAUDI]))
    table = load_flags(manifest(engine))
    names = st.sampled_from(sorted(table.flags)) | st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)
    value = ANYTHING
    arguments = data.draw(st.dictionaries(names, value, max_size=5))
    for name, flag in table.flags.items():
        if name in arguments and flag.config and data.draw(st.booleans()):
            keys = st.sampled_from(sorted(table.configs[flag.config].keys))
            arguments[name] = data.draw(st.dictionaries(keys, ANYTHING, max_size=4))
    variables = st.sampled_from(sorted(table.declared)) | st.from_regex(r"VLLM_[A-Z]{1,8}", fullmatch=True)
    environment = data.draw(st.dictionaries(variables, st.text(max_size=8), max_size=4))
    for problem in findings(arguments, environment, engine):
        assert str(problem)


def test_json_text_nested_beyond_reason_is_refused() -> None:
    found = findings({"speculative-config": "[" * 100_000}, {}, "vllm 0.28.0")
    assert {problem.rule for problem in found} == {"flag-type"}
