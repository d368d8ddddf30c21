# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The memory planner: the figures that are known to the token, its properties, and each of its rules.

Real: the planner and the recipe schema. That the engine gives the same numbers is in tests/integration/test_memory.py.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible_collections.enplace.inference.plugins.plugin_utils import memory
from ansible_collections.enplace.inference.plugins.plugin_utils.lint import SEVERITIES, Subject
from ansible_collections.enplace.inference.plugins.plugin_utils.memory import (
    GIB,
    RULE_SETS,
    RULES,
    Estimate,
    estimate,
    largest_context,
    parse_bytes,
    smallest_pool,
)
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import Document, Place, Problem, schema
from hypothesis import given, settings
from hypothesis import strategies as st

ATTENTION = {"kind": "attention", "count": 12, "kv_heads": 2, "head_size": 256}
STATES = {
    "kind": "gated_delta",
    "count": 36,
    "key_heads": 16,
    "value_heads": 32,
    "key_head_size": 128,
    "value_head_size": 128,
    "convolution": 4,
}
CODER: dict[str, Any] = {
    "name": "Qwen/Qwen3-Coder-Next",
    "summary": "80B",
    "architecture": "qwen3_next",
    "parameters": 80_000_000_000,
    "context": 262144,
    "license": "Apache-2.0",
    "geometry": {"layers": [ATTENTION, STATES]},
}
UNPINNED = {"repository": "a/b", "revision": "unpinned"}
SPARK: dict[str, Any] = {
    "summary": "one Spark",
    "accelerator": "gb10",
    "host": {"memory_bytes": 66_000_000_000},
    "engine": {"name": "vllm", "version": "0.24.0"},
    "weights": {**UNPINNED, "bytes": 45_700_000_000},
    # The page says one Llama layer. Only heads like the target's let it share their groups, which its figures show.
    "draft": {**UNPINNED, "bytes": 700_000_000, "geometry": {"layers": [{**ATTENTION, "count": 1}]}},
    "arguments": {
        "max-model-len": 262144,
        "max-num-seqs": 4,
        "gpu-memory-utilization": 0.85,
        "kv-cache-memory-bytes": "8G",
        "speculative-config": {"method": "eagle3", "num_speculative_tokens": 1},
    },
    "memory": {"resident_bytes": int(43.22 * GIB), "activation_bytes": int(7.08 * GIB), "users": 1},
    "ready": {"timeout_s": 1800},
    "checks": [{"check": "identity"}],
}
GAUDI: dict[str, Any] = {
    "summary": "four Gaudi 2 cards",
    "accelerator": "gaudi2",
    "count": 4,
    "host": {"memory_bytes": 200_000_000_000},
    "engine": {"name": "vllm-gaudi", "version": "0.26.0"},
    "environment": {"VLLM_COMPACT_GDN": "1"},
    "weights": {**UNPINNED, "bytes": 159_000_000_000},
    "arguments": {
        "tensor-parallel-size": 4,
        "max-model-len": 262144,
        "max-num-seqs": 8,
        "gpu-memory-utilization": 0.85,
        "block-size": 128,
        "max-num-batched-tokens": 8192,
        "enable-prefix-caching": True,
    },
    "ready": {"timeout_s": 3600},
    "checks": [{"check": "identity"}],
}
CPU: dict[str, Any] = {
    "summary": "a CPU",
    "accelerator": "cpu",
    "host": {"memory_bytes": 6_000_000_000},
    "engine": {"name": "vllm", "version": "0.28.0"},
    "environment": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    "weights": {**UNPINNED, "bytes": 1_136_488},
    "arguments": {"max-model-len": 4096, "max-num-seqs": 8, "mamba-ssm-cache-dtype": "float32"},
    "ready": {"timeout_s": 600},
    "checks": [{"check": "identity"}],
}
SMOKE = {
    **CODER,
    "geometry": {
        "layers": [
            {"kind": "attention", "count": 1, "kv_heads": 2, "head_size": 64},
            {**STATES, "count": 3, "key_heads": 1, "value_heads": 1},
        ]
    },
}
PAGE_POOL = int(56.71 * GIB)


def engine(variant: dict[str, Any]) -> Document:
    stated = variant["engine"]
    data = {"engine": stated["name"], "version": stated["version"]}
    if stated["name"] == "vllm-gaudi":
        data["base"] = {"engine": "vllm", "version": stated["version"]}
    return Document(Path("engine.yaml"), data, {})


