# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of what the model says to prompts with known answers, alone and in a batch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.verify.base import Check, Row, salt, stream
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import answers
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import CheckFailed, Server, at, together

# Tokens tried until all streams overlap; a short reply ends before the last one has begun.
OVERLAP_TOKENS = (64, 128, 256, 512)


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

    def _one_stream(self, server: Server, start: threading.Barrier, ask: str, tokens: int) -> Row:
        start.wait(server.deadline.left())
        return stream(server, ask, self.parameters["temperature"], tokens)

    def _side_by_side(self, server: Server, asks: list[str]) -> tuple[list[Row], int]:
        """Streams of all prompts at once, longer and longer, until their times prove one batch. A gauge would not do:
        a fast run slips past between two reads of it."""
        count = len(asks)
        rows: list[Row] = []
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


def _alone_key(parameters: dict[str, Any], ask: str) -> tuple[Any, ...]:
    return (ask, parameters["temperature"], parameters["max_tokens"])


def _known(server: Server, parameters: dict[str, Any], ask: str) -> dict[str, Any]:
    """One prompt's reply: {ask, text, finish}."""
    reply = server.chat(
        ask,
        temperature=parameters["temperature"],
        max_tokens=parameters["max_tokens"],
        extra={"cache_salt": salt()},
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
