# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""`enplace report`: reports of verification as pages for people and as results for programs.

A report is text of a server in large part: whatever is in it is shown, and nothing of it is obeyed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import jsonschema
from ansible_collections.enplace.inference.plugins.module_utils import files
from ansible_collections.enplace.inference.plugins.module_utils.verify.report import MAX_REPORT_BYTES
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    RECIPES,
    Place,
    Problem,
    did_you_mean,
    field_name,
)
from markupsafe import Markup

from . import __version__, common
from .charts import charts, streams_text
from .show import tolerance_text

SCHEMA = RECIPES / "report.schema.json"
# Earlier reports of one recipe that are kept on the controller.
KEEP = 20
# What neither HTML nor XML may hold, besides what common.clean makes visible.
_NO_CHARACTERS = re.compile("[\ud800-\udfff\ufffe\uffff]")
MAX_SHOWN = 100
# Of one file: what fits on a screen.
MAX_PROBLEMS = 5

WORDS = {
    "pass": "passed",
    "fail": "failed",
    "refused": "refused",
    "not run": "not run",
    # Of a whole report alone, whose checks passed.
    "warning": "passed, figures outside tolerance",
}
# Beside the word, for those who look quickly. None is told by its colour alone.
MARKS = {"pass": "✓", "fail": "✗", "refused": "○", "not run": "…", "warning": "!"}


class Invalid(Exception):
    """A file that is no report: everything that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems[0].what)
        self.problems = list(problems)


@dataclass(frozen=True)
class Report:
    """One valid report and the file it came from."""

    path: Path
    content: bytes
    data: Mapping[str, Any]

    @property
    def host(self) -> str:
        return Path(os.path.abspath(self.path)).parent.name

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def recipe(self) -> str:
        """What was verified: a recipe, or a server that is known by its address alone."""
        subject = self.data["subject"]
        return str(subject["recipe"] or f"{subject['model']} at {subject['url']}")

    @property
    def suite(self) -> str:
        """What the checks were for, and how often they ran."""
        rounds = self.data.get("rounds")
        return str(self.data["subject"]["suite"]) + (f", {rounds} rounds" if rounds else "")

    @property
    def refused(self) -> bool:
        """Whether it is of a release that was not taken into service."""
        return self.name.endswith(".refused")

    @property
    def problems(self) -> list[str]:
        """What did not hold beside the checks."""
        cut_off = [] if self.data["complete"] else ["the run was interrupted: what follows is not all of it"]
        return cut_off + list(self.data["problems"])

    @property
    def status(self) -> str:
        """Of the whole: pass only where the report says so; a warning where a figure is outside its tolerance."""
        found = Counter(check["status"] for check in self.data["checks"])
        if found["fail"] or self.problems:
            return "fail"
        if found["not run"] or not found:
            return "not run"
        if not self.data["all_passed"]:
            return "fail"
        return "warning" if self.outside else "pass"

    @property
    def outside(self) -> list[Mapping[str, Any]]:
        """The figures that are not within the recipe's tolerance."""
        return [figure for figure in self.data.get("figures", []) if figure.get("within") is False]

    @property
    def warnings(self) -> list[str]:
        """What is to be seen before the figures are read: those outside of their tolerance, and every alarm."""
        alarms: dict[str, list[str]] = {}
        for figure in self.data.get("figures", []):
            for text in figure["alarms"]:
                alarms.setdefault(text, []).append(figure_name(figure))
        return [
            f"{figure_name(figure)}: {value_text(figure)} is not within the recipe's {recipe_text(figure)}"
            for figure in self.outside
        ] + [f"Alarm: {text} ({'; '.join(names)})" for text, names in alarms.items()]

    @property
    def counts(self) -> str:
        """`15 of 16 checks passed, 1 failed`."""
        found = Counter(check["status"] for check in self.data["checks"])
        good = found["pass"] + found["refused"]
        parts = [f"{good} of {common.counted(found.total(), 'check')} passed"]
        parts += [f"{found[status]} {WORDS[status]}" for status in ("fail", "not run") if found[status]]
        if self.problems:
            parts.append(common.counted(len(self.problems), "problem") + " beside them")
        if self.outside:
            parts.append(common.counted(len(self.outside), "figure") + " outside tolerance")
        alarming = sum(bool(figure["alarms"]) for figure in self.data.get("figures", []))
        if alarming:
            parts.append(common.counted(alarming, "figure") + " with an alarm")
        return ", ".join(parts)


