# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What rules share: how a value of a recipe is read, whatever its type, and what is known of the engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..lint import Rule, Subject, number_of
from ..recipe import Problem

Check = Callable[[Subject], Iterator[Problem]]

# model_type of checkpoints with Gated DeltaNet layers, for recipes that state no geometry.
GATED_DELTA_ARCHITECTURES = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"})
# Drafts that are part of the checkpoint, or made from the text itself: nothing else is loaded.
DRAFTLESS_METHODS = ("ngram", "suffix")
# From this version on a hybrid caches prefixes where the flag is absent; 0.24.0 to 0.26.0 do not.
HYBRID_PREFIX_CACHING = (0, 28)
# HBM of one Gaudi 2 card, in bytes (HL-225: 98,304 MiB).
GAUDI2_CARD_BYTES = 98_304 * 1024**2

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Catalogue(list[Rule]):
    """The rules of one module, in the order in which they are written there."""

    def rule(self, rule_id: str, severity: str, summary: str, source: str) -> Callable[[Check], Check]:
        """Make a rule of a function and add it."""

        def add(check: Check) -> Check:
            self.append(Rule(rule_id, severity, summary, source, check))
            return check

        return add


def text_of(value: Any) -> str:
    """A value as people write it in a recipe: true, not True."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def truthy(value: Any) -> bool:
    """Whether the text of an environment variable or an argument turns something on."""
    return text_of(value).strip().lower() in ("1", "true", "yes", "on", "t", "y")


def tokens_of(value: Any) -> int | None:
    """A count as vLLM takes it: 262144, "256k" (thousands) or "256K" (of 1,024 each); None where it is none."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgtKMGT]?)i?b?\s*", value)
        if not match:
            return None
        return int(float(match[1]) * _UNITS[match[2]]) if match[2] else int(float(match[1]))
    found = number_of(value)
    return int(found) if found is not None and found >= 0 else None


def on(subject: Subject, flag: str) -> bool:
    """Whether a switch is on by the recipe's own words."""
    if truthy(subject.arguments.get(f"no-{flag}", False)):
        return False
    return truthy(subject.arguments.get(flag, False))


def size_of(subject: Subject, flag: str, default: int = 1) -> int:
    """A parallel size or another small count; the default where it is absent or no number."""
    found = number_of(subject.arguments.get(flag))
    return int(found) if found is not None and found >= 1 else default


def version_of(text: str) -> tuple[int, ...]:
    """(0, 26, 0) of "0.26.0", "v0.26.0" or "0.26.0+cpu"; empty where it does not begin with a number."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def engine_name(subject: Subject) -> str:
    """Name of the variant's engine."""
    return str(subject.variant["engine"]["name"])


def engine_version(subject: Subject) -> str:
    """Version of the variant's engine, as the recipe writes it."""
    return str(subject.variant["engine"]["version"])


def vllm_version(subject: Subject) -> tuple[int, ...]:
    """Version of vLLM itself, also where the engine is a plug-in on it; empty where it is not known."""
    if engine_name(subject) == "vllm":
        return version_of(engine_version(subject))
    base = manifest(subject).get("base")
    return version_of(str(base.get("version", ""))) if isinstance(base, Mapping) else ()


def manifest(subject: Subject) -> Mapping[str, Any]:
    """The engine's manifest; empty where it is no mapping."""
    found = subject.engine.data
    return found if isinstance(found, Mapping) else {}


def platforms(subject: Subject) -> list[Mapping[str, Any]]:
    """Platforms that the engine's manifest has for the variant's accelerator."""
    return [entry for entry in all_platforms(subject) if entry.get("accelerator") == subject.variant["accelerator"]]


def all_platforms(subject: Subject) -> list[Mapping[str, Any]]:
    """Every platform of the engine's manifest."""
    found = manifest(subject).get("platforms")
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


@lru_cache(maxsize=64)
def _pins(path: Path, modified_ns: int, size: int) -> Mapping[str, str]:
    del modified_ns, size  # Part of the key only: a lock that was written again is read again.
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;\\]+)", line)
        if match:
            found[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    return found


def locked(subject: Subject) -> list[Mapping[str, str]]:
    """For each lock of the variant's accelerator the distributions in it: normalised name to version."""
    found = []
    for entry in platforms(subject):
        name = entry.get("lock")
        path = subject.engine.path.parent / name if isinstance(name, str) else None
        try:
            if path is not None:
                stat = path.stat()
                found.append(_pins(path, stat.st_mtime_ns, stat.st_size))
        except OSError:
            continue
    return found


def gated_delta(subject: Subject) -> bool:
    """Whether the model has Gated DeltaNet layers."""
    layers = subject.model.get("geometry", {}).get("layers", [])
    if layers:
        return any(bool(layer["kind"] == "gated_delta") for layer in layers)
    return str(subject.model["architecture"]) in GATED_DELTA_ARCHITECTURES


def prefix_caching(subject: Subject) -> bool:
    """Whether the server caches prefixes: as the recipe says, else by default, for hybrids only from vLLM 0.28 on."""
    if "enable-prefix-caching" in subject.arguments or "no-enable-prefix-caching" in subject.arguments:
        return on(subject, "enable-prefix-caching")
    return not gated_delta(subject) or vllm_version(subject) >= HYBRID_PREFIX_CACHING


def mixture(subject: Subject) -> bool:
    """Whether the model is a mixture of experts."""
    model = subject.model
    return "experts" in model or "moe" in str(model["architecture"]).lower()


def nvfp4(subject: Subject) -> bool:
    """Whether the variant's weights are NVFP4."""
    return "nvfp4" in str(subject.variant.get("precision", "")).lower().replace("-", "").replace("_", "")


def method(subject: Subject) -> str:
    """method of speculative-config; empty where there is none."""
    found = subject.speculation.get("method", "")
    return found.strip().lower() if isinstance(found, str) else ""


def in_checkpoint(name: str) -> bool:
    """Whether a method drafts with the checkpoint's own prediction head."""
    return name == "mtp" or name.endswith("_mtp") or name.startswith("mtp_") or name == "nextn"


def draftless(name: str) -> bool:
    """Whether a method loads no model to draft."""
    return in_checkpoint(name) or name.startswith(DRAFTLESS_METHODS)


def checks(subject: Subject, *names: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The variant's checks of these names, each with its index."""
    for index, check in enumerate(subject.variant["checks"]):
        if check["check"] in names:
            yield index, check


def figures(subject: Subject, *metrics: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The variant's figures of these metrics, each with its index; of every metric where none is named."""
    for index, figure in enumerate(subject.variant.get("figures", [])):
        if not metrics or figure["metric"] in metrics:
            yield index, figure


def first(subject: Subject) -> bool:
    """Whether this is the recipe's first variant: what concerns the whole recipe is said once."""
    return subject.name == str(next(iter(subject.document.data["variants"])))


def context_of(subject: Subject) -> int | None:
    """Tokens that the server is told to serve, or the model's own where it is told nothing; None where unclear."""
    if "max-model-len" not in subject.arguments:
        return int(subject.model["context"])
    return tokens_of(subject.arguments["max-model-len"])


def weights_bytes(weights: Mapping[str, Any]) -> int | None:
    """Bytes of a repository's files on disk; None where the recipe does not say."""
    if "files" in weights:
        return sum(int(item["bytes"]) for item in weights["files"])
    found = weights.get("bytes")
    return int(found) if found is not None else None


def strings(value: Any, key: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text below a value, each with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from strings(inner, (*key, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from strings(inner, (*key, index))
