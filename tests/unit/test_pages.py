# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The recipe of Qwen3-Coder-Next holds every fact of the two pages that it was written after.

tests/unit/pages/ has both pages as they are, and checklist.yaml: every sentence of them, in their order, each with what
must be found in the recipe for it. The pages are cut by a machine, so that no sentence can be left out; the claims are
checked against the loaded recipe; and taking any one thing out of the recipe must make a claim fail.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.module_utils.unit import argv_of
from ansible_collections.enplace.inference.plugins.plugin_utils import render
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import RECIPES, Recipe, load_recipe

PAGES = Path(__file__).parent / "pages"
NAMES = ("gaudi", "spark")
CHECKLIST: dict[str, Any] = yaml.safe_load((PAGES / "checklist.yaml").read_text(encoding="utf-8"))

# A sentence ends before a capital, a digit, a flag, or one of the words that both pages begin sentences with.
SENTENCE_END = re.compile(r"""(?<=[.?!])["')]*\s+(?=["'(`*$]*(?:[A-Z0-9-]|k=|v\d))|(?<=\.")\s+(?=\d)""")
WORD = re.compile(r"[a-z0-9_]+(?:[.,'/:=+-][a-z0-9_]+)*%?")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# What was typed into the page's code blocks by its "copy" button.
COPY_BUTTON = re.compile(r"bash$", re.MULTILINE)


def page(name: str) -> str:
    return (PAGES / f"{name}.txt").read_text(encoding="utf-8")


def sentences(text: str) -> list[str]:
    """A page cut into lines, which are also the rows of its tables and its bullets, and those into sentences."""
    lines = (line.strip().removeprefix("•").strip() for line in text.splitlines())
    return [part for line in lines if line for part in SENTENCE_END.split(line) if part]


@functools.cache
def words(text: str) -> str:
    """The words of a text alone, between blanks: no case, no punctuation, one sign for times."""
    plain = text.casefold().replace("\N{MULTIPLICATION SIGN}", "x")
    return f" {' '.join(WORD.findall(plain))} "


def texts(value: Any) -> Iterator[str]:
    """Every text below a value, keys of mappings too."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, bool) or value is None:
        yield json.dumps(value)
    else:
        yield str(value)


class Missing(Exception):
    """A path that leads nowhere."""


def find(data: Any, path: str) -> Any:
    """The value at a path such as `fixes.needs.prompt-order` or `checks[3].top`. Raises Missing."""
    for key in re.findall(r"[^.\[\]]+", path):
        try:
            data = data[int(key)] if isinstance(data, list) else data[key]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Missing(path) from error
    return data


def same(found: Any, wanted: Any) -> bool:
    """Equality that does not take true for 1."""
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def holds(found: Any, wanted: Any) -> bool:
    """Whether a mapping has all that is wanted, mappings within it too; null: the key is not there."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            key not in found if value is None else key in found and holds(found[key], value)
            for key, value in wanted.items()
        )
    return same(found, wanted)


