# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the parameters that act on how tokens are chosen: min_p, min_tokens, bad_words, seed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.verify.base import Check, ids_of, salt, text_of
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import CheckFailed, Server, at

# Sampled replies: enough tokens for an unlikely one to be among them, and tries for one that is not.
SAMPLED_TOKENS = 32
TRIES = 4
# The chosen token may be likeliest, but not among the first entries that a reply tells; one more is enough.
TOP = 5
# Values of log-probabilities are rounded on their way.
ROUNDED = 0.01
MORE_TOKENS = 8
BAD_WORDS_TOKENS = 32


class MinP(Check):
    """Tokens that are much less likely than the likeliest are not sampled."""

    name = "min_p"
    demanded = (
        "every token sampled with min_p is at least min_p as likely as the likeliest one, by the reply's own logprobs",
        "control: without min_p less likely ones are sampled, before and after",
        "with min_p tokens are still sampled: some are not the likeliest",
    )

    def asked(self) -> str:
        return (
            f"one prompt at temperature {self.parameters['temperature']}, {SAMPLED_TOKENS} tokens: up to {TRIES} times "
            f"without, {TRIES} times with min_p {self.parameters['min_p']}, up to {TRIES} times without"
        )

    def feature(self) -> dict[str, Any]:
        return {"temperature": self.parameters["temperature"], "extra": {"min_p": self.parameters["min_p"]}}

    def run(self, server: Server) -> dict[str, Any]:
        # Log-probabilities are told before the temperature divides them.
        most = -math.log(self.parameters["min_p"]) * self.parameters["temperature"]
        before = self._least_likely(server, most)
        distances = [value for _try in range(TRIES) for value in self._distances(server, self.parameters["min_p"])]
        if max(distances) > most + ROUNDED:
            todo = "min_p has no effect"
            found = f"{max(distances):.3f} below"
            raise CheckFailed(
                "a token was sampled that min_p excludes",
                f"log-probabilities at most {most:.3f} below the likeliest one's",
                found,
                todo,
                farthest_without=before,
            )
        others = sum(value > ROUNDED for value in distances)
        if not others:
            todo = "is anything sampled under min_p? if this model is that sure: a higher temperature, or a lower min_p"
            raise CheckFailed("with min_p only the likeliest tokens came", "others as well", "none", todo)
        after = self._least_likely(server, most)
        return {
            "excluded_beyond": round(most, 4),
            "farthest": round(max(distances), 4),
            "not_likeliest": f"{others}/{len(distances)}",
            "farthest_without": [round(before, 4), round(after, 4)],
        }

    def _least_likely(self, server: Server, most: float) -> float:
        """How far below the likeliest token's a log-probability sampled without min_p is; CheckFailed if never far."""
        farthest = 0.0
        for _try in range(TRIES):
            farthest = max(farthest, *self._distances(server, 0))
            if farthest > most + ROUNDED:
                return farthest
        todo = (
            "was nothing sampled, or is min_p of another request at work? if this model is that sure: "
            "a higher temperature, or a higher min_p"
        )
        expected = f"one more than {most:.3f} below the likeliest one's"
        raise CheckFailed("without min_p no token came that it excludes", expected, f"{farthest:.3f}", todo)

    def _distances(self, server: Server, min_p: float) -> list[float]:
        """For every token of a reply, how far its log-probability is below the likeliest one's."""
        extra = {"cache_salt": salt(), "ignore_eos": True, **({"min_p": min_p} if min_p else {})}
        reply = server.chat(
            self.parameters["ask"],
            temperature=self.parameters["temperature"],
            max_tokens=SAMPLED_TOKENS,
            logprobs=True,
            top_logprobs=TOP,
            extra=extra,
        )
        rows = at(reply, "choices", 0, "logprobs", "content")
        if not isinstance(rows, list) or len(rows) != SAMPLED_TOKENS:
            raise CheckFailed("not one row for every token", f"{SAMPLED_TOKENS} rows of log-probabilities", rows)
        distances: list[float] = []
        for row in rows:
            own, entries = at(row, "logprob"), at(row, "top_logprobs")
            values = [at(entry, "logprob") for entry in entries] if isinstance(entries, list) else []
            if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in (own, *values)):
                raise CheckFailed("not log-probabilities", "finite numbers", row)
            distances.append(max([own, *values]) - own)
        return distances


