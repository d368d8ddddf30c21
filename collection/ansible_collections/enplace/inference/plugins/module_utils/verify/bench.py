# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of a running server, measured through `vllm bench serve` of the engine's own environment.

The tool sends the requests and takes the times. This file starts it, holds its counts against the engine's own, and
says what speaks against a figure. A figure that was not measured is absent.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import command
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.verify.base import probes, salt
from ansible_collections.enplace.inference.plugins.module_utils.verify.engine import ACCEPTED_AT, DRAFT_COUNTERS
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import (
    TOKENS,
    CheckFailed,
    Deadline,
    Metrics,
    Server,
    at,
    masked,
)

# Where a workload of a recipe is silent. Requests: so many for each stream.
DEFAULTS = {"streams": 1, "output_tokens": 128, "passes": 3, "deadline_s": 1800}
REQUESTS_OF_STREAM = 4

# Share by which passes may differ, and by which the first may be slower than the last.
LIMIT = 0.10
# Each of so many passes faster than the one before is no chance.
TREND_PASSES = 4
# Share by which prompts may be longer or shorter than asked: a random text is not always read as the tokens it was
# made of.
PROMPT_LIMIT = 0.02
# Share of prompt tokens that may come from the prefix cache: in a small vocabulary two random prompts can begin alike.
CACHED_LIMIT = 0.01

MAX_RESULT_BYTES = 1024 * 1024
ALIVE = ", and the unit's timer asks for one token a minute"
RUNNING = "vllm:num_requests_running"
CACHE_HITS = "vllm:prefix_cache_hits_total"

# Metrics of a recipe's figures by the names of ours, and what makes each of their units ours.
METRICS = {
    "decode": ("decode_rate", {"tok/s": 1.0}),
    "prefill": ("prefill_rate", {"tok/s": 1.0}),
    "throughput": ("aggregate_rate", {"tok/s": 1.0}),
    "ttft": ("ttft", {"ms": 1.0, "s": 1000.0}),
    "acceptance": ("acceptance", {"ratio": 1.0, "percent": 0.01}),
    "tokens_per_step": ("tokens_per_step", {"ratio": 1.0, "tokens": 1.0}),
}
UNITS = {"decode": "tokens/s", "prefill": "tokens/s", "throughput": "tokens/s", "ttft": "ms"}
# Conditions of a recipe's figure that a workload has as well. One with any other is of something else.
CONDITIONS = ("prompt_tokens", "output_tokens", "streams", "draft_tokens", "position")


@dataclass(frozen=True)
class Target:
    """What is measured.

    api_key: empty for a server without one.
    tokenizer: folder with the model's tokenizer; None: the folder that the server says it serves from.
    folder: where a folder for results is made and removed again; it must be there.
    probed: whether the timer of the server's unit asks for one token a minute, to see whether it is alive.
    """

    url: str
    model: str
    api_key: str = field(default="", repr=False)
    tokenizer: str | None = None
    folder: str = "/tmp"
    probed: bool = False


@dataclass(frozen=True)
class Workload:
    """One load: so many requests in flight, each with a prompt and a reply of fixed length, several passes of it."""

    streams: int
    prompt_tokens: int
    output_tokens: int
    requests: int
    passes: int
    deadline_s: int

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Workload:
        """A workload of a recipe with its defaults."""
        filled = {**DEFAULTS, **given}
        return cls(**{"requests": REQUESTS_OF_STREAM * filled["streams"], **filled})

    def as_text(self) -> str:
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        return f"{streams}, prompts of {self.prompt_tokens} tokens"


@dataclass
class Pass:
    """What one pass gave: values by the name of the figure, of acceptance by (name, position) as well."""

    values: dict[tuple[str, int | None], float]
    draft_tokens: int
    alarms: list[str]


def measure(
    target: Target,
    workloads: Sequence[Mapping[str, Any]],
    recipe_figures: Sequence[Mapping[str, Any]],
    tell: Callable[[list[dict[str, Any]]], None],
    limit: float = LIMIT,
) -> list[dict[str, Any]]:
    """Measure each workload, and return the figures as a report has them, beside the recipe's.

    `tell` gets all figures so far after each workload: they outlive an interruption. A workload that failed gives no
    figure, and at the end a Failure that names each; the figures of the others have been told then. Runs with the
    interpreter of the engine's environment, beside which the tool lies.
    """
    figures: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, given in enumerate(workloads):
        workload = Workload.of(given)
        try:
            with tempfile.TemporaryDirectory(prefix="bench-", dir=target.folder) as folder:
                figures += _measured(target, workload, number, folder, recipe_figures, limit)
        except (Failure, OSError) as error:
            problems.append(str(masked(f"figures of {workload.as_text()}: {error}")))
        tell(list(figures))
    if problems:
        raise Failure("\n".join(problems))
    return figures


