# SPDX-License-Identifier: Apache-2.0
"""The unit's text: quoting, argument lists, and that the same input gives the same bytes."""

from __future__ import annotations

import re

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.unit import (
    Unit,
    argv_of,
    quote_argument,
    quote_environment,
    render,
    render_environment,
)
from hypothesis import given
from hypothesis import strategies as st


def systemd_words(line: str) -> list[str]:
    """An independent reading of systemd.syntax(7): words and C escapes; %% and $$ are left for the caller."""
    words: list[str] = []
    position = 0
    while position < len(line):
        if line[position].isspace():
            position += 1
            continue
        word = ""
        quoted = line[position] == '"'
        position += quoted
        while position < len(line):
            char = line[position]
            if quoted and char == '"':
                position += 1
                break
            if not quoted and char.isspace():
                break
            if char == "\\":
                escape = line[position + 1]
                if escape == "x":
                    word += chr(int(line[position + 2 : position + 4], 16))
                    position += 4
                    continue
                word += {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}[escape]
                position += 2
                continue
            word += char
            position += 1
        words.append(word)
    return words


def received(line: str) -> list[str]:
    """What a program gets: no lone % or $ may be left, since systemd would expand it."""
    words = systemd_words(line)
    for word in words:
        assert not re.search(r"(?<!%)(%%)*%(?!%)", word), "a specifier would be expanded"
        assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", word), "a variable would be expanded"
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


AWKWARD = [
    "",
    " ",
    "a b",
    '"',
    "'",
    "\\",
    "%i",
    "$HOME",
    "${HOME}",
    "100%",
    "a\nb",
    "\t",
    ";",
    "#",
    "--x=1",
    '{"a":"b c"}',
    "é ✓",
    "\x01",
    "\\x41",
]


@pytest.mark.parametrize("text", AWKWARD)
def test_an_argument_arrives_as_it_was(text: str) -> None:
    assert received(quote_argument(text)) == [text]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30), max_size=6))
def test_any_arguments_arrive_as_they_were(words: list[str]) -> None:
    line = " ".join(quote_argument(word) for word in words)
    assert received(line) == words
    assert "\n" not in line, "an argument must not begin a new line of the unit"


def test_what_no_program_can_receive_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote_argument("a\x00b")
    with pytest.raises(UnicodeEncodeError):
        quote_argument("\ud800")


def test_a_dollar_in_the_environment_is_left_alone() -> None:
    assert quote_environment("A", "$b %c") == '"A=$b %%c"'
    assert quote_environment("A", "1") == "A=1"


def test_flags_are_typed_data() -> None:
    arguments = {"a": True, "b": False, "c": 3, "d": "x y", "e": {"k": [1, "é"]}, "f": ["p", "q"]}
    assert argv_of(arguments) == ["--a", "--no-b", "--c", "3", "--d", "x y", "--e", '{"k":[1,"é"]}', "--f", "p", "q"]


def unit(**changes: object) -> Unit:
    values: dict[str, object] = {
        "description": "x",
        "slug": "org-model-cpu",
        "user": "enplace",
        "argv": ["/opt/v/bin/vllm", "serve", "/models/m", "--port", "8000", "--flag"],
        "ready_argv": ["/opt/v/bin/python", "/r/ready.py"],
        "environment": {"B": "2", "A": "1 $x"},
        "ready_timeout_s": 100,
    }
    return Unit(**{**values, **changes})  # type: ignore[arg-type]


def test_the_unit_is_the_same_bytes_every_time() -> None:
    one, two = render(unit()), render(unit(environment={"A": "1 $x", "B": "2"}))
    assert one == two
    assert one.endswith("\n")


def test_the_unit_says_what_was_asked() -> None:
    text = render(unit(description="100% of\nit"))
    assert "Description=100%% of it\n" in text
    assert "Environment" not in text
    assert render_environment(unit()).endswith('[Service]\nEnvironment="A=1 $x"\nEnvironment=B=2\n')
    assert "ExecStart=/opt/v/bin/vllm serve /models/m \\\n    --port 8000 \\\n    --flag\n" in text
    assert "TimeoutStartSec=130\n" in text, "systemd must wait longer than the readiness question does"
    assert "\nPrivateDevices=yes\n" in text
    assert "\nPrivateDevices=" not in render(unit(accelerator="gb10")), "it would hide the accelerator"
