# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: what each command prints and how it ends. Where the hub is asked, it is the simulated one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.plugin_utils import traps
from ansible_collections.enplace.inference.plugins.plugin_utils.lint import catalogue, lint_path
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    RECIPES,
    Place,
    Problem,
    find_recipe,
    load_recipe,
)

import enplace
from enplace import common, lint, pin, show
from enplace.main import main
from tests.sim.hub import hub
from tests.sim.recorded import Recorded

ROOT = Path(__file__).resolve().parents[2]
SMOKE = "enplace/smoke"
COMMANDS = ("lint", "show", "render", "plan", "pin", "lock", "report", "doctor")


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Runs the command in an empty folder, with nothing of the caller's environment that it would read."""
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def call(*argv: str) -> Ran:
        try:
            status = main(argv)
        except SystemExit as error:
            status = int(error.code or 0)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return call


def recipe_of(folder: Path, change: Callable[[str], str] = lambda text: text) -> Path:
    """The smoke recipe, changed, in a folder of its own."""
    path = folder / "enplace" / "smoke" / "recipe.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(change((RECIPES / SMOKE / "recipe.yaml").read_text(encoding="utf-8")), encoding="utf-8")
    return path


# The command itself --------------------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_project(run: Callable[..., Ran]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert run("--version") == Ran(0, f"enplace {project['version']}\n", "")
    assert enplace.__version__ == project["version"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_are_understood(run: Callable[..., Ran], command: str) -> None:
    told = run(command, "--help")
    assert told.status == 0
    examples = told.out.partition("examples:\n")[2].splitlines()
    assert examples
    for example in examples:
        words = shlex.split(re.split(r"\s{3,}|>", example.strip())[0])
        assert words[:2] == ["enplace", command]
        with pytest.raises(SystemExit) as ended:
            # Whatever the example does, its arguments are known.
            main([*words[1:], "--help"])
        assert ended.value.code == 0


@pytest.mark.parametrize("argv", [[], ["frob"], ["show"], ["lint", "--format", "xml"], ["plan", "--memory"]])
def test_wrong_usage_ends_with_2(run: Callable[..., Ran], argv: Sequence[str]) -> None:
    ended = run(*argv)
    assert ended.status == 2
    assert "usage:" in ended.err
    assert ended.out == ""


def test_it_starts_without_what_it_does_not_need() -> None:
    slow = {"jsonschema", "rich", "ansible", "jinja2", "multiprocessing"}
    program = (
        "import sys; from enplace.main import main; status = main(sys.argv[1:]); "
        f"print(status, sorted({slow} & sys.modules.keys()))"
    )
    argv = [sys.executable, "-c", program, "lint", SMOKE]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines()[-1] == "0 []", f"{ended.stdout}{ended.stderr}"


def test_ansible_does_not_find_the_collection_by_the_environment(tmp_path: Path) -> None:
    """The command is installed as editable; the folder `collection` must not be on the path of every Python."""
    program = "import sys; print('\\n'.join(sys.path))"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert str(ROOT) in ended.stdout.splitlines(), "the command is installed as editable"
    assert str(ROOT / "collection") not in ended.stdout.splitlines()
    for entry in ended.stdout.splitlines():
        assert not (Path(entry) / "ansible_collections" / "enplace").exists(), entry


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m enplace lint --rules | head -n 1"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


# How a recipe is found ------------------------------------------------------------------------------------------------


def test_a_recipe_is_found_by_name_by_path_and_in_folders(run: Callable[..., Ran], tmp_path: Path) -> None:
    own = recipe_of(tmp_path / "own", lambda text: text.replace("A tiny", "Our tiny"))
    assert "A tiny" in run("show", SMOKE).out
    for target in (str(own), str(own.parent), f"{own}:cpu"):
        assert "Our tiny" in run("show", target).out, target
    assert "Our tiny" in run("show", SMOKE, "--recipes", str(tmp_path / "own")).out
    recipe_of(Path("recipes"), lambda text: text.replace("A tiny", "Here tiny"))
    assert "Here tiny" in run("show", SMOKE).out
    # Those that ship are still there.
    assert run("show", "Qwen/Qwen3-0.6B").status == 0


def test_show_tells_what_is_measured_with_the_defaults_filled_in(run: Callable[..., Ran], tmp_path: Path) -> None:
    own = recipe_of(
        tmp_path / "own", lambda text: re.sub(r"bench:\n( +- .*\n)+", "bench: [{prompt_tokens: 777}]\n", text)
    )
    told = run("show", f"{own}:cpu").out
    table = told[told.index("What is measured") :].splitlines()
    assert [cell.strip() for cell in table[4].strip("|").split("|")] == ["1", "777 tokens", "128 tokens", "4", "3"]
    assert "What is measured" not in run("show", "Qwen/Qwen3-0.6B").out


@pytest.mark.parametrize("command", ["show", "render", "plan", "pin", "lint"])
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("enplace/smok", "did you mean enplace/smoke?"),
        ("nobody", "<org>/<model>:<variant>"),
        ("../../etc/passwd", "cannot be read"),
        ("./none.yaml", "No such file"),
        ("enplace/smoke\x1b[31m", "<org>/<model>:<variant>"),
        ("a/b:c:d", "<org>/<model>:<variant>"),
        ("-", "<org>/<model>:<variant>"),
        ("x" * 5000, "<org>/<model>:<variant>"),
    ],
)
def test_what_is_not_there_ends_with_2(run: Callable[..., Ran], command: str, target: str, said: str) -> None:
    ended = run(command, "--", target)
    assert ended.status == 2
    assert said in ended.err + ended.out
    assert "\x1b" not in ended.err + ended.out
    assert len(ended.err) < 2000


