# SPDX-License-Identifier: Apache-2.0
"""One look at a host: nothing differs where all is as planned, and whatever differs is named.

Real: environments built by uv, weights in a hub's cache, releases and units as files. Simulated: systemd.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import api_key, files, state, weights
from ansible_collections.enplace.inference.plugins.module_utils import environment as env
from ansible_collections.enplace.inference.plugins.module_utils import release as releases
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports
from ansible_collections.enplace.inference.plugins.plugin_utils import status

from tests.sim.packages import Index, uv_program
from tests.sim.services import Host

SLUG = "org-model-cpu"
OTHER = "org-other-cpu"
REVISION = "1" * 40
VERSION = ".".join(str(part) for part in sys.version_info[:3])
CONTENT = {"config.json": b'{"x": 1}', "model.safetensors": b"w" * 5000}


class Planned:
    """A host that is as its plan says, below a folder, with one recipe or more."""

    def __init__(self, root: Path, index: Index) -> None:
        self.root = root
        self.host = Host(root)
        self.environment = self.build(index)
        self.cache = root / "hub"
        self.model = {"repo": "org/model", "revision": REVISION, "files": self.fetch()}
        self.user = getpass.getuser()
        self.plan: dict[str, Any] = {
            "host": {
                "packages": [],
                "user": self.user,
                "directories": [{"path": str(self.cache), "mode": "0755"}],
                "tools": {},
            },
            "environments": [self.environment],
            "weights": {"models": [self.model], "cache": str(self.cache)},
            "releases": [],
            "servers": {},
            "wanted": [],
        }

    def build(self, index: Index) -> dict[str, Any]:
        lock = index.add("demo-one", "1.0") + index.add("demo-two", "2.0")
        requirements = self.root / "requirements.lock.txt"
        requirements.write_text(lock)
        sha256 = hashlib.sha256(lock.encode()).hexdigest()
        digest = env.environment_digest(sha256, VERSION)
        path = str(self.root / "environments" / digest[: env.DIGEST_NAME_LENGTH])
        request = env.Request(
            path,
            digest,
            sha256,
            requirements=str(requirements),
            python=sys.executable,
            uv=uv_program(),
            index_url=index.url,
            cache=str(self.root / "cache"),
        )
        env.build(request)
        return {"path": path, "digest": digest, "assertions": []}

    def fetch(self) -> list[dict[str, Any]]:
        snapshot = self.cache / "models--org--model" / "snapshots" / REVISION
        snapshot.mkdir(parents=True)
        self.cache.chmod(0o755)
        for name, content in CONTENT.items():
            (snapshot / name).write_bytes(content)
        entries = [
            {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in CONTENT.items()
        ]
        (model,) = weights.parse_models([{"repo": "org/model", "revision": REVISION, "files": entries}])
        weights.examine(str(self.cache), model)
        return entries

    def serve(self, name: str, slug: str = SLUG, **manifest: Any) -> Any:
        """Activate a release, and put it into the plan with a report of its checks."""
        release = self.host.release(name, slug, timer=False, **manifest)
        wanted = [*(each for each in self.plan["wanted"] if each != slug), slug]
        self.host.activator(wanted=wanted).active(release)
        entry = {
            "slug": slug,
            "recipe": release.recipe,
            "digest": release.digest,
            "path": str(release.path),
            "unit": release.unit,
            "files": dict(release.files),
        }
        self.plan["releases"] = [each for each in self.plan["releases"] if each["slug"] != slug] + [entry]
        self.plan["wanted"] = wanted
        asked = json.loads(release.files[releases.CHECKS])
        names = ("recipe", "release", "url", "model", "engine", "checks", "report")
        self.plan["servers"][slug] = {
            "unit": release.unit,
            **{key: asked[key] for key in names},
            "standby": release.standby,
            "api_key_file": "",
        }
        return release

    def report(self, slug: str = SLUG, **changes: Any) -> None:
        server = self.plan["servers"][slug]
        subject = reports.Subject(
            **{key: server[key] for key in ("url", "model", "recipe", "release", "engine", "checks")}
        )
        report = {
            "format": reports.FORMAT,
            "complete": True,
            "all_passed": True,
            "subject": subject.as_data(),
            "unit": {"invocation": self.host.services.show(server["unit"])["InvocationID"]},
            "ended": "2026-01-01T00:00:00Z",
            "checks": [{"name": "healthy", "status": "pass"}],
        }
        Path(server["report"]).parent.mkdir(parents=True, exist_ok=True)
        files.write_json(server["report"], {**report, **changes})

    def look(self, deep: bool = False) -> dict[str, Any]:
        return state.look(self.plan, deep, self.host.layout, self.host.services)

    def only(self, deep: bool = False) -> dict[str, str]:
        """The one difference there is."""
        found = self.look(deep)["differences"]
        assert len(found) == 1, found
        return dict(found[0])

    def file(self, name: str) -> Path:
        """A file in the environment's site-packages."""
        return Path(env.site_packages(self.environment["path"])) / name

    @property
    def snapshot(self) -> Path:
        return self.cache / "models--org--model" / "snapshots" / REVISION