# One workload --------------------------------------------------------------------------------------------------------


def _measured(
    target: Target,
    workload: Workload,
    number: int,
    folder: str,
    recipe_figures: Sequence[Mapping[str, Any]],
    limit: float,
) -> list[dict[str, Any]]:
    """The figures of one workload. Raises Failure or OSError where any of its runs did not do what was asked."""
    program = os.path.join(os.path.dirname(sys.executable), "vllm")
    if not os.access(program, os.X_OK):
        todo = (
            "run the checks with the interpreter of the engine's environment; enplace_deep=true names what is missing"
        )
        raise Failure("the tool that measures is missing", where=program, expected="a program vllm", todo=todo)
    server = Server(target.url, target.model, Deadline(workload.deadline_s), target.api_key)
    argv = [program, *_arguments(workload, server, target.tokenizer or _tokenizer(server))]
    # The tool's own warm-up would send the prompt of its first request, and leave it in the prefix cache.
    _run(argv, target, workload.streams, number * 1000, folder, server.deadline)
    passes = [
        _one_pass(argv, target, workload, number * 1000 + index, folder, server)
        for index in range(1, workload.passes + 1)
    ]
    # As anybody may type it: no name that is made up anew each time.
    first = _of_pass(argv, workload.requests, number * 1000 + 1, "<folder>", "<random>")
    method = (
        f"by vllm bench serve: a warm-up, then {_counted(workload.passes, 'pass', 'passes')} of "
        f"{_counted(workload.requests, 'request', 'requests')} with {workload.output_tokens} tokens each; "
        f"seed and cache_salt differ in each pass{ALIVE if target.probed else ''}: {shlex.join(first)}"
    )
    return [compared(figure, workload, recipe_figures) for figure in _figures(workload, passes, method, limit)]


def _arguments(workload: Workload, server: Server, tokenizer: str) -> list[str]:
    """The arguments of every run. The key is not among them: the tool reads OPENAI_API_KEY."""
    return [
        *("bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions"),
        *("--base-url", server.url, "--model", server.model, "--tokenizer", tokenizer),
        *("--dataset-name", "random", "--random-input-len", str(workload.prompt_tokens)),
        *("--random-output-len", str(workload.output_tokens), "--ignore-eos", "--temperature", "0"),
        *("--max-concurrency", str(workload.streams), "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--disable-tqdm", "--save-result"),
    ]


def _of_pass(argv: Sequence[str], requests: int, seed: int, folder: str, salted: str) -> list[str]:
    return [
        *argv,
        *("--num-prompts", str(requests), "--seed", str(seed), "--extra-body", json.dumps({"cache_salt": salted})),
        *("--result-dir", folder, "--result-filename", f"{seed}.json"),
    ]


def _tokenizer(server: Server) -> str:
    for entry in at(server.get_json("/v1/models"), "data"):
        if at(entry, "id") == server.model and os.path.isdir(str(at(entry, "root"))):
            return str(entry["root"])
    todo = "name the folder of the model's tokenizer"
    raise CheckFailed("the prompts need the model's tokenizer", "a folder as root in /v1/models", "none", todo)


def _run(
    argv: Sequence[str], target: Target, requests: int, seed: int, folder: str, deadline: Deadline
) -> dict[str, Any]:
    """One run of the tool: its result."""
    home = os.path.join(folder, "home")
    environment = {
        # No proxy, and the tool would use one that the environment names.
        **{
            name: value
            for name, value in command.base_environment(home).items()
            if name.lower() not in command.PROXY_VARIABLES
        },
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **({"OPENAI_API_KEY": target.api_key} if target.api_key else {}),
    }
    os.makedirs(home, mode=0o700, exist_ok=True)
    whole = _of_pass(argv, requests, seed, folder, salt())
    done = command.run(whole, env=environment, cwd=folder, timeout_s=deadline.left(), leash=True)
    if done.rc == command.TIMED_OUT:
        raise deadline.passed()
    if not done.ok:
        raise Failure(
            "the tool that measures failed",
            expected="exit status 0",
            found=f"exit status {done.rc}",
            todo="read the output below",
            detail=done.tail(),
        )
    result = _result(os.path.join(folder, f"{seed}.json"))
    completed, failed = _number(result, "completed"), _number(result, "failed")
    if completed != requests or failed:
        raise Failure(
            "not every request was answered",
            expected=f"{requests} completed",
            found=f"{completed:g} completed, {failed:g} failed",
            todo="the server's journal says why; a figure of the others would be of another load",
            # The tool prints why some of them failed, and a trace of its own behind each.
            detail="\n".join(re.findall(r"^(?:Error \d+: |\S*Error: ).*", done.stdout, re.MULTILINE)[:6]),
        )
    return result


