# SPDX-License-Identifier: Apache-2.0
"""Environments, built for real by uv and by pip from an index of our own on loopback."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.action.environment import would_be_installed
from ansible_collections.enplace.inference.plugins.module_utils import assertions as asserted
from ansible_collections.enplace.inference.plugins.module_utils import environment as env
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, Lock
from ansible_collections.enplace.inference.plugins.modules.environment import ensure

from tests.sim.packages import Index, uv_program

COLLECTION = Path(env.__file__).resolve().parents[2]
TOOLS = COLLECTION / "engines" / "tools"
VERSION = ".".join(str(part) for part in sys.version_info[:3])
ALIAS = {"distribution": "demo-engine", "name": "engine", "version": "1.0+cpu"}
A = "a" * 64


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "index") as found:
        yield found


def make_request(tmp_path: Path, index: Index, lock: str, **changes: Any) -> env.Request:
    requirements = tmp_path / "requirements.lock.txt"
    requirements.write_text(lock)
    aliases = changes.get("aliases", ())
    sha256 = hashlib.sha256(lock.encode()).hexdigest()
    digest = env.environment_digest(sha256, VERSION, aliases)
    request = env.Request(
        path=str(tmp_path / "environments" / digest[: env.DIGEST_NAME_LENGTH]),
        digest=digest,
        lock_sha256=sha256,
        requirements=str(requirements),
        python=sys.executable,
        uv=uv_program(),
        index_url=index.url,
        cache=str(tmp_path / "cache"),
    )
    return replace(request, **changes)


def leftovers(request: env.Request) -> list[str]:
    parent = Path(request.path).parent
    return sorted(entry.name for entry in parent.iterdir()) if parent.exists() else []


# --- digest ----------------------------------------------------------------------------------------------------------


def test_the_digest_of_old_environments_never_changes() -> None:
    # A different value here means that every host builds all of its environments again.
    assert env.environment_digest(A, "3.11.2") == env.environment_digest(A, "3.11")
    assert env.environment_digest(A, "3.11", [ALIAS], ["one"]) == (
        "19f1a58c0237b48c926ad03f5b18cd501886a1b90b6c8af36f390fa31c890435"
    )


def test_everything_that_decides_the_content_decides_the_digest() -> None:
    other = {**ALIAS, "name": "other"}
    digests = [
        env.environment_digest(A, "3.11"),
        env.environment_digest("b" * 64, "3.11"),
        env.environment_digest(A, "3.12"),
        env.environment_digest(A, "3.11", [ALIAS]),
        env.environment_digest(A, "3.11", [other]),
        env.environment_digest(A, "3.11", [ALIAS, other]),
        env.environment_digest(A, "3.11", [], ["one", "two"]),
        env.environment_digest(A, "3.11", [], ["two", "one"]),
    ]
    assert len(set(digests)) == len(digests)
    assert env.environment_digest(A, "3.11", [ALIAS, other]) == env.environment_digest(A, "3.11", [other, ALIAS])


@pytest.mark.parametrize(("lock", "version"), [("a" * 63, "3.11"), ("A" * 64, "3.11"), (A, "3"), (A, ""), (A, "3.x")])
def test_the_digest_refuses_what_is_none(lock: str, version: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        env.environment_digest(lock, version)


# --- lock ------------------------------------------------------------------------------------------------------------


def test_the_lock_of_the_tools_is_whole_and_holds_what_was_asked_for() -> None:
    pins = env.read_lock(str(TOOLS / "requirements.lock.txt"))
    wanted = [line for line in (TOOLS / "requirements.in").read_text().splitlines() if line and line[0] != "#"]
    assert wanted
    assert set(wanted) <= {f"{pin.name}=={pin.version}" for pin in pins if not pin.marker}
    assert "://" not in (TOOLS / "requirements.lock.txt").read_text()


def test_a_pin_keeps_its_marker_and_all_its_hashes() -> None:
    text = (
        "# made by\n"
        f"Demo_Pkg[x]==1.0+cpu ; python_version < '3.12' \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{'b' * 64}\n"
        "    # via x\n"
    )
    (pin,) = env.parse_lock(text, "lock")
    assert (pin.name, pin.version, pin.marker, pin.hashes) == (
        "demo-pkg",
        "1.0+cpu",
        "python_version < '3.12'",
        (A, "b" * 64),
    )
    assert pin.line == 2


@pytest.mark.parametrize(
    "line",
    [
        "demo==1.0",
        f"demo>=1.0 --hash=sha256:{A}",
        f"demo --hash=sha256:{A}",
        f"demo==1.* --hash=sha256:{A}",
        "demo==1.0 --hash=sha256:abc",
        "demo==1.0 --hash=md5:abc",
        "--index-url http://elsewhere.test/simple",
        "-e .",
        f"demo @ http://elsewhere.test/demo.whl --hash=sha256:{A}",
    ],
)
def test_a_lock_with_anything_else_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(Failure) as caught:
        env.parse_lock(f"fine==1.0 --hash=sha256:{A}\n{line}\n", "some.lock")
    assert caught.value.where == "some.lock line 2"
    assert line[:20] in caught.value.found


def test_an_empty_lock_is_refused() -> None:
    with pytest.raises(Failure, match="empty"):
        env.parse_lock("# nothing\n", "some.lock")


def test_check_mode_lists_what_the_markers_of_a_host_let_through() -> None:
    pins = env.parse_lock(
        f"a==1 ; python_version < '3.11' --hash=sha256:{A}\n"
        f"b==1 ; sys_platform == 'win32' --hash=sha256:{A}\n"
        f"c==1 ; platform_machine == 'aarch64' --hash=sha256:{A}\n"
        f"d==1 --hash=sha256:{A}\n",
        "lock",
    )
    machine = {"python_full_version": "3.11.2", "platform_machine": "aarch64"}
    assert would_be_installed(pins, machine, [ALIAS]) == ["c==1", "d==1", "engine==1.0+cpu"]


# --- build -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("builder", ["uv", "pip"])
def test_an_environment_holds_its_lock_and_nothing_else(tmp_path: Path, index: Index, builder: str) -> None:
    index.add("demo-engine", "2.0")
    lock = index.add("demo-engine", "1.0") + index.add("demo-tool", "0.3")
    changes = {"aliases": (ALIAS,)} if builder == "uv" else {"aliases": (ALIAS,), "uv": ""}
    request = make_request(tmp_path, index, lock, **changes)
    result = ensure(request, rebuild=False, check_mode=False)
    assert result["changed"]
    assert result["found"] == "absent"
    assert result["distributions"] == ["demo-engine==1.0", "demo-tool==0.3", "engine==1.0+cpu"]
    assert result["diff"]["after"] == "demo-engine==1.0\ndemo-tool==0.3\nengine==1.0+cpu\n"
    assert result["builder"].startswith(builder)
    assert leftovers(request) == [os.path.basename(request.path)]

    python = Path(request.path) / "bin" / "python"
    code = "import importlib.metadata as m, demo_engine; print(m.version('engine'), demo_engine.VERSION)"
    said = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "1.0+cpu 1.0\n"
    code = "import importlib.metadata as m; print(m.metadata('engine')['Summary'], [str(f) for f in m.files('engine')])"
    said = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "alias made by enplace" in said
    assert "demo-engine 1.0" in said
    assert "engine-1.0+cpu.dist-info/METADATA" in said

    packages = Path(env.site_packages(request.path))
    (bytecode,) = (packages / "__pycache__").glob("demo_engine.*.pyc")
    assert bytecode.read_bytes()[4:8] == b"\x03\0\0\0", "bytecode is checked by content"
    assert (packages / "demo_engine.py").stat().st_nlink == 1, "files are not shared with the cache"

    again = ensure(replace(request, requirements="", uv="/no/such/uv"), rebuild=False, check_mode=False)
    assert not again["changed"]
    assert again["found"] == "sealed"
    assert "diff" not in again


def ask_ansible(request: env.Request, lock: Path, *options: str) -> dict[str, Any]:
    """The module through its action plugin, on this machine; the result as Ansible prints it."""
    arguments = {
        **{name: getattr(request, name) for name in ("path", "digest", "python", "uv", "index_url", "cache")},
        "lock": str(lock),
    }
    variables = json.dumps(
        {"ansible_python_interpreter": sys.executable, "ansible_remote_tmp": str(lock.parent / "tmp")}
    )
    program = str(Path(sys.executable).with_name("ansible"))
    argv = [program, "localhost", "-i", "localhost,", "-c", "local", "-e", variables, *options]
    argv += ["-m", "enplace.inference.environment", "-a", json.dumps(arguments)]
    surroundings = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTION.parents[2]),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    }
    said = subprocess.run(argv, env=surroundings, cwd=lock.parent, capture_output=True, text=True, check=False)
    _before, mark, text = said.stdout.rpartition(" => {")
    assert mark, said.stdout + said.stderr
    result: dict[str, Any] = json.loads("{" + text[: text.rindex("}") + 1])
    return result


def test_through_ansible_the_lock_travels_only_to_build(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    lock = Path(request.requirements)
    check = ask_ansible(request, lock, "--check", "--diff")
    assert (check["changed"], check["found"]) == (True, "absent")
    assert check["distributions"] == ["demo-engine==1.0"]
    assert leftovers(request) == []
    first = ask_ansible(request, lock)
    assert (first["changed"], first["found"], first["environment"]) == (True, "absent", request.path)
    second = ask_ansible(request, lock)
    assert (second["changed"], second["found"]) == (False, "sealed")
    assert second["distributions"] == first["distributions"] == check["distributions"]
    # Nowhere: not in a folder of Ansible's, which would stay if the controller died, and no longer in the environment.
    assert list(tmp_path.rglob("*requirements*")) == [lock]
    shutil.rmtree(request.path)
    shutil.rmtree(request.cache)
    index.wheels["demo-engine"].unlink()
    broken = ask_ansible(request, lock)
    assert (broken["changed"], broken["found"]) == (False, "absent")
    assert broken["failure"]["what"].startswith("the environment could not be built")
    lock.write_text("demo-engine==1.0\n")
    unpinned = ask_ansible(request, lock)
    assert "not pinned by version and hash" in unpinned["msg"]


def test_the_same_lock_gives_the_same_seal(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    env.build(request)
    seal = Path(request.path, env.SEAL_NAME).read_bytes()
    shutil.rmtree(request.path)
    env.build(request)
    assert Path(request.path, env.SEAL_NAME).read_bytes() == seal
    assert json.loads(seal)["digest"] == request.digest


def test_without_the_lock_it_is_asked_for(tmp_path: Path, index: Index) -> None:
    request = replace(make_request(tmp_path, index, index.add("demo-engine", "1.0")), requirements="")
    result = ensure(request, rebuild=False, check_mode=False)
    assert result["needs_requirements"]
    assert result["platform"]["python_full_version"] == VERSION
    assert not Path(request.path).exists()


def test_check_mode_changes_nothing(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    result = ensure(request, rebuild=False, check_mode=True)
    assert result["changed"]
    assert result["distributions"] == ["demo-engine==1.0"]
    assert result["diff"]["after"] == "demo-engine==1.0\n"
    assert leftovers(request) == []


def test_what_a_cut_run_left_is_built_anew(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    (Path(request.path) / "lib").mkdir(parents=True)
    (Path(request.path) / "stray").write_text("x")
    assert env.inspect(request.path).state == "unfinished"
    result = ensure(request, rebuild=False, check_mode=False)
    assert result["changed"]
    assert result["found"] == "unfinished"
    assert env.inspect(request.path).state == "sealed"
    assert not (Path(request.path) / "stray").exists()


@pytest.mark.parametrize("builder", ["uv", "pip"])
def test_another_file_than_the_locked_one_is_refused(tmp_path: Path, index: Index, builder: str) -> None:
    index.add("demo-engine", "1.0")
    lock = f"demo-engine==1.0 --hash=sha256:{A}\n"
    request = make_request(tmp_path, index, lock, **({} if builder == "uv" else {"uv": ""}))
    with pytest.raises(Failure) as caught:
        ensure(request, rebuild=False, check_mode=False)
    assert "not the one that was locked" in caught.value.todo
    assert A in caught.value.detail
    assert leftovers(request) == []


@pytest.mark.parametrize("builder", ["uv", "pip"])
def test_a_missing_distribution_is_named(tmp_path: Path, index: Index, builder: str) -> None:
    lock = f"demo-absent==1.0 --hash=sha256:{A}\n"
    request = make_request(tmp_path, index, lock, **({} if builder == "uv" else {"uv": ""}))
    with pytest.raises(Failure) as caught:
        ensure(request, rebuild=False, check_mode=False)
    assert "demo-absent" in caught.value.detail
    assert "enplace_index_url" in caught.value.todo
    assert leftovers(request) == []


def test_an_index_that_cannot_be_reached_is_told_apart(tmp_path: Path, index: Index) -> None:
    lock = index.add("demo-engine", "1.0")
    request = make_request(tmp_path, index, lock, index_url="http://127.0.0.1:9/simple")
    with pytest.raises(Failure) as caught:
        ensure(request, rebuild=False, check_mode=False)
    assert "does not reach the package index" in caught.value.todo
    assert leftovers(request) == []


def test_wheels_beside_the_index_are_found(tmp_path: Path, index: Index) -> None:
    lock = index.add("demo-engine", "1.0")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    index.take("demo-engine", wheels)
    request = make_request(tmp_path, index, lock, find_links=(str(wheels),))
    assert env.build(request)["distributions"] == ["demo-engine==1.0"]


def test_another_lock_than_the_one_asked_for_is_refused(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    Path(request.requirements).write_text(index.add("demo-engine", "1.1"))
    with pytest.raises(Failure, match="not the one that was asked for"):
        ensure(request, rebuild=False, check_mode=False)
    assert leftovers(request) == []


def test_a_digest_that_does_not_belong_to_the_lock_is_refused(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    with pytest.raises(Failure, match="digest does not belong"):
        ensure(replace(request, aliases=(ALIAS,)), rebuild=False, check_mode=False)
    with pytest.raises(Failure, match="named by its digest"):
        ensure(replace(request, path=str(tmp_path / "elsewhere")), rebuild=False, check_mode=False)
    assert leftovers(request) == []


def test_an_alias_of_nothing_leaves_nothing(tmp_path: Path, index: Index) -> None:
    alias = {"distribution": "demo-absent", "name": "engine", "version": "1"}
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"), aliases=(alias,))
    with pytest.raises(Failure, match="alias engine cannot be made"):
        ensure(request, rebuild=False, check_mode=False)
    assert leftovers(request) == []


def test_drift_is_named_and_mended_only_on_demand(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0") + index.add("demo-tool", "1"))
    env.build(request)
    index.add("demo-engine", "1.1")
    index.add("demo-extra", "7")
    python = os.path.join(request.path, "bin", "python")
    by_hand = [request.uv, "pip", "install", "-q", "--python", python, "--default-index", request.index_url]
    subprocess.run([*by_hand, "demo-engine==1.1", "demo-extra"], check=True)
    record = Path(env.site_packages(request.path)) / "demo_tool-1.dist-info" / "RECORD"
    record.write_text(record.read_text() + "more.py,,\n")
    for check_mode in (True, False):
        with pytest.raises(Failure, match="not as it was sealed") as caught:
            ensure(replace(request, requirements=""), rebuild=False, check_mode=check_mode)
    assert "demo-engine: expected 1.0, found 1.1" in caught.value.found
    assert "demo-extra: expected not installed, found 7" in caught.value.found
    assert "demo-tool: expected 1 with RECORD of" in caught.value.found
    assert "rebuild: true" in caught.value.todo
    result = ensure(request, rebuild=True, check_mode=False)
    assert result["changed"]
    assert {entry["name"] for entry in result["drift"]} == {"demo-engine", "demo-extra", "demo-tool"}
    assert result["distributions"] == ["demo-engine==1.0", "demo-tool==1"]
    assert not ensure(request, rebuild=True, check_mode=False)["changed"]


def test_an_environment_in_use_is_not_rebuilt(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    env.build(request)
    shutil.rmtree(next(Path(env.site_packages(request.path)).glob("demo_engine-*.dist-info")))
    python = os.path.join(request.path, "bin", "python")
    user = subprocess.Popen(
        [python, "-c", "print(1, flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert user.stdout is not None
        user.stdout.readline()
        with pytest.raises(Failure, match="is in use") as caught:
            ensure(request, rebuild=True, check_mode=False)
        assert f"process {user.pid} ({python}" in caught.value.found
    finally:
        user.kill()
        user.communicate()
    assert ensure(request, rebuild=True, check_mode=False)["changed"]


def test_an_interpreter_that_is_gone_is_drift(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    env.build(request)
    python = Path(request.path) / "bin" / "python"
    python.unlink()
    python.symlink_to("/no/such/python")
    (drift,) = env.inspect(request.path).drift
    assert (drift.name, drift.found) == ("python", "an interpreter that does not start")


def test_two_builders_do_not_meet(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    Path(request.path).parent.mkdir()
    with Lock(parent_lock(request), "the first one"), pytest.raises(Failure, match="another run is at work") as caught:
        ensure(request, rebuild=False, check_mode=False)
    assert "the first one" in caught.value.found
    assert ensure(request, rebuild=False, check_mode=False)["changed"]


def test_a_builder_whose_controller_is_gone_is_waited_for(tmp_path: Path, index: Index) -> None:
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"))
    Path(request.path).parent.mkdir()
    first = Lock(parent_lock(request), "the first one")
    first.__enter__()
    first.mark_orphaned()
    freed = threading.Timer(1.0, first.__exit__, (None, None, None))
    freed.start()
    assert ensure(request, rebuild=False, check_mode=False)["changed"]
    assert not freed.is_alive()


def parent_lock(request: env.Request) -> str:
    return os.path.join(os.path.dirname(request.path), f".{os.path.basename(request.path)}.lock")


def until_free(lock: str) -> None:
    """Wait until a killed program has let go of a lock."""
    deadline = time.monotonic() + 60
    with open(lock, "rb") as stream:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.01)
    pytest.fail("the lock is still held")


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "uv-stand-in"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_full_disk_is_said_to_be_one(tmp_path: Path, index: Index) -> None:
    full = script(tmp_path, 'echo "error: failed to write: No space left on device (os error 28)" >&2; exit 2')
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"), uv=full)
    with pytest.raises(Failure, match="the disk is full") as caught:
        ensure(request, rebuild=False, check_mode=False)
    assert "free on" in caught.value.found
    assert leftovers(request) == []


def test_a_killed_builder_is_followed_by_the_next_run(tmp_path: Path, index: Index) -> None:
    mark = tmp_path / "mark"
    venv = f'mkdir -p "$4"; echo $$ > {mark}.new; mv {mark}.new {mark}; sleep 60'
    slow = script(tmp_path, f'case "$1" in venv) {venv};; *) echo stand-in 1;; esac')
    request = make_request(tmp_path, index, index.add("demo-engine", "1.0"), uv=slow)
    code = (
        f"import sys; sys.path.insert(0, {str(COLLECTION.parents[2])!r})\n"
        "from ansible_collections.enplace.inference.plugins.module_utils import environment as env\n"
        f"env.build(env.{request!r})\n"
    )
    builder = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline and builder.poll() is None:
        time.sleep(0.01)
    assert mark.exists(), builder.communicate()[1].decode()
    child = int(mark.read_text())
    builder.kill()
    builder.communicate()
    request = replace(request, uv=uv_program())
    try:
        assert env.inspect(request.path).state == "unfinished"
        with pytest.raises(Failure, match="another run is at work"):
            ensure(request, rebuild=False, check_mode=False)
    finally:
        os.killpg(child, signal.SIGKILL)
    until_free(parent_lock(request))
    assert ensure(request, rebuild=False, check_mode=False)["changed"]
    assert leftovers(request) == [os.path.basename(request.path)]


# --- PyTorch's index -------------------------------------------------------------------------------------------------


def test_pytorchs_index_is_only_wanted_for_what_no_place_holds(tmp_path: Path, index: Index) -> None:
    pins = env.parse_lock(f"torch==2.13.0+cpu --hash=sha256:{A}\nplain==1 --hash=sha256:{A}\n", "lock")
    name = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    folder = tmp_path / "wheels"
    folder.mkdir()
    assert [pin.name for pin in env.wanted_from_torch_index(pins, [])] == ["torch"]
    assert [pin.name for pin in env.wanted_from_torch_index(pins, [str(folder), "/no/such"])] == ["torch"]
    (folder / name.replace("2.13.0", "2.12.0")).touch()
    assert [pin.name for pin in env.wanted_from_torch_index(pins, [str(folder)])] == ["torch"]
    (folder / name).touch()
    assert env.wanted_from_torch_index(pins, [str(folder)]) == []
    assert env.wanted_from_torch_index(pins, [f"file://{folder}"]) == []
    page = index.root / "wheels.html"
    page.parent.mkdir(exist_ok=True)
    url = index.url.replace("/simple", "/wheels.html")
    assert [pin.name for pin in env.wanted_from_torch_index(pins, [url])] == ["torch"]
    page.write_text(f'<a href="{name.replace("+", "%2B")}">torch</a>')
    assert env.wanted_from_torch_index(pins, [url]) == []
    assert env.wanted_from_torch_index(pins[1:], []) == []


# --- assertions ------------------------------------------------------------------------------------------------------

TORCH = """
class version:
    cuda = "13.0"
    hip = None