@pytest.mark.parametrize("command", ["show", "render", "plan", "pin"])
def test_a_variant_that_is_not_there_ends_with_2(run: Callable[..., Ran], command: str) -> None:
    ended = run(command, "enplace/smoke:gpu")
    assert ended.status == 2
    assert "did you mean cpu?" in ended.err


@pytest.mark.parametrize("command", ["show", "render", "plan", "pin"])
def test_a_recipe_with_a_mistake_ends_with_1_and_names_it(
    run: Callable[..., Ran], tmp_path: Path, command: str
) -> None:
    path = recipe_of(tmp_path, lambda text: text.replace("accelerator: cpu", "accelerator: tpu"))
    ended = run(command, str(path))
    assert ended.status == 1
    assert ended.out == ""
    line = path.read_text(encoding="utf-8").split("accelerator: tpu")[0].count("\n") + 1
    assert f"recipe.yaml:{line}:18: error: variants.cpu.accelerator: has a wrong value [schema]" in ended.err


# lint -----------------------------------------------------------------------------------------------------------------


def test_lint_without_arguments_takes_what_is_here_else_what_ships(run: Callable[..., Ran]) -> None:
    shipped = run("lint")
    count = len(list(RECIPES.glob("*/*/recipe.yaml")))
    assert shipped.out.splitlines()[-1].startswith(f"{count} recipes: ")
    recipe_of(Path("recipes"))
    assert run("lint") == Ran(0, "1 recipe: 0 errors, 0 warnings, 0 notes\n", "")


def test_lint_ends_with_1_where_there_is_an_error(run: Callable[..., Ran], tmp_path: Path) -> None:
    path = recipe_of(tmp_path, lambda text: text.replace("max-model-len: 4096", "max-model-len: 900000"))
    ended = run("lint", str(path))
    assert ended.status == 1
    assert "error: variants.cpu.arguments.max-model-len:" in ended.out
    assert "[context-exceeds-model]" in ended.out
    assert re.search(r"^1 recipe: [1-9]", ended.out.splitlines()[-1])


def test_lint_of_a_file_that_cannot_be_read_ends_with_2(run: Callable[..., Ran], tmp_path: Path) -> None:
    good, bad = recipe_of(tmp_path / "good"), recipe_of(tmp_path / "bad")
    bad.write_bytes(b"\xff")
    ended = run("lint", str(good), str(bad))
    assert ended.status == 2
    assert "is not UTF-8 [unreadable]" in ended.out
    assert ended.out.splitlines()[-1].startswith("2 recipes: 1 error")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("lint", str(empty)).status == 2


def test_lint_of_one_variant_leaves_the_others_out(run: Callable[..., Ran], tmp_path: Path) -> None:
    data = yaml.safe_load((RECIPES / SMOKE / "recipe.yaml").read_text(encoding="utf-8"))
    data["variants"]["cpu-2"] = json.loads(json.dumps(data["variants"]["cpu"]))
    data["variants"]["cpu"]["arguments"]["max-model-len"] = 900000
    data["variants"]["cpu-2"]["arguments"]["max-num-seqs"] = "many"
    path = recipe_of(tmp_path)
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    first, second = run("lint", f"{path}:cpu").out, run("lint", f"{path}:cpu-2").out
    assert "variants.cpu.arguments.max-model-len" in first
    assert "variants.cpu-2." not in first
    assert "variants.cpu.arguments" not in second


def test_many_recipes_are_linted_side_by_side_in_the_same_order(run: Callable[..., Ran], tmp_path: Path) -> None:
    for number in range(lint.PARALLEL_FROM + 6):
        path = tmp_path / "all" / "org" / f"m{number:02}" / "recipe.yaml"
        path.parent.mkdir(parents=True)
        text = (RECIPES / SMOKE / "recipe.yaml").read_text(encoding="utf-8")
        path.write_text(text.replace("name: enplace/smoke\n", f"name: org/m{number:02}\n", 1), encoding="utf-8")
        if number % 3 == 0:
            path.write_text("a: 1\n", encoding="utf-8")
    paths = list(common.recipes_below(tmp_path / "all"))
    alone = [problem for path in paths for problem in lint_path(path)]
    assert list(lint.lint(paths).problems) == alone
    assert len(alone) >= 12


def place(path: str, line: int = 3, column: int = 5) -> Place:
    return Place(Path(path), line, column, "variants.x.arguments.y")


HOSTILE = Problem(
    place("/tmp/a,b:c%d\n e.yaml"), "100% wrong,\r\nreally: yes", "::error::x\x1b[1m", "a,b", "c", "made-up", "warning"
)


