# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a host as people read it. Pure, controller side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def text(host: str, state: Mapping[str, Any]) -> str:
    """One block about one host: every recipe with its release, since when it runs, its last report; what differs.

    state: as the module state gives it.
    """
    return "\n".join(_lines(host, state))


def _lines(host: str, state: Mapping[str, Any]) -> Iterator[str]:
    count = len(state["differences"])
    depth = "every file hashed" if state["deep"] else "enplace_deep=true hashes every file"
    verdict = "as planned" if not count else f"{count} {'difference' if count == 1 else 'differences'}"
    yield f"{host}: {verdict} ({depth}; {state['seconds']:.1f} s)"
    for server in state["servers"].values():
        yield f"  {server['recipe']}{' (standby)' if server['standby'] else ''}"
        since = f" since {server['since']}" if server["since"] else ""
        yield f"    unit      {server['unit']}, {server['active']}{since}, {server['enabled'] or 'not installed'}"
        current = server["current"] or "none"
        wanted = "" if current == server["release"] else f", wanted {server['release']}"
        previous = f", previous {server['previous']}" if server["previous"] else ""
        yield f"    release   {current}{wanted}{previous}"
        yield f"    address   {server['url']}"
        told = f"{server['verified_at']}, {server['checks']}" if server["verified_at"] else "none"
        yield f"    report    {told}{'' if server['report'] or server['standby'] else ', of another run or release'}"
        for path in server["dropins"]:
            yield f"    drop-in   {path}, the owner's own"
    if state["journal"]:
        journal = state["journal"]
        yield f"  an activation of {journal.get('slug')} is open, in phase {journal.get('phase')}"
    for item in state["differences"]:
        yield f"  {item['part']}: {item['what']} {item['path']}"
        yield f"    expected  {item['expected']}"
        yield f"    found     {item['found']}"
