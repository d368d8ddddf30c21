# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What a recipe itself says not to do: the conditions of `forbid`, judged on the variant that states them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from ..lint import Subject, number_of
from ..recipe import Problem, did_you_mean
from .common import Catalogue, engine_version, method, text_of, truthy, vllm_version
from .fixes import applied, pack_of

catalogue = Catalogue()

KINDS = ("argument", "environment", "fix", "engine", "speculative_method")
QUALIFIERS = ("equals", "in", "at_least", "at_most")


def same(value: Any, wanted: Any) -> bool:
    """Whether a value of a recipe is what a condition names: 2 is "2", and true is the text 1, true, yes or on."""
    if isinstance(wanted, bool):
        if isinstance(value, bool):
            return value is wanted
        return isinstance(value, str) and truthy(value) is wanted
    if isinstance(value, bool):
        return isinstance(wanted, str) and text_of(value) == wanted.strip().lower()
    numbers = number_of(value), number_of(wanted)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] == numbers[1]
    return text_of(value) == text_of(wanted)


def qualifies(condition: Mapping[str, Any], value: Any) -> bool:
    """Whether a value that is there meets the qualifiers of a condition, all of them; a list does if one item does."""
    if isinstance(value, list):
        return any(qualifies(condition, item) for item in value)
    if "equals" in condition and not same(value, condition["equals"]):
        return False
    if "in" in condition and not any(same(value, wanted) for wanted in condition["in"]):
        return False
    number = number_of(value)
    if "at_least" in condition and (number is None or number < condition["at_least"]):
        return False
    return not ("at_most" in condition and (number is None or number > condition["at_most"]))


def holds(subject: Subject, condition: Mapping[str, Any]) -> bool:
    """Whether one condition of a forbid rule holds for the variant."""
    absent = condition.get("absent", False) is True
    if "argument" in condition:
        there = condition["argument"] in subject.arguments
        return not there if absent else there and qualifies(condition, subject.arguments[condition["argument"]])
    if "environment" in condition:
        names = [name for name in subject.environment if fnmatch.fnmatchcase(name, condition["environment"])]
        if absent:
            return not names
        return any(qualifies(condition, subject.environment[name]) for name in names)
    if "fix" in condition:
        return (condition["fix"] in applied(subject)) is not absent
    if "speculative_method" in condition:
        found = method(subject)
        return (bool(found) and fnmatch.fnmatchcase(found, condition["speculative_method"].lower())) is not absent
    wanted = condition["engine"].removeprefix("v")
    version = ".".join(map(str, vllm_version(subject)))
    return (wanted in (engine_version(subject).removeprefix("v"), version)) is not absent


def described(condition: Mapping[str, Any]) -> str:
    """A condition as a person would say it: `argument tensor-parallel-size equals 2`."""
    kind = next(name for name in KINDS if name in condition)
    text = f"{kind.replace('_', ' ')} {condition[kind]}"
    if condition.get("absent"):
        return f"{text} absent"
    if "equals" in condition:
        text += f" equals {text_of(condition['equals'])}"
    if "in" in condition:
        text += f" in {', '.join(map(text_of, condition['in']))}"
    if "at_least" in condition:
        text += f" at least {text_of(condition['at_least'])}"
    if "at_most" in condition:
        text += f" at most {text_of(condition['at_most'])}"
    return text


@catalogue.rule(
    "forbidden",
    "error",
    "A variant does nothing that its own forbid rules name.",
    "the recipe's forbid, each with its reason",
)
def forbidden(subject: Subject) -> Iterator[Problem]:
    for entry in subject.variant.get("forbid", []):
        conditions = entry["if"]
        if all(holds(subject, condition) for condition in conditions):
            yield Problem(
                _where(subject, conditions[0]),
                entry["reason"].rstrip("."),
                " and ".join(described(condition) for condition in conditions),
                "not these together" if len(conditions) > 1 else "not this",
                entry.get("todo", "change one of them; the recipe's forbid rule gives the reason"),
            )


def _where(subject: Subject, condition: Mapping[str, Any]) -> Any:
    if "argument" in condition:
        return subject.place("arguments", condition["argument"])
    if "environment" in condition:
        names = subject.variables(condition["environment"])
        return subject.place("environment", names[0] if names else condition["environment"])
    if "fix" in condition:
        return subject.place("fixes")
    return subject.place("engine") if "engine" in condition else subject.place("arguments", "speculative-config")


@catalogue.rule(
    "forbid-condition",
    "error",
    "Every condition of forbid can hold: one that never does protects from nothing.",
    "the recipe schema: condition",
)
def condition_can_hold(subject: Subject) -> Iterator[Problem]:
    pack = pack_of(subject)
    for rule, entry in enumerate(subject.variant.get("forbid", [])):
        for index, condition in enumerate(entry["if"]):
            why = _never(condition)
            expected = "a condition that some variant could meet"
            if "fix" in condition and pack is not None and condition["fix"] not in pack.names:
                why, expected = f"the pack {pack.profile} has no such fix", did_you_mean(condition["fix"], pack.names)
            if why:
                yield Problem(
                    subject.place("forbid", rule, "if", index),
                    f"can never hold as it is meant: {why}",
                    described(condition),
                    expected,
                    "correct the condition",
                )


def _never(condition: Mapping[str, Any]) -> str:
    used = [name for name in QUALIFIERS if name in condition]
    if condition.get("absent") and used:
        return f"what is absent has no value for {', '.join(used)}"
    kind = next(name for name in KINDS if name in condition)
    if kind not in ("argument", "environment") and used:
        return f"{kind} is itself the value, and {', '.join(used)} is not read"
    if "at_least" in condition and "at_most" in condition and condition["at_least"] > condition["at_most"]:
        return "at_least is above at_most"
    if "equals" in condition and not qualifies(
        {name: value for name, value in condition.items() if name != "equals"}, condition["equals"]
    ):
        return "equals contradicts the rest of it"
    return ""


RULES = tuple(catalogue)
