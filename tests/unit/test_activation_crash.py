# SPDX-License-Identifier: Apache-2.0
"""Killed anywhere: the next run finishes or undoes it, and nothing is left over. On a simulated host, at every step."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import activation, files
from ansible_collections.enplace.inference.plugins.module_utils import release as releases
from ansible_collections.enplace.inference.plugins.module_utils.transaction import PHASES, UNDOING
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.services import Crash, Host

SLUG = "org-model-cpu"
OTHER = "org-other-cpu"


@contextlib.contextmanager
def killable(host: Host) -> Iterator[None]:
    """Every file that is written or removed is a point at which the process may be killed, too."""
    write, remove, replace = files.write_bytes, files.remove, os.replace

    def then(function: Callable[..., Any]) -> Callable[..., Any]:
        def done(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            host.tick()
            return result

        return done

    def written(path: str, content: bytes, *arguments: Any, **named: Any) -> None:
        try:
            host.tick()
        except Crash:
            Path(path).with_name(f".{Path(path).name}.k1ll3d").write_bytes(content[:8])
            raise
        write(path, content, *arguments, **named)
        host.tick()

    with (
        mock.patch.object(files, "write_bytes", written),
        mock.patch.object(files, "remove", then(remove)),
        mock.patch.object(os, "replace", then(replace)),
        # What is real here is the order of things; the disk's own promise is not asked for.
        mock.patch.object(os, "fsync"),
    ):
        yield


def run(host: Host, call: Callable[[], object], crash: int | None = None) -> str:
    """Call it and say how it ended: done, refused, or killed at the given step."""
    host.crash_at(crash)
    try:
        with killable(host):
            call()
    except Crash:
        return "killed"
    except activation.Refused:
        return "refused"
    finally:
        host.crash_at(None)
    return "done"


def steps_of(host: Host, call: Callable[[], object]) -> int:
    run(host, call)
    return host.ticks


def demand_whole(host: Host, *allowed: releases.Release | None, slug: str = SLUG) -> None:
    """One of the releases serves, wholly and enabled, or none at all where None is allowed; nothing else is there."""
    assert host.rest() == []
    serving = host.serves(slug)
    for release in allowed:
        if release is None and not serving:
            assert not list(host.layout.units.glob(f"enplace-{slug}*"))
            assert host.layout.linked(slug, "current") == ""
            return
        if release is not None and release.digest == serving:
            assert releases.look(release, host.services).differences() == []
            return
    raise AssertionError(f"{serving or 'nothing'} serves")


@pytest.mark.parametrize("engine", ["good", "fails", "lies"])
@pytest.mark.parametrize("cut", ["killed", "power cut"])
def test_a_run_that_is_cut_off_at_any_step_is_finished_or_undone(engine: str, cut: str) -> None:
    """The next run wants what the cut one wanted, or what served before; in turn, for each step once over both cuts."""
    phases = set()
    for crash in itertools.count(1):
        again = ("the same", "the old")[(crash + (cut == "killed")) % 2]
        with tempfile.TemporaryDirectory() as folder:
            host = Host(Path(folder))
            old, new = host.release("one"), host.release("two", engine=engine)
            run(host, lambda: host.activator().active(old))  # noqa: B023
            ended = run(host, lambda: host.activator().active(new), crash)  # noqa: B023
            journal = files.read_json(str(host.layout.journal))
            phases.add(str(journal["phase"]) if journal else "")
            if ended == "killed" and cut == "power cut":
                host.power_cut()
                # A boot never starts what was not verified.
                assert host.serves() == old.digest or (engine == "good" and host.serves() == new.digest)
            if ended == "killed":
                wanted = new if again == "the same" else old
                said = run(host, lambda: host.activator(retry=True).active(wanted))  # noqa: B023
                assert said == ("refused" if again == "the same" and engine != "good" else "done")
                demand_whole(host, new if again == "the same" and engine == "good" else old)
                if host.serves() == old.digest and engine != "good":
                    assert not new.path.exists()
            else:
                demand_whole(host, new if engine == "good" else old)
                break
    tried = [*PHASES[:-1], "commit" if engine == "good" else UNDOING]
    assert set(tried) - {"verifying"} <= phases | {""}


@settings(max_examples=50)
@given(
    engine=st.sampled_from(["good", "fails", "lies"]),
    before=st.booleans(),
    other=st.booleans(),
    standby=st.booleans(),
    cuts=st.lists(st.tuples(st.integers(1, 110), st.booleans()), min_size=1, max_size=3),
)
def test_cut_off_several_times_over(
    engine: str, before: bool, other: bool, standby: bool, cuts: list[tuple[int, bool]]
) -> None:
    """Recovery itself is cut off, too; another recipe is retired by it, or stands aside for a standby."""
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder))
        old = host.release("one")
        new = host.release("two", engine=engine, standby=standby, conflicts=OTHER if standby else "")
        beside = host.release("three", slug=OTHER, port=8001)
        if before and not standby:
            run(host, lambda: host.activator().active(old))
        if other:
            run(host, lambda: host.activator().active(beside))
        wanted = [SLUG, OTHER] if standby else [SLUG]
        for crash, power in cuts:
            ended = run(host, lambda: host.activator(wanted=wanted, retry=True).active(new), crash)
            if ended == "killed" and power:
                host.power_cut()
        ended = run(host, lambda: host.activator(wanted=wanted, retry=True).active(new))
        assert ended == ("done" if engine == "good" else "refused")
        assert host.rest() == []
        if engine == "good":
            assert releases.look(new, host.services).differences() == []
            assert host.serves(OTHER) == (beside.digest if other and standby else "")
        else:
            demand_whole(host, old if before and not standby else None)
            demand_whole(host, beside if other else None, slug=OTHER)


@pytest.mark.parametrize("cut", ["killed", "power cut"])
def test_a_removal_that_is_cut_off_is_finished(cut: str) -> None:
    for crash in itertools.count(1):
        with tempfile.TemporaryDirectory() as folder:
            host = Host(Path(folder))
            release, beside = host.release("one"), host.release("two", slug=OTHER, port=8001)
            for one in (release, beside):
                run(host, lambda: host.activator().active(one))  # noqa: B023
            ended = run(host, lambda: host.activator().absent(SLUG), crash)  # noqa: B023
            if ended == "killed" and cut == "power cut":
                host.power_cut()
            run(host, lambda: host.activator().absent(SLUG))  # noqa: B023
            demand_whole(host, None)
            demand_whole(host, beside, slug=OTHER)
            assert not host.layout.folder(SLUG).exists()
            if ended != "killed":
                assert crash > 10
                break


def test_a_candidate_that_still_runs_is_taken_further_and_not_started_again(tmp_path: Path) -> None:
    host = Host(tmp_path)
    old, new = host.release("one"), host.release("two")
    host.activator().active(old)
    runs = host.services.runs
    verify, host.verify = host.verify, mock.Mock(side_effect=Crash)  # type: ignore[method-assign]
    with pytest.raises(Crash):
        host.activator().active(new)
    host.verify = verify  # type: ignore[method-assign]
    done = host.activator().active(new)
    assert done.outcome == "resumed"
    assert "cut off in phase verifying" in done.recovered
    assert host.services.runs == runs + 1 + 1, "the engine and its timer"
    demand_whole(host, new)


def test_a_run_that_was_cut_off_is_no_failure_of_the_release(tmp_path: Path) -> None:
    host = Host(tmp_path)
    old, new = host.release("one"), host.release("two")
    host.activator().active(old)
    host.verify, verify = mock.Mock(side_effect=Crash), host.verify  # type: ignore[method-assign]
    with pytest.raises(Crash):
        host.activator().active(new)
    host.verify = verify  # type: ignore[method-assign]
    host.power_cut()
    assert host.serves() == old.digest
    done = host.activator().active(new)
    assert (done.outcome, done.recovered.split(":")[0][:4]) == ("activated", "undi")
    demand_whole(host, new)
