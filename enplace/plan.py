# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""`enplace plan`: what a variant downloads, what it takes on the disk, and what it takes of memory.

No host is asked: what a host lacks is told by a run of the playbook in check mode.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ansible_collections.enplace.inference.plugins.plugin_utils import engines, memory
from ansible_collections.enplace.inference.plugins.plugin_utils import plan as planner
from ansible_collections.enplace.inference.plugins.plugin_utils.lint import lint_document
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    Document,
    Problem,
    Recipe,
    RecipeError,
)

from . import common
from .show import size_text

if TYPE_CHECKING:
    from .text import Page


def run(options: argparse.Namespace) -> int:
    """The command. A variant that the linter refuses is planned all the same, and refused at the end."""
    try:
        kv_bytes = _bytes("--kv-bytes", options.kv_bytes)
        rate = _bytes("--rate", options.rate)
        recipe, variants = common.find(options.reference, options.recipes)
        plans = [make(recipe, variant, kv_bytes, rate) for variant in variants]
    except RecipeError as error:
        return common.tell(error.problems)
    findings = lint_document(recipe.document)
    refused = [
        problem
        for problem in findings
        if problem.severity == "error" and any(common.about(problem, variant) for variant in variants)
    ]
    if options.json:
        for each in plans:
            each["refused"] = [str(problem.what) for problem in refused if common.about(problem, each["variant"])]
        common.print_json(plans[0] if len(plans) == 1 else plans)
    else:
        # Slow to import, and not needed for data.
        from .text import Page

        page = Page()
        for each in plans:
            _write(page, each, options.memory)
        page.print()
    if refused:
        common.err(f"\n{recipe.name}: a host refuses this, because of {common.counted(len(refused), 'error')}:")
        return common.tell(refused)
    return 0


def _bytes(flag: str, text: str | None) -> int | None:
    """A number of bytes above zero from the command line. Raises RecipeError."""
    if text is None:
        return None
    try:
        found = memory.parse_bytes(text)
    except (ValueError, OverflowError):
        found = 0
    if not 0 < found < 2**63:
        expected, todo = "8589934592, 8G (binary) or 8g (decimal), above 0", "correct the argument"
        raise RecipeError([Problem(flag, "is not a number of bytes", text[:80], expected, todo, "reference")])
    return found


def make(recipe: Recipe, variant_name: str, kv_bytes: int | None = None, rate: int | None = None) -> dict[str, Any]:
    """The plan of one variant as data. Raises RecipeError where its engine has no manifest."""
    variant = recipe.variants[variant_name]
    engine = engines.load_engine(variant["engine"]["name"], variant["engine"]["version"], locks=False)
    found = memory.estimate(recipe.document.data["model"], variant, engine, kv_bytes=kv_bytes, rate=rate)
    slug = planner.slug_of(recipe.name, variant_name)
    return {
        "recipe": f"{recipe.name}:{variant_name}",
        "variant": variant_name,
        "engine": dict(variant["engine"]),
        "unit": f"enplace-{slug}.service",
        "nodes": variant.get("nodes", 1),
        "host_memory_bytes": variant["host"]["memory_bytes"],
        "platforms": _platforms(engine, variant["accelerator"]),
        "weights": [_weights(name, variant[name]) for name in ("weights", "draft") if name in variant],
        "memory": dataclasses.asdict(found),
    }


def _platforms(engine: Document, accelerator: str) -> list[dict[str, Any]]:
    """The locks that the engine has for an accelerator."""
    keys = ("arch", "python", "lock", "download_bytes", "installed_bytes")
    return [
        {key: entry[key] for key in keys if key in entry}
        for entry in engine.data.get("platforms", [])
        if entry["accelerator"] == accelerator
    ]


