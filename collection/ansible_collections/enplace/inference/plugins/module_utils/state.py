# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""How a host differs from its plan: everything that a run would have to do something about, in one look.

Quick unless asked to be deep: packages and users by the system's databases, environments by their seals and the sizes
of their RECORD files, weights by size, time and inode of what was hashed before, releases by content, units by what
systemd says. Deep: every file of the environments, the weights and the releases is hashed. Changes nothing.
Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import base64
import csv
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import api_key, assertions, host_facts, weights
from ansible_collections.enplace.inference.plugins.module_utils import environment as env
from ansible_collections.enplace.inference.plugins.module_utils import release as releases
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure, read_json, sha256_file
from ansible_collections.enplace.inference.plugins.module_utils.release import Layout
from ansible_collections.enplace.inference.plugins.module_utils.systemd import Systemd
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports

#: Files of weights of which no record tells are hashed at once up to this size; together they take a moment.
SMALL_BYTES = 16 * 1024 * 1024

#: Most files that are named one by one; further ones are counted.
MOST_NAMED = 50

Entry = Mapping[str, Any]


@dataclass
class Found:
    """Differences, each {part, what, path, expected, found}, and what each part of the plan comes to.

    parts: `host` and `tools` as planned or not; `environments` by path, `weights` by repo@revision, `releases` and
    `reports` by slug. damaged: what only hashing finds and no role mends by itself.
    """

    differences: list[dict[str, str]] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    damaged: list[dict[str, str]] = field(default_factory=list)

    def add(self, part: str, what: str, path: str, expected: str, found: str) -> None:
        entry = {"part": part, "what": what, "path": path, "expected": expected, "found": found}
        if entry not in self.differences:
            self.differences.append(entry)

    def join(self, other: Found) -> None:
        self.differences += [entry for entry in other.differences if entry not in self.differences]
        self.damaged += other.damaged
        for name, verdict in other.parts.items():
            known = self.parts.get(name)
            self.parts[name] = {**known, **verdict} if isinstance(known, dict) else verdict
        self.servers.update(other.servers)


def look(
    plan: Entry, deep: bool = False, layout: Layout | None = None, systemd: Systemd | None = None
) -> dict[str, Any]:
    """The state of a host against a plan; the result of the module state. Raises Failure, OSError.

    plan: `host`, `environments`, `weights`, `releases`, `servers` and `wanted`, as the resolver makes them.
    """
    begin = time.monotonic()
    layout, systemd = layout or Layout(), systemd or Systemd()
    whole = Found(parts={"environments": {}, "weights": {}, "releases": {}, "reports": {}})
    # The programs that are asked (dpkg-query, systemctl) take most of the time, and none waits for another.
    with ThreadPoolExecutor(max_workers=4) as pool:
        tasks = [
            pool.submit(_host, plan["host"]),
            pool.submit(_environments, plan, deep),
            pool.submit(_weights, plan["weights"], deep),
            pool.submit(_servers, plan, deep, layout, systemd),
        ]
        for task in tasks:
            whole.join(task.result())
    return {
        "converged": not whole.differences,
        "differences": whole.differences,
        "damaged": whole.damaged,
        "parts": whole.parts,
        "servers": whole.servers,
        "journal": read_json(str(layout.journal)),
        "deep": deep,
        "seconds": round(time.monotonic() - begin, 3),
    }


# --- the host --------------------------------------------------------------------------------------------------------


def _host(host: Entry) -> Found:
    found = Found()
    for name in host_facts.packages(host["packages"])["missing"]:
        found.add("host", "package", name, "installed", "not installed")
    for what, entries in (("user", host_facts.users([host["user"]])), ("group", host_facts.groups([host["user"]]))):
        for name, entry in entries.items():
            if entry is None:
                found.add("host", what, name, "there", f"no such {what}")
    for item in host_facts.directories(host["directories"]):
        found.add("host", "directory", item["path"], _folder(item["expected"]), _folder(item["found"]))
    for item in host_facts.files(host.get("files", [])):
        found.add("host", "file", item["path"], f"as planned, mode {item['mode']}", item["found"])
    found.parts["host"] = not found.differences
    return found


def _folder(entry: Mapping[str, str] | None) -> str:
    return "no such folder" if entry is None else ", ".join(f"{key} {value}" for key, value in entry.items())


# --- environments ----------------------------------------------------------------------------------------------------


def _environments(plan: Entry, deep: bool) -> Found:
    found = Found(parts={"tools": True, "environments": {}})
    tools = plan["host"].get("tools")
    if tools:
        found.parts["tools"] = _environment(found, "tools", tools, deep)
    for entry in plan["environments"]:
        found.parts["environments"][entry["path"]] = _environment(found, "environments", entry, deep)
    return found


