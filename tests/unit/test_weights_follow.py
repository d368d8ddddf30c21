# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller makes of what a host says of a download, on a connection that may garble or lose it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.enplace.inference.plugins.action import weights
from ansible_collections.enplace.inference.plugins.module_utils import files, job

RESULT = {"changed": True, "models": []}


class Host(weights.ActionModule):
    """A plugin whose commands run here; `garble` changes what comes back."""

    def __init__(self, garble: Callable[[int, str], str]) -> None:
        self.garble = garble
        self.looks = 0

    def _low_level_execute_command(self, cmd: str) -> dict[str, Any]:
        done = subprocess.run(["sh", "-c", cmd], capture_output=True, text=True, check=False)
        if cmd.startswith("rm "):
            return {"stdout": done.stdout}
        self.looks += 1
        # As on a terminal: both streams in one, lines that end as there.
        return {"stdout": self.garble(self.looks, (done.stderr + done.stdout).replace("\n", "\r\n"))}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "INTERVALS", ((0, 0.01),))


def written(tmp_path: Path, **entry: Any) -> str:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(entry, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return str(path)


def lose_first(count: int, answer: str) -> Callable[[int, str], str]:
    return lambda look, said: answer if look <= count else said


@pytest.mark.parametrize(
    "garble",
    [
        lambda _look, said: said,
        lambda _look, said: "Warning: your password will expire in 3 days\r\n" + said + "Shared connection closed.\r\n",
        lose_first(3, ""),
        lose_first(3, "mux_client_request_session: session request failed\r\n"),
        lambda look, said: said if look > 3 else said[: len(said) * look // 4],
        lambda look, said: said if look > 3 else said.replace('"state"', '"st'),
    ],
    ids=["whole", "more around it", "nothing", "another program's words", "cut", "a hole"],
)
def test_no_answer_is_not_the_answer_that_the_work_has_ended(tmp_path: Path, garble: Callable[[int, str], str]) -> None:
    path = written(tmp_path, state="done", pid=2**22 + 1, result=RESULT)
    assert Host(garble)._follow(path, "h1") == RESULT
    assert not os.path.exists(path)


def test_a_host_that_is_not_reached_for_a_while(tmp_path: Path) -> None:
    def away(look: int, said: str) -> str:
        if look <= 3:
            raise AnsibleConnectionFailure("no route to host")
        return said

    assert Host(away)._follow(written(tmp_path, state="done", pid=1, result=RESULT), "h1") == RESULT


def test_a_host_that_never_answers_well_is_quoted_and_its_file_stays(tmp_path: Path) -> None:
    path = written(tmp_path, state="done", pid=1, result=RESULT)
    host = Host(lambda _look, _said: "This account is currently not available.\r\n")
    result = host._follow(path, "h1")
    assert host.looks == weights.LOST_LOOKS + 1
    assert result["failed"]
    assert "This account is currently not available." in result["failure"]["found"]
    assert os.path.exists(path)


def test_a_process_that_is_gone_before_its_last_word(tmp_path: Path) -> None:
    result = Host(lambda _look, said: said)._follow(written(tmp_path, state="running", pid=2**22 + 1), "h1")
    assert result["failed"]
    assert f"process {2**22 + 1} on h1" in result["msg"]
    assert "it is gone" in result["msg"]


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    result = Host(lambda _look, said: said)._follow(str(tmp_path / "nothing.json"), "h1")
    assert "the file is gone" in result["msg"]
    assert "what to do: run again" in result["msg"]


def test_work_that_fails_says_so_itself(tmp_path: Path) -> None:
    path = written(tmp_path, state="failed", pid=1, message="no space", failure={"what": "no space"})
    result = Host(lambda _look, said: said)._follow(path, "h1")
    assert (result["msg"], result["failure"]) == ("no space", {"what": "no space"})


def test_when_a_job_is_begun_its_file_names_its_own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The process that begins the work ends at once, as a module does: its number must not be the one in the file.
    write = files.write_json

    def slow(path: str, value: Any, **how: Any) -> None:
        if value.get("phase") == "working":
            time.sleep(0.5)
        write(path, value, **how)

    monkeypatch.setattr(job, "write_json", slow)

    def work(_progress: job.Progress) -> dict[str, Any]:
        time.sleep(2)
        return {"value": 1}

    path = job.start(work, str(tmp_path))
    entry = json.loads(Path(path).read_text(encoding="utf-8"))
    assert entry["pid"] != os.getpid()
    assert os.path.exists(f"/proc/{entry['pid']}")
    deadline = time.monotonic() + 30
    while entry["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
        entry = json.loads(Path(path).read_text(encoding="utf-8"))
    assert entry["result"] == {"value": 1}
