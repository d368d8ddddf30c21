# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Locks: made by the real uv from an index of our own on loopback, compared, and written whole or not at all."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.plugin_utils import engines, locks
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import RecipeError
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.packages import Index, uv_program

A, B, C = ("sha256:" + char * 64 for char in "abc")
MANIFEST = """\
# A comment that stays.
schema: 1
engine: demo
version: 1.0.0
platforms:
  - accelerator: cpu
    arch: x86_64
    python: "3.11"
    lock: cpu.lock.txt
    locked: {uv: 0.0.1, platform: x86_64-manylinux_2_36, exclude_newer: "2026-01-01T00:00:00Z", requirements: wanted.in}
    packages: []  # None.
    download_bytes: 1
    installed_bytes: 1
    assertions:
      - {kind: requirements}
"""


def pins(*lines: str) -> str:
    """A lock of `name==version` and hashes."""
    return "".join(line.replace(" sha256:", " \\\n    --hash=sha256:") + "\n" for line in lines)


# --- differences -----------------------------------------------------------------------------------------------------


def test_equal_locks_do_not_differ() -> None:
    one, two = pins(f"a==1 {A}", f"b==1 {B}"), "# A comment.\n" + pins(f"b==1 {B}", f"a==1 {A}")
    assert not locks.difference(one, two)
    assert locks.difference(one, two).lines() == []


def test_what_came_went_and_moved_is_told_apart() -> None:
    found = locks.difference(pins(f"a==1 {A}", f"b==1 {A}"), pins(f"b==2 {B}", f"c==1 {A}"))
    assert (found.added, found.removed, found.changed) == ((("c", "1"),), (("a", "1"),), (("b", "1", "2"),))
    assert found.alarming == ()
    assert found.lines() == ["+ c 1", "- a 1", "~ b 1 -> 2"]


def test_another_file_under_the_same_version_is_an_alarm_and_comes_first() -> None:
    found = locks.difference(pins(f"a==1 {A}", f"b==1 {A} {B}"), pins(f"a==1 {C}", f"b==1 {A}", f"c==1 {A}"))
    assert [(entry.name, len(entry.gone), len(entry.new)) for entry in found.alarming] == [("a", 1, 1), ("b", 1, 0)]
    assert found.lines()[0].startswith("ALARM a 1: the same version has other files now (1 locked hashes gone, 1 new)")


def test_a_further_file_of_a_version_is_told_and_no_alarm() -> None:
    found = locks.difference(pins(f"a==1 {A}"), pins(f"a==1 {A} {B}"))
    assert found
    assert not found.alarming
    assert found.lines() == ["= a 1: 1 further files were published"]


def test_a_version_for_each_of_two_markers_is_no_move() -> None:
    two = pins(f"a==1 ; python_version < '3.12' {A}", f"a==2 ; python_version >= '3.12' {B}")
    found = locks.difference(two, pins(f"a==3 {C}"))
    assert (found.removed, found.added, found.changed) == ((("a", "1"), ("a", "2")), (("a", "3"),), ())


def test_what_is_no_lock_is_refused() -> None:
    with pytest.raises(RecipeError, match="not pinned by version and hash"):
        locks.difference(pins(f"a==1 {A}"), "a>=1\n")


LOCKS = st.dictionaries(
    st.sampled_from("abcde"),
    st.tuples(st.sampled_from(["1", "2"]), st.sets(st.sampled_from([A, B, C]), min_size=1)),
    min_size=1,
)


@given(LOCKS, LOCKS)
def test_a_difference_turned_round_is_the_other_difference(
    one: dict[str, tuple[str, set[str]]], two: dict[str, tuple[str, set[str]]]
) -> None:
    texts = [pins(*(f"{n}=={v} {' '.join(sorted(h))}" for n, (v, h) in lock.items())) for lock in (one, two)]
    there, back = locks.difference(*texts), locks.difference(*reversed(texts))
    assert (there.added, there.removed) == (back.removed, back.added)
    assert there.changed == tuple((name, new, old) for name, old, new in back.changed)
    assert [(r.gone, r.new) for r in there.rehashed] == [(r.new, r.gone) for r in back.rehashed]
    assert bool(there) is (one != two)


