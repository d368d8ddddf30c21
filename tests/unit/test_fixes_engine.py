# SPDX-License-Identifier: Apache-2.0
"""The program that applies fixes: what it writes, what it refuses, and that it never leaves a half."""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fix_engine
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.fixed_site import ENGINE, SOURCES, Installed, edit, fixes

PROFILE_FIXES = ["wide-rows", "dirty-swap", "first-row"]
BATCH = "engine_one/batch.py"


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def loaded(installed: Installed, name: str) -> Any:
    """A module of the installed package, as it is now."""
    code = (installed.site / "engine_one" / f"{name}.py").read_text(encoding="utf-8")
    scope: dict[str, Any] = {}
    sys.path.insert(0, str(installed.site))
    try:
        exec(compile(code, name, "exec"), scope)
    finally:
        sys.path.remove(str(installed.site))
    return scope


# What is written


def test_the_profile_is_applied_and_the_code_does_what_the_fixes_say(installed: Installed) -> None:
    answer = installed.run()
    assert answer.returncode == 0, answer.stderr
    scope = loaded(installed, "batch")
    batch = scope["Batch"](2)
    assert scope["LIMIT"] == 8
    assert (batch.dirty, batch.rows, batch.total()) == (False, [1, 1], 2)
    batch.swap(0, 1)
    assert batch.dirty
    assert (installed.site / "enplace_gaudi" / "rows.py").is_file()


def test_a_second_run_writes_nothing(installed: Installed) -> None:
    assert installed.run().returncode == 0
    before = {path: path.stat().st_mtime_ns for path in installed.site.rglob("*")}
    answer = installed.run("--json")
    assert json.loads(answer.stdout)["result"] == "already applied"
    assert {path: path.stat().st_mtime_ns for path in installed.site.rglob("*")} == before


