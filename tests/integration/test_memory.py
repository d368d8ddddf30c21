# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The memory planner gives the numbers that the engine gives.

Real: the engine's own block planner, asked for a few hundred made-up models without being started; and two servers of
the smoke model on the CPU, whose /metrics tell their pool. Not tested here: what profiling leaves on a GPU.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.plugin_utils.memory import GIB, RULE_SETS, Estimate, estimate
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import Document

from .conftest import ROOT, EnginePython

pytestmark = pytest.mark.integration

SMOKE = ROOT / "tests" / "sim" / "hub" / "repositories" / "enplace" / "smoke"
CASES = 400

# Asks vLLM's planner without a device: the layers' shapes, the alignment of a hybrid's block, groups, blocks, tokens.
PLANNER = """
import contextlib, json, logging, sys
from types import SimpleNamespace as N

logging.disable(logging.CRITICAL)
import torch
import vllm.config.vllm
import vllm.version
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core import kv_cache_utils as planner
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec

asked = json.load(sys.stdin)
vllm.config.vllm.set_current_vllm_config = lambda *_: contextlib.nullcontext()
backend = N(get_supported_kernel_block_sizes=lambda: [MultipleOf(16)], customize_spec=lambda spec: spec)
dtypes = {1: torch.float8_e4m3fn, 2: torch.bfloat16, 4: torch.float32}


def shapes(layer, case):
    names = ("key_heads", "value_heads", "key_head_size", "value_head_size", "convolution")
    return MambaStateShapeCalculator.gated_delta_net_state_shape(case["tp"], *(layer[n] for n in names), case["k"])


def plan(case):
    layers, kinds = case["layers"], {layer["kind"] for layer in case["layers"]}
    first = next((layer for layer in layers if layer["kind"] != "gated_delta"), None)
    states = [layer for layer in layers if layer["kind"] == "gated_delta"]
    heads = lambda layer: max(1, layer["kv_heads"] // case["tp"])
    size = lambda layer: layer["head_size"] if "head_size" in layer else layer["latent"] + layer["rope"]
    cache = N(
        cache_dtype="fp8" if case["element"] == 1 else "auto", mamba_block_size=None, mamba_page_size_padded=None,
        block_size=case["block"], user_specified_mamba_block_size=False, num_gpu_blocks_override=None,
        enable_prefix_caching=case["caching"], mamba_cache_mode="align" if case["caching"] and states else "none",
        kv_cache_dtype_skip_layers=[],
    )
    config = N(
        cache_config=cache,
        model_config=N(
            max_model_len=case["context"], original_max_model_len=case["context"], dtype=torch.bfloat16,
            architecture="made up", use_mla="latent_attention" in kinds, get_head_size=lambda: size(first),
            get_num_kv_heads=lambda _: 1 if first["kind"] == "latent_attention" else heads(first),
        ),
        parallel_config=N(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        scheduler_config=N(
            max_num_batched_tokens=case["batch"], disable_hybrid_kv_cache_manager=case["flat"],
        ),
        max_in_flight_tokens=case["flight"], kv_transfer_config=None, speculative_config=None,
    )
    element = (torch.bfloat16, torch.float32 if case["matrix"] == 4 else torch.bfloat16)
    if states and first is not None:
        model = N(
            get_mamba_state_shape_from_config=lambda _: shapes(states[0], case),
            get_mamba_state_dtype_from_config=lambda _: element,
        )
        sys.modules["vllm.model_executor.models"] = N(ModelRegistry=N(resolve_model_cls=lambda *_, **__: (model, "x")))
        Platform._align_hybrid_block_size(config, backend)
    specs = {}
    for index, layer in enumerate(layers + case["draft"]):
        dtype, block = dtypes[case["element"]], cache.block_size
        if layer["kind"] == "attention":
            spec = FullAttentionSpec(block_size=block, num_kv_heads=heads(layer), head_size=size(layer), dtype=dtype)
        elif layer["kind"] == "latent_attention":
            spec = MLAAttentionSpec(block_size=block, num_kv_heads=1, head_size=size(layer), dtype=dtype)
        elif layer["kind"] == "sliding_attention":
            block = block if vllm.version.__version__.startswith("0.24.") else 16
            spec = SlidingWindowSpec(
                block_size=block, num_kv_heads=heads(layer), head_size=size(layer), dtype=dtype,
                sliding_window=layer["window"],
            )
        else:
            spec = MambaSpec(
                shapes=shapes(layer, case), dtypes=element, page_size_padded=cache.mamba_page_size_padded,
                block_size=cache.mamba_block_size or case["context"], mamba_cache_mode=cache.mamba_cache_mode,
                num_speculative_blocks=case["k"],
            )
        specs.update({f"{index}.{number}": spec for number in range(layer["count"])})
    groups = planner.get_kv_cache_groups(config, dict(specs))
    request = planner._max_memory_usage_bytes_from_groups(config, groups)
    (found,) = planner.get_kv_cache_configs(config, [specs], [max(case["pool"], request)])
    tokens, concurrency = planner.get_kv_cache_capacity(config, found)
    return {
        "request_bytes": request, "blocks": found.num_blocks, "tokens": tokens, "concurrency": concurrency,
        "groups": len(groups), "group_size": max(len(group.layer_names) for group in groups),
        "block_tokens": next(
            (group.kv_cache_spec.block_size for group in groups if not isinstance(group.kv_cache_spec, MambaSpec)), None
        ),
    }


answers = []
for case in asked:
    try:
        answers.append(plan(case))
    except (AssertionError, NotImplementedError, ValueError) as error:
        answers.append({"refused": f"{type(error).__name__}: {error}"})
json.dump({"version": vllm.version.__version__, "answers": answers}, sys.stdout)
"""

