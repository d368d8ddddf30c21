# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The report: what was asked of one run of one server, what came back, and when a stored one still speaks for it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import files
from ansible_collections.enplace.inference.plugins.module_utils.api_key import read_key
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import (
    GATE,
    SOAK,
    checks_digest,
    with_defaults,
)

FORMAT = 1
KEEP = 10
MAX_REPORT_BYTES = 16 * 1024 * 1024
MAX_EVIDENCE_TEXT = 2000
# After a check the engine may need a moment to count the request it has just answered.
SETTLE_S = 5.0
VITALS_S = 20.0

# Beside a report: what was found so far by a run that has not ended, or was interrupted.
UNFINISHED = "unfinished.json"

UNIT_PROPERTIES = "InvocationID,ActiveState,NRestarts,MainPID"

# What a server with a key must refuse to those without it; all but the first may be unknown to it.
GUARDED = ("/v1/models", "/v1/chat/completions", "/invocations", "/tokenize")

PASS, FAIL, REFUSED, NOT_RUN = "pass", "fail", "refused", "not run"
# What speaks for a server: what it does rightly, and what it refuses as its recipe declares.
GOOD = (PASS, REFUSED)


def good(check: Any) -> bool:
    """Whether one check of a report speaks for the server. Every status but those of `GOOD` does not."""
    return isinstance(check, dict) and check.get("status") in GOOD


def tally(checks: Sequence[Any]) -> str:
    """How many checks of a report speak for the server, in words; empty for none."""
    if not checks:
        return ""
    refused = sum(isinstance(check, dict) and check.get("status") == REFUSED for check in checks)
    told = f"{sum(map(good, checks)) - refused} of {len(checks)} passed"
    return f"{told}, {refused} refused as declared" if refused else told


@dataclass(frozen=True)
class Unit:
    """One look at a systemd unit. `invocation` is systemd's identity of the present run, empty where it never ran.

    pid: its main process, 0 where it has none.
    """

    name: str
    invocation: str
    active: str
    restarts: int
    pid: int = 0

    def as_data(self) -> dict[str, Any]:
        return {"name": self.name, "invocation": self.invocation, "active": self.active, "restarts": self.restarts}


@dataclass(frozen=True)
class Subject:
    """What is verified: all but the key decides whether a stored report still speaks for the server.

    api_key_file: a file on this host with the key to ask with; empty for a server without one.
    suite: which of `checks.SUITES` the checks are of.
    """

    url: str
    model: str
    recipe: str
    release: str
    engine: dict[str, str]
    checks: list[dict[str, Any]]
    api_key_file: str = ""
    suite: str = GATE

    @property
    def foreign(self) -> bool:
        """Whether somebody else made the server: it is known by its address alone."""
        return not self.release

    def as_data(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "model": self.model,
            "recipe": self.recipe,
            "release": self.release,
            "engine": self.engine,
            "suite": self.suite,
            "checks_digest": checks_digest(self.checks),
        }


def parse_unit(name: str, output: str) -> Unit:
    """A Unit from what `systemctl show -p` prints of `UNIT_PROPERTIES`."""
    values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    restarts, pid = (values.get(key, "") for key in ("NRestarts", "MainPID"))
    return Unit(
        name,
        values.get("InvocationID", ""),
        values.get("ActiveState", "unknown"),
        int(restarts) if restarts.isdigit() else 0,
        int(pid) if pid.isdigit() else 0,
    )