def test_what_is_applied_already_needs_no_right_to_write(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.engine().reach(PROFILE_FIXES)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert installed.engine().reach(PROFILE_FIXES) == []


def test_an_opt_in_fix_is_added_and_the_order_of_the_runs_does_not_matter(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    results = []
    for folder, runs in ((first, [["slow-total"]]), (second, [[], ["slow-total"]])):
        folder.mkdir()
        here = Installed(folder)
        for names in runs:
            assert here.run(*names).returncode == 0
        results.append({name: text for name, text in here.content().items() if name.endswith(".py")})
    assert results[0] == results[1]


def test_revert_brings_every_byte_back_and_leaves_nothing(installed: Installed) -> None:
    before = installed.content()
    modes = {path: path.stat().st_mode for path in installed.site.rglob("*")}
    assert installed.run("slow-total").returncode == 0
    assert installed.content() != before
    answer = installed.run("--revert")
    assert answer.returncode == 0, answer.stderr
    assert installed.content() == before
    assert {path: path.stat().st_mode for path in installed.site.rglob("*")} == modes
    assert json.loads(installed.run("--revert", "--json").stdout)["result"] == "nothing to revert"


def test_one_fix_is_taken_back_and_the_others_stay(installed: Installed) -> None:
    assert installed.run().returncode == 0
    assert installed.run("--revert", "first-row").returncode == 0
    assert not (installed.site / "enplace_gaudi").exists()
    assert (installed.site / "engine_one" / "helpers.py").read_text() == SOURCES["engine_one/helpers.py"]
    assert installed.engine().state()["applied"] == ["wide-rows", "dirty-swap"]


def test_a_fix_that_another_builds_upon_is_not_taken_back_alone(installed: Installed) -> None:
    assert installed.run().returncode == 0
    answer = installed.run("--revert", "wide-rows")
    assert answer.returncode == 2
    assert "dirty-swap builds upon a fix that would be taken back" in answer.stderr


def test_a_pack_that_was_changed_replaces_what_the_old_one_wrote(installed: Installed) -> None:
    assert installed.run().returncode == 0
    newer = fixes()
    newer["wide-rows"]["edits"][1]["code"] = ["LIMIT = 16"]
    installed.write_pack(newer)
    assert json.loads(installed.run("--json").stdout)["result"] == "applied"
    assert loaded(installed, "batch")["LIMIT"] == 16
    assert installed.run("--revert").returncode == 0
    assert (installed.site / BATCH).read_text() == ENGINE


def test_compiled_forms_that_do_not_look_at_their_source_are_removed(installed: Installed) -> None:
    path = installed.site / BATCH
    compiled = Path(importlib.util.cache_from_source(str(path)))
    argv = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(path)]
    subprocess.run(argv, check=True)
    assert compiled.is_file()
    assert installed.run().returncode == 0
    assert not compiled.exists()


def test_a_file_that_shares_its_bytes_with_a_cache_leaves_the_cache_alone(installed: Installed, tmp_path: Path) -> None:
    """uv links files out of its cache by hard links."""
    cached = tmp_path / "cached.py"
    os.link(installed.site / BATCH, cached)
    assert installed.run().returncode == 0
    assert cached.read_text() == ENGINE


def test_mode_and_owner_of_a_file_stay(installed: Installed) -> None:
    path = installed.site / BATCH
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
    before = path.stat()
    assert installed.run().returncode == 0
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_modules_may_be_read_by_all_whatever_the_umask(installed: Installed) -> None:
    old = os.umask(0o077)
    try:
        installed.engine().reach(PROFILE_FIXES)
    finally:
        os.umask(old)
    folder = installed.site / "enplace_gaudi"
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (folder / "rows.py").stat().st_mode & 0o777 == 0o644


# What only looks


@pytest.mark.parametrize("arguments", [["--status"], ["--check"], ["--diff"], ["--list"]])
def test_looking_writes_nothing(installed: Installed, arguments: list[str]) -> None:
    before = installed.content()
    assert installed.run(*arguments).returncode == 0
    assert installed.content() == before


def test_diff_shows_the_change_and_check_says_what_would_be(installed: Installed) -> None:
    shown = installed.run("--diff").stdout
    assert "-LIMIT = 4" in shown
    assert "+LIMIT = 8" in shown
    assert json.loads(installed.run("--check", "--json").stdout)["result"] == "would be applied"
    installed.run()
    assert installed.run("--diff").stdout.strip() == "nothing would change"


def test_status_names_a_file_that_was_changed_afterwards(installed: Installed) -> None:
    installed.run()
    assert json.loads(installed.run("--status", "--json").stdout)["differing"] == []
    (installed.site / BATCH).write_text(ENGINE + "# by hand\n")
    status = json.loads(installed.run("--status", "--json").stdout)
    assert status["differing"] == [BATCH]
    assert {fix["name"] for fix in status["fixes"] if fix["applied"]} == set(PROFILE_FIXES)


def test_the_commit_is_told_where_the_installation_says_it(tmp_path: Path) -> None:
    (image,) = json.loads(Installed(tmp_path, commit="c0ffee").run("--status", "--json").stdout)["image"]
    assert (image["commit"], image["wanted_commit"], image["version"]) == ("c0ffee", "c0ffee", "1.0")


# What is refused


def refused(installed: Installed, code: int, words: str, *arguments: str) -> None:
    """The run ends with this status and these words, and not one byte is another."""
    before = installed.content()
    answer = installed.run(*arguments)
    assert (answer.returncode, answer.stdout) == (code, ""), answer.stderr
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert installed.content() == before


def test_another_version_is_refused(tmp_path: Path) -> None:
    refused(Installed(tmp_path, version="1.1"), 3, "has another version")


def test_a_local_version_of_the_same_release_is_taken(tmp_path: Path) -> None:
    assert Installed(tmp_path, version="1.0+hpu").run().returncode == 0


def test_a_package_that_is_not_installed_is_refused(tmp_path: Path, installed: Installed) -> None:
    (tmp_path / "empty").mkdir()
    installed.site = tmp_path / "empty"
    refused(installed, 3, "engine_one is not installed")


def test_two_versions_in_one_folder_are_refused(installed: Installed) -> None:
    other = installed.site / "engine_one-0.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-one\nVersion: 0.9\n")
    refused(installed, 3, "installed twice")


