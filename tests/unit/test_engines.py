# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Engine manifests: those that ship are right, and what is wrong with one is said at its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ansible_collections.enplace.inference.plugins.module_utils import assertions
from ansible_collections.enplace.inference.plugins.module_utils.environment import parse_lock
from ansible_collections.enplace.inference.plugins.plugin_utils import engines, locks
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import ENGINES, RecipeError

MANIFESTS = sorted(ENGINES.glob("*/*/engine.yaml"))
VERSIONS = [(path.parent.parent.name, path.parent.name) for path in MANIFESTS]


def test_the_manifests_that_the_recipes_need_are_there() -> None:
    assert {("vllm", "0.24.0"), ("vllm", "0.25.1"), ("vllm", "0.26.0"), ("vllm", "0.28.0")} <= set(VERSIONS)
    assert ("vllm-gaudi", "0.26.0") in VERSIONS


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(engines.SCHEMA.read_text(encoding="utf-8")))


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_every_manifest_is_right(name: str, version: str) -> None:
    document = engines.load_engine(name, version)
    assert document.path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=../../schema.json\n")
    for platform, entry in zip(engines.platforms(document), document.data["platforms"], strict=True):
        assert assertions.parse(entry["assertions"])
        assert platform.arch in platform.lock.name
        assert platform.python.replace(".", "") in platform.lock.name


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_every_lock_says_how_it_was_made_and_names_no_index(name: str, version: str) -> None:
    for platform in engines.platforms(engines.load_engine(name, version)):
        text = platform.lock.read_text(encoding="utf-8")
        assert text.startswith(locks.header(platform))
        assert "://" not in text
        pins = parse_lock(text, str(platform.lock))
        assert len({pin.name for pin in pins}) == len(pins)


@pytest.mark.parametrize("version", ["0.24.0", "0.25.1", "0.26.0"])
def test_the_locks_for_gb10_are_of_cuda_13(version: str) -> None:
    (platform,) = engines.platforms(engines.load_engine("vllm", version))
    pins = {pin.name: pin.version for pin in parse_lock(platform.lock.read_text(encoding="utf-8"), "")}
    assert platform.accelerator == "gb10"
    assert (pins["vllm"], pins["torch"]) == (version, "2.11.0")
    assert pins["cuda-toolkit"].startswith("13.0.")
    assert not [name for name in pins if name.endswith(("-cu12", "-cu11"))]
    assert "nvidia-cutlass-dsl-libs-cu13" in pins
    assert "ninja" in pins, "the unit finds it in the environment"
    assert pins.get("flashinfer-cubin", pins["flashinfer-python"]) == pins["flashinfer-python"]
    assert ("torchcodec" in pins) is (version != "0.24.0")


@pytest.mark.parametrize("version", ["0.24.0", "0.25.1", "0.26.0"])
def test_the_packages_of_gb10_are_those_that_its_first_start_needs(version: str) -> None:
    (entry,) = engines.load_engine("vllm", version).data["platforms"]
    assert {"python3.12-dev", "build-essential", "cuda-toolkit-13-0"} <= set(entry["packages"])
    assert ("ffmpeg" in entry["packages"]) is (version != "0.24.0")
    kinds = [(item["kind"], item.get("module"), item.get("distribution")) for item in entry["assertions"]]
    assert ("attribute", "torch", None) in kinds
    assert ("absent", None, "*-cu12") in kinds


def test_the_gaudi_engine_is_built_from_the_commits_of_its_page_and_takes_torch_from_the_software() -> None:
    document = engines.load_engine("vllm-gaudi", "0.26.0")
    data = document.data
    assert data["commit"].startswith("b059f9c")
    assert data["base"] == {
        "engine": "vllm",
        "version": "0.26.0",
        "commit": "568afb3a13806beb53bb2e6bd518269357b237c0",
    }
    built = {source["distribution"]: source["commit"] for source in data["sources"] if source["kind"] == "git"}
    assert built == {"vllm": data["base"]["commit"], "vllm-gaudi": data["commit"]}
    (platform,) = engines.platforms(document)
    pins = {pin.name: pin.version for pin in parse_lock(platform.lock.read_text(encoding="utf-8"), "")}
    assert "torch" not in pins
    assert not [name for name in pins if name.startswith("nvidia-")]
    assert tuple(map(int, pins["fastapi"].split(".")[:2])) < (0, 137)
    assert int(pins["setuptools"].split(".")[0]) < 80


SOURCE = """\
schema: 1
engine: vllm
version: 1.2.3
platforms:
  - accelerator: gb10
    arch: aarch64
    python: "3.12"
    cuda: "13.0"
    lock: gb10.lock.txt
    locked:
      uv: 0.13.9
      platform: aarch64-manylinux_2_39
      exclude_newer: "2026-07-28T00:00:00Z"
      requirements: requirements.in
    packages: [build-essential]
    download_bytes: 1
    installed_bytes: 1
    assertions:
      - {kind: attribute, module: torch, attribute: version.cuda, begins: "13"}
"""