def test_annotations_of_a_workflow_are_escaped() -> None:
    line = lint.annotation(HOSTILE)
    assert "\n" not in line
    assert "\r" not in line
    head, _, message = line[2:].partition("::")
    command, _, properties = head.partition(" ")
    found = dict(item.split("=", 1) for item in properties.split(","))
    plain = {"%0A": "\n", "%0D": "\r", "%3A": ":", "%2C": ",", "%25": "%"}
    decode = re.compile("|".join(plain))
    assert command == "warning"
    assert decode.sub(lambda m: plain[m[0]], found["file"]) == "/tmp/a,b:c%d\n e.yaml"
    assert (found["line"], found["col"], found["title"]) == ("3", "5", "made-up")
    assert decode.sub(lambda m: plain[m[0]], message) == lint.message(HOSTILE)
    assert lint.annotation(Problem("somewhere", "is wrong", severity="note")) == "::notice title=schema::is wrong"


def test_text_for_a_terminal_cannot_command_it() -> None:
    told = common.finding(HOSTILE)
    assert "\x1b" not in told
    assert "\r" not in told
    assert told.splitlines()[0].endswith("[made-up]")


def test_findings_as_json(run: Callable[..., Ran], tmp_path: Path) -> None:
    path = recipe_of(tmp_path, lambda text: text.replace("max-model-len: 4096", "max-model-len: 900000"))
    for arguments in (("--json",), ("--format", "json")):
        found = json.loads(run("lint", str(path), *arguments).out)
        assert found["recipes"] == [str(path)]
        assert found["errors"] == sum(entry["severity"] == "error" for entry in found["findings"]) >= 1
        entry = next(entry for entry in found["findings"] if entry["rule"] == "context-exceeds-model")
        text = path.read_text(encoding="utf-8").splitlines()
        assert text[entry["line"] - 1][entry["column"] - 1 :].startswith("max-model-len")
        assert set(entry) == {
            *("rule", "severity", "path", "line", "column", "field", "what", "found", "expected", "todo")
        }
    assert run("lint", "--json", "--format", "sarif").status == 2


# What SARIF 2.1.0 demands of the parts that are written, after its schema (sections 3.13 to 3.49 of the standard).
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "additionalProperties": False,
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "additionalProperties": False,
                                "properties": {
                                    "name": {"type": "string"},
                                    "semanticVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
                                    "rules": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/rule"}},
                                },
                            }
                        },
                    },
                    "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
                },
            },
        },
    },
    "$defs": {
        "message": {
            "type": "object",
            "required": ["text"],
            "additionalProperties": False,
            "properties": {"text": {"type": "string", "minLength": 1}},
        },
        "level": {"enum": ["none", "note", "warning", "error"]},
        "rule": {
            "type": "object",
            "required": ["id", "shortDescription", "help", "defaultConfiguration"],
            "additionalProperties": False,
            "properties": {
                "id": {"type": "string"},
                "shortDescription": {"$ref": "#/$defs/message"},
                "help": {"$ref": "#/$defs/message"},
                "defaultConfiguration": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"level": {"$ref": "#/$defs/level"}},
                },
            },
        },
        "result": {
            "type": "object",
            "required": ["ruleId", "level", "message"],
            "additionalProperties": False,
            "properties": {
                "ruleId": {"type": "string"},
                "ruleIndex": {"type": "integer", "minimum": 0},
                "level": {"$ref": "#/$defs/level"},
                "message": {"$ref": "#/$defs/message"},
                "locations": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["physicalLocation"],
                        "additionalProperties": False,
                        "properties": {
                            "physicalLocation": {
                                "type": "object",
                                "required": ["artifactLocation"],
                                "additionalProperties": False,
                                "properties": {
                                    "artifactLocation": {
                                        "type": "object",
                                        "required": ["uri"],
                                        "additionalProperties": False,
                                        "properties": {
                                            "uri": {"type": "string", "pattern": r"^[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+$"}
                                        },
                                    },
                                    "region": {
                                        "type": "object",
                                        "required": ["startLine"],
                                        "additionalProperties": False,
                                        "properties": {
                                            "startLine": {"type": "integer", "minimum": 1},
                                            "startColumn": {"type": "integer", "minimum": 1},
                                        },
                                    },
                                },
                            }
                        },
                    },
                },
            },
        },
    },
}


