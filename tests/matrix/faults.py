# SPDX-License-Identifier: Apache-2.0
"""The faults: what each breaks, which defect of a real engine it stands for, and which checks must find it."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.verify import texts

from tests.sim.liar import ANSWERS
from tests.sim.proxy import CHAT, Ask, CutOffError, Fault

from .stage import ERROR, LINE, READY, START, Stage

MODEL = "enplace/smoke"
# The checks of the smoke recipe, with less to ask where more proves no more here.
_PROMPTS = [{"ask": ask, "expect": [answer]} for ask, answer in ANSWERS.items()]
_PERSON, _CAPITAL = 'How old is "Alice"?', "What is the capital of France? Reply with one word."
_LIST: tuple[dict[str, Any], ...] = (
    {"check": "identity", "context": 4096},
    {"check": "known_answers", "prompts": _PROMPTS},
    {"check": "known_answers_in_flight", "prompts": _PROMPTS, "requests": 4},
    {"check": "logprobs", "ask": _PERSON, "top": 20},
    {"check": "usage", "ask": _PERSON},
    {"check": "tool_call", "calls": 2, "temperature": 0.6},
    {"check": "tool_call_streamed"},
    {"check": "tool_result", "rounds": 2},
    {"check": "prompt_logprobs", "ask": _PERSON},
    {"check": "json_schema"},
    {"check": "logit_bias", "ask": _CAPITAL},
    {"check": "min_p", "ask": _PERSON},
    {"check": "min_tokens", "ask": _PERSON},
    {"check": "bad_words", "ask": _CAPITAL},
    {"check": "seed", "ask": _PERSON},
    {"check": "prefix_cache", "tokens": [700], "seed": "smoke"},
    {"check": "needles", "tokens": [1600], "depths": 2, "seed": "smoke"},
    {"check": "draft", "acceptance_min": 0.7, "acceptance_max": 0.8, "per_position_min": [0.8, 0.5], "requests": 16},
    {"check": "kv_pool", "tokens": 1500000, "concurrency": 300},
    {"check": "libraries"},
    {"check": "log_line", "pattern": "Mamba cache mode is set to 'align'"},
    {"check": "no_errors"},
    {"check": "healthy"},
)
CHECKS = {str(check["check"]): check for check in _LIST}
# A prompt of more letters is one of `needles`, of fewer one of `prefix_cache`.
LONG = 4500
# What the counters of speculation are to say. The model has no draft: the proxy works them out of the tokens that the
# engine counted, with two tokens drafted in each step.
PER_STEP, ACCEPTED_AT = 2.5, (0.9, 0.6)
TOKENS, DRAFTS = "vllm:generation_tokens_total", "vllm:spec_decode_num_"


# ---- what the faults are made of


def value(page: str, name: str) -> float:
    """The sum of a series on a page of /metrics."""
    return sum(float(found) for found in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", page, re.M))


def without(page: str, name: str) -> str:
    """A page of /metrics without the series whose names begin so."""
    return "".join(line for line in page.splitlines(keepends=True) if not line.startswith(name))


def with_value(page: str, name: str, change: Callable[[float], float]) -> str:
    """A page of /metrics with other values of a series."""
    return re.sub(
        rf"^({re.escape(name)}(?:{{.*}})?) (\S+)$",
        lambda found: f"{found[1]} {change(float(found[2]))}",
        page,
        flags=re.M,
    )


def with_label(page: str, label: str, text: str) -> str:
    return re.sub(rf'\b{label}="[^"]*"', f'{label}="{text}"', page)


def with_draft(page: str) -> str:
    """A page of /metrics with counters of speculation."""
    drafts = value(page, TOKENS) / PER_STEP
    counts = {
        "drafts_total": drafts,
        "draft_tokens_total": drafts * len(ACCEPTED_AT),
        "accepted_tokens_total": drafts * sum(ACCEPTED_AT),
        **{f'accepted_tokens_per_pos_total{{position="{at}"}}': drafts * share for at, share in enumerate(ACCEPTED_AT)},
    }
    return page + "".join(f"{DRAFTS}{name} {count}\n" for name, count in counts.items())


@dataclass(eq=False)
class Broken(Fault):
    """A fault of a line or two: each part changes in place what passes; `pages` returns the changed page."""

    asks: Callable[[Ask], None] | None = None
    answers: Callable[[Ask, Any], None] | None = None
    chunks: Callable[[Ask, Any], None] | None = None
    pages: Callable[[str], str] | None = None

    def asked(self, ask: Ask) -> None:
        if self.asks is not None and ask.chat:
            self.asks(ask)

    def answered(self, ask: Ask, reply: Any) -> Any:
        if self.answers is not None and ask.chat:
            self.answers(ask, reply)
        return reply

    def streamed(self, ask: Ask, chunk: Any) -> list[Any]:
        if self.chunks is not None:
            self.chunks(ask, chunk)
        return [chunk]

    def metrics(self, page: str) -> str:
        page = with_draft(page)
        return self.pages(page) if self.pages is not None else page


def dropped(*keys: str) -> Broken:
    """Parts of a request are ignored."""

    def asks(ask: Ask) -> None:
        for key in keys:
            ask.body.pop(key, None)

    return Broken(asks=asks)


def usage(change: Callable[[dict[str, Any]], None]) -> Callable[[Ask, Any], None]:
    """A change of the usage of a reply or a chunk."""

    def answers(ask: Ask, reply: Any) -> None:
        if reply.get("usage"):
            change(reply["usage"])

    return answers


def text_of(ask: Ask) -> str:
    return str(ask.body["messages"][-1].get("content") or "")


def put_text(ask: Ask, text: str) -> None:
    ask.body["messages"][-1]["content"] = text


def message(reply: Any) -> dict[str, Any]:
    found: dict[str, Any] = reply["choices"][0]["message"]
    return found


def rows_of(reply: Any) -> list[Any]:
    """The log-probabilities of a reply, row by row."""
    return list((reply["choices"][0].get("logprobs") or {}).get("content") or [])


def cached(reply: Any) -> int:
    details = reply["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def merged(chunks: list[Any]) -> Any:
    """Chunks of a stream as one."""
    one = copy.deepcopy(chunks[0])
    into = one["choices"][0]
    for chunk in chunks[1:]:
        choice = chunk["choices"][0]
        if choice["delta"].get("content"):
            into["delta"]["content"] = (into["delta"].get("content") or "") + choice["delta"]["content"]
        for call in choice["delta"].get("tool_calls") or []:
            calls = into["delta"].setdefault("tool_calls", [])
            if not calls:
                calls.append(copy.deepcopy(call))
            else:
                own = calls[0].setdefault("function", {})
                own["arguments"] = (own.get("arguments") or "") + (call["function"].get("arguments") or "")
        if choice.get("token_ids"):
            into["token_ids"] = (into.get("token_ids") or []) + choice["token_ids"]
        into["finish_reason"] = choice.get("finish_reason") or into.get("finish_reason")
    return one


# ---- faults that remember


class LeftOver(Broken):
    """What one request asked for acts on the next one as well, or on all after it."""

    def __init__(self, key: str, once: bool = True) -> None:
        super().__init__()
        self.key, self.once = key, once
        self.before: Any = None

    def asked(self, ask: Ask) -> None:
        if not ask.chat:
            return
        if self.key in ask.body:
            self.before = ask.body[self.key]
        elif self.before is not None:
            ask.body[self.key] = self.before
            self.before = None if self.once else self.before


class StaleText(Broken):
    """A plain reply has the text of the plain reply before it."""

    before: str | None = None

    def answered(self, ask: Ask, reply: Any) -> Any:
        if ask.plain:
            own = message(reply)["content"]
            message(reply)["content"], self.before = own if self.before is None else self.before, own
        return reply


class ResponseCache(Broken):
    """A prompt that was answered once is not asked again, whatever else the request has."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Any] = {}

    def _key(self, ask: Ask) -> str:
        return json.dumps([ask.original["model"], ask.original["messages"]])

    def instead(self, ask: Ask) -> tuple[int, Any] | None:
        known = self.known.get(self._key(ask)) if ask.chat and not ask.stream else None
        return None if known is None else (200, known)

    def answered(self, ask: Ask, reply: Any) -> Any:
        if ask.chat:
            self.known.setdefault(self._key(ask), reply)
        return reply


