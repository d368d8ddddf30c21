# SPDX-License-Identifier: Apache-2.0
"""The traps of accelerator hosts: each one found and not found, over the facts of recorded hosts."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.plugin_utils import traps
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import RECIPES, load_recipe
from ansible_collections.enplace.inference.plugins.plugin_utils.traps import Facts, Finding, Wish

from tests.sim.recorded import NAMES, Recorded

SPARK = Wish(["gb10"], {"nvidia": "580.159.03"}, "", "13.0", "3.12", "", 1, 62_599_148_339)
GAUDI = Wish(["gaudi2"], {}, "1.24.1-482", "", "3.12", "", 4, 192_000_000_000)
CPU = Wish(["cpu"], memory_bytes=10**9)
REACHED = {"reachable": [{"url": "https://developer.download.nvidia.com", "ok": True, "error": ""}]}
IDS = [trap.id for trap in traps.catalogue()]


def wish_for(name: str) -> Wish:
    return GAUDI if name.startswith("gaudi2") else CPU if name == "no-accelerator" else SPARK


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """The facts of a recorded host, the caller's own."""
    kept: dict[str, dict[str, Any]] = {}

    def facts(name: str) -> dict[str, Any]:
        if name not in kept:
            kept[name] = Recorded(name, tmp_path_factory.mktemp("host")).facts()
        return copy.deepcopy(kept[name])

    return facts


