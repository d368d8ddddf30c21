# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of tool calls: made, streamed, and their results used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.verify import texts
from ansible_collections.enplace.inference.plugins.module_utils.verify.base import Check, salt, text_of
from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import answers
from ansible_collections.enplace.inference.plugins.module_utils.verify.server import CheckFailed, Server, at

TOOL = "get_weather"
# What the templates of tool-calling models write around a call. A parser that fits the model leaves none of it.
MARKUP = ("<tool_call", "</tool_call", "<function", "<|tool", "[TOOL_CALLS]")
PARSER = "does --tool-call-parser fit the model, and is --enable-auto-tool-choice set?"


class ToolCall(Check):
    """The model calls the tool it has, rightly, at a sampling temperature."""

    name = "tool_call"
    demanded = (
        "every reply is one call of the tool, with the city asked about (each time another one) and nothing else",
        "finish_reason is tool_calls, and no markup of a call is left in the text",
        "every call has an id of its own",
        "control: without a tool there is no call, nor under tool_choice none",
    )

    def asked(self) -> str:
        calls, temperature = self.parameters["calls"], self.parameters["temperature"]
        return f"{calls} questions about the weather in different cities with a tool, temperature {temperature}"

    def run(self, server: Server) -> dict[str, Any]:
        cities = self.rng.sample(texts.CITIES, self.parameters["calls"])
        seen: list[str] = []
        for city in cities:
            reply = self._ask(server, city, tools=[texts.WEATHER_TOOL], tool_choice="auto")
            seen.append(call_of(reply, city)["id"])
        if len(set(seen)) != len(seen):
            raise CheckFailed("two calls have the same id", "an id for every call", seen)
        without = self._ask(server, cities[0])
        _no_call("without any tool", without)
        none = self._ask(server, cities[0], tools=[texts.WEATHER_TOOL], tool_choice="none")
        _no_call("under tool_choice none", none)
        return {"passed": f"{len(seen)}/{len(cities)}", "cities": cities}

    def _ask(self, server: Server, city: str, **options: Any) -> dict[str, Any]:
        return server.chat(
            texts.weather_question(city),
            temperature=self.parameters["temperature"],
            max_tokens=self.parameters["max_tokens"],
            extra={"cache_salt": salt()},
            **options,
        )


class ToolCallStreamed(Check):
    """A streamed call is the plain one in pieces."""

    name = "tool_call_streamed"
    demanded = (
        "the call comes in two frames or more, with one name, one id and one index",
        "the pieces of its arguments add up to JSON with the city asked about and nothing else",
        "the one finish_reason is tool_calls, and no markup of a call is in the text",
        "a chunk of usage comes at the end",
        "the plain reply to the same prompt is the same call",
    )

    def asked(self) -> str:
        return "one question about the weather with a tool at temperature 0, streamed and plain"

    def run(self, server: Server) -> dict[str, Any]:
        city = self.rng.choice(texts.CITIES)
        options: dict[str, Any] = {
            "tools": [texts.WEATHER_TOOL],
            "tool_choice": "auto",
            "temperature": 0,
            "max_tokens": self.parameters["max_tokens"],
        }
        question = texts.weather_question(city)
        parts = _Parts()
        for chunk in server.stream(question, extra={"cache_salt": salt()}, **options):
            parts.add(chunk)
        arguments = parts.arguments_for(city)
        plain = call_of(server.chat(question, extra={"cache_salt": salt()}, **options), city)
        if json.loads(plain["function"]["arguments"]) != arguments:
            raise CheckFailed("the streamed call is not the plain one", plain["function"], parts.text_of_arguments)
        return {"city": city, "frames": parts.frames, "completion_tokens": parts.completion_tokens}


class ToolResult(Check):
    """What the tool returned is what the model says."""

    name = "tool_result"
    demanded = (
        "the model calls the tool, and takes back its own call and the tool's result",
        "the answer has the temperature and the condition that the tool returned, both random in each round",
        "no answer has another round's temperature",
        "every answer ends by itself and is no further call",
    )

    def asked(self) -> str:
        return f"{self.parameters['rounds']} conversations of question, call, result and answer, temperature 0"

    def run(self, server: Server) -> dict[str, Any]:
        rounds = self.parameters["rounds"]
        cities = self.rng.sample(texts.CITIES, rounds)
        temperatures = self.rng.sample(range(10, 40), rounds)
        conditions = self.rng.sample(list(texts.CONDITIONS), rounds)
        rows: list[dict[str, Any]] = []
        for city, temperature, condition in zip(cities, temperatures, conditions):
            text = self._answer(server, city, texts.weather_result(temperature, condition))
            rows.append({"returned": [temperature, condition], "answer": text})
            if not answers(text, [str(temperature)]) or not answers(text, texts.CONDITIONS[condition]):
                todo = "does the chat template render messages of the role tool?"
                raise CheckFailed(
                    "the answer does not use what the tool returned",
                    f"{temperature} and {condition}",
                    text,
                    todo,
                    rows=rows,
                )
            others = [str(other) for other in temperatures if other != temperature]
            if answers(text, others):
                raise CheckFailed("an answer has another round's value", f"{temperature} only", text, rows=rows)
        return {"passed": f"{rounds}/{rounds}", "rows": rows}

    def _answer(self, server: Server, city: str, result: str) -> str:
        options: dict[str, Any] = {
            "tools": [texts.WEATHER_TOOL],
            "temperature": 0,
            "max_tokens": self.parameters["max_tokens"],
        }
        question = {"role": "user", "content": texts.weather_question(city)}
        call = call_of(server.chat([question], extra={"cache_salt": salt()}, **options), city)
        history = [
            question,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result},
        ]
        reply = server.chat(history, extra={"cache_salt": salt()}, **options)
        _no_call("after the tool's result", reply)
        finish = at(reply, "choices", 0, "finish_reason")
        text = text_of(reply)
        if finish != "stop":
            raise CheckFailed("the answer did not end by itself", "finish_reason stop", f"{finish}: {text}")
        return text


