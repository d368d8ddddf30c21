# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of evidence: figures, their sources and conditions, what was inferred, and who verified."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..lint import Subject
from ..recipe import Document, Problem, did_you_mean
from .common import Catalogue, context_of, figures, first, text_of

catalogue = Catalogue()

SIZES = ("GiB", "GB", "bytes")
TIMES = ("s", "ms")
SHARES = ("percent", "ratio")
UNITS: dict[str, tuple[str, ...]] = {
    "decode_rate": ("tok/s",),
    "prefill_rate": ("tok/s",),
    "stream_rate": ("tok/s",),
    "aggregate_rate": ("tok/s",),
    "ttft": TIMES,
    "time_to_answer": TIMES,
    "acceptance": SHARES,
    "position_acceptance": SHARES,
    "tokens_per_step": ("tokens", "ratio", "count"),
    "speedup": SHARES,
    "power": ("W",),
    "kv_pool_tokens": ("tokens",),
    "kv_pool_bytes": SIZES,
    "kv_block_tokens": ("tokens",),
    "concurrency": ("ratio", "count"),
    "resident": SIZES,
    "working_set": SIZES,
    "disk": SIZES,
    "memory_saved": SIZES,
    "startup": TIMES,
    "time_to_failure": TIMES,
    "loss": SHARES,
    "checks_passed": ("count", "ratio", "percent"),
    "cached_token_multiple": ("tokens",),
}
# A share of a whole; a speed-up and a loss may be more than one whole.
PARTS = ("acceptance", "position_acceptance")


def _named_sources(subject: Subject) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every name of a source in the variant, with its key."""
    for index, figure in figures(subject):
        yield ("figures", index, "source"), figure["source"]
    for index, entry in enumerate(subject.variant.get("inferred", [])):
        yield ("inferred", index, "source"), entry["source"]
    if "source" in subject.variant.get("verified", {}):
        yield ("verified", "source"), subject.variant["verified"]["source"]


def _of_model(subject: Subject) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every name of a source in the model, with its key; said once for the recipe."""
    if first(subject):
        for index, entry in enumerate(subject.model.get("inferred", [])):
            yield ("model", "inferred", index, "source"), entry["source"]
        for index, name in enumerate(subject.model.get("sources", [])):
            yield ("model", "sources", index), name


@catalogue.rule(
    "source-unknown", "error", "Every source that is named is one of the recipe's sources.", "recipe schema: sources"
)
def source_unknown(subject: Subject) -> Iterator[Problem]:
    known = subject.document.data.get("sources", {})
    named = [(("variants", subject.name, *key), name) for key, name in _named_sources(subject)]
    for key, name in [*_of_model(subject), *named]:
        if name not in known:
            yield Problem(
                subject.document.place(key),
                "the recipe has no such source",
                name,
                did_you_mean(name, known) if known else "a source that is listed; the recipe lists none",
                "add it to sources, with its title and address",
            )


@catalogue.rule("source-unused", "note", "Every source is the source of something.", "recipe schema: sources")
def source_unused(subject: Subject) -> Iterator[Problem]:
    if not first(subject):
        return
    document = subject.document
    used = {
        name
        for variant in document.data["variants"]
        for _key, name in _named_sources(Subject(document, variant, subject.engine))
    }
    used |= {name for _key, name in _of_model(subject)}
    for name, source in document.data.get("sources", {}).items():
        if name not in used and not _card(document, source.get("url", "")):
            yield Problem(
                document.place(("sources", name)),
                "nothing names this source",
                name,
                "a figure, an inference or a verification from it, or model.sources",
                "name it where it is the source, or remove it",
            )


def _card(document: Document, url: str) -> bool:
    """Whether an address is a model card of the recipe, which is the source of everything that model says."""
    names = {document.data["model"]["name"]}
    for variant in document.data["variants"].values():
        names |= {variant[part]["repository"] for part in ("weights", "draft") if part in variant}
    path = url.rstrip("/").split("://", 1)[-1].split("/", 1)[-1]
    return any(path == name or path.startswith(f"{name}/") for name in names)


@catalogue.rule(
    "inferred-field",
    "error",
    "inferred names values that the variant or the model has.",
    "recipe schema: inferred.field",
)
def inferred_field(subject: Subject) -> Iterator[Problem]:
    yield from _unknown_fields(subject, ("variants", subject.name), subject.variant, "arguments.max-num-seqs")
    if first(subject):
        yield from _unknown_fields(subject, ("model",), subject.model, "geometry.layers[0].kv_heads")


def _unknown_fields(
    subject: Subject, base: tuple[str, ...], whole: Mapping[str, Any], example: str
) -> Iterator[Problem]:
    for index, entry in enumerate(whole.get("inferred", [])):
        here: Any = whole
        for part in re.findall(r"[^.\[\]]+", entry["field"]) or [entry["field"]]:
            if isinstance(here, Mapping) and part in here:
                here = here[part]
            elif isinstance(here, list) and part.isdecimal() and int(part) < len(here):
                here = here[int(part)]
            else:
                near = list(here) if isinstance(here, Mapping) else []
                yield Problem(
                    subject.document.place((*base, "inferred", index, "field")),
                    f"the {base[0].rstrip('s')} has no such value: {part} is not there",
                    entry["field"],
                    did_you_mean(part, near) if near else f"a path such as {example}",
                    "correct the path, or remove the entry",
                )
                break


