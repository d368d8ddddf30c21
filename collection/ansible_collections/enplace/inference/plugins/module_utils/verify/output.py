# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of what is asked of the tokens of a reply: their log-probabilities, a schema, a bias."""

from __future__ import annotations

import json
import math
import threading
from functools import partial
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.verify import texts
from ansible_collections.enplace.inference.plugins.module_utils.verify.base import Check, ids_of, salt, text_of
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import (
    CheckFailed,
    Server,
    at,
    together,
    whole,
)

# Enough for four requests sent at once to share a batch for a while.
BIAS_TOKENS = 16


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

    def feature(self) -> dict[str, Any]:
        return {"temperature": 0, "logprobs": True, "top_logprobs": self.parameters["top"]}

    def run(self, server: Server) -> dict[str, Any]:
        top = self.parameters["top"]
        reply = server.chat(
            self.parameters["ask"],
            temperature=0,
            max_tokens=self.parameters["max_tokens"],
            logprobs=True,
            top_logprobs=top,
            extra={"cache_salt": salt(), "return_token_ids": True, "return_tokens_as_token_ids": True},
        )
        ids = ids_of(reply)
        rows = at(reply, "choices", 0, "logprobs", "content")
        if not isinstance(rows, list) or len(rows) != len(ids) or not rows:
            found = f"{len(rows) if isinstance(rows, list) else 'no'} rows for {len(ids)} tokens"
            raise CheckFailed("not one row for every token", f"{len(ids)} rows, at least 1", found)
        likeliest = [_check_row(position, row, ids[position], top) for position, row in enumerate(rows)]
        return {"tokens": len(rows), "entries": top, "chosen": [round(value, 4) for value in likeliest]}


class PromptLogprobs(Check):
    """Every token of the prompt comes with its log-probabilities."""

    name = "prompt_logprobs"
    demanded = (
        "one entry for every token of the prompt, the first of them null, as nothing comes before it",
        "every other entry has the prompt's own token, and the likeliest tokens, as many as asked for",
        "every value a finite log-probability, in the order of the ranks, all together at most 1",
        "the ids are those of /tokenize",
        "control: the prompt asked twice over has entries for its own, longer prompt",
        "the next request is answered",
    )

    def asked(self) -> str:
        return f"one prompt, and the same twice over, with prompt_logprobs {self.parameters['top']}"

    def feature(self) -> dict[str, Any]:
        return {"temperature": 0, "extra": {"prompt_logprobs": self.parameters["top"]}}

    def run(self, server: Server) -> dict[str, Any]:
        ask = self.parameters["ask"]
        once = self._values(server, ask)
        twice = self._values(server, f"{ask}\n{ask}")
        if len(twice) <= len(once):
            found = f"{len(once) + 1} entries for the prompt, {len(twice) + 1} for it twice over"
            raise CheckFailed("the entries are not those of the prompt", "more for the longer prompt", found)
        after = server.chat(ask, temperature=0, max_tokens=8, extra={"cache_salt": salt()})
        if not text_of(after):
            raise CheckFailed("the request after the one with prompt_logprobs is not answered", "text", after)
        means = {name: round(sum(values) / len(values), 4) for name, values in (("once", once), ("twice", twice))}
        return {"prompt_tokens": {"once": len(once) + 1, "twice": len(twice) + 1}, "mean_logprob": means}

    def _values(self, server: Server, ask: str) -> list[float]:
        """The log-probability of every token of the prompt but the first."""
        top = self.parameters["top"]
        ids = server.prompt_tokens(ask)
        extra = {"prompt_logprobs": top, "return_token_ids": True, "cache_salt": salt()}
        reply = server.chat(ask, temperature=0, max_tokens=4, extra=extra)
        rows = reply.get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(ids) or whole(reply, "usage", "prompt_tokens") != len(ids):
            found = f"{len(rows) if isinstance(rows, list) else 'no'} entries, usage {reply.get('usage')}"
            raise CheckFailed("not one entry for every token of the prompt", f"{len(ids)} entries", found)
        if reply.get("prompt_token_ids") != ids:
            raise CheckFailed("the prompt is not the one asked", f"the ids {ids}", reply.get("prompt_token_ids"))
        if rows[0] is not None:
            raise CheckFailed("the first token of the prompt has log-probabilities", "null", rows[0])
        values = [_check_entry(place, rows[place], ids[place], top) for place in range(1, len(ids))]
        if len(set(values)) <= len(values) // 3:
            raise CheckFailed("the log-probabilities of the prompt are all alike", "values that differ", values)
        return values


