# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The checks themselves. Each asks the server, returns evidence, or raises CheckFailed.

Each has a control that a server which ignores the feature would not survive: a check that could pass on no evidence
proves nothing.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import answers
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import (
    CheckFailed,
    Server,
    at,
    together,
    whole,
)

# Tokens tried until all streams overlap; a short reply ends before the last one has begun.
OVERLAP_TOKENS = (64, 128, 256, 512)
NOT_SERVED = "enplace/not-served"


@dataclass
class Context:
    """What the checks of one run share: the release's engine version, and replies that were asked for once already."""

    version: str
    alone: dict[tuple[Any, ...], str] = field(default_factory=dict)


class Check:
    """One check: its parameters with defaults filled in, what it asks, what it demands, and its evidence."""

    name: ClassVar[str]
    demanded: ClassVar[tuple[str, ...]]

    def __init__(self, parameters: dict[str, Any], context: Context) -> None:
        self.parameters = parameters
        self.context = context

    def asked(self) -> str:
        """What is asked, in one line."""
        raise NotImplementedError

    def run(self, server: Server) -> dict[str, Any]:
        """Ask, and return the evidence; CheckFailed where a demand does not hold."""
        raise NotImplementedError


class Unwritten(Check):
    """A check that has an entry in the table but no code yet: it fails."""

    demanded = ()

    def __init__(self, parameters: dict[str, Any], context: Context) -> None:
        super().__init__(parameters, context)
        self.name = parameters["check"]  # type: ignore[misc]

    def asked(self) -> str:
        return "nothing"

    def run(self, server: Server) -> dict[str, Any]:
        raise CheckFailed(f"this release cannot run the check {self.name}", todo="use a release that can")


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
        status = server.refusal(NOT_SERVED)
        if status not in (400, 404):
            todo = "whatever answers here answers to any name, so its name proves nothing"
            raise CheckFailed("a name that is not served was not refused", "HTTP 404", f"HTTP {status}", todo)
        return {"version": version, "model": want_model, "context": context, "other_name": f"HTTP {status}"}


class KnownAnswers(Check):
    """Prompts asked alone are answered rightly."""

    name = "known_answers"
    demanded = (
        "every reply holds an accepted answer as whole words",
        "every reply ends by itself (finish_reason stop)",
        "no reply holds another prompt's answer: a reply that says everything, and a matcher that takes anything, fail",
    )

    def asked(self) -> str:
        return f"{len(self.parameters['prompts'])} prompts, one at a time, temperature {self.parameters['temperature']}"

    def run(self, server: Server) -> dict[str, Any]:
        prompts = self.parameters["prompts"]
        replies = [_known(server, self.parameters, prompt["ask"]) for prompt in prompts]
        passed = _grade(prompts, replies)
        for prompt, reply in zip(prompts, replies):
            self.context.alone[_alone_key(self.parameters, prompt["ask"])] = reply["text"]
        return {"passed": passed, "replies": [reply["text"] for reply in replies]}