def test_findings_as_sarif(run: Callable[..., Ran], tmp_path: Path) -> None:
    import jsonschema

    recipe_of(Path("recipes with ü"), lambda text: text.replace("max-model-len: 4096", "max-model-len: 900000"))
    path = recipe_of(tmp_path / "x", lambda text: text + "more: 1\n")
    found = json.loads(run("lint", "--format", "sarif", "recipes with ü", str(path)).out)
    jsonschema.Draft202012Validator(SARIF).validate(found)
    (one,) = found["runs"]
    rules = one["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.id for rule in catalogue()]
    assert one["results"]
    for result in one["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in one["results"]}
    assert uris == {"recipes%20with%20%C3%BC/enplace/smoke/recipe.yaml", path.as_uri()}
    jsonschema.Draft202012Validator(SARIF).validate(lint.sarif(lint.Result([], [HOSTILE, Problem("x", "y")])))


def test_the_rules_are_listed(run: Callable[..., Ran]) -> None:
    text = run("lint", "--rules").out
    table = run("lint", "--rules", "--format", "markdown").out.splitlines()
    data = json.loads(run("lint", "--rules", "--json").out)
    assert [entry["rule"] for entry in data] == [rule.id for rule in catalogue()]
    assert len(table) == len(data) + 2
    for rule in catalogue():
        assert f"{rule.id} ({rule.severity})\n  {rule.summary}\n  source: {rule.source}" in text
        row = next(row for row in table if row.startswith(f"| `{rule.id}` |"))
        assert len(re.findall(r"(?<!\\)\|", row)) == 5
    assert run("lint", "--rules", "forbidden").out.startswith("forbidden (error)")
    unknown = run("lint", "--rules", "forbiden")
    assert (unknown.status, "did you mean forbidden?" in unknown.err) == (2, True)
    assert run("lint", "--rules", "--format", "sarif").status == 2
    assert run("lint", "--format", "markdown").status == 2


# show, render, plan ---------------------------------------------------------------------------------------------------

ALL = [
    f"{recipe.name}:{variant}"
    for recipe in map(load_recipe, sorted(RECIPES.glob("*/*/recipe.yaml")))
    for variant in recipe.variants
]


@pytest.mark.parametrize("reference", ALL)
def test_show_tells_everything_that_the_recipe_says(run: Callable[..., Ran], reference: str) -> None:
    ended = run("show", reference)
    assert ended.status == 0
    recipe, name = find_recipe(reference, [RECIPES])
    variant = recipe.variants[name]
    # Cells are broken into lines and framed: compared without blanks and frames.
    told = re.sub(r"[\s|+-]", "", ended.out)
    texts = [variant["summary"], *variant.get("notes", []), *variant.get("known_issues", [])]
    texts += [variant["weights"]["repository"], recipe.document.data["model"]["license"]]
    texts += [f"--{name}" for name, value in variant["arguments"].items() if value is not False]
    texts += [*variant.get("environment", {}), *(check["check"] for check in variant["checks"])]
    texts += [entry["reason"] for entry in variant.get("forbid", [])]
    texts += [*variant.get("fixes", {}).get("needs", {}), *variant.get("fixes", {}).get("needs", {}).values()]
    texts += [text for entry in variant.get("troubleshooting", []) for text in entry.values()]
    texts += [text for entry in variant.get("inferred", []) for text in (entry["field"], entry["reason"])]
    texts += [source["title"] for source in recipe.document.data.get("sources", {}).values()]
    texts += [str(f"{figure['value']:,}") for figure in variant.get("figures", []) if "value" in figure]
    broken = [text for text in texts if re.sub(r"[\s|+-]", "", text) not in told]
    # A cell that is broken within a table is not in one piece; its words are there.
    words = set(re.findall(r"\w+", ended.out))
    missing = [text for text in broken if not set(re.findall(r"\w{1,8}", text)) & words]
    assert missing == []
    assert ("not verified by any host" in ended.out) == ("verified" not in variant)
    assert not re.search(r"[ \t]$", ended.out, re.MULTILINE), "nothing to see at the end of a line"
    assert "\x1b" not in ended.out, "plain where no terminal reads"


def test_show_as_data(run: Callable[..., Ran]) -> None:
    one = json.loads(run("show", "--json", SMOKE).out)
    assert (one["recipe"], one["variant"]["accelerator"], one["verified"]) == ("enplace/smoke:cpu", "cpu", None)
    assert one["pins"][0]["pinned"] is True
    assert len(json.loads(run("show", "--json", "Qwen/Qwen3-Coder-Next").out)) == 2


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"argument": "a"}, "--a is set"),
        ({"argument": "a", "equals": True}, "--a is true"),
        ({"argument": "a", "at_least": 2, "at_most": 5}, "--a is 2 or more and is 5 or less"),
        ({"environment": "A*", "in": ["0", "1"]}, "A* is one of 0, 1"),
        ({"fix": "f", "absent": True}, "the fix f is absent"),
        ({"fix": "f"}, "the fix f is applied"),
        ({"speculative_method": "mtp"}, "speculation by mtp is set"),
    ],
)
def test_a_condition_in_words(entry: dict[str, Any], told: str) -> None:
    assert show.condition(entry) == told


def test_render_for_a_shell(run: Callable[..., Ran]) -> None:
    ended = run("render", "--shell", SMOKE)
    assert ended.status == 0
    recipe, _ = find_recipe(SMOKE, [RECIPES])
    weights = recipe.variants["cpu"]["weights"]
    lines = ended.out.splitlines()
    assert "export VLLM_CPU_KVCACHE_SPACE=1" in lines
    start = lines.index(f"vllm serve {SMOKE} \\")
    assert lines[start + 1] == f"  --revision {weights['revision']} \\"
    flags = [line.split()[0] for line in lines[start + 2 :]]
    assert flags == [f"--{name}" for name in recipe.variants["cpu"]["arguments"]], "one flag a line, in order"


def test_render_as_unit_and_as_data(run: Callable[..., Ran]) -> None:
    unit = run("render", SMOKE)
    assert unit.status == 0
    assert "ExecStart=/opt/enplace/environments/@environment@/bin/vllm serve" in unit.out
    data = json.loads(run("render", "--json", SMOKE).out)
    assert data["argv"][:3] == ["vllm", "serve", SMOKE]
    assert data["fixes"] is None
    assert data["environment"] == {"VLLM_CPU_KVCACHE_SPACE": "1"}
    assert run("render", "--json", "--shell", SMOKE).status == 2


