# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The switch from what serves to a release, as a transaction: all of it, or what was before.

The verified unit lies in /usr/local/lib and is not touched before the new one is verified. The new one is tried as a
candidate in /run, where it wins over the verified one and from where a power cut removes it. So going back is: stop,
remove the candidate, start what was stopped; and a boot always starts what was verified.
Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import environment as environments
from ansible_collections.enplace.inference.plugins.module_utils import files, garbage
from ansible_collections.enplace.inference.plugins.module_utils import release as releases
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.machine import Machine
from ansible_collections.enplace.inference.plugins.module_utils.preconditions import demand, ours, start_bytes
from ansible_collections.enplace.inference.plugins.module_utils.release import Layout, Release, State
from ansible_collections.enplace.inference.plugins.module_utils.systemd import STOPPED, Systemd
from ansible_collections.enplace.inference.plugins.module_utils.transaction import (
    ORPHAN_S,
    UNDOING,
    Transaction,
    hold,
    last_committed,
    now,
    pending,
)
from ansible_collections.enplace.inference.plugins.module_utils.verify import child
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports

#: Phases in which a failure is the release's: it is not tried again unless told. What fails before is the host's.
BLAMED = ("waiting", "starting", "ready", "verifying")

#: Phases in which a candidate may run.
TRIED = ("starting", "ready", "verifying")

#: Longest time from start to a completion where a release does not say.
READY_TIMEOUT_S = 900

#: systemd itself gives up at the release's deadline; this is for the case that it does not.
READY_SPARE_S = 60.0

#: MemAvailable counts as no longer rising when it rose by less than this, this many times in a row.
RISE_BYTES = 64 * 1024 * 1024
RISE_SAMPLES = 3

#: A unit that was asked to start and is still nothing after this time will not become anything.
SLOW_START_S = 15.0


@dataclass(frozen=True)
class Options:
    """How it is done.

    wanted: slugs of all recipes the host is to serve, the one at hand included; None: no other one is touched.
    in_use: environments and tools that are no garbage whatever no release says; None: none of them is looked at.
    """

    wanted: Sequence[str] | None = None
    retry: bool = False
    keep: int = 3
    holder: str = ""
    lock_timeout_s: float = 0.0
    memory_timeout_s: float = 180.0
    in_use: Sequence[str] | None = None
    host: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """What was done. `plan` in words; `ready_s` from start to completion; `recovered`: an earlier run's rest.

    reports: by slug, what the checks said of a server that runs now.
    """

    changed: bool = False
    outcome: str = "converged"
    plan: list[str] = field(default_factory=list)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    ready_s: float | None = None
    seconds: float = 0.0
    recovered: str = ""
    removed: list[str] = field(default_factory=list)


class Refused(Failure):
    """A release that is not taken into service. `evidence` is the record's path; `report` the checks', if they ran.

    reports: by slug, what the checks said of a server that was started again.
    """

    evidence: str = ""
    report: dict[str, Any] | None = None
    reports: Mapping[str, dict[str, Any]] = {}


class Unproven(Failure):
    """What serves does not pass its checks, and there is nothing to go back to. `reports` as of a `Refused`."""

    reports: Mapping[str, dict[str, Any]] = {}


