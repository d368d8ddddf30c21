# SPDX-License-Identifier: Apache-2.0
"""Files written whole, hashed, locked; programs run by argument list."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import command, files
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

COLLECTIONS = Path(files.__file__).resolve().parents[5]


def test_a_failure_says_everything_and_leaves_out_what_does_not_apply() -> None:
    failure = Failure("the thing is wrong", where="/x", found="1", detail="a\nb")
    assert str(failure) == "the thing is wrong\n  where: /x\n  found: 1\n  output: a\n    b"
    assert failure.fields() == {"what": "the thing is wrong", "where": "/x", "found": "1"}


def test_write_replaces_whole_and_leaves_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    files.write_text(str(target), "new", mode=0o640)
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_write_that_fails_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_text(str(target), "new")
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_json_has_one_form(tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    files.write_json(path, {"b": [1], "a": "ü"})
    assert Path(path).read_text(encoding="utf-8") == '{\n  "a": "ü",\n  "b": [\n    1\n  ]\n}\n'
    assert files.read_json(path) == {"a": "ü", "b": [1]}
    assert files.canonical_json({"b": 1, "a": 2}) == b'{"a":2,"b":1}'


@pytest.mark.parametrize("content", [None, "", "[1]", "{"])
def test_read_json_gives_none_for_what_is_no_object(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    assert files.read_json(str(path)) is None


def test_hashes_are_those_of_the_tools(tmp_path: Path) -> None:
    paths = []
    for number in range(20):
        path = tmp_path / str(number)
        path.write_bytes(bytes([number]) * (number * 100_000))
        paths.append(str(path))
    said = subprocess.run(["sha256sum", *paths], capture_output=True, text=True, check=True).stdout
    expected = {line[66:]: line[:64] for line in said.splitlines()}
    assert files.sha256_files(paths) == expected
    git = subprocess.run(["git", "hash-object", paths[3]], capture_output=True, text=True, check=True).stdout.strip()
    assert files.git_blob_sha1(paths[3]) == git


def test_space_is_asked_at_the_nearest_parent(tmp_path: Path) -> None:
    room = files.space(str(tmp_path / "not" / "there"))
    assert room.existing == str(tmp_path.resolve())
    assert 0 < room.free <= room.total
    assert room.device == tmp_path.stat().st_dev
    assert str(tmp_path.resolve()).startswith(room.mount)
    assert files.space("/proc/self").mount == "/proc"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999_999, "999999 bytes"), (1_200_000, "1.2 MB"), (33_960_000_000, "34.0 GB")]
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert files.sized(count) == text


def test_remove_takes_files_links_and_folders(tmp_path: Path) -> None:
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert files.remove(str(tmp_path / "link"))
    assert (tmp_path / "folder" / "below").is_dir()
    assert files.remove(str(tmp_path / "folder"))
    assert not files.remove(str(tmp_path / "folder"))
    assert list(tmp_path.iterdir()) == []


HOLD = """
import sys, time
sys.path.insert(0, {collections!r})
from ansible_collections.enplace.inference.plugins.module_utils.files import Lock
from ansible_collections.enplace.inference.plugins.module_utils.command import run
with Lock({path!r}, "holding") as lock:
    {body}
"""


def hold(path: Path, body: str) -> subprocess.Popen[str]:
    code = HOLD.format(collections=str(COLLECTIONS), path=str(path), body=body)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_lock_names_its_holder_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = hold(path, "print('held', flush=True); time.sleep(60)")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Failure, match="another run is at work") as caught, files.Lock(str(path), "mine"):
            pass
        assert f"process {holder.pid} since" in caught.value.found
        assert "holding" in caught.value.found
    finally:
        holder.kill()
        holder.wait()
    assert path.exists(), "a killed holder leaves the file"
    with files.Lock(str(path), "mine"):
        assert f"process {os.getpid()}" in path.read_text()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["link", "second name", "folder", "pipe"])
def test_a_lock_is_never_what_somebody_put_in_its_place(tmp_path: Path, kind: str) -> None:
    """A lock may lie in a folder of a service's user, and the one who takes it, root, empties it."""
    precious, path = tmp_path / "precious", tmp_path / "lock"
    precious.write_text("of somebody else")
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "second name":
        path.hardlink_to(precious)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(Failure, match="the lock cannot be taken: mine") as caught, files.Lock(str(path), "mine"):
        pass
    assert caught.value.where == str(path)
    assert precious.read_text() == "of somebody else"
    path.rmdir() if kind == "folder" else path.unlink()
    with files.Lock(str(path), "mine"):
        assert path.is_file()


def test_a_lock_stays_while_the_program_it_was_given_to_works(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mark = tmp_path / "mark"
    program = ["sh", "-c", f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60"]
    holder = hold(path, f"run({program!r}, timeout_s=60, keep=[lock.handle])")
    child = 0
    try:
        deadline = time.monotonic() + 30
        while not mark.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        child = int(mark.read_text())
        holder.kill()
        holder.wait()
        with pytest.raises(Failure, match="another run is at work"), files.Lock(str(path), "mine"):
            pass
    finally:
        holder.kill()
        if child:
            os.kill(child, 9)
    deadline = time.monotonic() + 30
    while True:
        try:
            with files.Lock(str(path), "mine"):
                break
        except Failure:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_run_gives_both_streams_and_the_return_code() -> None:
    result = command.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.rc, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert result.tail() == "out\nerr"
    assert not result.ok
    assert result.said() == "return code 3"


def test_run_passes_no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://elsewhere.test")
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    said = command.run(["env"]).stdout
    assert "PIP_INDEX_URL" not in said
    assert "https_proxy=http://proxy.test:3128" in said


def test_run_stops_a_program_and_its_children_at_the_deadline(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    result = command.run(["sh", "-c", f"sh -c 'echo $$ > {mark}; sleep 60' & wait"], timeout_s=1)
    assert result.rc == command.TIMED_OUT
    assert result.said() == "stopped at its deadline"
    deadline = time.monotonic() + 30
    while Path("/proc", mark.read_text().strip(), "cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_run_says_which_program_or_user_is_missing() -> None:
    with pytest.raises(Failure, match="a program is missing") as caught:
        command.run(["/no/such/program", "x"])
    assert caught.value.where == "/no/such/program"
    with pytest.raises(Failure, match="no such user"):
        command.run(["true"], user="no-such-user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a program as another user")
def test_run_as_another_user_has_that_users_groups() -> None:
    said = command.run(["id"], user="nobody").stdout
    expected = subprocess.run(["id", "nobody"], capture_output=True, text=True, check=True).stdout
    assert said == expected


def test_disk_full_is_recognised() -> None:
    assert files.is_disk_full(OSError(errno.ENOSPC, "x"))
    assert files.is_disk_full("error: failed to write: No space left on device (os error 28)")
    assert not files.is_disk_full(OSError(errno.EACCES, "x"))