# Starts one server, reads the labels of vllm:cache_config_info, and ends it.
SERVER = """
import json, os, re, signal, socket, subprocess, sys, tempfile, time, urllib.error, urllib.request

folder, arguments = sys.argv[1], sys.argv[2:]
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
environment = {
    **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", ""),
}
command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", folder, "--host", "127.0.0.1"]
with tempfile.TemporaryFile() as log:
    process = subprocess.Popen(
        [*command, "--port", str(port), *arguments], stdout=log, stderr=log, env=environment, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 420
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    text = answer.read().decode()
                line = next((line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")), "")
                if line:
                    break
            except (urllib.error.URLError, OSError):
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                sys.exit("no metrics:\\n" + log.read().decode(errors="replace")[-6000:])
            time.sleep(1)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
json.dump(dict(re.findall(r'(\\w+)="([^"]*)"', line)), sys.stdout)
"""


def manifest(version: str) -> Document:
    return Document(Path("engine.yaml"), {"engine": "vllm", "version": version}, {})


def numbers(seed: int) -> list[dict[str, Any]]:
    """Made-up models and settings, the same for the same seed; half of the models are of kinds that exist."""
    chance = random.Random(seed)

    def attention(kind: str) -> dict[str, Any]:
        layer = {"kind": kind, "count": chance.choice([1, 4, 6, 12, 18, 30]), "kv_heads": chance.choice([1, 2, 4, 8])}
        layer["head_size"] = chance.choice([64, 128, 256])
        return {**layer, "window": chance.choice([128, 1024, 4096])} if kind == "sliding_attention" else layer

    def latent() -> dict[str, Any]:
        return {"kind": "latent_attention", "count": chance.choice([1, 12, 47]), "latent": 512, "rope": 64}

    def states() -> dict[str, Any]:
        heads = chance.choice([4, 16])
        sizes = {"key_head_size": 128, "value_head_size": 128, "convolution": chance.choice([2, 4])}
        return {
            "kind": "gated_delta",
            "count": chance.choice([3, 9, 24, 36]),
            "key_heads": heads,
            "value_heads": 2 * heads,
            **sizes,
        }

    def models() -> list[dict[str, Any]]:
        return chance.choice(
            [
                lambda: [attention("attention")],
                lambda: [attention("attention"), attention("attention")],
                lambda: [attention("attention"), attention("sliding_attention")],
                lambda: [attention("attention"), attention("sliding_attention"), attention("sliding_attention")],
                lambda: [attention("sliding_attention")],
                lambda: [attention("sliding_attention"), attention("sliding_attention")],
                lambda: [latent()],
                lambda: [states(), attention("attention")],
                lambda: [attention("attention"), states()],
                lambda: [latent(), states()],
                lambda: [states()],
            ]
        )()

    found = []
    for _ in range(CASES):
        layers = models()
        k = chance.choice([0, 0, 1, 3])
        own = next((layer for layer in layers if layer["kind"] != "gated_delta"), None)
        draft = (
            []
            if not k
            else [{**own, "count": 1} if own and chance.random() < 0.6 else {**attention("attention"), "count": 1}]
        )
        batch = chance.choice([512, 2048, 8192])
        found.append(
            {
                "layers": layers,
                "draft": draft,
                "k": k,
                "tp": chance.choice([1, 2, 4]),
                "element": chance.choice([1, 2, 2]),
                "matrix": chance.choice([2, 4]),
                "block": chance.choice([16, 16, 16, 32, 128]),
                "caching": chance.random() < 0.5,
                "flat": chance.random() < 0.1,
                "context": chance.choice([1000, 4096, 40960, 131072, 262144]),
                "batch": batch,
                "flight": 2 * batch,
                "pool": chance.randrange(2 * GIB, 60 * GIB),
            }
        )
    return found


