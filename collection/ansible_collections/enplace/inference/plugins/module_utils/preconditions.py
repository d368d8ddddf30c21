# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What must hold before anything is stopped for a release. Changes nothing.

Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import environment as environments
from ansible_collections.enplace.inference.plugins.module_utils import files, weights
from ansible_collections.enplace.inference.plugins.module_utils import release as releases
from ansible_collections.enplace.inference.plugins.module_utils.api_key import check_key_file
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.machine import Machine, Process
from ansible_collections.enplace.inference.plugins.module_utils.release import Layout, Release


def demand(
    release: Release, machine: Machine, inspect: Callable[[str], environments.State], stopped: Collection[str]
) -> None:
    """Raise Failure for the first thing that speaks against starting a release. `stopped`: units that will be."""
    manifest = release.manifest
    _demand_environment(manifest["environment"], inspect)
    for part in ("weights", "draft"):
        if manifest.get(part):
            _demand_weights(manifest[part])
    if manifest.get("api_key_file"):
        check_key_file(manifest["api_key_file"])
    _demand_own_unit(release)
    listen, port = str(manifest.get("listen", "127.0.0.1")), manifest.get("port")
    if port:
        addresses = ["127.0.0.1", "::1"] if listen == "localhost" else [listen]
        _demand_nobody(
            [process for process in machine.listeners(port, addresses) if process.unit not in stopped],
            f"the port {port} of {listen} is taken",
            "stop it, or give the recipe another port (enplace_recipes, port)",
        )
    if manifest.get("accelerator") == "gaudi2":
        cards = manifest.get("cards", [])
        _demand_nobody(
            [process for process in machine.accelerator_holders(cards) if process.unit not in stopped],
            f"somebody else holds the cards {', '.join(map(str, cards)) or 'of this host'}",
            "stop it, or give the recipe other cards (enplace_recipes, cards)",
        )
    needed, total = start_bytes(manifest), machine.memory("MemTotal")
    if needed > total > 0:
        raise Failure(
            "the host has not the memory that this release needs to start",
            where="/proc/meminfo MemTotal",
            expected=f"{files.sized(needed)} at least",
            found=files.sized(total),
            todo="serve it on a larger host, or change what the recipe says of memory",
        )


def start_bytes(manifest: Mapping[str, Any]) -> int:
    """The memory that must be free before a start, in bytes; 0 where it is not known."""
    return int((manifest.get("memory") or {}).get("start_bytes") or 0)


def ours(layout: Layout, slug: str) -> bool:
    """Whether a recipe's unit file in /etc is one that enplace put there, as it did when it had no place of its own."""
    shadow = layout.owners / releases.unit_of(slug)
    if shadow.is_symlink() or not shadow.is_file():
        return False
    text = releases.read_text(shadow)
    verified = releases.read_text(layout.folder(slug) / "current" / releases.UNIT)
    return text.startswith(releases.OURS) or (bool(text) and text == verified)


def _demand_nobody(processes: Sequence[Process], what: str, todo: str) -> None:
    if processes:
        expected = "nobody, or a unit that this activation stops"
        raise Failure(what, expected=expected, found="; ".join(map(str, processes)), todo=todo)


def _demand_environment(wanted: Mapping[str, str], inspect: Callable[[str], environments.State]) -> None:
    state = inspect(wanted["path"])
    digest = state.seal.get("digest", "")
    if state.state != "sealed" or digest != wanted["digest"]:
        raise Failure(
            "the environment of this release is not whole",
            where=wanted["path"],
            expected=f"sealed, digest {wanted['digest']}",
            found="; ".join(map(str, state.drift)) or f"{state.state}, digest {digest or 'unknown'}",
            todo="run site.yml, which builds it anew",
        )


def _demand_weights(wanted: Mapping[str, str]) -> None:
    snapshot = Path(wanted["path"])
    model = weights.Model(wanted["repository"], wanted["revision"], ())
    record_path = weights.state_path(str(snapshot.parents[2]), model)
    known = (files.read_json(record_path) or {}).get("files", {})
    wrong = [] if known else [f"no record in {record_path}"]
    for name, entry in sorted(known.items()):
        try:
            status = os.stat(snapshot / name)
        except OSError as error:
            wrong.append(f"{name}: {error.strerror}")
            continue
        seen = [status.st_size, status.st_mtime_ns, status.st_ino]
        if seen != [entry.get("bytes"), entry.get("mtime_ns"), entry.get("inode")]:
            wrong.append(f"{name}: changed since it was verified")
    if wrong:
        raise Failure(
            "the weights of this release are not whole",
            where=str(snapshot),
            expected=f"{model} as it was verified",
            found="; ".join(wrong[:5]),
            todo="run site.yml, which fetches and verifies them",
        )


def _demand_own_unit(release: Release) -> None:
    shadow = release.layout.owners / release.unit
    if os.path.lexists(shadow) and not ours(release.layout, release.slug):
        raise Failure(
            "a unit file of the host's owner hides the one of this release",
            where=str(shadow),
            expected=f"no file, for the unit is {release.layout.units / release.unit}",
            found="a link (masked?)" if shadow.is_symlink() else "a file that enplace did not write",
            todo=f"remove it (systemctl unmask), and put settings of your own into {shadow}.d/",
        )
