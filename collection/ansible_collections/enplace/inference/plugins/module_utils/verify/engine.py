# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the engine itself: what it is, how it counts, what it has, what it logged, and that it stayed up."""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
import sysconfig
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.verify import journal, texts
from ansible_collections.enplace.inference.plugins.module_utils.verify.base import (
    CACHE_CONFIG,
    Check,
    ids_of,
    probes,
    salt,
    stream,
)
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import (
    STARTED,
    TOKENS,
    CheckFailed,
    Metrics,
    Server,
    at,
    whole,
)

NOT_SERVED = "enplace/not-served"

# How a line of an error begins, by vLLM, uvicorn and Python; and what is said when a process dies.
ERROR_LINE = re.compile(
    r"^(?:\([^)]*\) )*(?:(?:ERROR|CRITICAL|FATAL)\b|Traceback \(most recent call last\))"
    r"|Fatal Python error|Segmentation fault|terminate called after throwing"
)

DRAFT_COUNTERS = (
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
)
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
DRAFT_TOKENS = 128
# Below it a share says little.
LEAST_DRAFTS = 16

# What vLLM logs at the beginning and at the end of its start, in the same words from 0.24 to 0.32.
START_MARKS = ("non-default args", "Starting vLLM server on")


class Identity(Check):
    """The server is what the recipe says, and answers to no other name."""

    name = "identity"
    demanded = (
        "/health answers 200",
        "/version is the version of the engine (a local part such as +cpu may follow)",
        "/v1/models lists the model, with the context length if one is given",
        "a completion says that it comes from this model",
        "a completion by a name that is not served is refused",
    )

    def asked(self) -> str:
        return "GET /health, /version and /v1/models; one completion of one token; one by another model's name"

    def run(self, server: Server) -> dict[str, Any]:
        server.get("/health")
        want_version = self.parameters["version"] or self.context.version
        want_model = self.parameters["model"] or server.model
        version = at(server.get_json("/version"), "version")
        if version != want_version and (not isinstance(version, str) or version.split("+")[0] != want_version):
            todo = "another engine runs than the recipe pins; is another server on this port?"
            raise CheckFailed("the engine's version differs", want_version, version, todo)
        models = {at(entry, "id"): entry for entry in server.models()}
        if want_model not in models:
            raise CheckFailed(
                "the model is not served", want_model, sorted(map(str, models)), "compare --served-model-name"
            )
        context = models[want_model].get("max_model_len")
        if self.parameters["context"] is not None and context != self.parameters["context"]:
            todo = "compare --max-model-len with the recipe"
            raise CheckFailed("the context length differs", f"{self.parameters['context']} tokens", context, todo)
        reply = server.chat("Hello", max_tokens=1, temperature=0)
        if reply.get("model") != want_model:
            raise CheckFailed("the completion names another model", want_model, reply.get("model"))
        status, _said = server.refusal("Hello", max_tokens=1, model=NOT_SERVED)
        if status not in (400, 404):
            todo = "whatever answers here answers to any name, so its name proves nothing"
            raise CheckFailed("a name that is not served was not refused", "HTTP 404", f"HTTP {status}", todo)
        return {"version": version, "model": want_model, "context": context, "other_name": f"HTTP {status}"}


