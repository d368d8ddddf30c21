# SPDX-License-Identifier: Apache-2.0
"""The journal, the history, and the host's lock: named holders, orphans that are waited for."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.action.activation import is_gone, longest_s
from ansible_collections.enplace.inference.plugins.module_utils import files, transaction
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, Held, Lock
from ansible_collections.enplace.inference.plugins.module_utils.release import Layout


def opened(layout: Layout, slug: str = "one") -> transaction.Transaction:
    return transaction.Transaction.open(layout, "activate", slug, "a boot", "somebody", retire={})


def test_a_phase_is_on_disk_before_it_begins_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert transaction.pending(layout) is None
    tx = opened(layout)
    assert transaction.pending(layout) is None
    tx.enter("staged", more=1)
    found = transaction.pending(layout)
    assert found is not None
    assert (found.phase, found.data["more"], found.data["boot"]) == ("staged", 1, "a boot")
    assert layout.journal.stat().st_mode & 0o777 == 0o600


def test_a_finished_one_is_history_and_the_last_twenty_stay(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for number in range(23):
        tx = opened(layout, f"slug-{number}")
        tx.enter("commit")
        tx.finish("committed" if number % 2 else "reverted")
    assert transaction.pending(layout) is None
    names = transaction.history(layout)
    assert len(names) == transaction.KEPT
    last = transaction.last_committed(layout)
    assert last is not None
    assert last["slug"] == "slug-21"
    assert last["ended"].endswith("Z")


def test_two_of_one_second_have_two_names(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for _time in range(3):
        tx = opened(layout)
        tx.enter("commit")
        tx.finish("committed")
    assert len(transaction.history(layout)) == 3


@pytest.mark.parametrize(
    "content", ["", "[]", '{"format": 9, "slug": "a"}', '{"format": 1, "slug": "../../etc"}', '{"format": 1}', "a link"]
)
def test_a_journal_that_no_run_wrote_is_refused(tmp_path: Path, content: str) -> None:
    layout = Layout(tmp_path)
    layout.journal.parent.mkdir(parents=True)
    if content == "a link":
        (tmp_path / "other").write_text('{"format": 1, "slug": "a", "retire": {}}')
        layout.journal.symlink_to(tmp_path / "other")
    else:
        layout.journal.write_text(content)
    with pytest.raises(Failure, match="the journal of an earlier run cannot be read"):
        transaction.pending(layout)


def test_a_journal_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path)
    opened(layout).enter("commit")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Failure, match="cannot be read"):
        transaction.pending(layout)


def test_the_lock_names_its_holder_and_is_refused_at_once(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    begin = time.monotonic()
    with transaction.hold(layout, "activating one", "ann@desk pid 7"):
        assert oct(layout.lock.parent.stat().st_mode)[-3:] == "755"
        with pytest.raises(Held, match="another run is at work") as caught, transaction.hold(layout, "mine", "bob"):
            pass
    assert "for ann@desk pid 7: activating one" in caught.value.found
    assert f"process {os.getpid()} since" in caught.value.found
    assert time.monotonic() - begin < 5
    assert not layout.lock.exists()


def test_a_live_holder_is_waited_for_as_long_as_was_asked(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with transaction.hold(layout, "one", "ann"):
        begin = time.monotonic()
        with pytest.raises(Held), transaction.hold(layout, "two", "bob", lock_timeout_s=1, orphan_wait_s=30):
            pass
        assert 1 <= time.monotonic() - begin < 10


def test_a_holder_whose_answer_nobody_reads_is_an_orphan_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "WATCH_S", 0.05)
    monkeypatch.setattr(Lock, "PAUSE_S", 0.05)
    layout = Layout(tmp_path)
    read, write = os.pipe()
    held, go = threading.Event(), threading.Event()

    def first() -> None:
        with transaction.hold(layout, "one", "ann", output=write):
            held.set()
            go.wait(30)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert held.wait(10)
        time.sleep(0.2)
        assert Lock.ORPHANED not in layout.lock.read_text()
        os.close(read)
        end = time.monotonic() + 10
        while Lock.ORPHANED not in layout.lock.read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        threading.Timer(0.5, go.set).start()
        with transaction.hold(layout, "two", "bob", orphan_wait_s=30):
            assert "for bob: two" in layout.lock.read_text()
    finally:
        go.set()
        thread.join()
        os.close(write)


def test_a_controller_knows_which_of_its_own_runs_are_gone() -> None:
    held = "process 9 since 2026-12-01T00:00:00Z for ann@desk pid {}: activating one"
    gone = 4_194_305  # above the largest there can be
    assert is_gone(held.format(gone), "ann", "desk")
    assert not is_gone(held.format(os.getpid()), "ann", "desk")
    assert not is_gone(held.format(gone), "ann", "other")
    assert not is_gone(held.format(gone), "bob", "desk")
    assert not is_gone("process 9 since then: activating one", "ann", "desk")
    release = {"files": {"release.json": json.dumps({"ready_timeout_s": 100})}}
    assert longest_s({"release": release}) == 700
    assert longest_s({"state": "previous"}) == 1500


def test_the_mark_is_added_and_the_holder_stays_named(tmp_path: Path) -> None:
    with Lock(str(tmp_path / "lock"), "one", "ann") as lock:
        lock.mark_orphaned()
        text = (tmp_path / "lock").read_text()
    assert "for ann: one\norphaned since" in text
    assert files.remove(str(tmp_path / "lock")) is False
