# SPDX-License-Identifier: Apache-2.0
"""Each fault on a host that serves: somebody answers afterwards, a plain second run converges, nothing is left over.

The faults run in this order, on one boot of one host: what one leaves is what the next begins with. Each is done to a
release that the host does not serve yet, so that there is a server that may be lost.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from .scene import (
    CACHE,
    ENVIRONMENT,
    HOST,
    ONE_PIECE,
    OTHER_PORT,
    SITE,
    WEIGHTS,
    Controller,
    Release,
    Run,
    Scene,
    Watch,
    differences,
)
from .table import Result, Results

pytestmark = pytest.mark.e2e

# Seconds within which the server from before, or the new one, must answer after a fault. A start takes 20 to 30.
ANSWER_S = 150.0

OLD, NEW = "the server from before", "the new server"

# A file system that is too small, for environments.
SMALL = "/opt/faults"


class Case:
    """One fault while it is tested."""

    def __init__(self, scene: Scene, target: Release, playbook: str, watch: Watch) -> None:
        self.scene, self.target, self.playbook, self.watch = scene, target, playbook, watch
        self.begin = time.monotonic()
        # When the fault came; where nothing else is said, with the beginning of the run.
        self.moment = self.begin
        self.disturbed: Run | None = None

    def start(self) -> Controller:
        return self.scene.start(self.target, self.playbook)

    def struck(self) -> None:
        """The fault comes now."""
        self.moment = time.monotonic()

    def fails(self, *said: str, seconds: float = 240) -> Run:
        """Run to an end that must be a failure with these words in its message."""
        self.disturbed = self.start().end(seconds)
        assert self.disturbed.rc != 0, self.disturbed.text
        for words in (*said, "what to do"):
            assert words in self.disturbed.text, self.disturbed.text
        return self.disturbed


@dataclass(frozen=True)
class Fault:
    """A fault: how it is done, and to what.

    answers: who may answer afterwards. playbook: what is run. target: which release it is about. refused: whether that
    release is bad, so that a second run of it is refused and the one before is what must be converged to.
    """

    name: str
    do: Callable[[Case], None]
    answers: tuple[str, ...] = (OLD,)
    playbook: str = SITE
    target: Callable[[Scene], Release] = Scene.another
    refused: bool = False


# ---- how they are done


def hub(do: str, **fault: Any) -> Callable[[Case], None]:
    """The hub fails for the large file of the weights, as often as it is asked."""

    def strike(case: Case) -> None:
        said = fault.pop("said", ())
        path = f"/{case.target.repository}/resolve/*/{ONE_PIECE}"
        case.scene.tell_hub("POST", {"path": path, "do": do, "times": 1000, **fault})
        try:
            case.fails(*said)
        finally:
            case.scene.tell_hub("DELETE")

    return strike


def slowly(scene: Scene, target: Release) -> None:
    """Let the hub be silent for a while in the middle of the large file."""
    path = f"/{target.repository}/resolve/*/{ONE_PIECE}"
    scene.tell_hub("POST", {"path": path, "do": "stall", "after": 500_000, "seconds": 15})


def when_download(case: Case) -> None:
    folder = f"{CACHE}/models--{case.target.repository.replace('/', '--')}"
    case.scene.wait_for(60, "unfinished", folder)
    # Into the large file, at which the hub is silent.
    time.sleep(3)


def when_venv(case: Case) -> None:
    case.scene.wait_for(60, "unsealed", case.scene.environment["path"], "20")


def when_activation(case: Case) -> None:
    case.scene.wait_for(60, "phase", "starting")
    # Into the start of the engine.
    time.sleep(4)


def when_verification(case: Case) -> None:
    case.scene.wait_for(120, "phase", "verifying")


def killed(when: Callable[[Case], None]) -> Callable[[Case], None]:
    """kill -9 for the controller and all its children."""

    def strike(case: Case) -> None:
        if when is when_download:
            slowly(case.scene, case.target)
        controller = case.start()
        when(case)
        case.struck()
        controller.kill()
        if when is when_download:
            case.scene.tell_hub("DELETE")

    return strike


def power_cut(when: Callable[[Case], None]) -> Callable[[Case], None]:
    """Everything on the host ends at once, and it boots again. The controller notices, and fails."""

    def strike(case: Case) -> None:
        if when is when_download:
            slowly(case.scene, case.target)
        controller = case.start()
        when(case)
        case.struck()
        case.scene.lab.stop(HOST, power_cut=True)
        if when is when_download:
            case.scene.tell_hub("DELETE")
        case.scene.lab.start(HOST)
        assert controller.end(120).rc != 0, controller.text

    return strike


def full_disk_in_download(case: Case) -> None:
    """The folder of the repository is a file system with room for half of its large file."""
    folder = f"{CACHE}/models--{case.target.repository.replace('/', '--')}"
    case.scene.do(
        f"install -d -o enplace -g enplace {folder}; mount -t tmpfs -o size=600k,mode=0755 faults {folder};"
        f"chown enplace:enplace {folder}"
    )
    case.fails("disk is full")
    # Somebody makes room.
    case.scene.do(f"mount -o remount,size=64m {folder}")


def full_disk_in_venv(case: Case) -> None:
    """The folder of environments is a file system with room for a part of one."""
    case.scene.place_environment(SMALL)
    case.scene.do(f"mkdir -p {SMALL}; mount -t tmpfs -o size=200m,mode=0755 faults {SMALL}")
    case.fails("disk is full")
    case.scene.do(f"mount -o remount,size=4g {SMALL}")


def damaged(command: str, *said: str) -> Callable[[Case], None]:
    """The large file of the weights that are served is changed on the disk, after it had been verified."""

    def strike(case: Case) -> None:
        path = f"{CACHE}/models--{case.target.repository.replace('/', '--')}/snapshots/*/{ONE_PIECE}"
        case.scene.do(f"file=$(readlink -f {path}); {command}")
        case.fails(ONE_PIECE, *said)

    return strike


TRUNCATE = "truncate -s 500000 $file"
# With the time that it had: what tells is its content alone.
FLIP = """python3 - $file <<'END'
import os, sys
status = os.stat(sys.argv[1])
with open(sys.argv[1], "r+b") as stream:
    stream.seek(700_000)
    byte = stream.read(1)[0]
    stream.seek(700_000)
    stream.write(bytes([byte ^ 1]))
