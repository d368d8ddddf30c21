# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of what fits together: accelerator, engine, host, cards, context, weights and the model's own numbers."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from ..lint import Subject
from ..recipe import Problem
from .common import (
    Catalogue,
    all_platforms,
    context_of,
    engine_name,
    engine_version,
    first,
    manifest,
    on,
    platforms,
    size_of,
    text_of,
    version_of,
)

catalogue = Catalogue()

DRIVERS = {"gb10": "nvidia", "gaudi2": "habanalabs"}
CAPABILITY = "sm_121"
CUDA = (13,)
PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "prefill-context-parallel-size")


@catalogue.rule(
    "engine-accelerator",
    "error",
    "gaudi2 is served by vllm-gaudi and by nothing else, and vllm-gaudi serves gaudi2 alone.",
    "vllm-gaudi is the plug-in of vLLM for Gaudi",
)
def engine_accelerator(subject: Subject) -> Iterator[Problem]:
    accelerator = subject.variant["accelerator"]
    gaudi = engine_name(subject) == "vllm-gaudi"
    if (accelerator == "gaudi2") is not gaudi:
        yield Problem(
            subject.place("engine", "name"),
            f"does not serve {accelerator}",
            engine_name(subject),
            "vllm-gaudi" if accelerator == "gaudi2" else "vllm",
            "change the engine or the accelerator",
        )


@catalogue.rule(
    "engine-platform",
    "error",
    "The engine version has a platform for the variant's accelerator.",
    "the engine's manifest: platforms",
)
def engine_platform(subject: Subject) -> Iterator[Problem]:
    known = all_platforms(subject)
    accelerator = subject.variant["accelerator"]
    if known and not platforms(subject) and (accelerator == "gaudi2") is (engine_name(subject) == "vllm-gaudi"):
        yield Problem(
            subject.place("engine", "version"),
            f"this engine version has no platform, and so no lock, for {accelerator}",
            ", ".join(sorted({str(entry.get("accelerator")) for entry in known})),
            accelerator,
            "take a version that has one, or add the platform and its lock to the engine",
        )


@catalogue.rule(
    "engine-commit",
    "error",
    "Commits that a recipe names are those of the engine's manifest.",
    "the engine's manifest",
)
def engine_commit(subject: Subject) -> Iterator[Problem]:
    data = manifest(subject)
    base = data.get("base")
    base = base if isinstance(base, Mapping) else {}
    engine = subject.variant["engine"]
    for key, known in (
        ("commit", data.get("commit")),
        ("vllm_commit", data.get("vllm_commit", base.get("commit"))),
    ):
        stated = engine.get(key)
        if stated is None:
            continue
        if not isinstance(known, str):
            if key == "vllm_commit" and engine_name(subject) == "vllm":
                yield Problem(
                    subject.place("engine", key),
                    "is for plug-in engines; vLLM's own commit is commit",
                    stated,
                    "commit",
                    "rename the key",
                )
        elif not known.startswith(stated):
            yield Problem(
                subject.place("engine", key),
                f"is not the commit of {engine_name(subject)} {engine_version(subject)}",
                stated,
                known,
                "correct it, or name the version that has this commit",
            )


@catalogue.rule(
    "host-accelerator",
    "error",
    "The host's driver and software are those of the accelerator.",
    "gb10: NVIDIA driver, CUDA, sm_121; gaudi2: habanalabs driver, Gaudi software; cpu: none",
)
def host_accelerator(subject: Subject) -> Iterator[Problem]:
    accelerator = subject.variant["accelerator"]
    host = subject.variant["host"]
    driver = host.get("driver")
    wanted = DRIVERS.get(accelerator)
    if driver and driver["name"] != wanted:
        yield Problem(
            subject.place("host", "driver", "name"),
            f"is not the driver of {accelerator}",
            driver["name"],
            wanted or "no driver",
            "correct it or remove host.driver",
        )
    for key, owner in (("cuda", "gb10"), ("capability", "gb10"), ("gaudi_software", "gaudi2")):
        if key in host and accelerator != owner:
            yield Problem(
                subject.place("host", key), f"is of {owner}, not of {accelerator}", host[key], "absent", "remove it"
            )
    if accelerator == "gb10" and host.get("capability", CAPABILITY).rstrip("abcdef") != CAPABILITY:
        yield Problem(
            subject.place("host", "capability"),
            "is not the compute capability of GB10",
            host["capability"],
            CAPABILITY,
            f"set capability: {CAPABILITY}",
        )


