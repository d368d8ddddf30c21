# SPDX-License-Identifier: Apache-2.0
"""The results of the fault tests, and docs/faults.md made from them: `python -m tests.faults.table`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests import measured
from tests.measured import ROOT

REPORT = ROOT / "reports" / "faults.json"
PAGE = ROOT / "docs" / "faults.md"

HEAD = """# Faults, and what became of them

Made by `python -m tests.faults.table` from a run of `make test-faults`, and not written by hand. A fault that was not
tested in that run is not in the table.

"""

METHOD = """
Each fault is done to a test host that serves a real vLLM on its CPU, while somebody asks it for a completion twice a
second. Afterwards a plain second run must succeed, a third must find nothing to do, what is on the host (releases,
units, what is enabled and runs, seals, weights) must be the same as after a run that nobody disturbed, and nothing may
be left over: no open transaction, no lock, no candidate unit, no unfinished file, no temporary folder, no process, no
half-made environment.

- *answers afterwards*: who answers after the fault and before any second run.
- *no answer for*: seconds without any answer, from the start of the disturbed run until somebody answers after the
  fault. An activation stops the old server before it starts the new one, for there is room for one alone: where nobody
  disturbs it, it has such a time as well, {undisturbed:.0f} s here.
- *answers again after*: seconds from the fault itself to the next answer; 0 where the answers never stopped.
- *second run*: seconds that the plain second run took. Where the release itself is bad, it is refused by its record.

A cut of the power is a container that is killed: every process ends at once and /run is emptied, but what was written
and not flushed is not lost with it. The hub that fails is a simulated one. Most of a recovery is the start of the
engine: how long that takes is a property of the machine and of the model, here a tiny one.
"""


@dataclass(frozen=True)
class Result:
    """What became of one fault. Times in seconds. `failed` is empty, or says what did not hold."""

    fault: str
    answers: str = ""
    outage_s: float = 0.0
    recovery_s: float = 0.0
    second_s: float = 0.0
    failed: str = ""


@dataclass
class Results:
    """The results of a session, stored at `path` after each of them."""

    path: Path
    faults: list[Result] = field(default_factory=list)
    # Of an activation that nobody disturbs.
    undisturbed_outage_s: float = 0.0
    begun: float = field(default_factory=time.time)

    def add(self, result: Result) -> None:
        self.faults.append(result)
        faults = [asdict(entry) for entry in self.faults]
        outage = round(self.undisturbed_outage_s, 1)
        measured.store(self.path, self.begun, undisturbed_outage_s=outage, faults=faults)


COLUMNS = ("fault", "answers afterwards", "no answer for", "answers again after", "second run")


def rows(faults: Sequence[Result]) -> list[tuple[str, ...]]:
    return [
        (one.fault, f"FAILED: {one.failed}", "", "", "")
        if one.failed
        else (one.fault, one.answers, *(f"{value:.1f} s" for value in (one.outage_s, one.recovery_s, one.second_s)))
        for one in faults
    ]


def text(faults: Sequence[Result]) -> str:
    """The table for a terminal."""
    lines = [COLUMNS, *rows(faults)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def page(report: dict[str, Any]) -> str:
    """docs/faults.md."""
    faults = [Result(**entry) for entry in report["faults"]]
    failed = sum(bool(one.failed) for one in faults)
    said = f"{len(faults)} faults on {report['date']}, on {report['machine']}, in {report['seconds']:.0f} s; "
    said += f"{failed} of them with a result that must not be." if failed else "all of them as they must be."
    lines = ["| " + " | ".join(line) + " |" for line in (COLUMNS, ("---",) * len(COLUMNS), *rows(faults))]
    return HEAD + said + "\n\n" + "\n".join(lines) + "\n" + METHOD.format(undisturbed=report["undisturbed_outage_s"])


if __name__ == "__main__":
    sys.exit(measured.publish(REPORT, PAGE, page, "test-faults"))
