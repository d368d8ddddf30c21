# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Checks with long prompts: read from the prefix cache, and read to the last needle."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.verify import texts
from ansible_collections.enplace.inference.plugins.module_utils.verify.base import (
    CACHE_CONFIG,
    Check,
    cached_tokens,
    ids_of,
    room,
    salt,
    text_of,
)
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import answers
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import (
    CheckFailed,
    Metrics,
    Server,
    at,
    whole,
)

HITS = "vllm:prefix_cache_hits_total"
CACHED_REPLY_TOKENS = 24
# What names a code takes; and by how much a prompt with another code may be longer.
LEAST_REPLY_TOKENS, SPARE_TOKENS = 32, 16
# A prompt is fitted until it has this share of the tokens asked for, and no token more than those; with less than
# ENOUGH of them the check fails.
FITTED, ENOUGH = 0.97, 0.9
FITTINGS = 8
# Whole blocks of a prompt that ends at the boundary of one, and its least tokens: a hybrid may keep the last block
# back, and what is in a prompt besides its lines needs room.
BOUNDARY_BLOCKS, BOUNDARY_TOKENS = 3, 256
# What fills a prompt up to a token; " a" is one token for most tokenizers.
PADS = (" a", ".", "a", " I", "!")
# A hybrid model keeps its state at the end of a chunk of the prefill, and at the last block's end sometimes only from
# the second visit on; then the third one reads all that there is.
VISITS = 3


@dataclass(frozen=True)
class _Prompt:
    """A prompt of about the length asked for, with a code hidden in it."""

    lines: list[str]
    depth: float
    place: str
    code: str
    tokens: int
    pad: str = ""

    @property
    def text(self) -> str:
        return self.with_code(self.code)

    def with_code(self, code: str) -> str:
        """The same prompt with another code."""
        return texts.haystack_prompt(self.lines, self.depth, texts.needle(self.place, code), self.place) + self.pad


