# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever is put in: no traceback, no hang, no rule that crashes, no value that a shell or systemd reads as its own.

Texts are made from the pieces that YAML, shells and systemd care about, and from the shipped recipes with something
broken in them.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import io
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.module_utils import unit as unit_file
from ansible_collections.enplace.inference.plugins.plugin_utils import hub, plan, render
from ansible_collections.enplace.inference.plugins.plugin_utils.lint import lint_document, lint_path
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    RECIPES,
    Document,
    Problem,
    Recipe,
    RecipeError,
    load_yaml,
    parse_yaml,
    validate,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enplace import common, lint
from enplace.main import main
from tests.unit.test_unit_file import received

SHIPPED = sorted(RECIPES.glob("*/*/recipe.yaml"))
TEXTS = [path.read_text(encoding="utf-8") for path in SHIPPED]
# Manifests of every version that a shipped recipe names, those that are not made yet among them.
ENGINES = Path(__file__).parent / "rules" / "engines"
# A hang is a failure; a busy machine is not.
SOON = datetime.timedelta(seconds=20)
FUZZ = settings(
    max_examples=250, deadline=SOON, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

PIECES = st.sampled_from(
    [
        *(
            "\n",
            "\n  ",
            "\n    ",
            " ",
            "- ",
            ": ",
            ":",
            ",",
            "{",
            "}",
            "[",
            "]",
            "? ",
            "|",
            ">-",
            "|\n",
            "'",
            '"',
            "#",
            " #",
        ),
        *(
            "&a",
            "*a",
            "!",
            "!!str",
            "!!python/name:os.system",
            "<<",
            "---",
            "...",
            "%YAML 1.2",
            "\t",
            "\r\n",
            "\r",
            "@",
            "`",
        ),
        *(
            "{{",
            "}}",
            "{%",
            "$",
            "\\",
            "\\x00",
            "\\ud800",
            "\x00",
            "\x1b",
            "\u2028",
            "\u202e",
            "\ufeff",
            "é",
            "\U0001f600",
        ),
        *(
            "1",
            "0",
            "-1",
            "1e9",
            "1_0",
            "0x1",
            ".inf",
            "1:20",
            "9" * 30,
            "true",
            "yes",
            "null",
            "~",
            "2026-01-01",
            "a",
            "kind",
        ),
    ]
)
SOUP = st.lists(PIECES | st.text(max_size=3), max_size=40).map("".join)


def read(text: str, *, pure: bool = False) -> Document | None:
    """The document, None where it is refused. Any other end is a failure."""
    try:
        return parse_yaml(Path("x.yaml"), text, pure=pure)
    except RecipeError as error:
        refused = error.problems
    assert refused
    for problem in refused:
        assert str(problem).startswith("x.yaml")
        assert len(str(problem)) < 2000
    return None


def plain(value: Any) -> Iterator[Any]:
    """Every leaf of plain data; a failure for anything that JSON does not know."""
    if isinstance(value, dict):
        for key, inner in value.items():
            assert type(key) is str
            yield key
            yield from plain(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from plain(inner)
    else:
        assert value is None or type(value) in (str, int, float, bool)
        yield value


@FUZZ
@given(SOUP)
def test_any_text_is_plain_data_or_refused(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return  # No file holds it.
    fast, slow = read(text), read(text, pure=True)
    for document in (fast, slow):
        if document is not None:
            for leaf in plain(document.data):
                if isinstance(leaf, str):
                    leaf.encode("utf-8")
                    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", leaf)
                    assert "{{" not in leaf
            json.dumps(document.data, allow_nan=False)
            assert all(line > 0 and column > 0 for line, column in document.places.values())
    if fast is not None and slow is not None:
        assert (fast.data, fast.places) == (slow.data, slow.places)


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes_are_a_recipe_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    assert lint_path(path), "no such bytes are a good recipe"


def broken(data: st.DataObject) -> tuple[int, str]:
    """A shipped recipe with pieces put in, taken out, doubled or moved."""
    index = data.draw(st.integers(0, len(TEXTS) - 1))
    text = TEXTS[index]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.sampled_from([0, 1, 2, 5, 20, 200])))
        how = data.draw(st.sampled_from(["insert", "replace", "remove", "double", "line"]))
        if how == "insert":
            text = text[:start] + data.draw(PIECES) + text[start:]
        elif how == "replace":
            text = text[:start] + data.draw(SOUP) + text[end:]
        elif how == "remove":
            text = text[:start] + text[end:]
        elif how == "double":
            text = text[:end] + text[start:end] + text[end:]
        else:
            lines = text.splitlines(keepends=True) or [""]
            position = data.draw(st.integers(0, len(lines) - 1))
            lines[position : position + 1] = data.draw(st.sampled_from([[], lines[position : position + 1] * 2]))
            text = "".join(lines)
    return index, text


@FUZZ
@given(st.data())
def test_a_broken_recipe_is_told_what_is_broken(tmp_path: Path, data: st.DataObject) -> None:
    index, text = broken(data)
    path = tmp_path / SHIPPED[index].relative_to(RECIPES)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    found = lint_path(path, engines=ENGINES)
    assert [str(problem) for problem in found if problem.rule == "rule-crashed"] == []
    check_forms(found)


def check_forms(found: list[Problem]) -> None:
    """Every form of output holds its shape whatever is in a finding."""
    for problem in found:
        for text in (common.finding(problem), lint.annotation(problem)):
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), text
        assert "\n" not in lint.annotation(problem)
        assert common.finding(problem).splitlines()[0].endswith(f"[{problem.rule}]")
    json.dumps(lint.sarif(lint.Result([], found)))
    json.dumps([lint.as_data(problem) for problem in found])


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["8G", "0.1", "-1", "mtp", "eagle3", "*", "[", "(", "hf_" + "a" * 30, "0.28.0", "9" * 400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


LIKE: Mapping[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-1, 5) | st.integers(1, 2**63 - 1) | st.sampled_from([10**30, 128, 262144]),
    float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 3),
    str: st.text(max_size=6)
    | st.sampled_from(["8G", "0.1", "-1", "mtp", "eagle3", "*", "[", "0.26.0", "arguments", "main"]),
}