def plan(variant: dict[str, Any], model: dict[str, Any] = CODER, **changes: Any) -> Estimate:
    return estimate(model, variant, engine(variant), **changes)


def changed(variant: dict[str, Any], *remove: str, **arguments: Any) -> dict[str, Any]:
    """A copy with other arguments; `_` stands for the dash of a flag."""
    copied = copy.deepcopy(variant)
    copied["arguments"].update({name.replace("_", "-"): value for name, value in arguments.items()})
    for name in remove:
        del copied["arguments"][name]
    return copied


def recipe(variant: dict[str, Any], model: dict[str, Any] = CODER) -> Document:
    """A recipe of one variant, valid by the schema."""
    data = {"schema": 1, "model": model, "variants": {"it": variant}}
    jsonschema.Draft202012Validator(schema()).validate(data)
    return Document(Path("recipe.yaml"), data, {("variants", "it", "arguments"): (7, 5)})


def problems(rule_id: str, variant: dict[str, Any], model: dict[str, Any] = CODER) -> list[Problem]:
    (rule,) = [rule for rule in RULES if rule.id == rule_id]
    found = list(rule.check(Subject(recipe(variant, model), "it", engine(variant))))
    for problem in found:
        assert isinstance(problem.where, Place)
        assert problem.found, problem
        assert problem.expected, problem
        assert problem.todo, problem
        # More of it made Sparks reboot: no advice of ours may name a higher share.
        assert "raise gpu-memory-utilization" not in str(problem).lower()
    return found


# What the pages say, to the token.


def test_the_spark_page_with_its_draft() -> None:
    found = plan(SPARK)
    assert (found.blocks, found.blocks_per_request, found.block_tokens) == (593, 488, 544)
    assert found.page_bytes == found.state_layer_bytes == 1_114_112
    assert (found.group_size, [group.groups for group in found.groups]) == (13, [1, 3])
    assert found.tokens == 318_547
    assert found.concurrency is not None
    assert f"{found.concurrency:.2f}" == "1.22"
    assert (found.pool_bytes, found.pool_source) == (8 * GIB, "pinned")


@pytest.mark.parametrize("version", ["0.24.0", "0.25.1", "0.26.0"])
def test_the_spark_page_s_pool_is_the_same_on_the_three_engines_it_names(version: str) -> None:
    assert plan(SPARK, vllm=version).tokens == 318_547


def test_prefix_caching_is_the_default_of_a_hybrid_from_0_28_0_on() -> None:
    assert plan(SPARK, vllm="0.28.0").tokens == 316_601


def test_the_spark_page_without_a_draft_and_without_a_cap() -> None:
    found = plan(SPARK, kv_bytes=PAGE_POOL, draft=False)
    assert (found.blocks, found.blocks_per_request, found.tokens) == (4554, 485, 2_461_451)
    assert found.concurrency is not None
    assert f"{found.concurrency:.1f}" == "9.4"
    assert found == plan(SPARK, kv_bytes=PAGE_POOL, draft_tokens=0)


def test_the_same_pool_with_the_draft() -> None:
    assert plan(SPARK, kv_bytes=PAGE_POOL).tokens == 2_258_306


def test_prefix_caching_keeps_one_state_more() -> None:
    found = plan(changed(SPARK, enable_prefix_caching=True))
    assert (found.blocks_per_request, found.tokens, found.state_mode) == (491, 316_601, "align")


def test_a_draft_with_other_heads_gets_groups_of_its_own() -> None:
    # The same bytes a token, but not the same kind of layer: every group then holds a single layer.
    variant = copy.deepcopy(SPARK)
    variant["draft"]["geometry"]["layers"] = [{"kind": "attention", "count": 1, "kv_heads": 4, "head_size": 128}]
    found = plan(variant)
    assert (found.group_size, found.blocks, found.tokens) == (1, 7710, 318_890)


def test_the_gaudi_page_s_block() -> None:
    found = plan(GAUDI)
    assert (found.state_layer_bytes, found.block_tokens, found.page_bytes) == (274_432, 384, 393_216)
    assert (found.blocks_per_request, found.token_layer_bytes) == (689, 1024)
    assert plan(changed(GAUDI, "block-size")).block_tokens == 384
    assert plan(changed(GAUDI, mamba_ssm_cache_dtype="float32")).block_tokens == 640