@catalogue.rule("figure-unit", "error", "The unit of a figure is one of its metric.", "recipe schema: figure")
def figure_unit(subject: Subject) -> Iterator[Problem]:
    for index, figure in figures(subject):
        allowed = UNITS.get(figure["metric"])
        if allowed is not None and figure["unit"] not in allowed:
            yield Problem(
                subject.place("figures", index, "unit"),
                f"{figure['metric']} is not measured in this unit",
                figure["unit"],
                " or ".join(allowed),
                "correct the unit or the metric",
            )


@catalogue.rule(
    "figure-range", "error", "A figure is a possible number: low, value, high in order, none impossible.", "arithmetic"
)
def figure_range(subject: Subject) -> Iterator[Problem]:
    for index, figure in figures(subject):
        given = [(key, figure[key]) for key in ("low", "value", "high") if key in figure]
        if any(left[1] > right[1] for left, right in itertools.pairwise(given)):
            yield Problem(
                subject.place("figures", index),
                "its numbers are not in order",
                ", ".join(f"{key} {text_of(number)}" for key, number in given),
                "low <= value <= high",
                "correct them",
            )
        top = {"percent": 100, "ratio": 1}.get(figure["unit"]) if figure["metric"] in PARTS else None
        for key, number in given:
            if number < 0 or (top is not None and number > top):
                yield Problem(
                    subject.place("figures", index, key),
                    f"{figure['metric']} cannot be so",
                    f"{text_of(number)} {figure['unit']}",
                    f"0 to {top}" if top is not None else "0 or more",
                    "correct the number or the unit",
                )


@catalogue.rule(
    "figure-conditions",
    "error",
    "The conditions of a figure are possible: its prompt fits the context, its position was drafted.",
    "arithmetic",
)
def figure_conditions(subject: Subject) -> Iterator[Problem]:
    served = context_of(subject)
    for index, figure in figures(subject):
        at = figure.get("at", {})
        length, room = at.get("prompt_tokens"), at.get("context", served)
        if length is not None and room is not None and length + at.get("output_tokens", 0) > room:
            yield Problem(
                subject.place("figures", index, "at", "prompt_tokens"),
                "the prompt and its output do not fit the context",
                f"{length} + {at.get('output_tokens', 0)} tokens",
                f"at most {room}",
                "correct it, or state the context it was measured with (at.context)",
            )
        if figure["metric"] == "position_acceptance" and "position" not in at:
            yield Problem(
                subject.place("figures", index),
                "does not say of which drafted position it is",
                "no at.position",
                "at: {position: 0}",
                "add the position, counted from 0",
            )
        if "position" in at and "draft_tokens" in at and at["position"] >= at["draft_tokens"]:
            yield Problem(
                subject.place("figures", index, "at", "position"),
                "is a position that was never drafted",
                f"position {at['position']} of {at['draft_tokens']} drafted tokens",
                "0 to draft_tokens - 1",
                "correct one of the two; positions count from 0",
            )


@catalogue.rule(
    "figure-repeated",
    "warning",
    "Figures of the same metric and source differ in their conditions or their method.",
    "one thing measured once",
)
def figure_repeated(subject: Subject) -> Iterator[Problem]:
    seen: list[Mapping[str, Any]] = []
    ignored = ("value", "low", "high", "stdev", "tolerance", "note", "unit")
    for index, figure in figures(subject):
        if "value" not in figure and "low" not in figure:
            continue
        plain = {key: value for key, value in figure.items() if key not in ignored}
        if plain in seen:
            yield Problem(
                subject.place("figures", index),
                f"a second {figure['metric']} with the same conditions, method and source",
                text_of(figure.get("value", f"{figure.get('low')} to {figure.get('high')}")),
                "one figure, or conditions that tell the two apart",
                "state what differs under at or method, or give low and high",
            )
        seen.append(plain)


@catalogue.rule(
    "verified-source",
    "error",
    "verified names the source of the claim.",
    "a claim without evidence is none",
)
def verified_source(subject: Subject) -> Iterator[Problem]:
    verified = subject.variant.get("verified")
    if verified is not None and "source" not in verified:
        yield Problem(
            subject.place("verified"),
            "says that somebody verified this, and not where that is written",
            "no source",
            "source: one of sources",
            "add the source, or remove verified",
        )


@catalogue.rule(
    "verified-without-figures",
    "note",
    "A verified variant states what was measured.",
    "without figures a host cannot tell whether it does as well",
)
def verified_figures(subject: Subject) -> Iterator[Problem]:
    if "verified" in subject.variant and "figures" not in subject.variant:
        yield Problem(
            subject.place("verified"),
            "states no figure, so a host has nothing to compare itself with",
            "no figures",
            "at least one figure",
            "add what was measured",
        )


@catalogue.rule("date-impossible", "error", "Dates are days of the calendar.", "ISO 8601")
def dates(subject: Subject) -> Iterator[Problem]:
    found: list[tuple[tuple[str | int, ...], str]] = []
    base = ("variants", subject.name)
    if "date" in subject.variant.get("verified", {}):
        found.append(((*base, "verified", "date"), subject.variant["verified"]["date"]))
    found += [((*base, "figures", i, "date"), figure["date"]) for i, figure in figures(subject) if "date" in figure]
    if first(subject):
        for name, source in subject.document.data.get("sources", {}).items():
            if "date" in source:
                found.append((("sources", name, "date"), source["date"]))
    for key, text in found:
        try:
            datetime.date.fromisoformat(text)
        except ValueError:
            yield Problem(
                subject.document.place(key),
                "is not a day of the calendar",
                text,
                "YYYY-MM-DD",
                "correct the date",
            )


RULES = tuple(catalogue)
