# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""`enplace lint`: findings for people, programs, code hosts and workflows."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible_collections.enplace.inference.plugins.plugin_utils.lint import Rule, catalogue, lint_path
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import RECIPES, Place, Problem, RecipeError

from . import __version__, common

# From here on a second process is worth its start.
PARALLEL_FROM = 24

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True)
class Result:
    """What a run found: the files it read, and the findings in the order of the files."""

    paths: Sequence[Path]
    problems: Sequence[Problem]

    def count(self, severity: str) -> int:
        return sum(problem.severity == severity for problem in self.problems)


def run(options: argparse.Namespace) -> int:
    """The command."""
    form = options.format or ("json" if options.json else "text")
    if options.json and form != "json":
        common.err("enplace lint: --json and --format say different things")
        return 2
    if options.rules:
        return _rules(options.targets, form)
    if form == "markdown":
        common.err("enplace lint: --format markdown is for --rules")
        return 2
    try:
        wanted = targets(options.targets, options.recipes)
    except RecipeError as error:
        return common.tell(error.problems) and 2
    result = lint([path for path, _ in wanted], [variant for _, variant in wanted])
    FORMATS[form](result)
    if common.unreadable(result.problems):
        return 2
    return 1 if result.count("error") else 0


def targets(names: Sequence[str], extra: Sequence[str]) -> list[tuple[Path, str]]:
    """The files to lint, each once, with the variant that is asked about, empty for all. Raises RecipeError."""
    found: dict[tuple[Path, str], None] = {}
    if not names:
        here = [Path(name) for name in extra] or ([Path("recipes")] if Path("recipes").is_dir() else [RECIPES])
        names = [str(folder) for folder in here]
    for name in names:
        path = Path(name).expanduser()
        if os.path.isdir(path):
            below = list(common.recipes_below(path))
            if not below:
                todo = "name a folder that has <org>/<model>/recipe.yaml in it"
                raise RecipeError([Problem(name, "has no recipe below it", "none", "recipe.yaml", todo, "unreadable")])
            found.update(dict.fromkeys((each, "") for each in below))
        else:
            found[common.find_path(name, extra)] = None
    return list(found)


def lint(paths: Sequence[Path], variants: Sequence[str] = ()) -> Result:
    """Lint files, several at once where there are many. variants: what each is asked about, empty for all of it."""
    wanted = list(variants) or [""] * len(paths)
    workers = min(os.cpu_count() or 1, 8)
    # Recipes are trees without circles; looking for circles in them takes a fifth of the time.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    if len(paths) < PARALLEL_FROM or workers < 2:
        found = [lint_path(path) for path in paths]
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        # The rules are imported here, once; the processes get them with the fork.
        catalogue()
        # Small chunks: files differ in size.
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            found = list(pool.map(lint_path, paths, chunksize=8))
    problems = [
        problem
        for name, each in zip(wanted, found, strict=True)
        for problem in each
        if not name or common.about(problem, name)
    ]
    return Result(paths, problems)


# For people ----------------------------------------------------------------------------------------------------------

_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "note": "\x1b[1;36m"}


def _text(result: Result) -> None:
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for problem in result.problems:
        told = common.finding(problem)
        if colour:
            mark = f": {problem.severity}: "
            told = told.replace(mark, f": {_COLOURS[problem.severity]}{problem.severity}\x1b[0m: ", 1)
            sys.stdout.write(told + "\n")
        else:
            common.out(told)
    numbers = [common.counted(result.count(name), name) for name in ("error", "warning", "note")]
    common.out(f"{common.counted(len(result.paths), 'recipe')}: {', '.join(numbers)}")


# For programs --------------------------------------------------------------------------------------------------------


def as_data(problem: Problem) -> dict[str, Any]:
    """One finding as data. line and column from 1; null where the finding is about no place in the file."""
    where = problem.where
    return {
        "rule": problem.rule,
        "severity": problem.severity,
        "path": common.shown(where.path) if isinstance(where, Place) else where,
        "line": (where.line or None) if isinstance(where, Place) else None,
        "column": (where.column or None) if isinstance(where, Place) else None,
        "field": where.field if isinstance(where, Place) else "",
        "what": problem.what,
        "found": problem.found,
        "expected": problem.expected,
        "todo": problem.todo,
    }