class Usage(Check):
    """Usage counts the tokens there are."""

    name = "usage"
    demanded = (
        "completion_tokens is the number of token ids in the reply, plain and streamed",
        "prompt_tokens is the number of prompt token ids and what /tokenize counts, and grows with the prompt",
        "total_tokens is their sum",
        "with ignore_eos both a plain and a streamed reply have exactly max_tokens",
        "a stream ends with a finish_reason and a chunk of usage",
    )

    def asked(self) -> str:
        return (
            "one prompt plain and streamed; the prompt doubled, plain and streamed, with ignore_eos; /tokenize of both"
        )

    def run(self, server: Server) -> dict[str, Any]:
        ask, tokens = self.parameters["ask"], self.parameters["max_tokens"]
        evidence: dict[str, Any] = {}
        prompt_tokens: dict[str, int] = {}
        for label, text, forced in (("as_asked", ask, False), ("doubled", f"{ask}\n{ask}", True)):
            count = server.token_count([{"role": "user", "content": text}])
            extra = {"return_token_ids": True, "cache_salt": salt(), **({"ignore_eos": True} if forced else {})}
            reply = server.chat(text, temperature=0, max_tokens=tokens, extra=extra)
            plain = _counted(f"plain, {label}", reply, count, len(ids_of(reply)), reply.get("prompt_token_ids"))
            row = stream(server, text, 0, tokens, forced=forced)
            streamed = _counted(f"streamed, {label}", {"usage": row.whole_usage}, count, row.ids, row.prompt_ids)
            for kind, usage in (("plain", plain), ("streamed", streamed)):
                if forced and usage["completion_tokens"] != tokens:
                    raise CheckFailed(
                        f"ignore_eos and max_tokens do not decide the count ({kind})", f"{tokens} tokens", usage
                    )
            prompt_tokens[label] = count
            evidence[label] = {"plain": plain, "streamed": streamed, "tokenize": count}
        if not 0 < prompt_tokens["as_asked"] < prompt_tokens["doubled"]:
            raise CheckFailed(
                "a longer prompt does not count more tokens", "more for the doubled prompt", prompt_tokens
            )
        return evidence


class Draft(Check):
    """Speculation works, and the draft is as good as the recipe says."""

    name = "draft"
    demanded = (
        "/metrics has the counters of speculation, and they count drafts while the check's replies are generated",
        "accepted tokens over drafted ones, of these replies alone, is within the bounds",
        "with `tokens_per_step_min` and `per_position_min`: so are the tokens of a step and the share at each position",
        "no more was drafted than these replies explain: nobody else asked meanwhile",
    )

    def asked(self) -> str:
        return f"{self.parameters['requests']} natural prompts, one at a time, {DRAFT_TOKENS} tokens, temperature 0"

    def run(self, server: Server) -> dict[str, Any]:
        before, begin = server.metrics(), time.monotonic()
        absent = [name for name in DRAFT_COUNTERS if before.total(name) is None]
        if absent:
            todo = "speculation is not active; compare --speculative-config"
            raise CheckFailed("/metrics has no counters of speculation", ", ".join(DRAFT_COUNTERS), "none", todo)
        requests, tokens = self.parameters["requests"], 0
        for number in range(requests):
            ask = texts.DRAFTED[number % len(texts.DRAFTED)]
            reply = server.chat(ask, temperature=0, max_tokens=DRAFT_TOKENS, extra={"cache_salt": salt()})
            tokens += whole(reply, "usage", "completion_tokens")
        after = server.metrics_after(before, requests)
        drafts, drafted, accepted = ((after.total(name) or 0) - (before.total(name) or 0) for name in DRAFT_COUNTERS)
        counts = {"drafts": drafts, "drafted": drafted, "accepted": accepted, "completion_tokens": tokens}
        if drafts < LEAST_DRAFTS:
            todo = "the draft is loaded but not used, or the replies are too short"
            raise CheckFailed("too little was drafted", f"at least {LEAST_DRAFTS} drafts", counts, todo)
        if drafted < drafts or not 0 <= accepted <= drafted:
            raise CheckFailed("the counters of speculation contradict each other", "accepted <= drafted", counts)
        finished = (after.finished or 0) - (before.finished or 0)
        # The unit's own timer asks for one token now and then.
        others = finished - requests
        expected = probes(time.monotonic() - begin) if self.context.unit else 0
        theirs = (after.total(TOKENS) or 0) - (before.total(TOKENS) or 0) - tokens
        # Every step of a draft gives a token; a last one may be begun when the reply has its tokens already.
        busy = not 0 <= others <= expected or theirs > others
        if busy or drafts > tokens + 2 * finished or accepted > tokens + others:
            todo = "run the check while nobody else asks the server"
            raise CheckFailed("others asked meanwhile", f"{requests} requests", f"{finished:g}, {counts}", todo)
        acceptance = accepted / drafted
        evidence: dict[str, Any] = {
            "acceptance": round(acceptance, 4),
            "tokens_per_step": round(1 + accepted / drafts, 3),
            "per_position": self._per_position(before, after, drafts),
            **counts,
        }
        least, most = self.parameters["acceptance_min"], self.parameters["acceptance_max"]
        if acceptance < least:
            todo = "another draft, another quantisation, or a draft whose weights were not loaded"
            raise CheckFailed(
                "the draft is accepted too rarely", f"{least} or more", f"{acceptance:.4f}", todo, **evidence
            )
        if most is not None and acceptance > most:
            todo = "a reply that repeats itself is easy to draft: look at the replies"
            raise CheckFailed(
                "the draft is accepted too often", f"at most {most}", f"{acceptance:.4f}", todo, **evidence
            )
        self._check_steps(1 + accepted / drafts, evidence)
        return evidence

    def _check_steps(self, per_step: float, evidence: dict[str, Any]) -> None:
        least = self.parameters["tokens_per_step_min"]
        if least is not None and per_step < least:
            todo = "fewer tokens are drafted than the recipe counts on; compare num_speculative_tokens"
            raise CheckFailed("a step gives too few tokens", f"{least} or more", f"{per_step:.3f}", todo, **evidence)
        floors, shares = self.parameters["per_position_min"] or [], evidence["per_position"]
        if len(shares) < len(floors):
            todo = f"shorter drafts, or {ACCEPTED_AT} is not there"
            raise CheckFailed(
                "positions of the draft are missing", f"{len(floors)} positions", shares, todo, **evidence
            )
        low = [place for place, (floor, share) in enumerate(zip(floors, shares)) if share < floor]
        if low:
            todo = "a draft that is right at its first token only"
            where = ", ".join(map(str, low))
            raise CheckFailed(f"too little is accepted at position {where}", f"{floors}", shares, todo, **evidence)

    def _per_position(self, before: Metrics, after: Metrics, drafts: float) -> list[float]:
        then, now = (metrics.by_label(ACCEPTED_AT, "position") for metrics in (before, after))
        places = sorted((place for place in now if place.isdigit()), key=int)
        return [round((now[place] - then.get(place, 0)) / drafts, 4) for place in places]