class MinTokens(Check):
    """A reply goes on for as many tokens as asked for, where it would have ended."""

    name = "min_tokens"
    demanded = (
        "control: without min_tokens the reply ends by itself, so that its own length is known",
        f"with min_tokens {MORE_TOKENS} above that length, the reply has as many tokens or more",
        "the token that ended the reply does not come before then: going on is not ignoring the end",
        "the next request ends as before",
    )

    def asked(self) -> str:
        return f"one prompt at temperature 0: plain, with min_tokens {MORE_TOKENS} above its length, plain"

    def feature(self) -> dict[str, Any]:
        return {"temperature": 0, "max_tokens": 64, "extra": {"min_tokens": 32}}

    def run(self, server: Server) -> dict[str, Any]:
        most = self.parameters["max_tokens"]
        base, finish = self._ids(server, most, 0)
        if finish != "stop" or not base:
            todo = "ask for a short answer, or raise max_tokens: a longer reply can be told from a plain one only so"
            found = f"finish_reason {finish}, {len(base)} tokens"
            raise CheckFailed("the plain reply did not end by itself", "finish_reason stop", found, todo)
        least = len(base) + MORE_TOKENS
        longer, _finish = self._ids(server, least + MORE_TOKENS, least)
        if len(longer) < least:
            todo = "min_tokens has no effect"
            raise CheckFailed(
                "the reply is shorter than min_tokens",
                f"{least} tokens or more",
                len(longer),
                todo,
                plain=base,
                longer=longer,
            )
        if base[-1] in longer[: least - 1] and base[-1] not in base[:-1]:
            todo = "the end of the reply is ignored, not kept from coming"
            raise CheckFailed(
                "the token that ends a reply came before min_tokens",
                f"no {base[-1]} among the first {least - 1}",
                longer,
                todo,
            )
        again, finish = self._ids(server, most, 0)
        if again != base:
            todo = "min_tokens of one request acts on the next"
            raise CheckFailed("min_tokens is left over in the next request", str(base), again, todo)
        return {"plain": len(base), "min_tokens": least, "tokens": len(longer), "end": base[-1]}

    def _ids(self, server: Server, most: int, least: int) -> tuple[list[int], Any]:
        extra = {"cache_salt": salt(), "return_token_ids": True, **({"min_tokens": least} if least else {})}
        reply = server.chat(self.parameters["ask"], temperature=0, max_tokens=most, extra=extra)
        return ids_of(reply), at(reply, "choices", 0, "finish_reason")


class BadWords(Check):
    """A word that the model says is not said where it is a bad one."""

    name = "bad_words"
    demanded = (
        "control: the reply without bad_words has the word, as the tokens that the engine then must keep out",
        "with the word among bad_words the reply has none of these tokens in a row",
        "the next request has the word again",
        "control: with another bad word, which the reply has not, it stays as it is",
    )

    def asked(self) -> str:
        return f"one prompt at temperature 0, {BAD_WORDS_TOKENS} tokens: plain, a word of it bad, plain, another bad"

    def feature(self) -> dict[str, Any]:
        return {"temperature": 0, "extra": {"bad_words": ["word"]}}

    def run(self, server: Server) -> dict[str, Any]:
        base, text = self._reply(server, [])
        word, kept_out = self._said(server, base, text)
        without, said = self._reply(server, [word])
        left = [ids for ids in kept_out if _within(ids, without)]
        if left:
            todo = "bad_words has no effect"
            raise CheckFailed("a bad word came", f"no {word!r}, tokens {left}", said, todo, word=word, plain=text)
        if not without:
            raise CheckFailed("with a bad word there is no reply", "other tokens", said)
        again, said_again = self._reply(server, [])
        if again != base:
            todo = "bad_words of one request acts on the next"
            raise CheckFailed("a bad word is left over in the next request", text, said_again, todo, word=word)
        other = f"q{self.rng.randrange(16**8):08x}"
        same, said_then = self._reply(server, [other])
        if same != base:
            todo = "bad_words changes more than the words that it names"
            raise CheckFailed("a bad word that is not said changes the reply", text, said_then, todo, word=other)
        return {"word": word, "kept_out": kept_out, "plain": text, "without": said}

    def _reply(self, server: Server, bad: list[str]) -> tuple[list[int], str]:
        extra = {"cache_salt": salt(), "return_token_ids": True, **({"bad_words": bad} if bad else {})}
        reply = server.chat(self.parameters["ask"], temperature=0, max_tokens=BAD_WORDS_TOKENS, extra=extra)
        return ids_of(reply), text_of(reply)

    def _said(self, server: Server, base: list[int], text: str) -> tuple[str, list[list[int]]]:
        """A word of the reply, and the tokens that its engine keeps out for it: as at the beginning of a text, and
        after a blank where that is another first token and no more of them."""
        words = list(dict.fromkeys(re.findall(r"\w+", text)))
        for word in words:
            kept_out = [server.tokens(word)]
            after_blank = server.tokens(f" {word}")
            if len(after_blank) == len(kept_out[0]) and after_blank[0] != kept_out[0][0]:
                kept_out.append(after_blank)
            if any(_within(ids, base) for ids in kept_out):
                return word, kept_out
        todo = "a reply of a few whole words; one that thinks first may show no text"
        raise CheckFailed("no word of the reply could be kept out", "a word in one piece of tokens", text, todo)