os.utime(sys.argv[1], ns=(status.st_atime_ns, status.st_mtime_ns))
END"""


def bad_release(*said: str) -> Callable[[Case], None]:
    """Nothing is done to it: the release itself is the fault."""

    def strike(case: Case) -> None:
        case.fails(*said, "serves again", "passed its checks")

    return strike


def port_taken(case: Case) -> None:
    case.scene.do(
        f"systemd-run --quiet --unit holder python3 -m http.server --directory /srv {OTHER_PORT};"
        f"until ss -ltn | grep -q :{OTHER_PORT}; do sleep 0.1; done"
    )
    try:
        case.fails(str(OTHER_PORT), "holder.service")
    finally:
        case.scene.do("systemctl stop holder")


def two_controllers(case: Case) -> None:
    first = case.start()
    when_activation(case)
    case.struck()
    second = case.start().end(60)
    assert second.rc != 0, second.text
    for words in ("another run is at work", "activating enplace/smoke:cpu", "what to do"):
        assert words in second.text, second.text
    assert re.search(r"found: process \d+ since \S+Z for \S+@\S+", second.text), second.text
    done = first.end()
    assert done.rc == 0, done.text


# ---- to what


def unknown_weights(scene: Scene) -> Release:
    """A release whose weights the host has never seen."""
    name = next(name for name in ("enplace/faults-1", "enplace/faults-2") if name != scene.repository)
    target = scene.another(repository=name)
    scene.forget_weights(target.repository)
    return target


def the_same(scene: Scene) -> Release:
    assert scene.serving is not None
    return scene.serving


def deep(scene: Scene) -> Release:
    return scene.with_settings(the_same(scene), deep=True)


def on_other_port(scene: Scene) -> Release:
    return scene.another(port=OTHER_PORT)


def crashing(scene: Scene) -> Release:
    """Nothing that can be known without the checkpoint: the linter lets it pass, the engine does not."""
    return scene.another(change=lambda variant: variant["arguments"].update(quantization="awq"))


def hanging(scene: Scene) -> Release:
    """The engine waits for a second half of itself, on a host that nobody starts."""

    def change(variant: dict[str, Any]) -> None:
        variant["arguments"].update({"data-parallel-size": 2, "data-parallel-size-local": 1})
        variant["ready"]["timeout_s"] = 30

    return scene.another(change=change)


def wrong(scene: Scene) -> Release:
    """Weights that are what their manifest says, and answer nonsense."""
    return scene.another(repository="enplace/wrong")


FAULTS = (
    Fault("the hub answers 500", hub("status", status=500), playbook=WEIGHTS, target=unknown_weights),
    Fault("the hub answers 403", hub("status", status=403), playbook=WEIGHTS, target=unknown_weights),
    Fault("the hub cuts the connection mid-file", hub("cut", after=500_000), playbook=WEIGHTS, target=unknown_weights),
    Fault(
        "the hub sends a flipped byte",
        hub("flip", after=700_000, said=("sha256",)),
        playbook=WEIGHTS,
        target=unknown_weights,
    ),
    Fault(
        "the hub stalls mid-file", hub("stall", after=500_000, seconds=600), playbook=WEIGHTS, target=unknown_weights
    ),
    Fault("disk full during the download", full_disk_in_download, playbook=WEIGHTS, target=unknown_weights),
    Fault("power cut during the download", power_cut(when_download), playbook=WEIGHTS, target=unknown_weights),
    Fault("disk full during the build of the environment", full_disk_in_venv, playbook=ENVIRONMENT, target=the_same),
    Fault(
        "controller killed during the build of the environment",
        killed(when_venv),
        playbook=ENVIRONMENT,
        target=the_same,
    ),
    Fault("power cut during the build of the environment", power_cut(when_venv), playbook=ENVIRONMENT, target=the_same),
    Fault("a weight file is truncated on the disk", damaged(TRUNCATE, "500000 bytes"), target=the_same),
    Fault("a bit of a weight file flips on the disk", damaged(FLIP, "sha256"), target=deep),
    Fault("controller killed during the download", killed(when_download), target=unknown_weights),
    Fault("controller killed during the activation", killed(when_activation), answers=(OLD, NEW)),
    Fault("controller killed during the verification", killed(when_verification), answers=(OLD, NEW)),
    Fault("power cut during the activation", power_cut(when_activation)),
    Fault("power cut during the verification", power_cut(when_verification)),
    Fault("two controllers at once", two_controllers, answers=(NEW,)),
    Fault(
        "the new release crashes at its start",
        bad_release("Cannot find the config file for awq"),
        target=crashing,
        refused=True,
    ),
    Fault("the new release hangs", bad_release("completion"), target=hanging, refused=True),
    Fault("the new release answers wrongly", bad_release("known_answers"), target=wrong, refused=True),
    Fault("the port is taken", port_taken, target=on_other_port),
)
assert len({fault.name for fault in FAULTS}) == len(FAULTS)

# ---- what must hold after each of them


@pytest.fixture(scope="session")
def undisturbed(scene: Scene, results: Results) -> dict[str, dict[str, Any]]:
    """What a host is like after runs that nobody disturbs, by playbook; the first release is then what is served."""
    found: dict[str, dict[str, Any]] = {}
    # What a session that was interrupted left.
    tidy(scene)
    release = scene.another()
    with Watch(scene.address) as watch:
        watch.answer_after(time.monotonic(), ANSWER_S)
        begin = time.monotonic()
        succeeds(scene.run(release))
        results.undisturbed_outage_s = watch.outage(begin, time.monotonic())
    scene.serving = release
    found[SITE] = scene.manifest(release)
    target = unknown_weights(scene)
    succeeds(scene.run(target, WEIGHTS))
    found[WEIGHTS] = scene.weights(target)
    succeeds(scene.run(release, ENVIRONMENT))
    found[ENVIRONMENT] = scene.seal()
    assert scene.left_over() == []
    return found


def succeeds(run: Run) -> Run:
    assert run.rc == 0, run.text
    return run


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(fault: Fault, scene: Scene, undisturbed: dict[str, dict[str, Any]], results: Results) -> None:
    try:
        results.add(survived(fault, scene, undisturbed[fault.playbook]))
    except BaseException as error:
        results.add(Result(fault.name, failed=(str(error).strip() or repr(error)).splitlines()[0][:200]))
        raise
    finally:
        tidy(scene)


def tidy(scene: Scene) -> None:
    """Nothing of one fault stays for the next, whatever came of it."""
    scene.tell_hub("DELETE")
    scene.do("for at in $(awk '$1 == \"faults\" {print $2}' /proc/mounts); do umount $at; rm -rf $at; done")
    scene.place_environment()
    scene.do("rm -rf /home/admin/.ansible/tmp/*")


def survived(fault: Fault, scene: Scene, expected: dict[str, Any]) -> Result:
    before = scene.serving
    assert before is not None
    target = fault.target(scene)
    with Watch(scene.address) as watch:
        watch.answer_after(time.monotonic(), ANSWER_S)
        case = Case(scene, target, fault.playbook, watch)
        fault.do(case)
        # (a) Before any second run.
        when, context = watch.answer_after(time.monotonic(), ANSWER_S)
        outage = watch.outage(case.begin, when)
        recovery = when - case.moment if watch.outage(case.moment, when) else 0.0
        answers = OLD if context == before.context else NEW
        assert answers in fault.answers, f"answers afterwards: {answers}"
        # (b)
        second = is_refused(case) if fault.refused else succeeds(scene.run(target, fault.playbook))
    if fault.playbook == SITE and not fault.refused:
        scene.serving = target
    serving = scene.serving
    assert serving is not None
    third = succeeds(scene.run(serving if fault.playbook == SITE else target, fault.playbook))
    assert third.changed == 0, third.text
    assert scene.answering() == serving.context
    found = {SITE: scene.manifest, WEIGHTS: lambda _: scene.weights(target), ENVIRONMENT: lambda _: scene.seal()}
    differs = differences(expected, found[fault.playbook](serving))
    assert not differs, "not as after an undisturbed run: " + "\n".join(differs)
    # (c)
    left = scene.left_over()
    assert not left, "left over: " + "\n".join(left)
    return Result(fault.name, answers, round(outage, 1), round(recovery, 1), round(second.seconds, 1))


def is_refused(case: Case) -> Run:
    """A second run of a bad release is refused by the record of the first, and nothing stops for it."""
    begin = time.monotonic()
    second = case.start().end(60)
    assert second.rc != 0, second.text
    for words in ("enplace_retry", "what to do"):
        assert words in second.text, second.text
    assert case.watch.outage(begin, time.monotonic()) == 0
    return second
