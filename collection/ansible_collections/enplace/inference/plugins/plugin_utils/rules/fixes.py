# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Fix packs as the linter sees them, and the rules of a recipe's `fixes`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..lint import Subject
from ..recipe import COLLECTION, Problem, did_you_mean
from .common import Catalogue, engine_name, engine_version, gated_delta, prefix_caching

FIXES = COLLECTION / "fixes"

catalogue = Catalogue()


@dataclass(frozen=True)
class Fix:
    """One correction to an engine's source: its name, whether it is applied only by name, and what it builds upon."""

    name: str
    opt_in: bool
    requires: tuple[str, ...]
    summary: str


@dataclass(frozen=True)
class Pack:
    """All fixes of one engine version, in the order in which they are applied."""

    profile: str
    engine: str
    version: str
    fixes: tuple[Fix, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(fix.name for fix in self.fixes)

    @property
    def by_default(self) -> frozenset[str]:
        """What the profile applies without being asked."""
        return frozenset(fix.name for fix in self.fixes if not fix.opt_in)


@lru_cache(maxsize=8)
def load_packs(folder: Path) -> dict[str, Pack]:
    """Every pack below a folder, by its profile. Raises ValueError naming the file where one cannot be read."""
    packs: dict[str, Pack] = {}
    for path in sorted(folder.glob("*/pack.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            pack = Pack(
                data["profile"],
                data["engine"]["name"],
                data["engine"]["version"],
                tuple(
                    Fix(item["name"], item["opt_in"], tuple(item["requires"]), item["summary"])
                    for item in data["fixes"]
                ),
            )
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a fix pack ({type(error).__name__}: {error})") from error
        packs[pack.profile] = pack
    return packs


def pack_for(engine: str, version: str) -> Pack | None:
    """The pack of an engine version; None where it has none."""
    for pack in load_packs(FIXES).values():
        if (pack.engine, pack.version) == (engine, version):
            return pack
    return None


def pack_of(subject: Subject) -> Pack | None:
    """The pack that the variant's profile names; None where it names none that there is."""
    fixes = subject.variant.get("fixes")
    return load_packs(FIXES).get(fixes["profile"]) if fixes else None


def applied(subject: Subject) -> frozenset[str]:
    """Names of all fixes that the variant applies: those of its profile and those it asks for by name."""
    pack = pack_of(subject)
    return subject.fixes | (pack.by_default if pack else frozenset())


@catalogue.rule(
    "fix-pack-missing",
    "error",
    "Fixes are asked for only where the engine version has a fix pack.",
    "fixes/<profile>/pack.json",
)
def pack_missing(subject: Subject) -> Iterator[Problem]:
    if "fixes" in subject.variant and pack_for(engine_name(subject), engine_version(subject)) is None:
        known = ", ".join(f"{p.engine} {p.version} ({p.profile})" for p in load_packs(FIXES).values())
        yield Problem(
            subject.place("fixes"),
            "this engine version has no fix pack",
            f"{engine_name(subject)} {engine_version(subject)}",
            known or "none; no pack is shipped",
            "remove fixes, or take the engine version that the pack is for",
        )


@catalogue.rule(
    "fix-profile-unknown",
    "error",
    "fixes.profile is the profile of the engine version's pack.",
    "fixes/<profile>/pack.json",
)
def profile_unknown(subject: Subject) -> Iterator[Problem]:
    pack = pack_for(engine_name(subject), engine_version(subject))
    if "fixes" in subject.variant and pack is not None and subject.variant["fixes"]["profile"] != pack.profile:
        yield Problem(
            subject.place("fixes", "profile"),
            f"is not the profile of {engine_name(subject)} {engine_version(subject)}",
            subject.variant["fixes"]["profile"],
            pack.profile,
            f"set profile: {pack.profile}",
        )


@catalogue.rule("fix-unknown", "error", "Every fix that is named is in the pack.", "fixes/<profile>/pack.json")
def unknown(subject: Subject) -> Iterator[Problem]:
    pack = pack_of(subject)
    if pack is None:
        return
    fixes = subject.variant["fixes"]
    for index, name in enumerate(fixes.get("opt_in", [])):
        if name not in pack.names:
            yield _unknown(subject, pack, name, "opt_in", index)
    for part in ("needs", "not_needed"):
        for name in fixes.get(part, {}):
            if name not in pack.names:
                yield _unknown(subject, pack, name, part, name)


def _unknown(subject: Subject, pack: Pack, name: str, *key: str | int) -> Problem:
    return Problem(
        subject.place("fixes", *key),
        f"the pack {pack.profile} has no such fix",
        name,
        did_you_mean(name, pack.names),
        "correct the name or remove it",
    )


@catalogue.rule(
    "fix-opt-in-by-default",
    "error",
    "fixes.opt_in names only fixes that the profile does not apply anyway.",
    "fixes/<profile>/pack.json",
)
def opt_in_by_default(subject: Subject) -> Iterator[Problem]:
    pack = pack_of(subject)
    if pack is not None:
        for index, name in enumerate(subject.variant["fixes"].get("opt_in", [])):
            if name in pack.by_default:
                yield Problem(
                    subject.place("fixes", "opt_in", index),
                    f"the profile {pack.profile} applies this fix anyway",
                    name,
                    "only fixes that are opt-in: " + ", ".join(sorted(pack.names - pack.by_default)),
                    "remove it from opt_in",
                )


@catalogue.rule(
    "fix-requirement",
    "error",
    "A fix is applied together with every fix that it builds upon.",
    "requires of fixes/<profile>/pack.json",
)
def requirement(subject: Subject) -> Iterator[Problem]:
    pack = pack_of(subject)
    if pack is None:
        return
    have = applied(subject)
    asked = list(subject.variant["fixes"].get("opt_in", []))
    for fix in pack.fixes:
        missing = [name for name in fix.requires if name not in have]
        if fix.name in have and missing:
            key = ("opt_in", asked.index(fix.name)) if fix.name in asked else ("profile",)
            yield Problem(
                subject.place("fixes", *key),
                f"{fix.name} builds upon a fix that is not applied",
                f"{fix.name} without {', '.join(missing)}",
                f"{fix.name} with {', '.join(missing)}",
                f"add {', '.join(missing)} to fixes.opt_in",
            )


@catalogue.rule(
    "fix-reason",
    "error",
    "needs and not_needed give reasons for fixes that are applied, and each fix has one of the two.",
    "the recipe schema: needs, not_needed",
)
def reason(subject: Subject) -> Iterator[Problem]:
    pack = pack_of(subject)
    if pack is None:
        return
    fixes = subject.variant["fixes"]
    have = applied(subject)
    for part in ("needs", "not_needed"):
        for name in fixes.get(part, {}):
            if name in pack.names and name not in have:
                yield Problem(
                    subject.place("fixes", part, name),
                    "gives a reason for a fix that this variant does not apply",
                    name,
                    "a fix of the profile or of opt_in",
                    f"add {name} to fixes.opt_in, or remove the reason",
                )
    for name in fixes.get("needs", {}):
        if name in fixes.get("not_needed", {}):
            yield Problem(
                subject.place("fixes", "not_needed", name),
                "the same fix is said to be needed and not to be needed",
                name,
                "one of needs and not_needed",
                "remove it from one of them",
            )


@catalogue.rule(
    "fix-without-effect",
    "warning",
    "An opt-in fix is applied where it has something to mend.",
    "the Gaudi page, Required fixes: gdn-prefix-cache is for prefix caching on Gated DeltaNet layers",
)
def without_effect(subject: Subject) -> Iterator[Problem]:
    if "gdn-prefix-cache" not in subject.fixes:
        return
    reasons = []
    if not gated_delta(subject):
        reasons.append("the model has no Gated DeltaNet layers")
    if not prefix_caching(subject):
        reasons.append("prefix caching is off")
    if reasons:
        yield Problem(
            subject.place("fixes", "opt_in"),
            f"gdn-prefix-cache changes nothing here: {' and '.join(reasons)}",
            "gdn-prefix-cache",
            "enable-prefix-caching, on a Gated DeltaNet model",
            "turn prefix caching on, or remove the fix",
        )


RULES = tuple(catalogue)