def read_report(path: str) -> tuple[dict[str, Any] | None, str]:
    """The stored report, or None and why it cannot be used. It must be a plain file of the user who runs this."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None, "there is no report yet"
    except OSError as error:
        return None, f"the stored report cannot be read ({error.strerror})"
    with os.fdopen(handle, "rb") as stream:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
            return None, "the stored report is not a plain file of our own"
        content = stream.read(MAX_REPORT_BYTES + 1)
    try:
        report = json.loads(content)
    except ValueError:
        return None, "the stored report is not whole"
    if not isinstance(report, dict):
        return None, "the stored report is no object"
    return report, ""


def why_not(report: dict[str, Any], subject: Subject, unit: Unit | None) -> str:
    """Why a stored report does not speak for the server as it is now; empty if it does."""
    if report.get("format") != FORMAT:
        return f"the stored report has format {report.get('format')}, not {FORMAT}"
    if report.get("complete") is not True:
        return "the stored report is of a run that was interrupted"
    words = {
        "release": "the release has changed",
        "engine": "the engine has changed",
        "suite": "another suite is asked for",
        "checks_digest": "the checks have changed",
        "recipe": "the recipe's name has changed",
        "model": "the model's name has changed",
        "url": "the address has changed",
    }
    now = subject.as_data()
    stored = report.get("subject")
    stored = stored if isinstance(stored, dict) else {}
    for key, words_for in words.items():
        if stored.get(key) != now[key]:
            return words_for
    if unit is None:
        return "no unit is given that could prove that this is still the same run"
    if unit.active != "active":
        return f"{unit.name} is {unit.active}"
    then = report.get("unit")
    if not isinstance(then, dict) or not unit.invocation or then.get("invocation") != unit.invocation:
        return f"{unit.name} was started anew since"
    checks = report.get("checks")
    results = [good(check) for check in checks] if isinstance(checks, list) else []
    if report.get("all_passed") is not True or len(results) != len(subject.checks) or not all(results):
        return "not every check passed"
    return ""


def run(
    subject: Subject,
    host: dict[str, Any],
    unit: Unit | None,
    look: Callable[[], Unit | None],
    tell: Callable[[dict[str, Any]], None] | None = None,
    soak_s: float = 0.0,
    measure: Callable[[Callable[[list[dict[str, Any]]], None]], list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Run all checks and return the report.

    `unit` is the unit as it was seen first; `look` looks again, after the checks. `tell` gets the report so far after
    each check and each figure: what it has is right, and `complete` is false. `soak_s`: seconds for which the suite
    soak begins the checks anew, until one does not pass. `measure` gives the figures, and is asked only when all else
    is well; it tells what it has by then. Needs the `openai` client unless the unit is not active: then nothing is
    asked, and every check is `not run`. Raises Failure for a key file that cannot be used.
    """
    key = read_key(subject.api_key_file) if subject.api_key_file else ""
    clock = time.monotonic()
    checks = with_defaults(subject.checks)
    report: dict[str, Any] = {
        "format": FORMAT,
        "complete": False,
        "all_passed": False,
        "subject": subject.as_data(),
        "unit": unit.as_data() if unit is not None else None,
        "host": host,
        "client": {"openai": ""},
        "started": _now(),
        "problems": [],
        "notes": [],
        "checks": [],
    }

    def so_far(**known: Any) -> dict[str, Any]:
        report.update(known, ended=_now(), seconds=round(time.monotonic() - clock, 3))
        return report

    def told(results: Sequence[dict[str, Any]]) -> None:
        # Those that did not run yet are in it too: that nobody asked is no good news.
        rest = [_not_run(item, "the run was interrupted before it") for item in checks[len(results) :]]
        if tell is not None:
            tell(so_far(checks=[*results, *rest]))

    if unit is not None and unit.active != "active":
        report["problems"].append(f"{unit.name} is {unit.active}; nothing that answers at {subject.url} is that unit")
        return so_far(complete=True, checks=[_not_run(item, report["problems"][0]) for item in checks])

    import openai

    report["client"]["openai"] = str(openai.__version__)
    results = _run_all(subject, checks, unit, key, report["notes"], told)
    if subject.suite == SOAK:
        report["rounds"] = 1
        while all(map(good, results)) and time.monotonic() - clock < soak_s:
            results = _run_all(subject, checks, unit, key, [])
            report["rounds"] += 1
            told(results)
    if key and any(result["status"] != NOT_RUN for result in results):
        report["problems"] += _open_to_all(subject, key)
    if measure is not None and all(map(good, results)):
        report["checks"] = results

        def measured(figures: list[dict[str, Any]]) -> None:
            if figures:
                report["figures"] = figures
            if tell is not None:
                tell(so_far())

        try:
            measured(measure(measured))
        except files.Failure as failure:
            report["problems"].append(str(failure))
    after = look()
    if unit is not None and after is not None and (after.invocation, after.active) != (unit.invocation, unit.active):
        report["problems"].append(
            f"{unit.name} did not stay up: run {unit.invocation or 'none'} ({unit.active}) before the checks, "
            f"{after.invocation or 'none'} ({after.active}) after them"
        )
    return so_far(
        complete=True,
        all_passed=bool(results) and not report["problems"] and all(map(good, results)),
        unit=after.as_data() if after is not None else None,
        checks=results,
    )