class _Parts:
    """A streamed call, put together again."""

    def __init__(self) -> None:
        self.frames = 0
        self.names: list[str] = []
        self.ids: list[str] = []
        self.indexes: set[Any] = set()
        self.text_of_arguments = ""
        self.content = ""
        self.finishes: list[Any] = []
        self.usage: Any = None

    @property
    def completion_tokens(self) -> Any:
        return self.usage.get("completion_tokens") if isinstance(self.usage, dict) else None

    def add(self, chunk: dict[str, Any]) -> None:
        """Take one chunk of the stream."""
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or []:
            if choice.get("finish_reason"):
                self.finishes.append(choice["finish_reason"])
            delta = choice.get("delta") or {}
            self.content += delta.get("content") or ""
            for call in _calls(delta):
                self.frames += 1
                self.indexes.add(call.get("index"))
                function = call.get("function") or {}
                self.ids += [call["id"]] if call.get("id") else []
                self.names += [function["name"]] if function.get("name") else []
                self.text_of_arguments += function.get("arguments") or ""

    def arguments_for(self, city: str) -> Any:
        """The call's arguments; CheckFailed where the pieces are not one call about the city, streamed as it should."""
        if self.names != [TOOL] or len(set(self.ids)) != 1 or len(self.indexes) != 1:
            found = (
                f"names {self.names}, ids {self.ids}, indexes {sorted(map(str, self.indexes))}, text {self.content!r}"
            )
            raise CheckFailed("the stream does not hold one call", f"one {TOOL}, one id, one index", found, PARSER)
        arguments = _arguments(self.text_of_arguments, city)
        _no_markup(self.content)
        if self.finishes != ["tool_calls"]:
            raise CheckFailed("the finish_reason of the stream is wrong", "one tool_calls", self.finishes)
        if self.frames < 2:
            todo = "a client that shows a call while it comes would show nothing until its end"
            raise CheckFailed("the call came in one frame: it was not streamed", "2 frames or more", self.frames, todo)
        if not isinstance(self.completion_tokens, int) or self.completion_tokens < 1:
            raise CheckFailed("the stream has no usage", "a chunk with completion_tokens", self.usage)
        return arguments


def call_of(reply: dict[str, Any], city: str) -> dict[str, Any]:
    """The one call of a reply, as data that can go back in a history; CheckFailed where it is not as it should be."""
    message = at(reply, "choices", 0, "message")
    calls = list(_calls(message))
    names = [(call.get("function") or {}).get("name") for call in calls]
    if names != [TOOL]:
        found = f"calls {names}, text {message.get('content')!r}"
        raise CheckFailed(f"no single call of {TOOL}", f"one, about {city}", found, PARSER)
    _no_markup(message.get("content") or "")
    finish = at(reply, "choices", 0, "finish_reason")
    if finish != "tool_calls":
        raise CheckFailed("the finish_reason of a call is wrong", "tool_calls", finish)
    call = calls[0]
    if not isinstance(call.get("id"), str) or not call["id"]:
        raise CheckFailed("the call has no id", "an id for the tool's result to name", call)
    text = at(call, "function", "arguments")
    _arguments(text, city)
    return {"id": call["id"], "type": "function", "function": {"name": TOOL, "arguments": text}}


def _arguments(text: Any, city: str) -> Any:
    try:
        arguments = json.loads(text)
    except (TypeError, ValueError):
        raise CheckFailed("the arguments of the call are not JSON", f'{{"city": "{city}"}}', text, PARSER) from None
    named = arguments.get("city") if isinstance(arguments, dict) else None
    others = [other for other in texts.CITIES if other != city]
    # "Paris, France" is Paris as well.
    if not isinstance(named, str) or set(arguments) != {"city"} or not answers(named, [city]) or answers(named, others):
        todo = "another city is another request's row; anything else is a parser that does not fit the model"
        raise CheckFailed("the arguments of the call are wrong", f'{{"city": "{city}"}}', text, todo)
    return arguments


def _calls(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise CheckFailed("tool_calls is no list", "a list of calls", calls)
    for call in calls or []:
        if not isinstance(call, dict):
            raise CheckFailed("a call is no object", "{id, type, function}", call)
        yield call


def _no_call(when: str, reply: dict[str, Any]) -> None:
    message = at(reply, "choices", 0, "message")
    if list(_calls(message)) or at(reply, "choices", 0, "finish_reason") == "tool_calls":
        raise CheckFailed(f"a call came {when}", "text and no call", message)


def _no_markup(text: str) -> None:
    left = [mark for mark in MARKUP if mark in text]
    if left:
        raise CheckFailed("markup of a call is left in the text", f"none of {', '.join(MARKUP)}", text, PARSER)
