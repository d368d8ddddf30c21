# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Ask once whether a server's engine is alive: one token within a deadline, for /health says 200 of a dead one, too.

An engine is dead when twice in a row it neither answered nor did anything else meanwhile, by its own counters. Runs
every minute from the release folder, beside ready.py, without privileges, as a condition of the command that restarts
the unit: exit status 0 means DEAD, RESTART IT; 1 means leave it alone. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import sys
import threading
import time
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

try:
    from ansible_collections.enplace.inference.plugins.module_utils import ready
except ImportError:
    import ready  # type: ignore[import-not-found, no-redef]

SYSTEMD = "/run/systemd"
#: What moves while the engine works: tokens generated, prompts read whole, and the cache that one long prompt fills
#: step by step while nothing else is counted.
COUNTERS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc")
METRICS_S = 10.0
#: An error may come at once; then the counters get this long to show that others are being served.
SETTLE_S = 10.0
STRIKES = 2
RESTART, LEAVE = 0, 1
ERROR, WARNING, INFO = 3, 4, 6


@dataclass(frozen=True)
class Verdict:
    """What one question showed. `warning` is for a server that is alive and still not right."""

    alive: bool
    why: str
    warning: bool = False


def work_done(url: str, key: str = "") -> dict[str, float] | None:
    """The engine's counters of work, summed over their labels; None where /metrics does not answer with any."""
    try:
        text = ready.fetch(f"{url}/metrics", None, METRICS_S, key).decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError):
        return None
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in COUNTERS:
            with contextlib.suppress(ValueError):
                sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
    return sums or None


def ask(url: str, model: str, deadline_s: float, key: str = "") -> Verdict:
    """Whether one token comes within the deadline, whatever else the server does.

    A refusal is an answer: a wrong key, a wrong name or too many requests are no reason to restart a server.
    """
    found: list[Verdict] = []

    def question() -> None:
        try:
            # Its own time-out is for each part of a reply; the deadline below is for all of it.
            tokens = ready.complete(url, model, deadline_s + 5, key)
            found.append(Verdict(tokens > 0, f"{tokens} token generated" if tokens else "a completion without a token"))
        except urllib.error.HTTPError as error:
            refused = 400 <= error.code < 500
            found.append(Verdict(refused, ready.reason_of(error, key), warning=refused))
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            found.append(Verdict(False, ready.reason_of(error, key)))

    # Left behind at the deadline: a reply that trickles in has no time-out of its own.
    thread = threading.Thread(target=question, daemon=True)
    thread.start()
    thread.join(deadline_s)
    return found[0] if found else Verdict(False, f"no answer within {deadline_s:g} s")


def judge(url: str, model: str, deadline_s: float, key: str = "", settle_s: float = SETTLE_S) -> Verdict:
    """Ask, and look whether the engine did anything else meanwhile."""
    before, start = work_done(url, key), time.monotonic()
    verdict = ask(url, model, deadline_s, key)
    if verdict.alive:
        return verdict
    time.sleep(max(0.0, settle_s - (time.monotonic() - start)))
    after = work_done(url, key)
    if before is None or after is None:
        return Verdict(False, f"{verdict.why}; /metrics tells of no work either")
    moved = [name for name in COUNTERS if after.get(name, 0.0) != before.get(name, 0.0)]
    if moved:
        return Verdict(True, f"{verdict.why}; busy: {moved[0]} moved meanwhile")
    return Verdict(False, f"{verdict.why}; its counters stood still: {_told(after)}")


def _told(counters: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in sorted(counters.items()))


def present_run(unit: str) -> str:
    """systemd's identity of the unit's present run, which it lets everybody read; empty where there is none."""
    try:
        return os.readlink(f"{SYSTEMD}/units/invocation:{unit}")
    except OSError:
        return ""


def activating(unit: str) -> bool:
    """Whether a release of this unit is being activated: then the activation alone judges."""
    return os.path.lexists(f"{SYSTEMD}/system/{unit}")


def read_state(path: str) -> dict[str, Any]:
    """What the last question left: `run`, `strikes` and `said`; empty where that is not known."""
    try:
        with open(path, encoding="utf-8") as stream:
            state = json.load(stream)
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(path: str, run: str, strikes: int, said: str) -> None:
    """Leave it for the next question. Raises OSError."""
    aside = f"{path}.new"
    with open(aside, "w", encoding="utf-8") as stream:
        json.dump({"run": run, "strikes": strikes, "said": said}, stream)
    os.replace(aside, path)


def decide(unit: str, run: str, verdict: Verdict, state_path: str) -> tuple[int, int, str]:
    """From a verdict and the one before it: exit status, level of the journal, and the line for it."""
    state = read_state(state_path)
    last = state if state.get("run") == run else {}
    if activating(unit) or present_run(unit) != run:
        write_state(state_path, "", 0, "")
        return LEAVE, INFO, f"{unit} was stopped, started or activated meanwhile: nothing is concluded"
    if verdict.alive:
        write_state(state_path, run, 0, verdict.why if verdict.warning else "")
        level = WARNING if verdict.warning and last.get("said") != verdict.why else INFO
        return LEAVE, level, f"{unit} is alive: {verdict.why}"
    strikes = int(last.get("strikes", 0)) + 1
    if strikes < STRIKES:
        write_state(state_path, run, strikes, "")
        return LEAVE, WARNING, f"{unit} may be dead ({strikes} of {STRIKES}): {verdict.why}"
    write_state(state_path, "", 0, "")
    return RESTART, ERROR, f"{unit} is dead, asked {strikes} times in a row, and is restarted: {verdict.why}"


def main() -> int:
    parser = argparse.ArgumentParser(description="exit status 0: the engine is dead, restart it; 1: leave it alone")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--unit", required=True)
    parser.add_argument("--deadline", type=float, required=True, help="seconds")
    parser.add_argument("--key-file", default="", help="holds the server's key; default: it has none")
    parser.add_argument("--state", default=os.path.join(os.environ.get("RUNTIME_DIRECTORY", "."), "state.json"))
    options = parser.parse_args()
    run = present_run(options.unit)
    if not run or activating(options.unit):
        return LEAVE
    try:
        key = ready.read_key(options.key_file) if options.key_file else ""
        verdict = judge(options.url, options.model, options.deadline, key)
        status, level, line = decide(options.unit, run, verdict, options.state)
    except (OSError, ValueError) as error:
        status, level, line = LEAVE, ERROR, f"whether {options.unit} is alive cannot be asked: {error}"
    # systemd reads the level from the start of the line.
    sys.stdout.write(f"<{level}>enplace: {line}\n")
    sys.stdout.flush()
    # Not by returning: a question that was left behind must not hold the answer up.
    os._exit(status)


if __name__ == "__main__":
    raise SystemExit(main())