class Activator:
    """Everything that changes what a host serves. One at a time: the methods without an underscore take the lock."""

    def __init__(
        self,
        layout: Layout,
        systemd: Systemd,
        machine: Machine,
        options: Options,
        verify: Callable[[Mapping[str, Any]], dict[str, Any]] = child.ask,
        inspect: Callable[[str], environments.State] = environments.inspect,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.layout = layout
        self.systemd = systemd
        self.machine = machine
        self.options = options
        self.verify = verify
        self.inspect = inspect
        self.sleep = sleep
        self.clock = clock

    # What is asked for

    def active(self, release: Release) -> Result:
        """Make the host serve a release, with a report that speaks for what runs.

        Raises Failure: a Refused where the release was not taken into service, and the message says what serves; an
        Unproven where what serves does not pass its checks.
        """
        with self._locked(f"activating {release.recipe or release.slug}", release) as result:
            self._active(release, result)
            if release.slug not in result.reports and not release.standby:
                self._report_of(release, result)
        return result

    def previous(self, slug: str = "") -> Result:
        """Go back to what a recipe served before, or, without a slug, undo the last transaction that was committed."""
        with self._locked(f"rolling back {slug or 'the last activation'}", None) as result:
            result.recovered = self._recover(None, result)
            self._go_back(slug, result)
            result.outcome = "rolled back" if result.plan else result.outcome
        return result

    def absent(self, slug: str, with_weights: bool = False) -> Result:
        """Remove a recipe wholly; its reports stay, and its weights unless `with_weights`."""
        with self._locked(f"removing {slug}", None) as result:
            result.recovered = self._recover(None, result)
            result.plan = self.removal(slug, with_weights)
            if result.plan:
                self._remove(slug, with_weights, result)
        return result

    # What would be done

    def steps(self, release: Release, state: State) -> list[str]:
        """What `active` would do from a state, in words."""
        retire = self._unwanted(release)
        if not state.found and not retire:
            return []
        steps = []
        if state.journal is not None:
            steps.append(f"finish or undo the activation of {state.journal.get('slug')} that an earlier run left open")
        if not state.staged:
            steps.append(f"stage {release.path}")
        if not self._needs_restart(release, state):
            done = [item for item in state.found if item["what"] not in ("release file", "activation")]
            steps += [f"put right {item['what']} {item['path']}" for item in done]
        else:
            in_the_way = self._in_the_way(release, retire)
            steps += [f"stop {entry['unit']}" for entry in in_the_way]
            verb = "replace" if state.unit_before else "install"
            steps.append(f"start {release.unit}, wait for a completion, and run its checks")
            steps.append(f"{verb} {self.layout.units / release.unit}")
            steps.append(f"{'disable and stop' if release.standby else 'enable'} {release.unit}")
        return steps + [f"retire {releases.unit_of(slug)}, which is not wanted" for slug in retire]

    def removal(self, slug: str, with_weights: bool = False) -> list[str]:
        """What `absent` would do, in words."""
        steps = []
        units = [path for path in self._unit_files(slug) if path.exists()]
        if units:
            steps.append(f"stop, disable and remove {releases.unit_of(slug)}")
        for folder in (self.layout.folder(slug), self.layout.caches / slug):
            if folder.exists():
                steps.append(f"remove {folder}")
        if with_weights and self.layout.folder(slug).exists():
            steps += [f"remove the weights {repo}@{revision[:12]}" for repo, revision, _p in self._own_models(slug)]
        return steps

    def way_back(self, slug: str = "") -> list[str]:
        """What `previous` would do, in words. Raises Failure where there is nothing to go back to."""
        steps = []
        for other, name, options in self._targets(slug):
            release = self._earlier(other, name)
            steps += options.steps(release, releases.look(release, self.systemd))
        return steps

    # The transaction

    def _active(self, release: Release, result: Result) -> None:
        result.recovered = self._recover(release, result)
        state = releases.look(release, self.systemd)
        if not state.sealed:
            self._refuse_failed(release, state)
        if state.starting and not self._needs_restart(release, state):
            # Started by a boot or by somebody else a moment ago: not a change of ours, but no answer yet either.
            result.ready_s = self._wait_active(release.unit, self._ready_timeout(release), release)
            state = releases.look(release, self.systemd)
        steps = self.steps(release, state)
        result.plan += steps
        if steps:
            self._switch(release, state, result)
            result.outcome = "activated"

    def _report_of(self, release: Release, result: Result) -> None:
        """The stored report, where it speaks for what runs now: another run brought the host here. Else a new one."""
        request = _checks(release)
        stored, _why = reports.read_report(request["report"])
        shown = self.systemd.show(release.unit)
        unit = reports.Unit(release.unit, shown.get("InvocationID", ""), shown.get("ActiveState", "unknown"), 0)
        if stored is not None and not reports.why_not(stored, child.subject_of(request), unit):
            result.reports[release.slug] = stored
            return
        result.changed = True
        result.plan.append(f"run the checks of {release.unit}")
        entry = {"slug": release.slug, "unit": release.unit, "current": release.name}
        self._check_again(entry, result.reports)

    def _switch(self, release: Release, state: State, result: Result, leaves: Sequence[Mapping[str, str]] = ()) -> None:
        """From whatever serves to a release. `leaves`: releases that are marked as not to be tried again."""
        result.changed = True
        retire = self._unwanted(release)
        tx = Transaction.open(
            self.layout,
            "activate",
            release.slug,
            self.machine.boot(),
            self.options.holder,
            recipe=release.recipe,
            digest=release.digest,
            standby=release.standby,
            before=self.layout.linked(release.slug, "current"),
            retire={slug: self.layout.linked(slug, "current") for slug in retire},
            leaves=[dict(entry) for entry in leaves],
            had_folder=release.path.exists(),
            sealed=state.sealed,
            stopped=[],
            invocation="",
        )
        if not self._needs_restart(release, state):
            tx.enter("staged")
            try:
                if not state.staged:
                    stage(release)
            except (Failure, OSError) as error:
                raise self._revert(tx, release, error) from error
            tx.enter("commit", invocation=state.invocation)
            self._commit(tx, release, result)
            return
        try:
            tx.enter("staged")
            if not state.staged:
                stage(release)
            in_the_way = self._in_the_way(release, retire)
            tx.enter("checked")
            demand(release, self.machine, self.inspect, {entry["unit"] for entry in in_the_way})
            tx.enter("stopping", stopped=in_the_way)
            self._stop(in_the_way)
            tx.enter("waiting")
            self._wait_gone(in_the_way)
            self._wait_memory(release, bool(in_the_way))
            tx.enter("starting")
            self._start_candidate(release)
            tx.enter("ready")
        except (Failure, OSError) as error:
            raise self._revert(tx, release, error) from error
        self._prove(tx, release, result)

    def _prove(self, tx: Transaction, release: Release, result: Result) -> None:
        """The rest of an activation whose candidate was started: wait, check, commit."""
        report = None
        try:
            result.ready_s = self._wait_active(release.unit, self._ready_timeout(release), release)
            tx.enter("verifying", ready_s=result.ready_s)
            report = self._verify(release)
        except (Failure, OSError) as error:
            raise self._revert(tx, release, error) from error
        if not report["all_passed"]:
            raise self._revert(tx, release, _did_not_pass(report), report)
        result.reports[release.slug] = report
        unit = report.get("unit") or {}
        tx.enter("commit", invocation=str(unit.get("invocation", "")))
        self._commit(tx, release, result)

    def _commit(self, tx: Transaction, release: Release, result: Result) -> None:
        """From the point of no return to the end. Raises Failure where a step fails: the next run does the rest."""
        try:
            self._commit_steps(tx, release, result)
        except (Failure, OSError) as error:
            cause = error if isinstance(error, Failure) else _from_os(error, release.path)
            raise Failure(
                f"{release.recipe or release.slug}: release {release.name} is verified, but not all of it is in place: "
                f"{cause.what}",
                where=cause.where,
                expected=cause.expected,
                found=cause.found,
                todo=f"{cause.todo or 'mend it'}; the next run does what is left of it",
                detail=cause.detail,
            ) from error
        if release.standby:
            # What gave way to its checks runs anew. The standby is in place whatever comes of it.
            for entry in _others(tx):
                if entry["ran"]:
                    self._check_again(entry, result.reports)

    def _commit_steps(self, tx: Transaction, release: Release, result: Result) -> None:
        """Every step may be done again, by a run that comes after a power cut."""
        runs = self._runs(tx, release)
        self._install(release)
        self._remove_candidate(release)
        self.systemd.reload()
        if not release.standby and not runs:
            self.systemd.stop(release.unit)
            self.systemd.start(release.unit)
            result.ready_s = self._wait_active(release.unit, self._ready_timeout(release), release)
        current = self.layout.linked(release.slug, "current")
        if current and current != release.name:
            self._link(release.slug, "previous", current)
        self._link(release.slug, "current", release.name)
        retired = list(tx.data["retire"])
        self._retire(retired)
        if release.standby:
            self._rest(release, _others(tx))
        else:
            self.systemd.enable(release.unit)
            if release.timer:
                self.systemd.enable(release.timer)
                self.systemd.start(release.timer)
        for entry in tx.data["leaves"]:
            self._mark_left(entry, tx)
        files.remove(str(self.layout.failed(release.slug, release.digest)))
        with contextlib.suppress(OSError):
            os.rmdir(self.layout.failed(release.slug, release.digest).parent)
        for slug in (release.slug, *retired):
            self._sweep(slug)
        tx.finish("committed")
        result.removed += garbage.collect(self.layout, self.machine, self.options.keep, self.options.in_use)

    def _revert(
        self, tx: Transaction, release: Release, error: Exception, report: dict[str, Any] | None = None
    ) -> Refused:
        """Undo what a transaction began, because of an error; that error as what a person has to know."""
        phase = tx.phase
        cause = error if isinstance(error, Failure) else _from_os(error, release.path)
        detail = cause.detail
        if phase in TRIED and not detail:
            detail = self.systemd.journal(release.unit, self.systemd.show(release.unit).get("InvocationID", ""))
        detail = self._without_key(detail, release)
        # A disk that is full, a systemd that does not answer: not of the release's making.
        blamed = isinstance(error, Failure) and phase in BLAMED
        evidence = self.layout.history / f"{tx.data['id']}.json"
        if blamed:
            evidence = self.layout.failed(release.slug, release.digest)
        record = {
            "recipe": release.recipe,
            "digest": release.digest,
            "phase": phase,
            "reason": cause.what,
            "expected": cause.expected,
            "found": self._without_key(cause.found, release),
            "checks": [check["name"] for check in (report or {}).get("checks", []) if not reports.good(check)],
            "report": _checks(release).get("report", "") if report else "",
            "output": detail.splitlines(),
            "holder": self.options.holder,
            "at": now(),
        }
        # What cannot be written now must not keep the old server down.
        with contextlib.suppress(OSError):
            if blamed:
                os.makedirs(evidence.parent, mode=0o755, exist_ok=True)
                files.write_json(str(evidence), {"format": 1, "slug": release.slug, **record})
        with contextlib.suppress(OSError):
            tx.enter(UNDOING, failure=record)
        proven: dict[str, dict[str, Any]] = {}
        serves = self._undo(tx, "reverted", proven)
        todo = [cause.todo, f"the evidence is in {evidence}"]
        if blamed and not tx.data["sealed"]:
            todo.append("a run does not try this release again unless told: enplace_retry=true")
        refused = Refused(
            f"{release.recipe or release.slug}: release {release.name} was not taken into service: {cause.what}; "
            f"{serves}",
            where=f"phase {phase} of the activation of {release.unit}" + (f", {cause.where}" if cause.where else ""),
            expected=cause.expected,
            found=self._without_key(cause.found, release),
            todo="; ".join(part for part in todo if part),
            detail=detail,
        )
        refused.evidence, refused.report, refused.reports = str(evidence), report, proven
        return refused

    def _undo(self, tx: Transaction, outcome: str, proven: dict[str, dict[str, Any]] | None) -> str:
        """Take back everything of a transaction that was not committed. Returns what serves now, in words.

        What is started again is checked, and its report put into `proven`; None: whoever calls sees to that.
        """
        slug = tx.data["slug"]
        unit = releases.unit_of(slug)
        candidate = Release(slug, tx.data["digest"], {releases.UNIT: "", releases.ENVIRONMENT: ""}, layout=self.layout)
        words: list[str] = []
        try:
            shown = self.systemd.show(unit)
            if any(path.exists() for _name, path in candidate.in_folder(self.layout.candidates)):
                self.systemd.stop(unit)
                self._wait_gone([{"unit": unit, "cgroup": shown.get("ControlGroup", "")}])
            self._remove_candidate(candidate)
            self.systemd.reload()
            self.systemd.forget(unit)
            words, serving = self._start_again(tx.data["stopped"])
            if proven is not None:
                for entry in serving:
                    try:
                        self._check_again(entry, proven)
                        words.append(f"{_named(entry)} passed its checks")
                    except Unproven as error:
                        words.append(error.what)
        except (Failure, OSError) as error:
            words.append(f"going back failed: {error}")
            return "; ".join(words)
        with contextlib.suppress(OSError):
            unstage(candidate, keep=tx.data["had_folder"])
        with contextlib.suppress(OSError):
            self._sweep(slug)
            tx.finish(outcome, serves=words)
        if words:
            return "; ".join(words)
        before = [name for name in self.layout.recipes() if name != slug or tx.data["before"]]
        return "what served before was not stopped" if before else "nothing served before, and nothing serves now"

    def _recover(self, release: Release | None, result: Result) -> str:
        """Finish or undo what an earlier run left open; what was done, in words. What is wanted may be taken on."""
        tx = pending(self.layout)
        if tx is None:
            # A run may have been killed while it wrote the first word of its journal.
            self._sweep(release.slug if release else "")
            return ""
        result.changed = True
        whose = f"{tx.data.get('recipe') or tx.data['slug']} of {tx.data['begun']} ({tx.data['holder'] or 'unknown'})"
        if tx.data["kind"] == "remove":
            self._finish_removal(tx, result)
            return f"finished the removal of {whose}"
        phase = tx.phase
        if phase == "commit":
            self._commit(tx, releases.load(self.layout, tx.data["slug"], tx.data["digest"][:12]), result)
            if release is not None and release.digest == tx.data["digest"]:
                result.outcome = "resumed"
            return f"finished the activation of {whose}, whose checks had passed"
        if release is not None and self._can_resume(tx, release):
            result.plan.append(f"go on with the activation of {release.unit} where an earlier run was cut off")
            self._prove(tx, release, result)
            result.outcome = "resumed"
            return f"took the activation of {whose} further, which was cut off in phase {phase}"
        with contextlib.suppress(OSError):
            tx.enter(UNDOING)
        # Where a release is wanted, either it takes the place of what is started here or that is checked in the end.
        proven = result.reports if release is None else None
        serves = self._undo(tx, "reverted" if "failure" in tx.data else "undone", proven)
        return f"undid the activation of {whose}, which was cut off in phase {phase}: {serves}"

    def _can_resume(self, tx: Transaction, release: Release) -> bool:
        """Whether the wanted release is the one that was being tried, and still is, as it was started."""
        same = (tx.data["slug"], tx.data["digest"]) == (release.slug, release.digest)
        if not same or tx.phase not in TRIED or tx.data["boot"] != self.machine.boot():
            return False
        as_tried = all(
            releases.read_bytes(path) == release.files[name].encode()
            for name, path in release.in_folder(self.layout.candidates)
        )
        state = releases.look(release, self.systemd)
        return as_tried and state.staged and (state.active or state.starting)

    def _refuse_failed(self, release: Release, state: State) -> None:
        record = state.failed
        if record is None or self.options.retry:
            return
        path = self.layout.failed(release.slug, release.digest)
        refused = Refused(
            f"{release.recipe or release.slug}: release {release.name} failed before and is not tried again",
            where=f"phase {record.get('phase')}, {record.get('at')}",
            expected="a release that nothing is known against",
            found=str(record.get("reason")),
            todo=f"read {path}, and change the recipe; or try the same once more with enplace_retry=true",
            detail=files.json_text(record.get("output", [])[-8:]).strip() if record.get("output") else "",
        )
        refused.evidence = str(path)
        raise refused

    # Steps

    def _needs_restart(self, release: Release, state: State) -> bool:
        """Whether more has to be put right than what lies beside a verified server that runs."""
        if not state.sealed or not (state.active or state.starting or release.standby):
            return True
        if (self.layout.owners / release.unit).exists():
            return True
        if any(path.exists() for _name, path in release.in_folder(self.layout.candidates)):
            return True
        return any(
            releases.read_bytes(path) != release.files[name].encode()
            for name, path in release.in_folder(self.layout.units)
        )

    def _unwanted(self, release: Release) -> list[str]:
        if self.options.wanted is None:
            return []
        return releases.unwanted(self.layout, [*self.options.wanted, release.slug])

    def _in_the_way(self, release: Release, retire: Sequence[str]) -> list[dict[str, Any]]:
        """What has to be stopped, with what is needed to start it again: units that run, and their timers."""
        texts = {slug: releases.read_text(self.layout.units / releases.unit_of(slug)) for slug in self.layout.recipes()}
        slugs = [release.slug, *retire]
        against = _conflicts(release.files[releases.UNIT])
        for slug, text in texts.items():
            if slug not in slugs and (releases.unit_of(slug) in against or release.unit in _conflicts(text)):
                slugs.append(slug)
        shown = self.systemd.show_all(
            [name for slug in slugs for name in (releases.unit_of(slug), releases.timer_of(slug))]
        )
        found = []
        for slug in slugs:
            unit, timer = shown[releases.unit_of(slug)], shown[releases.timer_of(slug)]
            runs = unit.get("ActiveState", "") not in STOPPED
            ticks = timer.get("ActiveState", "") not in STOPPED
            if runs or ticks:
                found.append(
                    {
                        "slug": slug,
                        "unit": releases.unit_of(slug),
                        "ran": runs,
                        "timer": releases.timer_of(slug) if ticks else "",
                        "current": self.layout.linked(slug, "current"),
                        "cgroup": unit.get("ControlGroup", ""),
                    }
                )
        return found

    def _stop(self, entries: Sequence[Mapping[str, Any]]) -> None:
        # The timers first: one of them would start again what is being stopped.
        for entry in entries:
            if entry["timer"]:
                self.systemd.stop(entry["timer"], releases.liveness_of(entry["slug"]))
        for entry in entries:
            if entry["ran"]:
                self.systemd.stop(entry["unit"])

    def _start_again(self, entries: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[Mapping[str, Any]]]:
        """Start what was stopped, and wait until it answers. Returns what serves, in words, and which of them do."""
        words: list[str] = []
        serving: list[Mapping[str, Any]] = []
        for entry in entries:
            if entry["ran"]:
                name = _named(entry)
                try:
                    self.systemd.start(entry["unit"])
                    seconds = self._wait_active(entry["unit"], self._ready_timeout_of(entry["slug"]))
                    words.append(f"{name} serves again ({seconds:.0f} s)")
                    serving.append(entry)
                except Failure as error:
                    words.append(f"{name} was started again but does not serve: {error.what}, {error.found}")
            if entry["timer"]:
                self.systemd.start(entry["timer"])
        return words, serving

    def _check_again(self, entry: Mapping[str, Any], proven: dict[str, dict[str, Any]]) -> None:
        """Run the checks of a verified release that was started again: its report was of another run of the unit.

        Puts the report into `proven`. Raises Unproven where it does not pass, or nobody can say.
        """
        name = _named(entry)
        try:
            if not entry["current"]:
                raise Failure("it is of no verified release")
            report = self._verify(releases.load(self.layout, entry["slug"], entry["current"]))
        except (Failure, OSError) as error:
            cause = error if isinstance(error, Failure) else _from_os(error, self.layout.folder(entry["slug"]))
            what = f"{name} could not be checked: {cause.what}"
        else:
            proven[entry["slug"]] = report
            if report["all_passed"]:
                return
            cause = _did_not_pass(report)
            what = f"{name} serves, but {cause.what}"
        unproven = Unproven(what, cause.where or entry["unit"], cause.expected, cause.found, cause.todo, cause.detail)
        unproven.reports = proven
        raise unproven

    def _wait_gone(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Wait until no process of the stopped units is left."""
        end = self.clock() + self.options.memory_timeout_s
        for entry in entries:
            while True:
                left = self.machine.members(entry["cgroup"])
                if not left:
                    break
                if self.clock() > end:
                    raise Failure(
                        f"{entry['unit']} is stopped, but processes of it are left",
                        expected=f"none after {self.options.memory_timeout_s:.0f} s",
                        found="; ".join(str(self.machine.process(pid)) for pid in left[:5]),
                        todo="what cannot be killed waits for a device or a disk: look at dmesg; restart the host",
                    )
                self.sleep(0.5)

    def _wait_memory(self, release: Release, stopped: bool) -> None:
        """Wait until the memory is really back: free is what the kernel says, not what a closed port suggests."""
        needed = start_bytes(release.manifest)
        end = self.clock() + self.options.memory_timeout_s
        best, still = self.machine.memory(), 0
        while True:
            free = self.machine.memory()
            if needed and free >= needed:
                return
            still = still + 1 if free < best + RISE_BYTES else 0
            best = max(best, free)
            if not needed and (not stopped or still >= RISE_SAMPLES):
                return
            if self.clock() > end:
                if not needed:
                    return
                largest = "; ".join(f"{process}: {files.sized(size)}" for process, size in self.machine.largest())
                raise Failure(
                    "the memory that this release needs to start is not free",
                    where="/proc/meminfo MemAvailable",
                    expected=f"{files.sized(needed)} within {self.options.memory_timeout_s:.0f} s",
                    found=f"{files.sized(free)}; the largest processes: {largest}",
                    todo="stop what takes it, or serve less on this host",
                )
            self.sleep(1.0)

    def _start_candidate(self, release: Release) -> None:
        self._adopt(release.slug)
        self._write(release, release.in_folder(self.layout.candidates))
        self.systemd.reload()
        self.systemd.start(release.unit)

    def _adopt(self, slug: str) -> None:
        """Move a unit of ours out of /etc, where it would win over every candidate, to where the verified ones are."""
        shadow = self.layout.owners / releases.unit_of(slug)
        if shadow.exists() and ours(self.layout, slug):
            place = self.layout.units / shadow.name
            os.makedirs(place.parent, mode=0o755, exist_ok=True)
            files.write_text(str(place), releases.read_text(shadow))
            files.remove(str(shadow))
            files.sync_folder(str(shadow.parent))
            # Its link for the boot leads to where it was.
            self.systemd.reload()
            if self.layout.linked(slug, "current"):
                self.systemd.disable(shadow.name)
                self.systemd.enable(shadow.name)

    def _wait_active(self, unit: str, timeout_s: float, release: Release | None = None) -> float:
        """Wait until a unit that was asked to start is active, which by its ExecStartPost means: it gave a completion.

        Returns the seconds it took. Raises Failure, with the last lines of the journal of that start, as soon as it
        cannot come any more.
        """
        begin = self.clock()
        restarts: str | None = None
        invocation = ""
        began = False
        while True:
            shown = self.systemd.show(unit)
            state = shown.get("ActiveState")
            # A unit that has failed may have lost its invocation's name already.
            invocation = shown.get("InvocationID") or invocation
            if state == "active":
                return round(self.clock() - begin, 1)
            restarts = restarts if restarts is not None else shown.get("NRestarts")
            passed = self.clock() - begin
            ended = state == "inactive" and (began or passed > SLOW_START_S)
            began = began or state not in STOPPED
            gave_up = (
                state == "failed"
                or ended
                or shown.get("NRestarts") != restarts
                or shown.get("SubState") == "auto-restart"
            )
            if gave_up or passed > timeout_s + READY_SPARE_S:
                what = "failed" if gave_up else f"did not answer a completion within {timeout_s:.0f} s"
                raise Failure(
                    f"{unit} {what}",
                    where=str(release.path) if release else "",
                    expected="a completion",
                    found=f"state {state}, result {shown.get('Result')}, exit status {shown.get('ExecMainStatus')}",
                    todo=f"read the output below; the whole of it: journalctl -u {unit}",
                    detail=self.systemd.journal(unit, invocation),
                )
            self.sleep(1.0)

    def _verify(self, release: Release) -> dict[str, Any]:
        return self.verify({**_checks(release), "unit": release.unit, "host": dict(self.options.host)})

    def _runs(self, tx: Transaction, release: Release) -> bool:
        """Whether what runs now is the release that was verified, or the same started again by a boot or systemd."""
        shown = self.systemd.show(release.unit)
        if shown.get("ActiveState") != "active":
            return False
        invocation = tx.data["invocation"]
        if invocation and shown.get("InvocationID") == invocation:
            return True
        # A boot has removed the candidate and started what was installed.
        folder = self.layout.candidates if tx.data["boot"] == self.machine.boot() else self.layout.units
        for place in (folder, self.layout.units):
            pairs = release.in_folder(place)
            if all(releases.read_bytes(path) == release.files[name].encode() for name, path in pairs):
                return True
        return False

    def _install(self, release: Release) -> None:
        self._adopt(release.slug)
        self._write(release, release.installed())
        kept = {path for _name, path in release.installed()}
        for path in self._unit_files(release.slug, (self.layout.units,)):
            if path not in kept and path.exists():
                if path.name == releases.timer_of(release.slug):
                    self.systemd.stop(path.name)
                    self.systemd.disable(path.name)
                files.remove(str(path))

    def _write(self, release: Release, pairs: Iterable[tuple[str, Path]]) -> None:
        for name, path in pairs:
            if releases.read_bytes(path) != release.files[name].encode():
                os.makedirs(path.parent, mode=0o755, exist_ok=True)
                files.write_text(str(path), release.files[name])

    def _sweep(self, slug: str) -> None:
        """Remove what a run that was killed while it wrote has left beside the files that it wrote."""
        folder = self.layout.folder(slug)
        links = [folder / "current", folder / "previous"]
        patterns = [(path.parent, f".{path.name}.*") for path in [*self._unit_files(slug), *links]]
        patterns += [(folder / "failed", ".*.json.*"), (self.layout.history, ".*.json.*")]
        patterns += [(self.layout.journal.parent, f".{self.layout.journal.name}.*")]
        for place, pattern in patterns:
            for left in place.glob(pattern):
                files.remove(str(left))
        # A folder that it kept from being removed.
        _remove_files(path for path in self._unit_files(slug, (self.layout.candidates,)) if not path.exists())

    def _unit_files(self, slug: str, folders: Sequence[Path] = ()) -> list[Path]:
        """Every file that enplace installs as a unit of a recipe, and where a candidate of it lies."""
        unit = releases.unit_of(slug)
        found = []
        for folder in folders or (self.layout.units, self.layout.candidates):
            found += [folder / unit, folder / f"{unit}.d" / releases.DROPIN]
        if not folders or self.layout.units in folders:
            found += [self.layout.units / releases.liveness_of(slug), self.layout.units / releases.timer_of(slug)]
        return found

    def _remove_candidate(self, release: Release) -> None:
        _remove_files(self._unit_files(release.slug, (self.layout.candidates,)))

    def _link(self, slug: str, name: str, target: str) -> None:
        folder = self.layout.folder(slug)
        if self.layout.linked(slug, name) == target:
            return
        aside = folder / f".{name}.new"
        aside.unlink(missing_ok=True)
        aside.symlink_to(target)
        os.replace(aside, folder / name)
        files.sync_folder(str(folder))

    def _retire(self, slugs: Sequence[str]) -> None:
        """Stop serving recipes that are not wanted; what is needed to serve them again stays."""
        for slug in slugs:
            self._take_down(slug)
            current = self.layout.linked(slug, "current")
            if current:
                self._link(slug, "previous", current)
                files.remove(str(self.layout.folder(slug) / "current"))
                files.sync_folder(str(self.layout.folder(slug)))

    def _take_down(self, slug: str) -> None:
        """Stop, disable and remove the units of a recipe."""
        unit, timer = releases.unit_of(slug), releases.timer_of(slug)
        self.systemd.stop(timer, releases.liveness_of(slug))
        self.systemd.stop(unit)
        self.systemd.disable(timer)
        self.systemd.disable(unit)
        shadow = self.layout.owners / unit
        _remove_files(self._unit_files(slug) + ([shadow] if shadow.exists() and ours(self.layout, slug) else []))
        self.systemd.reload()
        self.systemd.forget(unit, timer, releases.liveness_of(slug))

    def _rest(self, release: Release, stopped: Sequence[Mapping[str, Any]]) -> None:
        """A standby is verified, installed and not left running; what was stopped for it serves again."""
        cgroup = self.systemd.show(release.unit).get("ControlGroup", "")
        if release.timer:
            self.systemd.stop(release.timer, releases.liveness_of(release.slug))
            self.systemd.disable(release.timer)
        self.systemd.stop(release.unit)
        self.systemd.disable(release.unit)
        self._wait_gone([{"unit": release.unit, "cgroup": cgroup}])
        for entry in stopped:
            if entry["ran"]:
                self.systemd.start(entry["unit"])
                self._wait_active(entry["unit"], self._ready_timeout_of(entry["slug"]))
            if entry["timer"]:
                self.systemd.start(entry["timer"])

    # Back, and away

    def _targets(self, slug: str) -> list[tuple[str, str, Activator]]:
        """The releases to go back to: recipe, short digest, and the activator that takes away what came instead."""
        if slug:
            return [(slug, self.layout.linked(slug, "previous"), self)]
        last = last_committed(self.layout)
        name = str(last["digest"])[: releases.DIGEST_NAME_LENGTH] if last else ""
        if last is None or (last["before"] in ("", name) and not last["retire"]):
            said = f"that of {last['recipe'] or last['slug']}, before which none of it served" if last else "none"
            raise Failure(
                "there is nothing to go back to",
                where=str(self.layout.history),
                expected="a last activation that replaced something",
                found=said,
                todo="name the recipe: -e enplace_rollback=<org>/<model>:<variant>",
            )
        serving = [*self.layout.recipes(), last["slug"]]
        targets = []
        if last["before"] == "":
            # It was new: it goes away with the first of those that come back.
            serving = [other for other in serving if other != last["slug"]]
        elif last["before"] != name:
            targets.append((str(last["slug"]), str(last["before"]), self._with_wanted(serving)))
        for other, digest in sorted(last["retire"].items()):
            serving = [*serving, other]
            back = str(digest) or self.layout.linked(other, "previous")
            targets.append((other, back, self._with_wanted(serving)))
        return targets

    def _earlier(self, slug: str, name: str) -> Release:
        if not name:
            raise Failure(
                f"{slug} has no earlier release to go back to",
                where=str(self.layout.folder(slug) / "previous"),
                expected="a link to the release that was verified before the present one",
                found="no link",
                todo="change the recipe and run site.yml; playbooks/teardown.yml removes a recipe",
            )
        return releases.load(self.layout, slug, name)

    def _go_back(self, slug: str, result: Result) -> None:
        targets = self._targets(slug)
        # All of them are read before anything is touched.
        earlier = [self._earlier(other, name) for other, name, _activator in targets]
        for release, (_slug, _name, activator) in zip(earlier, targets):
            state = releases.look(release, self.systemd)
            leaves = activator.leaves(release)
            steps = activator.steps(release, state)
            result.plan += steps
            if steps:
                activator._switch(release, state, result, leaves)

    def leaves(self, release: Release) -> list[dict[str, str]]:
        """The verified releases that going back to a release takes out of service."""
        found = []
        for slug in [release.slug, *self._unwanted(release)]:
            current = self.layout.linked(slug, "current")
            manifest = files.read_json(str(self.layout.folder(slug) / current / releases.MANIFEST)) if current else None
            if manifest and current != release.name:
                found.append({"slug": slug, "digest": str(manifest.get("digest", ""))})
        return found

    def _with_wanted(self, wanted: Sequence[str]) -> Activator:
        options = replace(self.options, wanted=tuple(wanted))
        return Activator(
            self.layout, self.systemd, self.machine, options, self.verify, self.inspect, self.sleep, self.clock
        )

    def _mark_left(self, entry: Mapping[str, str], tx: Transaction) -> None:
        path = self.layout.failed(entry["slug"], entry["digest"])
        os.makedirs(path.parent, mode=0o755, exist_ok=True)
        record = {
            "format": 1,
            "slug": entry["slug"],
            "digest": entry["digest"],
            "phase": "rollback",
            "reason": f"rolled back by {tx.data['holder'] or 'somebody'}",
            "at": now(),
        }
        files.write_json(str(path), record)

    def _own_models(self, slug: str) -> list[tuple[str, str, str]]:
        """What the releases of this recipe, and of no other, have from the hub."""
        own: set[tuple[str, str, str]] = set()
        others: set[str] = set()
        for folder, manifest in garbage.manifests(self.layout):
            if folder.parent.name == slug:
                own |= garbage.models_of(manifest)
            else:
                others |= {path for _repository, _revision, path in garbage.models_of(manifest)}
        return sorted(model for model in own if model[2] not in others)

    def _remove(self, slug: str, with_weights: bool, result: Result) -> None:
        own = [manifest for folder, manifest in garbage.manifests(self.layout) if folder.parent.name == slug]
        tx = Transaction.open(
            self.layout,
            "remove",
            slug,
            self.machine.boot(),
            self.options.holder,
            recipe=str(own[0].get("recipe", "")) if own else "",
            models=[list(model) for model in self._own_models(slug)] if with_weights else [],
            environments=sorted({str(path) for manifest in own for path in garbage.named_environments(manifest)}),
        )
        tx.enter("commit")
        self._finish_removal(tx, result)

    def _finish_removal(self, tx: Transaction, result: Result) -> None:
        slug = str(tx.data["slug"])
        result.changed, result.outcome = True, "removed"
        self._take_down(slug)
        for folder in (self.layout.folder(slug), self.layout.caches / slug):
            if files.remove(str(folder)):
                result.removed.append(str(folder))
        models = [(model[0], model[1], model[2]) for model in tx.data["models"]]
        result.removed += garbage.remove_weights(self.layout, models)
        manifests = [manifest for _folder, manifest in garbage.manifests(self.layout)]
        named = {path for manifest in manifests for path in garbage.named_environments(manifest)}
        gone = [Path(path) for path in tx.data["environments"] if Path(path) not in named and Path(path).is_dir()]
        used = self.machine.users(gone)
        result.removed += garbage.remove_environments(path for path in gone if path not in used)
        self._sweep(slug)
        tx.finish("removed")

    # Small things

    @contextlib.contextmanager
    def _locked(self, purpose: str, release: Release | None) -> Iterator[Result]:
        begin = self.clock()
        result = Result()
        timeout_s = self._ready_timeout(release) if release else READY_TIMEOUT_S
        with hold(self.layout, purpose, self.options.holder, self.options.lock_timeout_s, timeout_s + ORPHAN_S):
            yield result
        result.seconds = round(self.clock() - begin, 1)

    def _ready_timeout(self, release: Release) -> float:
        return float(release.manifest.get("ready_timeout_s") or READY_TIMEOUT_S)

    def _ready_timeout_of(self, slug: str) -> float:
        manifest = files.read_json(str(self.layout.folder(slug) / "current" / releases.MANIFEST)) or {}
        return float(manifest.get("ready_timeout_s") or READY_TIMEOUT_S)

    def _without_key(self, text: str, release: Release) -> str:
        """A text without the API key: an engine may print its settings."""
        path = release.manifest.get("api_key_file")
        keys = releases.read_text(Path(path)).split() if path else []
        for key in keys:
            text = text.replace(key, "***")
        return text


def _named(entry: Mapping[str, Any]) -> str:
    """What was stopped, or started again, by the name that a person knows it by."""
    return f"release {entry['current']} of {entry['slug']}" if entry["current"] else str(entry["unit"])


def _others(tx: Transaction) -> list[Mapping[str, Any]]:
    """What was stopped for a standby and serves again once that is verified."""
    gone = (tx.data["slug"], *tx.data["retire"])
    return [entry for entry in tx.data["stopped"] if entry["slug"] not in gone]


def _beside(release: Release) -> tuple[Path, Path]:
    """Where a release is made, and where the one that it replaces is until it is there."""
    return release.path.with_name(f".{release.path.name}.new"), release.path.with_name(f".{release.path.name}.old")


def unstage(release: Release, keep: bool) -> None:
    """Take back a `stage` that was done or cut off. `keep`: the folder was there before."""
    aside, old = _beside(release)
    if old.exists() and not release.path.exists():
        old.rename(release.path)
    for left_over in (aside, old, *([] if keep else [release.path])):
        files.remove(str(left_over))
    if release.path.parent.is_dir() and not any(release.path.parent.iterdir()):
        release.path.parent.rmdir()


def stage(release: Release) -> None:
    """Put the release's files in place, complete or not at all; what runs is not touched."""
    aside, old = _beside(release)
    try:
        if release.path.parent.is_dir():
            unstage(release, keep=True)
        release.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        aside.mkdir(mode=0o755)
        # The manifest last: a directory without it is no release.
        for name in sorted(release.files, key=lambda name: name == releases.MANIFEST):
            files.write_text(str(aside / name), release.files[name])
        if release.path.exists():
            release.path.rename(old)
        aside.rename(release.path)
        files.sync_folder(str(release.path.parent))
        files.remove(str(old))
    except OSError:
        with contextlib.suppress(OSError):
            unstage(release, keep=True)
        raise


def _remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        files.remove(str(path))
        if path.parent.name.endswith(".d"):
            with contextlib.suppress(OSError):
                os.rmdir(path.parent)


def _conflicts(text: str) -> set[str]:
    """The units that a unit file says it conflicts with."""
    lines = re.findall(r"^Conflicts=(.*)$", text.replace("\\\n", " "), re.MULTILINE)
    return {name for line in lines for name in line.split()}


def _checks(release: Release) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(release.files[releases.CHECKS])
    return value


def _did_not_pass(report: Mapping[str, Any]) -> Failure:
    bad = [check["name"] for check in report["checks"] if not reports.good(check)]
    first = next((check for check in report["checks"] if check["status"] == reports.FAIL), None)
    what = f"the checks {', '.join(bad)} did not pass" if bad else "the server did not stay up during its checks"
    return Failure(
        what,
        expected="every check passes" + (f"; {first['name']}: {first['expected']}" if first else ""),
        found="\n".join(reports.messages(dict(report))),
        todo="read what each check found",
    )


def _from_os(error: Exception, path: Path) -> Failure:
    name = getattr(error, "filename", None) or str(path)
    full = files.is_disk_full(error)
    return Failure(
        "the disk is full" if full else "a file cannot be written or read",
        where=str(name),
        expected="a folder that can be written",
        found=getattr(error, "strerror", None) or str(error),
        todo="free some space and run again" if full else "look at the disk and the folder's mode, and run again",
    )
