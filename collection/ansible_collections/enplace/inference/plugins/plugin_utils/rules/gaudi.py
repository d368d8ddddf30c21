# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of Gaudi 2 and vllm-gaudi: what its release does, from its source and from those who ran it."""

from __future__ import annotations

from collections.abc import Iterator

from ..lint import Subject, number_of
from ..recipe import Problem
from .common import (
    GAUDI2_CARD_BYTES,
    Catalogue,
    checks,
    context_of,
    engine_name,
    engine_version,
    gated_delta,
    on,
    prefix_caching,
    size_of,
    text_of,
    tokens_of,
    truthy,
    version_of,
    weights_bytes,
)
from .fixes import applied, pack_for

catalogue = Catalogue()

LONG_CONTEXT = 262_144
# The release of the Gaudi software that each release of the plug-in was built and tested with; one to one, no ranges.
GAUDI_SOFTWARE: dict[tuple[int, ...], str] = {
    (0, 17): "1.24.0",
    (0, 18): "1.24.0",
    (0, 19): "1.24.0",
    (0, 20): "1.24.0",
    (0, 21): "1.24.0",
    (0, 24): "1.24.1",
    (0, 26): "1.24.1",
}
# vLLM's default for VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, and what compiling the first shapes takes at least.
DEFAULT_TIMEOUT_S = 300
MIN_TIMEOUT_S = 600
KERNEL_BLOCK = 128


def on_gaudi(subject: Subject) -> bool:
    """Whether the variant is served by vllm-gaudi."""
    return engine_name(subject) == "vllm-gaudi"


@catalogue.rule(
    "gaudi-lazy-mode",
    "error",
    "PT_HPU_LAZY_MODE is 0: the compile mode is the one that is supported and verified.",
    "the Gaudi page, What not to do; vllm-gaudi 0.26.0 deprecates lazy mode",
)
def lazy_mode(subject: Subject) -> Iterator[Problem]:
    value = subject.environment.get("PT_HPU_LAZY_MODE")
    if on_gaudi(subject) and value is not None and value.strip() != "0":
        yield Problem(
            subject.place("environment", "PT_HPU_LAZY_MODE"),
            "turns on lazy mode, which is deprecated and corrupts int64 ids and seeded sampling",
            value,
            '"0"',
            'set PT_HPU_LAZY_MODE: "0"',
        )


@catalogue.rule(
    "gaudi-hybrid-cache-by-hand",
    "error",
    "VLLM_USE_HYBRID_CACHE is not set by hand for a Gated DeltaNet model.",
    "the Gaudi page, What not to do; vllm-gaudi 0.26.0 hpu_model_runner.py enables it on its own",
)
def hybrid_cache(subject: Subject) -> Iterator[Problem]:
    value = subject.environment.get("VLLM_USE_HYBRID_CACHE")
    if on_gaudi(subject) and gated_delta(subject) and value is not None:
        yield Problem(
            subject.place("environment", "VLLM_USE_HYBRID_CACHE"),
            "is set by hand; the engine enables the hybrid cache for Gated DeltaNet models on its own",
            value,
            "not set",
            "remove the variable",
        )


@catalogue.rule(
    "gaudi-tp2-long-context",
    "error",
    "A 256K configuration on Gaudi 2 does not leave more than half of its cards' memory to the weights at TP 2.",
    "the Gaudi page, What not to do",
)
def tensor_parallel_2(subject: Subject) -> Iterator[Problem]:
    size = size_of(subject, "tensor-parallel-size")
    context = context_of(subject)
    weights = weights_bytes(subject.variant["weights"]) or 2 * subject.model["parameters"]
    if (
        subject.variant["accelerator"] == "gaudi2"
        and size <= 2
        and context is not None
        and context >= LONG_CONTEXT
        and 2 * weights > size * GAUDI2_CARD_BYTES
    ):
        yield Problem(
            subject.place("arguments", "tensor-parallel-size"),
            f"{size} card(s) are not for a general-purpose configuration of {context:,} tokens: "
            f"the weights alone take {weights // 10**9} GB of {size * GAUDI2_CARD_BYTES / 1e9:.0f} GB",
            text_of(subject.arguments.get("tensor-parallel-size", "absent (1)")),
            "4 or more",
            "raise tensor-parallel-size and count together, or serve a shorter context",
        )


@catalogue.rule(
    "gdn-prefix-cache-fix",
    "error",
    "Prefix caching of a Gated DeltaNet model on Gaudi has the fix gdn-prefix-cache.",
    "the Gaudi page, Prefix caching; vllm-gaudi PR #1235",
)
def prefix_cache_fix(subject: Subject) -> Iterator[Problem]:
    if (
        on_gaudi(subject)
        and gated_delta(subject)
        and prefix_caching(subject)
        and "gdn-prefix-cache" not in applied(subject)
    ):
        yield Problem(
            subject.place("arguments", "enable-prefix-caching"),
            "prefix-cache hits on Gated DeltaNet layers resume from a wrong state without the fix gdn-prefix-cache",
            "prefix caching without gdn-prefix-cache",
            "both or neither",
            "add gdn-prefix-cache to fixes.opt_in, or set enable-prefix-caching: false",
        )


