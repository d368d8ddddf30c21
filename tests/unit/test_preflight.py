# SPDX-License-Identifier: Apache-2.0
"""The action plugin preflight, run as Ansible runs it. Simulated: the host's answers."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.enplace.inference.plugins.action import preflight
from ansible_collections.enplace.inference.plugins.plugin_utils import traps
from ansible_collections.enplace.inference.plugins.plugin_utils.preflight.common import repositories

from tests.sim.recorded import Recorded


class Host:
    """A recorded host; notes what it was asked."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def answer(self, module_name: str, module_args: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((module_name.rpartition(".")[2], module_args))
        if self.asked[-1][0] == "accelerator_facts":
            return {"changed": False, "invocation": {}, **self.facts}
        return {
            "changed": False,
            "reachable": [{"url": url, "ok": True, "error": ""} for url in module_args["reachable"]],
        }


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(preflight.display, "display", lambda text: texts.append(text))
    return texts


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: list[str]) -> Any:
    del shown

    def call(name: str, **settings: Any) -> tuple[dict[str, Any], Host]:
        host = Host(Recorded(name, tmp_path / name).facts())
        monkeypatch.setattr(ActionBase, "run", lambda *_arguments, **_named: {})
        monkeypatch.setattr(
            ActionBase,
            "_execute_module",
            lambda _self, **named: host.answer(named["module_name"], named["module_args"]),
        )
        action = preflight.ActionModule.__new__(preflight.ActionModule)
        action._task = SimpleNamespace(args={})
        action._templar = SimpleNamespace(template=lambda value: value)
        variables = {"inventory_hostname": "host1", **{f"enplace_{key}": value for key, value in settings.items()}}
        return action.run(task_vars=variables), host

    return call


def test_a_host_is_asked_twice_and_judged_by_what_its_recipes_want(ask: Any, shown: list[str]) -> None:
    found, host = ask("spark-factory", recipes=["Qwen/Qwen3-Coder-Next:spark-nvfp4-eagle3"])
    assert not found.get("failed"), found.get("msg")
    assert [module for module, _arguments in host.asked] == ["accelerator_facts", "host_facts"]
    assert abs(host.asked[0][1]["now"] - time.time()) < 600
    assert host.asked[1][1] == {
        "reachable": ["https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/sbsa/"]
    }
    assert found["counts"]["trap"] == 3
    assert found["changed"] is False
    assert found["settings"]["preflight_fail"] is True
    (text,) = shown
    assert "580.95.05 is loaded, 580.159.03 is wanted" in text
    host_name, facts = traps.facts_of(found["document"])
    assert (host_name, facts.wish.drivers) == ("host1", {"nvidia": "580.159.03"})
    assert "invocation" not in facts.accelerators


def test_a_host_without_recipes_is_judged_too(ask: Any) -> None:
    found, _host = ask("spark-factory", preflight_fail="false")
    assert found["document"]["wish"]["accelerators"] == []
    statuses = {finding["id"]: finding["status"] for finding in found["document"]["findings"]}
    assert statuses["nvidia-driver-version"] == "not applicable"
    assert statuses["gb10-swap"] == "warn"
    assert found["settings"]["preflight_fail"] is False


@pytest.mark.parametrize(
    ("settings", "part"), [({"recipies": []}, "did you mean enplace_recipes?"), ({"recipes": ["no/such:x"]}, "no/such")]
)
def test_a_wrong_inventory_is_told_before_the_host_is_asked(ask: Any, settings: dict[str, Any], part: str) -> None:
    found, host = ask("no-accelerator", **settings)
    assert found["failed"]
    assert part in found["msg"]
    assert host.asked == []


def test_a_host_that_does_not_answer_fails_as_the_module_did(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "answer", lambda *_arguments: {"failed": True, "msg": "no python"})
    found, _host = ask("no-accelerator")
    assert found == {"failed": True, "msg": "no python"}


def test_repositories_are_those_of_the_hosts_own_apt() -> None:
    wish = traps.Wish(["gaudi2"])
    mirror = {"vendor": "habana", "url": "https://mirror.example/habana"}
    assert repositories(traps.Facts({}, {}, wish)) == ["https://vault.habana.ai/artifactory/debian"]
    assert repositories(traps.Facts({"apt": {"sources": [mirror]}}, {}, wish)) == ["https://mirror.example/habana"]
    assert repositories(traps.Facts({}, {}, traps.Wish(["cpu"]))) == []