def messages(report: dict[str, Any]) -> list[str]:
    """One message for everything that did not pass: which, expected, found, what to do."""
    lines = list(report["problems"])
    for check in report["checks"]:
        if check["status"] == FAIL:
            parts = [f"{check['name']}: {check['reason']}"]
            for label, key in (("expected", "expected"), ("found", "found"), ("what to do", "todo")):
                if check[key]:
                    parts.append(f"  {label}: {check[key]}")
            lines.append("\n".join(parts))
        elif check["status"] == NOT_RUN:
            lines.append(f"{check['name']}: not run, {check['reason']}")
    return lines


def summary(report: dict[str, Any] | None) -> str:
    """One line for every check, for a diff; nothing for no report."""
    if report is None:
        return ""
    lines = [f"{check['name']}: {check['status']}" for check in report.get("checks", [])]
    return "\n".join([f"release {report.get('subject', {}).get('release', '')}", *lines]) + "\n"


def store(path: str, report: dict[str, Any]) -> None:
    """Write the report as `path`, whole or not at all, and beside it under the time it ended; the last ten are kept.

    What `keep_unfinished` wrote is removed. Raises OSError; then the report that was there before is there still.
    """
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    _keep(folder, report)
    files.write_json(path, report)
    files.remove(os.path.join(folder, UNFINISHED))
    for _time, _number, entry in _earlier(folder)[:-KEEP]:
        files.remove(os.path.join(folder, entry))


def keep_unfinished(path: str) -> Callable[[dict[str, Any]], None]:
    """What `run` tells so far, kept beside the report at `path` until that is stored.

    What an earlier run left there, which was interrupted, becomes one of the earlier reports. An OSError is for the
    end of the run to tell, when the report itself cannot be stored.
    """
    folder = os.path.dirname(path)
    here = os.path.join(folder, UNFINISHED)
    left, _why = read_report(here)

    def tell(report: dict[str, Any]) -> None:
        nonlocal left
        with contextlib.suppress(OSError):
            os.makedirs(folder, mode=0o755, exist_ok=True)
            if left is not None:
                _keep(folder, left)
                left = None
            files.write_json(here, report)

    return tell


def _keep(folder: str, report: dict[str, Any]) -> None:
    """Store a report under the time it ended."""
    stamp = re.sub(r"[^0-9TZ]", "", str(report.get("ended", "")))
    if not re.fullmatch(r"\d{8}T\d{6}Z", stamp):
        return
    # A number of its own for each report of one second, above those there are: a name that was freed is not the newest.
    last = max((number for time_of, number, _name in _earlier(folder) if time_of == stamp), default=0)
    name = f"{stamp}.json" if last == 0 else f"{stamp}-{last + 1}.json"
    files.write_json(os.path.join(folder, name), report)


def _earlier(folder: str) -> list[tuple[str, int, str]]:
    """(time, number within its second, file name) of the reports kept in a folder, oldest first."""
    names = [(re.fullmatch(r"(\d{8}T\d{6}Z)(?:-(\d+))?\.json", entry), entry) for entry in os.listdir(folder)]
    return sorted((match[1], int(match[2] or 1), entry) for match, entry in names if match)


def _open_to_all(subject: Subject, key: str) -> list[str]:
    """Why a key is not what keeps others out; empty if it is."""
    from ansible_collections.enplace.inference.plugins.module_utils.verify import server

    problems = []
    asked = server.Server(subject.url, subject.model, server.Deadline(VITALS_S), key)
    for path in GUARDED:
        try:
            status = server.within(asked.deadline, partial(asked.status_without_key, path))
        except server.CheckFailed as error:
            problems.append(f"whether {path} is refused to those without a key is not known: {error.what}")
            continue
        if status not in (401, 403, *(() if path == GUARDED[0] else (404, 405))):
            problems.append(f"the server answers without a key: HTTP {status} from {path}")
    return problems