def test_the_gaudi_page_s_pool_is_bounded_and_not_computed() -> None:
    found = plan(GAUDI)
    assert (found.pool_bytes, found.tokens, found.pool_source) == (None, None, "unknown")
    assert "pool" in {remark.name for remark in found.unknown}
    # The page's 3,800,136 tokens are 9,988 blocks of this size, below the bound.
    assert found.block_bytes is not None
    assert found.pool_at_most_bytes is not None
    pool = 9988 * found.block_bytes
    assert plan(GAUDI, kv_bytes=pool).tokens == 3_800_136
    assert 0.95 * found.pool_at_most_bytes < pool < found.pool_at_most_bytes


def test_compact_states_lie_beside_the_pool_of_a_gaudi() -> None:
    assert plan(GAUDI).slot_bytes == 12 * (8 * 3 + 2) * 274_432
    plain = copy.deepcopy(GAUDI)
    plain["environment"]["VLLM_COMPACT_GDN"] = "0"
    assert plan(plain).slot_bytes is None
    assert plan(SPARK).slot_bytes is None


def test_kv_cache_memory_bytes_does_not_size_the_pool_of_a_gaudi() -> None:
    assert plan(changed(GAUDI, kv_cache_memory_bytes="8G")).pool_source == "unknown"


def test_a_cpu_s_block_and_pool() -> None:
    # The figures of a started vLLM 0.28.0.
    found = plan(changed(CPU, enable_prefix_caching=False), SMOKE)
    assert (found.block_tokens, found.blocks, found.tokens) == (256, 8192, 1_766_022)
    found = plan(changed(CPU, max_model_len=6000), SMOKE)
    assert (found.prefix_caching, found.blocks, found.tokens) == (True, 8192, 1_638_400)


# Settings.


def test_an_fp8_cache_halves_the_token_and_doubles_the_block() -> None:
    found = plan(changed(SPARK, kv_cache_dtype="fp8"), draft=False)
    assert (found.token_layer_bytes, found.block_tokens, found.page_bytes) == (1024, 1072, 1_097_728)


def test_tensor_parallel_divides_heads_and_states() -> None:
    one, four = plan(SPARK, draft=False), plan(changed(SPARK, tensor_parallel_size=4), draft=False)
    assert (four.token_layer_bytes, four.state_layer_bytes) == (1024, 274_432)
    assert one.token_layer_bytes == 2048
    # Two heads on four ranks: each rank holds one, a second copy.
    assert plan(changed(SPARK, tensor_parallel_size=2), draft=False).token_layer_bytes == 1024


def test_a_larger_block_is_kept_and_is_the_step() -> None:
    assert plan(changed(SPARK, block_size=128)).block_tokens == 640
    assert plan(changed(SPARK, block_size=1024)).block_tokens == 1024


def test_an_mtp_head_is_one_more_attention_layer() -> None:
    variant = changed(SPARK, speculative_config={"method": "mtp", "num_speculative_tokens": 2})
    del variant["draft"]
    found = plan(variant)
    assert (found.group_size, found.blocks_per_request) == (13, math.ceil(262144 / 560) + 3 * 3)
    assert "layers of the MTP head" in {remark.name for remark in found.assumptions}


def test_drafting_from_the_text_keeps_states_and_no_layers() -> None:
    variant = changed(SPARK, speculative_config={"method": "ngram", "num_speculative_tokens": 1})
    del variant["draft"]
    found = plan(variant)
    assert (found.group_size, found.blocks_per_request) == (12, 488)


GPT_OSS = {
    **CODER,
    "architecture": "gpt_oss",
    "geometry": {
        "layers": [
            {"kind": "attention", "count": 18, "kv_heads": 8, "head_size": 64},
            {"kind": "sliding_attention", "count": 18, "kv_heads": 8, "head_size": 64, "window": 128},
        ]
    },
}


def test_a_sliding_window_takes_its_window_and_what_is_in_flight() -> None:
    variant = changed(SPARK, "speculative-config", max_model_len=131072, max_num_batched_tokens=8192)
    full = 131072 // 16
    for version, batches in (("0.24.0", 1), ("0.25.1", 1), ("0.26.0", 2), ("0.28.0", 2)):
        found = plan(variant, GPT_OSS, vllm=version)
        assert found.blocks_per_request == full + math.ceil((127 + batches * 8192) / 16) + 1
    quiet = changed(variant, async_scheduling=False)
    assert plan(quiet, GPT_OSS, vllm="0.28.0").blocks_per_request == full + math.ceil((127 + 8192) / 16) + 1
    flat = changed(variant, disable_hybrid_kv_cache_manager=True)
    assert (plan(flat, GPT_OSS).group_size, plan(flat, GPT_OSS).blocks_per_request) == (36, full)