@FUZZ
@given(st.data())
def test_no_rule_crashes_on_what_the_schema_lets_through(data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(SHIPPED) - 1))
    shipped = load_yaml(SHIPPED[index])
    recipe = copy.deepcopy(shipped.data)
    for _ in range(data.draw(st.integers(1, 2))):
        target: Any = recipe
        while True:
            keys = list(target) if isinstance(target, dict) else list(range(len(target)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(target[key], (dict, list)) and target[key] and data.draw(st.integers(0, 5)):
                target = target[key]
                continue
            how = data.draw(st.sampled_from(["like", "like", "like", "like", "like", "remove", "any"]))
            if how == "remove":
                del target[key]
            else:
                # Another value of the same kind is often good for the schema, and a surprise for the rules.
                like = LIKE.get(type(target[key]), VALUES) if how == "like" else VALUES
                target[key] = copy.deepcopy(data.draw(like))
            break
    found = lint_document(Document(shipped.path, recipe, shipped.places), engines=ENGINES)
    assert [str(problem) for problem in found if problem.rule == "rule-crashed"] == []


# Quoting --------------------------------------------------------------------------------------------------------------

HOSTILE = st.lists(
    st.sampled_from(
        [
            *(
                "$(touch pwned)",
                "`touch pwned`",
                "; touch pwned;",
                "&& touch pwned",
                "| touch pwned",
                "> pwned",
                "$HOME",
                "${IFS}",
            ),
            *(
                "'",
                '"',
                "\\",
                "\\'",
                "*",
                "?",
                "~",
                "!!",
                "#",
                " ",
                "  ",
                "%i",
                "%%",
                "$$",
                "@",
                "-",
                "+",
                ":",
                "=",
                "é",
                "日本",
            ),
            *("\\n", "\\x41", "exec", "a", "1", "{", "}", ",", "[", "]", "<", "(", ")", "^", "\U0001f600"),
        ]
    ),
    min_size=1,
    max_size=6,
).map("".join)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,4}(-[a-z0-9]{1,4}){0,2}", fullmatch=True).map(lambda name: f"x{name}")
ITEMS = HOSTILE | st.integers(-5, 5) | st.sampled_from(["a\nb", "a\tb"])
ARGUMENTS = st.dictionaries(
    NAMES,
    st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | HOSTILE
    | st.lists(ITEMS, min_size=1, max_size=3)
    | st.dictionaries(HOSTILE, ITEMS, max_size=3),
    max_size=5,
)
VARIABLES = st.dictionaries(st.from_regex(r"X[A-Z_]{1,8}", fullmatch=True), HOSTILE | st.just(""), max_size=4)


def made(arguments: Mapping[str, Any], variables: Mapping[str, str], description: str) -> Recipe | None:
    """The recipe of four Gaudi 2 cards with other arguments and variables, through the loader; None where refused."""
    source = RECIPES / "Qwen" / "Qwen3-Coder-Next" / "recipe.yaml"
    data = copy.deepcopy(load_yaml(source).data)
    variant = data["variants"]["gaudi2-bf16-tp4"]
    # What is only read by people makes the dumper slow.
    kept = ("accelerator", "host", "engine", "fixes", "weights", "ready", "checks")
    variant = {key: variant[key] for key in kept}
    variant["checks"] = variant["checks"][:1]
    data = {"schema": 1, "model": data["model"], "variants": {"gaudi2-bf16-tp4": variant}}
    variant["arguments"], variant["environment"], variant["summary"] = dict(arguments), dict(variables), description
    document, refused = None, []
    try:
        document = parse_yaml(source, yaml.safe_dump(data, allow_unicode=True, sort_keys=False))
    except RecipeError as error:
        refused = error.problems
    # Refused for what it holds. The last is 08 or 1e5 without quotes: text to the program that wrote it, and to others
    # a number.
    known = ("templated", "invisible", "not the same value to every reader")
    assert all(any(word in problem.what for word in known) for problem in refused), list(map(str, refused))
    if document is None:
        return None
    assert document.data == data, "what another program writes is read as it was meant"
    return None if validate(document) else Recipe(document)


# Prints what the server, the fixes and their environment would be given.
SHELL = r"""
vllm() { printf 'A%s\0' "$@"; env -0 | sed -z 's/^/E/'; }
python3() { printf 'F%s\0' "$@"; }
"""


@settings(max_examples=120, deadline=SOON)
@given(ARGUMENTS, VARIABLES, HOSTILE)
def test_no_value_is_read_by_a_shell_or_by_systemd(
    arguments: dict[str, Any], variables: dict[str, str], description: str
) -> None:
    recipe = made(arguments, variables, description)
    if recipe is None:
        return
    script = render.shell(recipe, "gaudi2-bf16-tp4")
    argv = ["serve", "Qwen/Qwen3-Coder-Next", *unit_file.argv_of(arguments)]
    ended = subprocess.run(
        ["sh", "-eu", "-c", SHELL + script],
        env={"ENPLACE": "/opt/en place", "PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    found = [entry for entry in ended.stdout.split("\0") if entry]
    assert [entry[1:] for entry in found if entry[0] == "A"] == argv
    assert [entry[1:] for entry in found if entry[0] == "F"] == [
        *("/opt/en place/fixes/apply_all.py", "--profile", "v0.26.0", "gdn-prefix-cache")
    ]
    environment = dict(entry[1:].split("=", 1) for entry in found if entry[0] == "E")
    assert {name: environment[name] for name in variables} == variables
    assert ended.stderr == ""
    assert not Path("/pwned").exists()
    data = render.data(recipe, "gaudi2-bf16-tp4")
    assert (data["argv"][1:], data["environment"]) == (argv, variables)

    settings_made = plan.read_settings({"enplace_recipes": [f"{recipe.name}:gaudi2-bf16-tp4"]})
    text = plan.unit_text(recipe, "gaudi2-bf16-tp4", settings_made)
    # One setting a line, continued by a backslash at its end.
    lines = text.replace(" \\\n", " ").splitlines()
    (start,) = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    words = received(start)
    assert words[len(words) - len(argv[2:]) :] == argv[2:]
    for name, value in variables.items():
        (line,) = [line for line in lines if re.match(rf'Environment="?{name}=', line)]
        # A lone $ has no meaning in an assignment; a lone % has.
        assert received(line.removeprefix("Environment=").replace("$", "$$")) == [f"{name}={value}"]
    known = re.compile(r"#|\[|$|[A-Z][A-Za-z]+=")
    assert all(known.match(line) for line in lines), "no value begins a line of its own"


@settings(max_examples=150, deadline=SOON)
@given(st.dictionaries(NAMES, st.text(max_size=8) | st.lists(st.text(max_size=8), min_size=1, max_size=2), max_size=3))
def test_a_value_that_no_program_can_be_given_is_refused_and_never_a_traceback(arguments: dict[str, Any]) -> None:
    """Flags among values, NUL bytes, halves of surrogate pairs."""
    recipe = made(arguments, {}, "x")
    if recipe is None:
        return
    words = unit_file.argv_of(arguments)
    flags = [word for word in words if word.startswith("-") and not re.fullmatch(r"-[0-9]+(\.[0-9]+)?", word)]
    assert flags == [f"--{name}" for name in arguments]
    for word in words:
        unit_file.quote_argument(word)
    render.shell(recipe, "gaudi2-bf16-tp4").encode("utf-8")


@pytest.mark.parametrize("name", ["../x", "a/../b", "a\nb", "/etc", "", ".", "a b", "a;b", "$(x)", "%i", "--x"])
@pytest.mark.parametrize(
    "key",
    [
        ("model", "name"),
        ("variants", "cpu", "weights", "repository"),
        ("variants", "cpu", "served_name"),
        ("variants", "cpu", "engine", "version"),
        ("variants", "cpu", "weights", "files", 0, "path"),
        ("variants", "cpu", "fixes", "profile"),
    ],
)
def test_a_name_that_becomes_a_path_cannot_leave_its_place(key: tuple[str | int, ...], name: str) -> None:
    source = RECIPES / "enplace" / "smoke" / "recipe.yaml"
    shipped = load_yaml(source)
    data = copy.deepcopy(shipped.data)
    data["variants"]["cpu"]["fixes"] = {"profile": "v0.28.0"}
    assert validate(Document(source, data, shipped.places)) == []
    target: Any = data
    for part in key[:-1]:
        target = target[part]
    target[key[-1]] = name
    found = validate(Document(source, data, shipped.places))
    assert any(getattr(problem.where, "field", "").startswith(str(key[0])) for problem in found), name
    variant = copy.deepcopy(shipped.data)
    variant["variants"] = {name: variant["variants"]["cpu"]}
    assert validate(Document(source, variant, shipped.places))


# The command ---------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        *(
            "lint",
            "show",
            "render",
            "plan",
            "pin",
            "--json",
            "--format",
            "text",
            "json",
            "sarif",
            "github",
            "markdown",
            "--rules",
        ),
        *(
            "--shell",
            "--memory",
            "--kv-bytes",
            "8G",
            "0",
            "-1",
            "--rate",
            "--recipes",
            "--check",
            "--update",
            "--help",
            "--version",
        ),
        *(
            "enplace/smoke",
            "enplace/smoke:cpu",
            "Qwen/Qwen3-Coder-Next:gaudi2-bf16-tp4",
            "Qwen/Qwen3-Coder-Next",
            ".",
            "/dev/null",
        ),
        *(
            "broken.yaml",
            "broken.yaml:cpu",
            "..",
            "",
            "--",
            "-",
            ":",
            "a/b",
            "a/b:c",
            "forbidden",
            "\x1b[31m",
            "\udcff",
            "é",
        ),
    ]
)


@settings(
    max_examples=150,
    deadline=SOON,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_the_command_ends_with_0_1_or_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    def nobody(*_arguments: Any, **_named: Any) -> str:
        raise hub.HubError([Problem("the hub", "is not asked by this test")])

    monkeypatch.setattr(hub, "resolve_revision", nobody)
    monkeypatch.chdir(tmp_path)
    _, text = broken(data)
    Path("broken.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    argv = data.draw(st.lists(WORDS | st.text(max_size=4), max_size=6))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(argv)
        except SystemExit as ended:
            status = int(ended.code or 0)
    assert status in (0, 1, 2)
    assert "\x1b" not in out.getvalue()
    if status == 2:
        assert err.getvalue() or "unreadable" in out.getvalue()
    if status == 0 and "--json" in argv and not {"--help", "--version"} & set(argv):
        json.loads(out.getvalue())
