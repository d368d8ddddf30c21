# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""How much memory a variant takes, computed before anything is installed, and the rules that follow from it.

The engine divides its KV pool into blocks by rules of its own; this module follows them, so that the tokens and the
concurrency here are those that the engine prints. All sizes are bytes, all rates bytes a second. A figure is that of
one card, or of one node where the accelerator shares the host's memory (gb10, cpu). Nothing here raises for a recipe
that the schema allows: what cannot be computed is None and named, with the reason, in `Estimate.unknown`.

What the engine does (vLLM: v1/core/kv_cache_utils.py, v1/kv_cache_interface.py, platforms/interface.py,
model_executor/layers/mamba/mamba_utils.py, model_executor/models/config.py, engine/arg_utils.py):

1. An attention layer keeps keys and values of each token. A gated-delta layer keeps one state a request (a convolution
   window and a matrix), one more for each drafted token, and one more again with prefix caching (mode "align").
2. Every layer's page must have one size. In a hybrid the attention block grows, in steps of the kernel's block, until
   its page holds a state; the state's page is padded to it.
3. Layers of one kind form groups of equal size: that of the rarest kind, or of the most frequent one if it is less
   than 1.5 times that. One block holds one page of each layer of a group.
4. blocks = pool // (group size x page). A request of the full context takes ceil(context / block) blocks for a group
   of attention, and one for each state for a group of states.
   concurrency = blocks / blocks of a request; tokens = int(concurrency x context).

What differs between versions (`RULE_SETS`); 0.25.1 has kv_cache_utils.py and mamba_utils.py of 0.24.0 unchanged:

| rule | 0.24.0 | 0.25.1 | 0.26.0 | 0.28.0 |
| --- | --- | --- | --- | --- |
| prefix caching where the flag is absent, in a hybrid | off | off | off | on |
| block of a sliding-window layer | the cache's | the kernel's least | the kernel's least | the kernel's least |
| tokens in flight that a sliding window keeps | one batch | one batch | every batch at once | every batch at once |
| a state smaller than the draft's page | refused | refused | padded | padded |
| mode "align" demands block <= max-num-batched-tokens | yes | yes | yes | no |
| block of a hybrid with latent attention | the kernel's multiple | the same | the same | a multiple of 128 |
| a sliding window that is cached as full attention, in a larger block | that block | refused | refused | that block |

vllm-gaudi 0.26.0 on vLLM 0.26.0 (platform.py, v1/worker/hpu_worker.py, hpu_model_runner.py): the block begins at 128,
sliding windows are cached as full attention, and gated-delta states lie in slots of their own beside the pool,
max-num-seqs x groups + 2 of them (VLLM_COMPACT_GDN=1). kv-cache-memory-bytes is not read: the pool is what profiling
leaves. The Gaudi page's pool of 3,800,136 tokens is therefore not computed here. That figure can be checked, though:
it is exactly what 9,988 blocks of 384 tokens give, and neither 9,987 nor 9,989 do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .lint import Rule, Subject, number_of
from .recipe import Document, Problem