class KnownAnswersInFlight(Check):
    """Prompts decoded in one batch are answered as they are alone."""

    name = "known_answers_in_flight"
    demanded = (
        "all streams were decoded side by side: the last one's first token came before any one's last token",
        "ignore_eos is honoured: every stream has exactly the tokens asked for",
        "every stream begins as the same prompt's reply does alone",
        "asked at once again, without ignore_eos, every reply is right, ends by itself, and holds no other's answer",
    )

    def asked(self) -> str:
        return (
            f"{self.parameters['requests']} streams at once with ignore_eos, long enough to overlap; "
            f"then {self.parameters['requests']} plain requests at once; temperature {self.parameters['temperature']}"
        )

    def run(self, server: Server) -> dict[str, Any]:
        known = self.parameters["prompts"]
        prompts = [known[index % len(known)] for index in range(self.parameters["requests"])]
        alone = [self._alone(server, prompt["ask"]) for prompt in prompts]
        rows, tokens = self._side_by_side(server, [prompt["ask"] for prompt in prompts])
        wrong = [
            {"ask": prompt["ask"], "alone": one, "in_flight": row.text[: len(one) + 40]}
            for prompt, one, row in zip(prompts, alone, rows)
            if not row.text.strip().startswith(one.strip())
        ]
        if wrong:
            todo = "rows of a batch are crossed or computed wrongly; compare with --max-num-seqs 1"
            found = "; ".join(f"{row['in_flight']!r} to {row['ask']!r}, alone {row['alone']!r}" for row in wrong)
            raise CheckFailed(
                "replies in a batch differ from those alone", "the same beginning", found, todo, rows=wrong
            )
        start = threading.Barrier(len(prompts))
        replies = together(
            [partial(self._one_plain, server, start, prompt["ask"]) for prompt in prompts], server.deadline
        )
        return {
            "passed": _grade(prompts, replies),
            "side_by_side_tokens": tokens,
            "last_first_token_s": round(max(row.first for row in rows) - min(row.first for row in rows), 4),
            "first_last_token_s": round(min(row.last for row in rows) - min(row.first for row in rows), 4),
            "replies": [reply["text"] for reply in replies],
        }

    def _alone(self, server: Server, ask: str) -> str:
        key = _alone_key(self.parameters, ask)
        if key not in self.context.alone:
            self.context.alone[key] = _known(server, self.parameters, ask)["text"]
        return self.context.alone[key]

    def _one_plain(self, server: Server, start: threading.Barrier, ask: str) -> dict[str, Any]:
        start.wait(server.deadline.left())
        return _known(server, self.parameters, ask)

    def _one_stream(self, server: Server, start: threading.Barrier, ask: str, tokens: int) -> _Row:
        start.wait(server.deadline.left())
        return _stream(server, ask, self.parameters["temperature"], tokens)

    def _side_by_side(self, server: Server, asks: list[str]) -> tuple[list[_Row], int]:
        """Streams of all prompts at once, longer and longer, until their times prove one batch. A gauge would not do:
        a fast run slips past between two reads of it."""
        count = len(asks)
        rows: list[_Row] = []
        limits = [at(entry, "max_model_len") for entry in server.models() if at(entry, "id") == server.model]
        most = limits[0] // 2 if limits and isinstance(limits[0], int) else OVERLAP_TOKENS[-1]
        for tokens in [size for size in OVERLAP_TOKENS if size <= most] or [max(2, most)]:
            start = threading.Barrier(count)
            rows = together([partial(self._one_stream, server, start, ask, tokens) for ask in asks], server.deadline)
            used = [row.usage for row in rows]
            if used != [tokens] * count:
                todo = "the streams ended early, so nothing is known about their batch"
                raise CheckFailed(
                    "ignore_eos was not honoured", f"usage of {tokens} tokens in every stream", used, todo
                )
            if max(row.first for row in rows) < min(row.last for row in rows):
                return rows, tokens
        raise CheckFailed(
            f"{count} requests sent at once were never decoded side by side",
            "every stream begun before any has ended",
            f"none overlapped fully with {tokens} tokens each",
            f"is --max-num-seqs below {count}, or does something between client and server hold streams back?",
        )