class JsonSchema(Check):
    """A schema decides the reply."""

    name = "json_schema"
    demanded = (
        "a reply under a schema is JSON of exactly the keys and types that the schema has",
        "control: under a schema with a random key and random values that no prompt names, the reply has them",
        "without a schema the same prompt's reply has not that key",
        "replies under a schema end by themselves",
    )

    def asked(self) -> str:
        return "one question at temperature 0 under a schema, under another with a random key, and under none"

    def feature(self) -> dict[str, Any]:
        wanted = {"name": "reply", "schema": texts.PERSON_SCHEMA, "strict": True}
        return {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": wanted}}

    def run(self, server: Server) -> dict[str, Any]:
        question = texts.person_question(self.rng.choice(texts.NAMES))
        person = self._under(server, question, texts.PERSON_SCHEMA)
        good = isinstance(person, dict) and set(person) == {"name", "age"} and isinstance(person["name"], str)
        if not good or not isinstance(person["age"], int) or isinstance(person["age"], bool):
            todo = "see --structured-outputs-config"
            raise CheckFailed("the reply is not what the schema says", "{name: text, age: number}", person, todo)
        key = f"k{self.rng.randrange(16**8):08x}"
        values = [f"v{self.rng.randrange(16**8):08x}" for _value in range(2)]
        schema = {
            "type": "object",
            "properties": {key: {"type": "string", "enum": values}},
            "required": [key],
            "additionalProperties": False,
        }
        odd = self._under(server, question, schema)
        if not isinstance(odd, dict) or set(odd) != {key} or odd[key] not in values:
            todo = "the model may write JSON by itself: the schema had no effect"
            raise CheckFailed("a schema nobody can guess is not followed", f"{key}: one of {values}", odd, todo)
        plain = text_of(self._ask(server, question))
        if key in plain:
            raise CheckFailed("the schema of one request is in the next", f"a reply without {key}", plain)
        return {"question": question, "reply": person, "guessed_by_nobody": odd, "without_schema": plain}

    def _under(self, server: Server, question: str, schema: dict[str, Any]) -> Any:
        wanted = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}
        reply = self._ask(server, question, response_format=wanted)
        text = text_of(reply)
        finish = at(reply, "choices", 0, "finish_reason")
        if finish != "stop":
            todo = "white space without end? see disable_any_whitespace of --structured-outputs-config"
            raise CheckFailed("the reply under a schema did not end by itself", "stop", f"{finish}: {text!r}", todo)
        try:
            return json.loads(text)
        except ValueError:
            raise CheckFailed("the reply under a schema is not JSON", f"JSON for {schema}", text) from None

    def _ask(self, server: Server, question: str, **options: Any) -> dict[str, Any]:
        tokens = self.parameters["max_tokens"]
        return server.chat(question, temperature=0, max_tokens=tokens, extra={"cache_salt": salt()}, **options)


