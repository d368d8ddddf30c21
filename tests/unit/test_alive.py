# SPDX-License-Identifier: Apache-2.0
"""When an engine counts as dead: it does nothing, twice in a row, and nobody is at work on it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import alive
from ansible_collections.enplace.inference.plugins.module_utils.alive import LEAVE, RESTART, Verdict, decide, judge

from tests.sim.liar import Simulated

MODEL = "enplace/smoke"
UNIT = "enplace-enplace-smoke-cpu.service"
RUN = "0123456789abcdef0123456789abcdef"
DEAD = Verdict(False, "no answer within 120 s")
WELL = Verdict(True, "1 token generated")


@pytest.mark.parametrize(
    ("lie", "is_alive", "why"),
    [
        ("", True, "1 token"),
        ("hangs", False, "no answer within 1 s; its counters stood still"),
        ("hangs_busy", True, "busy: vllm:generation_tokens_total moved"),
        ("error_500", False, "HTTP 500"),
        ("error_401", True, "HTTP 401"),
        ("trickle", False, "no answer within 1 s"),
        ("html", False, "JSONDecodeError"),
        ("broken_off", False, "JSONDecodeError"),
        ("redirect", False, "HTTP 302"),
    ],
)
def test_what_counts_as_life(lie: str, is_alive: bool, why: str) -> None:
    with Simulated(lie) as server:
        verdict = judge(server.url, MODEL, 1, settle_s=0.2)
    assert verdict.alive is is_alive
    assert why in verdict.why


def test_an_engine_that_counts_nothing_and_answers_is_alive_and_one_that_does_neither_is_dead() -> None:
    with Simulated("no_metrics") as server:
        assert judge(server.url, MODEL, 5).alive
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        verdict = judge(f"http://127.0.0.1:{free.getsockname()[1]}", MODEL, 5, settle_s=0)
    assert not verdict.alive
    assert "refused>; /metrics tells of no work either" in verdict.why


def test_an_error_that_comes_at_once_waits_for_the_counters() -> None:
    with Simulated("error_500") as server:
        timer = threading.Timer(0.3, lambda: setattr(server, "generated", server.generated + 1))
        timer.start()
        assert judge(server.url, MODEL, 5, settle_s=1.0).alive, "others are being served"
        timer.join()


def test_a_server_with_a_key_is_asked_with_it() -> None:
    with Simulated(key="k" * 20) as server:
        right, wrong = judge(server.url, MODEL, 5, "k" * 20), judge(server.url, MODEL, 5, "x" * 20)
    assert (right.alive, right.warning) == (True, False)
    assert (wrong.alive, wrong.warning) == (True, True), "a wrong key is no reason to restart a server"


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What /run/systemd tells of a unit that runs, and a place for the state."""
    monkeypatch.setattr(alive, "SYSTEMD", str(tmp_path))
    (tmp_path / "units").mkdir()
    (tmp_path / "system").mkdir()
    (tmp_path / "units" / f"invocation:{UNIT}").symlink_to(RUN)
    return tmp_path


def test_dead_twice_in_a_row_is_dead(systemd: Path) -> None:
    state = str(systemd / "state.json")
    first, level, line = decide(UNIT, RUN, DEAD, state)
    assert (first, level) == (LEAVE, alive.WARNING)
    assert "may be dead (1 of 2)" in line
    second, level, line = decide(UNIT, RUN, DEAD, state)
    assert (second, level) == (RESTART, alive.ERROR)
    assert "no answer within 120 s" in line
    assert decide(UNIT, RUN, DEAD, state)[0] == LEAVE, "a restart begins the count anew"


def test_one_answer_between_begins_the_count_anew(systemd: Path) -> None:
    state = str(systemd / "state.json")
    assert [decide(UNIT, RUN, verdict, state)[0] for verdict in (DEAD, WELL, DEAD)] == [LEAVE, LEAVE, LEAVE]