class Swapped(Broken):
    """Of two requests that meet, each gets the other's prompt answered."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[tuple[str, ...], tuple[Ask, threading.Event]] = {}

    def asked(self, ask: Ask) -> None:
        if not ask.chat:
            return
        kind, met = tuple(sorted(ask.original)), threading.Event()
        with self.proxy.lock:
            partner = self.waiting.pop(kind, None)
            if partner is None:
                self.waiting[kind] = ask, met
            else:
                other, _met = partner
                ask.body["messages"], other.body["messages"] = other.body["messages"], ask.body["messages"]
                partner[1].set()
                return
        if not met.wait(0.1):
            with self.proxy.lock:
                if self.waiting.get(kind, (None,))[0] is ask:
                    del self.waiting[kind]


class OneAfterAnother(Broken):
    """Never two requests at once."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = threading.Lock()

    def around(self, ask: Ask) -> contextlib.AbstractContextManager[None]:
        return self._in_turn() if ask.chat else contextlib.nullcontext()

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        with self.turn:
            yield


class Held(Broken):
    """A stream comes as one frame. `calls`: only the frames of a call are held."""

    def __init__(self, calls: bool) -> None:
        super().__init__()
        self.calls = calls

    def streamed(self, ask: Ask, chunk: Any) -> list[Any]:
        choices = chunk.get("choices")
        if choices and (not self.calls or choices[0]["delta"].get("tool_calls")):
            ask.kept.setdefault("held", []).append(chunk)
            return []
        return [*self.ended(ask), chunk]

    def ended(self, ask: Ask) -> list[Any]:
        held = ask.kept.pop("held", [])
        return [merged(held)] if held else []


class FramesCounted(Broken):
    """Two tokens in a frame, and usage counts the frames."""

    def streamed(self, ask: Ask, chunk: Any) -> list[Any]:
        if "tools" in ask.original:
            return [chunk]
        if chunk.get("choices"):
            held = ask.kept.setdefault("held", [])
            held.append(chunk)
            return self.ended(ask) if len(held) == 2 else []
        passed = self.ended(ask)
        if chunk.get("usage"):
            chunk["usage"]["completion_tokens"] = ask.kept["frames"]
        return [*passed, chunk]

    def ended(self, ask: Ask) -> list[Any]:
        held = ask.kept.pop("held", [])
        ask.kept["frames"] = ask.kept.get("frames", 0) + bool(held)
        return [merged(held)] if held else []


class StreamEnds(Broken):
    """A stream comes to its third frame and no further. `stalls`: it stays open."""

    def __init__(self, stalls: bool) -> None:
        super().__init__()
        self.stalls = stalls

    def streamed(self, ask: Ask, chunk: Any) -> list[Any]:
        ask.kept["frames"] = ask.kept.get("frames", 0) + 1
        if ask.kept["frames"] > 3:
            if self.stalls:
                self.proxy.stopping.wait()
            raise CutOffError
        return [chunk]


class After(Broken):
    """The server is well until so many completions were asked for, or the one that has a certain key."""

    def __init__(self, completions: int = 0, key: str = "") -> None:
        super().__init__()
        self.left, self.key = completions, key
        self.reached = False

    def asked(self, ask: Ask) -> None:
        if ask.chat and self.reached:
            self.beyond(ask)
        elif ask.chat:
            self.left -= 1
            self.reached = self.key in ask.body if self.key else self.left <= 0
            if self.reached:
                self.now(ask)

    def now(self, ask: Ask) -> None:
        """What becomes of the request itself."""

    def beyond(self, ask: Ask) -> None:
        """What becomes of the ones after it."""


class Dies(After):
    """The process is gone."""

    def now(self, ask: Ask) -> None:
        self.proxy.dead = True
        raise CutOffError


class Hangs(After):
    """No completion is answered, and all else as ever."""

    def beyond(self, ask: Ask) -> None:
        self.proxy.stopping.wait()
        raise CutOffError


class Unhealthy(After):
    """/health answers 503."""

    def instead(self, ask: Ask) -> tuple[int, Any] | None:
        return (503, {}) if ask.path == "/health" and self.reached else None


class OneError(After):
    """The next completion is answered with HTTP 500."""

    def beyond(self, ask: Ask) -> None:
        ask.kept["refused"], self.reached = True, False

    def instead(self, ask: Ask) -> tuple[int, Any] | None:
        return (500, {"error": {"message": "Internal server error"}}) if "refused" in ask.kept else None


class Restarted(After):
    """Another process answers."""

    def metrics(self, page: str) -> str:
        return with_value(super().metrics(page), "process_start_time_seconds", lambda time: time + 60 * self.reached)


