# SPDX-License-Identifier: Apache-2.0
"""The table of faults tells what was run and nothing else, and what the fault tests compare they can tell apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import measured
from tests.faults import table
from tests.faults.scene import Watch, differences
from tests.faults.table import Result, Results


def test_a_page_tells_of_each_fault_that_was_run_and_of_no_other(tmp_path: Path) -> None:
    results = Results(tmp_path / "reports" / "faults.json", undisturbed_outage_s=31.4)
    results.add(Result("the power goes", "the server from before", 25.3, 24.0, 41.2))
    results.add(Result("the disk fills", failed="nobody answered within 150 s"))
    report = json.loads(results.path.read_text(encoding="utf-8"))
    text = table.page(report)
    assert "| the power goes | the server from before | 25.3 s | 24.0 s | 41.2 s |" in text
    assert "| the disk fills | FAILED: nobody answered within 150 s |  |  |  |" in text
    assert text.count("\n| ") == 4
    assert "2 faults" in text
    assert "1 of them with a result that must not be" in text
    assert "31 s here" in text


def test_a_machine_is_named_in_general_words() -> None:
    assert measured.machine().startswith(("a machine with ", "a virtual machine with "))


@pytest.mark.parametrize(
    ("seen", "outage"),
    [
        ([(1, 7), (2, 7), (3, 7)], 0),
        # From the last answer before to the first one after.
        ([(1, 7), (2, 0), (3, 0), (5, 7)], 4),
        ([(1, 7), (2, 0), (3, 7), (4, 0), (6, 7)], 5),
        # Nobody answers at the beginning.
        ([(2, 0), (3, 7)], 3),
        # What is before and after is of no concern.
        ([(-1, 0), (1, 7), (2, 7), (11, 0), (12, 7)], 0),
    ],
)
def test_an_outage_is_from_answer_to_answer(seen: list[tuple[float, int]], outage: float) -> None:
    watch = Watch("192.0.2.1")
    watch.seen = seen
    assert watch.outage(0, 10) == outage


def test_differences_are_named_by_place() -> None:
    one = {"units": {"a": "x\ny\n", "b": "same"}, "only": 1}
    other = {"units": {"a": "x\nz\n", "b": "same"}}
    assert differences(one, one) == []
    assert differences(one, other) == [
        "/only: expected 1, found 'absent'",
        "/units/a: - y",
        "/units/a: + z",
    ]