@catalogue.rule(
    "gb10-cuda",
    "error",
    "CUDA on GB10 is 13 or newer.",
    "the Spark page, Software requirements: the NVFP4 kernels require CUDA 13",
)
def cuda(subject: Subject) -> Iterator[Problem]:
    found = subject.variant["host"].get("cuda")
    if subject.variant["accelerator"] == "gb10" and found is not None and version_of(found) < CUDA:
        yield Problem(
            subject.place("host", "cuda"),
            "is too old for sm_121",
            found,
            "13.0 or newer",
            'set cuda: "13.0"',
        )


@catalogue.rule(
    "host-python",
    "error",
    "host.python is the Python that the engine's lock was made for.",
    "the engine's manifest: platforms",
)
def python(subject: Subject) -> Iterator[Problem]:
    found = subject.variant["host"].get("python")
    known = sorted({str(entry["python"]) for entry in platforms(subject) if "python" in entry})
    if found is not None and known and found not in known:
        yield Problem(
            subject.place("host", "python"),
            "differs from the Python of the engine's lock",
            found,
            " or ".join(known),
            "take the lock's version, or lock the engine for this one",
        )


@catalogue.rule("cpu-count", "error", "A variant for cpu has count 1: a host has one CPU side.", "recipe schema: count")
def cpu_count(subject: Subject) -> Iterator[Problem]:
    count = subject.variant.get("count", 1)
    if subject.variant["accelerator"] == "cpu" and count > 1:
        yield Problem(
            subject.place("count"), "counts accelerators, and cpu has none", str(count), "absent", "remove count"
        )


@catalogue.rule(
    "parallel-size",
    "error",
    "Tensor, pipeline and data parallel sizes multiply to the cards of all nodes.",
    "vLLM starts one worker for each, and each worker takes one card",
)
def parallel_size(subject: Subject) -> Iterator[Problem]:
    if subject.variant["accelerator"] == "cpu":
        return
    cards = subject.variant.get("count", 1) * subject.variant.get("nodes", 1)
    sizes = {name: size_of(subject, name) for name in PARALLEL if name in subject.arguments}
    workers = 1
    for size in sizes.values():
        workers *= size
    if workers != cards:
        nodes = subject.variant.get("nodes", 1)
        yield Problem(
            subject.place("arguments", next(iter(sizes), "tensor-parallel-size")),
            "the server would not use exactly the cards that the variant states",
            " x ".join(f"{name} {size}" for name, size in sizes.items()) or "no parallel size (1 card)",
            f"{cards} (count {subject.variant.get('count', 1)} x nodes {nodes})",
            f"set tensor-parallel-size: {cards}, or correct count and nodes",
        )


@catalogue.rule(
    "context-exceeds-model",
    "error",
    "max-model-len is within the model's context, unless RoPE is scaled.",
    "vLLM refuses it at start; answers past the trained context are noise",
)
def context(subject: Subject) -> Iterator[Problem]:
    length = context_of(subject)
    own = subject.model["context"]
    if length is not None and length > own and not _scaled(subject.arguments):
        yield Problem(
            subject.place("arguments", "max-model-len"),
            "is longer than the context that the model was trained for",
            text_of(subject.arguments["max-model-len"]),
            f"at most {own}",
            "lower it, or scale RoPE as the model's card says (hf-overrides)",
        )


def _scaled(arguments: Mapping[str, Any]) -> bool:
    if "rope-scaling" in arguments:
        return True
    overrides = text_of(arguments.get("hf-overrides", ""))
    return "rope_scaling" in overrides or "rope_parameters" in overrides


@catalogue.rule(
    "tool-call-parser-missing",
    "error",
    "enable-auto-tool-choice comes with tool-call-parser.",
    "vLLM 0.24.0 refuses to start with the first alone",
)
def tool_parser(subject: Subject) -> Iterator[Problem]:
    if on(subject, "enable-auto-tool-choice") and "tool-call-parser" not in subject.arguments:
        yield Problem(
            subject.place("arguments", "enable-auto-tool-choice"),
            "the engine refuses to start with it alone",
            "no tool-call-parser",
            "tool-call-parser: the parser of the model, such as qwen3_coder",
            "add tool-call-parser",
        )


