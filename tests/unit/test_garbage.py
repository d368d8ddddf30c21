# SPDX-License-Identifier: Apache-2.0
"""Garbage is what no release names and no process uses; weights go with the last release that names them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import files as files_module
from ansible_collections.enplace.inference.plugins.module_utils import garbage
from ansible_collections.enplace.inference.plugins.module_utils.files import Lock, json_text
from ansible_collections.enplace.inference.plugins.module_utils.machine import Machine
from ansible_collections.enplace.inference.plugins.module_utils.release import Layout

from tests.sim.services import Host


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def release(layout: Layout, slug: str, name: str, age_s: int = 0, **manifest: Any) -> Path:
    folder = layout.folder(slug) / name
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(json_text({"format": 2, "slug": slug, **manifest}))
    os.utime(folder / "release.json", (1_700_000_000 - age_s, 1_700_000_000 - age_s))
    return folder


def environment(layout: Layout, name: str, parent: str = "environments") -> Path:
    folder = layout.at(f"/opt/enplace/{parent}") / name
    (folder / "bin").mkdir(parents=True)
    (folder / "enplace-environment.json").write_text("{}")
    return folder


def test_current_and_previous_stay_whatever_their_age(layout: Layout) -> None:
    folders = [release(layout, "one", f"r{age}", age) for age in range(6)]
    for link, target in (("current", "r5"), ("previous", "r4")):
        (layout.folder("one") / link).symlink_to(target)
    removed = garbage.collect(layout, Machine(layout.root), keep=3)
    assert removed == [str(folder) for folder in folders[1:4]]
    left = sorted(path.name for path in layout.folder("one").iterdir())
    assert left == ["current", "previous", "r0", "r4", "r5"]


def test_environments_are_looked_at_only_where_it_is_said_which_are_in_use(layout: Layout) -> None:
    (layout.root / "proc").mkdir()
    named, planned, old = (environment(layout, name) for name in ("named", "planned", "old"))
    tools, old_tools = environment(layout, "t1", "tools"), environment(layout, "t0", "tools")
    release(layout, "one", "r0", environment={"path": str(named)})
    machine = Machine(layout.root)
    assert garbage.collect(layout, machine, keep=3) == []
    assert garbage.collect(layout, machine, 3, [str(planned), str(tools)]) == [str(old), str(old_tools)]
    assert [path.exists() for path in (named, planned, tools, old, old_tools)] == [True, True, True, False, False]


def test_what_a_process_uses_or_somebody_builds_stays(layout: Layout) -> None:
    used, building = environment(layout, "used"), environment(layout, "building")
    (layout.root / "proc").symlink_to("/proc")
    program = [sys.executable, "-c", "print('here', flush=True); import time; time.sleep(60)"]
    with subprocess.Popen(program, cwd=used / "bin", stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with Lock(str(building.parent / ".building.lock"), "building"):
                assert garbage.collect(layout, Machine(layout.root), 3, []) == []
        finally:
            process.kill()
    assert garbage.collect(layout, Machine(layout.root), 3, []) == [str(building), str(used)]


def snapshot(cache: Path, repository: str, revision: str, files: dict[str, str]) -> tuple[str, str, str]:
    """A model in the hub's layout; `files` maps a name to its content, which names the blob."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    place = folder / "snapshots" / revision
    place.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / "blobs" / content).write_text(content)
        (place / name).symlink_to(f"../../blobs/{content}")
    (cache / ".locks" / folder.name).mkdir(parents=True, exist_ok=True)
    (cache / ".locks" / folder.name / "blob.lock").touch()
    (cache / "enplace-verified").mkdir(exist_ok=True)
    (cache / "enplace-verified" / f"{repository.replace('/', '--')}--{revision}.json").write_text("{}")
    return repository, revision, str(place)


def test_weights_go_with_the_last_release_that_names_them(layout: Layout, tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    one = snapshot(cache, "org/model", "a" * 40, {"x": "only-one", "y": "shared"})
    two = snapshot(cache, "org/model", "b" * 40, {"y": "shared"})
    whole = snapshot(cache, "org/draft", "c" * 40, {"z": "draft"})
    named = {"repository": two[0], "revision": two[1], "path": two[2]}
    release(layout, "other", "r0", weights=named)
    garbage.remove_weights(layout, [one, two, whole])
    assert not Path(one[2]).exists()
    assert (Path(two[2]) / "y").read_text() == "shared"
    assert sorted(path.name for path in (cache / "models--org--model" / "blobs").iterdir()) == ["shared"]
    assert not (cache / "models--org--draft").exists()
    assert [path.name for path in (cache / ".locks").iterdir()] == ["models--org--model"]
    assert [path.name for path in (cache / "enplace-verified").iterdir()] == [f"org--model--{'b' * 40}.json"]


@pytest.mark.parametrize("call", range(4))
def test_a_removal_of_weights_that_is_cut_off_is_finished_by_the_next(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    cache = tmp_path / "hub"
    model = snapshot(cache, "org/model", "a" * 40, {"x": "content"})
    calls = 0
    remove = files_module.remove

    def cut_off(path: str) -> bool:
        nonlocal calls
        calls += 1
        if calls - 1 == call:
            raise KeyboardInterrupt
        return bool(remove(path))

    with monkeypatch.context() as patched:
        patched.setattr(files_module, "remove", cut_off)
        with pytest.raises(KeyboardInterrupt):
            garbage.remove_weights(layout, [model])
    garbage.remove_weights(layout, [model])
    assert [path for path in cache.rglob("*") if "org--model" in path.name] == []


def test_teardown_takes_the_weights_only_where_told(tmp_path: Path) -> None:
    host = Host(tmp_path)
    cache = tmp_path / "hub"
    one, two = (snapshot(cache, "org/model", letter * 40, {"x": f"blob-{letter}"}) for letter in "ab")
    for slug, model in (("one", one), ("two", two)):
        record = cache / "enplace-verified" / f"org--model--{model[1]}.json"
        status = os.stat(Path(model[2]) / "x")
        entry = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
        record.write_text(json_text({"files": {"x": entry}}))
        weights = {"repository": model[0], "revision": model[1], "path": model[2]}
        host.activator().active(host.release("r", slug=slug, port=8000 + len(slug) + ord(slug[0]), weights=weights))
    host.activator().absent("one")
    assert Path(one[2]).exists()
    host.activator().absent("two", with_weights=True)
    assert not Path(two[2]).exists()
    assert Path(one[2]).exists(), "nobody asked for it"