class LogitBias(Check):
    """A bias acts on its own request, in both directions."""

    name = "logit_bias"
    demanded = (
        "with +100 every token of the reply is the biased one, which the reply without a bias has not",
        "with -100 the first token of the reply without a bias comes no more",
        "the next request is as it was without a bias",
        "of four requests at once, two with the bias and two without, each is as it is alone",
    )

    def asked(self) -> str:
        return f"one prompt at temperature 0, {BIAS_TOKENS} tokens: plain, biased up, biased down, plain, four at once"

    def feature(self) -> dict[str, Any]:
        return {"temperature": 0, "logit_bias": {"1": 100}}

    def run(self, server: Server) -> dict[str, Any]:
        base = self._ids(server, {})
        token = self._other_token(server, base)
        up, down = {str(token): 100}, {str(base[0]): -100}
        raised = self._ids(server, up)
        if set(raised) != {token} or len(raised) != BIAS_TOKENS:
            raise CheckFailed("a bias of +100 had no effect", f"{BIAS_TOKENS} times {token}", raised)
        lowered = self._ids(server, down)
        if base[0] in lowered:
            raise CheckFailed("a bias of -100 had no effect", f"no {base[0]}", lowered)
        again = self._ids(server, {})
        if again != base:
            raise CheckFailed("a bias is left over in the next request", str(base), again)
        start = threading.Barrier(4)
        rows = together([partial(self._row, server, start, bias) for bias in ({}, up, {}, up)], server.deadline)
        if rows != [base, raised, base, raised]:
            todo = "the bias of one row of the batch acts on another"
            raise CheckFailed("a bias acts on the wrong row", str([base, raised, base, raised]), rows, todo)
        return {"token": token, "plain": base, "raised": raised, "lowered": lowered}

    def _row(self, server: Server, start: threading.Barrier, bias: dict[str, int]) -> list[int]:
        start.wait(server.deadline.left())
        return self._ids(server, bias)

    def _ids(self, server: Server, bias: dict[str, int]) -> list[int]:
        extra = {"cache_salt": salt(), "return_token_ids": True, "ignore_eos": True}
        options: dict[str, Any] = {"logit_bias": bias} if bias else {}
        reply = server.chat(self.parameters["ask"], temperature=0, max_tokens=BIAS_TOKENS, extra=extra, **options)
        return ids_of(reply)

    def _other_token(self, server: Server, base: list[int]) -> int:
        """A token that the reply without a bias has not."""
        words = self.rng.sample(texts.ANIMALS, len(texts.ANIMALS))
        for word in words:
            for token in server.tokens(f" {word}"):
                if token not in base:
                    return token
        raise CheckFailed("no word could be found to bias", "a word with a token that the reply has not", base)


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


def _check_entry(place: int, row: Any, token: int, top: int) -> float:
    """The log-probability of the prompt's token at a place; CheckFailed where its entry is not what it should be."""
    where = f"token {place} of the prompt"
    if not isinstance(row, dict) or str(token) not in row:
        todo = "the entries are those of another prompt, or shifted"
        raise CheckFailed(f"{where}: its own token is missing", f"an entry for {token}", row, todo)
    # The prompt's own token comes besides the likeliest ones, unless it is among them.
    if not top <= len(row) <= top + 1:
        raise CheckFailed(f"{where}: not {top} entries", f"{top} or {top + 1} entries", f"{len(row)} entries")
    values = {name: at(entry, "logprob") for name, entry in row.items()}
    if not all(isinstance(value, (int, float)) and math.isfinite(value) and value <= 1e-6 for value in values.values()):
        raise CheckFailed(f"{where}: not log-probabilities", "finite numbers up to 0", values)
    if any(value <= -9998 for value in values.values()):
        raise CheckFailed(f"{where}: placeholders among the entries", "no -9999", values)
    ranked = [values[name] for name, _entry in sorted(row.items(), key=lambda item: int(at(item[1], "rank")))]
    if ranked != sorted(ranked, reverse=True):
        raise CheckFailed(f"{where}: the ranks are not in order", "from likely to unlikely", row)
    if sum(map(math.exp, values.values())) > 1.001:
        raise CheckFailed(f"{where}: probabilities add up to more than 1", "at most 1", values)
    return float(values[str(token)])
