# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Who takes weights from whom, what the daemon is told, and the line that people see."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.action.weights import Line, interval, spoken
from ansible_collections.enplace.inference.plugins.filter import fleet as chosen
from ansible_collections.enplace.inference.plugins.module_utils import command, download, fleet
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

A = {"repo": "org/a", "revision": "1" * 40, "files": [{"path": "x"}]}
B = {"repo": "org/b", "revision": "2" * 40, "files": [{"path": "x"}]}
A_KEY, B_KEY = "org/a@" + "1" * 40, "org/b@" + "2" * 40
HOSTS = ["h1", "h2", "h3"]


def hostvars(**wanted: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {"__weights_wanted": wanted.get(name, [])} for name in HOSTS}


def looked(host: str, *keys: str) -> dict[str, Any]:
    return {"__weights_candidate": host, "whole": list(keys)}


def test_the_first_host_that_wants_a_model_fetches_it_for_the_others() -> None:
    known = hostvars(h1=[A], h2=[A, B], h3=[B])
    sources = chosen.fleet_sources(HOSTS, known)
    assert sources == {A_KEY: "h1", B_KEY: "h2"}
    assert chosen.fleet_part([A, B], sources, "h2", own=True) == [B]
    assert chosen.fleet_part([A, B], sources, "h2", own=False) == [A]
    assert chosen.fleet_takers(HOSTS, known, sources, "h1") == ["h2"]
    assert chosen.fleet_takers(HOSTS, known, sources, "h2") == ["h3"]
    assert [chosen.fleet_led(HOSTS, known, sources, host) for host in HOSTS] == [[], ["h1"], ["h2"]]


def test_a_host_that_has_it_whole_comes_before_one_that_would_have_to_fetch_it() -> None:
    known = hostvars(h1=[A], h2=[A])
    failed = {"__weights_candidate": "h8", "unreachable": True}
    known["h1"]["__weights_looked"] = {"results": [failed, looked("h9", A_KEY), looked("h3", A_KEY, B_KEY)]}
    known["h2"]["__weights_looked"] = {"skipped": True}
    sources = chosen.fleet_sources(HOSTS, known)
    assert sources == {A_KEY: "h9"}
    assert chosen.fleet_part([A], sources, "h1", own=True) == []
    assert chosen.fleet_takers(HOSTS, known, sources, "h9") == ["h1", "h2"]
    assert [chosen.fleet_led(HOSTS, known, sources, host) for host in HOSTS] == [["h9"], [], []]


def test_who_was_not_asked_in_this_run_wants_nothing() -> None:
    known = {"h1": {}, "h2": {"__weights_wanted": [A]}}
    assert chosen.fleet_fetching(["h1", "h2"], known) == ["h2"]
    assert chosen.fleet_wanted(["h1", "h2"], known) == [A]


def test_of_two_manifests_the_one_with_more_files_is_looked_for() -> None:
    more = {**A, "files": [{"path": "x"}, {"path": "y"}]}
    assert chosen.fleet_wanted(HOSTS, hostvars(h1=[A], h2=[more], h3=[A])) == [more]


def test_an_offer_has_the_address_of_the_source_and_the_names_of_its_files() -> None:
    known: dict[str, dict[str, Any]] = {
        "h1": {"__weights_offered": {"results": [{"__weights_source_host": "h9", "etags": {A_KEY: {"x": "e"}}}]}},
        "h2": {"__weights_offered": {"skipped": True}},
        "h9": {"enplace_fleet_address": "192.0.2.9", "ansible_host": "198.51.100.9"},
    }
    sources = {A_KEY: "h9", B_KEY: "h9"}
    first, second = chosen.fleet_offers([A, B], ["h1", "h2"], known, sources, {"run": "run", "port": "8730"})
    assert (first["name"], first["address"], first["port"], first["run"]) == ("h9", "192.0.2.9", 8730, "run")
    assert (first["etags"], first["reason"]) == ({"x": "e"}, "")
    assert (second["etags"], second["reason"]) == ({}, "it was not reached, or does not have all of it")
    known["h1"]["__weights_offered"]["results"] = [{"__weights_source_host": "h9", "msg": "no rsync\n  where: there"}]
    assert (
        chosen.fleet_offers([A], ["h1"], known, sources, {"run": "run", "port": 1})[0]["reason"]
        == "no rsync, where: there"
    )


