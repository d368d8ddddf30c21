# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The checks that look at the unit: its journal, simulated, which is this run's or none, and its process."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic_core
import pytest
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports

from tests.sim.liar import Journal, Simulated

RUN, BEFORE = "0123456789abcdef0123456789abcdef", "f" * 32
UNIT = reports.Unit("enplace-smoke.service", RUN, "active", 0)
START = "(APIServer pid=7) INFO 12-01 04:54:14 [api_utils.py:272] non-default args: {'model_tag': 'm'}"
ALIGN = "INFO 12-01 04:54:56 [config.py:605] Mamba cache mode is set to 'align' for Qwen3NextForCausalLM by default"
READY = "(APIServer pid=7) INFO 12-01 04:56:00 [api_server.py:657] Starting vLLM server on http://127.0.0.1:8000"
PATTERN = r"Mamba cache mode is set to '(\w+)'"


@pytest.fixture(name="journal")
def _journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    journal = Journal(tmp_path)
    monkeypatch.setenv("PATH", f"{journal.programs}:{os.environ['PATH']}")
    journal.write(RUN, START, ALIGN, READY)
    return journal


def came_to(unit: reports.Unit | None = UNIT, **check: Any) -> dict[str, Any]:
    """What a check came to."""
    with Simulated() as server:
        subject = reports.Subject(server.url, "enplace/smoke", "", "0" * 64, {"version": "0.28.0"}, [check])
        (found,) = reports.run(subject, {}, unit, lambda: unit)["checks"]
    return dict(found)


def looked(unit: reports.Unit | None = UNIT, **parameters: Any) -> dict[str, Any]:
    """What log_line came to."""
    return came_to(unit, **{"check": "log_line", "pattern": PATTERN, **parameters})


def test_a_line_of_this_run_is_found(journal: Journal) -> None:
    check = looked()
    assert check["status"] == "pass", check
    assert check["evidence"]["line"] == ALIGN
    assert check["evidence"]["number"] == 2
    assert journal.asked() == [f"--quiet --no-pager --all --output=cat _SYSTEMD_INVOCATION_ID={RUN}"]


@pytest.mark.usefixtures("journal")
def test_a_line_that_is_not_there_is_no_pass() -> None:
    check = looked(pattern="Using .* MoE backend")
    assert (check["status"], check["reason"]) == ("fail", "no line of this run matches")
    assert "another engine version" in check["todo"]


def test_a_line_of_an_earlier_run_is_not_this_ones(journal: Journal) -> None:
    journal.clear()
    journal.write(BEFORE, START, ALIGN, READY)
    journal.write(RUN, START, READY)
    check = looked()
    assert (check["status"], check["reason"]) == ("fail", "no line of this run matches")


@pytest.mark.usefixtures("journal")
def test_absent_passes_over_a_whole_start_and_fails_at_the_line() -> None:
    assert looked(pattern="EngineDeadError", absent=True)["status"] == "pass"
    check = looked(absent=True)
    assert (check["status"], check["reason"]) == ("fail", "a line is logged that must not be")
    assert check["found"] == ALIGN


@pytest.mark.parametrize("left", [[], [START], [READY], [ALIGN]])
@pytest.mark.parametrize("absent", [True, False])
def test_a_journal_without_the_whole_start_proves_nothing(journal: Journal, left: list[str], absent: bool) -> None:
    journal.clear()
    journal.write(RUN, *left)
    check = looked(pattern="EngineDeadError", absent=absent)
    assert check["status"] == "fail"
    assert check["reason"] == "the journal does not hold the start of this run"
    assert f"{len(left)} lines" in check["found"]


def test_colours_and_bytes_that_are_no_text_do_not_hide_a_line(journal: Journal) -> None:
    journal.clear()
    journal.write(RUN, START, "\x1b[32mINFO\x1b[0m Mamba cache mode is set to '\x1b[1malign\x1b[0m' \udcff", READY)
    check = looked()
    assert check["status"] == "pass", check
    assert check["evidence"]["line"].startswith("INFO Mamba cache mode is set to 'align'")


@pytest.mark.usefixtures("journal")
def test_without_a_run_of_a_unit_there_is_no_journal() -> None:
    check = looked(reports.Unit("enplace-smoke.service", "", "active", 0))
    assert (check["status"], check["reason"]) == ("fail", "no unit is known whose journal could be read")


@pytest.mark.usefixtures("journal")
@pytest.mark.parametrize(
    "check",
    [
        {"check": "log_line", "pattern": "x"},
        {"check": "no_errors"},
        {"check": "libraries", "versions": {"torch": "2.13.0"}},
    ],
    ids=lambda check: str(check["check"]),
)
def test_where_no_unit_is_named_those_that_look_at_one_are_not_run(check: dict[str, Any]) -> None:
    found = came_to(None, **check)
    assert (found["status"], found["reason"]) == (
        "not run",
        "it looks at the systemd unit that serves, and none is named",
    )


def test_a_journal_that_is_kept_from_us_is_no_empty_one(journal: Journal) -> None:
    journal.refuse("No journal files were opened due to insufficient permissions.")
    check = looked(absent=True)
    assert (check["status"], check["reason"]) == ("fail", "the journal cannot be read")
    assert "insufficient permissions" in check["found"]