def planned(case: dict[str, Any], version: str) -> Estimate:
    """The planner's answer to the same question."""
    arguments: dict[str, Any] = {
        "tensor-parallel-size": case["tp"],
        "max-model-len": case["context"],
        "max-num-batched-tokens": case["batch"],
        "block-size": case["block"],
        "enable-prefix-caching": case["caching"],
        "dtype": "bfloat16",
        "mamba-ssm-cache-dtype": "float32" if case["matrix"] == 4 else "bfloat16",
    }
    if case["element"] == 1:
        arguments["kv-cache-dtype"] = "fp8"
    if case["flat"]:
        arguments["disable-hybrid-kv-cache-manager"] = True
    variant: dict[str, Any] = {"accelerator": "gb10", "arguments": arguments}
    if case["k"]:
        arguments["speculative-config"] = {"method": "eagle3", "num_speculative_tokens": case["k"]}
        variant["draft"] = {"geometry": {"layers": case["draft"]}}
    model = {"architecture": "made_up", "context": case["context"], "geometry": {"layers": case["layers"]}}
    found = estimate(model, variant, manifest(version), kv_bytes=case["pool"])
    # The engine refuses a pool below one request; it is asked for the smallest that it takes instead.
    if found.request_bytes is not None and found.request_bytes > case["pool"]:
        return estimate(model, variant, manifest(version), kv_bytes=found.request_bytes)
    return found


def test_the_engine_s_own_planner_agrees(engine_python: EnginePython) -> None:
    cases = numbers(20261201)
    done = engine_python.run("-c", PLANNER, stdin=json.dumps(cases))
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout)
    version = answer["version"].partition("+")[0]
    assert version in RULE_SETS, f"the engine is vLLM {version}, whose rules are not known: {sorted(RULE_SETS)}"
    outcomes: Counter[str] = Counter()
    for number, (case, real) in enumerate(zip(cases, answer["answers"], strict=True)):
        found = planned(case, version)
        said = f"case {number} {json.dumps(case)}: engine {real}, planner {found}"
        if "refused" in real:
            assert found.blocks is None, said
            outcomes["refused"] += 1
        elif found.blocks is None:
            # Not knowing is allowed, being wrong is not; but it must stay rare.
            outcomes["not computed"] += 1
        else:
            assert found.request_bytes == real["request_bytes"], said
            assert (found.blocks, found.tokens, found.concurrency) == (
                real["blocks"],
                real["tokens"],
                real["concurrency"],
            ), said
            assert (found.group_size, found.block_tokens) == (real["group_size"], real["block_tokens"]), said
            assert sum(group.groups for group in found.groups) == real["groups"], said
            outcomes["equal"] += 1
    print(version, dict(outcomes))
    assert outcomes["equal"] > CASES * 0.7, outcomes
    assert outcomes["not computed"] < CASES * 0.05, outcomes


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"max-model-len": 4096, "enable-prefix-caching": False}, id="4096-uncached"),
        # Prefix caching is the default of this engine version for a hybrid.
        pytest.param({"max-model-len": 6000, "max-num-batched-tokens": 1024}, id="6000-default"),
    ],
)
def test_a_started_engine_agrees(engine_python: EnginePython, arguments: dict[str, Any]) -> None:
    # float32: what a CPU with AMX would take anyway.
    arguments = {**arguments, "max-num-seqs": 8, "enforce-eager": True, "mamba-ssm-cache-dtype": "float32"}
    folder = f"{engine_python.scratch}/smoke"
    if engine_python.run("-c", f"import os, sys; sys.exit(not os.path.isdir({folder!r}))").returncode:
        engine_python.put("smoke", *SMOKE.iterdir())
    flags = [
        f"--{'' if value is not False else 'no-'}{name}" + ("" if isinstance(value, bool) else f"={value}")
        for name, value in arguments.items()
    ]
    done = engine_python.run("-c", SERVER, folder, *flags)
    assert done.returncode == 0, done.stderr[-6000:]
    labels = json.loads(done.stdout)

    config = json.loads((SMOKE / "config.json").read_text(encoding="utf-8"))
    kinds = Counter(config["layer_types"])
    layers: list[dict[str, Any]] = [
        {
            "kind": "attention",
            "count": kinds["full_attention"],
            "kv_heads": config["num_key_value_heads"],
            "head_size": config["head_dim"],
        },
        {
            "kind": "gated_delta",
            "count": kinds["linear_attention"],
            "key_heads": config["linear_num_key_heads"],
            "value_heads": config["linear_num_value_heads"],
            "key_head_size": config["linear_key_head_dim"],
            "value_head_size": config["linear_value_head_dim"],
            "convolution": config["linear_conv_kernel_dim"],
        },
    ]
    found = estimate(
        {
            "architecture": config["model_type"],
            "context": config["max_position_embeddings"],
            "geometry": {"layers": layers},
        },
        {"accelerator": "cpu", "arguments": arguments, "environment": {"VLLM_CPU_KVCACHE_SPACE": "1"}},
        manifest("0.28.0"),
    )
    assert found.concurrency is not None, found.unknown
    assert labels["enable_prefix_caching"] == str(found.prefix_caching)
    assert int(labels["block_size"]) == found.block_tokens
    assert int(labels["num_gpu_blocks"]) == found.blocks
    assert int(labels["kv_cache_size_tokens"]) == found.tokens
    assert float(labels["kv_cache_max_concurrency"]) == pytest.approx(found.concurrency, rel=1e-6)
    print(
        labels["block_size"],
        labels["num_gpu_blocks"],
        labels["kv_cache_size_tokens"],
        labels["kv_cache_max_concurrency"],
    )