def test_nothing_is_rendered_that_a_host_refuses(run: Callable[..., Ran], tmp_path: Path) -> None:
    path = recipe_of(tmp_path, lambda text: text.replace("max-model-len: 4096", "max-model-len: 900000"))
    for form in ("--shell", "--json"):
        ended = run("render", form, str(path))
        assert (ended.status, ended.out) == (1, "")
        assert "[context-exceeds-model]" in ended.err


def test_render_needs_one_variant(run: Callable[..., Ran]) -> None:
    ended = run("render", "Qwen/Qwen3-Coder-Next")
    assert ended.status == 2
    assert "gaudi2-bf16-tp4, spark-nvfp4-eagle3" in ended.err


def test_plan(run: Callable[..., Ran]) -> None:
    ended = run("plan", "--memory", "--rate", "1m", SMOKE)
    assert ended.status == 0
    for text in ("vllm 0.28.0", "enplace-enplace-smoke-cpu.service", "cpu-x86_64-py311.lock.txt", "1.1 MB", "1 s at"):
        assert text in ended.out
    data = json.loads(run("plan", "--json", "--kv-bytes", "2G", SMOKE).out)
    assert data["memory"]["pool_bytes"] == 2 * 2**30
    assert data["refused"] == []


@pytest.mark.parametrize("value", ["", "8X", "-1", "0", "1e9", "9" * 30, "T"])
def test_plan_refuses_what_is_no_number_of_bytes(run: Callable[..., Ran], value: str) -> None:
    ended = run("plan", f"--kv-bytes={value}", SMOKE)
    assert (ended.status, ended.out) == (2, "")
    assert "8589934592, 8G (binary)" in ended.err


def test_a_plan_that_a_host_refuses_is_shown_and_ends_with_1(run: Callable[..., Ran], tmp_path: Path) -> None:
    path = recipe_of(tmp_path, lambda text: text.replace("max-model-len: 4096", "max-model-len: 900000"))
    ended = run("plan", str(path))
    assert ended.status == 1
    assert "What is served" in ended.out
    assert "a host refuses this" in ended.err
    assert json.loads(run("plan", "--json", str(path)).out)["refused"] != []


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7140, "119 min"), (8000, "2 h 13 min")]
)
def test_durations(seconds: float, told: str) -> None:
    from enplace.plan import duration

    assert duration(seconds) == told


# pin -----------------------------------------------------------------------------------------------------------------

REPOSITORIES = Path(hub.__file__).parent / "repositories"
COMMIT = "dae615d481e9fed360e987e55df4d79607b4d8d2"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Ran]) -> Iterator[hub.Hub]:
    """The simulated hub, named by HF_ENDPOINT."""
    del run  # Clears the environment first.
    with hub.Hub(hub.load(REPOSITORIES), quiet=True) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("NO_PROXY", "*")
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


FILES = re.compile(r"      files:\n(?:        - .*\n)+")


def unpinned(text: str) -> str:
    return FILES.sub("", text.replace(COMMIT, "unpinned"))


def test_pin_writes_what_ships_and_nothing_else(run: Callable[..., Ran], tmp_path: Path, server: hub.Hub) -> None:
    """Take the pin out of the smoke recipe, let the command write it, and have the same bytes again."""
    path = recipe_of(tmp_path, unpinned)
    before = path.read_bytes()
    wanted = (RECIPES / SMOKE / "recipe.yaml").read_bytes()
    assert before != wanted
    looked = run("pin", "--check", str(path))
    assert (looked.status, path.read_bytes()) == (1, before)
    assert f"enplace/smoke unpinned -> {COMMIT}, 6 files, 1.1 MB" in looked.out
    assert run("pin", str(path)).status == 0
    assert path.read_bytes() == wanted
    again = run("pin", str(path))
    assert (again.status, path.read_bytes()) == (0, wanted)
    assert "nothing to change" in again.out
    assert run("pin", "--update", str(path)).status == 0
    assert run("pin", "--check", "--update", str(path)).status == 0
    assert path.read_bytes() == wanted
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"
    assert server.requests()


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_pin_makes_a_commit_of_a_branch_and_adds_its_files(
    run: Callable[..., Ran], tmp_path: Path, server: hub.Hub, revision: str
) -> None:
    path = recipe_of(tmp_path, lambda text: unpinned(text).replace("revision: unpinned", f"revision: {revision}"))
    assert run("pin", str(path)).status == 0
    assert path.read_bytes() == (RECIPES / SMOKE / "recipe.yaml").read_bytes()
    assert server.requests()