class TokensStand(Broken):
    """The tokens are not counted on."""

    first: float | None = None

    def metrics(self, page: str) -> str:
        self.first = value(page, TOKENS) if self.first is None else self.first
        return with_value(super().metrics(page), TOKENS, lambda _now: self.first or 0)


class OthersAsk(Broken):
    """Somebody else asks, too."""

    def asked(self, ask: Ask) -> None:
        if ask.chat and ask.plain:
            body = json.dumps({**ask.original, "cache_salt": "somebody else's"}).encode()
            with self.proxy.asking("POST", CHAT, body, {"Content-Type": "application/json"}) as reply:
                reply.read()


class BiasOnAll(Broken):
    """The bias of one request acts on those beside it."""

    def asked(self, ask: Ask) -> None:
        if not ask.chat:
            return
        time.sleep(0.1)
        with self.proxy.lock:
            beside = [other.original["logit_bias"] for other in self.proxy.under_way if "logit_bias" in other.original]
        if beside:
            ask.body["logit_bias"] = beside[0]


class ResultOfBefore(Broken):
    """The model sees what the tool returned the time before."""

    before: Any = None

    def asked(self, ask: Ask) -> None:
        if ask.chat and ask.body["messages"][-1]["role"] == "tool":
            own = text_of(ask)
            put_text(ask, self.before or own)
            self.before = own


class PromptChanged(Broken):
    """A long prompt is not read as it is, and counted as if it were."""

    def asked(self, ask: Ask) -> None:
        if ask.chat and len(text_of(ask)) > LONG:
            own = text_of(ask)
            count = json.dumps({"model": MODEL, "messages": ask.original["messages"], "add_generation_prompt": True})
            with self.proxy.asking("POST", "/tokenize", count.encode(), {"Content-Type": "application/json"}) as reply:
                ask.kept["tokens"] = json.load(reply)["count"]
            put_text(ask, self.read(own))

    def read(self, text: str) -> str:
        """What is read of a text."""
        raise NotImplementedError

    def answered(self, ask: Ask, reply: Any) -> Any:
        if "tokens" in ask.kept:
            reply["usage"]["prompt_tokens"] = ask.kept["tokens"]
        return reply