def test_a_gaudi_caches_sliding_windows_as_full_attention() -> None:
    found = plan(changed(GAUDI, "block-size", tensor_parallel_size=1), GPT_OSS)
    assert (found.group_size, found.blocks_per_request) == (36, 262144 // 128)


def test_latent_attention_is_the_same_on_every_rank() -> None:
    model = {**CODER, "geometry": {"layers": [{"kind": "latent_attention", "count": 47, "latent": 512, "rope": 64}]}}
    variant = changed(SPARK, "speculative-config", max_model_len=202752, tensor_parallel_size=2)
    found = plan(variant, model)
    assert (found.token_layer_bytes, found.token_bytes, found.blocks_per_request) == (1152, 54_144, 12_672)
    assert plan(changed(variant, kv_cache_dtype="fp8_ds_mla"), model).token_layer_bytes == 656


def test_the_state_of_qwen3_5_is_float32_by_its_checkpoint() -> None:
    layers = [
        {"kind": "attention", "count": 16, "kv_heads": 4, "head_size": 256},
        {**STATES, "count": 48, "value_heads": 48},
    ]
    model = {**CODER, "architecture": "qwen3_5", "geometry": {"layers": layers}}
    found = plan(changed(SPARK, "speculative-config"), model)
    assert (found.state_layer_bytes, found.block_tokens) == (3_207_168, 784)
    assert any("mamba_ssm_dtype" in remark.text for remark in found.assumptions)


def test_start_needs_a_share_of_everything_even_with_a_pinned_pool() -> None:
    found = plan(SPARK)
    assert found.total_bytes == int(119.56 * GIB)
    assert found.start_free_bytes == math.ceil(found.total_bytes * 0.85)
    assert plan(changed(SPARK, "gpu-memory-utilization")).start_free_bytes == math.ceil(found.total_bytes * 0.92)
    assert plan(GAUDI).start_free_bytes is None


@pytest.mark.parametrize("value", ["NaN", "-inf", "inf", "much", True])
def test_what_is_no_finite_number_is_said_and_counts_as_absent(value: str | bool) -> None:
    for variant in (SPARK, GAUDI):
        found = plan(changed(variant, gpu_memory_utilization=value))
        assert found.utilization == 0.92
        assert any(remark.name == "gpu-memory-utilization" for remark in found.unknown)
    reserved = copy.deepcopy(GAUDI)
    reserved["environment"]["VLLM_GRAPH_RESERVED_MEM"] = str(value)
    assert plan(reserved).pool_bytes == plan(GAUDI).pool_bytes


def test_the_spark_page_s_working_set() -> None:
    found = plan(SPARK)
    assert found.used_at_least_bytes is not None
    assert found.used_at_least_bytes / GIB == pytest.approx(58.3, abs=0.01)
    assert found.reserve_at_most_bytes == int(119.56 * GIB) - found.used_at_least_bytes
    assert found.usable_bytes == 114 * GIB


def test_a_pool_that_is_not_pinned_is_what_the_recipe_s_figures_leave() -> None:
    found = plan(changed(SPARK, "kv-cache-memory-bytes"))
    assert found.pool_source == "derived"
    assert found.pool_bytes is not None
    assert found.pool_bytes == math.ceil(int(119.56 * GIB) * 0.85) - int(43.22 * GIB) - int(7.08 * GIB)
    assert "pool" in {remark.name for remark in found.assumptions}


def test_download_is_the_files_and_a_rate() -> None:
    found = plan(SPARK, rate=100e6)
    assert (found.disk_bytes, found.download_seconds) == (46_400_000_000, 464.0)
    assert plan(SPARK, draft=False).disk_bytes == 45_700_000_000
    assert plan(SPARK).download_seconds is None
    files = [{"path": "a", "bytes": 7, "sha256": "0" * 64}, {"path": "b", "bytes": 5, "sha256": "0" * 64}]
    listed = {**SPARK, "weights": {**UNPINNED, "revision": "0" * 40, "files": files}}
    assert plan(listed, draft=False).disk_bytes == 12


def test_weights_are_shared_by_cards_and_nodes() -> None:
    found = plan(GAUDI)
    assert (found.weights_bytes, found.weights_card_bytes) == (159_000_000_000, 39_750_000_000)
    two = {**SPARK, "nodes": 2}
    del two["memory"]
    assert plan(two, draft=False).weights_bytes == 45_700_000_000 // 2


def test_every_assumption_and_every_gap_is_named() -> None:
    bare = {**SPARK, "arguments": {}, "weights": UNPINNED}
    del bare["memory"], bare["draft"]
    found = plan(bare)
    assert {"max-model-len", "max-num-seqs", "max-num-batched-tokens", "dtype", "kv-cache-dtype"} <= {
        remark.name for remark in found.assumptions
    }
    assert (found.context, found.max_num_seqs, found.max_num_batched_tokens) == (262144, 1024, 8192)
    assert {"weights.bytes", "memory.resident_bytes", "pool"} <= {remark.name for remark in found.unknown}
    assert (found.weights_bytes, found.pool_bytes, found.tokens) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"kv_cache_dtype": "nvfp4"}, "kv-cache-dtype"),
        ({"pipeline_parallel_size": 2}, "pipeline-parallel-size"),
        ({"decode_context_parallel_size": 2}, "decode-context-parallel-size"),
        ({"kv_transfer_config": {"kv_connector": "x"}}, "kv-transfer-config"),
        ({"tensor_parallel_size": 3}, "tensor-parallel-size"),
        ({"max_model_len": "auto"}, "max-model-len"),
        ({"speculative_config": {"method": "eagle3"}}, "num_speculative_tokens"),
        ({"disable_hybrid_kv_cache_manager": True}, "disable-hybrid-kv-cache-manager"),
        ({"block_size": "many"}, "block-size"),
    ],
)
def test_what_is_not_modelled_is_said_and_never_guessed(change: dict[str, Any], name: str) -> None:
    found = plan(changed(SPARK, **change))
    assert found.tokens is None
    assert found.blocks_per_request is None
    assert name in {remark.name for remark in found.unknown}


