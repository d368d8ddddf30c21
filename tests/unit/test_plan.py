# SPDX-License-Identifier: Apache-2.0
"""From recipe, settings and facts to a plan, and everything that can be wrong before anything is changed."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.enplace.inference.plugins.modules import resolve as documentation
from ansible_collections.enplace.inference.plugins.plugin_utils import plan as planner
from ansible_collections.enplace.inference.plugins.plugin_utils.engines import load_engine
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import (
    RECIPES,
    Document,
    Recipe,
    RecipeError,
    find_recipe,
)


def settings(**changes: Any) -> dict[str, Any]:
    return planner.read_settings(
        {"enplace_recipes": ["enplace/smoke:cpu"], **{f"enplace_{k}": v for k, v in changes.items()}}
    )


def targets(recipe: Recipe | None = None, variant: str = "cpu", **changes: Any) -> list[planner.Target]:
    """The one entry of these settings, with a recipe that may be changed."""
    return [planner.Target(0, settings(**changes)["recipes"][0], recipe or smoke(), variant)]


def smoke() -> Recipe:
    return find_recipe("enplace/smoke:cpu", [RECIPES])[0]


def facts(**changes: Any) -> dict[str, Any]:
    """A bare host with room for everything, as the module host_facts describes one."""
    asked = planner.questions(targets(), settings())
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
    return planner.make_plan(targets(**changes), found or facts())


def only(made: dict[str, Any]) -> dict[str, Any]:
    """The one release of a plan."""
    (release,) = made["releases"]
    return dict(release)


def digest(made: dict[str, Any]) -> str:
    return str(only(made)["digest"])


def judged(found: dict[str, Any], **changes: Any) -> list[str]:
    made = planner.make_plan(targets(**changes), found)
    return [str(p) for p in planner.judge(made, found, settings(**changes), "host1")]


def test_the_same_input_gives_the_same_plan() -> None:
    one, two = plan(), plan()
    assert json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    release = only(one)
    assert release["path"] == f"/opt/enplace/releases/enplace-smoke-cpu/{release['digest'][:12]}"
    assert json.loads(release["files"]["release.json"])["digest"] == release["digest"]


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
    assert digest(planner.make_plan(targets(other), facts())) != digest(plan())


def test_a_check_that_only_the_full_suite_asks_makes_no_other_release() -> None:
    def digest_with(**more: Any) -> str:
        other = smoke()
        other.variants["cpu"]["checks"].append({"check": "needles", "tokens": [1000], **more})
        return digest(planner.make_plan(targets(other), facts()))

    assert digest_with(suite="full") == digest(plan())
    assert digest_with(suite="gate") != digest(plan())


def test_what_is_measured_is_no_part_of_a_release() -> None:
    recipe = smoke()
    changed = copy.deepcopy(recipe.document.data)
    figures = [{"metric": "decode_rate", "value": 9, "unit": "tok/s", "source": "page"}]
    changed["variants"]["cpu"].update(bench=[{"prompt_tokens": 5}], figures=figures)
    other = Recipe(type(recipe.document)(recipe.document.path, changed, recipe.document.places))
    made = planner.make_plan(targets(other), facts())
    assert digest(made) == digest(plan())


def test_settings_that_decide_behaviour_decide_the_digest() -> None:
    changes: list[dict[str, Any]] = [{}, {"port": 9000}, {"listen": "127.0.0.2"}, {"api_key_file": "/etc/key"}]
    changes.append({"recipes": [{"recipe": "enplace/smoke:cpu", "standby": True}]})
    assert len({digest(plan(**change)) for change in changes}) == len(changes)
    assert digest(plan(hub_endpoint="https://hub.example", reports_dir="elsewhere", keep=5)) == digest(plan())


def test_the_command_holds_what_the_recipe_says() -> None:
    unit = only(plan())["files"]["unit.service"]
    assert "--host 127.0.0.1" in unit
    assert "--served-model-name enplace/smoke" in unit
    assert "--enforce-eager" in unit
    assert re.search(r"\$|%(?!%)", re.sub(r"^#.*$", "", unit, flags=re.M)) is None


def test_a_host_with_room_has_no_problem() -> None:
    assert judged(facts()) == []


def test_a_converged_host_needs_neither_network_nor_room() -> None:
    ready = plan()
    found = facts(
        environments=[{"path": each["path"], "sealed": True} for each in ready["environments"]]
        + [{"path": ready["host"]["tools"]["path"], "sealed": True}],
        reachable=[{"url": "https://huggingface.co", "ok": False, "error": "no route"}],
        listeners=[{"port": 8000, "address": "127.0.0.1", "pid": 1, "command": "vllm", "unit": only(ready)["unit"]}],
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
        ({}, "enplace_recipes: is not set"),
        ({"enplace_recipes": ["a/b"], "enplace_prot": 1}, "did you mean enplace_port?"),
        ({"enplace_recipes": ["a/b"], "enplace_port": "http"}, "a whole number"),
        ({"enplace_recipes": ["a/b"], "enplace_port": True}, "a whole number"),
        ({"enplace_recipes": ["a/b"], "enplace_port": 70000}, "1 to 65535"),
        ({"enplace_recipes": ["a/b"], "enplace_listen": "0.0.0.0"}, "enplace_allow_unauthenticated: true"),
        ({"enplace_recipes": ["a/b"], "enplace_listen": "1.2.3.4 --x"}, "is not an address"),
        ({"enplace_recipes": ["a/b"], "enplace_find_links": "/srv"}, "a list of texts"),
        ({"enplace_recipes": ["a/b"], "enplace_hub_endpoint": "https://user:secret@hub"}, "without user and password"),
        ({"enplace_recipes": ["a/b"], "enplace_ca_bundle": "ca.crt"}, "absolute path"),
        ({"enplace_recipes": ["a/b"], "enplace_allow_unauthenticated": "maybe"}, "true or false"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(variables: dict[str, Any], expected: str) -> None:
    with pytest.raises(RecipeError) as caught:
        planner.read_settings(variables)
    assert expected in str(caught.value)
    assert "secret" not in str(caught.value)


def test_settings_of_others_are_left_alone() -> None:
    found = planner.read_settings({"enplace_recipes": ["a/b"], "ansible_host": "x", "my_enplace_x": 1})
    assert found["recipes"][0]["recipe"] == "a/b"


def test_the_documentation_names_every_setting_with_its_default() -> None:
    lines = yaml.safe_load(documentation.DOCUMENTATION)["description"]
    found = [re.match(r"C\(enplace_(\w+)\), (required|optional|default V\((.*?)\)) - .", line) for line in lines]
    told = {match[1]: match[3] and yaml.safe_load(match[3]) for match in found if match}
    assert told == {name: setting.default for name, setting in planner.SETTINGS.items()}


# --- several recipes -------------------------------------------------------------------------------------------------

SMOKE = "enplace/smoke:cpu"


@pytest.mark.parametrize(
    ("entries", "where", "expected"),
    [
        ([], "enplace_recipes:", "is empty"),
        (SMOKE, "enplace_recipes:", "put what is there into a list"),
        ({"recipe": SMOKE}, "enplace_recipes:", "put what is there into a list"),
        ([1], "enplace_recipes[0]:", "or a mapping"),
        ([SMOKE, {"port": 8001}], "enplace_recipes[1].recipe:", "is not set"),
        ([{"recipe": ""}], "enplace_recipes[0].recipe:", "is not set"),
        ([SMOKE, {"recipe": "a/b", "prot": 8001}], "enplace_recipes[1].prot:", "did you mean port?"),
        ([SMOKE, {"recipe": "a/b", "port": "http"}], "enplace_recipes[1].port:", "a whole number"),
        ([SMOKE, {"recipe": "a/b", "port": 0}], "enplace_recipes[1].port:", "1 to 65535"),
        ([{"recipe": SMOKE, "listen": "x y"}], "enplace_recipes[0].listen:", "is not an address"),
        ([{"recipe": SMOKE, "listen": "0.0.0.0"}], "enplace_recipes[0].listen:", "without authentication"),
        ([{"recipe": SMOKE, "standby": "maybe"}], "enplace_recipes[0].standby:", "true or false"),
        ([{"recipe": SMOKE, "cards": "0,1"}], "enplace_recipes[0].cards:", "a list of whole numbers"),
        ([{"recipe": SMOKE, "cards": [0, 0]}], "enplace_recipes[0].cards:", "each card once"),
        ([{"recipe": SMOKE, "api_key_file": "key"}], "enplace_recipes[0].api_key_file:", "an absolute path"),
        ([SMOKE, "a/b"], "enplace_recipes[1].port:", "is the port of enplace_recipes[0], enplace/smoke:cpu, too"),
        (
            [{"recipe": SMOKE, "listen": "127.0.0.2"}, {"recipe": "a/b", "listen": "localhost"}],
            "enplace_recipes[1].port:",
            "a port of its own",
        ),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(entries: Any, where: str, expected: str) -> None:
    with pytest.raises(RecipeError) as caught:
        settings(recipes=entries)
    (problem,) = caught.value.problems
    assert f"inventory {where}" in str(problem)
    assert expected in str(problem)


def test_entries_take_what_they_do_not_say_from_the_host() -> None:
    chosen = settings(
        recipes=[SMOKE, {"recipe": "a/b", "port": 8001, "api_key_file": "/etc/b", "listen": "::1"}],
        port=9000,
        listen="0.0.0.0",
        api_key_file="/etc/a",
    )
    one, two = chosen["recipes"]
    assert (one["port"], one["listen"], one["api_key_file"], one["standby"]) == (9000, "0.0.0.0", "/etc/a", False)
    assert (two["port"], two["listen"], two["api_key_file"], two["cards"]) == (8001, "::1", "/etc/b", None)


def test_a_key_lets_a_server_listen_beyond_loopback() -> None:
    assert settings(listen="0.0.0.0", api_key_file="/etc/key")["recipes"][0]["listen"] == "0.0.0.0"


def test_addresses_of_their_own_may_share_a_port() -> None:
    entries = [{"recipe": SMOKE, "listen": "127.0.0.2"}, {"recipe": "a/b", "listen": "127.0.0.3"}]
    assert len(settings(recipes=entries)["recipes"]) == 2


def found(*entries: Any, **changes: Any) -> list[planner.Target]:
    return planner.find_targets(settings(recipes=list(entries), **changes), [RECIPES])


def refused_entries(*entries: Any, folders: Any = (RECIPES,)) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        planner.find_targets(settings(recipes=list(entries)), list(folders))
    return [str(problem) for problem in caught.value.problems]


def test_every_entry_that_names_no_recipe_is_told() -> None:
    one, two = refused_entries("enplace/smoek:cpu", {"recipe": "enplace/smoke:cpv", "port": 8001})
    assert "inventory enplace_recipes[0]: no such recipe" in one
    assert "did you mean enplace/smoke?" in one
    assert "inventory enplace_recipes[1]: no such variant" in two


def test_a_recipe_is_served_once() -> None:
    (text,) = refused_entries("enplace/smoke", {"recipe": SMOKE, "port": 8001})
    assert "inventory enplace_recipes[1].recipe: is the recipe enplace/smoke:cpu of enplace_recipes[0], too" in text


def test_two_recipes_that_a_host_would_name_alike_are_refused(tmp_path: Path) -> None:
    data = copy.deepcopy(smoke().document.data)
    folder = tmp_path / "enplace-smoke" / "cpu"
    folder.mkdir(parents=True)
    data["model"]["name"] = "enplace-smoke/cpu"
    data["variants"] = {"x": data["variants"]["cpu"]}
    (folder / "recipe.yaml").write_text(json.dumps(data))
    other = tmp_path / "enplace" / "smoke"
    other.mkdir(parents=True)
    data["model"]["name"] = "enplace/smoke"
    data["variants"] = {"cpu-x": data["variants"]["x"]}
    (other / "recipe.yaml").write_text(json.dumps(data))
    entries = ("enplace/smoke:cpu-x", {"recipe": "enplace-smoke/cpu:x", "port": 8001})
    (text,) = refused_entries(*entries, folders=[tmp_path])
    assert "is named on a host as enplace/smoke:cpu-x of enplace_recipes[0]" in text


def test_cards_are_those_of_the_recipe_and_of_one_server(tmp_path: Path) -> None:
    data = copy.deepcopy(next_model().document.data)
    data["variants"] = {name: copy.deepcopy(data["variants"]["gaudi2-bf16-tp4"]) for name in ("one", "two")}
    folder = tmp_path / "Qwen" / "Qwen3-Coder-Next"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(json.dumps(data))

    def entries(**second: Any) -> tuple[Any, ...]:
        one, two = ("Qwen/Qwen3-Coder-Next:one", "Qwen/Qwen3-Coder-Next:two")
        return one, {"recipe": two, "port": 8001, **second}

    def made(**second: Any) -> list[planner.Target]:
        return planner.find_targets(settings(recipes=list(entries(**second))), [tmp_path])

    (text,) = refused_entries(*entries(), folders=[tmp_path])
    assert "inventory enplace_recipes[1].cards: uses cards of Qwen/Qwen3-Coder-Next:one" in text
    assert "of [4, 5, 6, 7], or standby: true for one of the two" in text
    (text,) = refused_entries(*entries(cards=[4]), folders=[tmp_path])
    assert "inventory enplace_recipes[1].cards: is not the number of cards\n  expected: 4" in text
    (text,) = refused_entries({"recipe": SMOKE, "cards": [0]})
    assert "enplace/smoke:cpu has no cards to choose" in text
    apart = made(cards=[4, 5, 6, 7])
    assert [target.cards for target in apart] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    one, two = made(standby=True)
    assert planner.conflicts_of(two, [one, two]) == [one.unit]
    assert planner.conflicts_of(one, [one, two]) == []
    one, two = made(standby=True, cards=[4, 5, 6, 7])
    assert planner.conflicts_of(two, [one, two]) == []


def twin(tmp_path: Path, change: Any = lambda variant: None) -> list[Path]:
    """Folders of recipes in which the smoke recipe has a second variant, cpu2."""
    data = copy.deepcopy(smoke().document.data)
    data["variants"]["cpu2"] = copy.deepcopy(data["variants"]["cpu"])
    change(data["variants"]["cpu2"])
    folder = tmp_path / "enplace" / "smoke"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(json.dumps(data))
    return [tmp_path]


def two(tmp_path: Path, change: Any = lambda variant: None, **second: Any) -> list[planner.Target]:
    chosen = settings(recipes=[SMOKE, {"recipe": "enplace/smoke:cpu2", "port": 8001, **second}])
    return planner.find_targets(chosen, twin(tmp_path, change))


def test_two_recipes_share_environment_and_weights_and_nothing_else(tmp_path: Path) -> None:
    made = planner.make_plan(two(tmp_path), facts())
    assert len(made["environments"]) == len(made["weights"]["models"]) == len(made["weights"]["snapshots"]) == 1
    one, other = made["releases"]
    assert made["wanted"] == [one["slug"], other["slug"]] == ["enplace-smoke-cpu", "enplace-smoke-cpu2"]
    assert "--port 8001" in other["files"]["unit.service"]
    manifests = [json.loads(release["files"]["release.json"]) for release in (one, other)]
    assert manifests[0]["environment"] == manifests[1]["environment"]
    assert [manifest["port"] for manifest in manifests] == [8000, 8001]
    # A second recipe on the host leaves the first one's release as it is.
    assert one == only(plan())


def test_one_model_of_two_recipes_is_fetched_with_the_files_of_both(tmp_path: Path) -> None:
    def fewer(variant: dict[str, Any]) -> None:
        variant["weights"]["files"] = [variant["weights"]["files"][0], {"path": "x", "bytes": 1, "sha256": "a" * 64}]

    made = planner.make_plan(two(tmp_path, fewer), facts())
    names = [item["path"] for item in made["weights"]["models"][0]["files"]]
    assert names == [*(item["path"] for item in smoke().variants["cpu"]["weights"]["files"]), "x"]


def test_recipes_that_say_different_things_of_one_file_are_refused(tmp_path: Path) -> None:
    def other(variant: dict[str, Any]) -> None:
        variant["weights"]["files"][0]["sha256"] = "a" * 64

    with pytest.raises(RecipeError, match="says something else of chat_template"):
        planner.make_plan(two(tmp_path, other), facts())


def test_a_standby_server_comes_first_and_names_what_it_cannot_run_beside(tmp_path: Path) -> None:
    made = planner.make_plan(two(tmp_path, standby=True), facts())
    first, second = made["releases"]
    assert (first["slug"], second["slug"]) == ("enplace-smoke-cpu2", "enplace-smoke-cpu")
    assert "Conflicts=enplace-enplace-smoke-cpu.service" in first["files"]["unit.service"]
    assert json.loads(first["files"]["release.json"])["standby"] is True
    # What serves is not made anew because a standby server was added.
    assert second == only(plan())


def test_memory_of_all_that_runs_at_once_is_summed(tmp_path: Path) -> None:
    both = two(tmp_path)
    made = planner.make_plan(both, facts())
    for server in made["servers"].values():
        server["memory_bytes"] = 1
    needed = sum(server["memory_estimate_bytes"] for server in made["servers"].values())
    small = facts(memory={"total_bytes": needed - 1})
    (problem,) = planner.judge(made, small, settings(), "h")
    assert problem.what == "cannot hold all that enplace_recipes names"
    assert "enplace/smoke:cpu 1.1 GB, enplace/smoke:cpu2 1.1 GB" in problem.expected
    assert "standby: true" in problem.todo
    assert planner.judge(made, facts(memory={"total_bytes": needed}), settings(), "h") == []
    made["servers"]["enplace-smoke-cpu2"]["standby"] = True
    assert planner.judge(made, small, settings(), "h") == []


def test_on_unified_memory_each_engine_must_be_able_to_start_beside_the_others() -> None:
    recipe, chosen = pinned(), spark_settings()
    made = planner.make_plan(spark(recipe), spark_facts(recipe))
    (server,) = made["servers"].values()
    other = {**server, "recipe": "another", "memory_estimate_bytes": 40 * 10**9, "utilization": 0.3, "memory_bytes": 1}
    server["memory_bytes"] = 1
    made["servers"]["another"] = other
    share = server["utilization"]
    assert 0 < share < 1
    total = 128_000_000_000
    problems = planner.judge(made, spark_facts(recipe, memory={"total_bytes": total}), chosen, "h")
    refused = [problem for problem in problems if "would refuse to start beside another" in problem.what]
    assert bool(refused) == (total - 40 * 10**9 < share * total)
    other["memory_estimate_bytes"] = int(total - share * total) + 1
    (problem,) = [
        problem
        for problem in planner.judge(made, spark_facts(recipe, memory={"total_bytes": total}), chosen, "h")
        if "refuse" in problem.what
    ]
    assert f"gpu-memory-utilization ({share})" in problem.expected


def test_the_memory_that_a_start_waits_for_is_in_the_manifest() -> None:
    def start_bytes(made: dict[str, Any]) -> Any:
        return json.loads(only(made)["files"]["release.json"])["memory"]["start_bytes"]

    (server,) = plan()["servers"].values()
    assert start_bytes(plan()) == server["memory_estimate_bytes"] > 2**30
    made = spark_plan()
    share = made["servers"]["qwen-qwen3-coder-next-spark-nvfp4-eagle3"]["utilization"]
    assert start_bytes(made) == pytest.approx(share * 119.56 * 2**30, abs=2)


def test_the_manifest_names_every_other_file_with_its_sum() -> None:
    contents = only(plan())["files"]
    manifest = json.loads(contents["release.json"])
    sums = {
        name: hashlib.sha256(text.encode()).hexdigest() for name, text in contents.items() if name != "release.json"
    }
    assert manifest["files"] == sums
    assert {"unit.service", "environment.conf", "ready.py", "alive.py", "alive.service", "alive.timer"} < set(sums)
    checks = json.loads(contents["checks.json"])
    assert checks["release"] == manifest["digest"]
    assert checks["python"] == f"{manifest['environment']['path']}/bin/python"


def test_a_key_is_handed_over_by_the_launcher_and_is_nowhere_else() -> None:
    contents = only(plan(api_key_file="/etc/enplace/key", listen="0.0.0.0"))["files"]
    assert "LoadCredential=api-key:/etc/enplace/key" in contents["unit.service"]
    assert "/launch.py" in contents["unit.service"]
    assert "launch.py" in contents
    assert json.loads(contents["checks.json"])["api_key_file"] == "/etc/enplace/key"
    assert "launch.py" not in only(plan())["files"]


def test_a_fleet_needs_what_it_takes_weights_with() -> None:
    without, with_it = (
        planner.make_plan(targets(), facts(), source)["host"]["packages"] for source in ("hub", "fleet")
    )
    assert set(with_it) - set(without) == {"rsync"}


def test_a_port_that_a_unit_of_ours_holds_is_the_activations_business() -> None:
    ours = {"port": 8000, "address": "127.0.0.1", "pid": 7, "command": "vllm", "unit": "enplace-old.service"}
    assert judged(facts(listeners=[ours])) == []


# --- drafts, pins, and what is refused -------------------------------------------------------------------------------

SPARK = "spark-nvfp4-eagle3"
COMMITS = {"weights": "a" * 40, "draft": "b" * 40}


def next_model() -> Recipe:
    return find_recipe(f"Qwen/Qwen3-Coder-Next:{SPARK}", [RECIPES])[0]


def changed(recipe: Recipe, variant: str, change: Any) -> Recipe:
    data = copy.deepcopy(recipe.document.data)
    change(data["variants"][variant])
    return Recipe(Document(recipe.document.path, data, recipe.document.places, recipe.document.values))


def pinned() -> Recipe:
    """The Spark variant with commits that never were."""

    def pin(variant: dict[str, Any]) -> None:
        for number, (part, commit) in enumerate(COMMITS.items(), 1):
            files = [{"path": "config.json", "bytes": number * 10**9, "sha256": str(number) * 64}]
            variant[part].update({"revision": commit, "files": files})

    return changed(next_model(), SPARK, pin)


def spark_settings(**changes: Any) -> dict[str, Any]:
    variables = {"enplace_recipes": [f"Qwen/Qwen3-Coder-Next:{SPARK}"]}
    return planner.read_settings({**variables, **{f"enplace_{k}": v for k, v in changes.items()}})


def spark(recipe: Recipe, **changes: Any) -> list[planner.Target]:
    return [planner.Target(0, spark_settings(**changes)["recipes"][0], recipe, SPARK)]


def spark_facts(recipe: Recipe, **changes: Any) -> dict[str, Any]:
    asked = planner.questions(spark(recipe), spark_settings())
    found = facts(arch="aarch64", python={"path": "/usr/bin/python3", "version": "3.12.3"})
    found["memory"] = {"total_bytes": 128_000_000_000}
    found["paths"] = {path: {"exists": False, "mount": "/", "free_bytes": 90_000_000_000} for path in asked["paths"]}
    return {**found, **changes}


def spark_plan(recipe: Recipe | None = None) -> dict[str, Any]:
    recipe = recipe or pinned()
    return planner.make_plan(spark(recipe), spark_facts(recipe))


def place_of(part: str) -> str:
    repository = next_model().variants[SPARK][part]["repository"].replace("/", "--")
    return f"/var/lib/enplace/hub/models--{repository}/snapshots/{COMMITS[part]}"


def test_a_draft_is_a_second_model_and_its_place_goes_into_the_command() -> None:
    made = spark_plan()
    assert [model["revision"] for model in made["weights"]["models"]] == list(COMMITS.values())
    unit = only(made)["files"]["unit.service"]
    config = re.search(r'--speculative-config "(.*)"$', unit, flags=re.M)
    assert config
    assert json.loads(config[1].replace('\\"', '"')) == {
        "method": "eagle3",
        "num_speculative_tokens": 1,
        "model": place_of("draft"),
    }
    assert f"vllm serve {place_of('weights')} " in unit
    manifest = json.loads(only(made)["files"]["release.json"])
    assert manifest["draft"]["revision"] == COMMITS["draft"]


def test_a_variant_without_a_draft_says_nothing_of_one() -> None:
    made = plan()
    assert len(made["weights"]["models"]) == 1
    assert "draft" not in json.loads(only(made)["files"]["release.json"])
    assert "speculative" not in only(made)["files"]["unit.service"]


@pytest.mark.parametrize("part", ["weights", "draft"])
def test_the_commit_and_the_files_of_each_model_decide_the_digest(part: str) -> None:
    digests = {digest(spark_plan())}
    for key, value in (("revision", "c" * 40), ("files", [{"path": "x", "bytes": 1, "sha256": "9" * 64}])):
        recipe = changed(pinned(), SPARK, lambda variant, k=key, v=value: variant[part].update({k: v}))
        digests.add(digest(spark_plan(recipe)))
    assert len(digests) == 3


def test_room_and_network_are_judged_for_both_models() -> None:
    recipe, chosen = pinned(), spark_settings()
    found = spark_facts(recipe)
    made = planner.make_plan(spark(recipe), found)
    assert [problem.what for problem in planner.judge(made, found, chosen, "h")] == []
    for entry in found["paths"].values():
        entry["free_bytes"] = 1_000_000_000
    (disk,) = planner.judge(made, found, chosen, "h")
    assert "the weights 1.0 GB, the draft 2.0 GB" in disk.expected
    # Only the draft is still to come: the hub must be reachable for it.
    found = spark_facts(recipe, reachable=[{"url": "https://huggingface.co", "ok": False, "error": "no route"}])
    found["paths"][place_of("weights")]["exists"] = True
    (network,) = planner.judge(made, found, chosen, "h")
    assert "and the draft must be downloaded" in network.what
    found["paths"][place_of("draft")]["exists"] = True
    assert planner.judge(made, found, chosen, "h") == []


def test_a_gb10_unit_finds_the_compiler_and_writes_into_its_own_cache() -> None:
    unit = only(spark_plan())["files"]["environment.conf"]
    assert "Environment=CUDA_HOME=/usr/local/cuda\n" in unit
    assert re.search(r"Environment=PATH=/opt/enplace/environments/\w+/bin:/usr/local/cuda/bin:", unit)
    assert "Environment=FLASHINFER_WORKSPACE_BASE=/var/cache/enplace/qwen-qwen3-coder-next-spark-nvfp4-eagle3\n" in unit
    assert "CUDA" not in only(plan())["files"]["environment.conf"]


def test_memory_that_the_estimate_says_is_not_enough_is_refused() -> None:
    recipe, chosen = pinned(), spark_settings()
    made = planner.make_plan(spark(recipe), spark_facts(recipe))
    (server,) = made["servers"].values()
    needed = server["memory_estimate_bytes"]
    # 43.2 GiB resident and a KV pool of 8 GiB.
    assert 51 * 1024**3 < needed < 60 * 1024**3
    small = spark_facts(recipe, memory={"total_bytes": needed - 1})
    server["memory_bytes"] = 1
    (problem,) = planner.judge(made, small, chosen, "h")
    assert "cannot hold" in problem.what
    assert "enplace plan" in problem.todo
    assert planner.judge(made, spark_facts(recipe, memory={"total_bytes": needed}), chosen, "h") == []


def test_memory_of_the_accelerator_is_not_the_hosts() -> None:
    engine = load_engine("vllm-gaudi", "0.26.0")
    assert planner.memory_needed(next_model(), "gaudi2-bf16-tp4", engine) is None


def refused(recipe: Recipe, variant: str, **changes: Any) -> list[str]:
    return [str(problem) for problem in planner.refusals(recipe, variant, spark_settings(**changes))]


def test_models_without_a_commit_are_refused_with_what_to_do() -> None:
    found = refused(next_model(), SPARK)
    assert len(found) == 2
    for text, part in zip(found, ("weights", "draft"), strict=True):
        assert f"variants.{SPARK}.{part}.revision: the commit of the {part} is not known" in text
        assert re.search(r"recipe\.yaml:\d+:\d+ ", text)
        assert f"run enplace pin Qwen/Qwen3-Coder-Next:{SPARK}" in text
        assert "enplace_allow_unpinned: true" in text
    assert refused(next_model(), SPARK, allow_unpinned=True) == []
    assert refused(pinned(), SPARK) == []


def test_what_this_version_cannot_do_is_refused_as_a_whole() -> None:
    found = "\n".join(refused(next_model(), "gaudi2-bf16-tp4", allow_unpinned=True))
    assert "this version of enplace does not apply fixes yet" in found
    assert "this version of enplace does not build an engine from its sources yet" in found
    assert "enplace render Qwen/Qwen3-Coder-Next:gaudi2-bf16-tp4 --shell" in found
    two = changed(pinned(), SPARK, lambda variant: variant.update({"nodes": 2}))
    (text,) = refused(two, SPARK)
    assert "this version of enplace does not serve over several hosts yet" in text


def test_every_recipe_that_ships_is_applied_or_refused_with_a_reason() -> None:
    for path in sorted(RECIPES.glob("*/*/recipe.yaml")):
        recipe, _ = find_recipe("/".join(path.parts[-3:-1]) + ":" + next(iter(_variants(path))), [RECIPES])
        for variant in recipe.variants:
            errors = [problem for problem in planner.lint(recipe, variant) if problem.severity == "error"]
            assert errors == []
            for problem in planner.refusals(recipe, variant, spark_settings()):
                assert problem.todo
                assert problem.found


def _variants(path: Any) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["variants"])


def test_what_is_not_pinned_is_looked_up_for_one_run_and_every_run_says_so() -> None:
    asked = []

    def look_up(repository: str, include: Any) -> tuple[str, list[dict[str, Any]]]:
        asked.append((repository, list(include)))
        return ("c" if "Aurora" in repository else "d") * 40, [{"path": "x", "bytes": 5, "sha256": "e" * 64}]

    recipe = next_model()
    before = copy.deepcopy(recipe.document.data)
    with_include = changed(recipe, SPARK, lambda variant: variant["draft"].update({"include": ["*.json"]}))
    found, warnings = planner.pin_in_memory(with_include, SPARK, look_up)
    variant = recipe.variants[SPARK]
    assert asked == [(variant["weights"]["repository"], []), (variant["draft"]["repository"], ["*.json"])]
    assert found.variants[SPARK]["weights"]["revision"] == "d" * 40
    assert found.variants[SPARK]["draft"]["files"] == [{"path": "x", "bytes": 5, "sha256": "e" * 64}]
    assert [("c" * 40 in text, "d" * 40 in text) for text in warnings] == [(False, True), (True, False)]
    assert recipe.document.data == before
    made = planner.make_plan(spark(found), spark_facts(found))
    assert [model["revision"][0] for model in made["weights"]["models"]] == ["d", "c"]


def test_what_is_pinned_is_not_looked_up() -> None:
    def look_up(_repository: str, _include: Any) -> Any:
        raise AssertionError("nobody asked")

    recipe = pinned()
    assert planner.pin_in_memory(recipe, SPARK, look_up) == (recipe, [])


def test_the_assertions_of_the_engine_go_with_the_environment() -> None:
    made = plan()
    manifest = load_engine("vllm", "0.28.0").data["platforms"][0]
    assert made["environments"][0]["assertions"] == manifest["assertions"]


def test_a_unit_can_be_shown_without_a_host_and_before_anything_is_pinned() -> None:
    text = planner.unit_text(next_model(), SPARK, spark_settings())
    assert "/opt/enplace/environments/@environment@/bin/vllm serve" in text
    assert "/snapshots/unpinned" in text
    made = plan()
    smoke_text = planner.unit_text(
        smoke(),
        "cpu",
        settings(),
        environment_path=Path(made["environments"][0]["path"]),
        release_path=Path(only(made)["path"]),
    )
    files = only(made)["files"]
    assert smoke_text == f"{files['unit.service']}\n{files['environment.conf']}"


def test_the_smoke_variant_has_no_finding_to_warn_of() -> None:
    assert planner.lint(smoke(), "cpu") == []
    assert planner.refusals(smoke(), "cpu", settings()) == []
