# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated OpenAI-compatible server that tells one lie at a time, to prove that each check can fail.

Nothing here is a model: a table of answers, a token for every letter, and made-up probabilities. It speaks the part of
vLLM's interface that the checks use, and without a lie it tells the truth about itself.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import itertools
import json
import math
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ANSWERS = {
    "What is 17 + 25? Reply with the number only.": "42",
    "What is 9 times 8? Reply with the number only.": "72",
    "How many days are in a leap year? Reply with the number only.": "366",
    "What is the capital of France? Reply with one word.": "Paris",
    "Which planet is known as the red planet? Reply with one word.": "Mars",
    "What is the chemical symbol for gold? Reply with the symbol only.": "Au",
    "Translate 'good morning' into Spanish. Reply with the translation only.": "Buenos días",
    "Translate 'thank you' into German. Reply with the translation only.": "Danke",
}
OTHERWISE = "In the harbor."
END = 0  # token id of the end of a reply
BLOCK = 64  # tokens of a block of the prefix cache
BEGIN = 3  # requests that were finished before any check
CALL_ID = "call-"
NEVER_IN_A_CROWD = ("tools", "response_format", "logprobs", "prompt_logprobs")
FILLER = " and so on"
CROWD_LIES = ("wrong_in_batch", "crossed_rows", "bias_on_all_rows")
CROWD = 4  # requests in flight that are a batch for certain: a client's other threads may be late on a busy machine
CROWD_S = 0.4  # how long such a lie waits for them
RANKS = 12  # tokens that may be sampled, each half as likely as the one before