# --- made by uv ------------------------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "index") as found:
        found.add("demo-torch", "2.0")
        found.add("demo-engine", "1.0", "demo-torch>=1")
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of engines with one manifest, and settings of whoever runs it, which must not matter."""
    made = tmp_path / "engines" / "demo" / "1.0.0"
    made.mkdir(parents=True)
    (made / "engine.yaml").write_text(MANIFEST)
    (made / "wanted.in").write_text("demo-engine==1.0\n")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_PRERELEASE", "allow")
    monkeypatch.setenv("UV_EXTRA_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    return tmp_path / "engines"


def lock(folder: Path, index: Index, **options: object) -> locks.Outcome:
    given: dict[str, object] = {"uv": uv_program(), "index_url": index.url, **options}
    (outcome,) = locks.lock("demo/1.0.0", engines=folder, **given)  # type: ignore[arg-type]
    return outcome


def platform(folder: Path) -> engines.Platform:
    (found,) = engines.platforms(engines.load_engine("demo", "1.0.0", engines=folder, locks=False))
    return found


def test_a_lock_is_made_once_and_found_the_same_again(folder: Path, index: Index) -> None:
    first = lock(folder, index)
    path = folder / "demo" / "1.0.0" / "cpu.lock.txt"
    text = path.read_text()
    assert (first.identical, first.written, first.difference) == (False, True, None)
    assert text.startswith("# Complete, hash-locked requirements of demo 1.0.0 for cpu, x86_64, Python 3.11. Made in")
    assert "demo-engine==1.0 \\\n    --hash=sha256:" in text
    assert "demo-torch==2.0" in text
    assert index.url not in text
    before = path.stat()
    again = lock(folder, index)
    assert (again.identical, again.written) == (True, False)
    assert path.stat() == before, "a lock that is the same is not written again"
    assert sorted(p.name for p in path.parent.iterdir()) == ["cpu.lock.txt", "engine.yaml", "wanted.in"]


def test_the_manifest_is_told_how_and_stays_as_it_was_otherwise(folder: Path, index: Index) -> None:
    lock(folder, index, exclude_newer="2026-02-03")
    manifest = (folder / "demo" / "1.0.0" / "engine.yaml").read_text()
    version = locks.uv_version(uv_program())
    assert manifest == MANIFEST.replace("2026-01-01T", "2026-02-03T").replace("uv: 0.0.1", f"uv: {version}")


def test_to_check_writes_nothing(folder: Path, index: Index) -> None:
    lock(folder, index)
    path = folder / "demo" / "1.0.0" / "cpu.lock.txt"
    stale = path.read_text().replace("demo-torch==2.0", "demo-torch==1.0")
    path.write_text(stale)
    found = lock(folder, index, check=True)
    assert (found.identical, found.written) == (False, False)
    assert found.difference is not None
    assert found.difference.changed == (("demo-torch", "1.0", "2.0"),)
    assert path.read_text() == stale
    assert "  ~ demo-torch 1.0 -> 2.0" in found.lines()


def test_the_versions_of_an_older_lock_do_not_count(folder: Path, index: Index) -> None:
    (folder / "demo" / "1.0.0" / "wanted.in").write_text("demo-torch\n")
    lock(folder, index)
    index.add("demo-torch", "3.0")
    found = lock(folder, index)
    assert found.difference is not None
    assert found.difference.changed == (("demo-torch", "2.0", "3.0"),)


def test_an_override_leaves_a_requirement_out(folder: Path, index: Index) -> None:
    made = folder / "demo" / "1.0.0"
    (made / "over.txt").write_text("demo-torch ; sys_platform == 'never'\n")
    text = MANIFEST.replace("requirements: wanted.in", "requirements: wanted.in, overrides: over.txt")
    (made / "engine.yaml").write_text(text)
    lock(folder, index)
    assert "demo-torch==" not in (made / "cpu.lock.txt").read_text()


def test_files_newer_than_the_moment_do_not_count(folder: Path, index: Index) -> None:
    lock(folder, index)
    index.add("demo-torch", "3.0", uploaded="2026-01-01T00:00:00Z")
    assert lock(folder, index).identical
    found = lock(folder, index, exclude_newer="2026-01-02")
    assert found.difference is not None
    assert found.difference.changed == (("demo-torch", "2.0", "3.0"),)
    with pytest.raises(RecipeError, match="uv makes no lock") as caught:
        lock(folder, index, exclude_newer="2024-12-31")
    assert "correct requirements, overrides or exclude_newer" in str(caught.value)


def test_an_index_that_is_not_there_is_told_apart(folder: Path) -> None:
    with pytest.raises(RecipeError, match="check the network, and the index"):
        locks.compile_lock(platform(folder), uv=uv_program(), index_url="http://127.0.0.1:9/simple")


def test_a_uv_that_fails_leaves_the_lock_as_it_was(folder: Path, index: Index) -> None:
    lock(folder, index)
    path = folder / "demo" / "1.0.0" / "cpu.lock.txt"
    before, manifest = path.read_text(), (folder / "demo" / "1.0.0" / "engine.yaml").read_text()
    (folder / "demo" / "1.0.0" / "wanted.in").write_text("demo-nothing\n")
    with pytest.raises(RecipeError):
        lock(folder, index, exclude_newer="2026-02-03")
    assert path.read_text() == before
    assert (folder / "demo" / "1.0.0" / "engine.yaml").read_text() == manifest


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "uv"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('echo "uv 0.13.9"; case "$*" in *compile*) echo broken >&2; exit 2;; esac', "return code 2"),
        ('echo "uv 0.13.9"', "uv makes no lock"),
        ('case "$1" in --version) echo "uv 1.2";; *) sleep 30;; esac', "uv did not end"),
    ],
)
def test_a_uv_that_does_not_do_its_work_is_named(text: str, expected: str, folder: Path, tmp_path: Path) -> None:
    program = script(tmp_path, text)
    with pytest.raises(RecipeError, match=expected):
        locks.compile_lock(platform(folder), uv=program, timeout_s=1.0)


def test_a_program_that_is_no_uv_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not say its version"):
        locks.uv_version(script(tmp_path, "echo hello"))


def test_a_missing_uv_is_said_with_what_to_do(folder: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        locks.lock("demo", engines=folder, uv="no-such-uv")
    assert "no command no-such-uv on PATH" in str(caught.value)
    assert "install it" in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "options", "expected"),
    [
        ("domo", {}, "did you mean demo?"),
        ("demo/1.0.1", {}, "demo 1.0.0"),
        ("demo", {"platform": "gb10"}, "has no such platform"),
        ("demo", {"exclude_newer": "yesterday"}, "is no date"),
    ],
)
def test_what_is_asked_for_wrongly_is_said(
    reference: str, options: dict[str, str], expected: str, folder: Path
) -> None:
    with pytest.raises(RecipeError) as caught:
        locks.lock(reference, engines=folder, uv=uv_program(), **options)  # type: ignore[arg-type]
    assert expected in str(caught.value)


def test_a_moment_that_the_index_may_not_have_caught_up_with_is_refused(folder: Path, index: Index) -> None:
    index.add("demo-engine", "1.0")
    near = (datetime.now(UTC) - timedelta(days=locks.SETTLED_DAYS - 1)).strftime("%Y-%m-%d")
    with pytest.raises(RecipeError, match="the index may still get files of before it"):
        lock(folder, index, exclude_newer=near)
    assert not (folder / "demo" / "1.0.0" / "cpu.lock.txt").exists()
    past = (datetime.now(UTC) - timedelta(days=locks.SETTLED_DAYS + 2)).strftime("%Y-%m-%d")
    assert lock(folder, index, exclude_newer=past).written
    # Whether a lock is what its inputs say may always be asked.
    assert not lock(folder, index, exclude_newer=near, check=True).written


def test_a_value_that_was_edited_meanwhile_is_not_overwritten(folder: Path) -> None:
    document = engines.load_engine("demo", "1.0.0", engines=folder, locks=False)
    path = folder / "demo" / "1.0.0" / "engine.yaml"
    path.write_text(MANIFEST.replace("0.0.1", "0.0.9"))
    with pytest.raises(RecipeError, match="cannot be replaced"):
        locks.record(document, 0, {"uv": "1.0"})
    assert "0.0.9" in path.read_text()


# --- what ships ------------------------------------------------------------------------------------------------------


def test_the_command_in_a_lock_is_the_one_that_is_run() -> None:
    (entry,) = engines.platforms(engines.load_engine("vllm", "0.28.0"))
    first, rest = locks.arguments(entry)
    assert " ".join(first) in locks.header(entry)
    assert " ".join(rest) in locks.header(entry)
    later = dataclasses.replace(entry, exclude_newer="2027-01-01T00:00:00Z")
    assert locks.header(later) != locks.header(entry)


def test_uv_is_found_as_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(uv_program()) + ":/usr/bin:/bin")
    assert shutil.which("uv")
    assert locks.uv_version()