def test_a_file_that_was_changed_by_hand_is_refused_and_told_from_another_build(installed: Installed) -> None:
    path = installed.site / BATCH
    path.write_text(ENGINE.replace("result = 0", "result = 1"))
    refused(installed, 3, "not as it was installed: somebody, or a disk, changed it")
    (installed.info / "RECORD").write_text(f"{BATCH},sha256={fix_engine._record_hash(path.read_bytes())},1\n")
    refused(installed, 3, "as it was installed, so the package is another build")


def test_a_truncated_file_is_refused(installed: Installed) -> None:
    (installed.site / BATCH).write_text(ENGINE[: ENGINE.index("result += row") - 3])
    refused(installed, 3, "it is no Python source")


def test_an_empty_file_is_refused(installed: Installed) -> None:
    (installed.site / BATCH).write_text("")
    refused(installed, 3, "is not the one of engine_one 1.0")


def test_line_ends_of_windows_are_named(installed: Installed) -> None:
    (installed.site / BATCH).write_bytes(ENGINE.replace("\n", "\r\n").encode())
    refused(installed, 3, "line ends of Windows (CRLF)")
    refused(installed, 3, "CRLF", "--accept-changed-files")


def test_a_changed_file_is_accepted_where_asked_and_where_no_touched_function_has_changed(installed: Installed) -> None:
    path = installed.site / BATCH
    path.write_text(ENGINE.replace("result = 0", "result = 1").replace("as asked", "as somebody asked"))
    refused(installed, 3, "not as it was installed")
    assert installed.run("--accept-changed-files").returncode == 0
    assert "result = 1" in path.read_text()
    assert "self.dirty = True" in path.read_text()


def test_a_changed_function_is_refused_though_its_anchor_is_there(installed: Installed) -> None:
    changed = ENGINE.replace("self.rows[a], self.rows[b] = self.rows[b], self.rows[a]", "self.rows.reverse()")
    (installed.site / BATCH).write_text(changed)
    said = "the code around the anchor is not the one that the fix was written for"
    refused(installed, 3, said, "--accept-changed-files")


def test_a_missing_file_is_refused(installed: Installed) -> None:
    (installed.site / BATCH).unlink()
    refused(installed, 3, "a file is missing")


def test_a_file_that_is_a_link_is_refused(installed: Installed, tmp_path: Path) -> None:
    path = installed.site / BATCH
    path.rename(tmp_path / "elsewhere.py")
    path.symlink_to(tmp_path / "elsewhere.py")
    refused(installed, 3, "a file is a link")


def test_a_package_folder_that_is_a_link_is_refused(installed: Installed, tmp_path: Path) -> None:
    (installed.site / "engine_one").rename(tmp_path / "checkout")
    (installed.site / "engine_one").symlink_to(tmp_path / "checkout")
    refused(installed, 3, "is a link")


def test_site_packages_by_another_name_is_the_same_place(installed: Installed, tmp_path: Path) -> None:
    """lib64 is a link to lib."""
    assert installed.run().returncode == 0
    (tmp_path / "lib64").symlink_to(installed.site)
    real, installed.site = installed.site, tmp_path / "lib64"
    assert json.loads(installed.run("--json").stdout)["result"] == "already applied"
    assert installed.run("--revert").returncode == 0
    assert (real / BATCH).read_text() == ENGINE


def test_an_editable_install_is_refused(installed: Installed) -> None:
    (installed.info / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {"editable": true}}')
    refused(installed, 3, "editable install")


def test_a_package_in_an_archive_is_refused(installed: Installed, tmp_path: Path) -> None:
    archive = tmp_path / "engine.zip"
    subprocess.run(
        [sys.executable, "-m", "zipfile", "-c", str(archive), *map(str, installed.site.iterdir())], check=True
    )
    argv = installed.argv()
    argv[argv.index(str(installed.site))] = str(archive)
    answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert answer.returncode == 3
    assert "an archive" in answer.stderr


def test_another_copy_in_front_is_refused(installed: Installed, tmp_path: Path) -> None:
    copy = tmp_path / "work" / "engine_one"
    copy.mkdir(parents=True)
    (copy / "__init__.py").write_text("")
    argv = installed.argv()
    argv[argv.index(str(installed.site))] = str(copy.parent)
    answer = subprocess.run([*argv, "--path", str(installed.site)], capture_output=True, text=True, check=False)
    assert answer.returncode == 3
    assert "another copy of engine_one would be imported" in answer.stderr


