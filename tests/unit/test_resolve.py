# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The action plugin resolve, run as Ansible runs it. Simulated: the host's facts, and the hub."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.enplace.inference.plugins.action.resolve import ActionModule
from ansible_collections.enplace.inference.plugins.plugin_utils import plan as planner
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import RECIPES

from tests.sim.hub import hub as sim

MODEL = "enplace/tiny"


class Host:
    """A host with room for everything; notes what it was asked."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        self.damaged: list[dict[str, str]] = []

    @property
    def asked(self) -> int:
        return len(self.modules)

    def answer(self, module_name: str, module_args: dict[str, Any]) -> dict[str, Any]:
        self.modules.append(module_name.rpartition(".")[2])
        return self.state(module_args) if self.modules[-1] == "state" else self.facts(module_args)

    def state(self, module_args: dict[str, Any]) -> dict[str, Any]:
        report = {"complete": True}
        return {
            "changed": False,
            "converged": not self.damaged,
            "differences": self.damaged,
            "damaged": self.damaged,
            "servers": {slug: {"report": report, "release": "x"} for slug in module_args["wanted"]},
            "deep": module_args["deep"],
        }

    def facts(self, module_args: dict[str, Any]) -> dict[str, Any]:
        return {
            "changed": False,
            "arch": "x86_64",
            "systemd": {"running": True, "state": "running"},
            "python": {"path": module_args["python"], "version": "3.11.2"},
            "memory": {"total_bytes": 64_000_000_000},
            "paths": {path: {"exists": False, "mount": "/", "free_bytes": 10**12} for path in module_args["paths"]},
            "listeners": [],
            "environments": [],
            "reachable": [{"url": url, "ok": True, "error": ""} for url in module_args["reachable"]],
        }


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host()
    monkeypatch.setattr(ActionBase, "run", lambda *_arguments, **_named: {})
    monkeypatch.setattr(
        ActionBase, "_execute_module", lambda _self, **named: found.answer(named["module_name"], named["module_args"])
    )
    return found


def resolve(recipe: str, **settings: Any) -> dict[str, Any]:
    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(args={})
    action._templar = SimpleNamespace(template=lambda value: value)
    variables = {"inventory_hostname": "host1", "enplace_recipes": [recipe]}
    variables |= {f"enplace_{name}": value for name, value in settings.items()}
    found: dict[str, Any] = action.run(task_vars=variables)
    return found


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[sim.Hub]:
    folder = tmp_path / "repositories" / MODEL
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    with sim.Hub(sim.load(tmp_path / "repositories"), quiet=True) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smoke recipe under another name, without a commit."""
    data = yaml.safe_load((RECIPES / "enplace" / "smoke" / "recipe.yaml").read_text(encoding="utf-8"))
    data["model"]["name"] = MODEL
    weights = data["variants"]["cpu"]["weights"]
    del weights["files"]
    weights.update({"repository": MODEL, "revision": "unpinned"})
    target = tmp_path / "recipes" / MODEL
    target.mkdir(parents=True)
    # JSON is YAML, and this loader reads it.
    (target / "recipe.yaml").write_text(json.dumps(data), encoding="utf-8")
    return tmp_path / "recipes"


def test_a_recipe_that_is_all_right_becomes_a_plan_without_a_warning(host: Host) -> None:
    found = resolve("enplace/smoke:cpu")
    assert not found.get("failed"), found.get("msg")
    assert found["plan"]["wanted"] == ["enplace-smoke-cpu"]
    assert "warnings" not in found
    assert host.modules == ["host_facts", "state"]
    assert re.fullmatch(r"\S+@\S+ pid \d+", found["holder"])


def test_a_report_goes_to_the_controller_only_where_it_is_not_there(host: Host, tmp_path: Path) -> None:
    def server() -> dict[str, Any]:
        found = resolve("enplace/smoke:cpu", reports_dir=str(tmp_path))
        return dict(found["state"]["servers"]["enplace-smoke-cpu"])

    assert server() == {"report": {"complete": True}, "release": "x", "report_is_here": False}
    (tmp_path / "host1").mkdir()
    (tmp_path / "host1" / "enplace-smoke-cpu.json").write_text('{"complete": true}')
    assert server() == {"report": None, "release": "x", "report_is_here": True}
    (tmp_path / "host1" / "enplace-smoke-cpu.json").write_text("{")
    assert not server()["report_is_here"]