@catalogue.rule(
    "gdn-compact-off",
    "error",
    "VLLM_COMPACT_GDN is not 0 with the fix gdn-prefix-cache, which keeps its state in the compact slots.",
    "the Gaudi page, What not to do",
)
def compact_off(subject: Subject) -> Iterator[Problem]:
    value = subject.environment.get("VLLM_COMPACT_GDN")
    if value is not None and not truthy(value) and "gdn-prefix-cache" in applied(subject):
        yield Problem(
            subject.place("environment", "VLLM_COMPACT_GDN"),
            "gdn-prefix-cache stores and restores the compact slots of the Gated DeltaNet layers, and they are off",
            value,
            '"1"',
            'set VLLM_COMPACT_GDN: "1"',
        )


@catalogue.rule(
    "gdn-compact-unset",
    "warning",
    "VLLM_COMPACT_GDN is set for a Gated DeltaNet model: two parts of the engine have different defaults for it.",
    "vllm-gaudi 0.26.0 hpu_worker.py (0 where unset) and hpu_model_runner.py (1 where unset)",
)
def compact_unset(subject: Subject) -> Iterator[Problem]:
    if (
        on_gaudi(subject)
        and gated_delta(subject)
        and "VLLM_COMPACT_GDN" not in subject.environment
        and "kv-transfer-config" not in subject.arguments
    ):
        yield Problem(
            subject.place("environment"),
            "VLLM_COMPACT_GDN is not exported, and the worker and the model runner differ about its default",
            "not set",
            'VLLM_COMPACT_GDN: "1"',
            "export it",
        )


@catalogue.rule(
    "gaudi-bucket-variables",
    "warning",
    "No VLLM_*_BUCKET_* variables in compile mode: torch.compile owns the shapes there.",
    "the Gaudi page, Notes",
)
def bucket_variables(subject: Subject) -> Iterator[Problem]:
    if on_gaudi(subject):
        for name in subject.variables("VLLM_*_BUCKET_*"):
            yield Problem(
                subject.place("environment", name),
                "is of lazy mode; in compile mode torch.compile owns the shapes, and this only costs throughput",
                f"{name}={subject.environment[name]}",
                "not set",
                "remove the variable",
            )


@catalogue.rule(
    "gaudi-contiguous-pa",
    "error",
    "VLLM_CONTIGUOUS_PA is not on with prefix caching, which it silently turns off.",
    "vllm-gaudi 0.26.0 platform.py",
)
def contiguous_pa(subject: Subject) -> Iterator[Problem]:
    value = subject.environment.get("VLLM_CONTIGUOUS_PA", "")
    if on_gaudi(subject) and truthy(value) and on(subject, "enable-prefix-caching"):
        yield Problem(
            subject.place("environment", "VLLM_CONTIGUOUS_PA"),
            "the engine silently turns prefix caching off where this is on",
            value,
            "not set, with enable-prefix-caching",
            "remove the variable, or remove enable-prefix-caching",
        )


@catalogue.rule(
    "gaudi-model-timeout",
    "warning",
    "Without a warm-up, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS leaves the first shapes the minutes they compile.",
    "the Gaudi page, Known issues; vLLM 0.26.0 envs.py (default 300)",
)
def model_timeout(subject: Subject) -> Iterator[Problem]:
    name = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    value = subject.environment.get(name)
    seconds = number_of(value) if value is not None else float(DEFAULT_TIMEOUT_S)
    if (
        on_gaudi(subject)
        and truthy(subject.environment.get("VLLM_SKIP_WARMUP", ""))
        and seconds is not None
        and seconds < MIN_TIMEOUT_S
    ):
        yield Problem(
            subject.place("environment", name),
            "without a warm-up a first shape compiles for minutes; a step longer than this ends the engine",
            value if value is not None else f"not set ({DEFAULT_TIMEOUT_S})",
            f"at least {MIN_TIMEOUT_S}",
            f'set {name}: "1800"',
        )


@catalogue.rule(
    "gaudi-warmup-graphs",
    "warning",
    "A Gated DeltaNet model at 256K skips the warm-up, which compiles more graphs than there is memory for.",
    "vllm-gaudi#1736",
)
def warmup_graphs(subject: Subject) -> Iterator[Problem]:
    context = context_of(subject)
    if (
        on_gaudi(subject)
        and gated_delta(subject)
        and context is not None
        and context >= LONG_CONTEXT
        and not truthy(subject.environment.get("VLLM_SKIP_WARMUP", ""))
    ):
        yield Problem(
            subject.place("environment", "VLLM_SKIP_WARMUP"),
            f"the warm-up of a hybrid model at {context:,} tokens compiles over 300 graphs and runs out of memory",
            text_of(subject.environment.get("VLLM_SKIP_WARMUP", "not set")),
            '"true"',
            'set VLLM_SKIP_WARMUP: "true"; the first request of each shape then compiles',
        )


