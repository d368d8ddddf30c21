# SPDX-License-Identifier: Apache-2.0
"""The results of the matrix, and docs/checks.md made from them: `python -m tests.matrix.table`."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests import measured
from tests.measured import ROOT

REPORT = ROOT / "reports" / "matrix.json"
PAGE = ROOT / "docs" / "checks.md"

HEAD = """# What makes a check fail

Made by `python -m tests.matrix.table` from a run of `make matrix`, and not written by hand. A fault that was not tried
in that run is not in the tables.

A check that cannot fail proves nothing. Here the checks are asked of a real vLLM with the smoke model, through a proxy
that passes everything on as it is, apart from one behaviour that it breaks. For each fault the checks that concern it
must fail, for the reason that it gives them, and others of the same kind must pass.

"""

METHOD = """
## How to read it

- *and then not run*: the check that found it left a server that is not well, or is not the same one any more. The
  checks after it are then not run, which is no pass.
- `make matrix` runs, for each fault, the checks that must fail and some beside them that must not; with
  `ENPLACE_MATRIX_ALL=1` it runs all checks for each. `ENPLACE_MATRIX_URL` names another server with the smoke model
  than that of the demo's host, `ENPLACE_ENGINE_HOST` another test host.
- Real: the engine, its model, the client, the checks. Simulated: the faults, on the way between them. The smoke model
  has no draft: the counters of speculation on /metrics are worked out from the tokens that the engine counted, and the
  check `draft` is tried on them. The journal, the unit and the process of `libraries`, `log_line` and `no_errors` are
  stand-ins on the machine of the tests.
- A fault that several checks find is not the worse for it. One that a single check finds shows that this check is
  needed; *alone* counts these, of the checks that were run.
- A parameter that no check asks for (such as `stop`, `n`, `top_p` or a penalty) may be ignored by an engine, and no
  check finds that.
"""


@dataclass(frozen=True)
class Result:
    """What one fault came to, by names of checks; `fault` is empty for the run without any.

    Attributes:
        not_run: those after the one that left a server that was not well any more.
        wrong: what was not as it must be, empty for nothing.
    """

    fault: str
    does: str = ""
    like: str = ""
    failed: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    wrong: str = ""


@dataclass
class Results:
    """The results of a session, stored at `path` after each of them. `everything`: each fault is put to all checks."""

    path: Path
    everything: bool
    faults: list[Result] = field(default_factory=list)
    begun: float = field(default_factory=time.time)

    def add(self, result: Result) -> None:
        self.faults.append(result)
        measured.store(self.path, self.begun, faults=[asdict(entry) for entry in self.faults])


def names(checks: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in checks)


def found_by(one: Result) -> str:
    """Which checks failed, in words."""
    if one.wrong:
        return f"NOT AS IT MUST BE: {one.wrong}"
    found = names(one.failed) or "no check"
    return f"{found}, and then not run: {names(one.not_run)}" if one.not_run else found


def page(report: dict[str, Any]) -> str:
    """docs/checks.md."""
    results = [Result(**entry) for entry in report["faults"]]
    faults = [one for one in results if one.fault]
    wrong = sum(bool(one.wrong) for one in results)
    said = f"{len(faults)} faults on {report['date']}, on {report['machine']}, in {report['seconds']:.0f} s; "
    said += f"{wrong} with a result that must not be.\n" if wrong else "all of them as they must be.\n"
    for one in results:
        if not one.fault:
            said += f"Without a fault {one.wrong or f'all {len(one.passed)} checks passed'}.\n"
    lines = ["| fault | what is broken | what it stands for | found by | passed beside it |", "|" + " --- |" * 5]
    lines += [f"| {one.fault} | {one.does} | {one.like} | {found_by(one)} | {names(one.passed)} |" for one in faults]
    lines += ["", "## By check", "", "| check | faults that make it fail | alone |", "| --- | --- | --- |"]
    # The run without a fault is the first, and has all of them.
    for name in dict.fromkeys(name for one in results for name in (*one.passed, *one.failed)):
        mine = [one for one in faults if name in one.failed and not one.wrong]
        if mine:
            alone = sum(one.failed == [name] for one in mine)
            lines.append(f"| `{name}` | {', '.join(one.fault for one in mine)} | {alone} |")
    return HEAD + said + "\n## By fault\n\n" + "\n".join(lines) + "\n" + METHOD


if __name__ == "__main__":
    sys.exit(measured.publish(REPORT, PAGE, page, "matrix"))