def _environment(found: Found, part: str, wanted: Entry, deep: bool) -> bool:
    """Whether the role has nothing to do for an environment. What only hashing finds is none of its business."""
    path = wanted["path"]
    state = env.inspect(path)
    before = len(found.differences)
    digest = state.seal.get("digest", "")
    if state.state in ("absent", "unfinished"):
        found.add(part, "environment", path, f"sealed, digest {wanted['digest']}", state.state)
        return False
    if digest != wanted["digest"]:
        found.add(part, "environment", path, f"digest {wanted['digest']}", f"digest {digest or 'unknown'}")
    for drift in state.drift:
        found.add(part, f"package {drift.name}", path, drift.expected, drift.found)
    request = env.Request(path, wanted["digest"], "", assertions=assertions.parse(wanted.get("assertions", [])))
    if env.owes_assertions(request, state.seal):
        asked, known = len(request.assertions), len(state.seal.get("assertions", []))
        found.add(part, "assertions", path, f"{asked} asked before it was sealed", f"{known}, not all of these")
    as_planned = len(found.differences) == before
    if deep:
        _name_files(found, part, "file", changed_files(path))
    return as_planned


def _name_files(found: Found, part: str, what: str, files: Sequence[tuple[str, str, str]]) -> None:
    for path, expected, seen in files[:MOST_NAMED]:
        found.add(part, what, path, expected, seen)
        found.damaged.append(found.differences[-1])
    if len(files) > MOST_NAMED:
        found.add(part, what, f"{len(files) - MOST_NAMED} more", "as recorded", "changed or missing")


def changed_files(path: str) -> list[tuple[str, str, str]]:
    """The files of an environment that are not as a RECORD says: path, expected, found. Every file is hashed.

    What no RECORD gives a sum of (RECORD itself) is not looked at, nor are compiled Python files: they are made here,
    also where a distribution brings its own, and Python compares them with their source. Where several distributions
    bring the same file, it is as it should be if it is as one of them says.
    """
    folder = env.site_packages(path)
    wanted: dict[str, set[str]] = {}
    for name in sorted(env.records(path)):
        try:
            with open(os.path.join(folder, name, "RECORD"), encoding="utf-8", newline="") as stream:
                rows = [row for row in csv.reader(stream) if len(row) >= 2]
        except FileNotFoundError:
            continue
        for row in rows:
            kind, _equals, digest = row[1].partition("=")
            if kind == "sha256" and not row[0].endswith(".pyc"):
                wanted.setdefault(os.path.normpath(os.path.join(folder, row[0])), set()).add(_hexadecimal(digest))
    sums = _sums(wanted)
    return [
        (file, f"sha256 {' or '.join(sorted(digests))}", sums[file])
        for file, digests in sorted(wanted.items())
        if sums[file].removeprefix("sha256 ") not in digests
    ]


def _hexadecimal(digest: str) -> str:
    try:
        return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    except ValueError:
        return digest


def _sums(paths: Iterable[str]) -> dict[str, str]:
    """``sha256 <64 hex>`` by path, or why there is none. Several at a time."""

    def one(path: str) -> str:
        try:
            return f"sha256 {sha256_file(path)}"
        except OSError as error:
            return error.strerror or str(error)

    names = list(paths)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(one, names)))


# --- weights ---------------------------------------------------------------------------------------------------------


def _weights(wanted: Entry, deep: bool) -> Found:
    found = Found(parts={"weights": {}})
    for model in weights.parse_models(wanted["models"]):
        before = len(found.differences)
        if deep:
            for item in weights.examine(wanted["cache"], model, deep=True, remember=False):
                if item.state != "whole":
                    _name_weights(found, wanted["cache"], model, item.file, item.said())
        else:
            for file, seen in _quick(wanted["cache"], model):
                _name_weights(found, wanted["cache"], model, file, seen)
        found.parts["weights"][f"{model.repo}@{model.revision}"] = len(found.differences) == before
    return found


def _name_weights(found: Found, cache: str, model: weights.Model, file: weights.File, seen: str) -> None:
    path = os.path.join(weights.snapshot_path(cache, model), file.path)
    found.add("weights", f"file of {model}", path, f"{file.size} bytes, sha256 {file.sha256}", seen)


def _quick(cache: str, model: weights.Model) -> list[tuple[weights.File, str]]:
    """The files of a model that are not what was verified, with what they are. Large ones are not hashed."""
    known = (read_json(weights.state_path(cache, model)) or {}).get("files", {})
    snapshot = weights.snapshot_path(cache, model)
    result = []
    for file in model.files:
        path = os.path.join(snapshot, file.path)
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            result.append((file, "no such file"))
            continue
        identity = [status.st_size, file.sha256, status.st_mtime_ns, status.st_ino]
        entry = known.get(file.path, {})
        if status.st_size != file.size:
            result.append((file, f"{status.st_size} bytes"))
        elif identity != [entry.get(key) for key in ("bytes", "sha256", "mtime_ns", "inode")]:
            if file.size > SMALL_BYTES:
                result.append((file, "not verified: changed since it was hashed" if entry else "not verified"))
                continue
            digest = sha256_file(path)
            if digest != file.sha256:
                result.append((file, f"{status.st_size} bytes, sha256 {digest}"))
    return result


