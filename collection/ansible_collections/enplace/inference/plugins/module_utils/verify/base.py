# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What all checks are made of: their base, what they share in one run, and the reading of a reply and of a stream."""

from __future__ import annotations

import math
import os
import random
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from ansible_collections.enplace.inference.plugins.module_utils.verify.server import (
    CheckFailed,
    Server,
    Vitals,
    at,
    whole,
)

# Facts about the KV cache, in its labels.
CACHE_CONFIG = "vllm:cache_config_info"
# How often the timer of a unit asks its server for one token, to see whether it is alive.
PROBE_EVERY_S = 60.0
# A refused request, and the plain ones around it.
REFUSED_TOKENS = 4
REFUSED_DEMANDS = (
    "the request of the check is refused: HTTP 400 with a message, as the recipe declares",
    "control: the same prompt without what is refused is answered, before and after",
)


@dataclass
class Context:
    """What the checks of one run share.

    version: the release's engine version.
    unit and invocation: the systemd unit that serves and its present run; empty where no unit is known.
    restarts: how often systemd started it anew by itself.
    pid: the unit's main process; 0 where it is not known.
    first: what told the process before the first check; None where that was not read.
    alone: replies that were asked for once already.
    """

    version: str
    unit: str = ""
    invocation: str = ""
    restarts: int = 0
    pid: int = 0
    first: Vitals | None = None
    alone: dict[tuple[Any, ...], str] = field(default_factory=dict)


class Check:
    """One check: its parameters with defaults filled in, what it asks, what it demands, and its evidence."""

    name: ClassVar[str]
    demanded: ClassVar[tuple[str, ...]]
    # Whether it looks at the systemd unit that serves: nobody can where a server is known by its address alone.
    of_unit: ClassVar[bool] = False

    def __init__(self, parameters: dict[str, Any], context: Context) -> None:
        self.parameters = parameters
        self.context = context
        # Part of the evidence: with the seed the same texts can be made up again.
        self.seed: str = parameters.get("seed") or os.urandom(8).hex()

    @cached_property
    def rng(self) -> random.Random:
        """The source of all that the check makes up; where it was used, `made_up` is true."""
        return random.Random(self.seed)

    @property
    def made_up(self) -> bool:
        """Whether anything asked depends on the seed."""
        return "rng" in self.__dict__

    def asked(self) -> str:
        """What is asked, in one line."""
        raise NotImplementedError

    def run(self, server: Server) -> dict[str, Any]:
        """Ask, and return the evidence; CheckFailed where a demand does not hold."""
        raise NotImplementedError

    def feature(self) -> dict[str, Any]:
        """What a request must have to ask for what the check is about: the options of `Server.chat`.

        Only of checks that take `refused`.
        """
        raise NotImplementedError

    def question(self) -> str:
        """A prompt for the check's own request."""
        return str(self.parameters.get("ask") or "Hello")

    def run_refused(self, server: Server) -> dict[str, Any]:
        """Ask for what the recipe says is refused; CheckFailed where it is not, or where anything else is."""
        options = {"max_tokens": REFUSED_TOKENS, **self.feature()}
        self._plain(server, "before", options["max_tokens"])
        status, said = server.refusal(self.question(), **options)
        if status == 200:
            todo = "remove refused from the check, so that it is shown that the engine does it rightly"
            raise CheckFailed("the engine does what the recipe says it refuses", "HTTP 400", "HTTP 200", todo)
        if status != 400 or not said:
            todo = "a client must be told that it asked for too much: this is an error of another kind"
            found = f"HTTP {status}: {said or 'no message'}"
            raise CheckFailed("the refusal is not one", "HTTP 400 with error.message", found, todo)
        self._plain(server, "after", options["max_tokens"])
        return {"status": status, "message": said, "declared": self.parameters["refused"]}

    def _plain(self, server: Server, when: str, tokens: int) -> None:
        """Control: without what is refused the same prompt is answered."""
        reply = server.chat(self.question(), temperature=0, max_tokens=tokens, extra={"cache_salt": salt()})
        if whole(reply, "usage", "completion_tokens") < 1:
            raise CheckFailed(f"the plain request {when} the refused one has no tokens", "1 or more", reply)


@dataclass
class Row:
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


def probes(seconds: float) -> int:
    """How many questions of a unit's timer may have fallen into so many seconds."""
    return math.ceil(seconds / PROBE_EVERY_S) + 1


def salt() -> str:
    """A salt that no request had before: the reply is computed, not found in the prefix cache."""
    return os.urandom(8).hex()


def text_of(reply: dict[str, Any]) -> str:
    """The text of a reply, empty where it has none."""
    text = at(reply, "choices", 0, "message").get("content")
    return text if isinstance(text, str) else ""


def ids_of(reply: dict[str, Any]) -> list[int]:
    ids = at(reply, "choices", 0, "token_ids")
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise CheckFailed("the reply has no token ids", "choices[0].token_ids, as return_token_ids asks", ids)
    return ids


def cached_tokens(reply: dict[str, Any]) -> int | None:
    """Prompt tokens that usage says were read from the prefix cache; None where it does not say."""
    details = at(reply, "usage").get("prompt_tokens_details")
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def room(server: Server, prompt: int, least: int, most: int) -> int:
    """Tokens for a reply to a prompt of so many tokens: `most`, or what the context leaves.

    CheckFailed where it leaves less than `least`. A server that does not tell its context is asked for `most`.
    """
    limits = [at(entry, "max_model_len") for entry in server.models() if at(entry, "id") == server.model]
    if not limits or not isinstance(limits[0], int):
        return most
    if prompt + least > limits[0]:
        todo = "shorten the lengths of the check, or raise --max-model-len"
        expected = f"{prompt} tokens of prompt and {least} of reply"
        raise CheckFailed("a length does not fit the context", expected, f"{limits[0]} tokens", todo)
    return min(most, limits[0] - prompt)


def stream(server: Server, ask: str, temperature: float, tokens: int, forced: bool = True) -> Row:
    extra = {"cache_salt": salt(), "return_token_ids": True, **({"ignore_eos": True} if forced else {})}
    row = Row()
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
