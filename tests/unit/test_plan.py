# SPDX-License-Identifier: Apache-2.0
"""From recipe, settings and facts to a plan, and everything that can be wrong before anything is changed."""

from __future__ import annotations

import copy
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
