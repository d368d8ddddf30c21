# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must hold of an environment before it counts as made: asked of the environment's own interpreter.

A lock says what is installed; these say that it is the build that was meant and that it loads on this host. The kinds
are those of engines/schema.json: installed, absent, imports, attribute, requirements.

Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.command import base_environment, run, tail
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

#: Keys of each kind: those that it must have, those that it may have.
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "installed": (("distribution", "version"), ()),
    "absent": (("distribution",), ()),
    "imports": (("module",), ()),
    "attribute": (("module", "attribute"), ("equals", "begins", "none")),
    "requirements": ((), ("except", "mislabelled")),
}

#: Seconds for all imports together; a cold disk under a large engine takes minutes.
IMPORT_TIMEOUT_S = 900.0

# Runs in the environment. A module may end the process or print what it likes, so every answer goes to a file of its
# own, at once: the first question without an answer is the one that killed it.
_PROBE = """
import importlib, json, sys, traceback
with open(sys.argv[1], encoding="utf-8") as stream:
    asked = json.load(stream)
for number, (module, attribute) in enumerate(asked):
    answer = {}
    try:
        value = importlib.import_module(module)
        for name in attribute.split(".") if attribute else ():
            value = getattr(value, name)
        if attribute:
            answer = {"none": value is None, "text": str(value)}
    except BaseException as error:
        answer = {"error": (type(error).__name__ + ": " + str(error))[:500], "trace": traceback.format_exc()[-4000:]}
    with open(sys.argv[2], "a", encoding="utf-8") as stream:
        stream.write(json.dumps(answer) + "\\n")
"""

_REBUILD = (
    "the index, or a folder of wheels, gave another build than the lock was made for: check enplace_index_url and "
)
_REBUILD += "enplace_find_links; if the engine's manifest is wrong, correct it"


@dataclass(frozen=True)
class Broken:
    """An assertion that does not hold."""

    assertion: str
    expected: str
    found: str
    todo: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.assertion}: expected {self.expected}, found {self.found}"