def test_a_draft_without_geometry_is_not_guessed() -> None:
    variant = copy.deepcopy(SPARK)
    del variant["draft"]["geometry"]
    assert (plan(variant).tokens, plan(variant, draft=False).tokens) == (None, 347_002)


def test_an_engine_version_whose_rules_nobody_read_is_said() -> None:
    variant = {**SPARK, "engine": {"name": "vllm", "version": "0.27.0"}}
    found = plan(variant)
    assert (found.rules, found.tokens) == (None, None)
    assert "0.27.0" in str(found.unknown[0])


def test_the_smallest_pool_for_users_holds_exactly_them() -> None:
    found = plan(SPARK)
    for users in (1, 3):
        pool = smallest_pool(found, users)
        assert pool is not None
        assert plan(SPARK, kv_bytes=pool).concurrency == users
        less = plan(SPARK, kv_bytes=pool - 1).concurrency
        assert less is not None
        assert less < users
    assert found.pool_users_bytes == smallest_pool(found, 1)
    assert smallest_pool(plan(SPARK, vllm="0.1.0"), 1) is None


def test_the_largest_context_is_the_last_that_fits() -> None:
    def at(context: int) -> Estimate:
        return plan(SPARK, kv_bytes=2 * GIB, context=context)

    longest = largest_context(at, 262144)
    assert 0 < longest < 262144
    for context, fits in ((longest, True), (longest + 1, False)):
        found = at(context)
        assert found.request_bytes is not None
        assert (found.request_bytes <= 2 * GIB) is fits


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("8G", 8 * 2**30),
        ("8g", 8_000_000_000),
        (" 25.6k ", 25_600),
        ("1K", 1024),
        ("1m", 10**6),
        ("2T", 2 * 2**40),
        ("262144", 262144),
        (-1, -1),
    ],
)
def test_numbers_are_read_as_the_engine_reads_them(value: Any, expected: int) -> None:
    assert parse_bytes(value) == expected


@pytest.mark.parametrize("value", ["8GiB", "8 G", "1.5G", "", "G", True, 1.5, None, "٣", "8Gb"])
def test_what_the_engine_would_refuse_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not a number of bytes"):
        parse_bytes(value)


def test_an_estimate_is_fast_enough_for_every_lint() -> None:
    assert min(timeit.repeat(lambda: plan(SPARK), number=10, repeat=3)) / 10 < 0.005


# Properties.

small = st.integers(1, 64)


def entry(kind: str, **fields: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"kind": st.just(kind), "count": small, **fields})


