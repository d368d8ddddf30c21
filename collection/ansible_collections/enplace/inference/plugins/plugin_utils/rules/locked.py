# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of what an engine's lock must and must not hold for the variant: found here before a host builds it."""

from __future__ import annotations

from collections.abc import Iterator

from ..lint import Subject
from ..recipe import Problem
from .common import Catalogue, engine_name, engine_version, locked, version_of

catalogue = Catalogue()

# With this FastAPI and the instrumentator that vllm-gaudi uses every request is answered 500.
FASTAPI = (0, 137)


@catalogue.rule(
    "lock-cuda12",
    "error",
    "The lock of an engine for GB10 holds no package of CUDA 12.",
    "vllm#31424, vllm#29472: a cu12 library beside a cu13 torch gives undefined symbols",
)
def cuda12(subject: Subject) -> Iterator[Problem]:
    if subject.variant["accelerator"] != "gb10":
        return
    for pins in locked(subject):
        names = sorted(name for name in pins if name.endswith(("-cu12", "-cu11")))
        if names:
            yield _of_lock(
                subject, "holds libraries of an older CUDA beside those of CUDA 13", ", ".join(names), "none"
            )


@catalogue.rule(
    "lock-flashinfer",
    "error",
    "flashinfer-python and flashinfer-cubin of a lock are of one version.",
    "vLLM 0.27.1: an older flashinfer-cubin raises at import",
)
def flashinfer(subject: Subject) -> Iterator[Problem]:
    for pins in locked(subject):
        python, cubin = pins.get("flashinfer-python"), pins.get("flashinfer-cubin")
        if python and cubin and python != cubin:
            found = f"flashinfer-python {python}, flashinfer-cubin {cubin}"
            yield _of_lock(subject, "pairs two versions of FlashInfer, which raises at import", found, "one version")


@catalogue.rule(
    "lock-fastapi",
    "error",
    "The lock of vllm-gaudi holds a FastAPI below 0.137.",
    "requirements.txt of vllm-gaudi: with 0.137 and newer every request is answered 500",
)
def fastapi(subject: Subject) -> Iterator[Problem]:
    if engine_name(subject) == "vllm-gaudi":
        for pins in locked(subject):
            found = pins.get("fastapi", "")
            if version_of(found)[:2] >= FASTAPI:
                yield _of_lock(
                    subject, "holds a FastAPI with which every request is answered 500", found, "below 0.137"
                )


def _of_lock(subject: Subject, what: str, found: str, expected: str) -> Problem:
    engine = f"{engine_name(subject)} {engine_version(subject)}"
    return Problem(
        subject.place("engine", "version"),
        f"the lock of {engine} {what}",
        found,
        expected,
        "constrain it in the engine's requirements.in or overrides.txt and lock again",
    )


RULES = tuple(catalogue)