# Lies about what is served, and how. Each breaks one thing; all else stays true.
LIES = {
    "wrong_version": "another engine version",
    "wrong_model": "another model's name",
    "wrong_context": "another context length",
    "other_model_answers": "completions that name another model",
    "any_name": "answers to any model's name",
    "wrong_answer": "one wrong answer",
    "inside_a_number": "the answer only as part of a larger number",
    "says_everything": "every reply holds all answers",
    "cut_short": "finish_reason length although the answer is there",
    "empty_text": "HTTP 200 with empty text",
    "crossed_rows": "with several in flight, each gets its neighbour's answer",
    "wrong_in_batch": "with several in flight, wrong answers",
    "one_at_a_time": "one stream after another, never a batch",
    "no_ignore_eos": "ignores ignore_eos",
    "top_capped": "at most 5 top_logprobs",
    "no_logprobs": "no logprobs at all",
    "shifted_rows": "logprob rows shifted by one token",
    "missing_row": "one logprob row too few",
    "placeholder": "-9999 among the values",
    "doubled_entries": "the same entry twice",
    "unsorted": "entries out of order",
    "certain": "probabilities that add up to more than 1",
    "not_finite": "NaN among the values",
    "frames_as_tokens": "counts frames of a stream as tokens",
    "prompt_off_by_one": "one prompt token too many",
    "wrong_total": "a total that is no sum",
    "no_usage_in_stream": "a stream without usage",
    "constant_usage": "the same counts for everything",
    "tokenize_wrong": "/tokenize that counts words",
    "stream_cut": "a stream that ends without a finish_reason",
    "stream_error": "an error object inside a stream",
    "stream_endless": "a stream that never ends",
    "restarts": "a new process start time after every completion",
    "counter_falls": "request counter that starts anew",
    "answers_from_elsewhere": "completions the engine never finished",
    "no_metrics": "/metrics without anything that identifies the process",
    "tells_nothing": "neither /health nor /metrics, nor /version",
    "unhealthy_after": "/health 503 once a completion was answered",
    "no_call": "never calls a tool",
    "wrong_city": "a call about another city",
    "more_arguments": "a call with an argument that the tool has not",
    "markup_left": "a call that is left in the text as well",
    "call_ends_as_text": "finish_reason stop after a call",
    "calls_without_tools": "a call although no tool was offered",
    "ignores_tool_choice": "a call under tool_choice none",
    "same_call_id": "one id for all calls",
    "call_in_one_frame": "a streamed call that comes whole",
    "call_twice_in_stream": "a streamed call with two ids",
    "arguments_cut": "the last piece of a streamed call is lost",
    "ignores_result": "another call instead of an answer to the tool's result",
    "constant_result": "the same answer whatever the tool returned",
    "result_of_before": "an answer with what the tool returned the time before",
    "no_prompt_logprobs": "no prompt_logprobs at all",
    "null_prompt_logprobs": "prompt_logprobs that are all null",
    "shifted_prompt_logprobs": "prompt_logprobs of the token before",
    "alike_prompt_logprobs": "the same log-probability for every token of the prompt",
    "capped_prompt_logprobs": "one entry for each token of the prompt",
    "other_prompt": "prompt_logprobs of another prompt",
    "ignores_schema": "JSON, but not what the schema says",
    "schema_types": "numbers in quotes under a schema",
    "schema_without_end": "white space without end under a schema",
    "schema_stays": "a schema that acts on the next request as well",
    "ignores_bias": "ignores logit_bias above 0",
    "ignores_ban": "ignores logit_bias below 0",
    "bias_stays": "a bias that acts on the next request as well",
    "bias_on_all_rows": "a bias that acts on all requests in flight",
    "always_greedy": "the likeliest token at every temperature",
    "ignores_min_p": "ignores min_p",
    "min_p_stays": "a min_p that acts on the next requests as well",
    "min_p_greedy": "the likeliest token under min_p",
    "ignores_min_tokens": "ignores min_tokens",
    "min_tokens_past_end": "goes on for min_tokens with the end in the middle",
    "min_tokens_stays": "min_tokens that act on the next request as well",
    "ignores_bad_words": "ignores bad_words",
    "bad_words_stay": "bad words that act on the next request as well",
    "bad_words_change_all": "another reply under any bad word",
    "ignores_seed": "ignores the seed",
    "one_seed": "one seed for all requests",
    "seed_stays": "a seed that acts on the next requests as well",
    "never_cached": "reads nothing from the prefix cache",
    "always_cached": "says that the prompt was cached when it was not",
    "ignores_salt": "one prefix cache whatever the cache_salt",
    "no_cached_tokens": "usage without details of the prompt",
    "hits_not_counted": "hits of the prefix cache that /metrics does not count",
    "cached_off_block": "cached tokens that are no whole blocks",
    "cached_little": "only the first block is read from the cache",
    "cached_to_the_end": "a prompt that ends with a block is read from the cache wholly",
    "cached_rounded_up": "a block that lacks its last token is read from the cache",
    "boundary_changes_values": "other log-probabilities where a prompt ends just after a block that was cached",
    "cache_changes_values": "other log-probabilities from the cache",
    "cache_changes_tokens": "other tokens from the cache",
    "noise": "other log-probabilities each time",
    "no_hits_counter": "/metrics without the hits of the prefix cache",
    "cuts_prompts": "reads the last part of a prompt only",
    "cuts_prompts_quietly": "reads the last part of a prompt only, and counts all of it",
    "first_code_always": "gives the first code it ever gave",
    "any_code": "gives some code",
    "two_codes": "gives its own code and the one before it",
    "no_draft_counters": "/metrics without counters of speculation",
    "nothing_drafted": "counters of speculation that stay as they are",
    "nothing_accepted": "a draft that is never accepted",
    "all_accepted": "a draft that is always accepted",
    "short_drafts": "drafts of one token",
    "later_positions_rare": "a draft whose second token is worse than told",
    "no_positions": "/metrics without the shares of positions",
    "others_ask": "other requests are answered meanwhile",
    "no_cache_config": "/metrics without the facts of the KV cache",
    "small_pool": "a KV pool that is too small",
    "unknown_pool": "a KV pool of None tokens",
    "little_concurrency": "a KV pool for half a request",
    "no_start_time": "/metrics without the start of the process",
    "token_counter_falls": "a counter of tokens that starts anew",
    "tokens_not_counted": "a counter of tokens that stays as it is",
}
# Lies of the wire: nothing that a completion should be.
WIRE = {
    "gigabyte": "a reply without end",
    "trickle": "a byte now and then, without end",
    "stall": "no answer at all",
    "invalid_json": "half a JSON object",
    "invalid_utf8": "bytes that are no text",
    "html": "a web page with HTTP 200",
    "json_list": "a list where an object belongs",
    "compressed": "gzip that nobody asked for",
    "broken_off": "a connection that breaks in the middle",
    "error_500": "HTTP 500",
    "error_401": "HTTP 401",
    "redirect": "HTTP 302 to somewhere else",
}
# Lies that no check is for: about the key, and about being alive.
OTHER = {
    "key_ignored": "answers whatever the key",
    "key_below_v1": "wants the key below /v1 alone",
    "key_in_replies": "every reply is the key that was asked with",
    "echoes_headers": "HTTP 500 with all headers of the request in it",
    "redirect_all": "HTTP 302 from everywhere to the address in `elsewhere`",
    "hangs": "no answer to a completion, and /health 200",
    "hangs_busy": "no answer to a completion, and tokens that are counted meanwhile",
    "refuses_with_500": "what is refused gets HTTP 500",
    "refuses_without_a_word": "what is refused gets HTTP 400 without a message",
    "refuses_and_dies": "what is refused gets HTTP 400, and then nothing more is answered",
    "refuses_all": "HTTP 400 to every completion",
}