class TailRead(PromptChanged):
    """Only the last letters."""

    def read(self, text: str) -> str:
        return "Read the notes.\n" + text[-LONG // 8 :]


class PromptOfBefore(PromptChanged):
    """The one before it."""

    before = ""

    def read(self, text: str) -> str:
        passed, self.before = self.before or text, text
        return passed


# ---- faults of a line


def _wrong_digit(ask: Ask, reply: Any) -> None:
    if ask.plain:
        text = message(reply)["content"] or ""
        message(reply)["content"] = re.sub(r"\d\b", lambda found: str((int(found[0]) + 1) % 10), text)


def _no_text(ask: Ask, reply: Any) -> None:
    if ask.plain:
        message(reply)["content"] = ""


def _no_end(ask: Ask) -> None:
    if ask.plain and ask.body.get("max_tokens", 0) <= 64:
        ask.body["ignore_eos"] = True


def _disorder_in_a_batch(ask: Ask) -> None:
    time.sleep(0.05)  # so that those that come together are together
    if any(other.chat for other in ask.others):
        put_text(ask, text_of(ask)[::-1])


def _rows_shifted(ask: Ask, reply: Any) -> None:
    if rows := rows_of(reply):
        reply["choices"][0]["logprobs"]["content"] = [*rows[1:], rows[0]]


def _rows_capped(ask: Ask, reply: Any) -> None:
    for row in rows_of(reply):
        row["top_logprobs"] = row["top_logprobs"][:5]


def _not_normalised(ask: Ask, reply: Any) -> None:
    for row in rows_of(reply):
        for entry in (row, *row["top_logprobs"]):
            entry["logprob"] += 7


def _end_not_counted(ask: Ask, reply: Any) -> None:
    if reply["choices"][0]["finish_reason"] == "stop":
        reply["usage"]["completion_tokens"] -= 1
        reply["usage"]["total_tokens"] -= 1


def _no_usage(ask: Ask, chunk: Any) -> None:
    chunk.pop("usage", None)


def _template_not_counted(told: dict[str, Any]) -> None:
    told["prompt_tokens"] -= 3
    told["total_tokens"] -= 3


def _prompt_alone(told: dict[str, Any]) -> None:
    told["total_tokens"] = told["prompt_tokens"]


def _another_city(ask: Ask) -> None:
    city = next((city for city in texts.CITIES if f'"{city}"' in text_of(ask)), None)
    if city is not None:
        other = texts.CITIES[texts.CITIES.index(city) - 1]
        put_text(ask, text_of(ask).replace(city, other))


def _call_whatever_the_choice(ask: Ask) -> None:
    if ask.body.get("tool_choice") == "none":
        ask.body["tool_choice"] = "auto"


def _same_id(ask: Ask, reply: Any) -> None:
    for call in message(reply).get("tool_calls") or []:
        call["id"] = "call-0"


def _ends_as_text(ask: Ask, reply: Any) -> None:
    choice = reply["choices"][0] if reply.get("choices") else {}
    if choice.get("finish_reason") == "tool_calls":
        choice["finish_reason"] = "stop"


def _calls_in(chunk: Any) -> list[Any]:
    return [call for choice in chunk.get("choices") or [] for call in choice["delta"].get("tool_calls") or []]


def _last_piece_lost(ask: Ask, chunk: Any) -> None:
    for call in _calls_in(chunk):
        arguments = (call.get("function") or {}).get("arguments")
        if arguments:
            call["function"]["arguments"] = arguments.replace("}", "")


def _named_in_each_piece(ask: Ask, chunk: Any) -> None:
    for call in _calls_in(chunk):
        call.setdefault("function", {})["name"] = "get_weather"


def _result_lost(ask: Ask) -> None:
    if ask.body["messages"][-1]["role"] == "tool":
        put_text(ask, "")


def _prompt_rows_shifted(ask: Ask, reply: Any) -> None:
    if rows := reply.get("prompt_logprobs"):
        reply["prompt_logprobs"] = [None, *rows[2:], rows[1]]


def _prompt_rows_null(ask: Ask, reply: Any) -> None:
    if rows := reply.get("prompt_logprobs"):
        reply["prompt_logprobs"] = [None] * len(rows)


def _ids_mixed_up(ask: Ask, reply: Any) -> None:
    if ids := reply.get("prompt_token_ids"):
        reply["prompt_token_ids"] = ids + (reply["choices"][0].get("token_ids") or [])


def _any_object(ask: Ask) -> None:
    if "response_format" in ask.body:
        ask.body["response_format"] = {"type": "json_object"}


def _no_ban(ask: Ask) -> None:
    if any(bias < 0 for bias in (ask.body.get("logit_bias") or {}).values()):
        del ask.body["logit_bias"]


def _only_the_likeliest(ask: Ask) -> None:
    if "min_p" in ask.body:
        ask.body["min_p"] = 1


def _end_ignored(ask: Ask) -> None:
    if ask.body.pop("min_tokens", None):
        ask.body["ignore_eos"] = True


def _any_bad_word(ask: Ask) -> None:
    if ask.body.pop("bad_words", None):
        put_text(ask, text_of(ask)[::-1])


def _one_seed(ask: Ask) -> None:
    if "seed" in ask.body:
        ask.body["seed"] = 1


def _one_salt() -> Broken:
    """One salt for all, which no fault before this one had."""
    salt = f"{time.monotonic_ns():x}"

    def asks(ask: Ask) -> None:
        ask.body["cache_salt"] = salt

    return Broken(asks=asks)


def _new_salt(ask: Ask) -> None:
    ask.body["cache_salt"] = f"{time.monotonic_ns():x}"


def _always_cached(told: dict[str, Any]) -> None:
    told["prompt_tokens_details"] = {"cached_tokens": 256}


def _never_told(told: dict[str, Any]) -> None:
    told["prompt_tokens_details"] = {"cached_tokens": 0}


def _no_details(told: dict[str, Any]) -> None:
    told["prompt_tokens_details"] = None


def _off_block(told: dict[str, Any]) -> None:
    details = told.get("prompt_tokens_details") or {}
    details["cached_tokens"] = max(0, (details.get("cached_tokens") or 0) - 1)


def _other_values(ask: Ask, reply: Any) -> None:
    for row in rows_of(reply) if cached(reply) else []:
        for entry in (row, *row["top_logprobs"]):
            entry["logprob"] -= 0.001


def _other_values_after_a_block(ask: Ask, reply: Any) -> None:
    if reply["usage"]["prompt_tokens"] % 256 == 1:
        _other_values(ask, reply)


def _other_tokens(ask: Ask, reply: Any) -> None:
    ids = reply["choices"][0].get("token_ids")
    if ids and cached(reply):
        ids[0] += 1


def _other_version(ask: Ask, reply: Any) -> None:
    reply["version"] = "0.27.1"


def _other_name(ask: Ask, reply: Any) -> None:
    reply["data"][0]["id"] = "/var/lib/models/smoke"


def _half_the_context(ask: Ask, reply: Any) -> None:
    reply["data"][0]["max_model_len"] //= 2


def _names_another(ask: Ask, reply: Any) -> None:
    reply["model"] = "enplace/other"


def _any_name(ask: Ask) -> None:
    ask.body["model"] = MODEL


class At(Broken):
    """What one path other than that of completions answers is changed."""

    def __init__(self, path: str, change: Callable[[Ask, Any], None]) -> None:
        super().__init__()
        self.path, self.change = path, change

    def answered(self, ask: Ask, reply: Any) -> Any:
        if ask.path == self.path:
            self.change(ask, reply)
        return reply


def _drafts(accepted: float, first: float, second: float) -> Callable[[str], str]:
    """Counters of a draft with other shares: of all that was drafted, and at the two positions."""

    def pages(page: str) -> str:
        drafts = value(page, f"{DRAFTS}drafts_total")
        page = without(page, f"{DRAFTS}accepted")
        counts = {"": 2 * accepted, '_per_pos{position="0"}': first, '_per_pos{position="1"}': second}
        for name, share in counts.items():
            label = name.partition("{")
            page += f"{DRAFTS}accepted_tokens{label[0]}_total{label[1]}{label[2]} {drafts * share}\n"
        return page

    return pages


# ---- the table


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        name: of the fault.
        does: what is broken, in a sentence.
        like: the defect of a real engine, or of what is around one, that it stands for.
        found_by: the checks that must fail; empty where none does, and that is known.
        beside: checks of the same kind that must pass all the same.
        make: the fault itself.
        says: a part of what each of these checks must say; several are separated by |.
        at_host: what is broken at the host instead of on the way.
        asks_only: of `found_by`, those that are enough where not everything is run.
        final: the first check that fails leaves a server of which nothing more is asked.
        late: they fail at their deadline.
    """

    name: str
    does: str
    like: str
    found_by: tuple[str, ...]
    beside: tuple[str, ...]
    make: Callable[[], Fault]
    says: str
    at_host: Callable[[Stage], None] | None = None
    asks_only: tuple[str, ...] = ()
    final: bool = False
    late: bool = False

    def names(self, everything: bool) -> list[str]:
        """The checks to run."""
        chosen = {*(self.asks_only or self.found_by), *self.beside}
        return [name for name in CHECKS if everything or name in chosen]


def _at_host(
    name: str, does: str, like: str, found_by: tuple[str, ...], says: str, change: Callable[[Stage], None]
) -> Case:
    host = ("libraries", "log_line", "no_errors", "healthy")
    return Case(name, does, like, found_by, tuple(one for one in host if one not in found_by), Broken, says, change)


_ANSWERS = ("known_answers", "known_answers_in_flight")
_TOOLS = ("tool_call", "tool_call_streamed", "tool_result")
_STREAMS = ("known_answers_in_flight", "usage", "tool_call_streamed")
_ONCE_HUNG = tuple(name for name in CHECKS if name not in ("kv_pool", "libraries", "log_line", "no_errors"))

CASES: tuple[Case, ...] = (
    # ---- who answers
    Case(
        "other version",
        "/version is another engine version.",
        "An upgrade that left the old process running, or another server on the port.",
        ("identity",),
        ("known_answers", "healthy"),
        lambda: At("/version", _other_version),
        "version differs",
    ),
    Case(
        "other name",
        "/v1/models lists the model's folder.",
        "--served-model-name was forgotten.",
        ("identity",),
        ("known_answers", "healthy"),
        lambda: At("/v1/models", _other_name),
        "not served",
    ),
    Case(
        "half the context",
        "/v1/models tells half the context.",
        "An engine that lowers --max-model-len by itself to what fits its memory.",
        ("identity",),
        ("known_answers_in_flight", "needles"),
        lambda: At("/v1/models", _half_the_context),
        "context length differs",
    ),
    Case(
        "any name",
        "A completion is answered under any model's name.",
        "A router or another server that takes whatever comes.",
        ("identity",),
        ("known_answers", "healthy"),
        lambda: Broken(asks=_any_name),
        "not refused",
    ),
    Case(
        "names another",
        "Completions say that they come from another model.",
        "An adapter or a fallback that answers in the model's place.",
        ("identity",),
        ("known_answers", "healthy"),
        lambda: Broken(answers=_names_another),
        "names another model",
    ),
    # ---- what it answers
    Case(
        "a digit wrong",
        "The last digit of a number in a reply is wrong.",
        "A quantised kernel that loads and computes slightly wrongly, with HTTP 200.",
        _ANSWERS,
        ("usage", "tool_result"),
        lambda: Broken(answers=_wrong_digit),
        "answers are right|differ from those alone",
    ),
    Case(
        "no text",
        "Replies have no text, with HTTP 200.",
        "A reasoning parser that takes the whole reply for thoughts.",
        (*_ANSWERS, "prompt_logprobs", "needles"),
        ("usage", "healthy"),
        lambda: Broken(answers=_no_text),
        "answers are right|is not answered|codes were found",
    ),
    Case(
        "no end",
        "A short reply goes on to max_tokens.",
        "The token that ends a turn is not among the engine's stop tokens.",
        _ANSWERS,
        ("usage", "tool_result"),
        lambda: Broken(asks=_no_end),
        "answers are right|did not end by itself",
    ),
    Case(
        "text of before",
        "A plain reply has the text of the one before it.",
        "An output buffer that is read one request late.",
        (*_ANSWERS, "needles"),
        ("usage", "tool_result"),
        StaleText,
        "answers are right|differ from those alone|codes were found",
    ),
    Case(
        "response cache",
        "A prompt that was answered once gets the same reply again, and the engine is not asked.",
        "A caching gateway before the engine.",
        ("known_answers_in_flight",),
        ("identity", "known_answers"),
        ResponseCache,
        "something else answered",
        final=True,
    ),
    # ---- several at once
    Case(
        "swapped",
        "Two requests in flight get each other's reply.",
        "Rows of a batch that are crossed when it is condensed.",
        ("known_answers_in_flight",),
        ("known_answers", "usage", "logit_bias"),
        Swapped,
        "differ from those alone",
    ),
    Case(
        "disorder in a batch",
        "A request that is not alone is computed from its prompt in disorder.",
        "A kernel that is wrong for batches above one, or padding that leaks into the rows.",
        ("known_answers_in_flight", "logit_bias"),
        ("known_answers", "usage"),
        lambda: Broken(asks=_disorder_in_a_batch),
        "differ from those alone|wrong row",
    ),
    Case(
        "one after another",
        "Requests are served one at a time.",
        "--max-num-seqs 1, or a lock around the engine: a batch is never tried.",
        ("known_answers_in_flight",),
        ("known_answers", "usage", "logit_bias"),
        OneAfterAnother,
        "never decoded side by side",
    ),
    Case(
        "one frame",
        "A stream comes as one frame at its end.",
        "A reverse proxy that holds replies back.",
        ("known_answers_in_flight", "tool_call_streamed"),
        ("known_answers", "usage"),
        lambda: Held(calls=False),
        "never decoded side by side|not streamed",
    ),
    # ---- log-probabilities
    Case(
        "rows shifted",
        "The log-probabilities of a token are those of the next one.",
        "Rows that are gathered one step off.",
        ("logprobs",),
        ("usage", "prompt_logprobs"),
        lambda: Broken(answers=_rows_shifted),
        "the row belongs to another token",
    ),
    Case(
        "five entries",
        "At most 5 top_logprobs, whatever is asked for.",
        "A limit that is applied in silence.",
        ("logprobs",),
        ("usage", "prompt_logprobs", "min_tokens"),
        lambda: Broken(answers=_rows_capped),
        "not 20 distinct entries",
    ),
    Case(
        "raw logits",
        "Logits in the place of log-probabilities.",
        "A sampler that leaves out the normalisation.",
        ("logprobs",),
        ("usage", "prompt_logprobs", "min_tokens"),
        lambda: Broken(answers=_not_normalised),
        "not log-probabilities",
    ),
    # ---- counts
    Case(
        "end not counted",
        "The token that ends a reply is not in usage.",
        "A count that is taken before the last step.",
        ("usage",),
        ("logprobs", "min_tokens", "healthy"),
        lambda: Broken(answers=_end_not_counted),
        "usage miscounts",
    ),
    Case(
        "total wrong",
        "total_tokens is that of the prompt alone.",
        "A sum that is written before the reply is known.",
        ("usage",),
        ("logprobs", "healthy"),
        lambda: Broken(answers=usage(_prompt_alone)),
        "usage miscounts",
    ),
    Case(
        "template not counted",
        "The tokens of the template are not in usage.",
        "A count of the text and not of the prompt that was read.",
        ("usage", "prompt_logprobs", "prefix_cache", "needles"),
        ("logprobs", "healthy"),
        lambda: Broken(answers=usage(_template_not_counted)),
        "usage miscounts|not one entry for every token|counts another prompt",
    ),
    Case(
        "frames counted",
        "Two tokens come in a frame, and usage counts frames.",
        "Figures that are taken from frames: with a draft a frame has several tokens.",
        ("known_answers_in_flight", "usage"),
        ("known_answers", "tool_call_streamed"),
        FramesCounted,
        "usage miscounts|ignore_eos was not honoured",
    ),
    Case(
        "no usage in streams",
        "A stream has no chunk of usage.",
        "include_usage is ignored.",
        _STREAMS,
        ("known_answers", "tool_result"),
        lambda: Broken(chunks=_no_usage),
        "ended too early|has no usage",
    ),
    Case(
        "stream cut",
        "A stream breaks off after three frames.",
        "A worker that dies in the middle of a reply.",
        _STREAMS,
        ("known_answers", "tool_result"),
        lambda: StreamEnds(stalls=False),
        "no answer|no reply could be read",
    ),
    Case(
        "stream stalls",
        "A stream stays open after three frames, and nothing comes.",
        "A scheduler that forgets a request.",
        _STREAMS,
        ("known_answers", "tool_result"),
        lambda: StreamEnds(stalls=True),
        "deadline passed",
        late=True,
    ),
    # ---- tools
    Case(
        "tools dropped",
        "The tools of a request are not shown to the model.",
        "A chat template without tools, or no --enable-auto-tool-choice.",
        _TOOLS,
        ("known_answers", "json_schema"),
        lambda: dropped("tools", "tool_choice"),
        "no single call|does not hold one call",
    ),
    Case(
        "another city",
        "The call is about another city than the question.",
        "A request that is computed from another one's row.",
        _TOOLS,
        ("known_answers", "json_schema"),
        lambda: Broken(asks=_another_city),
        "arguments of the call are wrong",
    ),
    Case(
        "a call ends as text",
        "finish_reason is stop after a call.",
        "A parser that finds the call too late: agents then wait for nothing.",
        _TOOLS,
        ("known_answers",),
        lambda: Broken(answers=_ends_as_text, chunks=_ends_as_text),
        "finish_reason of",
    ),
    Case(
        "tool_choice ignored",
        "There is a call under tool_choice none.",
        "A parameter that is read and not used.",
        ("tool_call",),
        ("tool_call_streamed", "tool_result"),
        lambda: Broken(asks=_call_whatever_the_choice),
        "under tool_choice none",
    ),
    Case(
        "one id",
        "All calls have the same id.",
        "An id that is made of the position alone.",
        ("tool_call",),
        ("tool_call_streamed", "tool_result"),
        lambda: Broken(answers=_same_id),
        "the same id",
    ),
    Case(
        "a call in one frame",
        "A streamed call comes whole.",
        "A parser that waits for the end of the call.",
        ("tool_call_streamed",),
        ("usage", "tool_result"),
        lambda: Held(calls=True),
        "not streamed",
    ),
    Case(
        "last piece lost",
        "The brace that closes the arguments of a streamed call does not come.",
        "A streaming parser that drops what is left at the end, as known of several models' parsers.",
        ("tool_call_streamed",),
        ("usage", "tool_result"),
        lambda: Broken(chunks=_last_piece_lost),
        "not JSON",
    ),
    Case(
        "named in each piece",
        "Each piece of a streamed call has the tool's name.",
        "A streaming parser that begins the call anew with every piece.",
        ("tool_call_streamed",),
        ("usage", "tool_result"),
        lambda: Broken(chunks=_named_in_each_piece),
        "does not hold one call",
    ),
    Case(
        "result lost",
        "The model does not see what the tool returned.",
        "A chat template that leaves out messages of the role tool.",
        ("tool_result",),
        ("tool_call", "tool_call_streamed"),
        lambda: Broken(asks=_result_lost),
        "does not use what the tool returned|a call came after|did not end by itself",
    ),
    Case(
        "result of before",
        "The model sees what the tool returned in the conversation before.",
        "A prefix of another conversation that is taken from the cache.",
        ("tool_result",),
        ("tool_call", "tool_call_streamed"),
        ResultOfBefore,
        "does not use what the tool returned",
    ),
    # ---- scores of the prompt
    Case(
        "prompt_logprobs dropped",
        "prompt_logprobs is ignored.",
        "A runner that does not have the feature and does not say so.",
        ("prompt_logprobs",),
        ("logprobs", "usage"),
        lambda: dropped("prompt_logprobs"),
        "not one entry for every token",
    ),
    Case(
        "prompt rows shifted",
        "The entry of a prompt's token is that of the next one.",
        "Rows of a padded prefill that are gathered at wrong places.",
        ("prompt_logprobs",),
        ("logprobs", "usage"),
        lambda: Broken(answers=_prompt_rows_shifted),
        "its own token is missing",
    ),
    Case(
        "prompt rows null",
        "Every entry is null.",
        "A list that is made in the right length and never filled.",
        ("prompt_logprobs",),
        ("logprobs", "usage"),
        lambda: Broken(answers=_prompt_rows_null),
        "its own token is missing",
    ),
    Case(
        "ids mixed up",
        "The ids of the reply stand among those of the prompt.",
        "A buffer that holds prompt and output, read past the prompt's end.",
        ("usage", "prompt_logprobs"),
        ("logprobs", "min_tokens"),
        lambda: Broken(answers=_ids_mixed_up),
        "usage miscounts|the prompt is not the one asked",
    ),
    Case(
        "error afterwards",
        "The request after one with prompt_logprobs gets HTTP 500.",
        "State of the request that the next step stumbles over.",
        ("prompt_logprobs",),
        ("logprobs", "usage"),
        lambda: OneError(key="prompt_logprobs"),
        "was refused",
    ),
    # ---- what is asked of the tokens
    Case(
        "schema dropped",
        "response_format is ignored.",
        "No backend for structured outputs, and no word of it.",
        ("json_schema",),
        ("logit_bias", "prompt_logprobs"),
        lambda: dropped("response_format"),
        "not JSON|not what the schema says|nobody can guess",
    ),
    Case(
        "any object",
        "The reply is JSON, and the schema is not looked at.",
        "A server that knows json_object only: models that write JSON by themselves hide it.",
        ("json_schema",),
        ("logit_bias", "prompt_logprobs"),
        lambda: Broken(asks=_any_object),
        "nobody can guess|not what the schema says|did not end by itself",
    ),
    Case(
        "schema left over",
        "The next request is under the schema of the one before.",
        "A mask of the grammar that is not cleared for its row.",
        ("json_schema",),
        ("logit_bias", "prompt_logprobs"),
        lambda: LeftOver("response_format"),
        "is in the next",
    ),
    Case(
        "logit_bias dropped",
        "logit_bias is ignored.",
        "A sampler without logits processors: vllm-gaudi ignored it in silence.",
        ("logit_bias",),
        ("json_schema", "min_tokens", "bad_words"),
        lambda: dropped("logit_bias"),
        "+100 had no effect",
    ),
    Case(
        "no ban",
        "A bias below 0 is ignored.",
        "A bias that is applied after the likeliest token was taken.",
        ("logit_bias",),
        ("json_schema", "bad_words"),
        lambda: Broken(asks=_no_ban),
        "-100 had no effect",
    ),
    Case(
        "bias left over",
        "The bias of one request acts on the next.",
        "A row of the persistent batch that is not cleared.",
        ("logit_bias",),
        ("json_schema", "bad_words"),
        lambda: LeftOver("logit_bias"),
        "left over",
    ),
    Case(
        "bias on all rows",
        "The bias of one request acts on those beside it.",
        "A mask over the whole batch instead of a row.",
        ("logit_bias",),
        ("json_schema", "bad_words"),
        BiasOnAll,
        "wrong row",
    ),
    # ---- sampling
    Case(
        "min_p dropped",
        "min_p is ignored.",
        "As logit_bias: ignored in silence by vllm-gaudi.",
        ("min_p",),
        ("min_tokens", "seed"),
        lambda: dropped("min_p"),
        "that min_p excludes",
    ),
    Case(
        "min_p left over",
        "The min_p of one request acts on all after it.",
        "A tensor of the batch that is filled and never reset.",
        ("min_p",),
        ("min_tokens", "bad_words"),
        lambda: LeftOver("min_p", once=False),
        "without min_p no token came",
    ),
    Case(
        "only the likeliest",
        "Under min_p the likeliest token is always taken.",
        "A threshold that is compared with the wrong maximum.",
        ("min_p",),
        ("min_tokens", "bad_words"),
        lambda: Broken(asks=_only_the_likeliest),
        "only the likeliest",
    ),
    Case(
        "min_tokens dropped",
        "min_tokens is ignored.",
        "As logit_bias: ignored in silence by vllm-gaudi.",
        ("min_tokens",),
        ("logit_bias", "bad_words"),
        lambda: dropped("min_tokens"),
        "shorter than min_tokens",
    ),
    Case(
        "end ignored",
        "The reply goes on past its end instead of coming to none.",
        "A stop that is not looked at, where the token should have been kept from coming.",
        ("min_tokens",),
        ("logit_bias", "bad_words"),
        lambda: Broken(asks=_end_ignored),
        "came before min_tokens",
    ),
    Case(
        "min_tokens left over",
        "The min_tokens of one request act on the next.",
        "A penalty that stays with the row.",
        ("min_tokens",),
        ("logit_bias", "bad_words"),
        lambda: LeftOver("min_tokens"),
        "left over",
    ),
    Case(
        "bad_words dropped",
        "bad_words is ignored.",
        "A sampler that does not call the processor.",
        ("bad_words",),
        ("logit_bias", "min_tokens"),
        lambda: dropped("bad_words"),
        "a bad word came",
    ),
    Case(
        "bad_words left over",
        "The bad words of one request act on the next.",
        "A table by row that outlives its request.",
        ("bad_words",),
        ("logit_bias", "min_tokens"),
        lambda: LeftOver("bad_words"),
        "left over",
    ),
    Case(
        "any bad word",
        "With any bad word the reply is to the prompt in disorder.",
        "A mask at the wrong offset.",
        ("bad_words",),
        ("logit_bias", "min_tokens"),
        lambda: Broken(asks=_any_bad_word),
        "changes the reply|a bad word came",
    ),
    Case(
        "bad_words kills",
        "The process is gone once a request has bad_words.",
        "vllm-gaudi: an error in the sampler ends the engine's core.",
        ("bad_words",),
        ("min_tokens", "healthy"),
        lambda: Dies(key="bad_words"),
        "no answer",
        final=True,
    ),
    Case(
        "seed dropped",
        "The seed is ignored.",
        "A sampler with one generator for all rows.",
        ("seed",),
        ("min_tokens", "min_p"),
        lambda: dropped("seed"),
        "the same seed gave other tokens",
    ),
    Case(
        "one seed",
        "Every seed is the same.",
        "A generator that is made anew with a constant.",
        ("seed",),
        ("min_tokens", "bad_words"),
        lambda: Broken(asks=_one_seed),
        "other seeds gave the same",
    ),
    Case(
        "seed left over",
        "The seed of one request acts on all after it.",
        "A generator that stays with the row.",
        ("seed",),
        ("min_tokens", "bad_words"),
        lambda: LeftOver("seed", once=False),
        "without a seed gave the same",
    ),
    # ---- long prompts
    Case(
        "never cached",
        "Nothing is ever read from the prefix cache.",
        "Prefix caching that was switched off in silence, as contiguous attention does on Gaudi.",
        ("prefix_cache",),
        ("needles", "kv_pool"),
        lambda: Broken(asks=_new_salt),
        "no hit in 3 visits",
    ),
    Case(
        "salt ignored",
        "Requests with different salts share the cache.",
        "Blocks that are named by their tokens alone: one customer reads how fast another's prompt was.",
        ("prefix_cache",),
        ("usage", "kv_pool"),
        _one_salt,
        "another cache_salt",
    ),
    Case(
        "always cached",
        "usage says 256 cached tokens for every prompt.",
        "A figure of the scheduler that is not reset for the next request.",
        ("prefix_cache", "needles"),
        ("usage", "kv_pool"),
        lambda: Broken(answers=usage(_always_cached)),
        "not cold",
    ),
    Case(
        "no cached tokens told",
        "usage says 0 cached tokens at a hit.",
        "A count that is lost between two processes.",
        ("prefix_cache",),
        ("needles", "usage"),
        lambda: Broken(answers=usage(_never_told)),
        "count other hits",
    ),
    Case(
        "no details",
        "usage has no cached tokens.",
        "--enable-prompt-tokens-details was forgotten.",
        ("prefix_cache",),
        ("needles", "usage"),
        lambda: Broken(answers=usage(_no_details)),
        "no cached_tokens",
    ),
    Case(
        "off block",
        "The cached tokens are one less than whole blocks.",
        "Blocks of two kinds of layers that are counted with one size.",
        ("prefix_cache",),
        ("needles", "usage"),
        lambda: Broken(answers=usage(_off_block)),
        "count other hits|no whole blocks",
    ),
    Case(
        "other values from the cache",
        "At a hit the log-probabilities differ by 0.001.",
        "A recurrent state that is resumed one step off.",
        ("prefix_cache",),
        ("needles", "logprobs"),
        lambda: Broken(answers=_other_values),
        "the log-probabilities differ",
    ),
    Case(
        "other values after a block",
        "The same, only where the prompt ends one token after a block.",
        "A state that is saved before its block is complete: seen at offsets of a few tokens alone.",
        ("prefix_cache",),
        ("needles", "logprobs"),
        lambda: Broken(answers=_other_values_after_a_block),
        "the log-probabilities differ",
    ),
    Case(
        "other tokens from the cache",
        "At a hit the first token of the reply is another one.",
        "vllm-gaudi: a hit that goes on from the state of another request.",
        ("prefix_cache",),
        ("needles", "logprobs"),
        lambda: Broken(answers=_other_tokens),
        "the tokens differ",
    ),
    Case(
        "the tail is read",
        "Only the end of a long prompt is read, and usage counts all of it.",
        "A sliding window where there should be none, or a prompt that was cut.",
        ("needles",),
        ("prefix_cache", "usage"),
        TailRead,
        "codes were found",
    ),
    Case(
        "the prompt of before",
        "A long prompt is answered from the one before it.",
        "A block that is found under a name that two prompts share.",
        ("needles",),
        ("prefix_cache", "usage"),
        PromptOfBefore,
        "codes were found",
    ),
    # ---- speculation
    Case(
        "no draft",
        "/metrics has no counters of speculation.",
        "--speculative-config was lost on the way; so it is with the engine here, without the counters that are added.",
        ("draft",),
        ("kv_pool", "healthy"),
        lambda: Broken(pages=lambda page: without(page, DRAFTS)),
        "no counters of speculation",
    ),
    Case(
        "nothing drafted",
        "The counters stay at 0.",
        "A draft that is loaded and not used.",
        ("draft",),
        ("kv_pool", "healthy"),
        lambda: Broken(pages=lambda page: with_value(page, f"{DRAFTS}drafts_total", lambda _count: 0)),
        "too little was drafted",
    ),
    Case(
        "nothing accepted",
        "No drafted token is accepted.",
        "A draft whose weights were not loaded, or of another model.",
        ("draft",),
        ("kv_pool", "healthy"),
        lambda: Broken(pages=_drafts(0, 0, 0)),
        "too rarely",
    ),
    Case(
        "all accepted",
        "Every drafted token is accepted.",
        "Replies that repeat themselves: any draft gets them right.",
        ("draft",),
        ("kv_pool", "healthy"),
        lambda: Broken(pages=_drafts(1, 1, 1)),
        "too often|contradict",
    ),
    Case(
        "first position only",
        "The share is right, and nearly all of it is at the first position.",
        "A draft that is fed its own wrong state after its first token.",
        ("draft",),
        ("kv_pool", "healthy"),
        lambda: Broken(pages=_drafts(0.75, 1, 0.1)),
        "at position 1",
    ),
    Case(
        "others ask",
        "Each request is asked twice.",
        "A server that is measured while it is used.",
        ("draft",),
        ("known_answers", "healthy"),
        OthersAsk,
        "others asked",
    ),
    # ---- the pool
    Case(
        "small pool",
        "The pool of KV blocks is half as large.",
        "Something else took the device's memory first.",
        ("kv_pool",),
        ("prefix_cache", "healthy"),
        lambda: Broken(pages=lambda page: with_label(page, "kv_cache_size_tokens", "762600")),
        "smaller than the recipe counts on",
    ),
    Case(
        "little concurrency",
        "The pool holds half as many requests of full context.",
        "Another --kv-cache-dtype, or blocks of recurrent layers that are larger than planned.",
        ("kv_pool",),
        ("needles", "draft"),
        lambda: Broken(pages=lambda page: with_label(page, "kv_cache_max_concurrency", "186.2")),
        "smaller than the recipe counts on",
    ),
    Case(
        "pool not told",
        "/metrics tells None as the size of the pool.",
        "An engine that works the size out after it has told it.",
        ("kv_pool",),
        ("needles", "healthy"),
        lambda: Broken(pages=lambda page: with_label(page, "kv_cache_size_tokens", "None")),
        "no kv_cache_size_tokens",
    ),
    Case(
        "large pool",
        "The pool is told twice as large as it is.",
        "A wrong sum. The floors of the check cannot see it: whether the pool holds what it says, only a load shows.",
        (),
        ("kv_pool", "healthy"),
        lambda: Broken(pages=lambda page: with_label(page, "kv_cache_size_tokens", "3050402")),
        "",
    ),
    # ---- one process, alive
    Case(
        "no start time",
        "/metrics does not tell when the process was started.",
        "Metrics of several processes that are added up: a restart would go unseen.",
        ("healthy",),
        ("known_answers", "kv_pool"),
        lambda: Broken(pages=lambda page: without(page, "process_start_time_seconds")),
        "process_start_time_seconds",
    ),
    Case(
        "tokens not counted",
        "The counter of generated tokens stands still.",
        "An engine whose statistics died, which is what tells a hung one from a busy one.",
        ("healthy",),
        ("known_answers", "kv_pool"),
        TokensStand,
        "did not count the token",
    ),
    Case(
        "restarted",
        "Another process answers after three completions.",
        "systemd brought the server back before anybody looked.",
        ("known_answers",),
        ("identity", "healthy"),
        lambda: Restarted(completions=3),
        "started anew",
        final=True,
    ),
    Case(
        "unhealthy",
        "/health answers 503 after three completions.",
        "The engine's core is dead, the web server is not.",
        ("known_answers",),
        ("identity", "healthy"),
        lambda: Unhealthy(completions=3),
        "/health was refused",
        final=True,
    ),
    Case(
        "dies",
        "The process is gone at the third completion.",
        "Out of memory at the first real batch.",
        ("known_answers",),
        ("identity", "healthy"),
        lambda: Dies(completions=3),
        "no answer",
        final=True,
    ),
    Case(
        "hangs",
        "After one completion none is answered, and /health says 200.",
        "A device that hangs, or ranks that wait for each other.",
        tuple(name for name in _ONCE_HUNG if name != "identity"),
        ("identity", "kv_pool"),
        lambda: Hangs(completions=2),
        "deadline passed",
        asks_only=("known_answers", "healthy"),
        late=True,
    ),
    # ---- the host, which the tests play
    _at_host(
        "line not logged",
        "The journal has not the line of the cache mode.",
        "The engine chose another mode.",
        ("log_line",),
        "no line of this run matches",
        lambda stage: stage.log(START, READY),
    ),
    _at_host(
        "line of an earlier run",
        "The line is in the journal of the run before.",
        "A change of the engine's arguments that took the line away.",
        ("log_line",),
        "no line of this run matches",
        lambda stage: stage.log(START, READY, before=(START, LINE, READY)),
    ),
    _at_host(
        "error logged",
        "The journal has a line of an error.",
        "A worker that died and was replaced.",
        ("no_errors",),
        "an error is logged",
        lambda stage: stage.log(START, LINE, READY, ERROR),
    ),
    _at_host(
        "unit restarted",
        "systemd has started the unit anew twice.",
        "A crash between two requests.",
        ("no_errors",),
        "the unit was restarted",
        lambda stage: stage.restarted(2),
    ),
    _at_host(
        "journal rotated",
        "The journal has not the beginning of the run.",
        "A journal with a limit that a talkative server reaches.",
        ("no_errors",),
        "does not hold the start",
        lambda stage: stage.log(LINE, READY),
    ),
    _at_host(
        "other environment",
        "The process has its libraries from another environment.",
        "A release that was changed without a restart.",
        ("libraries",),
        "runs in another environment",
        lambda stage: stage.serve_from_elsewhere(),
    ),
    _at_host(
        "other library",
        "The environment has another version of a library than the recipe names.",
        "A package that somebody installed into it by hand.",
        ("libraries",),
        "another version",
        lambda stage: stage.want_other_version(),
    ),
)