def test_an_unknown_fix_gets_the_name_that_was_meant(installed: Installed) -> None:
    refused(installed, 2, "did you mean slow-total?", "slow-totals")


def test_an_unknown_profile_is_refused(installed: Installed) -> None:
    refused(installed, 2, "there is no such profile", "--profile=v2.0")


def test_a_fix_without_what_it_builds_upon_is_refused(installed: Installed) -> None:
    refused(installed, 2, "slow-total builds upon a fix that is not applied", "--only", "slow-total")


def test_a_profile_with_a_fix_that_is_not_written_is_refused(installed: Installed) -> None:
    (installed.packs / "v1.0" / "first-row.json").unlink()
    refused(installed, 2, "fixes that are not written yet")
    assert installed.run("--only", "wide-rows").returncode == 0


def test_a_pack_that_cannot_be_read_is_refused(installed: Installed) -> None:
    (installed.packs / "v1.0" / "wide-rows.json").write_text('{"edits": [{"file": 1}')
    refused(installed, 2, "this is not a fix pack")


def test_the_fixes_of_another_profile_are_a_conflict(installed: Installed) -> None:
    installed.write_pack(fixes(), "v1.0-other")
    assert installed.run("--profile=v1.0-other").returncode == 0
    refused(installed, 4, "--profile v1.0-other --revert")
    refused(installed, 4, "the fixes of another profile", "--status")


def test_a_file_that_was_changed_after_the_fixes_is_a_conflict(installed: Installed) -> None:
    assert installed.run().returncode == 0
    (installed.site / BATCH).write_text(ENGINE + "# by hand\n")
    refused(installed, 4, "changed after the fixes were applied")
    refused(installed, 4, "changed after the fixes were applied", "--revert")


def test_a_package_that_was_installed_anew_is_fixed_anew(installed: Installed) -> None:
    assert installed.run().returncode == 0
    (installed.site / BATCH).write_text(ENGINE)
    assert json.loads(installed.run("--json").stdout)["result"] == "applied"
    assert "LIMIT = 8" in (installed.site / BATCH).read_text()


def test_a_file_of_somebody_else_in_the_way_is_a_conflict(installed: Installed) -> None:
    (installed.site / "enplace_gaudi").mkdir()
    (installed.site / "enplace_gaudi" / "rows.py").write_text("mine = 1\n")
    refused(installed, 4, "a file is in the way that no run of these fixes wrote")


def test_two_fixes_for_the_same_code_are_refused(installed: Installed) -> None:
    both = fixes()
    both["first-row"]["edits"].append(edit(BATCH, "", "LIMIT = ...", "replace", "LIMIT = 9"))
    installed.write_pack(both)
    refused(installed, 3, "another edit changes the same code")


def test_a_fix_that_is_no_python_is_refused(installed: Installed) -> None:
    both = fixes()
    both["first-row"]["edits"][0]["code"] = ["values = ("]
    installed.write_pack(both)
    refused(installed, 3, "no Python source, before or after its fixes")


def test_a_run_that_is_at_work_keeps_others_out(installed: Installed) -> None:
    path = installed.site / fix_engine.LOCK_FILE
    with path.open("w") as stream:
        stream.write("process 1 since today\n")
        stream.flush()
        fcntl.flock(stream, fcntl.LOCK_EX)
        refused(installed, 4, "another run is changing these packages")
        refused(installed, 4, "process 1 since today")
    assert installed.run().returncode == 0
    assert not path.exists()


def test_two_runs_keep_each_other_out(installed: Installed) -> None:
    with fix_engine.lock(str(installed.site)):
        refused(installed, 4, f"process {os.getpid()} since ")
    assert installed.run().returncode == 0


def test_no_right_to_write_is_refused_before_anything_is_written(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("engine_one") and real(path, mode))
    before = installed.content()
    with pytest.raises(fix_engine.Refusal, match="cannot be written to") as error:
        installed.engine().reach(PROFILE_FIXES)
    assert error.value.code == 5
    assert str(installed.site / "engine_one") in str(error.value)
    assert installed.content() == before