class KvPool(Check):
    """The KV cache is as large as the recipe counts on."""

    name = "kv_pool"
    demanded = (
        "the engine tells its pool in the labels of vllm:cache_config_info, in whole blocks of tokens",
        "the pool has at least the tokens of the recipe; with several engines, each one's",
        "with `concurrency`: the pool holds at least so many requests of full context",
    )

    def asked(self) -> str:
        return "GET /metrics"

    def run(self, server: Server) -> dict[str, Any]:
        engines = server.metrics().labels(CACHE_CONFIG)
        if not engines:
            raise CheckFailed(f"/metrics has no {CACHE_CONFIG}", "its labels tell the pool", "none")
        pools: list[dict[str, Any]] = [
            {
                "tokens": int(_figure(labels, "kv_cache_size_tokens")),
                "concurrency": round(_figure(labels, "kv_cache_max_concurrency"), 4),
                "blocks": int(_figure(labels, "num_gpu_blocks")),
                "block_size": int(_figure(labels, "block_size")),
                "dtype": labels.get("cache_dtype", ""),
            }
            for labels in engines
        ]
        for key, unit in (("tokens", "tokens"), ("concurrency", "requests of full context")):
            least, found = self.parameters[key], min(pool[key] for pool in pools)
            if least is not None and found < least:
                todo = "compare the memory given to the engine, its --kv-cache-dtype and what else is on the device"
                raise CheckFailed(
                    "the KV pool is smaller than the recipe counts on", f"{least} {unit}", found, todo, pools=pools
                )
        return {"pools": pools}


