# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The checks as a program of their own, run by the environment's Python, where the `openai` client is.

    <environment>/bin/python -m ansible_collections.enplace.inference.plugins.module_utils.verify.child

reads one JSON object from standard input (what checks.json holds, and `unit` and `host`), runs and stores the checks,
and writes the report to standard output. It ends with whoever started it. `ask` is the other side.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import command
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import (
    GATE,
    validate_checks,
    with_defaults,
)

# Beside the checks' own deadlines: looks at the server's vitals between them, the import of the client.
SPARE_S = 120.0
SPARE_FOR_EACH_S = 30.0


def problems_of(request: Mapping[str, Any]) -> list[str]:
    """Why these checks cannot be run; nothing: they can."""
    problems = validate_checks(request["checks"])
    if not problems and not request["engine"].get("version"):
        without = [item for item in request["checks"] if item["check"] == "identity" and not item.get("version")]
        problems += ["identity.version: missing, and no engine is named either; say which must answer"] * len(without)
    if not str(request["url"]).startswith(("http://", "https://")):
        problems.append(f"url: expected http:// or https://, found {request['url']!r}")
    return problems


def subject_of(request: Mapping[str, Any]) -> reports.Subject:
    """What is verified, from plain data without problems."""
    return reports.Subject(
        url=str(request["url"]).rstrip("/"),
        model=request["model"],
        recipe=request.get("recipe", ""),
        release=request["release"],
        engine=dict(request["engine"]),
        checks=list(request["checks"]),
        api_key_file=request.get("api_key_file") or "",
        suite=request.get("suite") or GATE,
    )


def unit_now(name: str) -> reports.Unit:
    """A unit as it is now. Raises Failure where systemd does not tell."""
    argv = ["systemctl", "show", "-p", reports.UNIT_PROPERTIES, "--", name]
    done = command.run(argv)
    if not done.ok:
        raise Failure(f"systemctl cannot tell the state of {name}", found=done.said(), detail=done.tail())
    return reports.parse_unit(name, done.stdout)


def check(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the checks, store the report at `report`, and return it. Raises Failure or OSError."""
    problems = problems_of(request)
    if problems:
        raise Failure("These checks cannot be run; nothing was asked:\n" + "\n".join(problems))
    subject = subject_of(request)
    name = request["unit"]
    host, path = dict(request.get("host", {})), request["report"]
    report = reports.run(subject, host, unit_now(name), lambda: unit_now(name), reports.keep_unfinished(path))
    reports.store(path, report)
    return report


def deadline_s(checks: list[dict[str, Any]]) -> float:
    """Seconds that all checks may take together."""
    return SPARE_S + sum(float(item["deadline_s"]) + SPARE_FOR_EACH_S for item in with_defaults(checks))


def ask(request: Mapping[str, Any], timeout_s: float = 0.0) -> dict[str, Any]:
    """Run the checks in a process of `request["python"]`, and return its report, whatever it says of the server.

    `timeout_s` 0: the sum of the checks' own deadlines. Raises Failure where there is no report.
    """
    python = str(request["python"])
    # What is wrong with the checks is for the other side to say.
    limit_s = timeout_s or (SPARE_S if problems_of(request) else deadline_s(list(request["checks"])))
    # Inside a module's payload this is a path into a zip, which Python imports from as from a folder.
    root = os.path.abspath(__file__).partition(f"{os.sep}ansible_collections{os.sep}")[0]
    environment = {**command.base_environment(), "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [python, "-m", f"{reports.__name__.rpartition('.')[0]}.child"]

    def fail(what: str, found: str, detail: str = "") -> Failure:
        return Failure(
            what,
            where=python,
            expected=f"a report within {limit_s:.0f} s",
            found=found,
            todo="read the output below" if detail else "look at the environment: enplace_deep=true names what differs",
            detail=detail,
        )

    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise fail("the checks cannot be started", str(error)) from None
    try:
        out, err = process.communicate(json.dumps(dict(request)).encode(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise fail("the checks did not end", "no end: they were stopped") from None
    said = command.tail(err.decode("utf-8", "replace"))
    if process.returncode != 0:
        raise fail("the checks could not be run", f"exit status {process.returncode}", said)
    try:
        report = json.loads(out)
    except ValueError:
        report = None
    if not isinstance(report, dict) or report.get("complete") is not True:
        raise fail("the checks gave no report", "something else", said)
    return report


def _end_with_parent(parent: int) -> None:
    """A run that was killed must not leave questions to the server behind: the next one may be starting another."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    parent = os.getppid()
    # What a library prints is not the report.
    report_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    try:
        report = check(json.load(sys.stdin))
    except (Failure, OSError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with report_to:
        json.dump(report, report_to, ensure_ascii=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