def test_a_read_only_file_system_is_named(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda path: ReadOnly() if "engine_one" in str(path) else real(path))
    before = installed.content()
    with pytest.raises(fix_engine.Refusal, match="cannot be written to") as error:
        installed.engine().reach(PROFILE_FIXES)
    assert error.value.code == 5
    assert "mounted read-only" in str(error.value)
    assert installed.content() == before


@pytest.mark.parametrize("nth", range(1, 13))
def test_a_disk_that_is_full_changes_nothing(installed: Installed, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """Whichever write it is that fails; those afterwards succeed, as they do when a log is rotated."""
    before = installed.content()
    real, count = fix_engine._write, [0]

    def failing(path: str, content: bytes, like: str = "") -> None:
        count[0] += 1
        if count[0] == nth:
            raise OSError(28, "No space left on device", path)
        real(path, content, like)

    monkeypatch.setattr(fix_engine, "_write", failing)
    with pytest.raises(OSError, match="No space left"):
        installed.engine().reach(PROFILE_FIXES)
    assert {name: text for name, text in installed.content().items() if not name.startswith(".enplace")} == before
    monkeypatch.setattr(fix_engine, "_write", real)
    assert installed.engine().reach(PROFILE_FIXES)
    assert installed.engine().reach([])
    assert installed.content() == before


# Whatever happens in between


def killed_at(installed: Installed, names: list[str], nth: int) -> bool:
    """Let a process of its own die at its nth call that changes a file; whether there was such a call."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 137
    try:
        count = [0]

        def deadly(real: Any) -> Any:
            def call(*args: Any, **more: Any) -> Any:
                count[0] += 1
                if count[0] >= nth:
                    os._exit(137)
                return real(*args, **more)

            return call

        for name in ("replace", "unlink", "rmdir", "mkdir", "fsync", "fchmod", "makedirs"):
            setattr(os, name, deadly(getattr(os, name)))
        installed.engine().reach(names)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("direction", ["apply", "revert", "change"])
def test_a_run_that_is_killed_at_any_point_is_completed_or_undone_by_the_next(tmp_path: Path, direction: str) -> None:
    points = 0
    for nth in range(1, 400):
        (tmp_path / str(nth)).mkdir()
        installed = Installed(tmp_path / str(nth))
        stock = installed.content()
        if direction != "apply":
            installed.engine().reach(PROFILE_FIXES)
        goal = {"apply": PROFILE_FIXES, "revert": [], "change": [*PROFILE_FIXES, "slow-total"]}[direction]
        if not killed_at(installed, goal, nth):
            break
        points += 1
        installed.engine().reach(goal)
        assert installed.engine().is_reached(installed.engine().state(), goal)
        assert [name for name in installed.content() if fix_engine.ASIDE in name] == []
        installed.engine().reach([])
        assert installed.content() == stock, nth
    assert points > 20


def test_a_process_that_is_killed_leaves_all_or_what_the_next_run_completes(tmp_path: Path) -> None:
    """The real signal, at random moments."""
    moments = random.Random(4)
    for index in range(6):
        (tmp_path / str(index)).mkdir()
        installed = Installed(tmp_path / str(index))
        stock = installed.content()
        process = subprocess.Popen(installed.argv(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0.05, 0.2))
        process.kill()
        process.wait()
        assert installed.run().returncode == 0
        assert loaded(installed, "batch")["LIMIT"] == 8
        assert installed.run("--revert").returncode == 0
        assert installed.content() == stock


class Killed(BaseException):
    """Ends a run, whatever it would do about an error."""


def kill_before_the_first_file(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to apply the profile, and end the run when its journal is written."""

    def stop(self: fix_engine.Site) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(fix_engine.Site, "_follow_journal", stop)
        with pytest.raises(Killed):
            installed.engine().reach(PROFILE_FIXES)


def test_status_tells_of_a_run_that_was_cut_off(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_before_the_first_file(installed, monkeypatch)
    assert json.loads(installed.run("--status", "--json").stdout)["interrupted"]
    assert json.loads(installed.run("--json").stdout)["result"] in ("applied", "already applied")
    assert not json.loads(installed.run("--status", "--json").stdout)["interrupted"]


def test_a_file_that_was_changed_between_two_runs_is_never_overwritten(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_before_the_first_file(installed, monkeypatch)
    (installed.site / BATCH).write_text("mine = 1\n")
    answer = installed.run()
    assert answer.returncode == 4
    assert "a run was cut off, and a file was changed since" in answer.stderr
    assert (installed.site / BATCH).read_text() == "mine = 1\n"


def reached(installed: Installed, accept: bool) -> int:
    try:
        installed.engine(accept).reach(PROFILE_FIXES)
    except fix_engine.Refusal as refusal:
        return refusal.code
    return 0


LINES = ENGINE.splitlines(keepends=True)


@settings(max_examples=60)
@given(
    at=st.integers(0, len(LINES) - 1),
    count=st.integers(0, 3),
    put=st.lists(st.sampled_from([*LINES, "\n", "# a comment\n", "        self.rows = []\n", "\tx = (\n"]), max_size=3),
    accept=st.booleans(),
)
def test_with_any_change_of_the_target_all_is_applied_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, at: int, count: int, put: list[str], accept: bool
) -> None:
    installed = Installed(tmp_path_factory.mktemp("any"))
    changed = "".join([*LINES[:at], *put, *LINES[at + count :]])
    (installed.site / BATCH).write_text(changed)
    before = installed.content()
    code = reached(installed, accept)
    if code:
        assert code == 3
        assert installed.content() == before
    else:
        assert accept or changed == ENGINE
        text = (installed.site / BATCH).read_text()
        compile(text, BATCH, "exec")
        assert [text.count(f"# enplace: {name}") for name in ("wide-rows", "dirty-swap")] == [2, 1]
        installed.engine(accept).reach([])
        assert installed.content() == before


# Anchors


@pytest.mark.parametrize(
    ("anchor", "do", "count"),
    [
        ("return ...", "before", 2),
        ("self.rows = [0] * size", "before", 1),
        ("self.rows", "expression", 7),
        ("for row in self.rows: ...", "before", 1),
        ("def total(): ...", "after", 1),
        ("len(...)", "expression", 0),
    ],
)
def test_an_anchor_is_found_by_its_tree(anchor: str, do: str, count: int) -> None:
    source = fix_engine.Source(ENGINE.encode())
    (scope,) = fix_engine.find_scope(source.tree, "Batch")
    assert len(fix_engine.find_anchor(scope, anchor, do)) == count


def test_the_digest_of_a_function_does_not_know_its_layout() -> None:
    laid_out = 'def f(a):\n    """Told."""\n    return g(\n        "x",  # why\n        a,\n    )\n'
    assert fix_engine.shape(ast.parse(laid_out)) == fix_engine.shape(ast.parse("def f(a): return g('x', a)"))
    assert fix_engine.shape(ast.parse("f(1)")) != fix_engine.shape(ast.parse("f(True)"))


def test_edits_at_one_place_are_nested_as_the_code_is() -> None:
    text = b"def f(a):\n    if a:\n        b = 1\n    return a\n"
    source = fix_engine.Source(text)

    def at(anchor: str, do: str, code: str) -> fix_engine.Edit:
        return fix_engine.Edit("x", "f.py", "f", "", anchor, do, (code,))

    edits = [at("return ...", "before", "d = 4"), at("if a: ...", "after", "c = 3"), at("b = ...", "after", "b = 2")]
    made = source.edited(edits, strict=False).decode()
    assert [line for line in made.splitlines() if "#" not in line] == [
        "def f(a):", "    if a:", "        b = 1", "        b = 2", "    c = 3", "    d = 4", "    return a"
    ]  # fmt: skip


def test_statements_that_share_a_line_are_refused() -> None:
    source = fix_engine.Source(b"def f(a):\n    b = 1; c = 2\n    if a: return b\n")
    for anchor in ("b = ...", "c = ...", "return b"):
        edit_of = fix_engine.Edit("x", "f.py", "f", "", anchor, "after", ("pass",))
        with pytest.raises(LookupError, match="shares its lines"):
            source.place(edit_of, strict=False)