layer = st.one_of(
    entry("attention", kv_heads=small, head_size=st.integers(1, 512)),
    entry("sliding_attention", kv_heads=small, head_size=st.integers(1, 512), window=st.integers(1, 5000)),
    entry("latent_attention", latent=st.integers(1, 1024), rope=small),
    entry(
        "gated_delta",
        key_heads=small,
        value_heads=small,
        key_head_size=st.integers(1, 256),
        value_head_size=st.integers(1, 256),
        convolution=st.integers(1, 8),
    ),
)
geometry = st.fixed_dictionaries({"layers": st.lists(layer, min_size=1, max_size=4)})
known = st.lists(
    st.sampled_from([ATTENTION, STATES, *GPT_OSS["geometry"]["layers"]]), min_size=1, max_size=3, unique_by=id
).map(lambda layers: {"layers": layers})
variants = st.sampled_from([SPARK, GAUDI, CPU])
argument = st.one_of(
    st.booleans(), st.integers(-(10**30), 10**30), st.sampled_from(["8G", "fp8", "auto", "x", "float32"])
)
flags = st.dictionaries(
    st.sampled_from(
        [
            "max-model-len",
            "max-num-seqs",
            "max-num-batched-tokens",
            "block-size",
            "tensor-parallel-size",
            "enable-prefix-caching",
            "kv-cache-dtype",
            "kv-cache-memory-bytes",
            "mamba-ssm-cache-dtype",
            "gpu-memory-utilization",
            "disable-hybrid-kv-cache-manager",
            "num-gpu-blocks-override",
            "enable-chunked-prefill",
        ]
    ),
    argument,
    max_size=4,
)


@settings(max_examples=150)
@given(geometry=geometry, variant=variants, arguments=flags, version=st.sampled_from([*RULE_SETS, "9.9.9"]))
def test_no_recipe_that_the_schema_allows_makes_it_raise(
    geometry: dict[str, Any], variant: dict[str, Any], arguments: dict[str, Any], version: str
) -> None:
    variant = copy.deepcopy(variant)
    variant["arguments"].update(arguments)
    found = plan(variant, {**CODER, "geometry": geometry}, vllm=version)
    assert found.tokens is None or found.tokens >= 0
    # What is not known is explained.
    assert found.blocks_per_request is not None or found.unknown
    subject = Subject(recipe(variant, {**CODER, "geometry": geometry}), "it", engine(variant))
    for rule in RULES:
        list(rule.check(subject))


@settings(max_examples=60)
@given(geometry=geometry, pool=st.integers(10**9, 10**12), more=st.integers(0, 10**12))
def test_more_pool_is_never_fewer_tokens(geometry: dict[str, Any], pool: int, more: int) -> None:
    model = {**CODER, "geometry": geometry}
    low, high = plan(SPARK, model, kv_bytes=pool), plan(SPARK, model, kv_bytes=pool + more)
    if low.tokens is not None:
        assert high.tokens is not None
        assert low.tokens <= high.tokens
        assert low.blocks is not None
        assert low.block_bytes is not None
        assert low.blocks * low.block_bytes <= pool < (low.blocks + 1) * low.block_bytes


@settings(max_examples=60)
@given(layers=known, pool=st.integers(10**9, 10**11), context=st.integers(1, 10**6))
def test_tokens_are_never_more_than_the_pool_has_bytes_for(layers: dict[str, Any], pool: int, context: int) -> None:
    found = plan(SPARK, {**CODER, "geometry": layers}, kv_bytes=pool, draft=False, context=context)
    assert found.blocks_per_request is not None, found.unknown
    assert found.blocks_per_request >= 1
    assert found.tokens is not None
    assert found.token_bytes is not None
    assert found.tokens * found.token_bytes <= pool
    assert found.page_bytes is not None
    assert found.state_layer_bytes is None or found.page_bytes >= found.state_layer_bytes


@settings(max_examples=60)
@given(pool=st.integers(10**9, 10**11), context=st.integers(1, 10**6), shorter=st.integers(1, 10**6))
def test_a_longer_context_never_takes_fewer_blocks(pool: int, context: int, shorter: int) -> None:
    low, high = sorted((context, shorter))
    few, many = plan(SPARK, kv_bytes=pool, context=low), plan(SPARK, kv_bytes=pool, context=high)
    assert few.blocks_per_request is not None
    assert many.blocks_per_request is not None
    assert few.blocks_per_request <= many.blocks_per_request


@settings(max_examples=40)
@given(ranks=st.sampled_from([1, 2, 4, 8]), layers=st.sampled_from([[ATTENTION], [STATES], [STATES, ATTENTION]]))
def test_ranks_divide_what_one_card_holds(ranks: int, layers: list[dict[str, Any]]) -> None:
    model = {**CODER, "geometry": {"layers": layers}}
    one, many = plan(SPARK, model, draft=False), plan(changed(SPARK, tensor_parallel_size=ranks), model, draft=False)
    for name in ("token_layer_bytes", "state_layer_bytes"):
        whole, part = getattr(one, name), getattr(many, name)
        assert (whole is None) is (part is None)
        if whole is not None:
            assert whole / ranks <= part <= whole