class Seed(Check):
    """A seed decides what is sampled."""

    name = "seed"
    demanded = (
        f"with the same seed the same tokens are sampled, in one of {TRIES} tries: another request in the batch may "
        "change the last bits of a probability",
        "control: with other seeds others are, so that this was sampling and the seed decides",
        "control: without a seed they are not all the same, and the seed does not stay",
    )

    def asked(self) -> str:
        temperature = self.parameters["temperature"]
        return (
            f"one prompt at temperature {temperature}, {SAMPLED_TOKENS} tokens: with one seed twice, with {TRIES} "
            f"others, with the first again, {TRIES} times without; the same seed up to {TRIES} times"
        )

    def feature(self) -> dict[str, Any]:
        return {"temperature": self.parameters["temperature"], "seed": 1}

    def run(self, server: Server) -> dict[str, Any]:
        seeds = self.rng.sample(range(1, 2**31), TRIES + 1)
        first = self._ids(server, seeds[0])
        tries = self._again(server, seeds[0], first)
        others = [self._ids(server, seed) for seed in seeds[1:]]
        tries += self._again(server, seeds[0], first)
        todo = "was anything sampled? if this model is that sure: a higher temperature"
        if all(other == first for other in others):
            raise CheckFailed(f"{TRIES} other seeds gave the same tokens", "others", first, todo)
        without = [self._ids(server, None) for _try in range(TRIES)]
        if all(row == without[0] for row in without):
            todo = "a seed of an earlier request, or one for all, is at work"
            raise CheckFailed(f"{TRIES} requests without a seed gave the same tokens", "others", without[0], todo)
        differing = sum(other != first for other in others)
        return {"first": first, "others": differing, "of": TRIES, "same_seed_asked_again": tries}

    def _again(self, server: Server, seed: int, first: list[int]) -> int:
        """Ask with a seed until its tokens are those of before; how often it was asked."""
        repeated: list[int] = []
        for tries in range(1, TRIES + 1):
            repeated = self._ids(server, seed)
            if repeated == first:
                return tries
        todo = "the seed has no effect; or the engine computes the same request otherwise each time"
        raise CheckFailed("the same seed gave other tokens", str(first), repeated, todo, seed_used=seed)

    def _ids(self, server: Server, seed: int | None) -> list[int]:
        options: dict[str, Any] = {} if seed is None else {"seed": seed}
        extra = {"cache_salt": salt(), "return_token_ids": True, "ignore_eos": True}
        temperature = self.parameters["temperature"]
        reply = server.chat(
            self.parameters["ask"], temperature=temperature, max_tokens=SAMPLED_TOKENS, extra=extra, **options
        )
        return ids_of(reply)


def _within(part: Sequence[int], ids: Sequence[int]) -> bool:
    """Whether some tokens are among others, in a row."""
    return any(list(ids[at : at + len(part)]) == list(part) for at in range(len(ids) - len(part) + 1))