OLD = f"path: x, bytes: 1, sha256: {'b' * 64}"
LAYOUTS = {
    "comments": """\
weights: # the files
      # which one
      repository: enplace/smoke # ours
      revision: unpinned   # not yet

      # size
      bytes: 5 # guessed
""",
    "braces": """\
weights: {repository: enplace/smoke, revision: unpinned} # in one line
""",
    "braces with files": f"""\
weights: {{revision: {"a" * 40}, files: [{{{OLD}}}],
        repository: enplace/smoke}}
""",
    "braces over lines": """\
weights: {
      # why
      repository: enplace/smoke, revision: unpinned, bytes: 7,
      }
""",
    "quotes": """\
"weights":
      "revision": "unpinned"
      'repository': enplace/smoke
""",
    "old files": f"""\
weights:
      repository: enplace/smoke
      files:
      - path: x
        bytes: 1
        sha256: {"b" * 64}
      # after the files
      revision: {"a" * 40}
""",
    "last key": f"""\
weights:
        revision: {"a" * 40}
        repository: enplace/smoke
        files: [{{{OLD}}}]
""",
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pin_keeps_layout_and_comments(
    run: Callable[..., Ran], tmp_path: Path, server: hub.Hub, layout: str, newline: str
) -> None:
    written = LAYOUTS[layout]
    shipped = (RECIPES / SMOKE / "recipe.yaml").read_text(encoding="utf-8")
    start, end = shipped.index("weights:\n      repository"), shipped.index("    environment:\n")
    text = "# größer: 日本 \U0001f600\n" + shipped[:start] + written + shipped[end:]
    path = recipe_of(tmp_path)
    path.write_bytes(text.replace("\n", newline).encode())
    assert run("pin", "--update", str(path)).status == 0
    after = path.read_bytes().decode()
    recipe = load_recipe(path)
    weights = recipe.variants["cpu"]["weights"]
    wanted = load_recipe(RECIPES / SMOKE / "recipe.yaml").variants["cpu"]["weights"]
    assert (weights["revision"], weights["files"]) == (wanted["revision"], wanted["files"])
    assert weights.get("bytes", 1136488) == 1136488
    assert after.count("\r\n") == (after.count("\n") if newline == "\r\n" else 0)
    # Every comment, and every line that says nothing of the pin, is still there, in its order.
    kept = [
        line for line in text.split("\n") if not re.search(r"revision|files|bytes: [0-9]|sha256|path: x|weights", line)
    ]
    found = after.replace("\r\n", "\n").split("\n")
    position = 0
    for line in kept:
        position = found.index(line, position) + 1
    for comment in re.findall(r"#.*", text):
        assert comment in after
    assert server.requests()


def test_pin_of_one_variant_leaves_the_other_as_it_is(run: Callable[..., Ran], tmp_path: Path, server: hub.Hub) -> None:
    def twice(text: str) -> str:
        text = unpinned(text)
        start = text.index("  cpu:\n")
        return text + text[start:].replace("  cpu:\n", "  cpu-2:\n", 1)

    path = recipe_of(tmp_path, twice)
    assert run("pin", f"{path}:cpu-2").status == 0
    variants = load_recipe(path).variants
    assert (variants["cpu"]["weights"]["revision"], variants["cpu-2"]["weights"]["revision"]) == ("unpinned", COMMIT)
    server.clear_requests()
    assert run("pin", "--update", str(path)).status == 0
    asked = [entry["path"] for entry in server.requests() if "/tree/" in entry["path"]]
    assert len(asked) == 1, "variants that share a repository ask once"
    assert load_recipe(path).variants["cpu"]["weights"] == load_recipe(path).variants["cpu-2"]["weights"]


def test_pin_takes_only_the_files_that_the_recipe_includes(
    run: Callable[..., Ran], tmp_path: Path, server: hub.Hub
) -> None:
    def some(text: str) -> str:
        return unpinned(text).replace("revision: unpinned\n", 'revision: unpinned\n      include: ["*.json"]\n')

    path = recipe_of(tmp_path, some)
    assert run("pin", str(path)).status == 0
    files = load_recipe(path).variants["cpu"]["weights"]["files"]
    assert [item["path"] for item in files] == [
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    ]
    assert server.requests()


def test_pin_says_that_a_size_is_not_inferred_any_more(
    run: Callable[..., Ran], tmp_path: Path, server: hub.Hub
) -> None:
    def guessed(text: str) -> str:
        text = unpinned(text).replace("revision: unpinned\n", "revision: unpinned\n      bytes: 7\n")
        sources = "sources:\n  us: {title: Ours}\nvariants:\n"
        inferred = "    inferred:\n      - {field: weights.bytes, reason: a guess, source: us}\n    environment:\n"
        return text.replace("variants:\n", sources, 1).replace("    environment:\n", inferred, 1)

    path = recipe_of(tmp_path, guessed)
    ended = run("pin", str(path))
    assert ended.status == 0
    assert "remove its entry of `inferred`" in ended.out
    assert server.requests()


def test_pin_refuses_a_file_that_changed_meanwhile(
    run: Callable[..., Ran], tmp_path: Path, server: hub.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recipe_of(tmp_path, unpinned)
    apply = pin.apply

    def changed_meanwhile(name: Path, before: bytes, pins: Sequence[pin.Pin]) -> bytes:
        made = apply(name, before, pins)
        name.write_bytes(before + b"# of somebody else\n")
        return made

    monkeypatch.setattr(pin, "apply", changed_meanwhile)
    ended = run("pin", str(path))
    assert ended.status == 1
    assert "was changed meanwhile; nothing was written" in ended.err
    assert path.read_bytes().endswith(b"# of somebody else\n")
    assert list(path.parent.iterdir()) == [path]
    assert server.requests()


def test_pin_keeps_mode_and_link(run: Callable[..., Ran], tmp_path: Path, server: hub.Hub) -> None:
    real = recipe_of(tmp_path / "real", unpinned)
    real.chmod(0o640)
    link = tmp_path / "linked" / "enplace" / "smoke" / "recipe.yaml"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert run("pin", str(link)).status == 0
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert load_recipe(real).variants["cpu"]["weights"]["revision"] == COMMIT
    assert server.requests()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_pin_into_a_folder_that_is_not_ours(run: Callable[..., Ran], tmp_path: Path, server: hub.Hub) -> None:
    path = recipe_of(tmp_path, unpinned)
    path.parent.chmod(0o555)
    try:
        ended = run("pin", str(path))
    finally:
        path.parent.chmod(0o755)
    assert ended.status == 1
    assert "cannot be written" in ended.err
    assert server.requests()


def test_pin_says_what_the_hub_says(run: Callable[..., Ran], tmp_path: Path, server: hub.Hub) -> None:
    path = recipe_of(
        tmp_path, lambda text: unpinned(text).replace("repository: enplace/smoke", "repository: enplace/none")
    )
    before = path.read_bytes()
    ended = run("pin", str(path))
    assert (ended.status, path.read_bytes()) == (1, before)
    assert "enplace/none" in ended.err
    assert "[hub]" in ended.err
    assert server.requests()


@pytest.mark.parametrize(
    ("variables", "arguments", "said"),
    [
        ({"HF_ENDPOINT": "ftp://x"}, [], "is not the address of a hub"),
        ({}, ["--endpoint", "http://name:secret@127.0.0.1"], "with a user name in it"),
        ({"HF_TOKEN": "two words"}, [], "is not a token"),
        ({"HF_TOKEN_PATH": "/nothing/there"}, [], "cannot be read"),
        ({}, ["--token-file", "/nothing/there"], "cannot be read"),
    ],
)
def test_pin_asks_no_hub_where_what_it_needs_is_wrong(
    run: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    arguments: list[str],
    said: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = recipe_of(tmp_path, unpinned)
    ended = run("pin", *arguments, str(path))
    assert ended.status == 2
    assert said in ended.err
    assert "secret" not in ended.err
    assert "two words" not in ended.err


def test_pin_takes_the_token_from_the_environment_or_a_file_and_no_message_has_it(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "hub"
    for name, content in (("config.json", "{}"), ("model.safetensors", "weights")):
        (root / "org" / "gated").mkdir(parents=True, exist_ok=True)
        (root / "org" / "gated" / name).write_text(content, encoding="utf-8")
    (root / "org" / "gated.json").write_text(json.dumps({"gated": True, "token": "hf_right"}), encoding="utf-8")
    path = recipe_of(
        tmp_path, lambda text: unpinned(text).replace("repository: enplace/smoke", "repository: org/gated")
    )
    monkeypatch.setenv("NO_PROXY", "*")
    with hub.Hub(hub.load(root), quiet=True) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        with contextlib.ExitStack() as ends:
            ends.callback(thread.join)
            ends.callback(made.shutdown)
            without = run("pin", "--check", "--endpoint", made.url, str(path))
            assert (without.status, "HF_TOKEN" in without.err) == (1, True)
            monkeypatch.setenv("HF_TOKEN", "hf_wrong")
            wrong = run("pin", "--check", "--endpoint", made.url, str(path))
            assert wrong.status == 1
            assert "hf_wrong" not in wrong.err + wrong.out
            file = tmp_path / "token"
            file.write_text("hf_right\n", encoding="utf-8")
            right = run("pin", "--endpoint", made.url, "--token-file", str(file), str(path))
            assert right.status == 0
            assert "hf_right" not in right.err + right.out + path.read_text(encoding="utf-8")
    assert [item["path"] for item in load_recipe(path).variants["cpu"]["weights"]["files"]] == [
        *("config.json", "model.safetensors")
    ]


# lock ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nothing"], "one of vllm"),
        (["vllm/0.1.0"], "no such engine"),
        (["../x"], "no such engine"),
        (["vllm/0.28.0", "--platform", "xpu"], "has no such platform"),
        (["vllm/0.28.0", "--exclude-newer", "tomorrow"], "is no date"),
    ],
)
def test_lock_of_what_is_not_there_ends_with_2(run: Callable[..., Ran], argv: Sequence[str], said: str) -> None:
    ended = run("lock", *argv)
    assert ended.status == 2
    assert said in ended.err


def test_lock_without_uv_says_so(run: Callable[..., Ran]) -> None:
    ended = run("lock", "--check", "vllm/0.28.0", "--uv", "/nothing/uv")
    assert ended.status == 1
    assert "is missing" in ended.err


def test_lock_is_made_by_the_uv_that_runs_the_command(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("UV", "/nothing/of-uv-run")
    assert "/nothing/of-uv-run" in run("lock", "--check", "vllm/0.28.0").err
    monkeypatch.delenv("UV")
    assert "no command uv on PATH" in run("lock", "--check", "vllm/0.28.0").err


def test_lock_tells_what_came_of_each_platform(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.enplace.inference.plugins.plugin_utils import engines, locks

    (platform,) = engines.platforms(engines.load_engine("vllm", "0.28.0"))
    calls: list[dict[str, Any]] = []

    def outcome(changed: bool, alarm: bool = False) -> locks.Outcome:
        rehashed = (locks.Rehashed("torch", "2.13.0", ("a" * 64,), ()),) if alarm else ()
        found = locks.Difference(changed=(("numpy", "1.0", "1.1"),) if changed and not alarm else (), rehashed=rehashed)
        return locks.Outcome(platform, not changed, False, found, "0.13.9", "0.13.9")

    for made, check, status, said in (
        (outcome(False), True, 0, "is what it was"),
        (outcome(True), True, 1, "numpy 1.0 -> 1.1"),
        (outcome(True), False, 0, "numpy 1.0 -> 1.1"),
        (outcome(True, alarm=True), False, 1, "ALARM torch 2.13.0"),
    ):

        def lock(name: str, found: locks.Outcome = made, **given: Any) -> list[locks.Outcome]:
            calls.append({"name": name, **given})
            return [found]

        monkeypatch.setattr(locks, "lock", lock)
        ended = run("lock", "vllm/0.28.0", *(["--check"] if check else []), "--exclude-newer", "2026-12-01")
        assert (ended.status, said in ended.out) == (status, True), ended
    assert {call["exclude_newer"] for call in calls} == {"2026-12-01"}


# doctor --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ticket(tmp_path: Path) -> Path:
    """The facts of a recorded host that has a trap, as doctor writes them."""
    facts = traps.Facts(
        Recorded("spark-kernel-without-module", tmp_path / "host").facts(), {"reachable": []}, traps.Wish()
    )
    path = tmp_path / "facts.json"
    data = {"format": 1, "hosts": [traps.document("spark", facts, traps.judge(facts))]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_doctor_judges_stored_facts_and_asks_no_host(run: Callable[..., Ran], ticket: Path) -> None:
    ended = run("doctor", "--facts", str(ticket))
    assert ended.status == 1
    assert "spark: 1 trap, 2 warn, 0 unknown, " in ended.out
    assert re.search(r"trap +\|? *nvidia-module-next", ended.out)
    # A command is never broken.
    todo = "sudo apt-get install linux-modules-nvidia-580-open-7.0.0-1019-nvidia, before the next restart"
    assert f"nvidia-module-next: {todo}" in ended.out.splitlines()
    assert "not applicable" not in ended.out.partition("\n")[2]
    assert "gaudi-count" in run("doctor", "--all", "--facts", str(ticket)).out


def test_doctor_writes_what_it_reads(run: Callable[..., Ran], ticket: Path, tmp_path: Path) -> None:
    written = run("doctor", "--json", "--facts", str(ticket))
    assert (written.status, json.loads(written.out)) == (1, json.loads(ticket.read_text()))
    (tmp_path / "one.json").write_text(json.dumps(json.loads(written.out)["hosts"][0]["accelerator_facts"]))
    assert run("doctor", "--facts", str(tmp_path / "one.json")).out.startswith("host: 1 trap")


def test_doctor_says_once_what_to_do_about_what_is_unknown(run: Callable[..., Ran], ticket: Path) -> None:
    ticket.write_text('{"sources": {}}')
    told = run("doctor", "--facts", str(ticket)).out.splitlines()
    assert [line for line in told if line.startswith("unknown: ")] == [f"unknown: {traps.FIND_OUT}"]


def test_doctor_shows_what_a_terminal_would_obey(run: Callable[..., Ran], ticket: Path) -> None:
    ticket.write_text(ticket.read_text().replace('"host": "spark"', '"host": "spark\\u001b[2J"'))
    assert "spark\\x1b[2J: 1 trap" in run("doctor", "--facts", str(ticket)).out


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "found: Expecting property name"),
        ('{"format": 1, "hosts": [{"format": 3}]}', "found: hosts[0].format: expected 1, found 3"),
        ("[]", "found: expected a mapping, found a list"),
        (None, "found: No such file or directory"),
    ],
)
def test_doctor_names_what_is_wrong_with_a_file(
    run: Callable[..., Ran], tmp_path: Path, text: str | None, part: str
) -> None:
    path = tmp_path / "facts.json"
    if text is not None:
        path.write_text(text)
    ended = run("doctor", "--facts", str(path))
    assert (ended.status, ended.out) == (2, "")
    for told in (str(path), part, "what to do: "):
        assert told in ended.err


def test_doctor_takes_facts_or_hosts(run: Callable[..., Ran], ticket: Path) -> None:
    assert run("doctor", "spark", "--facts", str(ticket)).status == 2


def test_doctor_asks_the_hosts_of_an_inventory(run: Callable[..., Ran], tmp_path: Path) -> None:
    """This machine, through Ansible's local connection; what it is like is not known here."""
    local = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    hosts = {"here": local, "misspelt": {**local, "enplace_recipies": []}, "left_out": local}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    ended = run("doctor", "here", "misspelt", "--json", "-i", str(tmp_path / "hosts.yml"))
    assert ended.status == 2
    (found,) = json.loads(ended.out)["hosts"]
    assert found["host"] == "here"
    assert found["accelerator_facts"]["kernel"]["running"] == os.uname().release
    assert found["host_facts"]["hostname"] == os.uname().nodename
    assert {each["id"] for each in found["findings"]} == {trap.id for trap in traps.catalogue()}
    assert "misspelt: error: could not be asked" in ended.err
    assert "did you mean enplace_recipes?" in ended.err
    nobody = run("doctor", "nobody", "-i", str(tmp_path / "hosts.yml"))
    assert (nobody.status, "no hosts to target" in nobody.err) == (2, True)