# Rules: a bad recipe and a good one for each.


def test_rules_have_reasons() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.severity in SEVERITIES
        assert rule.summary.endswith(".")
        assert len(rule.source) > 20


@pytest.mark.parametrize("variant", [SPARK, GAUDI])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_good_recipe_breaks_no_rule(rule: Any, variant: dict[str, Any]) -> None:
    assert problems(rule.id, variant) == []


def test_a_good_cpu_recipe_breaks_no_rule() -> None:
    assert [problem for rule in RULES for problem in problems(rule.id, CPU, SMOKE)] == []


def figure(metric: str, value: float, **at: Any) -> dict[str, Any]:
    unit = "ratio" if metric == "concurrency" else "tokens"
    return {"metric": metric, "value": value, "unit": unit, "at": at, "tolerance": {"exact": True}, "source": "page"}


def with_figures(
    variant: dict[str, Any], *figures: dict[str, Any], checks: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    made = {**variant, "figures": list(figures)} if figures else dict(variant)
    return {**made, "checks": checks} if checks else made


def with_memory(variant: dict[str, Any], **stated: int) -> dict[str, Any]:
    return {**variant, "memory": {**variant.get("memory", {}), **stated}}


BAD: list[tuple[str, str, Callable[[], dict[str, Any]], str]] = [
    ("memory-does-not-fit", "weights", lambda: with_memory(SPARK, resident_bytes=110 * GIB), "110.00 GiB"),
    ("memory-does-not-fit", "pool", lambda: changed(SPARK, kv_cache_memory_bytes="100G"), "100.00 GiB"),
    ("memory-does-not-fit", "usable", lambda: with_memory(SPARK, usable_bytes=58 * GIB), "58.00 GiB"),
    ("memory-does-not-fit", "card", lambda: {**GAUDI, "weights": {**UNPINNED, "bytes": 420_000_000_000}}, "one card"),
    ("host-memory-understated", "less", lambda: {**SPARK, "host": {"memory_bytes": 50_000_000_000}}, "58.30 GiB"),
    ("host-memory-understated", "more", lambda: {**SPARK, "host": {"memory_bytes": 140_000_000_000}}, "119.56 GiB"),
    ("start-inequality", "missing", lambda: changed(SPARK, "gpu-memory-utilization"), "110.00 GiB"),
    ("start-inequality", "high", lambda: changed(SPARK, gpu_memory_utilization=0.9), "107.60 GiB"),
    ("kv-pool-below-one-request", "pinned", lambda: changed(SPARK, kv_cache_memory_bytes="6G"), "max-model-len: 238"),
    (
        "kv-pool-below-one-request",
        "profiled",
        lambda: with_memory(changed(SPARK, "kv-cache-memory-bytes"), resident_bytes=90 * GIB),
        "max-model-len: ",
    ),
    ("kv-pool-oversized", "pinned", lambda: changed(SPARK, kv_cache_memory_bytes="40G"), "kv-cache-memory-bytes: 7G"),
    ("kv-pool-oversized", "profiled", lambda: changed(SPARK, "kv-cache-memory-bytes"), "kv-cache-memory-bytes: 7G"),
    ("batched-tokens-below-block", "stated", lambda: changed(GAUDI, max_num_batched_tokens=256), "384"),
    (
        "batched-tokens-below-block",
        "a Spark",
        lambda: changed(SPARK, max_num_batched_tokens=512, enable_prefix_caching=True),
        "544",
    ),
    ("default-max-num-seqs", "absent", lambda: changed(SPARK, "max-num-seqs"), "1024"),
    ("kv-pool-flag-ignored", "gaudi", lambda: changed(GAUDI, kv_cache_memory_bytes="8G"), "num-gpu-blocks-override"),
    ("kv-pool-flag-ignored", "cpu", lambda: changed(CPU, kv_cache_memory_bytes="1G"), "VLLM_CPU_KVCACHE_SPACE"),
    ("tensor-parallel-divides", "states", lambda: changed(SPARK, tensor_parallel_size=3), "32 value heads"),
    ("tensor-parallel-divides", "heads", lambda: changed(SPARK, tensor_parallel_size=3), "2 key-value heads"),
    ("figure-kv-tokens", "tokens", lambda: with_figures(SPARK, figure("kv_pool_tokens", 318_548)), "318547"),
    ("figure-kv-tokens", "concurrency", lambda: with_figures(SPARK, figure("concurrency", 1.21)), "1.2152"),
    ("figure-kv-tokens", "block", lambda: with_figures(GAUDI, figure("kv_block_tokens", 128)), "384"),
    (
        "figure-kv-tokens",
        "no whole block",
        lambda: with_figures(GAUDI, figure("kv_pool_tokens", 3_800_137)),
        "689 blocks",
    ),
    (
        "figure-kv-tokens",
        "its own pool",
        lambda: with_figures(SPARK, figure("kv_pool_tokens", 2_461_451, kv_bytes=PAGE_POOL)),
        "2258306",
    ),
    (
        "figure-kv-tokens",
        "engine",
        lambda: with_figures(SPARK, figure("kv_pool_tokens", 318_547, engine="0.28.0")),
        "316601",
    ),
    (
        "figure-kv-tokens",
        "a check",
        lambda: with_figures(SPARK, checks=[{"check": "kv_pool", "tokens": 320_000, "concurrency": 1.22}]),
        "at most",
    ),
    (
        "figure-kv-tokens",
        "a check of the block",
        lambda: with_figures(GAUDI, checks=[{"check": "prefix_cache", "tokens": [6000], "block": 256}]),
        "384 tokens",
    ),
]


@pytest.mark.parametrize(("rule_id", "why", "variant", "says"), BAD, ids=[f"{rule}: {why}" for rule, why, _, _ in BAD])
def test_a_bad_recipe_breaks_its_rule(rule_id: str, why: str, variant: Callable[[], dict[str, Any]], says: str) -> None:
    found = problems(rule_id, variant())
    assert found
    assert any(says in str(problem) for problem in found), "\n".join(map(str, found))


def test_every_rule_has_a_bad_recipe() -> None:
    assert {rule.id for rule in RULES} == {rule for rule, *_ in BAD}


@pytest.mark.parametrize(
    "variant",
    [
        with_figures(SPARK, figure("kv_pool_tokens", 318_547), figure("concurrency", 1.22)),
        with_figures(
            SPARK,
            figure("kv_pool_tokens", 2_461_451, draft_tokens=0, kv_bytes=PAGE_POOL),
            figure("concurrency", 9.4, draft_tokens=0, kv_bytes=PAGE_POOL),
            # Not pinned: any whole number of blocks may be right.
            figure("kv_pool_tokens", 2_461_451, draft_tokens=0, gpu_memory_utilization=0.85),
            figure("kv_pool_tokens", 318_547, engine="0.26.0"),
            figure("kv_pool_tokens", 1, engine="0.27.0"),
        ),
        with_figures(SPARK, {**figure("kv_pool_tokens", 300_000), "tolerance": {"percent": 10}}),
        with_figures(SPARK, checks=[{"check": "kv_pool", "tokens": 318_547, "concurrency": 1.21}]),
        with_figures(GAUDI, figure("kv_pool_tokens", 3_800_136), figure("kv_block_tokens", 384)),
        with_figures(GAUDI, checks=[{"check": "prefix_cache", "tokens": [6000], "block": 384}]),
    ],
)
def test_true_figures_are_left_alone(variant: dict[str, Any]) -> None:
    assert problems("figure-kv-tokens", variant) == []


def test_0_28_0_lets_a_step_be_smaller_than_a_block() -> None:
    variant = changed(SPARK, max_num_batched_tokens=512, enable_prefix_caching=True)
    variant["engine"]["version"] = "0.28.0"
    assert problems("batched-tokens-below-block", variant) == []


def test_without_stated_users_no_pool_is_too_large() -> None:
    variant = changed(SPARK, kv_cache_memory_bytes="40G")
    del variant["memory"]["users"]
    assert problems("kv-pool-oversized", variant) == []


def test_a_problem_points_at_the_value() -> None:
    (problem,) = problems("start-inequality", changed(SPARK, gpu_memory_utilization=0.9))
    assert isinstance(problem.where, Place)
    assert problem.where.field == "variants.it.arguments.gpu-memory-utilization"
    assert problem.where.line == 7


def test_an_estimate_is_plain_data() -> None:
    found = dataclasses.asdict(plan(SPARK))
    assert found["groups"][0]["kind"] == "attention"
    assert found["unknown"] == ()
    assert set(memory.ACCELERATORS) == set(schema()["$defs"]["variant"]["properties"]["accelerator"]["enum"])