"""


def engine(index: Index, **torch: str) -> str:
    """The lock of an engine with a torch, both made here."""
    return index.add("demo-torch", "2.0", code=TORCH, **torch) + index.add("demo-engine", "1.0", "demo-torch>=2")


def asserting(tmp_path: Path, index: Index, lock: str, *assertions: dict[str, Any], **changes: Any) -> env.Request:
    return make_request(tmp_path, index, lock, assertions=asserted.parse(assertions), **changes)


HOLDS: tuple[dict[str, Any], ...] = (
    {"kind": "installed", "distribution": "Demo_Torch", "version": "2.0"},
    {"kind": "absent", "distribution": "*-cu12"},
    {"kind": "imports", "module": "demo_engine"},
    {"kind": "attribute", "module": "demo_torch", "attribute": "version.cuda", "begins": "13"},
    {"kind": "attribute", "module": "demo_torch", "attribute": "VERSION", "equals": "2.0"},
    {"kind": "attribute", "module": "demo_torch", "attribute": "version.hip", "none": True},
    {"kind": "requirements"},
)


def test_assertions_that_hold_are_in_the_seal_and_leave_nothing_behind(tmp_path: Path, index: Index) -> None:
    request = asserting(tmp_path, index, engine(index), *HOLDS)
    seal = env.build(request)
    assert seal["assertions"] == list(HOLDS)
    assert env.inspect(request.path).state == "sealed"
    assert not list(Path("/tmp").glob("enplace-assertions-*"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[env.Request]:
    """A sealed environment, for questions that leave it as it is."""
    folder = tmp_path_factory.mktemp("made")
    with Index(folder / "index") as index:
        request = make_request(folder, index, engine(index))
        env.build(request)
        yield request


@pytest.mark.parametrize(
    ("assertion", "named", "expected", "found"),
    [
        (
            {"kind": "installed", "distribution": "demo-torch", "version": "2.0+cu130"},
            "demo-torch 2.0+cu130 is installed",
            "2.0+cu130",
            "2.0",
        ),
        (
            {"kind": "installed", "distribution": "vllm", "version": "1"},
            "vllm 1 is installed",
            "1",
            "not installed",
        ),
        ({"kind": "absent", "distribution": "demo-t*"}, "no distribution demo-t*", "none", "demo-torch 2.0"),
        ({"kind": "imports", "module": "demo_nothing"}, "import demo_nothing", "the import to end well", "No module"),
        (
            {"kind": "attribute", "module": "demo_torch", "attribute": "version.cuda", "begins": "12"},
            "demo_torch.version.cuda",
            "12...",
            "13.0",
        ),
        (
            {"kind": "attribute", "module": "demo_torch", "attribute": "version.cuda", "none": True},
            "demo_torch.version.cuda",
            "None",
            "13.0",
        ),
        (
            {"kind": "attribute", "module": "demo_torch", "attribute": "version.hip", "equals": "None"},
            "demo_torch.version.hip",
            "None",
            "None",
        ),
        (
            {"kind": "attribute", "module": "demo_torch", "attribute": "version.gone", "equals": "1"},
            "demo_torch.version.gone",
            "1",
            "AttributeError",
        ),
    ],
)
def test_what_does_not_hold_is_named_with_what_was_expected_and_found(
    assertion: dict[str, Any], named: str, expected: str, found: str, made: env.Request
) -> None:
    installed = {"demo-torch": "2.0", "demo-engine": "1.0"}
    asked = asserted.parse([*HOLDS[:-1], assertion])
    (broken,) = asserted.broken(made.path, asked, installed, made.uv, {})
    assert (broken.assertion, broken.expected) == (named, expected)
    assert found in broken.found
    assert broken.todo


def test_an_environment_that_is_not_what_was_meant_is_not_sealed(tmp_path: Path, index: Index) -> None:
    wrong = {"kind": "attribute", "module": "demo_torch", "attribute": "version.cuda", "begins": "12"}
    request = asserting(tmp_path, index, engine(index), *HOLDS, wrong)
    with pytest.raises(Failure) as caught:
        env.build(request)
    fields = caught.value.fields()
    assert fields["where"] == f"{request.path}, assertion: demo_torch.version.cuda"
    assert (fields["expected"], fields["found"]) == ("12...", "13.0")
    assert not os.path.exists(request.path)


def test_every_assertion_that_does_not_hold_is_named(tmp_path: Path, index: Index) -> None:
    wrong = [{"kind": "imports", "module": f"demo_{name}"} for name in ("one", "two")]
    with pytest.raises(Failure) as caught:
        env.build(asserting(tmp_path, index, engine(index), *wrong))
    assert "import demo_one" in caught.value.fields()["where"]
    assert "import demo_two" in str(caught.value)


def test_a_module_that_ends_the_interpreter_is_named(tmp_path: Path, index: Index) -> None:
    lock = engine(index) + index.add("demo-bad", "1.0", code="import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assertions = [{"kind": "imports", "module": name} for name in ("demo_engine", "demo_bad", "demo_torch")]
    with pytest.raises(Failure) as caught:
        env.build(asserting(tmp_path, index, lock, *assertions))
    assert "import demo_bad" in caught.value.fields()["where"]
    assert "ended by signal 11" in caught.value.fields()["found"]


def test_what_a_module_prints_is_no_answer_and_one_that_exits_is_not_imported(tmp_path: Path, index: Index) -> None:
    noise = 'import sys; print("{}"); sys.stderr.write("{}\\n")\n'
    lock = index.add("demo-loud", "1.0", code=noise) + index.add("demo-quits", "1.0", code="raise SystemExit(0)\n")
    asked = [{"kind": "imports", "module": name} for name in ("demo_loud", "demo_quits")]
    with pytest.raises(Failure) as caught:
        env.build(asserting(tmp_path, index, lock, *asked))
    assert "import demo_quits" in caught.value.fields()["where"]
    assert caught.value.fields()["found"] == "SystemExit: 0"


def test_a_requirement_that_is_not_there_is_found_unless_it_is_left_out_on_purpose(
    tmp_path: Path, index: Index
) -> None:
    lock = index.add("demo-engine", "1.0", "demo_Torch>=2")
    with pytest.raises(Failure, match=r"demo-engine.*requires.*demo-torch"):
        env.build(asserting(tmp_path, index, lock, {"kind": "requirements"}))
    with pytest.raises(Failure, match=r"demo-engine.*requires.*demo-torch"):
        env.build(asserting(tmp_path, index, lock, {"kind": "requirements", "except": ["another"]}))
    assert env.build(asserting(tmp_path, index, lock, {"kind": "requirements", "except": ["demo.torch"]}))


def test_a_wheel_of_another_platform_is_found_unless_it_is_known_to_be_mislabelled(
    tmp_path: Path, index: Index
) -> None:
    lock = index.add("demo-engine", "1.0", tag="cp27-cp27m-linux_s390x")
    with pytest.raises(Failure, match="different platform"):
        env.build(asserting(tmp_path, index, lock, {"kind": "requirements"}))
    assert env.build(asserting(tmp_path, index, lock, {"kind": "requirements", "mislabelled": ["demo_engine"]}))


def test_requirements_need_uv(made: env.Request) -> None:
    (broken,) = asserted.broken(made.path, ({"kind": "requirements"},), {}, "", {})
    assert (broken.expected, broken.found) == ("uv pip check", "no uv")


def test_a_sealed_environment_is_asked_what_it_was_not_asked_before(tmp_path: Path, index: Index) -> None:
    lock = engine(index)
    plain, more = make_request(tmp_path, index, lock), asserting(tmp_path, index, lock, *HOLDS)
    assert plain.digest == more.digest
    ensure(plain, rebuild=False, check_mode=False)
    before = Path(plain.path).stat().st_ino
    foretold = ensure(more, rebuild=False, check_mode=True)
    assert (foretold["changed"], foretold["found"]) == (True, "sealed")
    assert ensure(more, rebuild=False, check_mode=False)["changed"]
    assert not ensure(more, rebuild=False, check_mode=False)["changed"]
    # One that asks for less than was asked has nothing to do.
    assert not ensure(plain, rebuild=False, check_mode=False)["changed"]
    assert Path(plain.path).stat().st_ino == before
    assert env.inspect(plain.path).state == "sealed"


def test_a_sealed_environment_that_fails_a_new_assertion_stays_as_it_is(tmp_path: Path, index: Index) -> None:
    lock = engine(index)
    ensure(make_request(tmp_path, index, lock), rebuild=False, check_mode=False)
    more = asserting(tmp_path, index, lock, {"kind": "absent", "distribution": "demo-torch"})
    for _time in range(2):
        with pytest.raises(Failure, match="no distribution demo-torch"):
            ensure(more, rebuild=False, check_mode=False)
    assert env.inspect(more.path).state == "sealed"


@pytest.mark.parametrize(
    "assertion",
    [
        {"kind": "imported", "module": "x"},
        {"kind": "imports"},
        {"kind": "imports", "module": "x", "version": "1"},
        {"kind": "attribute", "module": "x", "attribute": "y"},
        {"kind": "attribute", "module": "x", "attribute": "y", "equals": "1", "begins": "1"},
        {},
    ],
)
def test_an_assertion_that_asks_nothing_is_refused(assertion: dict[str, Any]) -> None:
    with pytest.raises(Failure, match=r"assertions\[0\]"):
        asserted.parse([assertion])


def test_an_alias_requires_nothing_and_is_of_every_platform(tmp_path: Path, index: Index) -> None:
    request = asserting(tmp_path, index, engine(index), *HOLDS, aliases=(ALIAS,))
    assert "engine==1.0+cpu" in env.build(request)["distributions"]