def _weights(name: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    files = weights.get("files")
    return {
        "what": name,
        "repository": weights["repository"],
        "revision": weights["revision"],
        "bytes": sum(item["bytes"] for item in files) if files else weights.get("bytes"),
        "files": len(files) if files else None,
    }


# Text ----------------------------------------------------------------------------------------------------------------


def gib(value: int | float | None) -> str:
    """Bytes of memory: `8.00 GiB`."""
    if value is None:
        return "not known"
    return f"{value / memory.GIB:,.2f} GiB" if value >= memory.GIB / 10 else f"{value / memory.MIB:,.2f} MiB"


def exact(value: int | None) -> str:
    """The same with every byte, for what goes into a flag."""
    return "not known" if value is None else f"{gib(value)} ({value} bytes)"


def duration(seconds: float) -> str:
    """`2 h 13 min`, `40 s`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _write(page: Page, plan: Mapping[str, Any], every_step: bool) -> None:
    found = plan["memory"]
    engine = plan["engine"]
    page.title(plan["recipe"])
    page.rows(
        "What is served",
        [
            ("engine", f"{engine['name']} {engine['version']}"),
            ("unit", plan["unit"]),
            ("host memory", f"{size_text(plan['host_memory_bytes'])} or more"),
        ]
        + ([("hosts", f"{plan['nodes']}, all figures below are of one")] if plan["nodes"] > 1 else []),
    )
    page.table(
        "Environment: a host takes the lock of its platform",
        ("platform", "lock", "download", "on disk"),
        [
            (
                f"{each.get('arch', '?')}, Python {each.get('python', '?')}",
                str(each.get("lock", "")),
                size_text(each.get("download_bytes")),
                size_text(each.get("installed_bytes")),
            )
            for each in plan["platforms"]
        ],
    )
    page.table(
        "Weights",
        ("what", "repository", "revision", "download"),
        [(each["what"], each["repository"], each["revision"], size_text(each["bytes"])) for each in plan["weights"]],
    )
    if found["download_seconds"] is not None:
        page.paragraph(f"Download: {duration(found['download_seconds'])} at the given rate.")
    page.rows(f"Memory of one {_unit_of(found)}", _memory_rows(found))
    if every_step:
        page.rows("Arithmetic of blocks", _step_rows(found))
        page.table(
            "Groups of layers",
            ("kind", "layers", "groups", "tokens a block", "blocks a request"),
            [
                (
                    each["kind"].replace("_", " "),
                    str(each["layers"]),
                    str(each["groups"]),
                    str(each["block_tokens"] or "one state"),
                    str(each["pages"]),
                )
                for each in found["groups"]
            ],
        )
        page.rows("Assumed", [(each["name"], each["text"]) for each in found["assumptions"]])
    page.rows("Not computed, and why", [(each["name"], each["text"]) for each in found["unknown"]])


def _unit_of(found: Mapping[str, Any]) -> str:
    return "node (shared by host and accelerator)" if found["accelerator"] in ("gb10", "cpu") else "card"


def _memory_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    sources = {
        "pinned": "as the recipe or the command line states it",
        "derived": "as the recipe's own figures leave it",
        "unknown": "the engine sizes it by profiling",
    }
    pool = exact(found["pool_bytes"])
    if found["pool_bytes"] is None and found["pool_at_most_bytes"] is not None:
        pool = f"at most {exact(found['pool_at_most_bytes'])}"
    rows = [
        ("weights", gib(found["weights_card_bytes"])),
        ("KV pool", f"{pool}: {sources.get(found['pool_source'], found['pool_source'])}"),
    ]
    optional = (
        ("states beside the pool", "slot_bytes"),
        ("activations", "activation_bytes"),
        ("in use, at least", "used_at_least_bytes"),
        ("must be free at start", "start_free_bytes"),
        ("memory in all", "total_bytes"),
        ("usable", "usable_bytes"),
        ("left for the rest, at most", "reserve_at_most_bytes"),
    )
    rows += [(name, gib(found[key])) for name, key in optional if found[key] is not None]
    if found["context"] is not None:
        rows.append(("context", f"{found['context']:,} tokens"))
    if found["request_bytes"] is not None:
        rows.append(("one request of the full context", exact(found["request_bytes"])))
    if found["tokens"] is not None:
        rows.append(("tokens in the pool", f"{found['tokens']:,}"))
    if found["concurrency"] is not None:
        rows.append(("requests of the full context", f"{found['concurrency']:.2f}"))
    if found["users"] is not None:
        needs = "" if found["pool_users_bytes"] is None else f", who need a pool of {exact(found['pool_users_bytes'])}"
        rows.append(("meant for", f"{common.counted(found['users'], 'user')}{needs}"))
    return rows


def _step_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    def number(key: str, unit: str = "") -> str:
        value = found[key]
        return "not known" if value is None else f"{value:,}{unit}" if isinstance(value, (int, float)) else str(value)

    return [
        ("rules of", f"vLLM {found['rules']}" if found["rules"] else "not known"),
        ("tensor parallel", number("tensor_parallel")),
        ("requests at once (max-num-seqs)", number("max_num_seqs")),
        ("tokens a step (max-num-batched-tokens)", number("max_num_batched_tokens")),
        ("drafted tokens", number("draft_tokens")),
        ("prefix caching", {True: "on", False: "off", None: "not known"}[found["prefix_caching"]]),
        ("gpu-memory-utilization", number("utilization")),
        ("keys and values of a token, one layer", number("token_layer_bytes", " bytes")),
        ("one state, one layer", number("state_layer_bytes", " bytes") if found["state_layer_bytes"] else "none"),
        ("a further token, all layers", number("token_bytes", " bytes")),
        ("tokens a block", number("block_tokens")),
        ("page of a layer", number("page_bytes", " bytes")),
        ("layers that share a block", number("group_size")),
        ("block", number("block_bytes", " bytes")),
        ("blocks of a request", number("blocks_per_request")),
        ("blocks in the pool", number("blocks")),
    ]
