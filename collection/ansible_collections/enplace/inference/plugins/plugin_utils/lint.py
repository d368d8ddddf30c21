# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What a rule is, what it sees, and how all rules are put to a recipe. The rules are in the package rules."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from .recipe import (
    ENGINES,
    Document,
    Place,
    Problem,
    RecipeError,
    in_order,
    load_engine,
    load_yaml,
    validate,
)

SEVERITIES = ("error", "warning", "note")

Made = TypeVar("Made")


@dataclass(frozen=True)
class Subject:
    """One variant of one recipe as a rule sees it. `engine`: the manifest of its engine version."""

    document: Document
    name: str
    engine: Document
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What several rules need of one variant, made by the first that asks. key: names it among all rules."""
        if key not in self._made:
            self._made[key] = make()
        found: Made = self._made[key]
        return found

    @property
    def model(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.document.data["model"]
        return found

    @property
    def variant(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.document.data["variants"][self.name]
        return found

    @property
    def arguments(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.variant["arguments"]
        return found

    @property
    def environment(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.variant.get("environment", {})
        return found

    @property
    def speculation(self) -> Mapping[str, Any]:
        """The variant's speculative-config; empty where there is none."""
        found = self.arguments.get("speculative-config", {})
        return found if isinstance(found, Mapping) else {}

    @property
    def fixes(self) -> frozenset[str]:
        """Names of the opt-in fixes that the variant asks for."""
        return frozenset(self.variant.get("fixes", {}).get("opt_in", []))

    def variables(self, pattern: str) -> list[str]:
        """The variant's environment variables that match a shell pattern."""
        return [name for name in self.environment if fnmatch.fnmatchcase(name, pattern)]

    def place(self, *key: str | int) -> Place:
        """Where a value of this variant was read from: `place("arguments", "max-model-len")`."""
        return self.document.place(("variants", self.name, *key))

    def model_place(self, *key: str | int) -> Place:
        """Where a value of the model was read from."""
        return self.document.place(("model", *key))


@dataclass(frozen=True)
class Rule:
    """One thing that makes a recipe wrong, with its reason.

    id: kebab-case, never reused. severity: error (the recipe is refused), warning, note.
    summary: one sentence, what must hold. source: where that is known from. check: yields one Problem a finding, with
    `where` a Place; the rule's id and severity are added to it.
    """

    id: str
    severity: str
    summary: str
    source: str
    check: Callable[[Subject], Iterator[Problem]]


def _nothing(subject: Subject) -> Iterator[Problem]:
    del subject
    return iter(())


# What the loader, the schema and the linter itself find. They have no check of their own: what they look at comes
# before there is a variant to look at.
OWN_RULES: tuple[Rule, ...] = (
    Rule(
        "unreadable",
        "error",
        "The file can be read: it is there, it is a file, it is UTF-8 text, and it is no larger than a recipe may be.",
        "recipes are pages",
        _nothing,
    ),
    Rule(
        "yaml",
        "error",
        "The file is one plain YAML document: no anchors, tags, templates, tabs or repeated keys, of ordinary depth.",
        "docs/recipes.md: a recipe is literal, every reader sees the same values",
        _nothing,
    ),
    Rule("schema", "error", "The recipe has the form that the schema describes.", "recipes/schema.json", _nothing),
    Rule(
        "engine-unknown",
        "error",
        "engines/ has a manifest of the variant's engine version.",
        "the flag table and the lock of the exact version are what the other rules look into",
        _nothing,
    ),
    Rule(
        "rule-crashed",
        "error",
        "Every rule comes to its end. One that does not is a mistake in enplace; the recipe was not wholly checked.",
        "a rule that says nothing because it broke must not look like one that found nothing",
        _nothing,
    ),
)


def catalogue() -> list[Rule]:
    """Every rule there is: those of the linter itself first, then those of the package rules, in their order."""
    # Not at the top: the rules import this module.
    from .rules import RULES

    return [*OWN_RULES, *RULES]


def lint_document(document: Document, *, engines: Path = ENGINES) -> list[Problem]:
    """Every finding of one loaded recipe, in the order of the file. Never raises for what a recipe can contain.

    What the schema finds comes alone: rules are written for recipes of the right form. engines: the manifests' folder.
    """
    problems = validate(document)
    if problems:
        return problems
    from .rules import RULES

    found: list[Problem] = []
    for name, variant in document.data["variants"].items():
        engine = variant["engine"]
        try:
            manifest = load_engine(engine["name"], engine["version"], engines=engines)
        except RecipeError as error:
            place = document.place(("variants", name, "engine", "version"))
            found += [replace(problem, where=place, rule="engine-unknown") for problem in error.problems]
            continue
        found += run_rules(RULES, Subject(document, name, manifest))
    return in_order(found)


def run_rules(rules: Iterable[Rule], subject: Subject) -> list[Problem]:
    """The findings of rules about one variant, each with its rule's id and severity.

    A rule that raises is a finding of its own, `rule-crashed`: neither a traceback nor silence.
    """
    found: list[Problem] = []
    for rule in rules:
        try:
            found += [replace(problem, rule=rule.id, severity=rule.severity) for problem in rule.check(subject)]
        except Exception as error:  # noqa: BLE001 - whatever a rule raises is told, with its name
            found.append(
                Problem(
                    subject.place(),
                    f"the rule {rule.id} came to no end",
                    f"{type(error).__name__}: {error}"[:300],
                    "a finding or none",
                    "this is a mistake in enplace, not in the recipe: report it with the recipe",
                    rule="rule-crashed",
                )
            )
    return found


def lint_path(path: Path, *, engines: Path = ENGINES) -> list[Problem]:
    """Every finding of one recipe file, in the order of the file. What makes it unreadable is a finding too."""
    try:
        document = load_yaml(path)
    except RecipeError as error:
        return error.problems
    return lint_document(document, engines=engines)


def number_of(value: Any) -> float | None:
    """The finite number that a value or its text is; None where it is none. true and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