class Simulated:
    """The server, on a free port of loopback. `with Simulated("top_capped") as server: server.url`."""

    def __init__(
        self,
        lie: str = "",
        *,
        model: str = "enplace/smoke",
        version: str = "0.28.0",
        context: int = 4096,
        port: int = 0,
        pace_s: float = 0.001,
        lazy_cache: bool = False,
        key: str = "",
        refuses: tuple[str, ...] = (),
        everywhere: bool = False,
    ) -> None:
        if lie and lie not in {**LIES, **WIRE, **OTHER}:
            raise ValueError(f"no such lie: {lie}; known are {', '.join([*LIES, *WIRE, *OTHER])}")
        self.lie = lie
        self.model = model
        self.version = version
        self.context = context
        self.pace_s = pace_s
        self.key = key  # asked for everywhere but where the release's guard lets everybody in
        self.everywhere = everywhere  # a lie of the wire is told at every path, not to completions alone
        self.refuses = refuses  # keys of a request that get HTTP 400
        self.keys: list[str] = []  # the Authorization of each request that had one
        self.elsewhere = ""
        self.asked: list[str] = []
        self.stopping = threading.Event()
        self.started = 1_700_000_000.0
        self.finished = BEGIN
        self.in_flight = 0
        self.lazy_cache = lazy_cache  # as a hybrid model may: the second visit stores what the third one reads
        self.cache: dict[str, set[int]] = {}
        self.visits: dict[int, int] = {}
        self.hits = 0
        self.generated = 50
        self.drafts = 0
        self.drafted = 0
        self.accepted = [0, 0]  # at the first and the second position
        self.calls = 0
        self.codes: list[str] = []
        self.results: list[str] = []
        self.schema_before: dict[str, Any] | None = None
        self.bias: dict[str, float] = {}
        self.before: dict[str, Any] = {}  # the last min_p, min_tokens, bad_words and seed asked for
        self.lock = threading.Lock()
        self.one_at_a_time = threading.Lock()
        simulated = self

        class Handler(_Handler):
            server_is = simulated

        self.http = _Http(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Simulated:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.http.shutdown()
        self.http.server_close()
        self._thread.join()

    def wait_for_the_others(self) -> None:
        """A moment for requests that were sent at the same time, so that a batch is a batch."""
        time.sleep(10 * self.pace_s)
        if self.lie in CROWD_LIES:
            end = time.monotonic() + CROWD_S
            while self.in_flight < CROWD and time.monotonic() < end:
                time.sleep(self.pace_s)

    def reply_to(self, question: str, crowd: int) -> str:
        """The text for one prompt; `crowd` is the number of requests in flight, this one among them."""
        if self.lie == "key_in_replies":
            return self.keys[-1] if self.keys else "no key"
        answer = ANSWERS.get(question, OTHERWISE)
        if self.lie == "wrong_answer" and answer == "Mars":
            return "Venus"
        if self.lie == "inside_a_number" and answer == "42":
            return "1420"
        if self.lie == "says_everything":
            return ", ".join(ANSWERS.values())
        if self.lie == "empty_text":
            return ""
        if crowd > 1 and self.lie == "wrong_in_batch":
            return "!!!!"
        if crowd > 1 and self.lie == "crossed_rows" and question in ANSWERS:
            keys = list(ANSWERS)
            return ANSWERS[keys[(keys.index(question) + 1) % len(keys)]]
        return answer

    def city_to_call_about(self, body: dict[str, Any]) -> str:
        """The city that the tool is to be called about; empty where the reply is to be a text."""
        last = body["messages"][-1]
        asked = re.search(r'weather in "(\w+)"', str(last["content"]))
        if self.lie == "ignores_result" and last["role"] == "tool":
            asked = re.search(r'weather in "(\w+)"', str(body["messages"][0]["content"]))
        offered = bool(body.get("tools")) or self.lie == "calls_without_tools"
        forbidden = body.get("tool_choice") == "none" and self.lie != "ignores_tool_choice"
        if asked is None or not offered or forbidden or self.lie == "no_call":
            return ""
        return "Atlantis" if self.lie == "wrong_city" else asked[1]

    def result_used(self, result: str) -> str:
        """The answer to what the tool returned."""
        self.results.append(result)
        if self.lie == "result_of_before":
            result = self.results[max(0, len(self.results) - 2)]
        if self.lie == "constant_result":
            result = "temperature: 5 C, condition: sunny"
        temperature, condition = re.findall(r": (\w+)", result)
        return f"It is {temperature} degrees and {condition}."

    def needle_found(self, prompt: str) -> str:
        """The sentence that a prompt asks for, empty if it asks for none; it is only looked for where it was read."""
        asked = re.search(r"What is the code of the (\w+)\?$", prompt)
        if asked is None:
            return ""
        read = prompt[-KEPT:] if self.lie in ("cuts_prompts", "cuts_prompts_quietly") else prompt
        hidden = re.search(rf"The code of the {asked[1]} is (\w+ \w+)\.", read)
        code = hidden[1] if hidden else "unknown to me"
        self.codes.append(code)
        if self.lie == "first_code_always":
            code = self.codes[0]
        if self.lie == "any_code":
            code = "white mouse"
        if self.lie == "two_codes":
            code = ", ".join(reversed(self.codes[-2:]))
        return f"The code of the {asked[1]} is {code}."

    def under_schema(self, schema: dict[str, Any]) -> str:
        """A text that is what a schema says."""
        if self.lie == "ignores_schema":
            return '{"name": "Alice", "age": 23}'
        if self.lie == "schema_without_end":
            return "{" + " " * 10_000
        values: dict[str, Any] = {}
        for key, kind in schema["properties"].items():
            number = "23" if self.lie == "schema_types" else 23
            values[key] = kind["enum"][0] if "enum" in kind else {"string": "Alice", "integer": number}[kind["type"]]
        return json.dumps(values)

    def cached(self, body: dict[str, Any], ids: list[int]) -> int:
        """Tokens of a prompt that are read from the cache, which then holds all its whole blocks."""
        with self.lock:
            salt = "" if self.lie == "ignores_salt" else str(body.get("cache_salt"))
            known = self.cache.setdefault(salt, set())
            # For every whole block a key of all up to its end; the last token is always computed.
            keys: dict[int, int] = {}
            for place in range(BLOCK, len(ids), BLOCK):
                keys[place] = hash((keys.get(place - BLOCK), *ids[place - BLOCK : place]))
            found = max((place for place, key in keys.items() if key in known), default=0)
            whole = hash(tuple(ids))
            self.visits[whole] = self.visits.get(whole, 0) + 1
            if not self.lazy_cache or self.visits[whole] > 1:
                known.update(keys.values())
            if self.lie == "never_cached":
                found = 0
            if self.lie == "always_cached":
                found = max(keys, default=0)
            if self.lie == "cached_off_block" and found:
                found -= 7
            if found and (self.lie, len(ids) % BLOCK) in (("cached_to_the_end", 0), ("cached_rounded_up", BLOCK - 1)):
                found = math.ceil(len(ids) / BLOCK) * BLOCK
            if self.lie == "cached_little":
                found = min(found, BLOCK)
            if self.lie != "hits_not_counted":
                self.hits += found
            return found


KEPT = 300  # letters that are read of a prompt that is cut


class Journal:
    """A simulated journalctl in a folder of its own, which tells the lines of the run it is asked about."""

    def __init__(self, folder: Path) -> None:
        self._lines = folder / "journal"
        self._calls = folder / "journal-calls"
        self._rest = folder / "journal-rest"
        self.programs = folder / "journal-programs"
        self.programs.mkdir()
        self._rest.write_text("")
        self.clear()
        program = self.programs / "journalctl"
        program.write_text(
            "#!/bin/sh\n"
            f'echo "$*" >> {self._calls}\n'
            "for last; do :; done\n"
            f'sed -n "s/^${{last#_SYSTEMD_INVOCATION_ID=}} //p" {self._lines}\n'
            f". {self._rest}\n"
        )
        program.chmod(0o755)

    def clear(self) -> None:
        """Forget all lines."""
        self._lines.write_bytes(b"")

    def write(self, invocation: str, *lines: str) -> None:
        """Log lines of one run of a unit."""
        with self._lines.open("a", encoding="utf-8", errors="surrogateescape") as stream:
            stream.writelines(f"{invocation} {line}\n" for line in lines)

    def refuse(self, why: str) -> None:
        """From now on the journal cannot be read."""
        self.clear()
        self._rest.write_text(f"echo '{why}' >&2\nexit 1\n")

    def hang(self) -> None:
        """From now on the journal never comes to its end."""
        self._rest.write_text("exec sleep 60\n")

    def asked(self) -> list[str]:
        """The arguments of every call."""
        return self._calls.read_text().splitlines()


def ids_of(text: str) -> list[int]:
    """A token for every letter."""
    return [ord(letter) for letter in text]


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """Tokens of a conversation: its text with a role before each message."""
    return ids_of("".join(f"<{message['role']}>{message.get('content') or ''}" for message in messages) + "<assistant>")


@dataclass(frozen=True)
class _Reply:
    """What a request is answered with: its prompt's tokens, how many of them were cached, and the reply's own.

    ranks: how many tokens were likelier than each one of the reply.
    """

    body: dict[str, Any]
    prompt: list[int]
    cached: int
    ids: list[int]
    ranks: list[int]
    finish: str
    call: str


class _Http(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave when they have seen enough; that is no error here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written apart; the second would wait for an acknowledgement
    server_is: Simulated

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _refused(self) -> bool:
        """Whether the key was missing or wrong, and the client was told so."""
        me = self.server_is
        if self.headers.get("Authorization"):
            me.keys.append(self.headers["Authorization"])
        if me.lie == "redirect_all":
            self._redirect(me.elsewhere + self.path)
            return True
        open_to_all = self.path in ("/health", "/metrics")
        if me.lie == "key_below_v1":
            open_to_all = not self.path.startswith("/v1")
        if not me.key or me.lie == "key_ignored" or open_to_all:
            return False
        if self.headers.get("Authorization") == f"Bearer {me.key}":
            return False
        self._json({"error": "Unauthorized"}, 401)
        return True

    def do_GET(self) -> None:
        me = self.server_is
        me.asked.append(f"GET {self.path}")
        if self._refused():
            return
        if me.everywhere and me.lie in WIRE:
            self._wire()
        elif me.lie == "tells_nothing" and self.path in ("/health", "/metrics", "/version"):
            self._json({"error": {"message": "no such path"}}, 404)
        elif self.path == "/health":
            bad = me.lie == "unhealthy_after" and me.finished > BEGIN
            self._send(503 if bad else 200, b"", "text/plain")
        elif self.path == "/version":
            self._json({"version": "0.27.1" if me.lie == "wrong_version" else me.version})
        elif self.path == "/metrics":
            self._send(200, self._metrics().encode(), "text/plain")
        elif self.path == "/v1/models":
            name = "enplace/other" if me.lie == "wrong_model" else me.model
            context = 2048 if me.lie == "wrong_context" else me.context
            self._json({"object": "list", "data": [{"id": name, "object": "model", "max_model_len": context}]})
        else:
            self._json({"error": {"message": "no such path"}}, 404)

    def do_POST(self) -> None:
        me = self.server_is
        me.asked.append(f"POST {self.path}")
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self._refused():
            return
        if self.path == "/tokenize" and "prompt" in body:
            ids = ids_of(body["prompt"])
            self._json({"count": len(ids), "tokens": ids})
        elif self.path == "/tokenize":
            ids = prompt_ids(body["messages"])
            words = sum(len(str(message["content"]).split()) for message in body["messages"])
            self._json({"count": words if me.lie == "tokenize_wrong" else len(ids), "tokens": ids})
        elif self.path in ("/v1/chat/completions", "/invocations"):
            if me.lie in (*WIRE, "echoes_headers", "hangs", "hangs_busy"):
                self._wire()
            elif body["model"] != me.model and me.lie != "any_name":
                self._json({"error": {"message": f"The model {body['model']} does not exist.", "code": 404}}, 404)
            else:
                self._complete(body)
        else:
            self._json({"error": {"message": "no such path"}}, 404)

    # ---- completions

    def _complete(self, body: dict[str, Any]) -> None:
        me = self.server_is
        with me.lock:
            me.in_flight += 1
            me.bias = body.get("logit_bias") or me.bias
        try:
            if not any(body.get(key) for key in NEVER_IN_A_CROWD):
                me.wait_for_the_others()
            if self._refuses(body):
                return
            call = me.city_to_call_about(body)
            prompt = prompt_ids(body["messages"])
            limit = int(body.get("max_tokens") or 64)
            if len(prompt) + limit > me.context:
                message = f"{len(prompt)} tokens of prompt and {limit} of reply are more than {me.context}"
                self._json({"error": {"message": message, "code": 400}}, 400)
                return
            cached = me.cached(body, prompt)
            text = f"<tool_call>{_arguments(me.lie, call)}</tool_call>" if call else self._text_for(body)
            if me.lie == "cache_changes_tokens" and cached:
                text = f"!{text}"
            ids = self._long_enough(body, ids_of(self._without_bad_words(body, text)))
            if body.get("ignore_eos") and me.lie != "no_ignore_eos":
                while len(ids) < limit:
                    ids += ids_of(FILLER)
            finish = "stop" if len(ids) <= limit and not body.get("ignore_eos") else "length"
            ids = self._biased(body, ids[:limit])
            ranks = self._ranks(body, len(ids))
            ids = [token + rank for token, rank in zip(ids, ranks, strict=True)]
            if me.lie == "cut_short":
                finish = "length"
            if call and me.lie != "call_ends_as_text":
                finish = "tool_calls"
            reply = _Reply(body, prompt, cached, ids, ranks, finish, call)
            if body.get("stream"):
                if me.lie == "one_at_a_time":
                    with me.one_at_a_time:
                        self._stream(reply)
                else:
                    self._stream(reply)
            else:
                self._plain(reply)
        finally:
            with me.lock:
                me.in_flight -= 1

    def _text_for(self, body: dict[str, Any]) -> str:
        me = self.server_is
        last = body["messages"][-1]
        schema = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
        if schema is not None:
            me.schema_before = schema
        elif me.lie == "schema_stays":
            schema, me.schema_before = me.schema_before, None
        if schema is not None:
            return me.under_schema(schema)
        if last["role"] == "tool":
            return me.result_used(str(last["content"]))
        question = str(last["content"])
        return me.needle_found(question) or me.reply_to(question, me.in_flight)

    def _biased(self, body: dict[str, Any], ids: list[int]) -> list[int]:
        me = self.server_is
        bias = body.get("logit_bias") or {}
        if me.lie == "bias_stays" or (me.lie == "bias_on_all_rows" and me.in_flight > 1):
            bias = me.bias
        for token, value in bias.items():
            if value >= 100 and me.lie != "ignores_bias":
                ids = [int(token)] * len(ids)
            if value <= -100 and me.lie != "ignores_ban":
                ids = [one + 1 if one == int(token) else one for one in ids]
        return ids

    def _asked_for(self, body: dict[str, Any], key: str, stays: str) -> Any:
        """What a request asks for; under the lie `stays` what an earlier one asked for."""
        me = self.server_is
        value = body.get(key)
        if value is None and me.lie == stays:
            return me.before.get(key)
        me.before[key] = value
        return value

    def _refuses(self, body: dict[str, Any]) -> bool:
        """Whether the request asks for what this server refuses, and the client was told so."""
        me = self.server_is
        refused = [key for key in me.refuses if body.get(key)]
        if not refused and me.lie != "refuses_all" and not (me.lie == "refuses_and_dies" and "refused" in me.before):
            return False
        me.before["refused"] = refused
        status = 500 if me.lie == "refuses_with_500" else 400
        message = "" if me.lie == "refuses_without_a_word" else f"{', '.join(refused) or 'this'} is not supported"
        self._json({"error": {"message": message, "code": status}}, status)
        return True

    def _without_bad_words(self, body: dict[str, Any], text: str) -> str:
        me = self.server_is
        words = self._asked_for(body, "bad_words", "bad_words_stay") or []
        if words and me.lie == "bad_words_change_all":
            return "Elsewhere."
        for word in words if me.lie != "ignores_bad_words" else []:
            text = text.replace(word, word[:-1] + chr(ord(word[-1]) + 1))
        return text

    def _long_enough(self, body: dict[str, Any], ids: list[int]) -> list[int]:
        """A reply with its end, which does not come before min_tokens."""
        me = self.server_is
        least = self._asked_for(body, "min_tokens", "min_tokens_stays") or 0
        if me.lie == "ignores_min_tokens":
            least = 0
        if me.lie == "min_tokens_past_end" and least:
            ids = [*ids, END]
        while len(ids) < least:
            ids = [*ids, *ids_of(FILLER)]
        return [*ids, END]

    def _ranks(self, body: dict[str, Any], count: int) -> list[int]:
        """For every token of a reply how many were likelier. It is sampled at high temperatures alone: the others are
        asked for what is known."""
        me = self.server_is
        temperature = float(body.get("temperature") or 0)
        min_p = self._asked_for(body, "min_p", "min_p_stays") or 0
        seed = self._asked_for(body, "seed", "seed_stays")
        if temperature < 1 or me.lie == "always_greedy" or (me.lie == "min_p_greedy" and min_p):
            return [0] * count
        seed = {"ignores_seed": None, "one_seed": 1}.get(me.lie, seed)
        likely = [0.5 ** (rank / temperature) for rank in range(RANKS)]
        allowed = [value if value >= min_p or me.lie == "ignores_min_p" else 0 for value in likely]
        return random.Random(seed).choices(range(RANKS), allowed, k=count)

    def _finished(self, reply: _Reply) -> None:
        me = self.server_is
        with me.lock:
            if me.lie != "answers_from_elsewhere":
                me.finished += 3 if me.lie == "others_ask" else 1
            if me.lie == "restarts":
                me.started += 1
            if me.lie == "counter_falls":
                me.finished = 0
            if me.lie != "tokens_not_counted":
                me.generated += len(reply.ids)
            if me.lie == "token_counter_falls":
                me.generated = 0
            if me.lie != "nothing_drafted":  # of six drafts of two tokens five first and four second ones are accepted
                steps = max(1, len(reply.ids) * 2 // 5)
                first, second = {
                    "nothing_accepted": (0, 0),
                    "all_accepted": (steps, steps),
                    "short_drafts": (steps * 5 // 6, 0),
                    "later_positions_rare": (steps, steps * 3 // 6),
                }.get(me.lie, (steps * 5 // 6, steps * 4 // 6))
                me.drafts += steps
                me.drafted += steps if me.lie == "short_drafts" else 2 * steps
                me.accepted = [me.accepted[0] + first, me.accepted[1] + second]

    def _plain(self, reply: _Reply) -> None:
        me = self.server_is
        body, ids = reply.body, reply.ids
        message: dict[str, Any] = {"role": "assistant", "content": _text(ids)}
        if reply.call:
            message["content"] = _text(ids) if me.lie == "markup_left" else None
            message["tool_calls"] = [{"id": self._call_id(), "type": "function", "function": self._function(reply)}]
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "finish_reason": reply.finish,
            "logprobs": None,
        }
        whole = self._head(body, "chat.completion")
        if body.get("return_token_ids"):
            choice["token_ids"] = ids
            whole["prompt_token_ids"] = reply.prompt
        if body.get("logprobs") and me.lie != "no_logprobs":
            choice["logprobs"] = {"content": self._rows(reply, int(body.get("top_logprobs") or 0))}
        if body.get("prompt_logprobs") is not None and me.lie != "no_prompt_logprobs":
            whole["prompt_logprobs"] = self._prompt_rows(reply.prompt, int(body["prompt_logprobs"]))
        whole["choices"] = [choice]
        whole["usage"] = self._usage(reply, len(ids))
        self._finished(reply)
        self._json(whole)

    def _stream(self, reply: _Reply) -> None:
        me = self.server_is
        body, ids = reply.body, reply.ids
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        head = self._head(body, "chat.completion.chunk")
        first = {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        if body.get("return_token_ids"):
            first["prompt_token_ids"] = reply.prompt
        self._frame(first)
        deltas = self._call_deltas(reply) if reply.call else []
        # As with a draft: two tokens at once.
        deltas = deltas or [({"content": _text(ids[at : at + 2])}, ids[at : at + 2]) for at in range(0, len(ids), 2)]
        for index, (delta, part) in enumerate(deltas):
            time.sleep(me.pace_s)
            last = index == len(deltas) - 1 and me.lie != "stream_cut"
            choice: dict[str, Any] = {
                "index": 0,
                "delta": delta,
                "finish_reason": reply.finish if last else None,
            }
            if body.get("return_token_ids"):
                choice["token_ids"] = part
            self._frame({**head, "choices": [choice]})
        if me.lie == "stream_error":
            self._frame({"error": {"message": "EngineCore encountered an issue", "code": 500}})
        while me.lie == "stream_endless" and not me.stopping.is_set():
            time.sleep(me.pace_s)
            self._frame({**head, "choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [120]}]})
        self._finished(reply)
        if me.lie not in ("no_usage_in_stream", "stream_cut"):
            count = len(deltas) if me.lie == "frames_as_tokens" else len(ids)
            self._frame({**head, "choices": [], "usage": self._usage(reply, count)})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _call_deltas(self, reply: _Reply) -> list[tuple[dict[str, Any], list[int]]]:
        """A streamed call in pieces, each with the tokens it came with."""
        me = self.server_is
        function = self._function(reply)
        text = function["arguments"]
        cuts = [0, len(text)] if me.lie == "call_in_one_frame" else [0, 0, len(text) // 2, len(text)]
        pieces = [text[begin:end] for begin, end in itertools.pairwise(cuts)]
        if me.lie == "arguments_cut":
            pieces.pop()
        deltas: list[tuple[dict[str, Any], list[int]]] = []
        for number, piece in enumerate(pieces):
            call: dict[str, Any] = {"index": 0, "function": {"arguments": piece}}
            if number == 0:
                call = {**call, "id": self._call_id(), "type": "function"}
                call["function"]["name"] = function["name"]
            elif me.lie == "call_twice_in_stream" and number == 1:
                call["id"] = self._call_id()
            delta: dict[str, Any] = {"tool_calls": [call]}
            if me.lie == "markup_left" and number == 0:
                delta["content"] = _text(reply.ids)
            deltas.append((delta, reply.ids if number == 0 else []))
        return deltas

    def _call_id(self) -> str:
        me = self.server_is
        with me.lock:
            me.calls += me.lie != "same_call_id"
            return f"{CALL_ID}{me.calls}"

    def _function(self, reply: _Reply) -> dict[str, str]:
        return {"name": "get_weather", "arguments": _arguments(self.server_is.lie, reply.call)}

    def _head(self, body: dict[str, Any], kind: str) -> dict[str, Any]:
        me = self.server_is
        name = "enplace/other" if me.lie == "other_model_answers" else body["model"]
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": name}

    def _usage(self, reply: _Reply, completion: int) -> dict[str, Any]:
        me = self.server_is
        prompt = len(reply.prompt) + (me.lie == "prompt_off_by_one")
        if me.lie == "cuts_prompts":
            prompt = min(prompt, KEPT)
        if me.lie == "constant_usage":
            prompt, completion = 20, 8
        total = prompt + completion + (me.lie == "wrong_total")
        details = None if me.lie == "no_cached_tokens" else {"cached_tokens": reply.cached}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": total,
            "prompt_tokens_details": details,
        }

    def _prompt_rows(self, prompt: list[int], top: int) -> list[Any]:
        me = self.server_is
        if me.lie == "null_prompt_logprobs":
            return [None] * len(prompt)
        if me.lie == "other_prompt":
            prompt = ids_of("<user>Hello<assistant>")
        if me.lie == "shifted_prompt_logprobs":
            prompt = [prompt[0], *prompt[:-1]]
        rows: list[Any] = [None]
        for place in range(1, len(prompt)):
            token = prompt[place]
            # The token at this place is one of the likely ones, or one more.
            own = 0 if me.lie in ("alike_prompt_logprobs", "capped_prompt_logprobs") else (token + place) % (top + 1)
            values = [math.log(0.5**index / 3) - 0.0001 * place for index in range(1, top + 2)]
            if me.lie == "alike_prompt_logprobs":
                values = [math.log(0.5**index / 3) for index in range(1, top + 2)]
            names = [f"{token + 1 + index}" for index in range(top + 1)]
            names[own] = f"{token}"
            count = 1 if me.lie == "capped_prompt_logprobs" else max(top, own + 1)
            entries = list(zip(names, values, range(1, top + 2), strict=True))[:count]
            rows.append({name: {"logprob": value, "rank": rank} for name, value, rank in entries})
        return rows

    def _rows(self, reply: _Reply, top: int) -> list[dict[str, Any]]:
        me = self.server_is
        count = min(top, 5) if me.lie == "top_capped" else top
        rows = [self._row(token, rank, count) for token, rank in zip(reply.ids, reply.ranks, strict=True)]
        boundary = me.lie == "boundary_changes_values" and len(reply.prompt) % BLOCK == 1
        if me.lie == "noise" or (reply.cached and (boundary or me.lie == "cache_changes_values")):
            shift = 1e-7 * (me.finished if me.lie == "noise" else 1)
            for entry in [rows[0], *rows[0]["top_logprobs"]]:
                entry["logprob"] -= shift
        if me.lie == "shifted_rows":
            rows = rows[1:] + rows[:1]
        if me.lie == "missing_row":
            rows = rows[:-1]
        return rows

    def _row(self, token: int, rank: int, top: int) -> dict[str, Any]:
        me = self.server_is
        names = [f"token_id:{token - rank + index}" for index in range(top)]
        values = [math.log(0.5**index / 3) for index in range(1, top + 1)]
        if me.lie == "placeholder":
            values[-1] = -9999.0
        if me.lie == "doubled_entries":
            names[-1] = names[0]
        if me.lie == "unsorted":
            values[1], values[2] = values[2], values[1]
        if me.lie == "certain":
            values = [-0.001 * index for index in range(1, top + 1)]
        if me.lie == "not_finite":
            values[-1] = math.nan
        entries = [{"token": name, "logprob": value, "bytes": None} for name, value in zip(names, values, strict=True)]
        own = math.log(0.5 ** (rank + 1) / 3) if rank else values[0]
        return {"token": f"token_id:{token}", "logprob": own, "bytes": None, "top_logprobs": entries}

    def _metrics(self) -> str:
        me = self.server_is
        if me.lie == "no_metrics":
            return "python_info 1.0\n"
        page = (
            "# TYPE vllm:request_success counter\n"
            f'vllm:request_success_total{{finished_reason="stop"}} {me.finished}.0\n'
            'vllm:request_success_total{finished_reason="length"} 0.0\n'
            'vllm:request_success_created{finished_reason="stop"} 1.7e+09\n'
            f'vllm:generation_tokens_total{{engine="0"}} {me.generated}.0\n'
            'vllm:generation_tokens_created{engine="0"} 1.7e+09\n'
        )
        if me.lie != "no_start_time":
            page += f"process_start_time_seconds {me.started}\n"
        if me.lie != "no_hits_counter":
            page += f'vllm:prefix_cache_hits_total{{engine="0"}} {me.hits}.0\n'
        if me.lie != "no_draft_counters":
            page += (
                f"vllm:spec_decode_num_drafts_total {me.drafts}.0\n"
                f"vllm:spec_decode_num_draft_tokens_total {me.drafted}.0\n"
                f"vllm:spec_decode_num_accepted_tokens_total {sum(me.accepted)}.0\n"
            )
        if me.lie not in ("no_draft_counters", "no_positions"):
            for place, count in enumerate(me.accepted[:1] if me.lie == "short_drafts" else me.accepted):
                page += f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count}.0\n'
        if me.lie != "no_cache_config":
            tokens = {"small_pool": "9000", "unknown_pool": "None"}.get(me.lie, "90000")
            page += (
                f'vllm:cache_config_info{{block_size="{BLOCK}",cache_dtype="auto",enable_prefix_caching="True",'
                f'kv_cache_max_concurrency="{0.5 if me.lie == "little_concurrency" else 21.97}",'
                f'kv_cache_size_tokens="{tokens}",num_gpu_blocks="1407"}} 1.0\n'
            )
        return page

    # ---- the wire

    def _wire(self) -> None:
        me = self.server_is
        if me.lie == "invalid_json":
            self._send(200, b'{"choices": [', "application/json")
        elif me.lie == "invalid_utf8":
            self._send(200, b'{"choices": "\xff\xfe"}', "application/json")
        elif me.lie == "html":
            self._send(200, b"<html>Welcome</html>", "text/html")
        elif me.lie == "json_list":
            self._send(200, b"[1, 2, 3]", "application/json")
        elif me.lie == "error_500":
            self._json({"error": {"message": "EngineCore encountered an issue"}}, 500)
        elif me.lie == "echoes_headers":
            # In every spelling, and so that a message that is cut anywhere is cut within a key.
            text = f"{dict(self.headers)} " + " ".join(f"{'.' * length}{me.key}" for length in range(300))
            self._json({"error": {"message": text, "headers": dict(self.headers)}}, 500)
        elif me.lie == "error_401":
            self._json({"error": "Unauthorized"}, 401)
        elif me.lie == "redirect":
            self._redirect("/health")
        elif me.lie == "compressed":
            content = gzip.compress(b" " * 1_000_000)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        elif me.lie in ("stall", "hangs"):
            me.stopping.wait(60)
        elif me.lie == "hangs_busy":
            while not me.stopping.wait(0.1):
                me.generated += 1
        else:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "1000000000")
            self.end_headers()
            for part in self._unending():
                if me.stopping.is_set():
                    return
                self.wfile.write(part)
        self.close_connection = True

    def _unending(self) -> Iterator[bytes]:
        me = self.server_is
        yield b'{"choices": "'
        if me.lie == "broken_off":
            return
        while True:
            if me.lie == "trickle":
                time.sleep(0.05)
            yield b"x" if me.lie == "trickle" else b"x" * 1_000_000

    # ---- replies

    def _redirect(self, location: str) -> None:
        self.send_response(302)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _frame(self, data: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, data: Any, status: int = 200) -> None:
        self._send(status, json.dumps(data).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _arguments(lie: str, city: str) -> str:
    return json.dumps({"city": city, **({"units": "metric"} if lie == "more_arguments" else {})})


def _text(ids: list[int]) -> str:
    return "".join(chr(token) for token in ids if token != END)


def main() -> None:
    parser = argparse.ArgumentParser(description="a simulated server that tells one lie; no lie: an honest one")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--lie", default="", choices=["", *LIES, *WIRE, *OTHER])
    parser.add_argument("--pace", type=float, default=0.001, help="seconds before each token; a reply begins after ten")
    options = parser.parse_args()
    # As the engine does: no command line holds its key.
    key = os.environ.get("VLLM_API_KEY", "")
    with Simulated(options.lie, port=options.port, pace_s=options.pace, key=key) as server:
        print(f"simulated server at {server.url}, lie: {options.lie or 'none'}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