def _run_all(
    subject: Subject,
    checks: list[dict[str, Any]],
    unit: Unit | None,
    key: str,
    notes: list[str],
    told: Callable[[Sequence[dict[str, Any]]], None] = lambda _results: None,
) -> list[dict[str, Any]]:
    # Imported here, so that a run that finds a good report loads neither these nor the client.
    from ansible_collections.enplace.inference.plugins.module_utils.verify import base, server, suite

    results: list[dict[str, Any]] = []
    gone = ""
    vitals, trouble = _vitals(subject, None, 0, key)
    if vitals is not None and not vitals.told:
        notes.append(
            "the server tells nothing of itself (/health, and the counters in /metrics of vLLM): a restart between "
            "checks, or another server that answers, would go unseen"
        )
    context = suite.Context(
        version=subject.engine.get("version", ""),
        unit=unit.name if unit is not None else "",
        invocation=unit.invocation if unit is not None else "",
        restarts=unit.restarts if unit is not None else 0,
        pid=unit.pid if unit is not None else 0,
        first=vitals,
    )
    for item in checks:
        if gone:
            results.append(_not_run(item, gone))
            continue
        check = suite.CLASSES[item["check"]](item, context)
        if check.of_unit and unit is None:
            results.append(_not_run(item, "it looks at the systemd unit that serves, and none is named"))
            continue
        refused = bool(item.get("refused"))
        asked = server.Server(subject.url, subject.model, server.Deadline(item["deadline_s"]), key)
        clock = time.monotonic()
        evidence: dict[str, Any] = {}
        with server.Caught() as caught:
            evidence = server.within(asked.deadline, partial(check.run_refused if refused else check.run, asked))
        asked.close()
        failure = _failure(caught.error)
        if failure is not None:
            evidence = failure.evidence
        seconds = time.monotonic() - clock
        if trouble is None:
            vitals, trouble = _vitals(subject, vitals, asked.answered, key)
        if trouble is not None:
            failure = failure or trouble
            gone = f"the server was not well when {check.name} had ended: {trouble.what}"
        results.append(
            {
                "name": check.name,
                "status": FAIL if failure else REFUSED if refused else PASS,
                "seconds": round(seconds, 3),
                "asked": "its request, which the engine must refuse" if refused else check.asked(),
                "demanded": list(base.REFUSED_DEMANDS if refused else check.demanded),
                "parameters": {key: value for key, value in item.items() if key != "check"},
                # Masked before it is cut: the start of a key is a secret as well.
                "evidence": _short(
                    server.masked(
                        {**evidence, **({"seed": check.seed} if check.made_up else {}), "completions": asked.answered}
                    )
                ),
                "reason": failure.what if failure else item["refused"] if refused else "",
                "expected": failure.expected if failure else "",
                "found": failure.found if failure else "",
                "todo": failure.todo if failure else "",
            }
        )
        told(results)
    return results


def _failure(error: Exception | None) -> Any:
    """What a check ended with, as the CheckFailed it is or stands for; None for no error."""
    from ansible_collections.enplace.inference.plugins.module_utils.verify import server

    if error is None or isinstance(error, server.CheckFailed):
        return error
    found = f"{type(error).__name__}: {error}"
    return server.CheckFailed("the server's reply is not understood", "an OpenAI-compatible reply", found)


def _vitals(subject: Subject, before: Any, answered: int, key: str) -> tuple[Any, Any]:
    """(what tells the process, None), or (None, why it is unwell or not the one of before).

    A server that somebody else made need not tell anything, but must not begin or cease to.
    """
    from ansible_collections.enplace.inference.plugins.module_utils.verify import server

    settle = time.monotonic() + SETTLE_S
    while True:
        asked = server.Server(subject.url, subject.model, server.Deadline(VITALS_S), key)
        try:
            now = server.within(asked.deadline, asked.vitals)
        except server.CheckFailed as error:
            return None, error
        reference = before if before is not None else now
        if subject.foreign and not reference.told and not now.told:
            return now, None
        reason = now.since(reference)
        lag = now.missing(reference, answered)
        if lag and not reason and time.monotonic() < settle:
            time.sleep(0.1)
            continue
        if reason or lag:
            todo = "the unit's journal says what happened"
            return None, server.CheckFailed(reason or lag, "one process, healthy, that answers itself", "", todo)
        return now, None


def _not_run(item: dict[str, Any], reason: str) -> dict[str, Any]:
    return {
        "name": item["check"],
        "status": NOT_RUN,
        "seconds": 0.0,
        "asked": "",
        "demanded": [],
        "parameters": {key: value for key, value in item.items() if key != "check"},
        "evidence": {},
        "reason": reason,
        "expected": "",
        "found": "",
        "todo": "",
    }


def _short(value: Any) -> Any:
    """Evidence with long texts cut: a report is read by people."""
    if isinstance(value, str):
        return value if len(value) <= MAX_EVIDENCE_TEXT else value[:MAX_EVIDENCE_TEXT] + "..."
    if isinstance(value, dict):
        return {str(key): _short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in list(value)[:256]]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