def test_damage_stops_a_run_and_names_the_file(host: Host) -> None:
    path = "/opt/enplace/environments/0123456789ab/lib/x.py"
    host.damaged = [{"part": "environments", "what": "file", "path": path, "expected": "sha256 a", "found": "sha256 b"}]
    found = resolve("enplace/smoke:cpu", deep=True)
    assert found["failed"]
    for part in (path, "expected: sha256 a", "found: sha256 b", "what to do: "):
        assert part in found["msg"]


def test_what_is_not_pinned_is_refused_before_the_host_is_asked(host: Host, folder: Path) -> None:
    found = resolve(f"{MODEL}:cpu", recipe_folders=[str(folder)])
    assert found["failed"]
    assert "host1: 1 problem; nothing was changed on the host." in found["msg"]
    assert "the commit of the weights is not known" in found["msg"]
    assert f"run enplace pin {MODEL}:cpu" in found["msg"]
    assert host.asked == 0


def test_with_leave_it_is_looked_up_and_the_run_warns(
    host: Host, folder: Path, hub: sim.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    options = {"recipe_folders": [str(folder)], "hub_endpoint": hub.url, "allow_unpinned": True}
    found = resolve(f"{MODEL}:cpu", **options)
    assert not found.get("failed"), found.get("msg")
    repository = hub.repositories[MODEL]
    (model,) = found["plan"]["weights"]["models"]
    assert model == {"repo": MODEL, "revision": repository.revision, "files": sim.manifest(repository)["files"]}
    told = [text for text in found["warnings"] if repository.revision in text]
    assert len(told) == 1
    assert "enplace pin" in told[0]
    # Said once, not again by the linter.
    assert not [text for text in found["warnings"] if planner.UNPINNED_RULE in text]
    assert resolve(f"{MODEL}:cpu", **options)["plan"] == found["plan"]


def test_a_hub_that_does_not_answer_stops_the_run(host: Host, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    found = resolve(
        f"{MODEL}:cpu", recipe_folders=[str(folder)], hub_endpoint="http://127.0.0.1:9", allow_unpinned=True
    )
    assert found["failed"]
    assert "could not be asked" in found["msg"]
    assert host.asked == 0


def test_the_linters_errors_stop_the_run_with_the_other_problems(host: Host, folder: Path) -> None:
    path = folder / MODEL / "recipe.yaml"
    path.write_text(path.read_text().replace('"max-model-len"', '"max-modle-len"'))
    found = resolve(f"{MODEL}:cpu", recipe_folders=[str(folder)])
    assert found["failed"]
    assert "max-model-len" in found["msg"]
    assert "the commit of the weights is not known" in found["msg"]
    assert host.asked == 0


def test_the_linters_warnings_are_ansibles_each_on_one_line(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(_self: Any, _settings: Any) -> planner.LookUp:
        return lambda _repository, _include: ("a" * 40, [{"path": "x", "bytes": 1, "sha256": "b" * 64}])

    monkeypatch.setattr(ActionModule, "_look_up", look_up)
    real = Host.facts

    def spark(self: Host, module_args: dict[str, Any]) -> dict[str, Any]:
        python = {"path": "/usr/bin/python3", "version": "3.12.3"}
        return {**real(self, module_args), "arch": "aarch64", "python": python, "memory": {"total_bytes": 128 * 10**9}}

    monkeypatch.setattr(Host, "facts", spark)
    found = resolve("poolside/Laguna-S-2.1:spark-nvfp4", allow_unpinned=True)
    assert not found.get("failed"), found.get("msg")
    (warning,) = [text for text in found["warnings"] if "(gb10-nvfp4-moe-regression)" in text]
    assert "\n" not in warning
    assert "what to do: " in warning


def test_fixes_are_refused_and_the_host_is_left_alone(host: Host) -> None:
    found = resolve("Qwen/Qwen3-Coder-Next:gaudi2-bf16-tp4", allow_unpinned=True)
    assert found["failed"]
    assert "this version of enplace does not apply fixes yet" in found["msg"]
    assert host.asked == 0
