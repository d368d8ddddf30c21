# SPDX-License-Identifier: Apache-2.0
"""What stands for the host of the real server: a journal, a unit, and a process that has libraries loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pydantic_core
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports

from tests.sim.liar import Journal
from tests.sim.proxy import Fault, Proxy

RUN, BEFORE = "0123456789abcdef0123456789abcdef", "f" * 32
START = "(APIServer pid=7) INFO 12-01 04:54:14 [api_utils.py:272] non-default args: {'model_tag': 'm'}"
LINE = "INFO 12-01 04:54:56 [config.py:605] Mamba cache mode is set to 'align' for Qwen3NextForCausalLM by default"
READY = "(APIServer pid=7) INFO 12-01 04:56:00 [api_server.py:657] Starting vLLM server on http://127.0.0.1:8000"
ERROR = "(EngineCore pid=9) ERROR 12-01 05:10:02 [core.py:1] Worker proc died unexpectedly."
LOADS = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(flush=True); sys.stdin.read()"
# A compiled library of this environment.
LIBRARY = next(Path(pydantic_core.__file__).parent.glob("_pydantic_core*.so"))
LATE_S = 3


class Stage:
    """The host's part of one run of checks. It begins as that of a good server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder)
        self.unit = reports.Unit("enplace-smoke.service", RUN, "active", 0)
        self.library = LIBRARY
        self.versions = {"openai": openai.__version__}
        self.log(START, LINE, READY)

    def log(self, *lines: str, before: Sequence[str] = ()) -> None:
        """What the journal holds of this run, and of the one before it."""
        self.journal.clear()
        self.journal.write(BEFORE, *before)
        self.journal.write(RUN, *lines)

    def restarted(self, times: int) -> None:
        self.unit = dataclasses.replace(self.unit, restarts=times)

    def serve_from_elsewhere(self) -> None:
        """The process has its library from another environment."""
        site = self.folder / "other" / "site-packages"
        site.mkdir(parents=True)
        self.library = Path(shutil.copy(LIBRARY, site))

    def want_other_version(self) -> None:
        """The recipe names another version than the environment has."""
        self.versions = {"openai": "0.1"}

    @contextlib.contextmanager
    def serving(self) -> Iterator[reports.Unit]:
        """The unit, with a process that has the library loaded."""
        argv = [sys.executable, "-c", LOADS, str(self.library)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            if process.stdout is None or process.stdin is None:
                raise AssertionError("both are pipes")
            process.stdout.readline()
            yield dataclasses.replace(self.unit, pid=process.pid)
            process.stdin.close()


def verify(
    server: str, fault: Fault, checks: Sequence[dict[str, Any]], stage: Stage, late: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """What the checks came to, with a fault before the server. `late` names those that get a short deadline."""
    asked = [
        {
            **check,
            **({"versions": stage.versions} if check["check"] == "libraries" else {}),
            **({"deadline_s": LATE_S} if late(check["check"]) else {}),
        }
        for check in checks
    ]
    with Proxy(server, fault) as proxy, stage.serving() as unit:
        subject = reports.Subject(
            proxy.url, "enplace/smoke", "", "0" * 64, {"name": "vllm", "version": "0.28.0"}, asked
        )
        found: list[dict[str, Any]] = reports.run(subject, {}, unit, lambda: unit)["checks"]
    return found
