# SPDX-License-Identifier: Apache-2.0
"""From recipe, settings and facts to a plan, and everything that can be wrong before anything is changed."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.modules import resolve as documentation
from ansible_collections.enplace.inference.plugins.plugin_utils import plan as planner
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import RECIPES, Recipe, RecipeError, find_recipe


def settings(**changes: Any) -> dict[str, Any]:
    return planner.read_settings(
        {"enplace_recipe": "enplace/smoke:cpu", **{f"enplace_{k}": v for k, v in changes.items()}}
    )


def smoke() -> Recipe:
    return find_recipe("enplace/smoke:cpu", [RECIPES])[0]


def facts(**changes: Any) -> dict[str, Any]:
    """A bare host with room for everything, as the module host_facts describes one."""
    asked = planner.questions(smoke(), "cpu", settings())
    found: dict[str, Any] = {
        "arch": "x86_64",
        "systemd": {"running": True, "state": "running"},
        "python": {"path": "/usr/bin/python3", "version": "3.11.2"},
        "memory": {"total_bytes": 16_000_000_000},
        "paths": {path: {"exists": False, "mount": "/", "free_bytes": 50_000_000_000} for path in asked["paths"]},
        "listeners": [],
        "environments": [],
        "reachable": [{"url": url, "ok": True, "error": ""} for url in asked["reachable"]],
    }
    return {**found, **changes}


def plan(found: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return planner.make_plan(smoke(), "cpu", settings(**changes), found or facts())


def judged(found: dict[str, Any], **changes: Any) -> list[str]:
    chosen = settings(**changes)
    return [str(p) for p in planner.judge(planner.make_plan(smoke(), "cpu", chosen, found), found, chosen, "host1")]


def test_the_same_input_gives_the_same_plan() -> None:
    one, two = plan(), plan()
    assert json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert one["service"]["path"] == f"/opt/enplace/releases/enplace-smoke-cpu/{one['digest'][:12]}"
    assert json.loads(one["service"]["files"]["release.json"])["digest"] == one["digest"]


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["arguments"].update({"max-model-len": 2048}),
        lambda v: v["environment"].update({"VLLM_CPU_KVCACHE_SPACE": "2"}),
        lambda v: v["weights"]["files"][0].update({"sha256": "0" * 64}),
        lambda v: v["checks"].pop(),
        lambda v: v["ready"].update({"timeout_s": 601}),
    ],
)
def test_whatever_decides_behaviour_decides_the_digest(change: Any) -> None:
    recipe = smoke()
    changed = copy.deepcopy(recipe.document.data)
    change(changed["variants"]["cpu"])
    other = Recipe(type(recipe.document)(recipe.document.path, changed, recipe.document.places))
    assert planner.make_plan(other, "cpu", settings(), facts())["digest"] != plan()["digest"]


def test_settings_that_decide_behaviour_decide_the_digest() -> None:
    digests = {plan(**changes)["digest"] for changes in ({}, {"port": 9000}, {"listen": "127.0.0.2"})}
    assert len(digests) == 3
    assert plan(hub_endpoint="https://hub.example", reports_dir="elsewhere")["digest"] == plan()["digest"]


def test_the_command_holds_what_the_recipe_says() -> None:
    unit = plan()["service"]["files"]["unit.service"]
    assert "--host 127.0.0.1" in unit
    assert "--served-model-name enplace/smoke" in unit
    assert "--enforce-eager" in unit
    assert re.search(r"\$|%(?!%)", re.sub(r"^#.*$", "", unit, flags=re.M)) is None


def test_a_host_with_room_has_no_problem() -> None:
    assert judged(facts()) == []


def test_a_converged_host_needs_neither_network_nor_room() -> None:
    ready = plan()
    found = facts(
        environments=[{"path": ready[part]["path"], "sealed": True} for part in ("environment",)]
        + [{"path": ready["host"]["tools"]["path"], "sealed": True}],
        reachable=[{"url": "https://huggingface.co", "ok": False, "error": "no route"}],
        listeners=[{"port": 8000, "address": "127.0.0.1", "pid": 1, "command": "vllm", "unit": ready["unit"]}],
    )
    found["paths"] = {path: {"exists": True, "mount": "/", "free_bytes": 0} for path in found["paths"]}
    assert judged(found) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"systemd": {"running": False, "state": "offline"}}, "host1 systemd: is not running"),
        ({"memory": {"total_bytes": 2_000_000_000}}, "at least 6.0 GB"),
        (
            {"reachable": [{"url": "https://huggingface.co", "ok": False, "error": "no route to host"}]},
            "no route to host",
        ),
        (
            {
                "listeners": [
                    {"port": 8000, "address": "0.0.0.0", "pid": 7, "command": "nginx -g", "unit": "nginx.service"}
                ]
            },
            "nginx -g (pid 7, unit nginx.service)",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_changed(changes: dict[str, Any], expected: str) -> None:
    problems = judged(facts(**changes))
    assert len(problems) == 1
    assert expected in problems[0]
    assert "  expected: " in problems[0]
    assert "  what to do: " in problems[0]


def test_another_address_of_the_same_port_is_no_problem() -> None:
    other = {"port": 8000, "address": "192.0.2.1", "pid": 7, "command": "nginx", "unit": ""}
    assert judged(facts(listeners=[other])) == []
    assert len(judged(facts(listeners=[other]), listen="0.0.0.0", allow_unauthenticated=True)) == 1


def test_a_disk_is_judged_for_all_that_goes_onto_it() -> None:
    found = facts()
    for entry in found["paths"].values():
        entry["free_bytes"] = 3_500_000_000
    problems = judged(found)
    assert len(problems) == 1
    assert "the environment 3.4 GB" in problems[0]
    assert "the tools 0.4 GB" in problems[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"arch": "aarch64"},
        {"python": {"path": "/usr/bin/python3", "version": "3.12.3"}},
        {"python": {"path": "/x", "version": ""}},
    ],
)
def test_a_platform_without_a_lock_is_named_with_those_there_are(changes: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"cpu, x86_64, Python 3\.11"):
        plan(facts(**changes))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "enplace_recipe: is not set"),
        ({"enplace_recipe": "a/b", "enplace_prot": 1}, "did you mean enplace_port?"),
        ({"enplace_recipe": "a/b", "enplace_port": "http"}, "a whole number"),
        ({"enplace_recipe": "a/b", "enplace_port": True}, "a whole number"),
        ({"enplace_recipe": "a/b", "enplace_port": 70000}, "1 to 65535"),
        ({"enplace_recipe": "a/b", "enplace_listen": "0.0.0.0"}, "enplace_allow_unauthenticated: true"),
        ({"enplace_recipe": "a/b", "enplace_listen": "1.2.3.4 --x"}, "is not an address"),
        ({"enplace_recipe": "a/b", "enplace_find_links": "/srv"}, "a list of texts"),
        ({"enplace_recipe": "a/b", "enplace_hub_endpoint": "https://user:secret@hub"}, "without user and password"),
        ({"enplace_recipe": "a/b", "enplace_ca_bundle": "ca.crt"}, "absolute path"),
        ({"enplace_recipe": "a/b", "enplace_allow_unauthenticated": "maybe"}, "true or false"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(variables: dict[str, Any], expected: str) -> None:
    with pytest.raises(RecipeError) as caught:
        planner.read_settings(variables)
    assert expected in str(caught.value)
    assert "secret" not in str(caught.value)


def test_settings_of_others_are_left_alone() -> None:
    assert planner.read_settings({"enplace_recipe": "a/b", "ansible_host": "x", "my_enplace_x": 1})["recipe"] == "a/b"


def test_the_documentation_names_every_setting_with_its_default() -> None:
    lines = yaml.safe_load(documentation.DOCUMENTATION)["description"]
    found = [re.match(r"C\(enplace_(\w+)\), (required|optional|default V\((.*?)\)) - .", line) for line in lines]
    told = {match[1]: match[3] and yaml.safe_load(match[3]) for match in found if match}
    assert told == {name: setting.default for name, setting in planner.SETTINGS.items()}