def _json(result: Result) -> None:
    common.print_json(
        {
            "format": 1,
            "recipes": [common.shown(path) for path in result.paths],
            "findings": [as_data(problem) for problem in result.problems],
            "errors": result.count("error"),
            "warnings": result.count("warning"),
            "notes": result.count("note"),
        }
    )


def message(problem: Problem) -> str:
    """A finding in a few lines, without its place: for readers that show the place themselves."""
    field = f"{problem.where.field}: " if isinstance(problem.where, Place) else ""
    lines = [f"{field}{problem.what}"]
    for label, text in (("expected", problem.expected), ("found", problem.found), ("what to do", problem.todo)):
        if text:
            lines.append(f"{label}: {text}")
    return "\n".join(lines)


def sarif(result: Result) -> dict[str, Any]:
    """SARIF 2.1.0: one run with every rule and every finding."""
    rules = catalogue()
    index = {rule.id: number for number, rule in enumerate(rules)}
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "enplace",
                        "semanticVersion": __version__,
                        "rules": [_sarif_rule(rule) for rule in rules],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(problem, index) for problem in result.problems],
            }
        ],
    }


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.summary},
        "help": {"text": f"{rule.summary}\n\nSource: {rule.source}"},
        "defaultConfiguration": {"level": rule.severity},
    }


def _sarif_result(problem: Problem, index: Mapping[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ruleId": problem.rule,
        "level": problem.severity,
        "message": {"text": message(problem)},
    }
    if problem.rule in index:
        found["ruleIndex"] = index[problem.rule]
    if isinstance(problem.where, Place):
        # Relative to the folder of the run, as code hosts expect it; a file elsewhere by its whole address.
        path = common.shown(problem.where.path)
        address = Path(path).as_uri() if os.path.isabs(path) else quote(Path(path).as_posix())
        place: dict[str, Any] = {"artifactLocation": {"uri": address}}
        if problem.where.line:
            place["region"] = {"startLine": problem.where.line, "startColumn": problem.where.column}
        found["locations"] = [{"physicalLocation": place}]
    return found


def _sarif(result: Result) -> None:
    common.print_json(sarif(result))


# For workflows -------------------------------------------------------------------------------------------------------

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def annotation(problem: Problem) -> str:
    """One finding as a workflow command: `::error file=...,line=...,col=...,title=...::message`."""
    properties = []
    if isinstance(problem.where, Place):
        properties.append(f"file={_property(common.shown(problem.where.path))}")
        if problem.where.line:
            properties += [f"line={problem.where.line}", f"col={problem.where.column}"]
    properties.append(f"title={_property(problem.rule)}")
    return f"::{_COMMANDS[problem.severity]} {','.join(properties)}::{_data(message(problem))}"


def _github(result: Result) -> None:
    for problem in result.problems:
        common.out(annotation(problem))


FORMATS: Mapping[str, Callable[[Result], None]] = {
    "text": _text,
    "json": _json,
    "sarif": _sarif,
    "github": _github,
}


# Rules ---------------------------------------------------------------------------------------------------------------


def _rules(names: Sequence[str], form: str) -> int:
    known = {rule.id: rule for rule in catalogue()}
    unknown = [name for name in names if name not in known]
    if unknown:
        from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import did_you_mean

        common.err(f"enplace lint --rules: no such rule: {unknown[0]}; {did_you_mean(unknown[0], known)}")
        return 2
    rules = [known[name] for name in names] or list(known.values())
    if form == "json":
        common.print_json(
            [
                {"rule": rule.id, "severity": rule.severity, "summary": rule.summary, "source": rule.source}
                for rule in rules
            ]
        )
    elif form == "markdown":
        common.out("| rule | severity | what must hold | source |")
        common.out("| --- | --- | --- | --- |")
        for rule in sorted(rules, key=lambda rule: rule.id):
            common.out(f"| `{rule.id}` | {rule.severity} | {_cell(rule.summary)} | {_cell(rule.source)} |")
    elif form == "text":
        for rule in rules:
            common.out(f"{rule.id} ({rule.severity})\n  {rule.summary}\n  source: {rule.source}")
    else:
        common.err(f"enplace lint --rules: --format {form} is for findings; use text, json or markdown")
        return 2
    return 0


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
