# SPDX-License-Identifier: Apache-2.0
"""The main job end to end: from a bare host to a served, checked model, through the real site.yml, in this order.

Real: systemd, sshd, apt, uv, hf, vLLM on the CPU. Simulated: the model hub, and that the host is a container.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sim.demo import curl_line
from tests.sim.lab import Lab

from .conftest import changes, state_of
from .plays import ROOT, Play

pytestmark = pytest.mark.e2e

Run = Callable[..., Play]
# SSH executions that a run over a converged host may need. Seconds are measured by make bench.
MOST_EXECUTIONS = 8
UNIT = "/usr/local/lib/systemd/system/enplace-enplace-smoke-cpu.service"
RECIPES = ROOT / "recipes"
# The checks that the demo's recipe asks for: every one there is but that of a draft.
CHECKS = [
    *("identity", "known_answers", "known_answers_in_flight", "logprobs", "usage", "tool_call", "tool_call_streamed"),
    *("tool_result", "prompt_logprobs", "json_schema", "logit_bias", "min_p", "min_tokens", "bad_words", "seed"),
    *("prefix_cache", "needles", "kv_pool", "log_line", "log_line", "libraries", "no_errors", "healthy"),
]
# What check mode says in other words, since the thing itself needs what is not there yet.
FORETOLD_AS = {"Announce the missing packages": "Install the missing packages"}
ON_THE_CONTROLLER = ["Make the host's folder of reports", "Write the report"]


class Demo:
    """What the first runs found, for the tests after them."""

    predicted: list[str]
    first: Play


def folder_with(tmp_path: Path, change: Callable[[str], str], *more: object) -> list[str]:
    """Arguments that make the run read a changed copy of the smoke recipe. `more`: further entries of the host."""
    folder = tmp_path / "recipes"
    target = folder / "enplace" / "smoke"
    target.mkdir(parents=True)
    before = (RECIPES / "enplace" / "smoke" / "recipe.yaml").read_text(encoding="utf-8")
    after = change(before)
    assert after != before
    (target / "recipe.yaml").write_text(after, encoding="utf-8")
    extra = json.dumps({"enplace_recipe_folders": [str(folder)], "enplace_recipes": ["enplace/smoke:cpu", *more]})
    path = tmp_path / "extra.json"
    path.write_text(extra, encoding="utf-8")
    return ["-e", f"@{path}"]


def says(result: Play, *parts: str) -> None:
    """The run failed once, with one message that holds all the parts and tells what to do."""
    assert result.rc != 0
    assert len(result.failed) == 1, result.text
    for part in (*parts, "what to do: "):
        assert part in result.message, result.message


def ask(url: str, seconds: float = 0, model: str = "enplace/smoke") -> str:
    """The answer of the printed curl line, asked again until `seconds` have passed."""
    end = time.monotonic() + seconds
    while True:
        done = subprocess.run(
            ["sh", "-c", curl_line(url, model)], capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode == 0 and '"choices"' in done.stdout:
            return str(json.loads(done.stdout)["choices"][0]["message"]["content"])
        if time.monotonic() >= end:
            raise AssertionError(f"no answer: curl ended with {done.returncode}: {done.stdout}{done.stderr}")
        time.sleep(2)


# ---- a bare host, and what must leave it bare


def test_a_mistake_in_the_recipe_leaves_the_host_as_it_was(lab: Lab, demo: str, run: Run, tmp_path: Path) -> None:
    before = state_of(lab, demo)
    result = run("-l", demo, *folder_with(tmp_path, lambda text: text.replace("    ready:", "    redy:")))
    assert result.rc != 0
    assert "variants.cpu.redy: unknown key" in result.message
    assert "did you mean ready?" in result.message
    assert re.search(r"recipe\.yaml:\d+:\d+ ", result.message)
    assert changes(before, state_of(lab, demo)) == []


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("max-num-seqs: 8", "max-num-sqs: 8", ("vllm 0.28.0 has no flag max-num-sqs", "did you mean max-num-seqs?")),
        ("max-model-len: 4096", "max-model-len: 16384", ("max-model-len", "8192")),
        ("cpu:\n    summary", "cpu:\n    nodes: 2\n    summary", ("nodes",)),
    ],
    ids=["a flag that the engine has not", "more context than the model has", "what this version cannot do"],
)
def test_a_recipe_that_cannot_work_leaves_the_host_as_it_was(
    lab: Lab, demo: str, run: Run, tmp_path: Path, old: str, new: str, parts: tuple[str, ...]
) -> None:
    before = state_of(lab, demo)
    result = run("-l", demo, *folder_with(tmp_path, lambda text: text.replace(old, new)))
    assert result.rc != 0
    for part in (*parts, "nothing was changed on the host", "what to do: "):
        assert part in result.message, result.message
    assert changes(before, state_of(lab, demo)) == []


def test_weights_without_a_commit_leave_the_host_as_it_was(lab: Lab, demo: str, run: Run, tmp_path: Path) -> None:
    def unpinned(text: str) -> str:
        head, tail = text.split("      revision: ", 1)
        return f"{head}      revision: unpinned\n    environment:{tail.split('    environment:', 1)[1]}"

    before = state_of(lab, demo)
    says(run("-l", demo, *folder_with(tmp_path, unpinned)), "enplace pin", "enplace_allow_unpinned")
    assert changes(before, state_of(lab, demo)) == []


def test_a_recipe_that_is_not_there_leaves_the_host_as_it_was(lab: Lab, demo: str, run: Run) -> None:
    before = state_of(lab, demo)
    says(
        run("-l", demo, "-e", '{"enplace_recipes": ["enplace/smoek:cpu"]}'),
        "no such recipe",
        "did you mean enplace/smoke?",
    )
    assert changes(before, state_of(lab, demo)) == []


def test_a_misspelt_variable_leaves_the_host_as_it_was(lab: Lab, demo: str, run: Run) -> None:
    before = state_of(lab, demo)
    says(run("-l", demo, "-e", "enplace_prot=9000"), "enplace_prot: unknown variable", "did you mean enplace_port?")
    assert changes(before, state_of(lab, demo)) == []


def test_a_port_in_use_leaves_the_host_as_it_was(lab: Lab, demo: str, run: Run) -> None:
    holder = [
        "systemd-run",
        "--unit",
        "holder",
        "--quiet",
        "python3",
        "-m",
        "http.server",
        "--directory",
        "/srv",
        "8000",
    ]
    assert lab.exec(demo, holder).returncode == 0
    try:
        before = state_of(lab, demo)
        says(run("-l", demo), "port 8000: is in use", "unit holder.service", "a free port")
        assert changes(before, state_of(lab, demo)) == []
    finally:
        assert lab.exec(demo, ["systemctl", "stop", "holder"]).returncode == 0


def test_a_host_without_room_is_left_as_it_was(lab: Lab, run: Run, inventory_for: Callable[[str], Path]) -> None:
    lab.up("tight", tmpfs={"/opt": "64m"})
    before = state_of(lab, "tight")
    result = run("-l", "tight", "-i", str(inventory_for("tight")))
    says(result, "/opt: has not enough free space", "the environment 3.4 GB", "found: 0.1 GB")
    assert changes(before, state_of(lab, "tight")) == []
    lab.down("tight")


def test_a_host_without_a_network_is_left_as_it_was(lab: Lab, run: Run, inventory_for: Callable[[str], Path]) -> None:
    lab.up("closed", network=False)
    before = state_of(lab, "closed")
    result = run("-l", "closed", "-i", str(inventory_for("closed")))
    says(result, "closed network: http://hub.enplace.test:8080 cannot be reached", "set enplace_hub_endpoint")
    assert changes(before, state_of(lab, "closed")) == []
    lab.down("closed")


def test_check_mode_on_a_bare_host_changes_nothing_and_tells_what_would_change(lab: Lab, demo: str, run: Run) -> None:
    before = state_of(lab, demo)
    result = run("-l", demo, "--check", "--diff")
    assert result.rc == 0, result.text
    assert changes(before, state_of(lab, demo)) == []
    assert "ExecStart=/opt/enplace/environments/" in result.text, "the diff shows the unit"
    Demo.predicted = result.changed


# ---- the run itself, and what must hold after it


def test_a_bare_host_becomes_a_checked_server(lab: Lab, demo: str, run: Run) -> None:
    result = run("-l", demo)
    assert result.rc == 0, result.text
    Demo.first = result
    report = json.loads((ROOT / "reports" / demo / "enplace-smoke-cpu.json").read_text(encoding="utf-8"))
    assert [check["name"] for check in report["checks"]] == CHECKS
    assert {check["status"] for check in report["checks"]} == {"pass"}
    on_host = lab.exec(demo, ["cat", "/var/lib/enplace/reports/enplace-smoke-cpu/latest.json"]).stdout
    assert json.loads(on_host) == report
    print(f"\nfrom bare to checked: {result.seconds:.0f} s, {result.ssh_executions} SSH executions")


def test_check_mode_told_the_truth(demo: str) -> None:
    on_the_host = [task for task in Demo.first.changed if task not in ON_THE_CONTROLLER]
    assert on_the_host == [FORETOLD_AS.get(task, task) for task in Demo.predicted]


def test_the_demo_ends_with_a_line_that_works_as_printed(lab: Lab, demo: str) -> None:
    command = [sys.executable, "-m", "tests.sim.demo"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert f"{len(CHECKS)} of {len(CHECKS)} passed" in shown.stdout
    assert f"address    http://{lab.address(demo)}:8000" in shown.stdout
    line = shown.stdout.rstrip().splitlines()[-1]
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "Paris"


def test_the_server_is_a_unit_of_its_own(lab: Lab, demo: str) -> None:
    show = lab.exec(
        demo, ["systemctl", "show", "-p", "User,ActiveState,UnitFileState,NRestarts", "enplace-enplace-smoke-cpu"]
    )
    assert dict(line.split("=", 1) for line in show.stdout.splitlines()) == {
        "User": "enplace",
        "ActiveState": "active",
        "UnitFileState": "enabled",
        "NRestarts": "0",
    }
    assert lab.exec(demo, ["systemd-analyze", "verify", UNIT]).stderr == ""


def test_a_second_run_changes_nothing_and_asks_little(demo: str, run: Run) -> None:
    result = run("-l", demo)
    assert result.rc == 0, result.text
    assert result.changed == []
    assert "changed=0" in result.recap
    assert 0 < result.ssh_executions <= MOST_EXECUTIONS
    print(f"\nconverged: {result.seconds:.1f} s, {result.ssh_executions} SSH executions")


def test_check_mode_on_a_converged_host_finds_nothing(lab: Lab, demo: str, run: Run) -> None:
    before = state_of(lab, demo)
    result = run("-l", demo, "--check", "--diff")
    assert (result.rc, result.changed) == (0, []), result.text
    assert changes(before, state_of(lab, demo)) == []


def status(run: Run, demo: str, *arguments: str) -> Play:
    return run("-l", demo, *arguments, playbook="playbooks/status.yml")


def test_status_says_what_is_served_and_changes_nothing(lab: Lab, demo: str, run: Run) -> None:
    before = state_of(lab, demo)
    result = status(run, demo)
    assert (result.rc, result.changed) == (0, []), result.text
    for part in (f"{demo}: as planned", "enplace/smoke:cpu", f"{len(CHECKS)} of {len(CHECKS)} passed", "active since"):
        assert part in result.text, result.text
    assert changes(before, state_of(lab, demo)) == []


def verify(run: Run, demo: str, **variables: object) -> Play:
    extra = json.dumps({f"enplace_verify_{name}": value for name, value in variables.items()})
    return run("-l", demo, "-e", extra, playbook="playbooks/verify.yml")


def test_the_full_suite_asks_everything_and_changes_nothing_but_its_report(lab: Lab, demo: str, run: Run) -> None:
    before = state_of(lab, demo)
    result = verify(run, demo)
    assert result.rc == 0, result.text
    report = json.loads((ROOT / "reports" / demo / "enplace-smoke-cpu.full.json").read_text(encoding="utf-8"))
    assert [(check["name"], check["status"]) for check in report["checks"]] == [(name, "pass") for name in CHECKS]
    assert report["subject"]["suite"] == "full"
    reports = "/var/lib/enplace/reports/enplace-smoke-cpu"
    changed = [line for line in changes(before, state_of(lab, demo)) if reports not in line]
    assert changed == []
    assert json.loads(lab.exec(demo, ["cat", f"{reports}/full/latest.json"]).stdout) == report
    # The report of what serves is another one, and still holds.
    assert run("-l", demo).changed == []


def test_a_server_is_verified_by_its_address_alone(lab: Lab, demo: str, run: Run) -> None:
    url = f"http://{lab.address(demo)}:8000"
    checks = [
        {"check": "identity", "version": "0.28.0"},
        {"check": "usage", "ask": "How old are you?"},
        {"check": "healthy"},
    ]
    before = state_of(lab, demo)
    result = verify(run, demo, url=url, model="enplace/smoke", checks=checks)
    assert result.rc == 0, result.text
    result = verify(run, demo, url=url, model="enplace/smoke", checks=[*checks, {"check": "no_errors"}])
    assert result.rc != 0
    assert "no_errors: not run, it looks at the systemd unit" in result.text
    assert verify(run, demo, url="http://127.0.0.1:9", model="m", checks=checks).rc != 0
    assert changes(before, state_of(lab, demo)) == []


def test_a_flipped_bit_is_named_by_a_deep_status_and_stops_a_deep_run(lab: Lab, demo: str, run: Run) -> None:
    find = "echo /opt/enplace/environments/*/lib/python3*/site-packages/vllm/version.py"
    path = lab.exec(demo, ["sh", "-c", find]).stdout.strip()
    flip = (
        "import os,sys; p=sys.argv[1]; s=os.stat(p); b=bytearray(open(p,'rb').read()); b[-2]^=1;"
        " open(p,'wb').write(b); os.utime(p,ns=(s.st_atime_ns,s.st_mtime_ns))"
    )
    assert lab.exec(demo, ["python3", "-c", flip, path]).returncode == 0
    try:
        assert status(run, demo).rc == 0, "sizes and records are as they were"
        result = status(run, demo, "-e", "enplace_deep=true")
        assert result.rc != 0
        assert f"environments: file {path}" in result.text
        assert "differences named above: 1" in result.message
        assert status(run, demo, "-e", "enplace_deep=true", "-e", "enplace_status_fail=false").rc == 0
        says(run("-l", demo, "-e", "enplace_deep=true"), path, "expected: sha256 ", "found: sha256 ")
    finally:
        assert lab.exec(demo, ["python3", "-c", flip, path]).returncode == 0
    result = status(run, demo, "-e", "enplace_deep=true")
    assert result.rc == 0, result.text


def test_what_somebody_changed_is_named_and_put_right_without_a_restart(lab: Lab, demo: str, run: Run) -> None:
    invocation = ["systemctl", "show", "-p", "InvocationID", "--value", "enplace-enplace-smoke-cpu"]
    before = lab.exec(demo, invocation).stdout
    assert lab.exec(demo, ["systemctl", "disable", "enplace-enplace-smoke-cpu"]).returncode == 0
    result = status(run, demo)
    assert result.rc != 0
    assert "property UnitFileState enplace-enplace-smoke-cpu.service" in result.text
    result = run("-l", demo)
    assert result.changed == ["Bring the release into service, or keep what serves"], result.text
    assert lab.exec(demo, invocation).stdout == before
    assert status(run, demo).rc == 0


def test_a_second_recipe_with_a_draft_comes_and_goes_beside_the_first(lab: Lab, demo: str, run: Run) -> None:
    invocation = ["systemctl", "show", "-p", "InvocationID", "--value", "enplace-enplace-smoke-cpu"]
    before = lab.exec(demo, invocation).stdout
    dense = {"recipe": "enplace/smoke-dense:cpu", "port": 8001}
    arguments = ["-e", json.dumps({"enplace_recipes": ["enplace/smoke:cpu", dense]})]
    result = run("-l", demo, *arguments)
    assert result.rc == 0, result.text
    # No environment: it shares that of the first.
    activated = ["Bring the release into service, or keep what serves", "Write the report"]
    assert result.changed == ["Fetch the weights", *activated]
    report = json.loads((ROOT / "reports" / demo / "enplace-smoke-dense-cpu.json").read_text(encoding="utf-8"))
    found = {check["name"]: check["status"] for check in report["checks"]}
    # An engine with a draft refuses these two, as the recipe says.
    assert {name for name, status in found.items() if status == "refused"} == {"logit_bias", "min_p"}
    assert (found["draft"], report["all_passed"]) == ("pass", True)
    for port, model in ((8000, "enplace/smoke"), (8001, "enplace/smoke-dense")):
        assert ask(f"http://{lab.address(demo)}:{port}", model=model) == "Paris"
    assert lab.exec(demo, invocation).stdout == before
    again = run("-l", demo, *arguments)
    assert (again.rc, again.changed) == (0, []), again.text
    assert again.ssh_executions <= MOST_EXECUTIONS
    print(f"\nconverged, two recipes: {again.seconds:.1f} s, {again.ssh_executions} SSH executions")
    # Without it in the list it is taken out of service.
    result = run("-l", demo)
    assert result.changed == ["Bring the release into service, or keep what serves"], result.text
    assert lab.exec(demo, ["systemctl", "is-active", "enplace-enplace-smoke-dense-cpu"]).returncode != 0
    assert lab.exec(demo, invocation).stdout == before
    assert run("-l", demo).changed == []
    # Its weights and its draft go when somebody says so; those of the first are not touched.
    cached = ["find", "/var/lib/enplace/hub", "-name", "*smoke-dense*", "-o", "-name", "*smoke-eagle3*"]
    assert "models--enplace--smoke-eagle3" in lab.exec(demo, cached).stdout
    what = ["-e", f"enplace_teardown={dense['recipe']}", "-e", "enplace_teardown_weights=true"]
    result = run("-l", demo, *what, playbook="playbooks/teardown.yml")
    assert result.rc == 0, result.text
    assert lab.exec(demo, cached).stdout == ""
    assert lab.exec(demo, invocation).stdout == before
    assert run("-l", demo).changed == []


def test_a_server_with_a_key_stands_by_and_is_verified_in_the_place_of_the_first(
    lab: Lab, demo: str, run: Run, tmp_path: Path
) -> None:
    def few_checks(text: str) -> str:
        head, body = text.split("  cpu:\n", 1)
        before, rest = body.split("    checks:\n", 1)
        few = (
            "    checks:\n      - check: identity\n      - {check: usage, ask: Who are you?}\n      - check: healthy\n"
        )
        return f"{head}  cpu:\n{body}\n  cpu2:\n{before}{few}    notes:{rest.split('    notes:', 1)[1]}"

    key = "of-the-standby-server-0123456789"
    path = "/etc/enplace-standby-key"
    lab.exec(demo, ["sh", "-c", f"umask 077; cat > {path}"], stdin=key + "\n")
    entry = {"recipe": "enplace/smoke:cpu2", "port": 8001, "standby": True, "api_key_file": path}
    arguments = folder_with(tmp_path, few_checks, entry)
    result = run("-l", demo, *arguments)
    assert result.rc == 0, result.text
    # Neither an environment nor weights: it shares those of the first.
    assert not {"Make the environment", "Fetch the weights"} & set(result.changed)
    states = ["systemctl", "is-active", "enplace-enplace-smoke-cpu", "enplace-enplace-smoke-cpu2"]
    assert lab.exec(demo, states).stdout.split() == ["active", "inactive"]
    assert (again := run("-l", demo, *arguments)).changed == [], again.text
    extra = json.dumps(
        {"enplace_verify_standby": True, "enplace_verify_without": sorted({*CHECKS} - {"identity", "usage"})}
    )
    result = run("-l", demo, *arguments, "-e", extra, playbook="playbooks/verify.yml")
    assert result.rc == 0, result.text
    report = json.loads((ROOT / "reports" / demo / "enplace-smoke-cpu2.full.json").read_text(encoding="utf-8"))
    assert [(check["name"], check["status"]) for check in report["checks"]] == [("identity", "pass"), ("usage", "pass")]
    assert lab.exec(demo, states).stdout.split() == ["active", "inactive"]
    assert ask(f"http://{lab.address(demo)}:8000") == "Paris"
    assert key not in result.text + json.dumps(report)
    # It is another run of the first one's unit: that is checked anew.
    result = run("-l", demo)
    assert result.rc == 0, result.text
    assert lab.exec(demo, states).stdout.split() == ["active", "inactive"]
    assert run("-l", demo).changed == []


def test_a_wrong_sha256_leaves_the_server_as_it_was(lab: Lab, demo: str, run: Run, tmp_path: Path) -> None:
    recipe: Any = yaml.safe_load((RECIPES / "enplace" / "smoke" / "recipe.yaml").read_text(encoding="utf-8"))
    entry = next(f for f in recipe["variants"]["cpu"]["weights"]["files"] if f["path"] == "model.safetensors")
    before = state_of(lab, demo)
    wrong = "ab" * 32
    result = run("-l", demo, *folder_with(tmp_path, lambda text: text.replace(entry["sha256"], wrong)))
    assert result.rc != 0
    for part in ("model.safetensors", wrong, entry["sha256"], "what to do"):
        assert part in result.message, result.message
    assert changes(before, state_of(lab, demo)) == []
    assert ask(f"http://{lab.address(demo)}:8000") == "Paris"


def test_the_server_comes_back_by_itself_when_the_host_is_started_anew(lab: Lab, demo: str, run: Run) -> None:
    def start_again() -> None:
        # What a machine does by itself when it is told to reboot; a container only ends.
        end = time.monotonic() + 300
        while lab.host(demo).state != "exited" and time.monotonic() < end:
            time.sleep(0.5)
        lab.start(demo)

    machine = threading.Thread(target=start_again)
    machine.start()
    quick = {"identity", "known_answers", "no_errors", "healthy"}
    result = verify(run, demo, reboot=True, suite="gate", without=sorted(set(CHECKS) - quick))
    machine.join()
    assert result.rc == 0, result.text
    report = json.loads((ROOT / "reports" / demo / "enplace-smoke-cpu.gate.json").read_text(encoding="utf-8"))
    assert report["host"]["started_anew"] is True
    assert ask(f"http://{lab.address(demo)}:8000") == "Paris"
    # The report was of the run of the unit before; this one is checked anew, and that is a change.
    result = run("-l", demo)
    assert result.rc == 0, result.text
    assert result.changed == ["Run the checks, unless the stored report still holds", "Write the report"]


def test_the_built_collection_runs_from_an_empty_folder(
    demo: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The checkout's settings name the checkout's collection, which is the same version: nothing would be installed.
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    source = ROOT / "collection" / "ansible_collections" / "enplace" / "inference"
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    empty = tmp_path / "empty"
    empty.mkdir()
    subprocess.run([str(galaxy), "collection", "build", str(source), "--output-path", str(tmp_path)], check=True)
    tarball = next(tmp_path.glob("*.tar.gz"))
    install = [str(galaxy), "collection", "install", str(tarball), "-p", str(empty / "collections")]
    subprocess.run(install, cwd=empty, check=True)
    inventory = tmp_path / "inventories" / "demo"
    shutil.copytree(ROOT / "inventories" / "demo", inventory)
    variables = inventory / "group_vars" / "demo.yml"
    variables.write_text(
        variables.read_text(encoding="utf-8").replace("{{ inventory_dir }}/../..", str(ROOT)), encoding="utf-8"
    )
    result = run(
        "-l",
        demo,
        "-i",
        str(inventory),
        playbook="enplace.inference.site",
        folder=empty,
        environment={"ANSIBLE_COLLECTIONS_PATH": str(empty / "collections")},
    )
    assert result.rc == 0, result.text
    # The host was made by the checkout; the tarball finds nothing to do but to put the report where it runs.
    assert result.changed == ON_THE_CONTROLLER
    assert (empty / "reports" / demo / "enplace-smoke-cpu.json").is_file()
