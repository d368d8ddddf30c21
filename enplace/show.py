# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""`enplace show`: one page about a variant, as text or as data."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ansible_collections.enplace.inference.plugins.module_utils import unit as unit_file
from ansible_collections.enplace.inference.plugins.module_utils.verify.bench import Workload
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import CHECKS
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import Recipe, RecipeError

from . import common

if TYPE_CHECKING:
    from .text import Page

NOT_VERIFIED = "not verified by any host"


def run(options: argparse.Namespace) -> int:
    """The command."""
    try:
        recipe, variants = common.find(options.reference, options.recipes)
    except RecipeError as error:
        return common.tell(error.problems)
    pages = [page(recipe, variant) for variant in variants]
    if options.json:
        common.print_json(pages[0] if len(pages) == 1 else pages)
        return 0

    # Not needed for data, and slow to import.
    from .text import Page

    out = Page()
    for each in pages:
        _write(out, each)
    out.print()
    return 0


# Data ----------------------------------------------------------------------------------------------------------------


def page(recipe: Recipe, variant_name: str) -> dict[str, Any]:
    """Everything that the page tells, as data."""
    data = recipe.document.data
    variant = data["variants"][variant_name]
    return {
        "recipe": f"{recipe.name}:{variant_name}",
        "file": common.shown(recipe.document.path),
        "model": data["model"],
        "variant": {
            key: variant[key]
            for key in (
                *("summary", "description", "accelerator", "precision", "features", "contributors", "served_name"),
                *("host", "engine", "environment", "arguments", "ready", "memory"),
            )
            if key in variant
        },
        "count": variant.get("count", 1),
        "nodes": variant.get("nodes", 1),
        "pins": [_pin(name, variant[name]) for name in ("weights", "draft") if name in variant],
        "fixes": _fixes(variant),
        "checks": [
            {**check, "summary": CHECKS[check["check"]].summary if check["check"] in CHECKS else ""}
            for check in variant["checks"]
        ],
        "bench": variant.get("bench", []),
        "figures": variant.get("figures", []),
        "do_not": [
            {
                "when": " and ".join(map(condition, entry["if"])),
                "reason": entry["reason"],
                "todo": entry.get("todo", ""),
            }
            for entry in variant.get("forbid", [])
        ],
        "notes": variant.get("notes", []),
        "known_issues": variant.get("known_issues", []),
        "troubleshooting": variant.get("troubleshooting", []),
        "usage": variant.get("usage", []),
        "verified": variant.get("verified"),
        "inferred": [
            {**entry, "field": f"{prefix}{entry['field']}"}
            for prefix, entries in (("model.", data["model"].get("inferred", [])), ("", variant.get("inferred", [])))
            for entry in entries
        ],
        "sources": data.get("sources", {}),
    }