@pytest.mark.parametrize(
    ("known", "address"),
    [
        ({"__weights_address": "a", "enplace_fleet_address": "b", "ansible_host": "c"}, "a"),
        ({"enplace_fleet_address": "b", "ansible_host": "c"}, "b"),
        ({"ansible_host": "c"}, "c"),
        ({}, "h1"),
    ],
)
def test_where_a_host_is_reached(known: dict[str, Any], address: str) -> None:
    assert chosen.fleet_address("h1", {"h1": known}) == address


# --- the daemon ------------------------------------------------------------------------------------------------------


def test_the_daemon_is_told_to_read_only_for_those_who_are_named() -> None:
    runs = {
        "runB": {"secret": "sB", "hosts": ["192.0.2.2"], "until": 9},
        "runA": {"secret": "sA", "hosts": ["192.0.2.1", "192.0.2.2"], "until": 9},
    }
    lines = fleet.configuration(fleet.Source("/cache", "enplace"), runs).splitlines()
    for line in (
        "read only = yes",
        "list = no",
        "hosts allow = 192.0.2.1 192.0.2.2",
        "auth users = runA,runB",
        "path = /cache",
        "secrets file = /run/enplace-fleet/secrets",
    ):
        assert line in lines
    assert not [line for line in lines if "sA" in line or "sB" in line]


@pytest.mark.parametrize(
    ("run", "secret"), [("run:x", "s" * 20), ("runrunrun", "s\n" * 20), ("", "s" * 20), ("runrunrun", "")]
)
def test_a_run_or_a_secret_that_would_be_more_than_a_word_is_refused(tmp_path: Path, run: str, secret: str) -> None:
    source = fleet.Source(str(tmp_path), "root", folder=str(tmp_path / "fleet"))
    with pytest.raises(ValueError, match="letters and digits"):
        fleet.offer(source, run, secret, [])
    assert not (tmp_path / "fleet").exists()


