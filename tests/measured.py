# SPDX-License-Identifier: Apache-2.0
"""What a run of tests measured: kept in a file after each result, and made into a page of docs/."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def store(path: Path, begun: float, **found: Any) -> None:
    """Write what was found since `begun` (seconds since 1970), with the day, the machine, and how long it took."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "format": 1,
        "date": time.strftime("%Y-%m-%d", time.gmtime(begun)),
        "machine": machine(),
        "seconds": round(time.time() - begun, 1),
        **found,
    }
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def machine() -> str:
    """This machine in general words: nothing that names it."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.M)
    kind = "a virtual machine" if found else "a machine"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    return f"{kind} with {os.cpu_count()} {platform.machine()} cores and {memory:.0f} GiB, {system}"


def publish(report: Path, page: Path, made: Callable[[dict[str, Any]], str], target: str) -> int:
    """Make a page of docs/ from what a run of `make <target>` stored, and show how it differs; an exit status."""
    if not report.is_file():
        print(f"{report.relative_to(ROOT)}: no such file: run make {target} first", file=sys.stderr)
        return 1
    page.write_text(made(json.loads(report.read_text(encoding="utf-8"))), encoding="utf-8")
    print(subprocess.run(["git", "diff", "--stat", "--", str(page)], cwd=ROOT, capture_output=True, text=True).stdout)
    return 0