def run(options: argparse.Namespace) -> int:
    """The command. Ends with 1 where a file is no report; pages of the others are written all the same."""
    status = 0
    for name in options.paths or ["reports"]:
        path = Path(name).expanduser()
        try:
            found = reports_in(path)
        except Invalid as error:
            common.tell(error.problems)
            return 2
        listed: list[Report | Path] = []
        for each in found:
            try:
                report = read(each)
                problems = write(report)
            except Invalid as error:
                problems, report = error.problems, None
            except OSError as error:
                problems, report = [_unwritable(error, each)], None
            listed.append(report or each)
            if problems:
                status = 1
                common.tell(problems)
            if report is not None:
                common.out(common.one_line(f"{report.host}/{report.name}: {WORDS[report.status]}: {report.counts}"))
        if path.is_dir():
            try:
                _write(path / "index.html", index(path, listed))
            except OSError as error:
                status = 1
                common.tell([_unwritable(error, path)])
    return status


# Reading -------------------------------------------------------------------------------------------------------------


def reports_in(path: Path) -> list[Path]:
    """The reports that a path names: a file, the folder of one host, or a folder of hosts. Raises Invalid."""
    if path.is_file() and path.suffix == ".json":
        return [path]
    todo = "name a report, or the folder that a run keeps them in (enplace_reports_dir, ./reports by default)"
    if not path.is_dir():
        found = "another file" if path.exists() else "nothing"
        raise Invalid([_problem(path, "is no report", found, "a file <slug>.json, or a folder of reports", todo)])
    # Other files may lie beside the hosts' folders, but a host's own has reports alone.
    below = sorted(path.glob("*/*.json")) or sorted(path.glob("*.json"))
    if not below:
        raise Invalid([_problem(path, "has no report in it", "none", "<host>/<slug>.json or <slug>.json", todo)])
    return below