def parse(value: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Assertions from plain data, without the keys that are None. Raises Failure that names the field."""
    result = []
    for number, entry in enumerate(value):
        given = {key: item for key, item in entry.items() if item is not None}
        kind = str(given.get("kind", "nothing"))
        if kind not in KINDS:
            raise _bad(f"assertions[{number}].kind", "one of " + ", ".join(KINDS), kind)
        needed, allowed = KINDS[kind]
        missing = [key for key in needed if key not in given]
        unknown = [key for key in given if key not in ("kind", *needed, *allowed)]
        if missing or unknown:
            expected = ", ".join([*needed, *(f"perhaps {key}" for key in allowed)])
            raise _bad(f"assertions[{number}] ({kind})", expected or "no further key", ", ".join(given))
        if kind == "attribute" and sum(key in given for key in allowed) != 1:
            raise _bad(f"assertions[{number}] ({kind})", "one of " + ", ".join(allowed), ", ".join(given))
        result.append(given)
    return tuple(result)


def _bad(where: str, expected: str, found: str) -> Failure:
    todo = "correct the engine's manifest"
    return Failure(what="an assertion is not valid", where=where, expected=expected, found=found, todo=todo)


def describe(assertion: Mapping[str, Any]) -> str:
    """An assertion in a few words."""
    kind = assertion["kind"]
    if kind == "installed":
        return "{distribution} {version} is installed".format(**assertion)
    if kind == "absent":
        return "no distribution {distribution}".format(**assertion)
    if kind == "imports":
        return "import {module}".format(**assertion)
    if kind == "attribute":
        return "{module}.{attribute}".format(**assertion)
    return "every distribution has what it requires"


def broken(
    path: str,
    assertions: Sequence[Mapping[str, Any]],
    installed: Mapping[str, str],
    uv: str,
    env: Mapping[str, str],
    keep: Sequence[int] = (),
) -> list[Broken]:
    """The assertions that do not hold of the environment at `path`, in their order.

    installed: version by canonical name. uv: the program, for the kind requirements; env: its environment. keep: file
    descriptors that children inherit. Nothing is written below `path`.
    """
    questions = [
        (entry["module"], entry.get("attribute", ""))
        for entry in assertions
        if entry["kind"] in ("imports", "attribute")
    ]
    answers = iter(_ask(path, questions, keep))
    result = []
    for assertion in assertions:
        kind = assertion["kind"]
        if kind in ("imports", "attribute"):
            found = _judge_answer(assertion, next(answers))
        elif kind == "requirements":
            found = _judge_requirements(path, assertion, uv, env, keep)
        else:
            found = _judge_installed(assertion, installed)
        if found:
            result.append(found)
    return result


def demand(path: str, found: Sequence[Broken]) -> None:
    """Raise Failure that names the first of them whole, and the others."""
    if not found:
        return
    first, others = found[0], found[1:]
    lines = [first.detail] if first.detail else []
    if others:
        lines += ["further assertions that do not hold:", *(str(other) for other in others)]
    raise Failure(
        what="the environment is not what the engine's manifest demands, and is not sealed",
        where=f"{path}, assertion: {first.assertion}",
        expected=first.expected,
        found=first.found,
        todo=first.todo,
        detail="\n".join(lines),
    )


def _judge_installed(assertion: Mapping[str, Any], installed: Mapping[str, str]) -> Broken | None:
    name = re.sub(r"[-_.]+", "-", assertion["distribution"]).lower()
    if assertion["kind"] == "installed":
        found = installed.get(name, "not installed")
        if found == assertion["version"]:
            return None
        return Broken(describe(assertion), assertion["version"], found, _REBUILD)
    there = [f"{known} {installed[known]}" for known in sorted(installed) if fnmatch.fnmatchcase(known, name)]
    if not there:
        return None
    todo = "make the lock without it: an override `NAME ; sys_platform == 'never'` leaves a requirement out"
    return Broken(describe(assertion), "none", ", ".join(there), todo)


def _judge_answer(assertion: Mapping[str, Any], answer: Mapping[str, Any]) -> Broken | None:
    if "error" in answer:
        todo = (
            "read the trace; a library of the system that is missing belongs to the packages of the engine's manifest"
        )
        expected = "the import to end well" if assertion["kind"] == "imports" else _wanted(assertion)
        return Broken(describe(assertion), expected, answer["error"], todo, tail(answer.get("trace", ""), 20))
    if assertion["kind"] == "imports":
        return None
    text = answer["text"]
    if "none" in assertion:
        good = answer["none"]
    elif "equals" in assertion:
        good = not answer["none"] and text == assertion["equals"]
    else:
        good = not answer["none"] and text.startswith(assertion["begins"])
    return None if good else Broken(describe(assertion), _wanted(assertion), text[:200], _REBUILD)


def _wanted(assertion: Mapping[str, Any]) -> str:
    if "none" in assertion:
        return "None"
    if "equals" in assertion:
        return str(assertion["equals"])
    return "{}...".format(assertion["begins"])


def _ask(path: str, questions: Sequence[tuple[str, str]], keep: Sequence[int]) -> list[dict[str, Any]]:
    """What the environment's interpreter says, one answer for each question."""
    if not questions:
        return []
    scratch = tempfile.mkdtemp(prefix="enplace-assertions-")
    try:
        asked, told = os.path.join(scratch, "asked.json"), os.path.join(scratch, "told.jsonl")
        with open(asked, "w", encoding="utf-8") as stream:
            json.dump(questions, stream)
        env = base_environment(scratch)
        env["PATH"] = os.path.join(path, "bin") + ":" + env["PATH"]
        # An import must fetch nothing and report nothing, and whatever it caches is gone with the scratch folder.
        env.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "XDG_CACHE_HOME": scratch})
        env.update({"VLLM_CACHE_ROOT": scratch, "TORCHINDUCTOR_CACHE_DIR": scratch, "TRITON_CACHE_DIR": scratch})
        # -I: neither this folder nor a user's own packages; -B: no bytecode beside what was compiled and recorded.
        argv = [os.path.join(path, "bin", "python"), "-I", "-B", "-c", _PROBE, asked, told]
        result = run(argv, env=env, cwd=scratch, timeout_s=IMPORT_TIMEOUT_S, keep=keep)
        answers = []
        if os.path.exists(told):
            with open(told, encoding="utf-8") as stream:
                answers = [json.loads(line) for line in stream if line.endswith("\n")]
        if len(answers) < len(questions):
            said = result.said() if not result.ok else "the interpreter ended by itself"
            answers.append({"error": said, "trace": result.tail(20)})
        while len(answers) < len(questions):
            answers.append({"error": "not asked: the import before it ended the interpreter"})
        return answers
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


_NEEDS = re.compile(r"^The package `(?P<who>[^`]+)` requires `(?P<what>[A-Za-z0-9._-]+)[^`]*`, but (?P<but>.+)$")
_LABEL = re.compile(r"^The package `(?P<who>[^`]+)` was built for a different platform$")


def _judge_requirements(
    path: str, assertion: Mapping[str, Any], uv: str, env: Mapping[str, str], keep: Sequence[int]
) -> Broken | None:
    if not uv:
        todo = "name a uv to build with: pip leaves nothing in the environment that could say"
        return Broken(describe(assertion), "uv pip check", "no uv", todo)
    python = os.path.join(path, "bin", "python")
    result = run([uv, "pip", "check", "--python", python], env=env, timeout_s=300, keep=keep)
    if result.ok:
        return None
    excused = {re.sub(r"[-_.]+", "-", name).lower() for name in assertion.get("except", ())}
    mislabelled = {re.sub(r"[-_.]+", "-", name).lower() for name in assertion.get("mislabelled", ())}
    wrong, told = [], 0
    for line in (result.stdout + "\n" + result.stderr).splitlines():
        if not line.startswith("The package "):
            continue
        told += 1
        needs, label = _NEEDS.match(line.strip()), _LABEL.match(line.strip())
        if needs and re.sub(r"[-_.]+", "-", needs["what"]).lower() in excused:
            continue
        if label and re.sub(r"[-_.]+", "-", label["who"]).lower() in mislabelled:
            continue
        wrong.append(line.strip())
    if told and not wrong:
        return None
    todo = "make the lock anew; what is left out on purpose belongs to the assertion's except"
    found = "; ".join(wrong[:5]) or result.said()
    return Broken(
        describe(assertion), "uv pip check without a finding", found, todo, result.tail(20) if not wrong else ""
    )