def test_no_journal_program_is_said(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(journal.programs / "nowhere"))
    check = looked(absent=True)
    assert (check["status"], check["reason"]) == ("fail", "the journal cannot be read")
    assert "journalctl" in check["expected"]


def test_a_journal_that_never_ends_ends_at_the_deadline(journal: Journal) -> None:
    journal.hang()
    check = looked(pattern="EngineDeadError", absent=True, deadline_s=1)
    assert (check["status"], check["reason"]) == ("fail", "the deadline passed")
    assert check["seconds"] < 3


REFUSAL = (
    "(APIServer pid=7) ERROR 12-02 13:25:34 [serving.py:214] Error with model error=ErrorInfo("
    "message='The model `enplace/not-served` does not exist.', type='NotFoundError', code=404)"
)


def test_a_run_without_restarts_and_errors_is_one(journal: Journal) -> None:
    journal.write(RUN, REFUSAL, "INFO 12-02 13:25:34 [x.py:1] an ERROR that is spoken of", "WARNING 12-02 no error")
    journal.write(BEFORE, "ERROR 12-01 of the run before")
    check = came_to(check="no_errors")
    assert check["status"] == "pass", check
    assert check["evidence"]["lines"] == 6


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=9) ERROR 12-02 13:25:34 [core.py:1] EngineCore encountered a fatal error.",
        "ERROR:    Exception in ASGI application",
        "CRITICAL 12-02 13:25:34 [launcher.py:1] Engine is dead",
        "\x1b[31mERROR\x1b[0m 12-02 13:25:34 [core.py:1] in colours",
        "(Worker pid=10) Traceback (most recent call last):",
        "Fatal Python error: Segmentation fault",
    ],
)
def test_an_error_of_this_run_is_found_unless_the_recipe_knows_it(journal: Journal, line: str) -> None:
    journal.write(RUN, line)
    check = came_to(check="no_errors")
    assert (check["status"], check["reason"]) == ("fail", "an error is logged")
    assert check["evidence"]["number"] == 4
    assert came_to(check="no_errors", apart_from="something else")["status"] == "fail"
    known = came_to(check="no_errors", apart_from="fatal|ASGI|dead|colours|Traceback|Fatal")
    assert (known["status"], known["evidence"]["apart_from"]) == ("pass", 1)


@pytest.mark.usefixtures("journal")
def test_a_unit_that_was_restarted_is_not_a_run_without_errors() -> None:
    check = came_to(reports.Unit(UNIT.name, RUN, "active", 2), check="no_errors")
    assert (check["status"], check["reason"], check["found"]) == ("fail", "the unit was restarted", "2")


def test_a_journal_that_lacks_the_start_says_nothing_of_errors(journal: Journal) -> None:
    journal.clear()
    journal.write(RUN, START)
    assert came_to(check="no_errors")["reason"] == "the journal does not hold the start of this run"
    journal.refuse("No journal files were opened due to insufficient permissions.")
    assert came_to(check="no_errors")["reason"] == "the journal cannot be read"


SERVES = "import pydantic_core, sys; print(flush=True); sys.stdin.read()"


@pytest.fixture(name="pid")
def _pid() -> Iterator[int]:
    """A process of this environment that has a compiled library loaded."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None or process.stdin is None:
            raise AssertionError("both are pipes")
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def test_versions_are_those_of_the_environment_that_the_process_runs_in(pid: int) -> None:
    unit = reports.Unit(UNIT.name, RUN, "active", 0, pid)
    right = came_to(unit, check="libraries", versions={"openai": openai.__version__})
    assert right["status"] == "pass", right
    assert right["evidence"]["versions"] == {"openai": openai.__version__}
    wrong = came_to(unit, check="libraries", versions={"openai": "0.1"})
    assert (wrong["status"], wrong["reason"]) == ("fail", "a library has another version")
    absent = came_to(unit, check="libraries", versions={"no-such-thing": "1"})
    assert (absent["status"], absent["reason"]) == ("fail", "a library has another version")


def test_a_process_of_another_environment_proves_nothing(tmp_path: Path) -> None:
    venv.create(tmp_path / "other", symlinks=True)
    (site,) = (tmp_path / "other" / "lib").glob("python*/site-packages")
    library = next(Path(pydantic_core.__file__).parent.glob("_pydantic_core*.so"))
    (site / library.name).write_bytes(library.read_bytes())
    code = f"import ctypes, sys; ctypes.CDLL({str(site / library.name)!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None or process.stdin is None:
            raise AssertionError("both are pipes")
        process.stdout.readline()
        unit = reports.Unit(UNIT.name, RUN, "active", 0, process.pid)
        check = came_to(unit, check="libraries", versions={"openai": openai.__version__})
        process.stdin.close()
    assert (check["status"], check["reason"]) == ("fail", "the server runs in another environment")
    assert str(site) in check["found"]
    gone = came_to(unit, check="libraries", versions={"openai": openai.__version__})
    assert gone["reason"] == "what the server has loaded cannot be read"
    assert came_to(check="libraries", versions={"openai": "1"})["reason"] == "no process is known that serves"