class PrefixCache(Check):
    """A prompt that was seen before is read from the cache, and nothing else changes."""

    name = "prefix_cache"
    demanded = (
        "the first visit reads nothing from the cache: usage says 0 cached tokens, and /metrics counts no hit",
        "the second or third visit reads all whole blocks of the prompt but one, and more than none",
        "on every visit the cached tokens of usage are what /metrics counts, and a multiple of the block",
        "under another cache_salt the same prompt reads nothing from the cache",
        "with `boundaries`: all of this also where the prompt ends with a block, one token after it, or one before it",
        "the reply is the same with and without the cache; with `exact` to the last bit of its log-probabilities",
    )

    def asked(self) -> str:
        lengths = ", ".join(map(str, self.parameters["tokens"]))
        return (
            f"prompts of {lengths} tokens{' and at the boundary of a block' if self.parameters['boundaries'] else ''}, "
            f"temperature 0: up to {VISITS} times under one cache_salt, once under another"
        )

    def run(self, server: Server) -> dict[str, Any]:
        lengths = self.parameters["tokens"]
        metrics = server.metrics()
        block = self._block(metrics)
        if metrics.total(HITS) is None:
            raise CheckFailed(f"/metrics has no {HITS}", "a counter", "none", "is --enable-prefix-caching set?")
        if min(lengths) <= 2 * block:
            todo = "a prompt of less than two whole blocks shows little; give longer lengths"
            raise CheckFailed("a length is too short", f"more than {2 * block} tokens, two blocks", lengths, todo)
        room(server, max(lengths), CACHED_REPLY_TOKENS, CACHED_REPLY_TOKENS)
        rows = [
            self._one(server, fitted(self, server, length, self.rng.uniform(0.1, 0.9)), block, {}) for length in lengths
        ]
        if self.parameters["boundaries"]:
            whole_blocks = block * max(BOUNDARY_BLOCKS, math.ceil(BOUNDARY_TOKENS / block))
            room(server, whole_blocks + block - 1, CACHED_REPLY_TOKENS, CACHED_REPLY_TOKENS)
            for offset in dict.fromkeys((0, 1, block - 1)):
                prompt = filled(server, self._below(server, whole_blocks), whole_blocks + offset)
                rows.append(self._one(server, prompt, block, {"offset": offset}))
        return {"block": block, "rows": rows}

    def _below(self, server: Server, tokens: int) -> _Prompt:
        """A prompt that can be filled up to so many tokens."""
        return fitted(self, server, tokens, self.rng.uniform(0.1, 0.9), least=0.5)

    def _block(self, metrics: Metrics) -> int:
        """Tokens of a block: the recipe's, or what the engine says it is."""
        labels = metrics.labels(CACHE_CONFIG)
        if any(one.get("enable_prefix_caching") == "False" for one in labels):
            raise CheckFailed(
                "the prefix cache is off", "enable_prefix_caching True", "False", "--enable-prefix-caching"
            )
        if self.parameters["block"] is not None:
            return int(self.parameters["block"])
        sizes = {one.get("block_size", "") for one in labels}
        size = sizes.pop() if len(sizes) == 1 else ""
        if not size.isdigit() or int(size) < 1:
            todo = "give the check the parameter block"
            raise CheckFailed("the block size is not known", f"a label block_size of {CACHE_CONFIG}", size, todo)
        return int(size)

    def _one(self, server: Server, prompt: _Prompt, block: int, at_boundary: dict[str, int]) -> dict[str, Any]:
        mine = salt()
        cold = self._visit(server, prompt, mine)
        if cold.cached != 0 or cold.hits != 0:
            todo = "what was cached under another salt must not be read"
            raise CheckFailed("the first visit was not cold", "0 cached tokens, 0 hits", cold.counts, todo)
        # A hybrid may keep one block back, and the last token is always computed.
        least = max(block, ((prompt.tokens - 1) // block - 1) * block)
        visits = [self._visit(server, prompt, mine)]
        while visits[-1].cached < least and len(visits) < VISITS - 1:
            visits.append(self._visit(server, prompt, mine))
        warm = visits[-1]
        row: dict[str, Any] = {
            **at_boundary,
            "prompt_tokens": warm.prompt_tokens,
            "cached": [visit.cached for visit in visits],
            "hit_on_repeat": len(visits),
            "found": answers(warm.text, [prompt.code]),
        }
        self._check_counts(visits, block, least, row)
        other = self._visit(server, prompt, salt())
        if other.cached != 0 or other.hits != 0:
            raise CheckFailed(
                "another cache_salt reads from the cache", "0 cached tokens, 0 hits", other.counts, row=row
            )
        row["cold_repeats"] = other.ids == cold.ids and other.rows == cold.rows
        row["same_tokens"] = warm.ids == cold.ids
        row["same_logprobs"] = warm.rows == cold.rows
        if not row["same_tokens"] or (self.parameters["exact"] and not row["same_logprobs"]):
            todo = "the cache changes the reply"
            if row["same_tokens"]:
                todo += (
                    "; or a prompt that is partly cached is computed in other pieces: exact: false compares tokens only"
                )
            if not row["cold_repeats"]:
                todo = "two cold replies differ as well: noise of the engine, not the cache; see the parameter exact"
            differs = "the log-probabilities" if row["same_tokens"] else "the tokens"
            raise CheckFailed(f"{differs} differ with and without the cache", cold.text, warm.text, todo, row=row)
        return row

    def _check_counts(self, visits: list[_Visit], block: int, least: int, row: dict[str, Any]) -> None:
        for visit in visits:
            if visit.hits != visit.cached:
                todo = "usage and /metrics must tell the same, while nobody else asks the server"
                raise CheckFailed(
                    "usage and /metrics count other hits", f"{HITS} +{visit.cached}", f"+{visit.hits:g}", todo, row=row
                )
            if visit.cached % block or visit.cached >= visit.prompt_tokens:
                expected = f"a multiple of {block}, below {visit.prompt_tokens}"
                raise CheckFailed(
                    "the cached tokens are no whole blocks of the prompt", expected, visit.cached, row=row
                )
        if not any(visit.cached for visit in visits):
            todo = "is --enable-prefix-caching set, and the cache large enough for the prompt?"
            raise CheckFailed(f"no hit in {VISITS} visits", "cached tokens above 0", visits[-1].counts, todo, row=row)
        if visits[-1].cached < least:
            found = row["cached"]
            raise CheckFailed("too few blocks were read from the cache", f"{least} tokens or more", found, row=row)

    def _visit(self, server: Server, prompt: _Prompt, under: str) -> _Visit:
        before, answered = server.metrics(), server.answered
        reply = server.chat(
            prompt.text,
            temperature=0,
            max_tokens=CACHED_REPLY_TOKENS,
            logprobs=True,
            top_logprobs=5,
            extra={"cache_salt": under, "return_token_ids": True, "return_tokens_as_token_ids": True},
        )
        after = server.metrics_after(before, server.answered - answered)
        cached = cached_tokens(reply)
        if cached is None:
            todo = "start the server with --enable-prompt-tokens-details"
            raise CheckFailed("usage has no cached_tokens", "prompt_tokens_details.cached_tokens", reply["usage"], todo)
        rows = at(reply, "choices", 0, "logprobs", "content")
        ids = ids_of(reply)
        if not isinstance(rows, list) or len(rows) != len(ids) or not rows:
            raise CheckFailed("not one row for every token", f"{len(ids)} rows of log-probabilities", rows)
        return _Visit(
            prompt_tokens=full(reply, prompt.tokens),
            cached=cached,
            hits=(after.total(HITS) or 0) - (before.total(HITS) or 0),
            text=text_of(reply),
            ids=ids,
            rows=json.dumps([(at(row, "logprob"), at(row, "top_logprobs")) for row in rows]),
        )


@dataclass(frozen=True)
class _Visit:
    """One reply to a prompt: what was cached by its usage and by /metrics, and what there is to compare."""

    prompt_tokens: int
    cached: int
    hits: float
    text: str
    ids: list[int]
    rows: str

    @property
    def counts(self) -> str:
        return f"{self.cached} cached tokens of {self.prompt_tokens}, {self.hits:g} hits"


class Needles(Check):
    """What is hidden in a long prompt is found."""

    name = "needles"
    demanded = (
        "usage counts all tokens of the prompt, at least 0.9 of the length asked for: nothing was cut away",
        "the reply holds the code hidden in its prompt, one of 256, and no code of another prompt",
        "control: the same prompt with another code gives that one",
        "usage does not say that anything was read from the prefix cache",
    )

    def asked(self) -> str:
        lengths = ", ".join(map(str, self.parameters["tokens"]))
        return f"prompts of {lengths} tokens, a code at {self.parameters['depths']} depths of each, temperature 0"

    def run(self, server: Server) -> dict[str, Any]:
        most = self.parameters["max_tokens"]
        rooms = {
            length: room(server, length + SPARE_TOKENS, min(most, LEAST_REPLY_TOKENS), most)
            for length in self.parameters["tokens"]
        }
        rows: list[dict[str, Any]] = []
        for length, tokens in rooms.items():
            rows += self._length(server, length, tokens)
        wrong = [row for row in rows if not row["right"]]
        passed = f"{len(rows) - len(wrong)}/{len(rows)}"
        if wrong:
            found = "; ".join(
                f"{row['reply']!r} for {row['code']!r} at {row['prompt_tokens']} tokens, depth {row['depth']}"
                for row in wrong
            )
            todo = "a long prompt is read wrongly: compare the shortest length that fails with block and chunk sizes"
            raise CheckFailed(f"{passed} codes were found", f"{len(rows)}/{len(rows)}", found, todo, rows=rows)
        return {"passed": passed, "rows": rows}

    def _length(self, server: Server, length: int, room_for: int) -> list[dict[str, Any]]:
        count = self.parameters["depths"]
        codes = texts.codes(self.rng, count + 1)
        rows: list[dict[str, Any]] = []
        for number in range(count):
            depth = 0.5 if count == 1 else 0.1 + 0.8 * number / (count - 1)
            prompt = fitted(self, server, length, depth, codes[number])
            rows.append(self._ask(server, prompt, prompt.code, codes, room_for))
            if number == count // 2:
                rows.append(self._ask(server, prompt, codes[-1], codes, room_for))
        return rows

    def _ask(self, server: Server, prompt: _Prompt, code: str, codes: list[str], room_for: int) -> dict[str, Any]:
        text = prompt.with_code(code)
        # The control's code may have more tokens, or fewer, than the one that the prompt was fitted with.
        tokens = prompt.tokens if code == prompt.code else server.token_count(text)
        reply = server.chat(text, temperature=0, max_tokens=room_for, extra={"cache_salt": salt()})
        count = full(reply, tokens)
        cached = cached_tokens(reply)
        if cached:
            raise CheckFailed("the prompt was not cold", "0 cached tokens", cached, "is cache_salt honoured?")
        said = text_of(reply)
        others = [other for other in codes if other != code]
        return {
            "prompt_tokens": count,
            "depth": round(prompt.depth, 2),
            "code": code,
            "control": code != prompt.code,
            "reply": said,
            "right": answers(said, [code]) and not answers(said, others),
        }


def fitted(check: Check, server: Server, length: int, depth: float, code: str = "", least: float = ENOUGH) -> _Prompt:
    """A prompt of at most `length` tokens and hardly fewer, as /tokenize counts.

    CheckFailed where none is found with at least the share `least` of them.
    """
    place = check.rng.choice(texts.PLACES)
    hidden = code or texts.code(check.rng)
    lines: list[str] = []
    best: _Prompt | None = None
    wanted, counts = max(1, length // 16), []
    for _try in range(FITTINGS):
        lines += [texts.filler(check.rng) for _line in range(wanted - len(lines))]
        prompt = _Prompt(lines[:wanted], depth, place, hidden, 0)
        tokens = server.token_count(prompt.text)
        counts.append(tokens)
        if tokens <= length and (best is None or tokens > best.tokens):
            best = _Prompt(prompt.lines, depth, place, hidden, tokens)
        # By the size of a line so far; what is around the lines stays as it is.
        step = math.floor((length - tokens) / (tokens / (len(prompt.lines) + 1)))
        if tokens > length:
            step = min(step, -1)
        elif tokens >= FITTED * length or step == 0:
            break
        wanted = max(1, wanted + step)
    if best is None or best.tokens < least * length:
        found = f"prompts of {', '.join(map(str, counts))} tokens"
        raise CheckFailed("no prompt of this length could be made", f"{least * length:g} to {length} tokens", found)
    return best


def filled(server: Server, prompt: _Prompt, tokens: int) -> _Prompt:
    """A prompt with something at its end, so that it has exactly so many tokens; CheckFailed where none is found."""
    pad, count = "", prompt.tokens
    for piece in PADS:
        pieces = tokens - count
        while pieces > 0:
            longer = server.token_count(prompt.text + pad + piece * pieces)
            if count < longer <= tokens:
                pad, count = pad + piece * pieces, longer
                pieces = tokens - count
            else:
                pieces //= 2
    if count != tokens:
        found = f"one of {count}"
        raise CheckFailed("no prompt that ends at the boundary of a block could be made", f"{tokens} tokens", found)
    return replace(prompt, tokens=tokens, pad=pad)


def full(reply: dict[str, Any], tokens: int) -> int:
    """The prompt tokens of a reply's usage; CheckFailed where they are not all that /tokenize counted."""
    count = whole(reply, "usage", "prompt_tokens")
    if count != tokens:
        todo = "the server cut the prompt, or counts wrongly"
        raise CheckFailed("usage counts another prompt", f"{tokens} prompt tokens, as /tokenize", count, todo)
    return count