def test_another_run_of_the_unit_begins_the_count_anew(systemd: Path) -> None:
    state, link = str(systemd / "state.json"), systemd / "units" / f"invocation:{UNIT}"
    decide(UNIT, RUN, DEAD, state)
    other = "f" * 32
    link.unlink()
    link.symlink_to(other)
    assert decide(UNIT, RUN, DEAD, state)[0] == LEAVE, "it was started anew while it was asked"
    assert decide(UNIT, other, DEAD, state)[0] == LEAVE
    assert decide(UNIT, other, DEAD, state)[0] == RESTART
    link.unlink()
    assert decide(UNIT, other, DEAD, state)[0] == LEAVE, "it was stopped while it was asked"


def test_nothing_is_concluded_while_a_release_is_activated(systemd: Path) -> None:
    state, candidate = str(systemd / "state.json"), systemd / "system" / UNIT
    decide(UNIT, RUN, DEAD, state)
    candidate.touch()
    assert decide(UNIT, RUN, DEAD, state)[0] == LEAVE
    candidate.unlink()
    assert decide(UNIT, RUN, DEAD, state)[0] == LEAVE, "what was seen before an activation does not count after it"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"run": 1, "strikes": "x"}', '{"strikes": 1}'])
def test_a_state_that_cannot_be_read_is_none(systemd: Path, content: str) -> None:
    path = systemd / "state.json"
    path.write_text(content)
    assert decide(UNIT, RUN, DEAD, str(path))[0] == LEAVE


def test_a_server_that_refuses_is_complained_about_once(systemd: Path) -> None:
    state, refused = str(systemd / "state.json"), Verdict(True, "HTTP 401", warning=True)
    assert [decide(UNIT, RUN, refused, state)[1] for _ in range(3)] == [alive.WARNING, alive.INFO, alive.INFO]
    decide(UNIT, RUN, WELL, state)
    assert decide(UNIT, RUN, refused, state)[1] == alive.WARNING


# ---- as it lies in a release, without a collection around it


def asked(folder: Path, url: str, *, deadline: str = "1") -> subprocess.CompletedProcess[str]:
    """Run the program as systemd does, with another place for what systemd tells."""
    for name in ("alive.py", "ready.py"):
        text = Path(str(alive.__file__)).with_name(name).read_text(encoding="utf-8")
        text = text.replace('SYSTEMD = "/run/systemd"', f"SYSTEMD = {str(folder)!r}").replace(
            "SETTLE_S = 10.0", "SETTLE_S = 0.1"
        )
        (folder / name).write_text(text)
    argv = [sys.executable, "-S", str(folder / "alive.py"), "--url", url, "--model", MODEL]
    argv += ["--unit", UNIT, "--deadline", deadline]
    environment = {"RUNTIME_DIRECTORY": str(folder), "http_proxy": "http://127.0.0.1:9"}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=30)


def test_the_program_says_restart_by_its_exit_status(systemd: Path) -> None:
    with Simulated("hangs") as server:
        first, second = asked(systemd, server.url), asked(systemd, server.url)
    assert (first.returncode, first.stderr) == (LEAVE, "")
    assert first.stdout.startswith("<4>enplace: ")
    assert second.returncode == RESTART
    assert second.stdout.startswith("<3>enplace: ")
    assert second.stdout.count("\n") == 1


def test_the_program_does_not_ask_a_unit_that_does_not_run_or_is_activated(systemd: Path) -> None:
    with Simulated() as server:
        (systemd / "system" / UNIT).touch()
        assert asked(systemd, server.url).returncode == LEAVE
        (systemd / "system" / UNIT).unlink()
        (systemd / "units" / f"invocation:{UNIT}").unlink()
        assert asked(systemd, server.url).returncode == LEAVE
        assert server.asked == []


def test_a_program_that_fails_restarts_nothing(systemd: Path) -> None:
    (systemd / "state.json.new").mkdir()
    with Simulated("hangs") as server:
        done = asked(systemd, server.url)
    assert done.returncode not in (RESTART, 255), "255 would be a failure of its own for systemd"
    assert "cannot be asked" in done.stdout
    (systemd / "alive.py").write_text("no Python")
    argv = [sys.executable, str(systemd / "alive.py")]
    assert subprocess.run(argv, capture_output=True, check=False, env=os.environ).returncode not in (RESTART, 255)
