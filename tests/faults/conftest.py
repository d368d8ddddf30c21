# SPDX-License-Identifier: Apache-2.0
"""The stage, and the results: printed as a table, and written to reports/faults.json as each fault is done with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sim.lab import Lab

from . import table
from .scene import HOST, PORT, ROOT, SITE, Controller, Scene, ask

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
    lab.up(HOST)
    folder = tmp_path_factory.mktemp("faults", numbered=False)
    try:
        if not ask(lab.address(HOST), PORT):
            # Bare: the end-to-end tests did not come before.
            lab.hub()
            done = Controller(SITE, [], folder).end(600)
            assert done.rc == 0, done.text
        yield Scene(lab, folder)
    finally:
        # Whoever comes next finds the hub of the demo.
        lab.hub()