class Logprobs(Check):
    """Every token comes with the log-probabilities asked for."""

    name = "logprobs"
    demanded = (
        "one row for every token of the reply, with that token's id",
        "as many entries in every row as asked for, with distinct ids, from likely to unlikely",
        "every value a finite log-probability, no placeholder, all together at most 1",
        "the token chosen greedily is the likeliest entry",
    )

    def asked(self) -> str:
        return f"one prompt at temperature 0 with logprobs and top_logprobs {self.parameters['top']}"

    def run(self, server: Server) -> dict[str, Any]:
        top = self.parameters["top"]
        reply = server.chat(
            self.parameters["ask"],
            temperature=0,
            max_tokens=self.parameters["max_tokens"],
            logprobs=True,
            top_logprobs=top,
            extra={"cache_salt": _salt(), "return_token_ids": True, "return_tokens_as_token_ids": True},
        )
        ids = _ids(reply)
        rows = at(reply, "choices", 0, "logprobs", "content")
        if not isinstance(rows, list) or len(rows) != len(ids) or not rows:
            found = f"{len(rows) if isinstance(rows, list) else 'no'} rows for {len(ids)} tokens"
            raise CheckFailed("not one row for every token", f"{len(ids)} rows, at least 1", found)
        likeliest = [_check_row(position, row, ids[position], top) for position, row in enumerate(rows)]
        return {"tokens": len(rows), "entries": top, "chosen": [round(value, 4) for value in likeliest]}


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
            extra = {"return_token_ids": True, "cache_salt": _salt(), **({"ignore_eos": True} if forced else {})}
            reply = server.chat(text, temperature=0, max_tokens=tokens, extra=extra)
            plain = _counted(f"plain, {label}", reply, count, len(_ids(reply)), reply.get("prompt_token_ids"))
            row = _stream(server, text, 0, tokens, forced=forced)
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


@dataclass
class _Row:
    """One stream: its text, its usage, and when (seconds, monotonic) its first and last tokens came."""

    text: str = ""
    first: float = 0.0
    last: float = 0.0
    ids: int | None = None
    prompt_ids: Any = None
    whole_usage: Any = None
    finish: Any = None

    @property
    def usage(self) -> Any:
        return self.whole_usage.get("completion_tokens") if isinstance(self.whole_usage, dict) else None


CLASSES: dict[str, type[Check]] = {
    kind.name: kind for kind in (Identity, KnownAnswers, KnownAnswersInFlight, Logprobs, Usage)
}


def _salt() -> str:
    """A salt that no request had before: the reply is computed, not found in the prefix cache."""
    return os.urandom(8).hex()


def _alone_key(parameters: dict[str, Any], ask: str) -> tuple[Any, ...]:
    return (ask, parameters["temperature"], parameters["max_tokens"])


def _known(server: Server, parameters: dict[str, Any], ask: str) -> dict[str, Any]:
    """One prompt's reply: {ask, text, finish}."""
    reply = server.chat(
        ask,
        temperature=parameters["temperature"],
        max_tokens=parameters["max_tokens"],
        extra={"cache_salt": _salt()},
    )
    text = at(reply, "choices", 0, "message", "content")
    return {
        "ask": ask,
        "text": text if isinstance(text, str) else "",
        "finish": at(reply, "choices", 0, "finish_reason"),
    }


def _grade(prompts: Sequence[dict[str, Any]], replies: Sequence[dict[str, Any]]) -> str:
    """`8/8` where every reply is right and no other; CheckFailed says which is not."""
    rows = [
        {"ask": reply["ask"], "reply": reply["text"], "accepted": prompt["expect"]}
        for prompt, reply in zip(prompts, replies)
    ]
    wrong = [row for row in rows if not answers(row["reply"], row["accepted"])]
    right = f"{len(rows) - len(wrong)}/{len(rows)}"
    if wrong:
        todo = "a wrong engine, wrong weights, or a broken kernel gives wrong answers with HTTP 200"
        found = "; ".join(f"{row['reply']!r} to {row['ask']!r}, accepted {row['accepted']}" for row in wrong)
        raise CheckFailed(f"{right} answers are right", f"{len(rows)}/{len(rows)}", found, todo, rows=rows)
    cut = [f"{reply['finish']} of {reply['ask']!r}" for reply in replies if reply["finish"] != "stop"]
    if cut:
        found = "finish_reason " + "; ".join(cut)
        raise CheckFailed(
            "a reply did not end by itself", "finish_reason stop", found, "see max_tokens of the check", rows=rows
        )
    for row in rows:
        for other in rows:
            shared = any(answers(answer, other["accepted"]) for answer in row["accepted"])
            if not shared and answers(row["reply"], other["accepted"]):
                todo = "a reply that says everything proves nothing; or word the prompts so that replies are short"
                found = f"{row['reply']!r} to {row['ask']!r} holds {other['accepted']}"
                raise CheckFailed(
                    "a reply holds another prompt's answer", "its own answer only", found, todo, rows=rows
                )
    return right