def read(path: Path) -> Report:
    """A report that has the form of the schema. Raises Invalid."""
    todo = "run site.yml again, which keeps the host's own report here; or remove the file"
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_REPORT_BYTES + 1)
    except OSError as error:
        raise Invalid([_problem(path, "cannot be read", str(error.strerror), "a file that you may read", "")]) from None
    if len(content) > MAX_REPORT_BYTES:
        found = f"more than {MAX_REPORT_BYTES:,} bytes"
        raise Invalid([_problem(path, "is too large for a report", found, f"{MAX_REPORT_BYTES:,} bytes at most", todo)])
    try:
        data = json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        found = str(error) or "values nested too deeply"
        raise Invalid([_problem(path, "is not JSON", found, "a report as JSON", todo)]) from None
    # Each once: an object that lacks several keys is several errors.
    problems = list(
        dict.fromkeys(found for error in _validator().iter_errors(data) for found in _explained(path, error))
    )
    if problems:
        more = f"; {common.counted(len(problems) - MAX_PROBLEMS, 'more problem')} in this file"
        told = [replace(problem, todo=todo) for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            told[-1] = replace(told[-1], todo=todo + more)
        raise Invalid(told)
    return Report(path, content, data)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


@lru_cache(maxsize=1)
def _validator() -> Any:
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def _problem(path: Path, what: str, found: str, expected: str, todo: str, key: Sequence[str | int] = ()) -> Problem:
    return Problem(Place(path, 0, 0, field_name(key)), what, found, expected, todo, "report")


def _explained(path: Path, error: Any) -> Iterator[Problem]:
    """One error of jsonschema as problems that name the field."""
    key = tuple(error.absolute_path)
    known = error.schema.get("properties", {})
    if error.validator == "additionalProperties" and isinstance(error.validator_value, bool):
        for name in error.instance:
            if name not in known:
                yield _problem(path, "unknown key", name[:MAX_SHOWN], did_you_mean(name, known), "", (*key, name))
    elif error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance:
                meaning = known[name].get("description", "a value")
                yield _problem(path, "is missing", ", ".join(error.instance)[:MAX_SHOWN], meaning, "", (*key, name))
    else:
        found = json.dumps(error.instance, ensure_ascii=False)
        found = found if len(found) <= MAX_SHOWN else found[:MAX_SHOWN] + "..."
        expected = f"{error.validator}: {json.dumps(error.validator_value, ensure_ascii=False)}"
        yield _problem(path, "has a wrong value", found, expected, "", key)


# Writing -------------------------------------------------------------------------------------------------------------


def write(report: Report) -> list[Problem]:
    """The pages of a report beside it, and its copy among the earlier ones. What is wrong with those."""
    keep(report)
    earlier, problems = history(report)
    for suffix, text in (
        (".html", page(report, earlier)),
        (".md", markdown(report)),
        (".xml", junit(report)),
    ):
        _write(report.path.with_name(report.name + suffix), text)
    return problems


def _write(path: Path, text: str) -> None:
    files.write_text(str(path), text)


def _unwritable(error: OSError, path: Path) -> Problem:
    todo = "make room, or let the user who runs this write there"
    where = Path(str(error.filename or path))
    return _problem(where, "the pages cannot be written", str(error.strerror), "a folder that takes files", todo)


# Earlier reports -----------------------------------------------------------------------------------------------------


def _folder(report: Report) -> Path:
    return report.path.parent / "history" / report.name


def _stamp(report: Report) -> str:
    return re.sub(r"[^0-9TZ]", "", report.data["ended"])


def _kept(folder: Path) -> list[tuple[str, int, Path]]:
    """(time, number within its second, file) of the reports in a folder, oldest first."""
    names = [(re.fullmatch(r"(\d{8}T\d{6}Z)(?:-(\d+))?\.json", path.name), path) for path in folder.glob("*.json")]
    return sorted((match[1], int(match[2] or 1), path) for match, path in names if match)


def keep(report: Report) -> None:
    """Keep a copy of a report, whose file the next run overwrites. Raises OSError."""
    folder = _folder(report)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    same = [(number, path) for time, number, path in _kept(folder) if time == _stamp(report)]
    if any(path.read_bytes() == report.content for _, path in same):
        return
    number = max((number for number, _ in same), default=0) + 1
    name = _stamp(report) if number == 1 else f"{_stamp(report)}-{number}"
    files.write_bytes(str(folder / f"{name}.json"), report.content)
    for _, _, path in _kept(folder)[:-KEEP]:
        path.unlink()


def history(report: Report) -> tuple[list[Report], list[Problem]]:
    """The reports before this one, newest first, and what is wrong with those that cannot be used."""
    found: list[Report] = []
    problems: list[Problem] = []
    for _, _, path in reversed(_kept(_folder(report))):
        try:
            earlier = read(path)
        except Invalid as error:
            problems += error.problems
            continue
        if earlier.content != report.content and _stamp(earlier) <= _stamp(report):
            found.append(earlier)
    return found, problems


def changes(before: Report, now: Report) -> list[str]:
    """What differs between two reports of a recipe, in words."""
    told = []
    for key, word in (("release", "release"), ("engine", "engine"), ("checks_digest", "set of checks")):
        if before.data["subject"][key] != now.data["subject"][key]:
            told.append(f"another {word}")
    then, since = (dict(_named(each.data["checks"])) for each in (before, now))
    for name in [*then, *(name for name in since if name not in then)]:
        old, new = (WORDS[each[name]["status"]] if name in each else "not there" for each in (then, since))
        if old != new:
            told.append(f"{name}: {old}, now {new}")
    figures = {figure_name(figure): figure for figure in before.data.get("figures", [])}
    for figure in now.data.get("figures", []):
        old_figure = figures.get(figure_name(figure))
        if old_figure is not None and moved(old_figure, figure):
            told.append(f"{figure_name(figure)}: {old_figure['value']:,}, now {value_text(figure)}")
    return told


def moved(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a figure moved: no pass of one run lies among those of the other."""
    return bool(min(now["values"]) > max(before["values"]) or max(now["values"]) < min(before["values"]))


def _named(checks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each check by a name of its own: a recipe may have one twice, with other parameters."""
    seen: Counter[str] = Counter()
    for check in checks:
        seen[check["name"]] += 1
        number = seen[check["name"]]
        yield (check["name"] if number == 1 else f"{check['name']} ({number})"), check


# Figures -------------------------------------------------------------------------------------------------------------


def figure_name(figure: Mapping[str, Any]) -> str:
    """`decode, 1 stream, prompt of 2,048 tokens`."""
    parts = [figure["name"], streams_text(figure["streams"])]
    if "draft_tokens" in figure:
        parts.append(f"{common.counted(figure['draft_tokens'], 'token')} drafted")
    if "prompt_tokens" in figure:
        parts.append(f"prompt of {figure['prompt_tokens']:,} tokens")
    if "position" in figure:
        parts.append(f"position {figure['position']}")
    return ", ".join(parts)


def value_text(figure: Mapping[str, Any]) -> str:
    """The median with its unit."""
    return f"{figure['value']:,}" + ("" if figure["unit"] == "ratio" else f" {figure['unit']}")


def spread_text(figure: Mapping[str, Any]) -> str:
    """All passes, from the least to the greatest."""
    values = figure["values"]
    if len(values) == 1:
        return "one pass"
    return f"{min(values):,} to {max(values):,} in {len(values)} passes"


def recipe_text(figure: Mapping[str, Any]) -> str:
    """The recipe's own figure, and how near to it a host must come."""
    known = figure.get("recipe")
    if known is None:
        return "none"
    parts = [f"{known['value']:,}", tolerance_text(known)]
    return ", ".join(parts) + (f" ({known['source']})" if "source" in known else "")


def verdict_text(figure: Mapping[str, Any]) -> str:
    return {True: "within", False: "not within", None: "not judged"}[figure.get("within")]


# Text for HTML and XML -----------------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Text without characters that a page may not hold, or that turn the order of others round."""
    return _NO_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", common.clean(text))


def shown(value: Any) -> Any:
    """What a template prints: markup of our own as it is, all else as visible text."""
    return value if isinstance(value, Markup) else visible(value) if isinstance(value, str) else value


def plain(value: Any) -> str:
    """A value of a report for people: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


@lru_cache(maxsize=1)
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "plain": plain,
        "figure_name": figure_name,
        "value_text": value_text,
        "spread_text": spread_text,
        "recipe_text": recipe_text,
        "verdict_text": verdict_text,
    }
    made.globals |= {"words": WORDS, "marks": MARKS, "version": __version__}
    return made


def page(report: Report, earlier: Sequence[Report]) -> str:
    """The page of one host and recipe, with nothing outside it."""
    past = list(earlier)
    return (
        _templates()
        .get_template("report.html.j2")
        .render(
            report=report,
            data=report.data,
            checks=list(_named(report.data["checks"])),
            charts=[(chart.title, Markup(chart.svg)) for chart in charts(report.data.get("figures", []))],
            # The oldest one has nothing before it.
            since=changes(past[0], report) if past else None,
            earlier=[(each, changes(older, each)) for each, older in pairwise(past)]
            + [(each, None) for each in past[-1:]],
            folder=f"history/{report.name}",
        )
    )


def index(folder: Path, listed: Sequence[Report | Path]) -> str:
    """The page of a folder: each host with its recipes, and the files that are no reports."""
    hosts: dict[str, list[tuple[str, Report]]] = {}
    for report in listed:
        if isinstance(report, Report):
            address = report.path.with_suffix(".html").relative_to(folder).as_posix()
            hosts.setdefault(report.host, []).append((address, report))
    broken = [each.relative_to(folder).as_posix() for each in listed if isinstance(each, Path)]
    drafts = {host: speedups([report for _address, report in found]) for host, found in hosts.items()}
    return _templates().get_template("index.html.j2").render(hosts=hosts, broken=broken, drafts=drafts)


@dataclass(frozen=True)
class Speedup:
    """What a draft gains in one load: `ratio` of the decode rates with and without it, on one host.

    beside: the report without a draft.
    """

    report: Report
    beside: Report
    load: str
    ratio: float
    alarms: list[str]


def speedups(reports: Sequence[Report]) -> list[Speedup]:
    """What drafts gain, of reports of one host: decode with a draft over decode without one.

    Compared are the same loads of the same weights and engine. Across hosts a ratio would say nothing.
    """
    found = []
    for report in reports:
        for figure in report.data.get("figures", []):
            if figure["name"] != "decode" or "draft_tokens" not in figure:
                continue
            for other in reports:
                base = next((each for each in other.data.get("figures", []) if _is_base(each, figure)), None)
                if base is not None and _served(other) == _served(report):
                    alarms = [f"with the draft: {text}" for text in figure["alarms"]]
                    alarms += [f"without a draft: {text}" for text in base["alarms"]]
                    found.append(
                        Speedup(report, other, figure_name(figure), round(figure["value"] / base["value"], 2), alarms)
                    )
    return found


def _is_base(each: Mapping[str, Any], figure: Mapping[str, Any]) -> bool:
    """Whether a figure is the same load without a draft."""
    same = all(each.get(key) == figure.get(key) for key in ("name", "unit", "streams", "prompt_tokens"))
    return same and "draft_tokens" not in each and each["value"] > 0


def _served(report: Report) -> tuple[str, str]:
    """Which model's weights are served, by which engine."""
    subject = report.data["subject"]
    return str(subject["model"]), plain(subject["engine"])


# Markdown ------------------------------------------------------------------------------------------------------------


def _md(text: str) -> str:
    """Text in one line of Markdown that stays text: no markup, no link, no end of a cell."""
    text = " ".join(visible(text).split())
    text = re.sub(r"([\\`*_{}\[\]<>()#|~&!@])", r"\\\1", text)
    # What some readers make a link of without being asked.
    return text.replace("://", r":\/\/").replace("www.", r"www\.")


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(map(_md, row))} |"


def _result(check: Mapping[str, Any]) -> str:
    """How a check ended, in one cell."""
    parts = [WORDS[check["status"]]]
    passed = check["evidence"].get("passed")
    if isinstance(passed, str):
        parts.append(passed)
    parts.append(check["reason"])
    for label, key in (("expected", "expected"), ("found", "found"), ("what to do", "todo")):
        if check[key]:
            parts.append(f"{label}: {check[key]}")
    return "; ".join(filter(None, parts))


def markdown(report: Report) -> str:
    """The report as the tables of a recipe's page: check and result, test and result."""
    data = report.data
    subject = data["subject"]
    engine = " ".join(filter(None, (subject["engine"].get("name", ""), subject["engine"].get("version", ""))))
    lines = [f"# {_md(report.recipe)} on {_md(report.host)}", ""]
    lines += [f"**{WORDS[report.status].capitalize()}**: {report.counts}.", ""]
    if report.refused:
        lines += ["This release was not taken into service.", ""]
    lines += [_md(f"On {engine or 'an engine'}, asked at {subject['url']}, ended {data['ended']}.").strip(), ""]
    if report.problems:
        lines += ["## What did not hold beside the checks", "", *(f"- {_md(text)}" for text in report.problems), ""]
    if report.warnings:
        lines += ["## Figures to look at", "", *(f"- {_md(text)}" for text in report.warnings), ""]
    lines += ["## Checks", ""]
    rows = [
        (f"{name}: {check['asked']}" if check["asked"] else name, _result(check))
        for name, check in _named(data["checks"])
    ]
    lines += [*_rows(("Check", "Result"), rows), ""]
    if data.get("figures"):
        lines += ["## Performance", ""]
        rows = []
        for figure in data["figures"]:
            told = [f"{value_text(figure)} ({spread_text(figure)})", *figure["alarms"]]
            if "recipe" in figure:
                told.append(f"recipe: {recipe_text(figure)}: {verdict_text(figure)}")
            rows.append((f"{figure_name(figure)}; {figure['method']}", "; ".join(told)))
        lines += [*_rows(("Test", "Result"), rows), ""]
    lines += [f"Not known: {_md(note)}." for note in data["notes"]] + [""] * bool(data["notes"])
    lines += ["## What was verified", ""]
    facts = {
        "recipe": subject["recipe"],
        "model": subject["model"],
        "engine": plain(subject["engine"]),
        "release": subject["release"],
        "suite": report.suite,
        "checks": subject["checks_digest"],
        "unit": plain(data["unit"]) if data["unit"] is not None else "none was named",
        "host": plain(data["host"]),
        "started": data["started"],
        "ended": data["ended"],
        "seconds": f"{data['seconds']:,}",
    }
    lines += list(_rows(("Fact", "Value"), facts.items()))
    return "\n".join(lines) + "\n"


# JUnit ---------------------------------------------------------------------------------------------------------------


def junit(report: Report) -> str:
    """The report as JUnit XML, as GitLab and Jenkins read it: a test case for each check, one more for each problem."""
    data = report.data
    suite = ElementTree.Element(
        "testsuite",
        name=visible(f"{report.host} {report.name}"),
        hostname=visible(report.host),
        timestamp=visible(data["started"]),
        time=f"{data['seconds']:.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name in ("recipe", "model", "release", "suite", "checks_digest"):
        ElementTree.SubElement(properties, "property", name=name, value=visible(data["subject"][name]))
    for name, check in _named(data["checks"]):
        case = _case(suite, report, name, check["seconds"])
        if check["status"] == "fail":
            _failure(case, check["reason"], check)
        elif check["status"] == "not run":
            ElementTree.SubElement(case, "skipped", message=visible(check["reason"]))
        elif check["status"] == "refused":
            ElementTree.SubElement(case, "system-out").text = visible(f"refused: {check['reason']}")
    for number, text in enumerate(report.problems, 1):
        _failure(_case(suite, report, f"beside the checks ({number})", 0.0), text, {})
    if report.warnings:
        ElementTree.SubElement(suite, "system-out").text = visible("\n".join(report.warnings))
    counts = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": 0,
        "skipped": len(suite.findall("testcase/skipped")),
    }
    for name, count in counts.items():
        suite.set(name, str(count))
    suites = ElementTree.Element(
        "testsuites", {name: suite.attrib[name] for name in ("tests", "failures", "errors", "time")}
    )
    suites.set("name", "enplace")
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, report: Report, name: str, seconds: float) -> ElementTree.Element:
    attributes = {"classname": visible(report.recipe), "name": visible(name), "time": f"{seconds:.3f}"}
    return ElementTree.SubElement(suite, "testcase", attributes)


def _failure(case: ElementTree.Element, reason: str, check: Mapping[str, Any]) -> None:
    lines = [reason]
    for label, key in (("expected", "expected"), ("found", "found"), ("what to do", "todo")):
        if check.get(key):
            lines.append(f"{label}: {check[key]}")
    made = ElementTree.SubElement(case, "failure", type="failed", message=visible(reason))
    made.text = visible("\n".join(lines))