class Libraries(Check):
    """The server runs with the versions of libraries that the recipe names."""

    name = "libraries"
    of_unit = True
    demanded = (
        "the unit's main process has libraries loaded from the environment that the checks run in, and from no other",
        "each library has its version there",
    )

    def asked(self) -> str:
        return f"/proc of the main process of {self.context.unit or 'the unit'}; the metadata of its environment"

    def run(self, server: Server) -> dict[str, Any]:
        if not self.context.pid:
            todo = "name the unit that serves: its main process tells what is loaded"
            raise CheckFailed("no process is known that serves", "a running unit", "none", todo)
        own = {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
        loaded = self._loaded_from()
        if not loaded or not loaded <= own:
            todo = "the release was changed without a restart, or something else answers for its unit"
            expected = ", ".join(sorted(own))
            raise CheckFailed("the server runs in another environment", expected, sorted(loaded), todo)
        wanted = self.parameters["versions"]
        found = {name: _version(name, sorted(own)) for name in wanted}
        if found != wanted:
            todo = "compare the lock of the engine with the recipe"
            raise CheckFailed("a library has another version", str(wanted), found, todo)
        return {"environment": sorted(own), "versions": found}

    def _loaded_from(self) -> set[str]:
        """Folders of Python packages that the process has compiled libraries of."""
        try:
            with open(f"/proc/{self.context.pid}/maps", encoding="utf-8", errors="replace") as stream:
                found = (re.search(r"(/\S*/(?:site|dist)-packages)/", line) for line in stream)
                return {os.path.realpath(match[1]) for match in found if match}
        except OSError as error:
            todo = "the checks must run as root, on the host of the server"
            raise CheckFailed(
                "what the server has loaded cannot be read", "/proc/<pid>/maps", str(error), todo
            ) from None


class NoErrors(Check):
    """The unit's run is one without restarts and errors."""

    name = "no_errors"
    of_unit = True
    demanded = (
        "systemd has not started the unit anew by itself (NRestarts is 0)",
        "the journal of this very run of the unit has the first and last lines of its start: nothing is missing",
        "no line of it is one of an error, apart from the refusal that the check identity asks for",
    )

    def asked(self) -> str:
        return f"the restarts of {self.context.unit or 'the unit'}, and the journal of its run"

    def run(self, server: Server) -> dict[str, Any]:
        if not self.context.unit or not self.context.invocation:
            todo = "name the unit that serves: only its present run's journal can tell"
            raise CheckFailed("no unit is known whose journal could be read", "a running unit", "none", todo)
        if self.context.restarts:
            todo = "the unit's journal says why; start the unit anew by hand once that is mended"
            raise CheckFailed("the unit was restarted", "NRestarts 0", self.context.restarts, todo)
        known = self.parameters["apart_from"]
        count, passed_over = 0, 0
        lacking = set(START_MARKS)
        for line in journal.lines(self.context.invocation, server.deadline):
            count += 1
            lacking -= {mark for mark in lacking if mark in line}
            if not ERROR_LINE.search(line) or NOT_SERVED in line:
                continue
            if known is None or not re.search(known, line):
                todo = "what the journal says before and after this line; apart_from names an error that means nothing"
                raise CheckFailed("an error is logged", "no line of an error", line, todo, number=count)
            passed_over += 1
        if lacking:
            raise _start_missing(f"{count} lines, none with {' and '.join(map(repr, sorted(lacking)))}")
        return {"restarts": 0, "lines": count, "apart_from": passed_over}


class LogLine(Check):
    """This run of the unit logged a line, or did not."""

    name = "log_line"
    of_unit = True
    demanded = (
        "the journal of this very run of the unit can be read (by its invocation, not the unit's whole journal)",
        "a line of it matches the pattern; with `absent`, none does",
        "with `absent`: the journal still has the run's first and last lines of starting, so that nothing is missing",
    )

    def asked(self) -> str:
        wanted = "no line" if self.parameters["absent"] else "a line"
        return f"the journal of {self.context.unit or 'the unit'} for {wanted} matching {self.parameters['pattern']!r}"

    def run(self, server: Server) -> dict[str, Any]:
        if not self.context.unit or not self.context.invocation:
            todo = "name the unit that serves: only its present run's journal can tell"
            raise CheckFailed("no unit is known whose journal could be read", "a running unit", "none", todo)
        pattern, absent = re.compile(self.parameters["pattern"]), self.parameters["absent"]
        count = 0
        marks: set[str] = set()
        for line in journal.lines(self.context.invocation, server.deadline):
            count += 1
            marks.update(mark for mark in START_MARKS if mark in line)
            if pattern.search(line):
                if not absent:
                    return {"line": line, "number": count}
                todo = "the recipe says that this must not be logged"
                raise CheckFailed("a line is logged that must not be", f"none like {pattern.pattern!r}", line, todo)
        lacking = [mark for mark in START_MARKS if mark not in marks]
        held = f"{count} lines" + (f", none with {' and '.join(map(repr, lacking))}" if lacking else "")
        if absent and not lacking:
            return {"lines": count}
        if lacking:
            raise _start_missing(held)
        todo = "another engine version may word it otherwise, or took another way; read the unit's journal"
        raise CheckFailed("no line of this run matches", f"a line like {pattern.pattern!r}", held, todo)


class Healthy(Check):
    """The server is well, and the one that it was at the first check."""

    name = "healthy"
    demanded = (
        "/health answers 200",
        "process_start_time_seconds is there, and what it was before the first check",
        "neither the requests nor the tokens counted have fallen since",
        "a completion of one token is answered, and counted",
    )

    def asked(self) -> str:
        return "GET /health and /metrics; one completion of one token"

    def run(self, server: Server) -> dict[str, Any]:
        first, now = self.context.first, server.vitals()
        if first is None:
            raise CheckFailed("nothing is known of the server before the first check", "its /metrics", "none")
        reason = now.since(first)
        if reason:
            raise CheckFailed(reason, "one process since the first check", now.as_text())
        if now.started is None:
            raise CheckFailed(f"/metrics has no {STARTED}", "when the process was started", "none")
        if first.tokens is None or now.tokens is None or now.tokens < first.tokens:
            found = f"{first.tokens} before, {now.tokens} now"
            raise CheckFailed("the count of tokens fell or is not there: a restart", f"{TOKENS} that grows", found)
        before = server.metrics()
        reply = server.chat("Hello", temperature=0, max_tokens=1, extra={"cache_salt": salt()})
        if whole(reply, "usage", "completion_tokens") != 1:
            raise CheckFailed("a completion of one token has another count", "1", reply.get("usage"))
        after = server.metrics_after(before, 1)
        grown = (after.total(TOKENS) or 0) - (before.total(TOKENS) or 0)
        if grown < 1:
            raise CheckFailed("the engine did not count the token it gave", f"{TOKENS} +1", f"+{grown:g}")
        return {"started": now.started, "requests_since_first": (after.finished or 0) - (first.finished or 0)}


def _start_missing(held: str) -> CheckFailed:
    todo = "the journal was rotated away or is kept from us, or the engine logs less than INFO; restart the unit"
    return CheckFailed("the journal does not hold the start of this run", "the whole start", held, todo)


def _version(name: str, folders: list[str]) -> str | None:
    """The version of a distribution in some folders of packages; None where it is not there."""
    found = importlib.metadata.Distribution.discover(name=name, path=folders)
    return next((distribution.version for distribution in found), None)


def _counted(label: str, reply: dict[str, Any], tokenized: int, ids: int | None, prompt_ids: Any) -> dict[str, int]:
    """The three counts of a reply's usage; CheckFailed where they are not the tokens there are."""
    usage = {key: whole(reply, "usage", key) for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    if ids is None or not isinstance(prompt_ids, list):
        raise CheckFailed(
            f"{label}: no token ids to count", "token_ids and prompt_token_ids, as return_token_ids asks", usage
        )
    for what, key, count in (
        ("token ids", "completion_tokens", ids),
        ("prompt token ids", "prompt_tokens", len(prompt_ids)),
        ("tokens of /tokenize", "prompt_tokens", tokenized),
        ("tokens together", "total_tokens", usage["prompt_tokens"] + usage["completion_tokens"]),
    ):
        if usage[key] != count:
            raise CheckFailed(
                f"{label}: usage miscounts", f"{key} {count}, the {what}", f"{key} {usage[key]}", usage=usage
            )
    if usage["completion_tokens"] < 1:
        raise CheckFailed(f"{label}: no token was generated", "at least 1", usage)
    return usage


def _figure(labels: Mapping[str, str], name: str) -> float:
    """The number that a label holds; CheckFailed where it is absent or none."""
    text = labels.get(name, "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        todo = "another engine version may tell it elsewhere"
        raise CheckFailed(f"{CACHE_CONFIG} has no {name}", "a number above 0", text or "no such label", todo)
    return value