# --- releases and what runs ------------------------------------------------------------------------------------------


class _Remembering(Systemd):
    """Asks as the other does, and keeps what was said."""

    def __init__(self, other: Systemd) -> None:
        self.other = other
        self.shown: dict[str, dict[str, str]] = {}

    def show_all(self, units: Iterable[str]) -> dict[str, dict[str, str]]:
        found = self.other.show_all(units)
        self.shown.update(found)
        return found


def _servers(plan: Entry, deep: bool, layout: Layout, systemd: Systemd) -> Found:
    found = Found(parts={"releases": {}, "reports": {}})
    asked = _Remembering(systemd)
    states = releases.look_all([releases.parse(entry, layout) for entry in plan["releases"]], asked)
    for state in states:
        release = state.release
        server = plan["servers"][release.slug]
        for item in state.differences():
            part = "activation" if item["what"] == "activation" else "releases"
            found.add(part, item["what"], item["path"], item["expected"], item["found"])
        if state.failed is not None and not state.sealed:
            record = str(layout.failed(release.slug, release.digest))
            reason = str(state.failed.get("reason") or state.failed.get("what") or "it failed")
            found.add("releases", "failed release", record, "none: it is not tried again unless told to", reason)
        found.parts["releases"][release.slug] = not state.differences()
        if server["api_key_file"]:
            # What runs has its key already; the next start would not get one.
            try:
                api_key.check_key_file(server["api_key_file"])
            except Failure as failure:
                found.add("host", "API key", server["api_key_file"], failure.expected, failure.found)
        shown = asked.shown.get(release.unit, {})
        found.servers[release.slug] = {
            "recipe": release.recipe,
            "unit": release.unit,
            "release": release.name,
            "current": layout.linked(release.slug, "current"),
            "previous": layout.linked(release.slug, "previous"),
            "standby": release.standby,
            "active": shown.get("ActiveState", "unknown"),
            "enabled": shown.get("UnitFileState", ""),
            "since": shown.get("ActiveEnterTimestamp", "") if state.active else "",
            "restarts": shown.get("NRestarts", ""),
            "dropins": list(state.other_dropins),
            "url": server["url"],
            **_report(found, release.slug, server, shown),
        }
        if deep:
            _deep_release(found, layout, release)
    _unwanted(found, plan, layout)
    return found


def _report(found: Found, slug: str, server: Entry, shown: Mapping[str, str]) -> dict[str, Any]:
    """Whether the stored report speaks for what runs now; a standby server, which does not run, needs none."""
    stored, why = reports.read_report(server["report"])
    if stored is not None:
        restarts = shown.get("NRestarts", "")
        unit = reports.Unit(
            server["unit"],
            shown.get("InvocationID", ""),
            shown.get("ActiveState", "unknown"),
            int(restarts) if restarts.isdigit() else 0,
        )
        keys = ("url", "model", "recipe", "release")
        subject = reports.Subject(
            **{key: server[key] for key in keys}, engine=dict(server["engine"]), checks=list(server["checks"])
        )
        why = reports.why_not(stored, subject, unit)
    if server["standby"]:
        why = ""
    holds = not why
    found.parts["reports"][slug] = holds
    if not holds:
        found.add("reports", "report", server["report"], "all checks passed, in this run of the unit", why)
    ended = stored.get("ended", "") if stored is not None else ""
    checks = stored.get("checks", []) if stored is not None else []
    return {
        "verified_at": ended,
        "checks": reports.tally(checks),
        "report": stored if holds else None,
    }


def _deep_release(found: Found, layout: Layout, wanted: releases.Release) -> None:
    """Every file of the releases beside the wanted one, which was read already, against their manifests."""
    for link in ("current", "previous"):
        name = layout.linked(wanted.slug, link)
        if not name or name == wanted.name:
            continue
        try:
            releases.load(layout, wanted.slug, name)
        except Failure as failure:
            found.add("releases", f"file of the {link} release", failure.where, failure.expected, failure.found)
            found.damaged.append(found.differences[-1])


def _unwanted(found: Found, plan: Entry, layout: Layout) -> None:
    """Recipes that are served and no longer named. Whatever release is activated next takes them out of service."""
    unwanted = releases.unwanted(layout, plan["wanted"])
    for slug in unwanted:
        path = str(layout.units / releases.unit_of(slug))
        found.add("releases", "recipe", path, "not served: enplace_recipes does not name it", "installed")
    if unwanted and plan["releases"]:
        running = [entry["slug"] for entry in plan["releases"] if not plan["servers"][entry["slug"]]["standby"]]
        found.parts["releases"][(running or plan["wanted"])[0]] = False