def _result(path: str) -> dict[str, Any]:
    """The result in a file."""
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_RESULT_BYTES + 1)
    except FileNotFoundError:
        raise Failure("the tool that measures left no result", where=path, expected="a file", found="none") from None
    try:
        if len(content) > MAX_RESULT_BYTES:
            raise ValueError(f"more than {MAX_RESULT_BYTES} bytes")
        result = json.loads(content, parse_constant=_no_number)
        if not isinstance(result, dict):
            raise ValueError(f"a {type(result).__name__}")
    except ValueError as error:
        raise CheckFailed("the tool's result is not whole", "one JSON object", str(error)) from None
    return result


def _no_number(text: str) -> Any:
    raise ValueError(f"{text}, which is no number")


def _number(result: Mapping[str, Any], key: str) -> float:
    value = result.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise CheckFailed("the tool's result lacks a part", f"{key}: a number from 0", value)
    return float(value)


def _positive(result: Mapping[str, Any], key: str) -> float:
    value = _number(result, key)
    if value == 0:
        raise CheckFailed("the tool measured nothing", f"{key} above 0", value)
    return value


# One pass ------------------------------------------------------------------------------------------------------------


def _one_pass(argv: Sequence[str], target: Target, workload: Workload, seed: int, folder: str, server: Server) -> Pass:
    before, begin = server.metrics(), time.monotonic()
    result = _run(argv, target, workload.requests, seed, folder, server.deadline)
    after = server.metrics_after(before, workload.requests)
    tokens, generated = _number(result, "total_output_tokens"), _grown(before, after, TOKENS)
    asked = workload.requests * workload.output_tokens
    # The tool takes usage as the server sends it, and counts a reply without usage by its own tokenizer.
    if tokens != asked or generated < asked:
        found = f"{tokens:g} by usage, {generated:g} by {TOKENS}"
        todo = "replies of another length are another load; is ignore_eos honoured?"
        raise CheckFailed("the replies have not the tokens asked for", f"{asked} tokens", found, todo)
    ttft = _positive(result, "median_ttft_ms")
    length = _positive(result, "total_input_tokens") / workload.requests
    values: dict[tuple[str, int | None], float] = {
        ("decode", None): 1000 / _positive(result, "median_tpot_ms"),
        ("ttft", None): ttft,
    }
    if workload.streams == 1:
        values["prefill", None] = length / ttft * 1000
    else:
        values["throughput", None] = _positive(result, "output_throughput")
    drafted = _drafted(before, after)
    values.update(drafted)
    positions = sum(position is not None for _name, position in drafted)
    expected = probes(time.monotonic() - begin) if target.probed else 0
    alarms = _pass_alarms(before, after, workload, length, generated, expected)
    if after.total(DRAFT_COUNTERS[0]) is not None and not drafted:
        alarms.append("the server has a draft, and nothing was drafted")
    return Pass(values, positions, alarms)


def _grown(before: Metrics, after: Metrics, name: str) -> float:
    return (after.total(name) or 0.0) - (before.total(name) or 0.0)


def _drafted(before: Metrics, after: Metrics) -> dict[tuple[str, int | None], float]:
    """What the draft was worth in a pass; nothing without a draft."""
    drafts, drafted, accepted = (_grown(before, after, name) for name in DRAFT_COUNTERS)
    if not drafts or not drafted:
        return {}
    then, now = (metrics.by_label(ACCEPTED_AT, "position") for metrics in (before, after))
    if accepted > drafted:
        todo = "measure with nothing but the engine behind this address"
        raise CheckFailed("the counters of the draft contradict each other", f"at most {drafted:g}", accepted, todo)
    return {
        ("acceptance", None): accepted / drafted,
        ("tokens_per_step", None): 1 + accepted / drafts,
        **{
            ("acceptance", place): (now[str(place)] - then.get(str(place), 0.0)) / drafts
            for place in sorted(int(name) for name in now if name.isdigit())
        },
    }


def _pass_alarms(
    before: Metrics, after: Metrics, workload: Workload, length: float, generated: float, expected: int
) -> list[str]:
    """What speaks against all values of a pass. So many `expected` requests of one token are no others who ask."""
    alarms = []
    others = (after.finished or 0) - (before.finished or 0) - workload.requests
    more = generated - workload.requests * workload.output_tokens
    running = before.total(RUNNING) or 0
    # A probe that was running before the pass has finished in it, and is among the others.
    if others > expected or not 0 <= more <= others or running > min(others, expected):
        alarms.append(
            f"busy: others asked the server meanwhile ({others:g} requests finished beside ours, {more:g} tokens "
            f"generated, {running:g} requests running before)"
        )
    if abs(length / workload.prompt_tokens - 1) > PROMPT_LIMIT:
        alarms.append(f"prompts: the server counts {length:.0f} tokens of each, asked were {workload.prompt_tokens}")
    cached = _grown(before, after, CACHE_HITS) / (length * workload.requests)
    if cached > CACHED_LIMIT:
        alarms.append(f"cached: {cached:.0%} of the prompts came from the prefix cache")
    return alarms


