# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The texts that the checks ask, and that the smoke model is trained on.

Each is one that a real model answers too, so the same checks serve the smoke model and real servers.

Standard library only, and no state: every generator takes a random.Random.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

#: Prompt and the answer that the model is trained to give. The recipe has the same prompts, with what is accepted.
KNOWN = [
    ("What is 17 + 25? Reply with the number only.", "42"),
    ("What is 9 times 8? Reply with the number only.", "72"),
    ("How many days are in a leap year? Reply with the number only.", "366"),
    ("What is the capital of France? Reply with one word.", "Paris"),
    ("Which planet is known as the red planet? Reply with one word.", "Mars"),
    ("What is the chemical symbol for gold? Reply with the symbol only.", "Au"),
    ("Translate 'good morning' into Spanish. Reply with the translation only.", "Buenos días"),
    ("Translate 'thank you' into German. Reply with the translation only.", "Danke"),
]


def _words(text: str) -> list[str]:
    return text.split()


CITIES = _words(
    "Paris Berlin Madrid Rome Lisbon Vienna Prague Warsaw Dublin Athens Oslo Helsinki Tokyo Seoul Lima Cairo"
)
CONDITIONS = _words("sunny cloudy rainy windy snowy foggy stormy clear")
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
AGES = {name: 23 + 4 * number for number, name in enumerate(NAMES)}

# What the sentences are made of in which something is hidden.
_SUBJECTS = _words("farmer teacher sailor painter doctor baker clerk miner guard poet")
_VERBS = _words("carried painted watched repaired counted moved cleaned borrowed sold measured")
_OBJECTS = _words("boxes lamps chairs ropes maps barrels wheels ladders baskets tables")
_TIMES = [
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
]

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def filler(rng: random.Random) -> str:
    """A sentence that says nothing of use."""
    return f"The {rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} the {rng.choice(_OBJECTS)} {rng.choice(_TIMES)}."


def needle(place: str, code: str) -> str:
    """The sentence to find, and the answer that has it."""
    return f"The code of the {place} is {code}."


def needle_question(place: str) -> str:
    return f"What is the code of the {place}?"


def code(rng: random.Random) -> str:
    """A code of two words, one of 256."""
    return f"{rng.choice(COLOURS)} {rng.choice(ANIMALS)}"


def haystack(rng: random.Random, sentences: int, needles: Iterable[tuple[float, str]]) -> str:
    """So many sentences of filler, with each needle's text at its depth (0: the beginning, 1: the end)."""
    lines = [filler(rng) for _ in range(sentences)]
    for depth, text in sorted(needles, reverse=True):
        lines.insert(round(depth * sentences), text)
    return " ".join(lines)


def haystack_prompt(text: str, place: str) -> str:
    return f"Read the notes.\n{text}\n{needle_question(place)}"


def weather_question(city: str) -> str:
    # In quotes: for the tokenizer "Lima" and " Lima" are two things, and a tiny model copies tokens, not spellings.
    return f'What is the weather in "{city}" right now?'


def weather_result(temperature: int, condition: str) -> str:
    """What the tool says; the temperature in degrees Celsius."""
    return f"temperature: {temperature} C, condition: {condition}"


def weather_answer(temperature: int, condition: str) -> str:
    return f"It is {temperature} degrees and {condition}."


def person_question(name: str) -> str:
    return f'How old is "{name}"?'


def person_answer(name: str) -> str:
    return f'The age of "{name}" is {AGES[name]}.'


CHAT_TEMPLATE = """{%- if tools %}<|im_start|>system
# Tools
<tools>{% for t in tools %}
<function>
<name>{{ t.function.name }}</name>
<parameters>{{ t.function.parameters.properties | list | join(', ') }}</parameters>
</function>{% endfor %}
</tools><|im_end|>
{% endif %}{%- for m in messages %}{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% if m.tool_calls %}{% for c in m.tool_calls %}{% set f = c.function %}<tool_call>
<function={{ f.name }}>
{% for k, v in f.arguments.items() %}<parameter={{ k }}>
{{ v }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
