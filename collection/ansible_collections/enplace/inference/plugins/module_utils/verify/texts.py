# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The texts that the checks make up: random, but the same for the same random.Random.

A real model answers them as they are meant; the smoke model of the tests was trained on texts of the same form.
Standard library only, and no state.
"""

from __future__ import annotations

import random
from typing import Any


def _words(text: str) -> list[str]:
    return text.split()


CITIES = _words(
    "Paris Berlin Madrid Rome Lisbon Vienna Prague Warsaw Dublin Athens Oslo Helsinki Tokyo Seoul Lima Cairo"
)
# What a tool may return, and the words of an answer that uses it.
CONDITIONS = {
    "sunny": ["sunny", "sunshine", "sun"],
    "cloudy": ["cloudy", "clouds", "cloud"],
    "rainy": ["rainy", "rain", "raining"],
    "windy": ["windy", "wind", "winds"],
    "snowy": ["snowy", "snow", "snowing"],
    "foggy": ["foggy", "fog"],
    "stormy": ["stormy", "storm", "storms"],
    "clear": ["clear"],
}
PLACES = _words(
    "harbor library museum station bakery castle garden theater "
    "market tower bridge school temple factory stadium airport"
)
COLOURS = _words(
    "amber azure crimson emerald golden indigo ivory jade lilac olive orange pearl ruby silver teal violet"
)
ANIMALS = _words(
    "falcon badger otter panther lynx heron walrus gecko bison cobra dolphin raven tiger wombat zebra beetle"
)
NAMES = _words("Alice Bruno Clara David Elena Felix Grace Hugo")

_SUBJECTS = _words("farmer teacher sailor painter doctor baker clerk miner guard poet")
_VERBS = _words("carried painted watched repaired counted moved cleaned borrowed sold measured")
_OBJECTS = _words("boxes lamps chairs ropes maps barrels wheels ladders baskets tables")
_TIMES = (
    "before noon",
    "after lunch",
    "in the evening",
    "on Monday",
    "during the storm",
    "last winter",
    "every summer",
    "at dawn",
    "by the river",
    "near the old road",
)

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

PERSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

# Natural prompts with replies of some length: on random tokens a draft accepts far less than on what people ask.
DRAFTED = (
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Explain in one paragraph why the sky is blue.",
    "Write a short story about a sailor who finds an old map.",
    "List the steps to boil an egg.",
    "Write a SQL query that counts the orders of each customer, with the largest count first.",
    "Summarise how a hash table works.",
    "Write a polite e-mail that moves a meeting from Monday to Thursday.",
    "Write a shell script that prints the five largest files below a folder.",
)


def filler(rng: random.Random) -> str:
    """A sentence that says nothing of use."""
    return f"The {rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} the {rng.choice(_OBJECTS)} {rng.choice(_TIMES)}."


def code(rng: random.Random) -> str:
    """A code of two words, one of 256."""
    return f"{rng.choice(COLOURS)} {rng.choice(ANIMALS)}"


def codes(rng: random.Random, count: int) -> list[str]:
    """So many codes, of which no two share a word; at most 16."""
    colours, animals = rng.sample(COLOURS, count), rng.sample(ANIMALS, count)
    return [f"{colour} {animal}" for colour, animal in zip(colours, animals)]


def needle(place: str, hidden: str) -> str:
    """The sentence to find, and the answer that has it."""
    return f"The code of the {place} is {hidden}."


def needle_question(place: str) -> str:
    return f"What is the code of the {place}?"


def haystack_prompt(lines: list[str], depth: float, text: str, place: str) -> str:
    """A prompt with a text hidden at a depth (0: the beginning, 1: the end) among lines, and the question about it."""
    at = round(depth * len(lines))
    return f"Read the notes.\n{' '.join([*lines[:at], text, *lines[at:]])}\n{needle_question(place)}"


def weather_question(city: str) -> str:
    # In quotes: for a tokenizer "Lima" and " Lima" are two things, and a tiny model copies tokens, not spellings.
    return f'What is the weather in "{city}" right now?'


def weather_result(temperature: int, condition: str) -> str:
    """What the tool says; the temperature in degrees Celsius."""
    return f"temperature: {temperature} C, condition: {condition}"


def person_question(name: str) -> str:
    return f'How old is "{name}"?'