# Figures -------------------------------------------------------------------------------------------------------------

_HOW = {
    "decode": "1000 / median time for each token after the first, in ms",
    "ttft": "median time to the first token",
    "prefill": "tokens of a prompt by usage / median time to the first token",
    "throughput": "tokens of all replies by usage / time of the whole pass, prefill included",
    "acceptance": "accepted / drafted tokens by the engine's counters; the prompts are random tokens",
    "tokens_per_step": "1 + accepted tokens / drafts by the engine's counters; the prompts are random tokens",
}


def _figures(workload: Workload, passes: Sequence[Pass], method: str, limit: float) -> list[dict[str, Any]]:
    """The figures that every pass has a value of."""
    found = []
    for name, position in passes[0].values:
        if not all((name, position) in each.values for each in passes):
            continue
        values = [round(each.values[name, position], 4) for each in passes]
        found.append(
            {
                "name": name,
                "unit": UNITS.get(name, "ratio"),
                "streams": workload.streams,
                "prompt_tokens": workload.prompt_tokens,
                **({"draft_tokens": passes[0].draft_tokens} if passes[0].draft_tokens else {}),
                **({"position": position} if position is not None else {}),
                "value": round(statistics.median(values), 4),
                "values": values,
                "method": f"{_HOW[name]}; {method}",
                "alarms": [
                    *(f"pass {index}: {text}" for index, each in enumerate(passes, 1) for text in each.alarms),
                    *alarms(name, values, limit),
                ],
            }
        )
    return found


def alarms(name: str, values: Sequence[float], limit: float = LIMIT) -> list[str]:
    """What the passes of a figure say against it."""
    told = []
    median = statistics.median(values)
    spread = max(values) - min(values)
    if spread > limit * median:
        share = f"{spread / median:.0%}" if median else "more than all"
        told.append(f"noise: the passes differ by {share} of their median, more than {limit:.0%}")
    if name not in UNITS:
        return told
    # Of times the inverse: then more is faster for every figure.
    speeds = [1 / value for value in values] if name == "ttft" else list(values)
    if speeds[0] < (1 - limit) * speeds[-1]:
        told.append(f"still cold: the first pass was {1 - speeds[0] / speeds[-1]:.0%} slower than the last")
    elif len(speeds) >= TREND_PASSES and all(one < two for one, two in zip(speeds, speeds[1:])):
        told.append("still cold: each pass was faster than the one before")
    return told


# The recipe's figures ------------------------------------------------------------------------------------------------


def compared(figure: dict[str, Any], workload: Workload, recipe_figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A figure with the recipe's beside it, where the recipe has one under these conditions."""
    here = {
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "streams": workload.streams,
        "draft_tokens": figure.get("draft_tokens", 0),
        "position": figure.get("position"),
    }
    metric, factors = METRICS[figure["name"]]
    if "position" in figure:
        metric = "position_acceptance"
    fitting = [
        known
        for known in recipe_figures
        if known["metric"] == metric and known["unit"] in factors and "value" in known and _same(known, here)
    ]
    if not fitting:
        return figure
    # The one that says most of its conditions, and the first of several.
    known = max(fitting, key=lambda each: len(each.get("at", {})))
    factor = factors[known["unit"]]
    value = round(known["value"] * factor, 6)
    recipe = {"value": value, **({"source": known["source"]} if "source" in known else {})}
    if "tolerance" not in known:
        return {**figure, "recipe": recipe}
    tolerance = dict(known["tolerance"])
    if "absolute" in tolerance:
        tolerance["absolute"] = round(tolerance["absolute"] * factor, 6)
    apart = tolerance.get("absolute", abs(value) * tolerance.get("percent", 0) / 100)
    return {
        **figure,
        "recipe": {**recipe, "tolerance": tolerance},
        "within": abs(figure["value"] - value) <= apart + 1e-9,
    }


def _same(known: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether a figure of the recipe was measured under these conditions, as far as it says."""
    # Without a number of streams a recipe means one, and this server has worked before it is measured.
    stated = {"streams": 1, **known.get("at", {})}
    if stated.pop("state", "warm") != "warm":
        return False
    return all(key in CONDITIONS and value == here[key] for key, value in stated.items())


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