def _pin(name: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    files = weights.get("files")
    return {
        "what": name,
        "repository": weights["repository"],
        "revision": weights["revision"],
        "pinned": weights["revision"] != "unpinned",
        "bytes": sum(item["bytes"] for item in files) if files else weights.get("bytes"),
        "files": len(files) if files else None,
        "gated": weights.get("gated", False),
        "include": weights.get("include", []),
    }


def _fixes(variant: Mapping[str, Any]) -> dict[str, Any] | None:
    fixes = variant.get("fixes")
    if fixes is None:
        return None
    opt_in = fixes.get("opt_in", [])
    needs = [{"fix": name, "opt_in": name in opt_in, "reason": why} for name, why in fixes.get("needs", {}).items()]
    told = {entry["fix"] for entry in needs}
    return {
        "profile": fixes["profile"],
        "needs": needs + [{"fix": name, "opt_in": True, "reason": ""} for name in opt_in if name not in told],
        "not_needed": [{"fix": name, "reason": why} for name, why in fixes.get("not_needed", {}).items()],
    }


def condition(entry: Mapping[str, Any]) -> str:
    """One condition of a forbid rule in words: `--tensor-parallel-size is 2`."""
    subject = ""
    for key, form in (
        ("argument", "--{}"),
        ("environment", "{}"),
        ("fix", "the fix {}"),
        ("engine", "the engine {}"),
        ("speculative_method", "speculation by {}"),
    ):
        if key in entry:
            subject = form.format(entry[key])
    parts = []
    for key, form in (("equals", "is {}"), ("at_least", "is {} or more"), ("at_most", "is {} or less")):
        if key in entry:
            parts.append(form.format(plain(entry[key])))
    if "in" in entry:
        parts.append("is one of " + ", ".join(map(plain, entry["in"])))
    if "absent" in entry:
        parts.append("is absent")
    return f"{subject} {' and '.join(parts) if parts else 'is applied' if 'fix' in entry else 'is set'}"


def plain(value: Any) -> str:
    """A value as it stands in a recipe."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(inner)}" for key, inner in value.items())
    return str(value)


# Text ----------------------------------------------------------------------------------------------------------------


def size_text(value: int | None) -> str:
    """Bytes for people: `159.0 GB`, as sizes of downloads are told."""
    if value is None:
        return "size not known"
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value} bytes"


def count_text(value: int) -> str:
    """Parameters as people say them: 80B, 600M."""
    for unit, factor in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if value >= factor:
            return f"{value / factor:.4g}{unit}"
    return str(value)


def value_text(figure: Mapping[str, Any]) -> str:
    """The value of a figure with its unit: `72.0 tok/s, sd 1.4` (standard deviation)."""
    unit = "%" if figure["unit"] == "percent" else "" if figure["unit"] in ("ratio", "count") else f" {figure['unit']}"
    parts = []
    if "value" in figure:
        parts.append(f"{figure['value']:,}{unit}")
    if "low" in figure:
        parts.append(f"{figure['low']:,} to {figure['high']:,}{unit}")
    if "stdev" in figure:
        parts.append(f"sd {figure['stdev']:,}{'' if 'value' in figure else unit}")
    return ", ".join(parts)


def how_text(figure: Mapping[str, Any]) -> str:
    """Under what conditions, and by what method."""
    at = ", ".join(f"{key.replace('_', ' ')} {plain(value)}" for key, value in figure.get("at", {}).items())
    return "; ".join(filter(None, (at, figure.get("method", ""))))


def tolerance_text(figure: Mapping[str, Any]) -> str:
    """How near a host must come."""
    tolerance = figure.get("tolerance", {})
    if "percent" in tolerance:
        return f"±{plain(tolerance['percent'])}%"
    if "absolute" in tolerance:
        return f"±{plain(tolerance['absolute'])}"
    return "exact" if tolerance else "not judged"


def _write(out: Page, told: Mapping[str, Any]) -> None:
    model, variant = told["model"], told["variant"]
    out.title(told["recipe"])
    out.paragraph(variant["summary"])
    if told["verified"] is None:
        out.paragraph(f"Verified: {NOT_VERIFIED}.", style="yellow")
    out.rows("Model", _model_rows(model))
    out.prose("About the model", model.get("description"))
    out.rows("Served on", _host_rows(told))
    out.prose("About this variant", variant.get("description"))
    out.table(
        "Pins",
        ("what", "repository", "commit", "size", "files"),
        [
            (
                pin["what"],
                pin["repository"] + (" (gated)" if pin["gated"] else ""),
                pin["revision"] if pin["pinned"] else "unpinned: a host refuses it until `enplace pin` has run",
                size_text(pin["bytes"]),
                str(pin["files"] or "not known yet"),
            )
            for pin in told["pins"]
        ],
    )
    fixes = told["fixes"]
    if fixes is not None:
        out.table(
            f"Fixes: profile {fixes['profile']}",
            ("fix", "why"),
            [(each["fix"] + (" (opt-in)" if each["opt_in"] else ""), each["reason"]) for each in fixes["needs"]]
            + [(f"{each['fix']} (not needed)", each["reason"]) for each in fixes["not_needed"]],
        )
    out.rows("Environment", list(variant.get("environment", {}).items()))
    out.lines("Arguments", _argument_lines(variant["arguments"]))
    out.table(
        "Checks",
        ("check", "what must hold", "with"),
        [
            (
                check["check"],
                check["summary"],
                ", ".join(
                    f"{key} {len(value)}" if key == "prompts" else f"{key} {plain(value)}"
                    for key, value in check.items()
                    if key not in ("check", "summary")
                ),
            )
            for check in told["checks"]
        ],
    )
    out.table(
        "What is measured",
        ("streams", "prompt", "reply", "requests", "passes"),
        [
            (
                str(load.streams),
                f"{load.prompt_tokens:,} tokens",
                f"{load.output_tokens:,} tokens",
                str(load.requests),
                str(load.passes),
            )
            for load in map(Workload.of, told["bench"])
        ],
    )
    out.table(
        "Figures",
        ("figure", "value", "how", "within", "source"),
        [
            (
                figure["metric"].replace("_", " "),
                value_text(figure),
                how_text(figure),
                tolerance_text(figure),
                " ".join(filter(None, map(figure.get, ("source", "date")))),
            )
            for figure in told["figures"]
        ],
    )
    remarks = [f"{f['metric'].replace('_', ' ')} {value_text(f)}: {f['note']}" for f in told["figures"] if "note" in f]
    out.bullets("About the figures", remarks)
    out.table(
        "What not to do",
        ("when", "why", "instead"),
        [(entry["when"], entry["reason"], entry["todo"]) for entry in told["do_not"]],
    )
    out.bullets("Notes", told["notes"])
    out.bullets("Known issues", told["known_issues"])
    out.table(
        "Troubleshooting",
        ("what is seen", "what it means, what to do"),
        [(entry["symptom"], entry["answer"]) for entry in told["troubleshooting"]],
    )
    for entry in told["usage"]:
        out.lines(f"Usage: {entry['title']}", entry["shell"].rstrip("\n").split("\n"))
        if "note" in entry:
            out.paragraph(entry["note"])
    verified = told["verified"]
    keys = ("by", "date", "host", "source", "note")
    out.rows(
        "Verified",
        [(key, verified[key]) for key in keys if key in verified] if verified else [("by", NOT_VERIFIED)],
    )
    out.table(
        "Inferred: values that no source states",
        ("field", "from what", "source"),
        [(entry["field"], entry["reason"], entry["source"]) for entry in told["inferred"]],
    )
    out.table(
        "Sources",
        ("name", "title", "by", "where"),
        [
            (name, source["title"], source.get("by", ""), " ".join(filter(None, map(source.get, ("date", "url")))))
            for name, source in told["sources"].items()
        ],
    )


def _model_rows(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    active = f", {count_text(model['active_parameters'])} active" if "active_parameters" in model else ""
    return [
        ("name", model["name"]),
        ("what", model["summary"]),
        ("architecture", model["architecture"]),
        ("parameters", count_text(model["parameters"]) + active),
        ("context", f"{model['context']:,} tokens"),
        ("licence", model["license"]),
        ("takes", plain(model.get("modalities", ["text"]))),
    ]


def _host_rows(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    variant = told["variant"]
    host, engine = variant["host"], variant["engine"]
    nodes = "" if told["nodes"] == 1 else f" on each of {told['nodes']} hosts"
    commits = "".join(f", {key.replace('_', ' ')} {engine[key]}" for key in ("commit", "vllm_commit") if key in engine)
    rows = [
        ("accelerator", f"{told['count']} x {variant['accelerator']}{nodes}"),
        ("precision", variant.get("precision", "")),
        ("engine", f"{engine['name']} {engine['version']}{commits}"),
        ("memory", f"{size_text(host['memory_bytes'])} of the host"),
    ]
    rows += [(key.replace("_", " "), plain(value)) for key, value in host.items() if key != "memory_bytes"]
    rows += [
        ("served as", variant.get("served_name", told["model"]["name"])),
        ("features", plain(variant.get("features", []))),
        ("ready within", f"{variant['ready']['timeout_s']} s"),
        ("by", plain(variant.get("contributors", []))),
    ]
    return [(name, text) for name, text in rows if text]


def _argument_lines(arguments: Mapping[str, Any]) -> list[str]:
    return [" ".join(map(shlex.quote, unit_file.argv_of({name: value}))) for name, value in arguments.items()]