class Page:
    """One page's part of the checklist and the data that must hold for it."""

    def __init__(self, name: str, recipe: Mapping[str, Any]) -> None:
        self.name = name
        self.entries: list[dict[str, Any]] = CHECKLIST[name]["sentences"]
        self.variant_name: str = CHECKLIST[name]["variant"]
        self.recipe = recipe

    @property
    def variant(self) -> Any:
        return self.recipe["variants"][self.variant_name]

    def at(self, path: str) -> Any:
        """The value at a path of the variant, or of the whole recipe where it begins with model or sources."""
        return find(self.recipe if re.match(r"(model|sources)\.", path) else self.variant, path)

    def wrong(self, claim: Mapping[str, Any], sentence: str) -> str:
        """Why a claim does not hold; empty where it does."""
        try:
            if "figure" in claim:
                return self._one(self.at("figures"), claim["figure"])
            if "at" in claim:
                return self._value(claim)
            place = self.at(claim["in"])
            if "has" in claim:
                return self._one(place, claim["has"])
            phrases = claim.get("says", sentence)
            phrases = phrases if isinstance(phrases, list) else [phrases]
            for text in texts(place):
                if all(words(phrase) in words(text) for phrase in phrases):
                    return ""
            return f"no text of {claim['in']} says {phrases}"
        except Missing as error:
            return f"{error} is not in the recipe"

    def _value(self, claim: Mapping[str, Any]) -> str:
        path = claim["at"]
        if claim.get("absent"):
            try:
                return f"{path} is {self.at(path)!r}, expected none"
            except Missing:
                return ""
        found = self.at(path)
        if "count" in claim:
            return "" if len(found) == claim["count"] else f"{path} has {len(found)} entries, expected {claim['count']}"
        return "" if same(found, claim["is"]) else f"{path} is {found!r}, expected {claim['is']!r}"

    @staticmethod
    def _one(items: Any, wanted: Any) -> str:
        found = sum(holds(item, wanted) for item in items)
        return "" if found == 1 else f"{found} entries have {wanted}, expected exactly one"

    def failures(self) -> Iterator[str]:
        """Every claim of the page that does not hold."""
        for entry in self.entries:
            for claim in entry.get("holds", []):
                if why := self.wrong(claim, entry["text"]):
                    yield f"{self.name} page, {entry['text']!r}: {why}"

    def complete(self) -> bool:
        """Whether every claim holds."""
        return next(self.failures(), None) is None


def shipped() -> Recipe:
    return load_recipe(RECIPES / "Qwen" / "Qwen3-Coder-Next" / "recipe.yaml")


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    data: dict[str, Any] = shipped().document.data
    return data


# ---------------------------------------------------------------------------------------------- nothing is left out


@pytest.mark.parametrize("name", NAMES)
def test_every_sentence_of_the_page_is_in_the_checklist_in_its_order(name: str) -> None:
    listed = [entry["text"] for entry in CHECKLIST[name]["sentences"]]
    for index, sentence in enumerate(sentences(page(name))):
        assert index < len(listed), f"missing: {sentence!r}"
        assert listed[index] == sentence, f"sentence {index} of the {name} page"
    assert len(listed) == len(sentences(page(name)))


@pytest.mark.parametrize("name", NAMES)
def test_every_sentence_has_a_claim_or_a_reason_why_not(name: str) -> None:
    for entry in CHECKLIST[name]["sentences"]:
        keys = set(entry) - {"text"}
        assert keys in ({"holds"}, {"no_fact"}), entry
        assert entry.get("holds") or entry.get("no_fact", "").strip(), entry


def test_a_sentence_that_was_cut_out_of_a_page_is_found() -> None:
    """The cut is not so coarse that a fact could hide in a longer sentence."""
    text = "• One fact. Another at 0.85, i.e. less. k=1 is it. v0.26.0 fixes it.\n\n  Is it? 3,800."
    assert sentences(text) == [
        "One fact.",
        "Another at 0.85, i.e. less.",
        "k=1 is it.",
        "v0.26.0 fixes it.",
        "Is it?",
        "3,800.",
    ]
    assert max(len(sentence) for name in NAMES for sentence in sentences(page(name))) < 420


# ------------------------------------------------------------------------------------------------- the claims hold


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_holds(name: str, recipe: dict[str, Any]) -> None:
    assert list(Page(name, recipe).failures()) == []


def numbers(text: str) -> set[str]:
    """Every number in a text, written alike: 262,144 and 262144, 72.0 and 72; versions as they are."""
    found = set()
    for token in NUMBER.findall(text):
        plain = token.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", token) else token
        for part in plain.split(","):
            found.add(format(Decimal(part).normalize(), "f") if part.count(".") <= 1 else part)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_the_page_is_in_the_recipe(name: str, recipe: dict[str, Any]) -> None:
    part = {"model": recipe["model"], "variant": recipe["variants"][CHECKLIST[name]["variant"]]}
    known = set[str]().union(*(numbers(text) for text in texts(part)))
    exceptions: dict[str, str] = CHECKLIST[name].get("numbers_left_out", {})
    missing = numbers(COPY_BUTTON.sub("", page(name))) - known
    assert missing == set(exceptions), "numbers of the page that the recipe lacks, against those that it may lack"


