# SPDX-License-Identifier: Apache-2.0
"""A host is compared with a release in one look, and every difference is named, never shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import release as releases
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

from tests.sim.services import Host

SLUG = "org-model-cpu"
SECRET = "Environment=TOKEN=of-the-owner"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.activator().active(made.release("one"))
    return made


def units(host: Host) -> Path:
    return host.layout.units


CHANGES: dict[str, tuple[Callable[[Host, releases.Release], Any], str, str]] = {
    "a release file": (lambda h, r: (r.path / "ready.py").write_text("x"), "release file", "ready.py"),
    "a release file that is gone": (lambda h, r: (r.path / "checks.json").unlink(), "release file", "checks.json"),
    "the unit": (lambda h, r: (units(h) / r.unit).write_text(SECRET), "unit", r"enplace-org-model-cpu.service"),
    "the drop-in": (
        lambda h, r: (units(h) / f"{r.unit}.d" / releases.DROPIN).write_text(SECRET),
        "drop-in",
        releases.DROPIN,
    ),
    "the timer": (lambda h, r: (units(h) / r.timer).unlink(), "unit", "enplace-org-model-cpu-alive.timer"),
    "a unit in etc": (lambda h, r: (h.layout.owners / r.unit).write_text(SECRET), "unit", "etc/systemd/system"),
    "a candidate": (lambda h, r: (h.layout.candidates / r.unit).write_text(SECRET), "candidate", "run/systemd"),
    "not enabled": (lambda h, r: h.services.disable(r.unit), "property UnitFileState", "enplace-org-model-cpu.service"),
    "not active": (lambda h, r: h.services.stop(r.unit), "property ActiveState", "enplace-org-model-cpu.service"),
    "the timer not active": (lambda h, r: h.services.stop(r.timer), "property ActiveState", "alive.timer"),
    "current": (lambda h, r: (r.path.parent / "current").unlink(), "current", "current"),
    "an open transaction": (
        lambda h, r: h.layout.journal.write_text('{"phase": "ready"}'),
        "activation",
        "activation.json",
    ),
    "not read by systemd": (
        lambda h, r: h.services.loaded.update({r.unit: (str(units(h) / r.unit), "an older text")}),
        "property NeedDaemonReload",
        "enplace-org-model-cpu.service",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_difference_is_named_and_no_content_shown(host: Host, name: str) -> None:
    change, what, where = CHANGES[name]
    release = host.release("one")
    assert releases.look(release, host.services).differences() == []
    change(host, release)
    found = releases.look(release, host.services).differences()
    assert [item for item in found if item["what"] == what and where in item["path"]], found
    assert all(set(item) == {"what", "path", "expected", "found"} for item in found)
    assert "of-the-owner" not in str(found)


def test_the_settings_that_differ_are_named(host: Host) -> None:
    release = host.release("one")
    path = units(host) / f"{release.unit}.d" / releases.DROPIN
    path.write_text(path.read_text() + "Environment=OTHER=of-the-owner\nEnvironment=NAME=two\n")
    [item] = [item for item in releases.look(release, host.services).differences() if item["what"] == "drop-in"]
    assert item["found"] == "Environment NAME, Environment OTHER differs"


def test_the_owners_drop_ins_are_told_and_are_no_difference(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    release = host.release("one")
    show = host.services.show_all
    ours = str(units(host) / f"{release.unit}.d" / releases.DROPIN)

    def with_dropins(names: Any) -> dict[str, dict[str, str]]:
        found = show(names)
        found[release.unit]["DropInPaths"] = f"{ours} /etc/systemd/system/{release.unit}.d/50-mine.conf"
        return found

    monkeypatch.setattr(host.services, "show_all", with_dropins)
    state = releases.look(release, host.services)
    assert state.differences() == []
    assert state.other_dropins == [f"/etc/systemd/system/{release.unit}.d/50-mine.conf"]
    assert (state.sealed, state.serving, bool(state.invocation)) == (True, True, True)


def test_another_release_differs_in_what_is_served(host: Host) -> None:
    state = releases.look(host.release("two"), host.services)
    assert {item["what"] for item in state.differences()} == {"release file", "current", "unit", "drop-in"}
    assert (state.sealed, state.serving) == (False, False)


def test_several_releases_are_one_question(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    show = host.services.show_all

    def counted(names: Any) -> dict[str, dict[str, str]]:
        asked.append(list(names))
        return show(names)

    monkeypatch.setattr(host.services, "show_all", counted)
    other = host.release("two", slug="org-other-cpu")
    one, two = releases.look_all([host.release("one"), other], host.services)
    assert len(asked) == 1
    assert one.differences() == []
    assert two.differences() != []


def test_what_is_not_wanted_is_known_by_its_link_or_its_unit(host: Host) -> None:
    assert releases.unwanted(host.layout, [SLUG]) == []
    assert releases.unwanted(host.layout, []) == [SLUG]
    (units(host) / "enplace-left-over.service").write_text("")
    assert releases.unwanted(host.layout, [SLUG]) == ["left-over"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("digest", "short"),
        ("unit", "other.service"),
        ("path", "/somewhere/else"),
        ("files", {"unit.service": ""}),
        ("files", {"../unit": ""}),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(host: Host, field: str, value: Any) -> None:
    release = host.release("one")
    plan = {
        "slug": SLUG,
        "recipe": "org/model:cpu",
        "digest": release.digest,
        "path": str(release.path),
        "unit": release.unit,
        "files": dict(release.files),
    }
    assert releases.parse(plan, host.layout).path == release.path
    if isinstance(value, dict) and "../unit" in value:
        value = {**plan["files"], **value}  # type: ignore[dict-item]
    with pytest.raises(Failure, match="the plan of a release is not valid") as caught:
        releases.parse({**plan, field: value}, host.layout)
    assert f"release.{field}" in caught.value.where


def test_a_staged_release_is_read_whole_or_refused(host: Host) -> None:
    release = host.release("one")
    read = releases.load(host.layout, SLUG, release.name)
    assert (read.digest, dict(read.files)) == (release.digest, dict(release.files))
    (release.path / "ready.py").write_text("changed")
    with pytest.raises(Failure, match="is not whole") as caught:
        releases.load(host.layout, SLUG, release.name)
    assert "ready.py" in caught.value.where
