# SPDX-License-Identifier: Apache-2.0
"""The switch from one release to the next: all of it or what was before, whatever fails, on a simulated host."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import activation, files
from ansible_collections.enplace.inference.plugins.module_utils import release as releases
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.machine import Process
from ansible_collections.enplace.inference.plugins.module_utils.transaction import PHASES, history
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports

from tests.sim.services import GIGABYTE, TOTAL, Host

SLUG = "org-model-cpu"
OTHER = "org-other-cpu"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def put(host: Host, release: releases.Release, **options: Any) -> activation.Result:
    return host.activator(**options).active(release)


def converged(host: Host, release: releases.Release) -> bool:
    return releases.look(release, host.services).differences() == [] and host.rest() == []


def last(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((host.layout.history / history(host.layout)[-1]).read_text())
    return found


def test_the_first_release_is_verified_then_installed_and_enabled(host: Host) -> None:
    release = host.release("one")
    done = host.activator(host={"arch": "x86_64"}).active(release)
    assert (done.changed, done.outcome) == (True, "activated")
    assert done.reports[SLUG]["all_passed"]
    assert converged(host, release)
    assert host.serves() == release.digest
    assert host.layout.linked(SLUG, "current") == release.name
    assert host.layout.linked(SLUG, "previous") == ""
    assert host.verified[0]["unit"] == release.unit
    assert host.verified[0]["host"] == {"arch": "x86_64"}
    log = host.services.log
    assert log.index(f"enable {release.unit}") > log.index(f"start {release.unit}")
    assert last(host)["outcome"] == "committed"
    assert tuple(entry["phase"] for entry in last(host)["phases"]) == PHASES


def test_a_converged_host_is_left_alone(host: Host) -> None:
    release = host.release("one")
    put(host, release)
    before, invocation = list(host.services.log), host.services.show(release.unit)["InvocationID"]
    done = put(host, release, wanted=[SLUG])
    assert (done.changed, done.outcome, done.plan) == (False, "converged", [])
    assert host.services.log == before
    assert host.services.show(release.unit)["InvocationID"] == invocation
    assert len(history(host.layout)) == 1


def stored(host: Host, release: releases.Release) -> dict[str, Any]:
    """The report on the host; it speaks for what runs."""
    found = reports.read_report(str(host.layout.root / "reports" / release.slug / "latest.json"))[0]
    assert found is not None
    assert found["subject"]["release"] == release.digest
    assert found["unit"]["invocation"] == host.services.show(release.unit)["InvocationID"]
    return found


def test_the_report_of_a_run_that_others_finished_is_handed_on(host: Host) -> None:
    release = host.release("one")
    put(host, release)
    done = put(host, release)
    assert done.reports == {SLUG: stored(host, release)}
    assert (done.changed, len(host.verified)) == (False, 1)


def test_a_server_that_was_started_again_meanwhile_is_checked_anew(host: Host) -> None:
    release = host.release("one")
    put(host, release)
    host.power_cut()
    done = put(host, release)
    assert (done.changed, done.plan, len(host.verified)) == (True, [f"run the checks of {release.unit}"], 2)
    assert done.reports == {SLUG: stored(host, release)}
    assert put(host, release).changed is False
    host.power_cut()
    verify, host.verify = host.verify, lambda request: {**verify(request), "all_passed": False}  # type: ignore[method-assign]
    with pytest.raises(activation.Unproven, match=f"release {release.name} of {SLUG} serves, but") as caught:
        put(host, release)
    assert not caught.value.reports[SLUG]["all_passed"]
    assert host.serves() == release.digest
    assert not (host.layout.folder(SLUG) / "failed").exists()


def test_the_next_release_replaces_the_first_without_a_second_start_at_the_end(host: Host) -> None:
    old, new = host.release("one"), host.release("two")
    put(host, old)
    host.services.log.clear()
    put(host, new)
    assert converged(host, new)
    assert host.services.log.count(f"start {new.unit}") == 1
    assert host.services.log.index(f"stop {old.timer}") < host.services.log.index(f"stop {old.unit}")
    assert host.layout.linked(SLUG, "previous") == old.name


@pytest.mark.parametrize(
    ("engine", "phase", "said"),
    [
        ("fails", "ready", "failed"),
        ("hangs", "ready", "did not answer a completion within 60 s"),
        ("lies", "verifying", "the checks known_answers did not pass"),
    ],
)
def test_a_bad_release_is_taken_back_and_not_tried_again(host: Host, engine: str, phase: str, said: str) -> None:
    old, new = host.release("one"), host.release("two", engine=engine)
    put(host, old)
    with pytest.raises(activation.Refused, match=said) as caught:
        put(host, new)
    message = str(caught.value)
    assert f"release {old.name} of {SLUG} serves again (0 s); release {old.name} of {SLUG} passed its checks" in message
    assert caught.value.reports == {SLUG: stored(host, old)}
    assert put(host, old).changed is False
    assert f"phase {phase} of the activation" in message
    assert caught.value.evidence in message
    assert "enplace_retry=true" in message
    assert converged(host, old)
    assert host.serves() == old.digest
    assert not new.path.exists()
    record = json.loads(Path(caught.value.evidence).read_text())
    assert (record["phase"], record["digest"], record["holder"]) == (phase, new.digest, "a test")
    assert record["output"] == [f"the journal of {new.unit}"]
    assert last(host)["outcome"] == "reverted"
    assert last(host)["failure"]["reason"] == record["reason"]

    starts = host.services.runs
    with pytest.raises(activation.Refused, match="failed before and is not tried again"):
        put(host, new)
    assert host.services.runs == starts
    good = host.release("two")
    assert good.digest == new.digest
    put(host, good, retry=True)
    assert converged(host, good)
    assert not Path(caught.value.evidence).parent.exists()


def test_what_was_started_again_and_does_not_pass_its_checks_any_more_is_said_to(host: Host) -> None:
    old, new = host.release("one"), host.release("two", engine="lies")
    put(host, old)
    verify, host.verify = host.verify, lambda request: {**verify(request), "all_passed": False}  # type: ignore[method-assign]
    said = f"release {old.name} of {SLUG} serves again .*; release {old.name} of {SLUG} serves, but"
    with pytest.raises(activation.Refused, match=said) as caught:
        put(host, new)
    assert not caught.value.reports[SLUG]["all_passed"]

    def broken(request: Any) -> dict[str, Any]:
        raise Failure("the checks cannot be started")

    host.verify = broken  # type: ignore[method-assign]
    said = f"release {old.name} of {SLUG} could not be checked: the checks cannot be started"
    with pytest.raises(activation.Refused, match=said) as caught:
        put(host, new, retry=True)
    assert caught.value.reports == {}
    assert host.serves() == old.digest
    host.verify = verify  # type: ignore[method-assign]
    assert put(host, old).reports == {SLUG: stored(host, old)}


def test_where_nothing_served_before_nothing_is_left(host: Host) -> None:
    with pytest.raises(activation.Refused, match="nothing served before, and nothing serves now"):
        put(host, host.release("one", engine="fails"))
    assert host.rest() == []
    assert list(host.layout.units.rglob("*")) == []
    assert list((host.layout.owners / "multi-user.target.wants").iterdir()) == []


def test_preconditions_come_before_anything_is_stopped_and_are_not_the_releases_fault(host: Host) -> None:
    old, new = host.release("one"), host.release("two", port=8100)
    put(host, old)
    starts = host.services.runs
    host.kernel.port = [Process(12, "nginx", "nginx.service")]
    with pytest.raises(activation.Refused, match=r"the port 8100 of 127\.0\.0\.1 is taken") as caught:
        put(host, new)
    assert "process 12 (nginx) of nginx.service" in str(caught.value)
    assert "what served before was not stopped" in str(caught.value)
    assert host.services.runs == starts
    assert converged(host, old)
    host.kernel.port = []
    put(host, new)
    assert converged(host, new)


def test_cards_held_by_somebody_else_are_named(host: Host) -> None:
    host.kernel.held = [Process(9, "python3 train.py")]
    with pytest.raises(Failure, match="somebody else holds the cards 0, 1") as caught:
        put(host, host.release("one", accelerator="gaudi2", cards=[0, 1]))
    assert "process 9 (python3 train.py)" in caught.value.found
    host.kernel.held = []
    put(host, host.release("one", accelerator="gaudi2", cards=[0, 1]))


def test_weights_without_a_record_or_changed_since_are_refused(host: Host, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_text("weights")
    needs = {"repository": "org/model", "revision": "a" * 40, "path": str(snapshot)}
    with pytest.raises(Failure, match="the weights of this release are not whole") as caught:
        put(host, host.release("one", weights=needs))
    assert "no record" in caught.value.found
    status = (snapshot / "model.safetensors").stat()
    entry = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino, "sha256": "0" * 64}
    record = tmp_path / "hub" / "enplace-verified" / f"org--model--{'a' * 40}.json"
    record.parent.mkdir()
    record.write_text(json.dumps({"files": {"model.safetensors": entry}}))
    put(host, host.release("one", weights=needs))
    (snapshot / "model.safetensors").write_text("changed")
    with pytest.raises(Failure, match="not whole") as caught:
        put(host, host.release("two", weights=needs))
    assert "model.safetensors: changed since it was verified" in caught.value.found


def test_the_file_with_the_key_must_be_closed_and_what_is_in_it_is_in_no_message(host: Host, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a-very-secret-key\n")
    key.chmod(0o644)
    with pytest.raises(Failure, match="API key cannot be used") as caught:
        put(host, host.release("one", api_key_file=str(key)))
    assert "mode 0644" in caught.value.found
    key.chmod(0o600)
    host.services.journal = lambda *_: "args: api_key=a-very-secret-key"  # type: ignore[method-assign]
    with pytest.raises(activation.Refused) as refused:
        put(host, host.release("one", api_key_file=str(key), engine="fails"))
    assert "api_key=***" in str(refused.value)
    written = [path.read_text() for path in host.layout.root.rglob("*.json")]
    assert not [text for text in written if "a-very-secret-key" in text]


def test_memory_is_waited_for_and_its_lack_is_named(host: Host) -> None:
    old, new = host.release("one"), host.release("two")
    put(host, old)
    host.kernel.lag = [TOTAL, TOTAL, TOTAL, TOTAL]
    put(host, new)
    assert converged(host, new)
    assert host.now >= 3
    host.kernel.lag = [TOTAL - GIGABYTE] * 10_000
    with pytest.raises(activation.Refused, match="memory that this release needs to start is not free") as caught:
        put(host, host.release("three"), memory_timeout_s=5)
    assert "process 77 (a large one): 5.0 GB" in caught.value.found
    assert host.serves() == new.digest


def test_more_memory_than_there_is_is_refused_before_anything_is_stopped(host: Host) -> None:
    release = host.release("one", memory={"start_bytes": 2 * TOTAL})
    with pytest.raises(Failure, match="the host has not the memory"):
        put(host, release)


def test_unknown_memory_is_waited_for_until_it_stops_rising(host: Host) -> None:
    put(host, host.release("one"))
    host.kernel.lag = [GIGABYTE, 10 * GIGABYTE, 40 * GIGABYTE, 80 * GIGABYTE]
    begin = host.now
    new = host.release("two", memory={"start_bytes": None})
    put(host, new)
    assert converged(host, new)
    assert 4 <= host.now - begin <= 10


def test_processes_that_stay_behind_are_named(host: Host) -> None:
    old = host.release("one")
    put(host, old)
    host.kernel.members = lambda cgroup: [os.getpid()]  # type: ignore[method-assign]
    with pytest.raises(activation.Refused, match="processes of it are left"):
        put(host, host.release("two"), memory_timeout_s=2)
    assert host.serves() == old.digest


def test_what_is_not_wanted_is_retired_and_can_come_back(host: Host) -> None:
    old, new = host.release("one", slug=OTHER), host.release("two", port=8001)
    put(host, old)
    put(host, new, wanted=[SLUG])
    assert converged(host, new)
    assert host.serves(OTHER) == ""
    assert not list(host.layout.units.glob(f"*{OTHER}*"))
    assert host.layout.linked(OTHER, "current") == ""
    assert host.layout.linked(OTHER, "previous") == old.name
    assert not (host.layout.owners / "multi-user.target.wants" / old.unit).is_symlink()
    assert (old.path / "release.json").exists()
    host.activator().previous(OTHER)
    assert host.serves(OTHER) == old.digest
    assert host.serves() == new.digest


def test_what_is_not_wanted_is_retired_where_all_else_is_converged(host: Host) -> None:
    one, two = host.release("one", slug=OTHER), host.release("two", port=8001)
    put(host, one)
    put(host, two)
    starts = host.services.runs
    done = put(host, two, wanted=[SLUG])
    assert done.plan == [f"retire {one.unit}, which is not wanted"]
    assert host.services.runs == starts
    assert host.serves(OTHER) == ""
    assert converged(host, two)


def test_two_recipes_live_side_by_side(host: Host) -> None:
    one, two = host.release("one", slug=OTHER), host.release("two", port=8001)
    put(host, one, wanted=[SLUG, OTHER])
    put(host, two, wanted=[SLUG, OTHER])
    assert (host.serves(OTHER), host.serves()) == (one.digest, two.digest)
    with pytest.raises(activation.Refused):
        put(host, host.release("three", port=8001, engine="lies"), wanted=[SLUG, OTHER])
    assert converged(host, one)
    assert converged(host, two)


def test_a_standby_is_verified_once_and_not_left_running(host: Host) -> None:
    main = host.release("one", slug=OTHER)
    standby = host.release("two", conflicts=OTHER, standby=True)
    put(host, main, wanted=[SLUG, OTHER])
    done = put(host, standby, wanted=[SLUG, OTHER])
    # What gave way to it was started again, and so checked again.
    assert [request["unit"] for request in host.verified] == [main.unit, standby.unit, main.unit]
    assert done.reports[OTHER] == stored(host, main)
    assert put(host, main, wanted=[SLUG, OTHER]).changed is False
    assert converged(host, standby)
    assert converged(host, main)
    assert host.serves() == ""
    assert host.serves(OTHER) == main.digest
    assert not (host.layout.owners / "multi-user.target.wants" / standby.unit).is_symlink()
    with pytest.raises(activation.Refused, match=f"of {OTHER} serves again"):
        put(host, host.release("three", conflicts=OTHER, standby=True, engine="lies"), wanted=[SLUG, OTHER])
    assert converged(host, main)
    assert converged(host, standby)


def test_a_standby_somebody_started_gives_way(host: Host) -> None:
    main = host.release("one", slug=OTHER)
    standby = host.release("two", conflicts=OTHER, standby=True)
    put(host, main)
    put(host, standby)
    host.services.start(standby.unit)
    assert host.serves(OTHER) == ""
    put(host, main)
    assert converged(host, main)
    assert converged(host, standby)


def test_drift_beside_a_server_that_runs_is_put_right_without_a_restart(host: Host) -> None:
    release = host.release("one")
    put(host, release)
    invocation = host.services.show(release.unit)["InvocationID"]
    host.services.disable(release.unit)
    (release.path / "ready.py").write_text("something else")
    (host.layout.units / release.timer).write_text("something else")
    (host.layout.folder(SLUG) / "current").unlink()
    (host.layout.folder(SLUG) / "current").symlink_to(release.name)
    done = put(host, release)
    assert done.outcome == "activated"
    assert converged(host, release)
    assert host.services.show(release.unit)["InvocationID"] == invocation
    assert len(host.verified) == 1


def test_a_unit_that_was_edited_or_stopped_is_verified_again(host: Host) -> None:
    release = host.release("one")
    put(host, release)
    (host.layout.units / release.unit).write_text("# engine: good\n")
    assert [item["what"] for item in releases.look(release, host.services).differences()] == ["unit"]
    put(host, release)
    assert converged(host, release)
    host.services.stop(release.unit)
    put(host, release)
    assert converged(host, release)
    assert len(host.verified) == 3
    assert host.layout.linked(SLUG, "previous") == ""


def test_a_verified_release_that_fails_once_may_be_tried_again(host: Host) -> None:
    release = host.release("one")
    put(host, release)
    host.services.stop(release.unit)
    verify, host.verify = host.verify, lambda request: {**verify(request), "all_passed": False}  # type: ignore[method-assign]
    with pytest.raises(activation.Refused) as caught:
        put(host, release)
    assert "enplace_retry" not in str(caught.value)
    host.verify = verify  # type: ignore[method-assign]
    put(host, release)
    assert converged(host, release)


def test_a_unit_that_a_boot_is_starting_is_waited_for(host: Host) -> None:
    release = host.release("one")
    put(host, release)
    host.services.running[release.unit]["state"] = "activating"
    sleep = host.sleep

    def later(seconds: float) -> None:
        sleep(seconds)
        host.services.running[release.unit]["state"] = "active"

    host.sleep = later  # type: ignore[method-assign]
    done = put(host, release)
    assert (done.changed, done.outcome) == (False, "converged")
    assert done.ready_s == 1.0


def test_a_unit_of_ours_in_etc_is_moved_and_one_of_the_owners_is_refused(host: Host) -> None:
    release = host.release("one")
    shadow = host.layout.owners / release.unit
    shadow.write_text("[Service]\nExecStart=/bin/own\n")
    with pytest.raises(Failure, match="a unit file of the host's owner hides"):
        put(host, release)
    assert shadow.exists()
    shadow.write_text(f"{releases.OURS}; a change is overwritten\n")
    put(host, release)
    assert not shadow.exists()
    assert converged(host, release)


def test_going_back_takes_one_step_and_forward_again_takes_a_word(host: Host) -> None:
    old, new = host.release("one"), host.release("two")
    put(host, old)
    put(host, new)
    done = host.activator().previous(SLUG)
    assert done.outcome == "rolled back"
    assert converged(host, old)
    assert host.layout.linked(SLUG, "previous") == new.name
    with pytest.raises(activation.Refused, match="rolled back by a test"):
        put(host, new)
    put(host, new, retry=True)
    assert converged(host, new)
    with pytest.raises(Failure, match="has no earlier release"):
        host.activator().previous(OTHER)


def test_going_back_to_one_that_no_longer_works_leaves_what_serves(host: Host) -> None:
    old, new = host.release("one"), host.release("two")
    put(host, old)
    put(host, new)
    verify, host.verify = host.verify, lambda request: {**verify(request), "all_passed": False}  # type: ignore[method-assign]
    with pytest.raises(activation.Refused, match=f"release {new.name} of {SLUG} serves again"):
        host.activator().previous(SLUG)
    assert converged(host, new)


def test_the_last_activation_is_undone_with_all_that_it_retired(host: Host) -> None:
    old, new = host.release("one", slug=OTHER), host.release("two")
    put(host, old)
    put(host, new, wanted=[SLUG])
    plan = host.activator().way_back()
    done = host.activator().previous()
    assert done.plan == plan
    assert converged(host, old)
    assert host.serves() == ""
    assert host.layout.linked(SLUG, "current") == ""
    with pytest.raises(activation.Refused, match="rolled back"):
        put(host, new, wanted=[SLUG])
    assert converged(host, old)


def test_nothing_to_undo_is_said(host: Host) -> None:
    with pytest.raises(Failure, match="there is nothing to go back to"):
        host.activator().previous()
    put(host, host.release("one"))
    with pytest.raises(Failure, match="before which none of it served"):
        host.activator().previous()


def test_teardown_removes_a_recipe_wholly_and_nothing_of_another(host: Host) -> None:
    one, two = host.release("one", slug=OTHER), host.release("two", port=8001)
    put(host, one)
    put(host, two)
    (host.layout.caches / SLUG).mkdir(parents=True)
    (host.layout.owners / f"{two.unit}.d").mkdir()
    (host.layout.owners / f"{two.unit}.d" / "50-mine.conf").write_text("[Service]\n")
    plan = host.activator().removal(SLUG)
    done = host.activator().absent(SLUG)
    assert (done.changed, done.outcome, done.plan) == (True, "removed", plan)
    assert host.serves() == ""
    stays = {"activations", "reports", "etc"}
    left = [path for path in host.layout.root.rglob(f"*{SLUG}*") if not stays & set(path.parts)]
    assert left == []
    assert (host.layout.owners / f"{two.unit}.d" / "50-mine.conf").exists()
    assert converged(host, one)
    again = host.activator().absent(SLUG)
    assert (again.changed, again.plan) == (False, [])


def test_a_full_disk_keeps_the_old_server_and_blames_nobody(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = host.release("one"), host.release("two")
    put(host, old)
    write = files.write_bytes

    def full(path: str, *arguments: Any) -> None:
        if new.name in path or "/run/systemd" in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        write(path, *arguments)

    monkeypatch.setattr(files, "write_bytes", full)
    with pytest.raises(activation.Refused, match="the disk is full"):
        put(host, new)
    assert converged(host, old)
    monkeypatch.setattr(files, "write_bytes", write)
    put(host, new)
    assert converged(host, new)


def test_the_result_in_words_is_what_check_mode_says(host: Host) -> None:
    old, new = host.release("one"), host.release("two")
    put(host, old)
    said = host.activator(wanted=[SLUG]).steps(new, releases.look(new, host.services))
    assert said == [
        f"stage {new.path}",
        f"stop {old.unit}",
        f"start {new.unit}, wait for a completion, and run its checks",
        f"replace {host.layout.units / new.unit}",
        f"enable {new.unit}",
    ]
    assert put(host, new, wanted=[SLUG]).plan == said