@catalogue.rule(
    "gaudi-software",
    "error",
    "host.gaudi_software is the release that this release of vllm-gaudi is paired with.",
    "vllm-gaudi compatibility table: 0.24.0 and 0.26.0 with 1.24.1, 0.17 to 0.21 with 1.24.0",
)
def gaudi_software(subject: Subject) -> Iterator[Problem]:
    wanted = GAUDI_SOFTWARE.get(version_of(engine_version(subject))[:2])
    if not on_gaudi(subject) or wanted is None:
        return
    found = subject.variant["host"].get("gaudi_software")
    if found is None or found.split("-")[0] != wanted:
        yield Problem(
            subject.place("host", "gaudi_software"),
            f"vllm-gaudi {engine_version(subject)} is paired with one release of the Gaudi software, not with a range",
            found or "not stated",
            wanted,
            f"set host.gaudi_software: {wanted}",
        )


@catalogue.rule(
    "gaudi-driver-release",
    "error",
    "The habanalabs driver is of the same release as the Gaudi software.",
    "GenAIComps#1038, vllm-fork#380: another release gives Device not found or Generic failure",
)
def driver_release(subject: Subject) -> Iterator[Problem]:
    host = subject.variant["host"]
    driver, software = host.get("driver"), host.get("gaudi_software")
    if driver and software and driver["name"] == "habanalabs":
        release = software.split("-")[0]
        if driver["version"].split("-")[0] != release:
            yield Problem(
                subject.place("host", "driver", "version"),
                "the driver and the Gaudi software must be of one release",
                driver["version"],
                release,
                f"set the driver's version to {software}",
            )


@catalogue.rule(
    "gaudi-block-size",
    "warning",
    "block-size on Gaudi is a multiple of the kernel's 128 tokens.",
    "vllm-gaudi 0.26.0: 128 is the kernel block; the engine raises the KV block of a hybrid model itself",
)
def block_size(subject: Subject) -> Iterator[Problem]:
    found = tokens_of(subject.arguments.get("block-size"))
    if on_gaudi(subject) and found is not None and (found == 0 or found % KERNEL_BLOCK):
        yield Problem(
            subject.place("arguments", "block-size"),
            "the attention kernel works on blocks of 128 tokens",
            text_of(subject.arguments["block-size"]),
            "128, or a multiple of it",
            "set block-size: 128; a hybrid model's KV block is raised by the engine itself",
        )


@catalogue.rule(
    "gaudi-data-parallel",
    "warning",
    "Gaudi variants use tensor parallelism; data parallelism has not been verified.",
    "vllm-fork#1398",
)
def data_parallel(subject: Subject) -> Iterator[Problem]:
    if on_gaudi(subject) and size_of(subject, "data-parallel-size") > 1:
        yield Problem(
            subject.place("arguments", "data-parallel-size"),
            "data parallelism on Gaudi has failed for others and nobody has verified it",
            text_of(subject.arguments["data-parallel-size"]),
            "1, or absent",
            "use tensor-parallel-size over the cards, and one server for each replica",
        )


@catalogue.rule(
    "gaudi-fixes-absent",
    "warning",
    "A variant of an engine version that has a fix pack applies its profile.",
    "the Gaudi page, Required fixes: on the stock release logit_bias is ignored and bad_words ends the engine",
)
def fixes_absent(subject: Subject) -> Iterator[Problem]:
    pack = pack_for(engine_name(subject), engine_version(subject))
    if pack is not None and "fixes" not in subject.variant:
        yield Problem(
            subject.place("engine"),
            f"{engine_name(subject)} {engine_version(subject)} has known defects that its fix pack mends, "
            "and none is applied",
            "no fixes",
            f"fixes: {{profile: {pack.profile}}}",
            f"add fixes with profile {pack.profile}",
        )


@catalogue.rule(
    "gaudi-check-in-flight",
    "warning",
    "A Gated DeltaNet model on Gaudi is checked with two or more decodes at once.",
    "the Gaudi page, Known issues: the batch-collapse bug shows only at batch 2 and above",
)
def check_in_flight(subject: Subject) -> Iterator[Problem]:
    if on_gaudi(subject) and gated_delta(subject) and not any(checks(subject, "known_answers_in_flight")):
        yield Problem(
            subject.place("checks"),
            "a single request passes even where batches of two and more collapse",
            "no check known_answers_in_flight",
            "known_answers_in_flight with 2 or more requests",
            "add - check: known_answers_in_flight after known_answers",
        )


RULES = tuple(catalogue)
