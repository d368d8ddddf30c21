# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the integration tests."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sim.lab import Lab

ROOT = Path(__file__).resolve().parents[2]

# Programs for the other side. Files travel as JSON through standard input and output, so that they need no other way
# than the one that the command itself takes.
_SCRATCH = "import tempfile; print(tempfile.mkdtemp(prefix='enplace-test-'))"
_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1])"
_PUT = """
import base64, json, os, sys
os.mkdir(sys.argv[1])
for name, content in json.load(sys.stdin).items():
    with open(os.path.join(sys.argv[1], name), "wb") as stream:
        stream.write(base64.b64decode(content))
"""
_GET = """
import base64, json, os, sys
files = {}
for entry in os.scandir(sys.argv[1]):
    with open(entry.path, "rb") as stream:
        files[entry.name] = base64.b64encode(stream.read()).decode()
json.dump(files, sys.stdout)
"""


@dataclass(frozen=True)
class EnginePython:
    """The Python that has torch and transformers, on this machine or on a test host.

    Attributes:
        command: makes the command line that runs it there with arguments.
        scratch: an empty folder there.
    """

    command: Callable[[Sequence[str]], list[str]]
    scratch: str

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run it with arguments. The caller judges the exit status."""
        return _run(self.command, *arguments, stdin=stdin)

    def put(self, name: str, *files: Path) -> str:
        """Copy files to a new folder of that name in `scratch`; its path there."""
        contents = {path.name: base64.b64encode(path.read_bytes()).decode() for path in files}
        target = f"{self.scratch}/{name}"
        _demand(self.run("-c", _PUT, target, stdin=json.dumps(contents)))
        return target

    def get(self, source: str, target: Path) -> Path:
        """Copy the files of a folder there to a new folder here."""
        contents = json.loads(_demand(self.run("-c", _GET, source)))
        target.mkdir()
        for name, content in contents.items():
            (target / name).write_bytes(base64.b64decode(content))
        return target


def _run(
    command: Callable[[Sequence[str]], list[str]], *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(arguments), input=stdin, capture_output=True, text=True, check=False)


def _demand(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"exit status {done.returncode} of {done.args[0]}: {done.stderr}"
    return done.stdout


def _engine_command() -> Callable[[Sequence[str]], list[str]] | None:
    """How the engine's Python is run: one on this machine, or the newest environment of a test host. None: neither."""
    python, host = os.environ.get("ENPLACE_ENGINE_PYTHON"), os.environ.get("ENPLACE_ENGINE_HOST")
    if python:
        return lambda arguments: [python, *arguments]
    if not host:
        return None
    lab = Lab(ROOT)
    newest = "ls -t -d /opt/enplace/environments/*/bin/python | head -n 1"
    found = _demand(lab.ssh(host, ["sh", "-c", newest])).strip()
    assert found, f"{host}: expected an environment in /opt/enplace/environments, found none: make demo builds it"
    return lambda arguments: lab.ssh_command(host, [found, *arguments])


@pytest.fixture(scope="session")
def engine_python() -> Iterator[EnginePython]:
    """The engine's Python, with a scratch folder that is removed at the end. Skips, and warns, where there is none."""
    command = _engine_command()
    if command is None:
        reason = (
            "no Python with torch and transformers: set ENPLACE_ENGINE_PYTHON to the path of one on this machine, or "
            "ENPLACE_ENGINE_HOST to the name of a test host that has an environment, such as demo1 after make demo"
        )
        warnings.warn(f"NOT TESTED: the build of the smoke model: {reason}", stacklevel=2)
        pytest.skip(reason)
    scratch = _demand(_run(command, "-c", _SCRATCH)).strip()
    yield EnginePython(command, scratch)
    _demand(_run(command, "-c", _REMOVE, scratch))