@catalogue.rule(
    "unpinned-revision",
    "warning",
    "Weights and drafts are pinned to a commit; a host refuses to serve them before.",
    "sparkrun#239 and others: a repository that moved broke a host that worked",
)
def unpinned(subject: Subject) -> Iterator[Problem]:
    for part in ("weights", "draft"):
        if subject.variant.get(part, {}).get("revision") == "unpinned":
            yield Problem(
                subject.place(part, "revision"),
                "is not pinned, and a host refuses to serve it until it is",
                "unpinned",
                "a commit of 40 hex digits, with the files",
                "run enplace pin on this recipe where the hub can be reached",
            )


@catalogue.rule(
    "weights-size-unknown",
    "warning",
    "Weights and drafts state their size, so that a full disk is found before the download.",
    "huggingface_hub#2742: a full disk is only a warning there",
)
def size_unknown(subject: Subject) -> Iterator[Problem]:
    for part in ("weights", "draft"):
        weights = subject.variant.get(part)
        if weights is not None and "bytes" not in weights and "files" not in weights:
            yield Problem(
                subject.place(part),
                "neither lists its files nor states its size, so nobody can tell whether it fits the disk",
                "no bytes, no files",
                "bytes, or the files of a pinned revision",
                "add bytes, or run enplace pin",
            )


@catalogue.rule(
    "weights-bytes",
    "error",
    "bytes and files of a repository agree.",
    "recipe schema: bytes is for repositories whose files are not listed",
)
def bytes_agree(subject: Subject) -> Iterator[Problem]:
    for part in ("weights", "draft"):
        weights = subject.variant.get(part, {})
        if "bytes" in weights and "files" in weights:
            total = sum(item["bytes"] for item in weights["files"])
            if total != weights["bytes"]:
                yield Problem(
                    subject.place(part, "bytes"),
                    "is not the sum of the files",
                    str(weights["bytes"]),
                    str(total),
                    "remove bytes; the files say it",
                )


@catalogue.rule(
    "weights-include",
    "error",
    "Every include pattern matches a listed file, and every listed file an include pattern.",
    "hf download --include",
)
def include(subject: Subject) -> Iterator[Problem]:
    for part in ("weights", "draft"):
        weights = subject.variant.get(part, {})
        patterns, files = weights.get("include", []), weights.get("files", [])
        if not patterns or not files:
            continue
        for index, pattern in enumerate(patterns):
            if not any(fnmatch.fnmatchcase(item["path"], pattern) for item in files):
                yield Problem(
                    subject.place(part, "include", index),
                    "matches no file of the list",
                    pattern,
                    "a pattern of a listed file",
                    "correct the pattern or remove it",
                )
        for index, item in enumerate(files):
            if not any(fnmatch.fnmatchcase(item["path"], pattern) for pattern in patterns):
                yield Problem(
                    subject.place(part, "files", index),
                    "is listed, and no include pattern downloads it",
                    item["path"],
                    "a file that include names",
                    "add a pattern, or remove the file",
                )


@catalogue.rule(
    "model-numbers",
    "error",
    "The model's own numbers do not contradict each other.",
    "recipe schema: model",
)
def model_numbers(subject: Subject) -> Iterator[Problem]:
    if not first(subject):
        return
    model = subject.model
    experts, tensors = model.get("experts", {}), model.get("tensors", {})
    for part, less, whole, small, large in (
        ((), "active_parameters", "parameters", model.get("active_parameters"), model["parameters"]),
        (("experts",), "per_token", "routed", experts.get("per_token"), experts.get("routed")),
        (("tensors",), "mtp", "count", tensors.get("mtp"), tensors.get("count")),
    ):
        if small is not None and large is not None and small > large:
            yield Problem(
                subject.model_place(*part, less),
                f"is more than {whole}, of which it is a part",
                str(small),
                f"at most {large}",
                "correct one of the two",
            )


RULES = tuple(catalogue)