def test_files_outside_the_standard_layout_are_not_offered(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "r"
    blobs.mkdir()
    (snapshot / "sub").mkdir(parents=True)
    for name in ("a" * 64, "b" * 40, "odd"):
        (blobs / name).write_text("x")
    (snapshot / "large").symlink_to(f"../../blobs/{'a' * 64}")
    (snapshot / "sub" / "small").symlink_to(f"../../../blobs/{'b' * 40}")
    (snapshot / "odd").symlink_to("../../blobs/odd")
    (snapshot / "plain").write_text("x")
    (snapshot / "outside").symlink_to("/etc/passwd")
    names = ["large", "sub/small", "odd", "plain", "outside", "gone"]
    assert fleet.etags(str(tmp_path), str(snapshot), names) == {"large": "a" * 64, "sub/small": "b" * 40}


def test_a_neighbour_with_another_file_is_not_asked_for_it(tmp_path: Path) -> None:
    class File:
        path, size, sha256 = "x", 1, "c" * 64

    taker = fleet.Taker(str(tmp_path / "models--o--m"), str(tmp_path / "s"), "", (-1, -1), rsync="/nowhere")
    for etags, said in (
        ({}, "h9 does not have x"),
        ({"x": "d" * 64}, "h9 has another x"),
        ({"x": "../y"}, "not have x"),
    ):
        offered = fleet.Offer("h9", "192.0.2.9", 8730, "run", "secret", etags)
        taken = fleet.take(offered, taker, [File()], lambda _have: None)
        assert taken.digests == {}
        assert said in taken.reasons[0]
    assert "secret" not in repr(offered)


# --- the watch -------------------------------------------------------------------------------------------------------


def test_a_program_whose_watch_gives_up_is_killed_with_its_children(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    script = f"sleep 100 & echo $! > {marker}; wait"
    seen = []

    def watch(pid: int) -> bool:
        seen.append(pid)
        return len(seen) < 3

    result = command.run(["sh", "-c", script], watch=watch, watch_every_s=0.1)
    assert result.rc == command.GIVEN_UP
    assert len(seen) == 3
    child = marker.read_text().strip()
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}") or Path(f"/proc/{child}/stat").read_text().split()[2] == "Z"


def test_a_watched_program_keeps_its_output_its_end_and_its_deadline() -> None:
    code = "import time; print('one', flush=True); time.sleep(0.5); print('two')"
    result = command.run([sys.executable, "-c", code], watch=lambda _pid: True, watch_every_s=0.1)
    assert (result.rc, result.stdout.split()) == (0, ["one", "two"])
    late = command.run(["sleep", "100"], watch=lambda _pid: True, watch_every_s=0.1, timeout_s=0.5)
    assert late.rc == command.TIMED_OUT


def test_a_hole_is_not_a_byte_that_came(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(10_000_000)
    assert download.bytes_in(str(tmp_path)) == 0
    (tmp_path / "full").write_bytes(b"x" * 4096)
    assert download.bytes_in(str(tmp_path)) == 4096
    assert download.bytes_in(str(tmp_path / "nothing")) == 0


# --- what people see -------------------------------------------------------------------------------------------------


def test_looks_become_seldom() -> None:
    pauses = [interval(seconds) for seconds in (0, 10, 100, 1000, 10000)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 2
    assert pauses[-1] == 30
    looks, at = 0, 0.0
    while at < 7200:
        at += interval(at)
        looks += 1
    assert looks < 500, "two hours of download"


def test_the_line_has_bytes_rate_and_what_is_left() -> None:
    line = Line("h1")
    entry = {"phase": "downloading", "model": "org/a@111", "total": 10_000_000_000, "done": 0, "at": 100.0}
    assert line.text(entry, 1) == "[h1] weights: org/a@111: 0 bytes of 10.0 GB (0 %)"
    said = line.text({**entry, "done": 1_000_000_000, "at": 110.0}, 11)
    assert said == "[h1] weights: org/a@111: 1.0 GB of 10.0 GB (10 %), 100.0 MB/s, 2 min left"
    # Started again: less is there than before, and the rate is not negative.
    assert "MB/s" not in line.text({**entry, "done": 500_000_000, "at": 120.0}, 21)
    assert line.text({"phase": "verifying"}, 65) == "[h1] weights: verifying, 65 s"


@pytest.mark.parametrize(("seconds", "text"), [(4, "4 s"), (89, "89 s"), (720, "12 min"), (12000, "3 h 20 min")])
def test_spans_of_time(seconds: float, text: str) -> None:
    assert spoken(seconds) == text


def test_a_program_on_a_leash_dies_with_who_started_it_and_so_do_its_children(tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    script = f"sleep 100 & echo $! $$ > {marker}.new; mv {marker}.new {marker}; wait"
    parent = os.fork()
    if not parent:
        command.run(["sh", "-c", script], leash=True)
        os._exit(0)
    deadline = time.monotonic() + 10
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    left = [Path("/proc", pid) for pid in marker.read_text().split()]
    while any(path.exists() for path in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [path for path in left if path.exists()]


def test_a_program_on_a_leash_is_otherwise_as_any_other(tmp_path: Path) -> None:
    begin = time.monotonic()
    result = command.run(["sh", "-c", "echo out; echo err >&2; exit 7"], leash=True)
    assert (result.rc, result.stdout, result.stderr) == (7, "out\n", "err\n")
    assert result.argv == ("sh", "-c", "echo out; echo err >&2; exit 7")
    assert command.run(["sleep", "100"], leash=True, timeout_s=0.3).rc == command.TIMED_OUT
    assert time.monotonic() - begin < 10
    with pytest.raises(Failure, match="a program is missing"):
        command.run([str(tmp_path / "nothing")], leash=True)


def test_a_program_on_a_leash_has_what_it_is_to_keep(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from ansible_collections.enplace.inference.plugins.module_utils import command\n"
        "os.closerange(3, 64)\n"
        "handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "print(handle, command.run(['sh', '-c', 'ls -l /proc/$$/fd'], leash=True, keep=[handle]).stdout)\n"
    )
    lock = tmp_path / "lock"
    done = subprocess.run(
        [sys.executable, "-c", code, str(lock)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    number = done.stdout.split()[0]
    assert number == "3", "the first free one, as in a job"
    assert re.search(rf" {number} -> {lock}", done.stdout), done.stdout