def _ids(reply: dict[str, Any]) -> list[int]:
    ids = at(reply, "choices", 0, "token_ids")
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise CheckFailed("the reply has no token ids", "choices[0].token_ids, as return_token_ids asks", ids)
    return ids


def _stream(server: Server, ask: str, temperature: float, tokens: int, forced: bool = True) -> _Row:
    extra = {"cache_salt": _salt(), "return_token_ids": True, **({"ignore_eos": True} if forced else {})}
    row = _Row()
    for chunk in server.stream(ask, temperature=temperature, max_tokens=tokens, extra=extra):
        now = time.monotonic()
        if chunk.get("usage"):
            row.whole_usage = chunk["usage"]
        if chunk.get("prompt_token_ids"):
            row.prompt_ids = chunk["prompt_token_ids"]
        for choice in chunk.get("choices") or []:
            content = (choice.get("delta") or {}).get("content") or ""
            ids = choice.get("token_ids")
            row.finish = choice.get("finish_reason") or row.finish
            row.text += content
            if isinstance(ids, list):
                row.ids = (row.ids or 0) + len(ids)
            if content or ids:  # a first chunk with nothing but the role is no sign of decoding
                row.first = row.first or now
                row.last = now
    if not row.first:
        raise CheckFailed("a stream brought no token", f"{tokens} tokens", row.text)
    if row.finish is None or row.whole_usage is None:
        found = f"finish_reason {row.finish}, usage {row.whole_usage}"
        raise CheckFailed("a stream ended too early", "a finish_reason and a chunk of usage", found)
    return row


def _check_row(position: int, row: Any, chosen: int, top: int) -> float:
    """The chosen token's log-probability; CheckFailed where a row of top_logprobs is not what it should be."""
    where = f"token {position}"
    entries = at(row, "top_logprobs")
    names = [at(entry, "token") for entry in entries] if isinstance(entries, list) else []
    values = [at(entry, "logprob") for entry in entries] if isinstance(entries, list) else []
    if len(names) != top or len(set(names)) != top:
        todo = "compare top with --max-logprobs"
        raise CheckFailed(
            f"{where}: not {top} distinct entries", f"{top} entries", f"{len(names)}, {len(set(names))} distinct", todo
        )
    if not all(isinstance(value, (int, float)) and math.isfinite(value) and value <= 1e-6 for value in values):
        raise CheckFailed(f"{where}: not log-probabilities", "finite numbers up to 0", values)
    if any(value <= -9998 for value in values):
        raise CheckFailed(f"{where}: placeholders among the entries", "no -9999", values)
    if values != sorted(values, reverse=True) or len(set(values)) <= top // 2:
        raise CheckFailed(f"{where}: not in order, or all alike", "from likely to unlikely", values)
    if sum(map(math.exp, values)) > 1.001:
        raise CheckFailed(f"{where}: probabilities add up to more than 1", "at most 1", sum(map(math.exp, values)))
    own, value = at(row, "token"), at(row, "logprob")
    if own != f"token_id:{chosen}":
        raise CheckFailed(
            f"{where}: the row belongs to another token", f"token_id:{chosen}", own, "rows are shifted or crossed"
        )
    # Two entries may be equally likely; then either may have been chosen.
    if value != values[0] or own not in names or values[names.index(own)] != value:
        found = f"{own} with {value}; first entry {names[0]} with {values[0]}"
        raise CheckFailed(f"{where}: the greedy token is not the likeliest", "the chosen token first", found)
    return float(value)


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
