# SPDX-License-Identifier: Apache-2.0
"""The real server, and the results: written to reports/matrix.json as each fault is done with."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real engine with the smoke model.

    That is ENPLACE_MATRIX_URL, or what serves on the test host ENPLACE_ENGINE_HOST, or on the demo's host.
    """
    url, host = os.environ.get("ENPLACE_MATRIX_URL"), os.environ.get("ENPLACE_ENGINE_HOST")
    if url is None and host is None:
        yield f"http://{serving(Lab(ROOT), tmp_path_factory.mktemp('matrix', numbered=False))}:{PORT}"
        return
    with contextlib.ExitStack() as stack:
        url = url or stack.enter_context(loopback_of(host or ""))
        address = urllib.parse.urlsplit(url)
        assert ask(address.hostname or "", address.port or 80), f"expected a server at {url}, found none"
        yield url


@contextlib.contextmanager
def loopback_of(host: str) -> Iterator[str]:
    """The address here of a server that a test host serves to itself alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = Lab(ROOT).ssh_command(host, [])
    forward = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{port}:127.0.0.1:{PORT}"]
    tunnel = subprocess.Popen([command[0], *forward, *command[1:]])
    try:
        end = time.monotonic() + 30
        while not ask("127.0.0.1", port) and tunnel.poll() is None and time.monotonic() < end:
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        tunnel.terminate()
        tunnel.wait()


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
