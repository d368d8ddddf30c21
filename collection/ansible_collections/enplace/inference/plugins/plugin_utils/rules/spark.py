# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of the DGX Spark (GB10): unified memory, sm_121, and what engine releases do on it."""

from __future__ import annotations

from collections.abc import Iterator

from ..lint import Subject
from ..recipe import Problem
from .common import (
    Catalogue,
    checks,
    engine_name,
    engine_version,
    gated_delta,
    locked,
    mixture,
    nvfp4,
    prefix_caching,
    text_of,
    truthy,
    version_of,
)

catalogue = Catalogue()


def on_spark(subject: Subject) -> bool:
    """Whether the variant is for a GB10."""
    return bool(subject.variant["accelerator"] == "gb10")


def vllm_026(subject: Subject) -> bool:
    """Whether the engine is a release 0.26 of vLLM."""
    return engine_name(subject) == "vllm" and version_of(engine_version(subject))[:2] == (0, 26)


def backend(subject: Subject) -> str:
    """moe-backend as the engine compares it."""
    return text_of(subject.arguments.get("moe-backend", "")).strip().lower().replace("-", "_")


@catalogue.rule(
    "gb10-nvfp4-moe-regression",
    "warning",
    "An NVFP4 mixture of experts on GB10 is not served by vLLM 0.26.0.",
    "the Spark page, Troubleshooting: 74.5 tok/s on 0.24.0, 72.4 on 0.25.1, 64.7 on 0.26.0",
)
def regression(subject: Subject) -> Iterator[Problem]:
    if on_spark(subject) and vllm_026(subject) and nvfp4(subject) and mixture(subject):
        yield Problem(
            subject.place("engine", "version"),
            "vLLM 0.26.0 takes VLLM_CUTLASS for NVFP4 experts on sm_121, no longer FLASHINFER_CUTLASS: on "
            "Qwen3-Coder-Next decode fell from 74.5 to 64.7 tok/s (-13 %), time to first token rose from 430 to 563 ms",
            engine_version(subject),
            "0.24.0 or 0.25.1",
            "stay on 0.24.0 or 0.25.1; no flag brings the 13 % back",
        )


@catalogue.rule(
    "gb10-flashinfer-cutlass",
    "error",
    "vLLM 0.26.0 on GB10 is not told to use the NVFP4 expert backend flashinfer_cutlass, which it refuses there.",
    "the Spark page, Troubleshooting: ValueError after about 90 seconds",
)
def flashinfer_cutlass(subject: Subject) -> Iterator[Problem]:
    if on_spark(subject) and vllm_026(subject) and backend(subject) == "flashinfer_cutlass":
        yield Problem(
            subject.place("arguments", "moe-backend"),
            "vLLM 0.26.0 declines this backend on sm_121 and ends at startup with a ValueError",
            text_of(subject.arguments["moe-backend"]),
            "absent",
            "remove moe-backend, or take vLLM 0.24.0 or 0.25.1, which choose this backend themselves",
        )


@catalogue.rule(
    "gb10-humming",
    "error",
    "moe-backend is not humming on GB10, which has no memory clock to ask for.",
    "the Spark page, Troubleshooting: pynvml.NVMLError_NotSupported",
)
def humming(subject: Subject) -> Iterator[Problem]:
    if on_spark(subject) and backend(subject) == "humming":
        yield Problem(
            subject.place("arguments", "moe-backend"),
            "humming loads all weights, then ends with NVMLError_NotSupported: GB10 exposes no memory clock over NVML",
            text_of(subject.arguments["moe-backend"]),
            "absent",
            "remove moe-backend; nothing can be configured to make humming start",
        )


@catalogue.rule(
    "gb10-ptxas-path",
    "note",
    "TRITON_PTXAS_PATH is not set on GB10 with Triton 3.6 or newer, which does not read it there.",
    "Triton 3.6.0 source: capability 10.0 and above uses ptxas-blackwell and TRITON_PTXAS_BLACKWELL_PATH",
)
def ptxas_path(subject: Subject) -> Iterator[Problem]:
    if not on_spark(subject) or "TRITON_PTXAS_PATH" not in subject.environment:
        return
    for pins in locked(subject):
        triton = pins.get("triton", "")
        if version_of(triton)[:2] >= (3, 6):
            yield Problem(
                subject.place("environment", "TRITON_PTXAS_PATH"),
                f"has no effect: Triton {triton} takes its own ptxas-blackwell on this GPU",
                "TRITON_PTXAS_PATH",
                "absent, or TRITON_PTXAS_BLACKWELL_PATH",
                "remove the variable; the bundled assembler knows sm_121a",
            )
            return


