# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Reports for tests of what is made of reports: real ones of the simulated server, and figures that nobody measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import files
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports

from tests.sim.liar import ANSWERS, Simulated

UNIT = reports.Unit("enplace-smoke-cpu.service", "0123456789abcdef0123456789abcdef", "active", 0)
METHOD = "MADE UP FOR A TEST, measured by nobody"
CHECKS: list[dict[str, Any]] = [
    {"check": "identity", "version": "0.28.0", "model": "enplace/smoke", "context": 4096},
    {"check": "known_answers", "prompts": [{"ask": ask, "expect": [answer]} for ask, answer in ANSWERS.items()]},
    {"check": "logprobs", "ask": "Where are the boats?", "top": 20},
    {"check": "usage", "ask": "Where are the boats?"},
    {"check": "tool_call", "calls": 3},
    {"check": "healthy"},
]


def made(lie: str = "", **changes: Any) -> dict[str, Any]:
    """A report of the simulated server, honest or with a lie, as it is read from a file."""
    with Simulated(lie) as server:
        subject = reports.Subject(
            server.url,
            "enplace/smoke",
            "enplace/smoke:cpu",
            "a" * 64,
            {"name": "vllm", "version": "0.28.0"},
            CHECKS,
        )
        report = reports.run(subject, {"inventory_name": "demo1", "arch": "x86_64"}, UNIT, lambda: UNIT)
    loaded: dict[str, Any] = json.loads(files.json_text({**report, **changes}))
    return loaded


def figure(name: str, unit: str, value: float, **more: Any) -> dict[str, Any]:
    """One figure, made up."""
    values = [round(value * factor, 3) for factor in (0.98, 1, 1.01)]
    known = {"name": name, "unit": unit, "streams": 1, "value": value, "values": values, "method": METHOD, "alarms": []}
    return {**known, **more}


def figures() -> list[dict[str, Any]]:
    """Enough of them for every chart, made up."""
    by_length = {512: (60.0, 200), 2048: (55.5, 400), 8192: (44.0, 1500), 32768: (30.0, 7000)}
    found = [figure("decode", "tokens/s", decode, prompt_tokens=length) for length, (decode, _) in by_length.items()]
    found += [figure("decode", "tokens/s", 20.0, prompt_tokens=length, streams=8) for length in (512, 2048, 8192)]
    found += [figure("ttft", "ms", ttft, prompt_tokens=length) for length, (_, ttft) in by_length.items()]
    found += [figure("acceptance", "ratio", value, position=place) for place, value in enumerate((0.7, 0.5, 0.3))]
    found.append(figure("throughput", "tokens/s", 160.0, streams=8))
    found[0] |= {"recipe": {"value": 61.0, "tolerance": {"percent": 5}, "source": METHOD}, "within": True}
    found[1] |= {"recipe": {"value": 75.0, "tolerance": {"percent": 5}, "source": METHOD}, "within": False}
    found[2] |= {"alarms": ["noise: the passes differ by more than the tolerance"]}
    return found


def put(folder: Path, report: dict[str, Any], host: str = "demo1", name: str = "enplace-smoke-cpu") -> Path:
    """Keep a report as a run keeps it on the controller; its file."""
    path = folder / host / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(str(path), report)
    return path
