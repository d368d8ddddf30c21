# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""log_line against a simulated journal: it is this run's journal or none, and nothing of it may be missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

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


def looked(unit: reports.Unit | None = UNIT, **parameters: Any) -> dict[str, Any]:
    """What log_line came to."""
    check = {"check": "log_line", "pattern": PATTERN, **parameters}
    with Simulated() as server:
        subject = reports.Subject(server.url, "enplace/smoke", "", "0" * 64, {"version": "0.28.0"}, [check])
        (found,) = reports.run(subject, {}, unit, lambda: unit)["checks"]
    return dict(found)


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
@pytest.mark.parametrize("unit", [None, reports.Unit("enplace-smoke.service", "", "active", 0)])
def test_without_a_run_of_a_unit_there_is_no_journal(unit: reports.Unit | None) -> None:
    check = looked(unit)
    assert (check["status"], check["reason"]) == ("fail", "no unit is known whose journal could be read")


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
