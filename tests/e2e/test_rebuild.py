# SPDX-License-Identifier: Apache-2.0
"""The same host again: destroyed and made anew, it is what it was, byte for byte. Runs after the main path."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.scene import ON_HOST, differences
from tests.sim.lab import Lab

from .plays import Play

pytestmark = pytest.mark.e2e

# All that may differ: when a file of the weights was written, and under which number this disk keeps it. Records of the
# weights have both, so that a converged run need not hash; nothing else on a host names a time or a boot.
OF_TIME_AND_BOOT = {"mtime_ns", "inode"}


def manifests(lab: Lab, host: str) -> dict[str, Any]:
    """Every manifest on a host as text, those of the weights as data without what may differ."""
    done = lab.exec(host, ["python3", "-", "manifest", *sorted(OF_TIME_AND_BOOT)], stdin=ON_HOST.read_text("utf-8"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_host_that_is_made_anew_is_what_it_was(lab: Lab, demo: str, run: Callable[..., Play]) -> None:
    before = manifests(lab, demo)
    for kind in ("recipes", "units", "states", "environments", "tools", "weights"):
        assert before[kind], f"{kind}: nothing was found, so nothing could be compared"
    lab.down(demo)
    lab.up(demo)
    result = run("-l", demo)
    assert result.rc == 0, result.text
    # What served before the last release, or does not serve any more, is the history of a host, and no part of it.
    for found in (before, after := manifests(lab, demo)):
        for recipe in found["recipes"].values():
            recipe.pop("previous", None)
            recipe.pop("failed", None)
        found["recipes"] = {slug: recipe for slug, recipe in found["recipes"].items() if recipe}
    assert before["recipes"]
    assert differences(before, after) == []
