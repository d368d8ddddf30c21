# SPDX-License-Identifier: Apache-2.0
"""The real server, and the results: written to reports/matrix.json as each fault is done with."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.scene import PORT, ROOT, ask, serving
from tests.sim.lab import Lab

from . import table
from .faults import CHECKS, Broken, Case
from .stage import Stage, verify

_RESULTS = pytest.StashKey[table.Results]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RESULTS] = table.Results(table.REPORT, bool(os.environ.get("ENPLACE_MATRIX_ALL")))


@pytest.fixture(scope="session")
def results(pytestconfig: pytest.Config) -> table.Results:
    return pytestconfig.stash[_RESULTS]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a real engine with the smoke model: ENPLACE_MATRIX_URL, or the demo's host."""
    url = os.environ.get("ENPLACE_MATRIX_URL")
    if url is None:
        return f"http://{serving(Lab(ROOT), tmp_path_factory.mktemp('matrix', numbered=False))}:{PORT}"
    address = urllib.parse.urlsplit(url)
    assert ask(address.hostname or "", address.port or 80), (
        f"ENPLACE_MATRIX_URL: expected a server at {url}, found none"
    )
    return url


@pytest.fixture
def run(
    server: str, results: table.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Case | None], list[dict[str, Any]]]:
    """What the checks came to with a fault, or with none."""

    def start(case: Case | None) -> list[dict[str, Any]]:
        stage = Stage(tmp_path)
        monkeypatch.setenv("PATH", f"{stage.journal.programs}:{os.environ['PATH']}")
        if case is None:
            return verify(server, Broken(), list(CHECKS.values()), stage, lambda _name: False)
        if case.at_host is not None:
            case.at_host(stage)
        checks = [CHECKS[name] for name in case.names(results.everything)]
        return verify(server, case.make(), checks, stage, lambda name: case.late and name in case.found_by)

    return start
