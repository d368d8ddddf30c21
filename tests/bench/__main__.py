# SPDX-License-Identifier: Apache-2.0
"""Measure the linter, then a converged run on the demo host, which `make demo` has made.

Times of one machine mean little elsewhere; the ratios and the counts do.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import lint
from tests.e2e.plays import ROOT, Play, play
from tests.sim.lab import Lab, LabError

HOST = "demo1"
ROUNDS = 5


def spread(values: list[float]) -> str:
    """Median with minimum and maximum, in seconds."""
    return f"{statistics.median(values):6.2f} s  ({min(values):.2f} to {max(values):.2f}, {len(values)} rounds)"


def main() -> int:
    # The linter needs no host.
    status = lint.main()
    if status:
        return status
    print()
    try:
        lab = Lab(ROOT)
        lab.host(HOST)
    except LabError as error:
        print(error, file=sys.stderr)
        return 3
    runs: list[Play] = []
    ssh: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        warm = play(Path(folder), "-l", HOST)
        if warm.rc != 0 or warm.changed:
            print(
                f"{HOST} is not converged (rc {warm.rc}, changed {warm.changed}): run make demo first", file=sys.stderr
            )
            return 1
        for _ in range(ROUNDS):
            # Interleaved, so that both meet the same load of the machine.
            begin = time.monotonic()
            lab.ssh(HOST, ["true"])
            ssh.append(time.monotonic() - begin)
            runs.append(play(Path(folder), "-l", HOST))
    seconds = [run.seconds for run in runs]
    print(f"converged run   {spread(seconds)}")
    print(f"one plain ssh   {spread(ssh)}")
    print(f"ratio           {statistics.median(seconds) / statistics.median(ssh):6.1f} plain ssh calls")
    print(f"SSH executions  {', '.join(str(n) for n in sorted({run.ssh_executions for run in runs}))}")
    print(f"changed tasks   {', '.join(str(n) for n in sorted({len(run.changed) for run in runs}))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