# ---------------------------------------------------------------------------------- and the checklist would notice


def takings(variant: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Every single thing that can be taken out of a variant: items of lists, entries of mappings."""
    for key in ("figures", "notes", "known_issues", "troubleshooting", "usage", "forbid", "features", "contributors"):
        for index in range(len(variant.get(key, []))):
            yield key, str(index)
    for index in range(len(variant["checks"])):
        yield "checks", str(index)
    for key in ("arguments", "environment", "engine", "host", "verified", "memory", "weights", "draft", "fixes"):
        for name in variant.get(key, {}):
            yield key, name
    for key in ("needs", "not_needed"):
        for name in variant.get("fixes", {}).get(key, {}):
            yield "fixes", key, name
    for key in ("count", "nodes", "precision", "accelerator", "served_name", "description"):
        if key in variant:
            yield (key,)


def without(data: dict[str, Any], variant_name: str, path: tuple[str, ...]) -> dict[str, Any]:
    changed = copy.deepcopy(data)
    inner: Any = changed["variants"][variant_name]
    for key in path[:-1]:
        inner = inner[key]
    del inner[int(path[-1]) if isinstance(inner, list) else path[-1]]
    return changed


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_taken_out_is_missed(name: str, recipe: dict[str, Any]) -> None:
    assert Page(name, recipe).complete(), "else anything would be missed"
    variant_name = CHECKLIST[name]["variant"]
    ours: dict[str, str] = CHECKLIST[name]["ours"]
    kept, missed = [], set()
    for path in takings(recipe["variants"][variant_name]):
        if not Page(name, without(recipe, variant_name, path)).complete():
            missed.add(".".join(path))
        else:
            kept.append(".".join(path))
    assert sorted(kept) == sorted(ours), "what no sentence asks for, against what the checklist calls ours"
    assert len(missed) > 60, "the pages ask for more than that"


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_number_of_any_figure_is_missed(name: str, recipe: dict[str, Any]) -> None:
    assert Page(name, recipe).complete(), "else anything would be missed"
    variant_name = CHECKLIST[name]["variant"]
    passed = []
    for index, figure in enumerate(recipe["variants"][variant_name]["figures"]):
        for key in ("value", "low", "high", "stdev"):
            if key not in figure:
                continue
            changed = copy.deepcopy(recipe)
            changed["variants"][variant_name]["figures"][index][key] += 1
            if Page(name, changed).complete():
                passed.append((index, key, figure))
    assert passed == []


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_measured_elsewhere_is_missed(name: str, recipe: dict[str, Any]) -> None:
    """Not the number alone: how long the prompt was, how many drafted tokens, which engine, which host."""
    assert Page(name, recipe).complete(), "else anything would be missed"
    variant_name = CHECKLIST[name]["variant"]
    passed = []
    for index, figure in enumerate(recipe["variants"][variant_name]["figures"]):
        for key in figure.get("at", {}):
            changed = copy.deepcopy(recipe)
            del changed["variants"][variant_name]["figures"][index]["at"][key]
            if Page(name, changed).complete():
                passed.append((index, key, figure["metric"]))
    assert passed == []


def test_the_fixes_are_fourteen_and_one_not_needed(recipe: dict[str, Any]) -> None:
    fixes = recipe["variants"]["gaudi2-bf16-tp4"]["fixes"]
    assert len(fixes["needs"]) == 14
    assert list(fixes["not_needed"]) == ["seeded-sampling"]


# ------------------------------------------------------------------------------------------------ the launch block


def launch(text: str) -> tuple[dict[str, str], list[str], list[str]]:
    """Exported environment, arguments of the fix command, argv of the server, each in its order, of a shell text."""
    environment: dict[str, str] = {}
    fixes: list[str] = []
    server: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        argv = shlex.split(line, comments=True)
        if argv[:1] == ["export"]:
            for setting in argv[1:]:
                key, _, value = setting.partition("=")
                environment[key] = value
        elif any(part.endswith("apply_all.py") for part in argv):
            script = next(index for index, part in enumerate(argv) if part.endswith("apply_all.py"))
            fixes = argv[script + 1 :]
            assert fixes[-3:] == ["||", "exit", "1"], "a server is started although its fixes do not apply"
            fixes = fixes[:-3]
        elif argv[:2] == ["vllm", "serve"]:
            server = argv
    return environment, fixes, server


def block() -> str:
    text = page("gaudi")
    return text[text.index("export PT_HPU_LAZY_MODE") : text.index("Run inside a vllm-gaudi container")]


def test_the_launch_block_of_the_gaudi_page_is_the_recipes_data(recipe: dict[str, Any]) -> None:
    """The same without the renderer: what a host is given is the page's, in its order."""
    variant = recipe["variants"]["gaudi2-bf16-tp4"]
    environment, fixes, server = launch(block())
    assert list(variant["environment"].items()) == list(environment.items())
    assert ["--profile", variant["fixes"]["profile"], *variant["fixes"]["opt_in"]] == fixes
    assert ["vllm", "serve", variant["weights"]["repository"], *argv_of(variant["arguments"])] == server


def test_the_launch_block_of_the_gaudi_page_is_rendered() -> None:
    wanted, found = launch(block()), launch(render.shell(shipped(), "gaudi2-bf16-tp4"))
    assert list(found[0].items()) == list(wanted[0].items())
    assert found[1] == wanted[1] == ["--profile", "v0.26.0", "gdn-prefix-cache"]
    assert found[2] == wanted[2]
    assert len(wanted[0]) == 6
    assert len(wanted[2]) == 3 + 2 * 7 + 4


# ---------------------------------------------------------------------------------------------------- the requests


def commands(name: str) -> list[str]:
    """The curl commands of a page, without what its "copy" button left behind."""
    text = COPY_BUTTON.sub("", page(name))
    found = []
    for part in re.split(r"\n\s*\n", text):
        code = "\n".join(line for line in part.splitlines() if not line.startswith("#"))
        if code.startswith("curl "):
            found.append(code)
    return found


def parsed(command: str) -> list[Any]:
    """The words of a command, JSON read, so that only its layout may differ; $NAMES put in as a shell would."""
    assigned = re.match(r"NAMES='([^']*)'\n", command)
    if assigned:
        command = command[assigned.end() :].replace("$NAMES", assigned[1])
    found: list[Any] = []
    for word in shlex.split(command):
        try:
            found.append(json.loads(word))
        except ValueError:
            found.append(word)
    return found


def test_the_requests_of_the_spark_page_are_the_recipes(recipe: dict[str, Any]) -> None:
    usage = recipe["variants"]["spark-nvfp4-eagle3"]["usage"]
    assert [parsed(entry["shell"]) for entry in usage] == [parsed(command) for command in commands("spark")]
    assert len(usage) == 3


class Answer(BaseHTTPRequestHandler):
    """Answers as an OpenAI-compatible server does, as far as the requests of the recipe look."""

    def do_GET(self) -> None:
        lines = ["# HELP none", "vllm:spec_decode_num_drafts_total 7.0", "vllm:other_total 9.0"]
        self.answer("\n".join(lines) + "\n")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = f"{asked['model']}: {asked['messages'][0]['content']}"
        choices = [{"message": {"content": content}}]
        self.answer(json.dumps({"choices": choices, "usage": {"completion_tokens": asked["max_tokens"]}}))

    def answer(self, body: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test says what matters."""


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_requests_work(recipe: dict[str, Any]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        replies = []
        for entry in recipe["variants"]["spark-nvfp4-eagle3"]["usage"]:
            command = entry["shell"].replace("127.0.0.1:8000", f"127.0.0.1:{server.server_port}")
            environment = {**os.environ, "no_proxy": "127.0.0.1"}
            result = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                capture_output=True, text=True, check=True, timeout=30, env=environment,
            )  # fmt: skip
            replies.append(result.stdout.strip())
    finally:
        server.shutdown()
        server.server_close()
    assert replies == [
        "Qwen/Qwen3-Coder-Next: Implement an LRU cache in Python with get and put, type hints and docstrings.",
        "{'completion_tokens': 256}",
        "vllm:spec_decode_num_drafts_total 7.0",
    ]