def flip(path: Path) -> tuple[str, str]:
    """Turn one bit over, with size and time as they were. The sums before and after."""
    before, times = path.read_bytes(), path.stat()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return hashlib.sha256(before).hexdigest(), files.sha256_file(str(path))


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[Planned]:
    with Index(tmp_path / "index") as index:
        made = Planned(tmp_path, index)
        made.serve("one")
        yield made


def tree(root: Path) -> dict[str, Any]:
    """Every file below a folder with its time; what reading writes (compiled files) aside."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in root.rglob("*")
        if "__pycache__" not in path.parts
    }


# --- as planned ------------------------------------------------------------------------------------------------------


def test_a_host_that_is_as_planned_is_recognised_for_all_recipes_at_once(planned: Planned) -> None:
    planned.serve("two", OTHER, port=8001)
    before = tree(planned.root)
    begin = time.monotonic()
    found = planned.look()
    assert time.monotonic() - begin < 2
    assert found["differences"] == []
    assert found["converged"]
    assert found["parts"] == {
        "host": True,
        "tools": True,
        "environments": {planned.environment["path"]: True},
        "weights": {f"org/model@{REVISION}": True},
        "releases": {SLUG: True, OTHER: True},
        "reports": {SLUG: True, OTHER: True},
    }
    server = found["servers"][OTHER]
    assert (server["active"], server["enabled"], server["checks"]) == ("active", "enabled", "1 of 1 passed")
    assert server["report"]["complete"]
    assert planned.look(deep=True)["converged"]
    assert tree(planned.root) == before


def test_a_bare_host_lacks_everything_and_is_only_looked_at(planned: Planned, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    moved = json.loads(json.dumps(planned.plan).replace(str(tmp_path), str(bare)))
    moved["host"].update(user="enplace-nobody", packages=["no-such-package-here"])
    moved["host"]["tools"] = {"path": str(bare / "tools" / "0123456789ab"), "digest": "0" * 64}
    host = Host(bare)
    before = tree(bare)
    found = state.look(moved, False, host.layout, host.services)
    assert tree(bare) == before
    parts = found["parts"]
    assert (parts["host"], parts["tools"]) == (False, False)
    assert not any(value for key in ("environments", "weights", "releases", "reports") for value in parts[key].values())
    told = {(item["part"], item["what"]) for item in found["differences"]}
    assert {("host", "package"), ("host", "user"), ("host", "group"), ("host", "directory")} <= told
    assert {("tools", "environment"), ("environments", "environment"), ("releases", "unit")} <= told
    assert found["servers"][SLUG]["current"] == ""


# --- what differs is named -------------------------------------------------------------------------------------------


def test_a_package_that_is_not_the_sealed_one_is_named(planned: Planned) -> None:
    info = planned.file("demo_one-1.0.dist-info")
    info.rename(info.with_name("demo_one-1.1.dist-info"))
    item = planned.only()
    assert item["what"] == "package demo-one"
    assert (item["expected"], item["found"]) == ("1.0", "1.1")
    assert planned.look()["parts"]["environments"] == {planned.environment["path"]: False}


def test_assertions_that_were_not_asked_are_named(planned: Planned) -> None:
    planned.environment["assertions"] = [{"kind": "imports", "module": "demo_one"}]
    assert planned.only()["what"] == "assertions"


@pytest.mark.parametrize("name", list(CONTENT))
def test_a_file_of_the_weights_that_is_gone_or_cut_is_named(planned: Planned, name: str) -> None:
    path = planned.snapshot / name
    path.write_bytes(CONTENT[name][:-1])
    item = planned.only()
    assert (item["path"], item["found"]) == (str(path), f"{len(CONTENT[name]) - 1} bytes")
    path.unlink()
    assert planned.only()["found"] == "no such file"
    assert planned.look()["parts"]["weights"] == {f"org/model@{REVISION}": False}


def test_a_small_file_without_a_record_is_hashed_and_a_large_one_is_not(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = planned.snapshot / "model.safetensors"
    os.utime(path)
    assert planned.look()["converged"]
    monkeypatch.setattr(state, "SMALL_BYTES", 1000)
    assert planned.only()["found"].startswith("not verified")
    path.write_bytes(b"x" * 5000)
    monkeypatch.setattr(state, "SMALL_BYTES", 10_000)
    assert hashlib.sha256(b"x" * 5000).hexdigest() in planned.only()["found"]


def test_a_folder_of_another_mode_is_named(planned: Planned) -> None:
    planned.cache.chmod(0o700)
    item = planned.only()
    assert (item["what"], item["expected"], item["found"]) == ("directory", "mode 0755", "mode 0700")
    assert not planned.look()["parts"]["host"]


def test_a_user_or_group_that_is_not_there_is_named(planned: Planned) -> None:
    planned.plan["host"]["user"] = "enplace-nobody"
    assert [item["what"] for item in planned.look()["differences"]] == ["user", "group"]


def test_an_edited_drop_in_is_named_with_the_setting_and_without_its_value(planned: Planned) -> None:
    release = planned.serve("one")
    path = planned.host.layout.units / f"{release.unit}.d" / "10-environment.conf"
    path.write_text("[Service]\nEnvironment=NAME=one\nEnvironment=TOKEN=geheim\n")
    planned.host.services.reload()
    item = planned.only()
    assert (item["what"], item["path"]) == ("drop-in", str(path))
    assert item["found"] == "Environment TOKEN differs"
    assert "geheim" not in json.dumps(planned.look())
    assert planned.look()["parts"]["releases"] == {SLUG: False}


def test_a_server_that_was_stopped_or_disabled_is_named(planned: Planned) -> None:
    unit = planned.plan["servers"][SLUG]["unit"]
    planned.host.services.disable(unit)
    assert planned.only()["what"] == "property UnitFileState"
    planned.host.services.enable(unit)
    planned.host.services.stop(unit)
    assert {item["what"] for item in planned.look()["differences"]} == {"property ActiveState", "report"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"unit": {"invocation": "f" * 32}}, "started anew"),
        ({"all_passed": False}, "not every check passed"),
        ({"complete": False}, "interrupted"),
    ],
)
def test_a_report_that_does_not_speak_for_what_runs_is_named(
    planned: Planned, change: dict[str, Any], why: str
) -> None:
    planned.report(**change)
    item = planned.only()
    assert item["part"] == "reports"
    assert why in item["found"]
    found = planned.look()
    assert (found["parts"]["releases"], found["parts"]["reports"]) == ({SLUG: True}, {SLUG: False})
    assert found["servers"][SLUG]["report"] is None


def test_a_standby_server_that_does_not_run_is_as_planned(planned: Planned) -> None:
    release = planned.serve("two", OTHER, standby=True, port=8001)
    found = planned.look()
    assert found["differences"] == []
    assert found["servers"][OTHER]["active"] == "inactive"
    assert found["parts"]["reports"] == {SLUG: True, OTHER: True}
    planned.host.services.start(release.unit)
    assert planned.only()["what"] == "property ActiveState"


def test_a_recipe_that_is_no_longer_named_is_left_to_the_next_activation(planned: Planned) -> None:
    planned.serve("two", OTHER, port=8001)
    planned.plan["wanted"].remove(OTHER)
    planned.plan["releases"] = planned.plan["releases"][:1]
    item = planned.only()
    assert item["what"] == "recipe"
    assert OTHER in item["path"]
    # Somebody has to be asked, and the one that serves takes the other out.
    assert planned.look()["parts"]["releases"] == {SLUG: False}
    release = planned.host.release("one", timer=False)
    planned.host.activator(wanted=[SLUG]).active(release)
    assert planned.look()["converged"]


def test_an_open_activation_is_named_once(planned: Planned) -> None:
    planned.serve("two", OTHER, port=8001)
    files.write_json(str(planned.host.layout.journal), {"phase": "verifying", "slug": SLUG, "begun": "then"})
    assert planned.only()["found"] == f"phase verifying of {SLUG} since then"
    assert planned.look()["journal"]["phase"] == "verifying"


def test_a_release_that_failed_before_is_told_with_the_reason(planned: Planned) -> None:
    bad = planned.host.release("bad", engine="lies", timer=False)
    with pytest.raises(files.Failure):
        planned.host.activator().active(bad)
    planned.plan["releases"][0].update(digest=bad.digest, path=str(bad.path), files=dict(bad.files), recipe=bad.recipe)
    (item,) = [item for item in planned.look()["differences"] if item["what"] == "failed release"]
    assert "the checks known_answers did not pass" in item["found"]


def test_a_key_that_the_next_start_would_not_get_is_named(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    path = planned.root / "key"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    monkeypatch.setattr(api_key, "OWNER", os.getuid())
    planned.plan["servers"][SLUG]["api_key_file"] = str(path)
    assert planned.look()["converged"]
    path.chmod(0o644)
    item = planned.only()
    assert (item["what"], item["path"]) == ("API key", str(path))
    assert "0123456789abcdef" not in json.dumps(planned.look())


# --- a flipped bit ---------------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_an_environment_is_found_by_a_deep_look_only(planned: Planned) -> None:
    path = planned.file("demo_two.py")
    before, after = flip(path)
    assert planned.look()["converged"]
    item = planned.only(deep=True)
    assert (item["part"], item["path"]) == ("environments", str(path))
    assert (item["expected"], item["found"]) == (f"sha256 {before}", f"sha256 {after}")
    found = planned.look(deep=True)
    assert found["damaged"] == found["differences"]
    # The role would find nothing to do.
    assert found["parts"]["environments"] == {planned.environment["path"]: True}
    path.unlink()
    assert planned.only(deep=True)["found"] == "No such file or directory"


def test_a_flipped_bit_in_a_record_is_found_by_a_deep_look(planned: Planned) -> None:
    path = planned.file("demo_two-2.0.dist-info") / "RECORD"
    text = path.read_text()
    line = next(line for line in text.splitlines() if line.startswith("demo_two.py,"))
    flipped = line.replace(
        "sha256=" + line.partition("sha256=")[2][:1], "sha256=" + chr(ord(line.partition("sha256=")[2][0]) ^ 1)
    )
    path.write_text(text.replace(line, flipped))
    assert planned.only(deep=True)["path"] == str(planned.file("demo_two.py"))


def test_a_compiled_file_that_a_distribution_brings_is_compiled_anew_and_no_damage(planned: Planned) -> None:
    record = planned.file("demo_two-2.0.dist-info") / "RECORD"
    (compiled,) = planned.file("__pycache__").glob("demo_two.*.pyc")
    record.write_text(record.read_text() + f"__pycache__/{compiled.name},sha256={'A' * 43},1\n")
    assert state.changed_files(planned.environment["path"]) == []
    record.write_text(record.read_text() + f"demo_three.py,sha256={'A' * 43},1\n")
    assert len(state.changed_files(planned.environment["path"])) == 1


def test_a_flipped_bit_in_the_weights_is_found_by_a_deep_look_only(planned: Planned) -> None:
    path = planned.snapshot / "model.safetensors"
    before, after = flip(path)
    assert planned.look()["converged"]
    item = planned.only(deep=True)
    assert (item["part"], item["path"]) == ("weights", str(path))
    assert before in item["expected"]
    assert after in item["found"]
    assert planned.look(deep=True)["parts"]["weights"] == {f"org/model@{REVISION}": False}


@pytest.mark.parametrize("name", ["ready.py", "checks.json", "release.json"])
def test_a_flipped_bit_in_what_serves_is_found_at_once(planned: Planned, name: str) -> None:
    release = planned.serve("one")
    before, after = flip(release.path / name)
    item = planned.only()
    assert (item["what"], item["path"]) == ("release file", str(release.path / name))
    assert (item["expected"], item["found"]) == (f"sha256 {before}", f"sha256 {after}")


def test_a_flipped_bit_in_what_a_rollback_would_take_is_found_by_a_deep_look(planned: Planned) -> None:
    old = planned.serve("one")
    planned.serve("two")
    assert planned.look(deep=True)["converged"]
    before, after = flip(old.path / "ready.py")
    assert planned.look()["converged"]
    item = planned.only(deep=True)
    assert item["what"] == "file of the previous release"
    assert (item["expected"], item["found"]) == (f"sha256 {before}", f"sha256 {after}")


def test_many_damaged_files_are_counted_after_the_first(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_NAMED", 1)
    for name in ("demo_one.py", "demo_two.py"):
        flip(planned.file(name))
    assert [item["path"] for item in planned.look(deep=True)["differences"]][1] == "1 more"


# --- for people ------------------------------------------------------------------------------------------------------


def test_the_state_reads_as_one_block(planned: Planned) -> None:
    text = status.text("host1", planned.look())
    release = planned.plan["releases"][0]
    for part in (
        "host1: as planned",
        release["unit"],
        release["digest"][:12],
        "1 of 1 passed",
        "http://127.0.0.1:8000",
    ):
        assert part in text
    planned.report(all_passed=False)
    text = status.text("host1", planned.look())
    assert "host1: 1 difference (" in text
    assert "  found     not every check passed\n" in text + "\n"
    assert "of another run or release" in text