@catalogue.rule(
    "gb10-expandable-segments",
    "note",
    "expandable_segments on GB10 has a reason in the recipe: reports about it contradict each other.",
    "dgx-spark-playbooks#97 (hard reset with it), vllm PR#45179; others serve 262K with it",
)
def expandable_segments(subject: Subject) -> Iterator[Problem]:
    if not on_spark(subject):
        return
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        value = subject.environment.get(name, "")
        if "expandable_segments:true" in value.lower().replace(" ", ""):
            yield Problem(
                subject.place("environment", name),
                "is contested on GB10: some need it for long contexts, others had the host reset in a long prefill",
                value,
                "absent, unless it was measured on this model",
                "remove it, or say in notes what was measured with it",
            )


@catalogue.rule(
    "gb10-gated-delta-prefix-caching",
    "warning",
    "Prefix caching of a Gated DeltaNet model on GB10 is proven by the check prefix_cache.",
    "vllm#54173: illegal memory access in the gated-delta path with prefix caching",
)
def gated_delta_prefix_caching(subject: Subject) -> Iterator[Problem]:
    plain = not subject.speculation and not any(checks(subject, "prefix_cache"))
    if on_spark(subject) and gated_delta(subject) and prefix_caching(subject) and plain:
        yield Problem(
            subject.place("arguments", "enable-prefix-caching"),
            "prefix caching on Gated DeltaNet layers has ended engines on GB10 with an illegal memory access",
            "prefix caching",
            "enable-prefix-caching: false",
            "turn it off, or add the check prefix_cache, which compares hits with cold prompts",
        )


@catalogue.rule(
    "gb10-exact-comparison",
    "warning",
    "A check on GB10 does not demand bit-identical logprobs of an NVFP4 mixture of experts.",
    "vllm#54945, PR#54948: the FlashInfer CUTLASS experts sum with atomics, so equal requests differ",
)
def exact_comparison(subject: Subject) -> Iterator[Problem]:
    if not (on_spark(subject) and nvfp4(subject) and mixture(subject)):
        return
    for index, check in checks(subject, "prefix_cache"):
        if check.get("exact", True) is True:
            yield Problem(
                subject.place("checks", index, "exact"),
                "the NVFP4 experts are not bit-deterministic on GB10: the same request twice gives other logprobs",
                "exact: true" if "exact" in check else "absent (true)",
                "exact: false",
                "set exact: false; the answers are still compared",
            )


@catalogue.rule(
    "flashinfer-version-check-off",
    "warning",
    "FlashInfer's version check is on: a lock holds versions that belong together.",
    "vLLM 0.27.1 with an older flashinfer-cubin raises at import",
)
def flashinfer_check(subject: Subject) -> Iterator[Problem]:
    name = "FLASHINFER_DISABLE_VERSION_CHECK"
    if truthy(subject.environment.get(name, "")):
        yield Problem(
            subject.place("environment", name),
            "hides that flashinfer-python and flashinfer-cubin are of different versions",
            subject.environment[name],
            "absent",
            "remove it and lock equal versions of both",
        )


@catalogue.rule(
    "driver-590",
    "warning",
    "The NVIDIA driver on GB10 is not of branch 590.",
    "reports of deadlocks in CUDA graphs with branch 590 on GB10; branch 580 is what DGX OS ships",
)
def driver_590(subject: Subject) -> Iterator[Problem]:
    driver = subject.variant["host"].get("driver")
    if on_spark(subject) and driver and driver["name"] == "nvidia" and version_of(driver["version"])[:1] == (590,):
        yield Problem(
            subject.place("host", "driver", "version"),
            "branch 590 deadlocks in CUDA graphs on GB10",
            driver["version"],
            "branch 580, such as 580.159.03",
            "take a driver of branch 580",
        )


@catalogue.rule(
    "ray-memory-monitor",
    "warning",
    "Ray's memory monitor is off where Ray runs on unified memory.",
    "reports of Ray's monitor ending healthy workers on GB10, whose GPU memory it takes for the host's",
)
def ray_monitor(subject: Subject) -> Iterator[Problem]:
    name = "RAY_memory_monitor_refresh_ms"
    if on_spark(subject) and _ray(subject) and subject.environment.get(name) != "0":
        yield Problem(
            subject.place("environment", name),
            "Ray's memory monitor takes the GPU's memory for the host's and ends its workers",
            subject.environment.get(name, "not set"),
            '"0"',
            f'set {name}: "0"',
        )


@catalogue.rule(
    "ray-not-locked",
    "error",
    "An engine that is told to use Ray has Ray in its lock.",
    "dgx-spark-playbooks#75, #109: Ray is not among vLLM's requirements",
)
def ray_locked(subject: Subject) -> Iterator[Problem]:
    locks = locked(subject)
    if _ray(subject) and locks and not all("ray" in pins for pins in locks):
        yield Problem(
            subject.place("arguments", "distributed-executor-backend"),
            "the engine's lock has no ray, so the server cannot start",
            "ray",
            "a lock that holds ray, or another backend",
            "add ray to the engine's requirements.in and lock again, or use the backend mp",
        )


def _ray(subject: Subject) -> bool:
    return text_of(subject.arguments.get("distributed-executor-backend", "")).strip().lower() == "ray"


RULES = tuple(catalogue)