def write(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "vllm" / "1.2.3"
    folder.mkdir(parents=True)
    for name in ("gb10.lock.txt", "requirements.in"):
        (folder / name).write_text("x\n")
    (folder / "engine.yaml").write_text(text)
    return tmp_path


def problems(tmp_path: Path, text: str) -> list[str]:
    try:
        engines.load_engine("vllm", "1.2.3", engines=write(tmp_path, text))
    except RecipeError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_the_example_is_right(tmp_path: Path) -> None:
    assert problems(tmp_path, SOURCE) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("lock: gb10.lock.txt", "lokc: gb10.lock.txt", "engine.yaml:9:5 platforms[0].lokc: unknown key"),
        ("lock: gb10.lock.txt", "lokc: gb10.lock.txt", "did you mean lock?"),
        ("    download_bytes: 1\n", "", "the key download_bytes is missing"),
        ("download_bytes: 1", "download_bytes: 1.0", "has a wrong value"),
        ("download_bytes: 1", "download_bytes: 0", "at least 1"),
        ('python: "3.12"', "python: 3.12", "put the value in quotes"),
        ("accelerator: gb10", "accelerator: gb11", "one of cpu, gb10, gaudi2"),
        ("schema: 1", "schema: 2", "found: 2"),
        ("version: 1.2.3", "version: 1.2.4", "differs from the folder"),
        ("engine: vllm", "engine: vlm", "differs from the folder"),
        ("platform: aarch64", "platform: x86_64", "is of another machine"),
        ("requirements: requirements.in", "requirements: other.in", "requirements: is not there"),
        ("requirements: requirements.in", "requirements: ../x", "text that matches"),
        ("lock: gb10.lock.txt", "lock: other.lock.txt", "run enplace lock vllm/1.2.3"),
        ('    cuda: "13.0"\n', "", "the key cuda is missing"),
        ("2026-07-28T00:00:00Z", "2026-07-28", "text that matches"),
        ("[build-essential]", "[build-essential, build-essential]", "each item once"),
        ("[build-essential]", "[-y]", "text that matches"),
        ("kind: attribute", "kind: atribute", "did you mean attribute?"),
        ("kind: attribute, ", "", "kind: one of absent, attribute"),
        (', begins: "13"', "", "exactly one of equals, begins, none"),
        ('begins: "13"', 'begins: "13", none: true', "found: begins and none"),
        ("module: torch, ", "", "the key module is missing"),
        ("module: torch", "module: torch, modul: x", "did you mean module?"),
        ("module: torch", 'module: "torch; x"', "assertions[0].module: has a wrong value"),
        ("schema: 1", "schema: 1\nsources: [{kind: svn}]", "kind: is of no known kind"),
        (
            "schema: 1",
            "schema: 1\nsources: [{kind: git, distribution: x, url: https://h/x, commit: main}]",
            "sources[0].commit: has a wrong value",
        ),
        (
            "schema: 1",
            "schema: 1\nsources: [{kind: archive, distributions: [x], url: 'https://h/x'}]",
            "the key sha256 is missing",
        ),
    ],
)
def test_what_is_wrong_is_said_at_its_place(old: str, new: str, expected: str, tmp_path: Path) -> None:
    assert SOURCE.count(old) == 1
    found = problems(tmp_path, SOURCE.replace(old, new))
    assert expected in "\n".join(found)
    assert re.match(rf"{re.escape(str(tmp_path))}/vllm/1\.2\.3/engine\.yaml:\d+:\d+ ", found[0])


def test_one_platform_is_described_once(tmp_path: Path) -> None:
    again = SOURCE[SOURCE.index("  - accelerator") :]
    assert "is described twice" in "\n".join(problems(tmp_path, SOURCE + again))


def test_an_unknown_digest_is_said_to_be_unknown(tmp_path: Path) -> None:
    source = "sources: [{kind: archive, distributions: [x], url: 'https://h/x', sha256: null}]"
    assert problems(tmp_path, SOURCE.replace("schema: 1", f"schema: 1\n{source}")) == []


def test_whoever_makes_a_lock_need_not_have_it(tmp_path: Path) -> None:
    folder = write(tmp_path, SOURCE)
    (folder / "vllm" / "1.2.3" / "gb10.lock.txt").unlink()
    with pytest.raises(RecipeError, match=r"gb10\.lock\.txt"):
        engines.load_engine("vllm", "1.2.3", engines=folder)
    assert engines.load_engine("vllm", "1.2.3", engines=folder, locks=False)


def _spoil(data: Any, change: Callable[[dict[str, Any]], Any]) -> str:
    change(data)
    return yaml.safe_dump(data)


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, True])
@pytest.mark.parametrize("key", ["schema", "engine", "version", "platforms", "sources", "base"])
def test_any_wrong_type_is_a_problem_and_no_traceback(key: str, value: Any, tmp_path: Path) -> None:
    right = key == "schema" and value == 1 and value is not True
    text = _spoil(yaml.safe_load(SOURCE), lambda data: data.update({key: value}))
    found = problems(tmp_path, text)
    assert found or right
