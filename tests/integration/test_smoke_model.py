# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The smoke models that are committed are those that their build makes.

Real: the build, in the engine's own versions of torch and transformers, with few steps. Not tested here: that all the
steps give the committed weights, which holds on one kind of machine only and takes minutes.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sim.hub import hub
from tests.sim.smoke_model import suite

from .conftest import ROOT, EnginePython

pytestmark = pytest.mark.integration

REPOSITORIES = ROOT / "tests" / "sim" / "hub" / "repositories"
COMMITTED = REPOSITORIES / "enplace" / "smoke"
DENSE, DRAFT = (REPOSITORIES / "enplace" / name for name in ("smoke-dense", "smoke-eagle3"))
PROGRAM = ROOT / "tests" / "sim" / "smoke_model"
RECIPES = ROOT / "collection/ansible_collections/enplace/inference/recipes/enplace"
RECIPE = RECIPES / "smoke" / "recipe.yaml"
VOCABULARY = 909


@pytest.fixture(scope="module")
def builds(engine_python: EnginePython, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], str]:
    """Two builds of few steps, and what the first one printed."""
    program = engine_python.put("program", PROGRAM / "build.py", PROGRAM / "suite.py")

    def build(name: str) -> tuple[Path, str]:
        out = f"{engine_python.scratch}/{name}"
        done = engine_python.run(f"{program}/build.py", out, "--steps", "12,1,1")
        assert done.returncode == 0, done.stderr
        return engine_python.get(out, tmp_path_factory.mktemp("builds") / name), done.stdout

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(build, ("first", "second")))
    return [folder for folder, _ in results], results[0][1]


@pytest.fixture(scope="module")
def with_draft(engine_python: EnginePython, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dense model after two steps, and a draft for the committed one after as many."""
    program = engine_python.put("program-of-both", PROGRAM / "build.py", PROGRAM / "suite.py")
    target = engine_python.put("target", *DENSE.iterdir())

    def build(kind: str, *arguments: str) -> Path:
        out = f"{engine_python.scratch}/{kind}"
        done = engine_python.run(f"{program}/build.py", out, "--kind", kind, "--steps", "2", *arguments)
        assert done.returncode == 0, done.stderr
        return engine_python.get(out, tmp_path_factory.mktemp("builds") / kind)

    return build("dense"), build("draft", "--target", target)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tensors(model: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each tensor in a safetensors file, by name."""
    data = model.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items() if name != "__metadata__"}


def test_two_builds_are_byte_identical(builds: tuple[list[Path], str]) -> None:
    first, second = map(contents, builds[0])
    assert first.keys() == contents(COMMITTED).keys()
    assert {name for name in first if first[name] != second.get(name)} == set()


def test_the_build_trains(builds: tuple[list[Path], str]) -> None:
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", builds[1])]
    # A model that knows nothing has the logarithm of the vocabulary.
    assert losses[-1] < math.log(VOCABULARY) - 0.5, builds[1]


def test_all_but_the_weights_is_what_is_committed(builds: tuple[list[Path], str]) -> None:
    built, committed = contents(builds[0][0]), contents(COMMITTED)
    # The library that writes it notes its own version, which follows the engine's lock.
    note = re.compile(rb'  "transformers_version": "[0-9.]+",\n')
    for files in (built, committed):
        files["config.json"], notes = note.subn(b"", files["config.json"])
        assert notes == 1
    changed = {name for name in committed if committed[name] != built[name]}
    assert changed == {"model.safetensors"}


def test_the_committed_tensors_have_the_names_shapes_and_types_of_the_build(builds: tuple[list[Path], str]) -> None:
    built = tensors(builds[0][0] / "model.safetensors")
    assert tensors(COMMITTED / "model.safetensors") == built
    assert len(built) > 50
    assert {dtype for dtype, _ in built.values()} == {"BF16"}


def test_the_dense_model_and_its_draft_are_what_the_build_makes_but_for_the_trained_numbers(
    with_draft: tuple[Path, Path],
) -> None:
    note = re.compile(rb'  "transformers_version": "[0-9.]+",\n')
    for folder, committed in zip(with_draft, (DENSE, DRAFT), strict=True):
        built, there = contents(folder), contents(committed)
        for files in (built, there):
            files["config.json"] = note.sub(b"", files["config.json"])
        assert built.keys() == there.keys()
        assert {name for name in there if there[name] != built[name]} == {"model.safetensors"}
        assert tensors(folder / "model.safetensors") == tensors(committed / "model.safetensors")


def test_the_dense_model_has_the_tokens_of_the_other_one() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (DENSE / name).read_bytes() == (COMMITTED / name).read_bytes()


def test_a_build_never_writes_over_a_model(engine_python: EnginePython, builds: tuple[list[Path], str]) -> None:
    done = engine_python.run(f"{engine_python.scratch}/program/build.py", f"{engine_python.scratch}/first")
    assert done.returncode == 2
    assert f"{engine_python.scratch}/first: expected no such folder, found one" in done.stderr


@pytest.mark.parametrize("committed", [COMMITTED, DENSE, DRAFT], ids=lambda folder: folder.name)
def test_committed_files_can_be_read_by_all(committed: Path) -> None:
    assert {path.name: oct(path.stat().st_mode & 0o444) for path in committed.iterdir()} == dict.fromkeys(
        contents(committed), "0o444"
    )


def test_the_recipe_pins_what_is_committed() -> None:
    (variant,) = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["variants"].values()
    assert variant["weights"] == hub.manifest(hub.load(REPOSITORIES)["enplace/smoke"])
    (dense,) = yaml.safe_load((RECIPES / "smoke-dense" / "recipe.yaml").read_text(encoding="utf-8"))[
        "variants"
    ].values()
    assert dense["weights"] == hub.manifest(hub.load(REPOSITORIES)["enplace/smoke-dense"])
    draft = hub.manifest(hub.load(REPOSITORIES)["enplace/smoke-eagle3"])
    assert {key: dense["draft"][key] for key in draft} == draft


def test_the_recipe_asks_what_the_model_was_trained_on() -> None:
    (variant,) = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["variants"].values()
    (known,) = [check for check in variant["checks"] if check["check"] == "known_answers"]
    asked = {prompt["ask"]: prompt["expect"] for prompt in known["prompts"]}
    assert asked == {question: [answer] for question, answer in suite.KNOWN}
