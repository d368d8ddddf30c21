# SPDX-License-Identifier: Apache-2.0
"""The checks as a program of their own: the other side has a report, or an error with its reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.verify import child

COLLECTIONS = Path(child.__file__).resolve().parents[6]
CHECKS = [{"check": "healthy"}]


def request(python: str, **more: Any) -> dict[str, Any]:
    found = {"url": "http://127.0.0.1:9", "model": "m", "release": "r", "engine": {"name": "vllm", "version": "1"}}
    return {**found, "python": python, "checks": CHECKS, "unit": "x.service", "report": "/nowhere/x.json", **more}


def program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_request_arrives_on_standard_input_and_the_report_comes_back(tmp_path: Path) -> None:
    python = program(tmp_path, f'cat > {tmp_path}/asked; echo "$@" > {tmp_path}/argv; echo \'{{"complete": true}}\'')
    assert child.ask(request(python)) == {"complete": True}
    assert json.loads((tmp_path / "asked").read_text())["unit"] == "x.service"
    assert (tmp_path / "argv").read_text().split() == ["-m", child.__name__]


@pytest.mark.parametrize(
    ("body", "what", "found"),
    [
        ("cat >/dev/null; echo why >&2; exit 3", "the checks could not be run", "exit status 3"),
        ("cat >/dev/null; echo '{'", "the checks gave no report", "something else"),
        ("cat >/dev/null; echo '[]'", "the checks gave no report", "something else"),
        ("cat >/dev/null; echo '{\"complete\": false}'", "the checks gave no report", "something else"),
        ("sleep 60", "the checks did not end", "no end"),
    ],
)
def test_no_report_is_a_failure_with_its_reason(tmp_path: Path, body: str, what: str, found: str) -> None:
    begin = time.monotonic()
    with pytest.raises(Failure, match=what) as caught:
        child.ask(request(program(tmp_path, body)), timeout_s=2)
    assert found in caught.value.found
    assert time.monotonic() - begin < 20


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(Failure, match="cannot be started") as caught:
        child.ask(request("/no/such/python"))
    assert caught.value.where == "/no/such/python"


def test_checks_that_cannot_be_run_are_named_by_the_real_program() -> None:
    with pytest.raises(Failure, match="could not be run") as caught:
        child.ask(request(sys.executable, checks=[{"check": "no_such"}]))
    assert "unknown check 'no_such'" in caught.value.detail


def test_all_checks_together_have_a_deadline() -> None:
    assert child.deadline_s([{"check": "healthy"}, {"check": "needles", "tokens": [500]}]) == 120 + 90 + 3630


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', {child.__name__!r}])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(COLLECTIONS)}
    # The other end of its standard input is kept open here, so that it waits for a request that never comes.
    argv = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    parent = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=environment)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(1.5)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.1)