GIB = 2**30
MIB = 2**20
# vLLM 0.24.0 to 0.28.0, config/cache.py.
DEFAULT_UTILIZATION = 0.92
# Above this a Spark was refused at start or stopped answering: NVIDIA's unified memory is also the host's.
HIGHEST_UTILIZATION = 0.85
# A pool this many times what its users need is memory that nobody uses.
OVERSIZED = 2.0
DTYPE_BYTES = {
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
# Methods of speculation that keep no KV cache of their own, and those that use layers of the checkpoint itself.
WITHOUT_LAYERS = frozenset({"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"})
ASYNCHRONOUS = frozenset({"eagle", "eagle3", "mtp", "draft_model", "ngram_gpu", "dflash", "dspark"})
# Assumptions on which the block arithmetic rests; the others are about the memory around it.
OF_THE_BLOCKS = frozenset(
    {
        "max-model-len",
        "max-num-batched-tokens",
        "dtype",
        "kv-cache-dtype",
        "mamba-ssm-cache-dtype",
        "block-size",
        "async-scheduling",
        "layers of the MTP head",
    }
)
# Arguments whose effect on the pool is not modelled, and what they do.
NOT_MODELLED = {
    "kv-transfer-config": "a KV connector may change the layout of the pool",
    "kv-cache-dtype-skip-layers": "layers of two number formats share the pool",
    "mamba-block-size": "states are kept at a distance of their own",
}
PARALLEL = (
    "pipeline-parallel-size",
    "data-parallel-size",
    "decode-context-parallel-size",
    "prefill-context-parallel-size",
)


@dataclass(frozen=True)
class Accelerator:
    """Memory of one card, or of the node where it is unified. None: it differs from host to host."""

    total: int | None
    usable: int | None
    unified: bool
    source: str


ACCELERATORS: Mapping[str, Accelerator] = {
    "gb10": Accelerator(
        int(119.56 * GIB),
        114 * GIB,
        True,
        "MemTotal as vLLM prints it in vllm-project/vllm issue 48140; usable memory from the Spark page",
    ),
    "gaudi2": Accelerator(98_304 * MIB, None, False, "hl-smi, memory.total of an HL-225"),
    "cpu": Accelerator(None, None, True, "the host's own memory"),
}


@dataclass(frozen=True)
class RuleSet:
    """What one version of vLLM does where versions differ; the table is in the module's text."""

    version: str
    hybrid_prefix_caching: bool
    sliding_block_is_smallest: bool
    sliding_counts_every_batch: bool
    pads_states: bool
    align_block_within_batch: bool
    latent_hybrid_multiple: int
    window_takes_block: bool


RULE_SETS: Mapping[str, RuleSet] = {
    rules.version: rules
    for rules in (
        RuleSet("0.24.0", False, False, False, False, True, 1, True),
        RuleSet("0.25.1", False, True, False, False, True, 1, False),
        RuleSet("0.26.0", False, True, True, True, True, 1, False),
        RuleSet("0.28.0", True, True, True, True, False, 128, True),
    )
}


@dataclass(frozen=True)
class Remark:
    """A value by name, and what is to be said of it."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True)
class Group:
    """Groups of layers that are alike. pages: blocks that one request of the full context takes in each of them."""

    kind: str
    layers: int
    groups: int
    block_tokens: int
    pages: int


@dataclass(frozen=True)
class Estimate:
    """Memory of one variant. Bytes of one card, or of one node where the memory is unified; None: not known.

    engine: name and version. rules: the vLLM version whose block arithmetic was followed. cards: of one node.
    weights_bytes: weights and draft in memory, of one node; weights_card_bytes: of one card.
    activation_bytes: beside weights and pool, of one node, as the recipe states it. context: max-model-len, tokens.
    draft_tokens: num_speculative_tokens. state_mode: none or align (with prefix caching).
    token_layer_bytes: keys and values of a token in an attention layer. state_layer_bytes: one state of a gated-delta
    layer. token_bytes: what a further token adds over all layers. block_tokens, page_bytes: of an attention layer.
    group_size: layers that share a block. block_bytes: one block over these. blocks_per_request, request_bytes: one
    request of the full context; request_bytes is also the smallest pool that the engine accepts.
    pool_bytes: the KV pool. pool_source: pinned (stated), derived (what the recipe's own figures leave) or unknown.
    pool_at_most_bytes: what the pool cannot exceed where it is not pinned. pool_users_bytes: the smallest pool for
    `users` requests of the full context. slot_bytes: states beside the pool (vllm-gaudi).
    blocks, tokens, concurrency: as the engine reports them. disk_bytes: to download. download_seconds: at the rate.
    utilization: gpu-memory-utilization. start_free_bytes: what must be free at start, whatever the pool.
    used_at_least_bytes: weights, pool, slots, and activations where they are stated; where profiling sizes the pool,
    what gpu-memory-utilization allows. reserve_at_most_bytes: what is then left of total_bytes for everything else.
    """

    engine: str
    rules: str | None
    accelerator: str
    nodes: int
    cards: int
    tensor_parallel: int
    total_bytes: int | None
    usable_bytes: int | None
    users: int | None
    draft_tokens: int | None
    prefix_caching: bool | None
    state_mode: str | None
    utilization: float
    context: int | None = None
    weights_bytes: int | None = None
    weights_card_bytes: int | None = None
    activation_bytes: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    token_layer_bytes: int | None = None
    state_layer_bytes: int | None = None
    token_bytes: int | None = None
    block_tokens: int | None = None
    page_bytes: int | None = None
    group_size: int | None = None
    groups: tuple[Group, ...] = ()
    block_bytes: int | None = None
    blocks_per_request: int | None = None
    request_bytes: int | None = None
    pool_bytes: int | None = None
    pool_source: str = "unknown"
    pool_at_most_bytes: int | None = None
    pool_users_bytes: int | None = None
    slot_bytes: int | None = None
    blocks: int | None = None
    tokens: int | None = None
    concurrency: float | None = None
    disk_bytes: int | None = None
    download_seconds: float | None = None
    start_free_bytes: int | None = None
    used_at_least_bytes: int | None = None
    reserve_at_most_bytes: int | None = None
    assumptions: tuple[Remark, ...] = ()
    unknown: tuple[Remark, ...] = ()


def parse_bytes(value: object) -> int:
    """A whole number as the engine's flags read it: `8G` is 8 x 2**30, `8g` is 8 x 10**9, `25.6k` is 25,600.

    Upper case is binary and takes no fraction. Raises ValueError for anything else, true and false included.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", value.strip(), re.ASCII)
        if match:
            number, unit = match.groups()
            power = "kmgt".index(unit.lower()) + 1
            unit_bytes: int = (1000 if unit.islower() else 1024) ** power
            if unit.islower():
                return int(float(number) * unit_bytes)
            if "." not in number:
                return int(number) * unit_bytes
        elif re.fullmatch(r"[+-]?\d+", value.strip(), re.ASCII):
            return int(value)
    raise ValueError(f"not a number of bytes: {value!r}; expected 8589934592, 8G (binary) or 8g (decimal)")


def bytes_text(value: int) -> str:
    """`8.00 GiB (8589934592 bytes)`."""
    return f"{value / GIB:.2f} GiB ({value} bytes)"


class _NotComputed(Exception):
    """A step of the arithmetic has no answer. `remark` says why."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.remark = Remark(name, text)


@dataclass(frozen=True)
class _Layer:
    """One layer as the cache sees it. shape: what tells two layers of one kind apart. window: 0 for none."""

    kind: str
    shape: tuple[int, ...]
    block: int
    page: int
    window: int = 0


@dataclass
class _Case:
    """One variant with its settings resolved, and what was found on the way."""

    model: Mapping[str, Any]
    variant: Mapping[str, Any]
    rules: RuleSet | None
    kv_bytes: int | None
    draft: bool
    context: int | None
    draft_tokens: int | None
    utilization: float | None
    assumptions: list[Remark] = field(default_factory=list)
    unknown: list[Remark] = field(default_factory=list)

    @property
    def arguments(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.variant.get("arguments", {})
        return found

    @property
    def accelerator(self) -> str:
        return str(self.variant["accelerator"])

    @property
    def gaudi(self) -> bool:
        return self.accelerator == "gaudi2"

    @property
    def memory(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self.variant.get("memory", {})
        return found

    def assume(self, name: str, text: str) -> None:
        if Remark(name, text) not in self.assumptions:
            self.assumptions.append(Remark(name, text))

    def environment(self, name: str) -> str:
        return str(self.variant.get("environment", {}).get(name, "")).strip()

    def switched_on(self, name: str) -> bool:
        return self.environment(name).lower() in ("1", "true")

    def flag(self, name: str) -> bool | None:
        """A switch: true, false (the --no- form), or None where it is absent."""
        value = self.arguments.get(name)
        return None if value is None else str(value).lower() not in ("false", "0", "no")

    def number(self, name: str) -> int | None:
        """An argument that is a whole number, None where it is absent. Raises _NotComputed if it is something else."""
        if name not in self.arguments:
            return None
        try:
            return parse_bytes(self.arguments[name])
        except ValueError as error:
            raise _NotComputed(name, str(error)) from None

    def positive(self, name: str, default: int) -> int:
        """The same, where a value below 1 or of another type counts as absent: other rules complain of those."""
        try:
            found = self.number(name)
        except _NotComputed as error:
            self.unknown.append(error.remark)
            return default
        return default if found is None or found < 1 else found

    def layers(self) -> list[Mapping[str, Any]]:
        geometry = self.model.get("geometry")
        if not geometry:
            raise _NotComputed("model.geometry", "the recipe does not state the layers of the model")
        found: list[Mapping[str, Any]] = list(geometry["layers"])
        if self.gaudi:
            sliding = "sliding_attention"
            return [
                {**{key: value for key, value in layer.items() if key != "window"}, "kind": "attention"}
                if layer["kind"] == sliding
                else layer
                for layer in found
            ]
        return found

    def hybrid(self) -> bool:
        kinds = {layer["kind"] for layer in self.model.get("geometry", {}).get("layers", [])}
        return "gated_delta" in kinds and len(kinds) > 1

    def prefix_caching(self) -> bool | None:
        if self.gaudi and self.switched_on("VLLM_CONTIGUOUS_PA"):
            return False
        stated = self.flag("enable-prefix-caching")
        if stated is not None:
            return stated
        if not self.hybrid():
            kinds = {layer["kind"] for layer in self.model.get("geometry", {}).get("layers", [])}
            return kinds != {"gated_delta"}
        return None if self.rules is None else self.rules.hybrid_prefix_caching


def estimate(
    model: Mapping[str, Any],
    variant: Mapping[str, Any],
    engine: Document,
    *,
    kv_bytes: int | None = None,
    draft: bool = True,
    context: int | None = None,
    draft_tokens: int | None = None,
    utilization: float | None = None,
    vllm: str | None = None,
    rate: float | None = None,
) -> Estimate:
    """The memory of one variant: `model` and `variant` as the recipe has them, `engine` the engine's manifest.

    kv_bytes: a pool of this size instead of the recipe's. draft: False leaves the draft out. context, draft_tokens,
    utilization: instead of max-model-len, num_speculative_tokens, gpu-memory-utilization. vllm: follow the rules of
    this vLLM version. rate: bytes a second of the download.
    """
    manifest = engine.data if isinstance(engine.data, Mapping) else {}
    base = manifest.get("base") or manifest
    version = vllm or str(base.get("version", ""))
    rules = RULE_SETS.get(version)
    if draft_tokens == 0:
        draft = False
    case = _Case(model, variant, rules, kv_bytes, draft, context, draft_tokens, utilization)
    if rules is None:
        known = ", ".join(RULE_SETS)
        case.unknown.append(
            Remark("engine", f"the block rules of vLLM {version or '?'} are not known, those of {known} are")
        )
    accelerator = ACCELERATORS[case.accelerator]
    cards, nodes = variant.get("count", 1), variant.get("nodes", 1)
    tensor_parallel = case.positive("tensor-parallel-size", 1)
    prefix = case.prefix_caching()
    found = Estimate(
        engine=f"{manifest.get('engine', '?')} {manifest.get('version', '?')}",
        rules=version if rules else None,
        accelerator=case.accelerator,
        nodes=nodes,
        cards=cards,
        tensor_parallel=tensor_parallel,
        total_bytes=accelerator.total,
        usable_bytes=case.memory.get("usable_bytes", accelerator.usable),
        users=case.memory.get("users"),
        draft_tokens=_draft_tokens(case),
        prefix_caching=prefix,
        state_mode=None if prefix is None or not case.hybrid() else ("align" if prefix else "none"),
        utilization=_utilization(case),
        activation_bytes=case.memory.get("activation_bytes"),
    )
    if accelerator.total is not None:
        case.assume("memory of the accelerator", f"{bytes_text(accelerator.total)}: {accelerator.source}")
    found = _batch(case, _weights(case, found, rate))
    try:
        found = _geometry(case, found)
    except _NotComputed as error:
        case.unknown.append(error.remark)
    except OverflowError:
        case.unknown.append(Remark("blocks", "the numbers are too large"))
    try:
        found = _start(case, _pool(case, found))
    except OverflowError:
        case.unknown.append(Remark("pool", "the numbers are too large"))
    return replace(found, assumptions=tuple(case.assumptions), unknown=tuple(case.unknown))


def smallest_pool(found: Estimate, users: int) -> int | None:
    """Bytes of the smallest KV pool that holds `users` requests of the full context; None where it is not known."""
    return None if found.request_bytes is None else users * found.request_bytes


def largest_context(found: Callable[[int], Estimate], limit: int) -> int:
    """The longest context, in tokens, up to `limit` whose request fits the pool; 0 if none does.

    found: the estimate for a context.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        this = found(middle)
        fits = this.request_bytes is not None and this.pool_bytes is not None and this.request_bytes <= this.pool_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _utilization(case: _Case) -> float:
    if case.utilization is not None:
        return case.utilization
    stated = case.arguments.get("gpu-memory-utilization", DEFAULT_UTILIZATION)
    found = number_of(stated)
    if found is None:
        case.unknown.append(Remark("gpu-memory-utilization", f"not a number: {stated!r}"))
        return DEFAULT_UTILIZATION
    return found


def _speculation(case: _Case) -> Mapping[str, Any]:
    stated = case.arguments.get("speculative-config")
    return stated if isinstance(stated, Mapping) and case.draft else {}


def _draft_tokens(case: _Case) -> int | None:
    """num_speculative_tokens; 0 without speculation, None where the recipe does not state it."""
    speculation = _speculation(case)
    if not speculation:
        return 0
    stated = case.draft_tokens if case.draft_tokens is not None else speculation.get("num_speculative_tokens")
    if isinstance(stated, int) and not isinstance(stated, bool) and stated >= 0:
        return stated
    return None


def _weights(case: _Case, found: Estimate, rate: float | None) -> Estimate:
    """Bytes on disk and in memory."""
    disk: int | None = 0
    for part in ("weights", "draft"):
        stated = case.variant.get(part)
        if stated is None or (part == "draft" and not case.draft):
            continue
        size = sum(item["bytes"] for item in stated["files"]) if "files" in stated else stated.get("bytes")
        if size is None:
            case.unknown.append(Remark(f"{part}.bytes", "the recipe states neither files nor bytes"))
        disk = None if disk is None or size is None else disk + size
    resident = case.memory.get("resident_bytes")
    if resident is None and disk is not None:
        resident = -(-disk // found.nodes)
        case.assume("memory.resident_bytes", f"{bytes_text(resident)} a node, the size of the files")
    elif resident is not None and not case.draft and "draft" in case.variant:
        case.assume("memory.resident_bytes", "with the draft, though this is without it")
    if resident is None:
        case.unknown.append(Remark("memory.resident_bytes", "the size of the weights is not known"))
    card = None if resident is None else -(-resident // found.cards)
    if card is not None and found.cards > 1:
        case.assume("weights of one card", f"an even share of {found.cards}")
    seconds = None if disk is None or rate is None or rate <= 0 else disk / rate
    return replace(found, disk_bytes=disk, weights_bytes=resident, weights_card_bytes=card, download_seconds=seconds)


def _batch(case: _Case, found: Estimate) -> Estimate:
    """max-num-seqs and max-num-batched-tokens, with the API server's defaults (engine/arg_utils.py)."""
    world = found.tensor_parallel * case.positive("pipeline-parallel-size", 1)
    # gb10 reports more than 70 GiB; vllm-gaudi reports 0 and gets what small cards get.
    tokens, sequences = {"gb10": (8192, 1024), "cpu": (2048 * world, 128 * world)}.get(case.accelerator, (2048, 256))
    if case.arguments.get("performance-mode") == "throughput":
        tokens, sequences = 2 * tokens, 2 * sequences
    context = case.context
    if context is None:
        try:
            context = case.number("max-model-len")
        except _NotComputed as error:
            if str(case.arguments["max-model-len"]) != "auto":
                case.unknown.append(error.remark)
                return found
            context = -1
        if context is None:
            context = case.model["context"]
            case.assume("max-model-len", f"{context}, the model's native context")
    if context < 1:
        case.unknown.append(Remark("max-model-len", "the engine chooses it by the memory that is left"))
        return found
    stated_sequences = "max-num-seqs" in case.arguments
    sequences = case.positive("max-num-seqs", sequences)
    if "max-num-batched-tokens" in case.arguments:
        tokens = case.positive("max-num-batched-tokens", tokens)
    else:
        if case.flag("enable-chunked-prefill") is False:
            tokens = max(tokens, context)
        tokens = min(tokens, sequences * context)
        case.assume("max-num-batched-tokens", f"{tokens}, the engine's default")
    if not stated_sequences:
        sequences = min(sequences, tokens)
        case.assume("max-num-seqs", f"{sequences}, the engine's default")
    return replace(found, context=context, max_num_seqs=sequences, max_num_batched_tokens=tokens)


def _size(case: _Case, argument: str, automatic: int) -> int:
    """Bytes of an element for a flag that names a number format."""
    stated = str(case.arguments.get(argument, "auto"))
    if stated == "auto":
        return automatic
    if stated not in DTYPE_BYTES:
        raise _NotComputed(argument, f"how {stated} is laid out in the pool is not modelled")
    return DTYPE_BYTES[stated]


def _sizes(case: _Case) -> tuple[int, int, int]:
    """Bytes of an element of the KV cache, of a convolution window, of a state matrix."""
    model = _size(case, "dtype", 2)
    if str(case.arguments.get("dtype", "auto")) == "auto":
        case.assume("dtype", "2 bytes an element (bfloat16 or float16)")
    if case.gaudi and model != 2:
        model = 2  # The plug-in serves everything in bfloat16.
    cache = model if case.arguments.get("kv-cache-dtype") == "fp8_ds_mla" else _size(case, "kv-cache-dtype", model)
    if str(case.arguments.get("kv-cache-dtype", "auto")) == "auto":
        case.assume("kv-cache-dtype", "that of the model; a checkpoint with scales for the KV cache would be fp8")
    window = _size(case, "mamba-cache-dtype", model)
    matrix = _size(case, "mamba-ssm-cache-dtype", window)
    if any(layer["kind"] == "gated_delta" for layer in case.layers()):
        if str(case.arguments.get("mamba-ssm-cache-dtype", "auto")) == "auto":
            if case.model["architecture"].startswith("qwen3_5"):
                # The engine takes mamba_ssm_dtype from the checkpoint of this family; published ones say float32.
                matrix = 4
                case.assume("mamba-ssm-cache-dtype", "float32, from mamba_ssm_dtype of the checkpoint's config.json")
            else:
                case.assume("mamba-ssm-cache-dtype", "that of the convolution window")
        if case.accelerator == "cpu" and matrix != 4:
            case.assume("mamba-ssm-cache-dtype", "the host has no AMX; with AMX the engine takes float32")
    return cache, window, matrix


def token_bytes(layer: Mapping[str, Any], tensor_parallel: int, element: int, packed: bool = False) -> int:
    """Bytes of one token in one attention layer on one rank. packed: the layout fp8_ds_mla."""
    if layer["kind"] == "latent_attention":
        if packed:
            if (layer["latent"], layer["rope"]) != (512, 64):
                raise _NotComputed("kv-cache-dtype", "fp8_ds_mla holds a latent of 512 and 64 rotary elements only")
            return 656
        return int(layer["latent"] + layer["rope"]) * element
    heads: int = max(1, layer["kv_heads"] // tensor_parallel)
    return 2 * heads * int(layer["head_size"]) * element


def state_bytes(layer: Mapping[str, Any], tensor_parallel: int, draft_tokens: int, window: int, matrix: int) -> int:
    """Bytes of one state of a gated-delta layer on one rank: convolution window and matrix."""
    channels = 2 * layer["key_heads"] * layer["key_head_size"] + layer["value_heads"] * layer["value_head_size"]
    if layer["value_heads"] % tensor_parallel or channels % tensor_parallel:
        raise _NotComputed(
            "tensor-parallel-size",
            f"{tensor_parallel} does not divide the {layer['value_heads']} value heads and {channels} channels of a "
            "gated-delta layer",
        )
    rows = layer["convolution"] - 1 + draft_tokens
    heads = layer["value_heads"] // tensor_parallel
    size: int = channels // tensor_parallel * rows * window
    return size + int(heads * layer["value_head_size"] * layer["key_head_size"]) * matrix


def _first_block(case: _Case, latent: bool) -> tuple[int, int]:
    """The block before a hybrid grows it, and the kernel's smallest block, in tokens."""
    stated = case.number("block-size")
    if stated is not None and stated < 1:
        raise _NotComputed("block-size", f"not a block: {stated}")
    smallest = 128 if case.gaudi and latent else 16
    if case.accelerator == "cpu" and latent:
        if case.rules is not None and case.rules.version != "0.28.0":
            raise _NotComputed("model.geometry", "latent attention on a CPU was read in vLLM 0.28.0 only")
        return 16, smallest
    if stated is not None:
        if case.gaudi and case.hybrid() and case.model["architecture"].startswith("qwen3_5"):
            stated = 128
        return stated, smallest
    block = {"gb10": 16, "gaudi2": 128, "cpu": 128}[case.accelerator]
    if latent and case.accelerator == "gb10":
        case.assume("block-size", "16: the Triton kernels for latent attention, the only ones for this GPU")
    return block, smallest


def _draft_layers(case: _Case, layers: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The draft's own layers that keep a KV cache."""
    speculation = _speculation(case)
    if not speculation:
        return []
    method = str(speculation.get("method", ""))
    if method in WITHOUT_LAYERS:
        return []
    stated = case.variant.get("draft", {}).get("geometry")
    if stated:
        return list(stated["layers"])
    if method == "mtp" or method.endswith("_mtp"):
        own = next((layer for layer in layers if layer["kind"] != "gated_delta"), None)
        if own is not None:
            case.assume("layers of the MTP head", "one, with attention like the model's")
            return [{**own, "count": 1}]
    raise _NotComputed("draft.geometry", "the recipe does not state the layers of the draft")


def _geometry(case: _Case, found: Estimate) -> Estimate:
    """Pages, groups and blocks."""
    rules = case.rules
    if rules is None:
        raise _NotComputed("blocks", "the rules of this engine version are not known")
    for name, text in NOT_MODELLED.items():
        if name in case.arguments:
            raise _NotComputed(name, text)
    for name in PARALLEL:
        if case.positive(name, 1) > 1:
            raise _NotComputed(name, "how the pool is divided over its ranks is not modelled")
    layers = case.layers()
    if found.draft_tokens is None:
        raise _NotComputed("num_speculative_tokens", "the recipe does not state it")
    cache, window, matrix = _sizes(case)
    packed = case.arguments.get("kv-cache-dtype") == "fp8_ds_mla"
    ranks = found.tensor_parallel
    attention = [layer for layer in layers if layer["kind"] != "gated_delta"]
    states = [layer for layer in layers if layer["kind"] == "gated_delta"]
    latent = any(layer["kind"] == "latent_attention" for layer in attention)
    block, smallest = _first_block(case, latent)
    state = max((state_bytes(layer, ranks, found.draft_tokens, window, matrix) for layer in states), default=None)
    first = token_bytes(attention[0], ranks, cache, packed) if attention else None
    if state is not None and first is not None:
        if len({token_bytes(layer, ranks, cache, packed) for layer in attention}) > 1:
            raise _NotComputed("model.geometry", "attention layers of two sizes beside states are not modelled")
        step = max(smallest, block)
        if latent:
            step = max(step, rules.latent_hybrid_multiple)
        block = max(block, step * -(-state // (step * first)))
    counted: dict[_Layer, int] = {}

    def add(layer: _Layer, count: int) -> None:
        counted[layer] = counted.get(layer, 0) + count

    def add_attention(entries: list[Mapping[str, Any]], parallel: int) -> int:
        total = 0
        for entry in entries:
            size = token_bytes(entry, parallel, cache, packed)
            sliding = entry["kind"] == "sliding_attention"
            tokens = smallest if sliding and rules.sliding_block_is_smallest else block
            shape = (
                (entry["latent"], entry["rope"])
                if entry["kind"] == "latent_attention"
                else (max(1, entry["kv_heads"] // parallel), entry["head_size"])
            )
            add(_Layer(entry["kind"], shape, tokens, tokens * size, entry.get("window", 0)), entry["count"])
            total += 0 if sliding else size * entry["count"]
        return total

    growth = add_attention(attention, ranks)
    drafts = _draft_layers(case, layers)
    if any(layer["kind"] == "gated_delta" for layer in drafts):
        raise _NotComputed("draft.geometry", "a draft with gated-delta layers is not modelled")
    own = _speculation(case).get("draft_tensor_parallel_size")
    growth += add_attention(drafts, own if isinstance(own, int) and own > 0 else ranks)
    for layer in states:
        size = state_bytes(layer, ranks, found.draft_tokens, window, matrix)
        page = size if first is None else max(size, block * first)
        add(
            _Layer("gated_delta", tuple(layer[key] for key in sorted(layer) if key not in ("kind", "count")), 0, page),
            layer["count"],
        )
    counted = _without_windows(case, counted, rules)
    group_size, block_bytes, plan = _groups(case, counted, rules)
    context = found.context
    if context is None:
        raise _NotComputed("max-model-len", "not known")
    kept = found.draft_tokens + (2 if found.prefix_caching else 1)
    groups = []
    for alike, count, number in plan:
        if alike.kind == "gated_delta":
            pages = kept
        elif alike.kind == "sliding_attention":
            pages = -(-min(alike.window - 1 + _in_flight(case, found, rules), context) // alike.block) + 1
        else:
            pages = -(-context // alike.block)
        groups.append(Group(alike.kind, count, number, alike.block, pages))
    # One group of layers that differ in size takes as many pages as the layer that needs most.
    blocks = (
        max(group.pages for group in groups)
        if _one_group(plan)
        else sum(group.pages * group.groups for group in groups)
    )
    widest = next((layer for layer, _bytes, _number in plan if layer.kind != "gated_delta"), None)
    slots = None
    if case.gaudi and state is not None and _compact(case):
        # One set of slots for each tensor that a layer of every group shares.
        number = sum(group.groups for group in groups if group.kind == "gated_delta")
        sequences = found.max_num_seqs or 0
        slots = group_size * (sequences * number + 2) * state
    return replace(
        found,
        token_layer_bytes=first,
        state_layer_bytes=state,
        token_bytes=growth,
        block_tokens=None if widest is None else widest.block,
        page_bytes=plan[0][0].page if widest is None else widest.page,
        group_size=group_size,
        groups=tuple(groups),
        block_bytes=block_bytes,
        blocks_per_request=blocks,
        request_bytes=blocks * block_bytes,
        slot_bytes=slots,
    )


def _compact(case: _Case) -> bool:
    """Whether vllm-gaudi keeps states in slots. Its worker takes an unset variable as off, its runner sets it to on."""
    if not case.environment("VLLM_COMPACT_GDN"):
        case.assume("VLLM_COMPACT_GDN", "1, which the plug-in sets itself")
        return True
    return case.switched_on("VLLM_COMPACT_GDN")


def _in_flight(case: _Case, found: Estimate, rules: RuleSet) -> int:
    """Tokens scheduled and not yet settled, whose blocks a sliding window keeps."""
    tokens = found.max_num_batched_tokens or 0
    if not rules.sliding_counts_every_batch:
        return tokens
    asynchronous = case.flag("async-scheduling")
    if case.accelerator == "cpu":
        asynchronous = False
    elif asynchronous is None:
        method = str(_speculation(case).get("method", "eagle3"))
        asynchronous = method in ASYNCHRONOUS or method.endswith("_mtp")
        case.assume("async-scheduling", "on, the engine's default" if asynchronous else "off with this kind of draft")
    return tokens * (2 if asynchronous else 1)


def _without_windows(case: _Case, counted: dict[_Layer, int], rules: RuleSet) -> dict[_Layer, int]:
    """--disable-hybrid-kv-cache-manager: sliding windows are cached like full attention, all in one group."""
    name = "disable-hybrid-kv-cache-manager"
    if not case.flag(name) or _one_type(counted):
        return counted
    full = [layer for layer in counted if layer.kind in ("attention", "latent_attention")]
    if any(layer.kind == "gated_delta" for layer in counted) or not full:
        raise _NotComputed(name, "the engine refuses it for layers of these kinds")
    if len({layer.window for layer in counted} - {0}) > 1:
        raise _NotComputed(name, "the engine refuses it for windows of different sizes")
    merged: dict[_Layer, int] = {}
    for layer, count in counted.items():
        like = layer
        if layer.kind == "sliding_attention":
            tokens = full[0].block if rules.window_takes_block else layer.block
            like = _Layer("attention", layer.shape, tokens, layer.page // layer.block * tokens)
        merged[like] = merged.get(like, 0) + count
    if not _one_type(merged):
        raise _NotComputed(name, f"vLLM {rules.version} refuses it where blocks differ")
    return merged


def _one_type(counted: Mapping[_Layer, int]) -> bool:
    """Whether all layers always need the same number of blocks."""
    kinds = {"attention" if layer.kind == "latent_attention" else layer.kind for layer in counted}
    return len(kinds) == 1 and len({(layer.block, layer.window) for layer in counted}) == 1


def _one_group(plan: list[tuple[_Layer, int, int]]) -> bool:
    return sum(number for _layer, _bytes, number in plan) == 1


def _groups(case: _Case, counted: dict[_Layer, int], rules: RuleSet) -> tuple[int, int, list[tuple[_Layer, int, int]]]:
    """Group size, bytes of a block, and of each kind of layer: itself, its layers, its groups."""
    if _one_type(counted):
        layers = sum(counted.values())
        widest = max(counted, key=lambda layer: layer.page)
        return layers, sum(layer.page * count for layer, count in counted.items()), [(widest, layers, 1)]
    page = max(layer.page for layer in counted)
    unified: dict[_Layer, int] = {}
    for layer, count in counted.items():
        if layer.page != page:
            if layer.kind == "gated_delta":
                if not rules.pads_states:
                    raise _NotComputed(
                        "draft.geometry", f"vLLM {rules.version} refuses a draft whose page is above a state"
                    )
                layer = replace(layer, page=page)
            elif page % layer.page == 0:
                layer = replace(layer, block=layer.block * (page // layer.page), page=page)
            else:
                raise _NotComputed("model.geometry", "pages of these layers are no multiples of each other")
        unified[layer] = unified.get(layer, 0) + count
    fewest, most = min(unified.values()), max(unified.values())
    size = most if most < fewest * 1.5 else fewest
    return size, size * page, [(layer, count, -(-count // size)) for layer, count in unified.items()]


def _pinned(case: _Case) -> tuple[int | None, str]:
    """The pool that the recipe states, and how it is called."""
    if case.kv_bytes is not None:
        return case.kv_bytes, "kv_bytes"
    if case.accelerator == "cpu" and case.environment("VLLM_CPU_KVCACHE_SPACE"):
        stated = case.environment("VLLM_CPU_KVCACHE_SPACE")
        if re.fullmatch(r"\d+", stated, re.ASCII):
            return int(stated) * GIB, "VLLM_CPU_KVCACHE_SPACE"
        case.unknown.append(Remark("VLLM_CPU_KVCACHE_SPACE", f"not a whole number of GiB: {stated}"))
        return None, ""
    if case.gaudi:
        return None, ""  # The plug-in does not read kv-cache-memory-bytes.
    try:
        return case.number("kv-cache-memory-bytes"), "kv-cache-memory-bytes"
    except _NotComputed as error:
        case.unknown.append(error.remark)
        return None, ""


def _left(case: _Case, found: Estimate) -> int | None:
    """What profiling leaves for the pool if the engine needed nothing but the weights; None where that is not known."""
    if found.total_bytes is None:
        return None
    if not case.gaudi:
        weights = found.weights_bytes
        return None if weights is None else math.ceil(found.total_bytes * found.utilization) - weights
    if found.weights_card_bytes is None:
        return None
    reserved = number_of(case.environment("VLLM_GRAPH_RESERVED_MEM") or 0.1)
    if reserved is None:
        reserved = 0.1
    if case.flag("enforce-eager"):
        reserved = 0.0
    free = found.total_bytes - found.weights_card_bytes
    return int(free * found.utilization * (1 - reserved))


def _pool(case: _Case, found: Estimate) -> Estimate:
    """The pool and what it holds."""
    pool, name = _pinned(case)
    source, at_most = "unknown", None
    if pool is not None and pool >= 1:
        source = "pinned"
        if name != "kv-cache-memory-bytes":
            case.assume("pool", f"{bytes_text(pool)} by {name}")
    else:
        pool = None
        at_most = _left(case, found)
        if at_most is None:
            reason = (
                "it is what the host has left" if case.accelerator == "cpu" else "the size of the weights is not known"
            )
            case.unknown.append(Remark("pool", f"not pinned: {reason}"))
        elif found.activation_bytes is not None and not case.gaudi:
            pool, source = at_most - found.activation_bytes, "derived"
            case.assume("pool", "what gpu-memory-utilization leaves beside the recipe's resident and activation bytes")
            if pool < 1:
                pool, source = None, "unknown"
                case.unknown.append(Remark("pool", "weights and activations leave nothing"))
        else:
            case.unknown.append(
                Remark("pool", "not pinned: profiling finds it on the host; pool_at_most_bytes bounds it")
            )
    if case.gaudi and source == "unknown" and at_most is not None and found.state_layer_bytes and not _compact(case):
        case.assume(
            "VLLM_COMPACT_GDN", "off: the plug-in divides the memory over states and pages, the bound is higher"
        )
    blocks = tokens = concurrency = None
    if pool is not None and found.block_bytes and found.blocks_per_request:
        override = case.positive("num-gpu-blocks-override", 0) if "num-gpu-blocks-override" in case.arguments else 0
        blocks = override or pool // found.block_bytes
        concurrency = blocks / found.blocks_per_request
        # Rounded as the engine rounds it.
        tokens = int(concurrency * (found.context or 0))
    users = None if found.users is None else smallest_pool(found, found.users)
    return replace(
        found,
        pool_bytes=pool,
        pool_source=source,
        pool_at_most_bytes=at_most,
        pool_users_bytes=users,
        blocks=blocks,
        tokens=tokens,
        concurrency=concurrency,
    )


def _start(case: _Case, found: Estimate) -> Estimate:
    """What must be free at start, what is used then, what is left."""
    free = None
    if case.accelerator == "gb10" and found.total_bytes is not None:
        free = math.ceil(found.total_bytes * found.utilization)
    elif case.accelerator == "cpu" and found.pool_source != "pinned":
        case.unknown.append(Remark("start_free_bytes", f"{found.utilization} of the host's memory"))
    shared = ACCELERATORS[case.accelerator].unified
    weights = found.weights_bytes if shared else found.weights_card_bytes
    used = None
    if weights is not None and found.pool_bytes is not None:
        activation = found.activation_bytes
        if activation is None:
            case.unknown.append(Remark("memory.activation_bytes", "not stated; used_at_least_bytes is without it"))
        share = 0 if activation is None else (activation if shared else -(-activation // found.cards))
        used = weights + found.pool_bytes + share + (found.slot_bytes or 0)
    elif free is not None and found.pool_source == "unknown":
        # Profiling takes all that gpu-memory-utilization allows.
        used = free
    reserve = None if used is None or found.total_bytes is None else found.total_bytes - used
    return replace(found, start_free_bytes=free, used_at_least_bytes=used, reserve_at_most_bytes=reserve)


def _subject(subject: Subject, **settings: Any) -> Estimate:
    # Nine rules ask, most of them for the same one.
    key = ("memory", *sorted(settings.items()))
    return subject.once(key, lambda: estimate(subject.model, subject.variant, subject.engine, **settings))


def _exact(subject: Subject, pool: int) -> str:
    """The longest context that a pool holds, as advice."""
    limit = _subject(subject).context or 0
    longest = largest_context(lambda context: _subject(subject, kv_bytes=pool, context=context), limit)
    return f"max-model-len: {longest}" if longest else "a pool that holds a request, or a smaller model"


def _fits(subject: Subject) -> Iterator[Problem]:
    found = _subject(subject)
    shared = ACCELERATORS[found.accelerator].unified
    weights = found.weights_bytes if shared else found.weights_card_bytes
    limit = found.usable_bytes or found.total_bytes
    if limit is None or weights is None:
        return
    # Where profiling sizes the pool it takes what is left, but at least one request must fit.
    pool = found.pool_bytes if found.pool_source == "pinned" else found.request_bytes
    activation = 0 if found.activation_bytes is None else found.activation_bytes // (1 if shared else found.cards)
    needed = weights + (pool or 0) + activation + (found.slot_bytes or 0)
    if needed > limit:
        unit = "node" if shared else "card"
        yield Problem(
            subject.place("memory") if subject.variant.get("memory") else subject.place("weights"),
            f"does not fit into the memory of one {unit}",
            f"{bytes_text(needed)}: weights {bytes_text(weights)}, KV pool {bytes_text(pool or 0)}, activations "
            f"{bytes_text(activation)}" + (f", states {bytes_text(found.slot_bytes)}" if found.slot_bytes else ""),
            f"at most {bytes_text(limit)} ({ACCELERATORS[found.accelerator].source})",
            "shorten max-model-len, lower max-num-seqs, pin a smaller KV pool, or take a smaller quantization",
        )


def _host_memory(subject: Subject) -> Iterator[Problem]:
    found = _subject(subject)
    stated = subject.variant["host"]["memory_bytes"]
    place = subject.place("host", "memory_bytes")
    if not ACCELERATORS[found.accelerator].unified:
        return
    if found.total_bytes is not None and stated > found.total_bytes:
        todo = "state what the running server needs; this accelerator's hosts do not have more"
        yield Problem(
            place, "more than a host has", bytes_text(stated), f"at most {bytes_text(found.total_bytes)}", todo
        )
    if found.used_at_least_bytes is not None and stated < found.used_at_least_bytes:
        yield Problem(
            place,
            "less than the server takes",
            bytes_text(stated),
            f"at least {bytes_text(found.used_at_least_bytes)}: weights, KV pool and activations",
            "state what the running server needs, so that a smaller host is refused before anything is installed",
        )


def _start_inequality(subject: Subject) -> Iterator[Problem]:
    if subject.variant["accelerator"] != "gb10":
        return
    found = _subject(subject)
    stated = "gpu-memory-utilization" in subject.arguments
    if found.start_free_bytes is None or (stated and found.utilization <= HIGHEST_UTILIZATION):
        return
    value = f"{found.utilization}" if stated else f"{found.utilization}, the engine's default"
    yield Problem(
        subject.place("arguments", *(["gpu-memory-utilization"] if stated else [])),
        "gpu-memory-utilization is too high for memory that the host shares",
        f"{value}: the engine refuses to start unless {bytes_text(found.start_free_bytes)} are free, "
        "even with a pinned KV pool",
        f"at most {HIGHEST_UTILIZATION}",
        f"gpu-memory-utilization: {HIGHEST_UTILIZATION} or less; more room comes from a shorter max-model-len or a "
        "lower max-num-seqs",
    )


def _below_one(subject: Subject) -> Iterator[Problem]:
    found = _subject(subject)
    pool = found.pool_bytes if found.pool_bytes is not None else found.pool_at_most_bytes
    if found.request_bytes is None or pool is None or pool >= found.request_bytes:
        return
    pinned = found.pool_source == "pinned"
    name = "kv-cache-memory-bytes" if pinned else "max-model-len"
    yield Problem(
        subject.place("arguments", *([name] if name in subject.arguments else [])),
        "the KV pool cannot hold one request of the full context",
        f"{'' if pinned else 'at most '}{bytes_text(max(pool, 0))}",
        f"at least {bytes_text(found.request_bytes)} for {found.context} tokens",
        (f"kv-cache-memory-bytes: {found.request_bytes} or more, or " if pinned else "")
        + _exact(subject, max(pool, 0)),
    )


def _oversized(subject: Subject) -> Iterator[Problem]:
    found = _subject(subject)
    pool, pinned = found.pool_bytes, found.pool_source == "pinned"
    if pool is None and found.accelerator == "gb10":
        pool = found.pool_at_most_bytes
    if found.users is None or not found.request_bytes or pool is None or found.pool_users_bytes is None:
        return
    if pool <= OVERSIZED * found.pool_users_bytes:
        return
    name = "kv-cache-memory-bytes"
    yield Problem(
        subject.place("arguments", *([name] if name in subject.arguments else [])),
        f"the KV pool is far larger than {found.users} request(s) of the full context need",
        f"{'' if pinned else 'up to '}{bytes_text(pool)}, {pool / found.request_bytes:.2f} requests of "
        f"{found.context} tokens",
        f"at least {bytes_text(found.pool_users_bytes)}",
        "VLLM_CPU_KVCACHE_SPACE: a smaller number"
        if found.accelerator == "cpu"
        else f"{name}: {-(-found.pool_users_bytes // GIB)}G; the rest is memory that these users cannot use",
    )


def _batch_below_block(subject: Subject) -> Iterator[Problem]:
    found = _subject(subject)
    rules = RULE_SETS.get(found.rules or "")
    tokens, block = found.max_num_batched_tokens, found.block_tokens
    if rules is None or not rules.align_block_within_batch or found.state_mode != "align":
        return
    if tokens is None or block is None or tokens >= block:
        return
    name = "max-num-batched-tokens"
    yield Problem(
        subject.place("arguments", *([name] if name in subject.arguments else [])),
        "fewer tokens a step than a KV block holds: with prefix caching a prompt could never be scheduled",
        f"{name} {tokens}",
        f"at least {block}, the block of this model",
        f"{name}: {block} or more",
    )


def _default_sequences(subject: Subject) -> Iterator[Problem]:
    if subject.variant["accelerator"] == "gb10" and "max-num-seqs" not in subject.arguments:
        yield Problem(
            subject.place("arguments"),
            "max-num-seqs is left to the engine",
            "1024 requests at once, the default for 70 GiB and more",
            "the number of requests this variant is meant for",
            "state max-num-seqs",
        )


def _pool_ignored(subject: Subject) -> Iterator[Problem]:
    name, variable = "kv-cache-memory-bytes", "VLLM_CPU_KVCACHE_SPACE"
    if name not in subject.arguments:
        return
    accelerator = subject.variant["accelerator"]
    if accelerator == "gaudi2":
        yield Problem(
            subject.place("arguments", name),
            "the plug-in does not read this flag: profiling sizes the KV pool",
            str(subject.arguments[name]),
            "no such argument",
            "remove it; num-gpu-blocks-override pins the number of blocks",
        )
    elif accelerator == "cpu" and subject.environment.get(variable):
        yield Problem(
            subject.place("arguments", name),
            f"{variable} takes precedence over this flag",
            f"{name} {subject.arguments[name]} and {variable} {subject.environment[variable]}",
            "one of the two",
            "remove one of them",
        )


def _divides(subject: Subject) -> Iterator[Problem]:
    ranks = _subject(subject).tensor_parallel
    for index, layer in enumerate(subject.model.get("geometry", {}).get("layers", [])):
        wrong = ""
        if layer["kind"] == "gated_delta":
            try:
                state_bytes(layer, ranks, 0, 2, 2)
            except _NotComputed as error:
                wrong = error.remark.text
        elif "kv_heads" in layer and layer["kv_heads"] % ranks and ranks % layer["kv_heads"]:
            wrong = (
                f"{ranks} neither divides the {layer['kv_heads']} key-value heads of a layer nor is a multiple of them"
            )
        if wrong:
            yield Problem(
                subject.place("arguments", "tensor-parallel-size"),
                f"cannot divide the model (model.geometry.layers[{index}])",
                wrong,
                "a number that divides the heads",
                "choose another tensor-parallel-size",
            )


def _attainable(found: Estimate, tokens: int) -> bool:
    """Whether some whole number of blocks gives this number of tokens."""
    if not found.blocks_per_request or not found.context:
        return True
    near = tokens * found.blocks_per_request // found.context
    return any(
        int(blocks / found.blocks_per_request * found.context) == tokens for blocks in range(max(near - 1, 0), near + 3)
    )


def _at(subject: Subject, at: Mapping[str, Any]) -> Estimate:
    """The estimate at a figure's own settings."""
    # A figure of an engine that was left to profile its pool says which utilization, but no size.
    profiled = "gpu_memory_utilization" in at and "kv_bytes" not in at
    found = _subject(
        subject,
        kv_bytes=at.get("kv_bytes"),
        context=at.get("context"),
        draft_tokens=at.get("draft_tokens"),
        utilization=at.get("gpu_memory_utilization"),
        vllm=at.get("engine"),
    )
    if profiled or found.pool_source != "pinned":
        return replace(found, tokens=None, concurrency=None, pool_bytes=None)
    return found


def _unreachable(found: Estimate, key: str, value: float) -> str:
    """What the arithmetic gives where a check for this value cannot pass; empty where it can, or is not known."""
    if key == "block":
        # What is cached is whole blocks; the check demands a multiple.
        passes = found.block_tokens is None or (value >= 1 and found.block_tokens % value == 0)
        return "" if passes else f"{found.block_tokens} tokens, or a number that divides them"
    if found.pool_source != "pinned":
        return ""
    most = found.tokens if key == "tokens" else found.concurrency
    return "" if most is None or value <= most else f"at most {most if key == 'tokens' else f'{most:.4f}'}"


def _contradiction(found: Estimate, metric: str, value: float) -> str:
    """What the arithmetic gives where it is not this value; empty where it agrees or does not know."""
    if metric == "kv_block_tokens":
        return "" if found.block_tokens in (None, value) else f"{found.block_tokens} tokens"
    if metric == "kv_pool_tokens":
        if found.tokens is not None:
            return "" if found.tokens == value else f"{found.tokens} tokens"
        if value != int(value) or not _attainable(found, int(value)):
            return (
                f"a number that whole blocks give: {found.blocks_per_request} blocks hold a request of {found.context} "
                "tokens"
            )
    if metric == "concurrency" and found.concurrency is not None:
        # People write as many digits as the engine printed, or fewer.
        digits = len(repr(value).partition(".")[2])
        return "" if round(found.concurrency, digits) == value else f"{found.concurrency:.4f}"
    return ""


def _figures(subject: Subject) -> Iterator[Problem]:
    metrics = ("kv_pool_tokens", "concurrency", "kv_block_tokens")
    keys = {"kv_pool": ("tokens", "concurrency"), "prefix_cache": ("block",)}
    wrong: list[tuple[tuple[str | int, ...], str, float, str, Estimate]] = []
    for index, figure in enumerate(subject.variant.get("figures", [])):
        if figure["metric"] in metrics and figure.get("tolerance", {}).get("exact") and "value" in figure:
            found = _at(subject, figure.get("at", {}))
            expected = _contradiction(found, figure["metric"], figure["value"])
            wrong.append((("figures", index, "value"), figure["metric"], figure["value"], expected, found))
    for index, check in enumerate(subject.variant["checks"]):
        for key in keys.get(check["check"], ()):
            value = check.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found = _subject(subject)
                expected = _unreachable(found, key, value)
                wrong.append((("checks", index, key), f"{check['check']}.{key}", value, expected, found))
    for place, name, value, expected, found in wrong:
        if expected:
            names = [remark.name for remark in found.assumptions if remark.name in OF_THE_BLOCKS]
            assumed = ", ".join(names) or "nothing"
            yield Problem(
                subject.place(*place),
                f"the block arithmetic of vLLM {found.rules} contradicts this {name}",
                f"{value}",
                f"{expected} (assumed: {assumed})",
                "correct the number, or the settings and the geometry that it was measured with",
            )


_VLLM = "vLLM 0.24.0 to 0.28.0, "

RULES: tuple[Rule, ...] = (
    Rule(
        "memory-does-not-fit",
        "error",
        "Weights, KV pool and activations fit into the memory of the accelerator, with a reserve for the system.",
        "vllm-project/vllm issues 35313, 35920, 46307 and 46932: on unified memory the host stops answering instead",
        _fits,
    ),
    Rule(
        "host-memory-understated",
        "error",
        "host.memory_bytes of unified memory covers what the server takes, and no more than a host has.",
        "vllm-project/vllm issue 48140: a start that other programs' memory made impossible",
        _host_memory,
    ),
    Rule(
        "start-inequality",
        "error",
        "On unified memory gpu-memory-utilization is stated and at most 0.85.",
        _VLLM + "v1/worker/utils.py, request_memory: free < total x utilization stops the start, pinned pool or not; "
        "eugr/spark-vllm-docker issue 388: 0.90 made a Spark reboot",
        _start_inequality,
    ),
    Rule(
        "kv-pool-below-one-request",
        "error",
        "The KV pool holds at least one request of max-model-len.",
        _VLLM + "v1/core/kv_cache_utils.py, _check_enough_kv_cache_memory: the engine refuses to start",
        _below_one,
    ),
    Rule(
        "kv-pool-oversized",
        "warning",
        "The KV pool is no more than twice what memory.users requests of the full context need.",
        "the Spark page: every multiple above 1.0 is memory bought and not used",
        _oversized,
    ),
    Rule(
        "batched-tokens-below-block",
        "error",
        "With prefix caching in a hybrid, max-num-batched-tokens is at least one KV block.",
        "vLLM 0.24.0 to 0.26.0, config/vllm.py, mode align: block_size must be <= max_num_batched_tokens",
        _batch_below_block,
    ),
    Rule(
        "default-max-num-seqs",
        "note",
        "On gb10 max-num-seqs is stated.",
        _VLLM + "engine/arg_utils.py, get_batch_defaults: 1,024 for devices of 70 GiB and more",
        _default_sequences,
    ),
    Rule(
        "kv-pool-flag-ignored",
        "warning",
        "kv-cache-memory-bytes stands only where the engine reads it.",
        "vllm-gaudi 0.26.0, v1/worker/hpu_worker.py, determine_available_memory; " + _VLLM + "platforms/cpu.py",
        _pool_ignored,
    ),
    Rule(
        "tensor-parallel-divides",
        "error",
        "tensor-parallel-size divides the heads and channels of the model.",
        _VLLM + "model_executor/layers/mamba/mamba_utils.py, gated_delta_net_state_shape; config/model.py",
        _divides,
    ),
    Rule(
        "figure-kv-tokens",
        "error",
        "Exact figures and checks of KV tokens, concurrency and block are those of the engine's own arithmetic.",
        _VLLM + "v1/core/kv_cache_utils.py, get_kv_cache_capacity",
        _figures,
    ),
)
