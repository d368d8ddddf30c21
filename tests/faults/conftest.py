# SPDX-License-Identifier: Apache-2.0
"""The stage, and the results: printed as a table, and written to reports/faults.json as each fault is done with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sim.lab import Lab

from . import table
from .scene import ROOT, Scene, serving

_RESULTS = pytest.StashKey[table.Results]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RESULTS] = table.Results(ROOT / "reports" / "faults.json")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash[_RESULTS]
    if results.faults:
        terminalreporter.write_line("")
        terminalreporter.write_line(table.text(results.faults))


@pytest.fixture(scope="session")
def results(pytestconfig: pytest.Config) -> table.Results:
    return pytestconfig.stash[_RESULTS]


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The demo's own host, with a hub that serves more than the demo's."""
    lab = Lab(ROOT)
    folder = tmp_path_factory.mktemp("faults", numbered=False)
    try:
        serving(lab, folder)
        yield Scene(lab, folder)
    finally:
        # Whoever comes next finds the hub of the demo.
        lab.hub()
