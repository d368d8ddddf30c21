# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What a rule is, what it sees, and how all rules are put to a recipe. The rules themselves are in rules.py."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .recipe import Document, Place, Problem

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Subject:
    """One variant of one recipe as a rule sees it. `engine`: the manifest of its engine version."""

    document: Document
    name: str
    engine: Document

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