def changed(facts: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with other values at some paths; a number in a path is the place in a list."""
    for path, value in changes.items():
        *parents, last = path.split("/")
        found: Any = facts
        for key in parents:
            found = found[int(key)] if isinstance(found, list) else found[key]
        if callable(value):
            value = value(found[int(last) if isinstance(found, list) else last])
        found[int(last) if isinstance(found, list) else last] = value
    return facts


def without(*names: str) -> Callable[[Any], Any]:
    """The value without some of its keys, or items."""
    return lambda value: (
        {key: found for key, found in value.items() if key not in names}
        if isinstance(value, dict)
        else [found for found in value if found not in names]
    )


def with_(**more: Any) -> Callable[[Any], Any]:
    """The value with further keys; `_` stands for `-`."""
    return lambda value: {**value, **{key.replace("__", "-"): found for key, found in more.items()}}


def judged(id: str, facts: dict[str, Any], wish: Wish, host: Mapping[str, Any] = REACHED) -> Finding:
    (trap,) = [trap for trap in traps.catalogue() if trap.id == id]
    (finding,) = traps.judge(Facts(facts, host, wish), [trap])
    return finding


GB10_ROW = {
    "index": "0",
    "name": "NVIDIA GB10",
    "pci.bus_id": "0000000F:01:00.0",
    "driver_version": "580.159.03",
    "memory.total": None,
    "temperature.gpu": "36",
    "persistence_mode": "Enabled",
    "compute_cap": "12.1",
    "mig.mode.current": None,
}
OTHER_KERNEL = {"release": "6.17.0-1032-nvidia", "image": True, "initrd": True, "headers": True, "modules": {}}
MODULE = {"path": "updates/dkms/nvidia.ko", "version": "580.159.03", "signer": None, "license": ""}

# Trap, the host that it is not found on, what is changed of it, how it ends then, and a part of the evidence.
FOUND: list[tuple[str, str, dict[str, Any], str, str]] = [
    # System
    ("no-accelerator", "spark-right", {"pci": []}, "trap", "gb10"),
    ("no-accelerator", "gaudi2-right", {"pci": []}, "trap", "gaudi2"),
    ("no-accelerator", "spark-right", {"pci/0/device": "2330"}, "trap", "gb10"),
    (
        "apt-lock",
        "spark-right",
        {"apt/locks": [{"file": "/x/lock", "pid": 7, "program": "apt"}]},
        "trap",
        "apt (pid 7)",
    ),
    ("apt-lock", "spark-right", {"sources/locks/found": False}, "unknown", "/proc/locks"),
    ("dpkg-half-done", "spark-right", {"packages/broken": {"nvidia-x": "unpacked"}}, "trap", "nvidia-x unpacked"),
    (
        "unattended-driver",
        "spark-right",
        {"packages/held": [], "apt/unattended/blacklist": []},
        "warn",
        "nvidia-driver-580",
    ),
    (
        "unattended-driver",
        "spark-right",
        {"apt/unattended/enabled": None, "packages/held": []},
        "unknown",
        "apt.unattended.enabled",
    ),
    (
        "unattended-kernel",
        "gaudi2-right",
        {"packages/held": [], "apt/unattended/blacklist": []},
        "warn",
        "linux-image-6.8",
    ),
    ("no-holds", "gaudi2-right", {"packages/held": ["habanalabs-dkms"]}, "warn", "habanalabs-firmware"),
    ("vendor-source-twice", "spark-two-branches", {}, "trap", "cuda-ubuntu2404-sbsa.list"),
    ("vendor-source-key", "spark-right", {"apt/sources/0/signed_by": False}, "warn", "cuda-compute-repo.sources"),
    ("boot-full", "spark-right", {"boot/free_bytes": 200 * 2**20}, "trap", "200 MiB free"),
    ("boot-full", "spark-right", {"boot/largest_initrd_bytes": None, "boot/free_bytes": 2**28}, "trap", "512 MiB"),
    ("boot-full", "spark-right", {"boot/free_bytes": None}, "unknown", "boot.free_bytes"),
    ("reboot-required", "spark-right", {"boot/reboot_required": ["linux-base"]}, "warn", "linux-base"),
    ("kernel-headers", "gaudi2-right", {"kernel/installed/0/headers": False}, "trap", "6.8.0-138-generic"),
    ("secure-boot-module", "spark-secure-boot-no-key", {}, "trap", "not enrolled"),
    (
        "secure-boot-module",
        "spark-right",
        {"modules": without("nvidia"), "kernel/installed/0/modules/nvidia": MODULE},
        "trap",
        "has no signature",
    ),
    (
        "secure-boot-module",
        "spark-secure-boot-no-key",
        {"secure_boot/key_waits_for_reboot": True},
        "trap",
        "waits for a restart",
    ),
    ("secure-boot-module", "spark-right", {"secure_boot/enabled": None}, "unknown", "whether Secure Boot is on"),
    ("clock-wrong", "spark-right", {"clock/ahead_s": -3600.0}, "trap", "-3600 s"),
    ("clock-wrong", "spark-right", {"clock/behind_files_s": 86400.0}, "trap", "behind the package database"),
    ("clock-wrong", "spark-right", {"clock/ahead_s": None}, "unknown", "not given"),
    ("clock-not-synchronized", "spark-right", {"clock/synchronized": False}, "warn", "not synchronized"),
    ("locale", "spark-right", {"locale": {"LANG": "de_DE.ISO-8859-1"}}, "warn", "de_DE"),
    ("locale", "spark-right", {"locale": {}}, "warn", "none is set"),
    ("proxy-half", "spark-right", {"proxy": {"apt": "http://proxy:3128"}}, "warn", "system has none"),
    ("proxy-half", "spark-right", {"proxy": {"system": "http://proxy:3128"}}, "warn", "apt has none"),
    ("python-version", "spark-right", {"build/python_headers": {"3.10": True}}, "trap", "3.12 wanted"),
    ("python-headers", "spark-right", {"build/python_headers": {"3.12": False}}, "trap", "Python.h"),
    ("compiler", "gaudi2-right", {"build/tools": {"gcc": True, "g++": False}}, "trap", "g++"),
    ("glibc", "spark-right", {"packages/installed": with_(libc6="2.31-0ubuntu9")}, "trap", "2.31"),
    # NVIDIA
    ("nvidia-no-driver", "ubuntu-arm64-no-driver", {}, "trap", "none is installed"),
    ("nvidia-no-driver", "spark-secure-boot-no-key", {}, "trap", "though installed"),
    ("nvidia-no-driver", "spark-right", {"pci": []}, "trap", "no NVIDIA GPU"),
    ("nvidia-driver-version", "spark-right", {"driver/nvidia": "580.159.04"}, "trap", "580.159.04 is loaded"),
    ("nvidia-driver-version", "ubuntu-arm64-no-driver", {}, "unknown", "loaded driver"),
    (
        "nvidia-driver-candidate",
        "spark-right",
        {"apt/candidates": {"nvidia-driver-580-open": "580.159.04-1ubuntu1"}},
        "trap",
        "580.159.04-1ubuntu1",
    ),
    ("nvidia-driver-candidate", "spark-right", {"apt/candidates": {}}, "unknown", "apt knows no"),
    ("nvidia-two-branches", "spark-two-branches", {}, "trap", "580, 590"),
    ("nvidia-nouveau", "ubuntu-arm64-no-driver", {}, "trap", "000f:01:00.0"),
    ("nvidia-nouveau", "spark-right", {"modules": with_(nouveau="")}, "trap", "is loaded"),
    ("nvidia-module-running", "spark-right", {"kernel/installed/0/modules": {}}, "trap", "no module nvidia"),
    ("nvidia-module-running", "spark-right", {"kernel/installed/0/modules": None}, "unknown", "modules.dep"),
    ("nvidia-module-next", "spark-kernel-without-module", {}, "trap", "7.0.0-1019-nvidia"),
    ("nvidia-loaded-older", "spark-loaded-older", {}, "trap", "580.142 is loaded"),
    ("nvidia-library-mismatch", "spark-loaded-older", {}, "trap", "version mismatch"),
    (
        "nvidia-library-mismatch",
        "spark-right",
        {"packages/installed": with_(libnvidia__compute__580="580.173.02-0ubuntu0.24.04.1")},
        "trap",
        "580.173.02",
    ),
    ("nvidia-smi-fails", "spark-loaded-older", {}, "trap", "return code 18"),
    ("nvidia-smi-fails", "ubuntu-arm64-no-driver", {}, "trap", "not installed"),
    (
        "nvidia-count",
        "spark-right",
        {"counts/nvidia": {"pci": 2, "nodes": 1, "tool": 1, "differs": ["nodes", "tool"]}},
        "trap",
        "2 on the PCI bus",
    ),
    ("nvidia-device-nodes", "spark-secure-boot-no-key", {}, "trap", "/dev/nvidia0"),
    ("nvidia-device-nodes", "spark-right", {"nodes/nvidia_control": ["/dev/nvidiactl"]}, "warn", "/dev/nvidia-uvm"),
    ("nvidia-persistence", "spark-right", {"cards/nvidia/0/persistence_mode": "Disabled"}, "warn", "Disabled"),
    ("nvidia-persistence", "spark-right", {"cards/nvidia/0/persistence_mode": None}, "unknown", "does not say"),
    ("nvidia-memory-fields", "spark-right", {"cards/nvidia/0/memory.total": "8128"}, "warn", "8128 MiB"),
    ("nvidia-mig", "spark-right", {"cards/nvidia/0/mig.mode.current": "Enabled"}, "trap", "GPU 0"),
    ("nvidia-container-runtime", "spark-right", {"containers/runtimes": {}}, "warn", "no runtime nvidia"),
    ("nvidia-container-runtime", "spark-right", {"containers/error": "line 1"}, "trap", "is no JSON"),
    ("cuda-path", "spark-two-branches", {}, "trap", "leads to 13.2"),
    ("cuda-path", "spark-right", {"cuda": {"toolkits": {}, "default": ""}}, "trap", "no /usr/local/cuda"),
    ("cuda-compiler", "spark-right", {"cuda/nvcc": False}, "trap", "no nvcc"),
    ("gb10-open-module", "spark-right", {"driver/open": False}, "trap", "not the open one"),
    (
        "gb10-open-module",
        "ubuntu-arm64-no-driver",
        {"packages/installed": with_(nvidia__driver__580="580.173.02-0")},
        "trap",
        "nvidia-driver-580",
    ),
    ("gb10-driver-branch", "spark-right", {"driver/nvidia": "590.48.01"}, "warn", "deadlocks"),
    ("gb10-kernel-denied", "spark-kernel-without-module", {}, "warn", "7.0.0-1019-nvidia"),
    (
        "gb10-kernel-denied",
        "spark-kernel-without-module",
        {"kernel/running": "7.0.0-1019-nvidia"},
        "trap",
        "7.0.0-1019-nvidia runs",
    ),
    ("gb10-kernel-flavour", "ubuntu-arm64-no-driver", {}, "warn", "6.8.0-60-generic"),
    ("gb10-watchdog", "ubuntu-arm64-no-driver", {}, "warn", "sbsa_gwdt"),
    ("gb10-swap", "spark-factory", {}, "warn", "swappiness 60"),
    ("gb10-oom-daemon", "spark-right", {"earlyoom": ""}, "warn", "its defaults"),
    (
        "gb10-oom-daemon",
        "spark-right",
        {"units/systemd-oomd.service": {"LoadState": "loaded", "ActiveState": "active"}},
        "warn",
        "systemd-oomd",
    ),
    ("gb10-login-memory", "spark-factory", {}, "warn", "no MemoryMin"),
    ("gb10-login-memory", "spark-right", {"units/user.slice/MemoryMax": "8589934592"}, "warn", "MemoryMax"),
    ("gb10-memory-held", "spark-right", {"memory/available_bytes": 40 * 2**30}, "warn", "MemAvailable 40.0 GiB"),
    ("ninja", "spark-factory", {}, "warn", "no ninja"),
    # Gaudi
    ("gaudi-no-driver", "gaudi2-right", {"modules": {}}, "trap", "though installed"),
    ("gaudi-no-driver", "gaudi2-right", {"modules": {}, "packages/installed": {}}, "trap", "none is installed"),
    ("gaudi-no-driver", "gaudi2-right", {"pci": []}, "trap", "no Gaudi card"),
    ("gaudi-other-cards", "gaudi2-right", {"pci/1/device": "1060"}, "trap", "1060"),
    ("gaudi-too-few-cards", "gaudi2-right", {"pci": lambda found: found[:2]}, "trap", "2 on the bus, 4 wanted"),
    ("gaudi-count", "gaudi2-dead-card", {}, "trap", "3 device nodes"),
    ("gaudi-device-nodes", "gaudi2-right", {"nodes/habana": []}, "trap", "/dev/accel"),
    ("gaudi-device-nodes", "gaudi2-right", {"nodes/habana": ["/dev/hl0"]}, "trap", "/dev/hl0"),
    ("gaudi-card-dead", "gaudi2-dead-card", {}, "trap", "0 C"),
    ("gaudi-card-dead", "gaudi2-no-answers", {}, "unknown", "does not say"),
    ("gaudi-hl-smi-fails", "gaudi2-right", {"sources/hl-smi/found": False}, "trap", "not installed"),
    ("gaudi-hl-smi-fails", "gaudi2-right", {"sources/hl-smi/rc": 1}, "trap", "return code 1"),
    ("gaudi-hl-smi-silent", "gaudi2-no-answers", {}, "warn", "temperature.aip"),
    ("gaudi-mixed-packages", "gaudi2-mixed-releases", {}, "trap", "1.24.0-1007"),
    ("gaudi-release", "gaudi2-mixed-releases", {}, "trap", "1.24.0-9f8e7d6"),
    (
        "gaudi-release",
        "gaudi2-right",
        {"packages/installed": with_(habanalabs__dkms="1.24.1-480")},
        "trap",
        "1.24.1-480 is installed",
    ),
    ("gaudi-loaded-older", "gaudi2-mixed-releases", {}, "trap", "1.24.0-9f8e7d6 is loaded"),
    ("gaudi-module-running", "gaudi2-right", {"kernel/installed/0/modules": {}}, "trap", "no module habanalabs"),
    ("gaudi-module-next", "gaudi2-mixed-releases", {}, "trap", "6.17.0-20-generic"),
    ("gaudi-modules-loaded", "gaudi2-mixed-releases", {}, "trap", "habanalabs_ib, ib_uverbs"),
    ("gaudi-dkms", "gaudi2-mixed-releases", {}, "trap", "WARNING"),
    ("gaudi-firmware", "gaudi2-mixed-releases", {}, "trap", "1.20.0-fw-58.0.0"),
    (
        "gaudi-firmware",
        "gaudi2-right",
        {"accel": lambda cards: [{**card, "preboot_btl_ver": "hl-gaudi2-1.22.0-fw-61.3.2"} for card in cards]},
        "trap",
        "1.24.0-fw-62.6.2",
    ),
    ("gaudi-firmware", "gaudi2-no-answers", {}, "unknown", "/sys/class/accel"),
    ("gaudi-kernel", "gaudi2-right", {"kernel/running": "6.17.0-20-generic"}, "trap", "is for 6.8"),
    ("gaudi-kernel", "gaudi2-right", {"os/id": "debian"}, "warn", "none of Ubuntu"),
    ("gaudi-iommu", "gaudi2-right", {"iommu/types": {"0000:19:00.0": "DMA-FQ"}}, "trap", "DMA-FQ"),
    ("gaudi-iommu", "gaudi2-right", {"iommu/types": {}, "kernel/options": []}, "trap", "options none"),
    ("gaudi-iommu", "gaudi2-right", {"iommu": {"units": [], "types": {}}, "kernel/options": []}, "warn", "no IOMMU"),
    ("gaudi-huge-pages", "gaudi2-mixed-releases", {}, "trap", "HugePages_Total is 0"),
    ("gaudi-nics-down", "gaudi2-dead-card", {}, "trap", "ens2hl0"),
    ("gaudi-nics-down", "gaudi2-right", {"network": []}, "trap", "no network interface"),
    ("gaudi-nics-down", "gaudi2-right", {"network/2/up": None}, "unknown", "flags"),
    ("gaudi-rdma", "gaudi2-mixed-releases", {}, "trap", "/dev/infiniband"),
    ("gaudi-memlock", "gaudi2-right", {"limits/DefaultLimitMEMLOCK": "8388608"}, "warn", "8388608"),
    ("gaudi-container-runtime", "gaudi2-right", {"containers/runtimes": {}}, "warn", "no runtime habana"),
    ("gaudi-container-runtime", "gaudi2-mixed-releases", {}, "trap", "is no JSON"),
    ("gaudi-torch-cpu", "gaudi2-mixed-releases", {}, "trap", "2.11.0+cpu"),
    ("gaudi-torch-cpu", "gaudi2-right", {"torch/0/habana": ""}, "trap", "missing"),
]

# Hosts as they should be: each trap is looked at on one of them at least, and not found on either.
NOT_FOUND = {"spark-right": SPARK, "gaudi2-right": GAUDI}


@pytest.mark.parametrize(
    ("id", "name", "changes", "status", "part"), FOUND, ids=[f"{n}-{case[0]}" for n, case in enumerate(FOUND)]
)
def test_a_trap_is_found(recorded: Any, id: str, name: str, changes: dict[str, Any], status: str, part: str) -> None:
    found = judged(id, changed(recorded(name), changes), wish_for(name))
    assert (found.status, part in found.evidence) == (status, True), found
    assert found.todo


@pytest.mark.parametrize("id", IDS)
def test_a_trap_is_not_found(recorded: Any, id: str) -> None:
    found = [judged(id, recorded(name), wish) for name, wish in NOT_FOUND.items()]
    assert {finding.status for finding in found} <= {"ok", "not applicable"}, found
    assert "ok" in {finding.status for finding in found}
    assert {finding.todo for finding in found} == {""}


def test_a_repository_that_cannot_be_reached(recorded: Any) -> None:
    facts = recorded("spark-right")
    away = {"reachable": [{"url": "https://vault.example", "ok": False, "error": "timed out"}]}
    assert judged("repository-unreachable", facts, SPARK, away).status == "warn"
    assert judged("repository-unreachable", facts, SPARK, {}).status == "unknown"
    assert judged("repository-unreachable", facts, SPARK, {"reachable": []}).status == "not applicable"


def test_each_trap_has_both() -> None:
    found = {id for id, _name, _changes, status, _part in FOUND if status in ("trap", "warn")}
    # Its facts are those of host_facts; it has a test of its own.
    assert set(IDS) - found == {"repository-unreachable"}
    assert found <= set(IDS)


def test_there_are_enough_and_each_is_told_in_full() -> None:
    assert len(IDS) >= 40
    assert len(set(IDS)) == len(IDS)
    for trap in traps.catalogue():
        assert trap.platform in traps.PLATFORMS
        assert trap.summary.endswith("."), trap.id
        assert trap.todo, trap.id
        assert trap.source, trap.id


@pytest.mark.parametrize("id", IDS)
def test_what_is_unknown_is_never_ok(id: str) -> None:
    for wish in (SPARK, GAUDI, CPU, Wish()):
        assert judged(id, {}, wish, {}).status in ("unknown", "not applicable")
        # The wish alone says that nothing is to be looked at; no facts may say so.
        if judged(id, {}, wish, {}).status == "not applicable":
            assert id in ("no-accelerator", "python-version")


@pytest.mark.parametrize("name", ["spark-right", "gaudi2-right"])
def test_a_fact_that_is_missing_makes_nothing_better(recorded: Any, name: str) -> None:
    """Each part of the facts is taken away in turn: a trap that was ok may become unknown, and none becomes a trap."""
    for part in recorded(name):
        facts = recorded(name)
        del facts[part]
        for finding in traps.judge(Facts(facts, REACHED, wish_for(name))):
            assert finding.status in ("ok", "unknown", "not applicable"), (part, finding)


def test_a_port_without_a_cable_and_a_kernel_without_handover_are_well(recorded: Any) -> None:
    facts = changed(recorded("gaudi2-right"), {"network/1/state": "down"})
    assert judged("gaudi-nics-down", facts, GAUDI).evidence == "4 of 4 are up, 3 have a link"
    facts = changed(recorded("spark-kernel-without-module"), {"kernel/running": "7.0.0-1019-nvidia"})
    facts["kernel"]["options"] = ["kho=off"]
    assert judged("gb10-kernel-denied", facts, SPARK).status == "ok"


def test_a_gpu_with_memory_of_its_own_must_say_how_much(recorded: Any) -> None:
    facts = changed(recorded("spark-right"), {"pci/0/device": "2330"})
    assert judged("nvidia-memory-fields", facts, Wish()).status == "trap"
    facts["cards"]["nvidia"][0]["memory.total"] = "81559"
    assert judged("nvidia-memory-fields", facts, Wish()).status == "ok"
    assert judged("gb10-swap", facts, Wish()).status == "not applicable"


@pytest.mark.parametrize("name", NAMES)
def test_every_recording_is_judged_as_it_was_meant(recorded: Any, name: str) -> None:
    numbers = traps.counted(traps.judge(Facts(recorded(name), REACHED, wish_for(name))))
    expected = {
        "spark-right": (0, 0, 0),
        "gaudi2-right": (0, 0, 0),
        "no-accelerator": (0, 0, 0),
        "spark-factory": (3, 6, 0),
        "ubuntu-arm64-no-driver": (12, 8, 7),
        "spark-two-branches": (5, 3, 0),
        "spark-kernel-without-module": (1, 2, 0),
        "spark-loaded-older": (4, 0, 4),
        "spark-secure-boot-no-key": (4, 0, 6),
        "gaudi2-dead-card": (3, 0, 0),
        "gaudi2-mixed-releases": (12, 1, 0),
        "gaudi2-no-answers": (0, 1, 6),
    }
    assert (numbers["trap"], numbers["warn"], numbers["unknown"]) == expected[name]


def test_what_must_be_done_first_comes_first(recorded: Any) -> None:
    statuses = [finding.status for finding in traps.judge(Facts(recorded("spark-factory"), REACHED, SPARK))]
    assert statuses == sorted(statuses, key=traps.STATUSES.index)


# The wish, and facts as a file ---------------------------------------------------------------------------------------


def test_the_wish_is_that_of_the_recipes() -> None:
    recipe = load_recipe(RECIPES / "Qwen" / "Qwen3-Coder-Next" / "recipe.yaml")
    found = traps.wish_of([recipe.variants["spark-nvfp4-eagle3"]])
    assert found == replace(SPARK, memory_bytes=found.memory_bytes)
    both = traps.wish_of([recipe.variants["gaudi2-bf16-tp4"], recipe.variants["spark-nvfp4-eagle3"]])
    assert (both.accelerators, both.cards, both.gaudi_software) == (["gaudi2", "gb10"], 4, "1.24.1")
    assert traps.wish_of([]) == replace(Wish(), accelerators=[])


def test_facts_go_into_a_file_and_come_back(recorded: Any) -> None:
    facts = Facts(recorded("spark-factory"), REACHED, SPARK)
    findings = traps.judge(facts)
    written = json.loads(json.dumps(traps.document("spark", facts, findings)))
    host, read = traps.facts_of(written)
    assert host == "spark"
    assert traps.judge(read) == findings
    assert written["findings"][0]["status"] == "trap"


def test_the_facts_of_the_module_alone_are_judged_too(recorded: Any) -> None:
    host, read = traps.facts_of(recorded("spark-factory"))
    assert (host, read.wish) == ("host", Wish())


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ([], "expected a mapping"),
        ({"format": 2}, "format: expected 1, found 2"),
        ({"format": 1, "accelerator_facts": {}, "host_facts": []}, "host_facts: expected a mapping"),
        ({"format": 1, "accelerator_facts": {}, "host_facts": {}, "wish": {"x": 1}}, "wish.x: expected one of"),
        (
            {"format": 1, "accelerator_facts": {}, "host_facts": {}, "wish": {"cards": "4"}},
            "wish.cards: expected a int",
        ),
    ],
)
def test_a_file_that_holds_no_facts_names_the_field(data: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        traps.facts_of(data)


def test_facts_of_another_form_are_unknown(recorded: Any) -> None:
    facts = changed(recorded("spark-right"), {"nodes": [], "packages/held": 7})
    assert judged("nvidia-device-nodes", facts, SPARK).status == "unknown"
    assert "TypeError" in judged("no-holds", facts, SPARK).evidence


def test_the_table_for_people(recorded: Any, tmp_path: Path) -> None:
    del tmp_path
    findings = traps.judge(Facts(recorded("spark-kernel-without-module"), REACHED, SPARK))
    told = traps.text("spark", findings)
    assert told.startswith("spark: 1 trap, 2 warn, 0 unknown, ")
    assert "  trap     nvidia-module-next\n    evidence    no module nvidia for 7.0.0-1019-nvidia\n" in told
    assert " ok " not in told.partition("\n")[2]
