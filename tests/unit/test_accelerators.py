# SPDX-License-Identifier: Apache-2.0
"""The accelerators of a host, read from recordings and from this machine. Simulated: the hosts' files and programs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import accelerators
from ansible_collections.enplace.inference.plugins.module_utils.command import Result

from tests.sim.recorded import FOLDER, NAMES, NOW, Recorded


@pytest.fixture
def facts_of(tmp_path: Path) -> Any:
    return lambda name: Recorded(name, tmp_path / name).facts()


@pytest.mark.parametrize("name", NAMES)
def test_every_recording_says_where_it_comes_from(name: str) -> None:
    text = (FOLDER / name / "source.txt").read_text(encoding="utf-8")
    assert text.splitlines()[1].startswith(("Made up: ", "Published: "))


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_plain_data_without_a_secret(facts_of: Any, name: str) -> None:
    found = facts_of(name)
    text = json.dumps(found)
    assert json.loads(text) == found
    for secret in ("user:word", "secret", "1234567890123"):
        assert secret not in text


def test_this_machine_is_read_quickly_and_nothing_of_it_fails() -> None:
    start = time.monotonic()
    found = accelerators.facts(accelerators.Look(timeout_s=20))
    assert time.monotonic() - start < 30
    assert found["kernel"]["running"] == Path("/proc/sys/kernel/osrelease").read_text().strip()
    assert set(found["sources"]) >= set(accelerators.PROGRAMS)


def test_a_gb10_and_its_bridges(facts_of: Any) -> None:
    found = facts_of("spark-right")
    assert found["pci"] == [
        {"address": "000f:01:00.0", "vendor": "nvidia", "device": "2e12", "class": "0300", "driver": "nvidia"}
    ]
    assert found["counts"]["nvidia"] == {"pci": 1, "nodes": 1, "tool": 1, "differs": []}
    (card,) = found["cards"]["nvidia"]
    assert (card["name"], card["memory.total"], card["temperature.gpu"]) == ("NVIDIA GB10", None, "36")
    assert found["driver"] == {"nvidia": "580.159.03", "open": True}
    assert found["dgx"] == {"DGX_NAME": "DGX Spark", "DGX_SWBUILD_VERSION": "7.4.0"}
    assert found["secure_boot"]["enabled"] is True
    assert found["packages"]["installed"]["nvidia-driver-580-open"] == "580.159.03-0ubuntu0.24.04.1"
    assert "nvidia-driver-580-open" in found["packages"]["held"]
    assert "linux-image-generic" not in found["packages"]["installed"]
    assert found["apt"]["candidates"] == {"nvidia-driver-580-open": "580.159.03-0ubuntu0.24.04.1"}
    assert found["apt"]["unattended"]["blacklist"] == ["nvidia", "linux-"]
    assert found["apt"]["pins"][0]["priority"] == "1001"
    assert found["cuda"] == {
        "toolkits": {"/usr/local/cuda-13.0": "13.0.2"},
        "default": "/usr/local/cuda-13.0",
        "nvcc": True,
        "ptxas": True,
    }
    (kernel,) = found["kernel"]["installed"]
    assert kernel["headers"] is True
    assert kernel["modules"]["nvidia"] == {
        "path": "kernel/nvidia-580-open/nvidia.ko",
        "version": "580.159.03",
        "signer": "Canonical Ltd. Kernel Module Signing",
        "license": "Dual MIT/GPL",
    }
    assert found["sources"]["hl-smi"] == {"found": False, "rc": None, "error": "a program is missing: hl-smi"}
    assert found["clock"]["ahead_s"] == 0


def test_a_card_without_a_driver(facts_of: Any) -> None:
    found = facts_of("ubuntu-arm64-no-driver")
    assert found["counts"]["nvidia"] == {"pci": 1, "nodes": 0, "tool": None, "differs": ["nodes"]}
    assert "nouveau" in found["modules"]
    assert found["driver"] == {"nvidia": None, "open": None}
    assert found["secure_boot"] == {
        "enabled": False,
        "known_from": "efivars",
        "key_enrolled": None,
        "key_waits_for_reboot": False,
    }
    assert found["apt"]["locks"] == [{"file": "/var/lib/dpkg/lock-frontend", "pid": 4711, "program": "unattended-upgr"}]
    assert found["proxy"] == {"system": "http://proxy.example:3128"}
    assert found["boot"]["free_bytes"] == 90_000_000
    assert found["boot"]["largest_initrd_bytes"] == 73_400_320
    assert found["kernel"]["installed"][0]["modules"] == {}


def test_a_tool_that_fails_has_counted_nothing(facts_of: Any) -> None:
    found = facts_of("spark-loaded-older")
    assert found["counts"]["nvidia"]["tool"] is None
    assert found["sources"]["nvidia-smi"]["rc"] == 18
    assert "Driver/library version mismatch" in found["sources"]["nvidia-smi"]["error"]
    assert found["driver"]["nvidia"] == "580.142"


def test_two_sources_of_one_repository(facts_of: Any) -> None:
    found = facts_of("spark-two-branches")
    assert [(source["url"], source["signed_by"]) for source in found["apt"]["sources"]] == [
        ("https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/sbsa/", False),
        ("https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/sbsa/", True),
    ]
    assert found["packages"]["broken"] == {"nvidia-driver-590-open": "half-configured"}
    assert found["cuda"]["default"] == "/usr/local/cuda-13.2"


def test_every_installed_kernel(facts_of: Any) -> None:
    found = facts_of("spark-kernel-without-module")
    assert [
        (kernel["release"], list(kernel["modules"]), kernel["headers"]) for kernel in found["kernel"]["installed"]
    ] == [
        ("7.0.0-1019-nvidia", [], False),
        ("6.17.0-1021-nvidia", ["nvidia"], True),
    ]
    assert found["boot"]["reboot_required"] == ["linux-base", "linux-image-7.0.0-1019-nvidia"]


def test_a_key_that_is_not_enrolled(facts_of: Any) -> None:
    found = facts_of("spark-secure-boot-no-key")
    assert found["secure_boot"]["key_enrolled"] is False
    assert found["dkms"] == [
        {
            "module": "nvidia",
            "version": "580.159.03",
            "kernel": "6.17.0-1021-nvidia",
            "arch": "aarch64",
            "state": "installed",
            "note": "",
        }
    ]
    assert found["kernel"]["installed"][0]["modules"]["nvidia"]["signer"] == "spark Secure Boot Module Signature key"


def test_four_gaudi_cards(facts_of: Any) -> None:
    found = facts_of("gaudi2-right")
    assert found["counts"]["habana"] == {"pci": 4, "nodes": 4, "tool": 4, "differs": []}
    assert [card["module_id"] for card in found["cards"]["habana"]] == ["2", "3", "0", "1"]
    assert {card["status"] for card in found["accel"]} == {"operational"}
    assert found["kernel"]["options"] == ["iommu=pt", "intel_iommu=on"]
    assert [nic["name"] for nic in found["network"] if nic["vendor"] == "habana"] == [f"ens{n}hl0" for n in range(4)]
    assert found["torch"] == [
        {
            "path": "/root/habanalabs-venv/lib/python3.12/site-packages",
            "torch": "2.11.0a0+git1234567",
            "habana": "1.24.1.482",
        }
    ]
    assert found["containers"]["runtimes"] == {"habana": "/usr/bin/habana-container-runtime"}
    assert found["kernel"]["installed"][0]["modules"]["habanalabs"]["signer"] is None
    assert set(found["iommu"]["types"].values()) == {"identity"}


def test_a_dead_card_differs_in_nodes_and_not_in_rows(facts_of: Any) -> None:
    assert facts_of("gaudi2-dead-card")["counts"]["habana"] == {"pci": 4, "nodes": 3, "tool": 4, "differs": ["nodes"]}


def test_mixed_releases(facts_of: Any) -> None:
    found = facts_of("gaudi2-mixed-releases")
    assert [entry["state"] for entry in found["dkms"]] == ["installed", "added"]
    assert found["dkms"][0]["note"] == "WARNING! Diff between built and installed module!"
    assert found["containers"]["runtimes"] is None
    assert found["containers"]["error"]


def test_what_nobody_answers_is_none_and_not_zero(facts_of: Any) -> None:
    found = facts_of("gaudi2-no-answers")
    assert {card["temperature.aip"] for card in found["cards"]["habana"]} == {None}
    assert found["memory"]["huge_pages"] is None
    assert found["clock"]["synchronized"] is None
    assert found["sources"]["timedatectl"]["error"] == "stopped at its deadline"
    assert found["kernel"]["installed"][0]["modules"] is None
    assert found["accel"] == []


def test_no_accelerator_at_all(facts_of: Any) -> None:
    found = facts_of("no-accelerator")
    nothing: dict[str, Any] = {"pci": 0, "nodes": 0, "tool": None, "differs": []}
    assert found["pci"] == []
    assert found["counts"] == {"nvidia": nothing, "habana": nothing}
    assert found["secure_boot"]["known_from"] == "no EFI"
    assert found["kernel"]["options"] == []
    assert found["sources"]["dpkg"]["error"] == ""


@pytest.mark.parametrize("version", ["nvidia/580.159.03", "nvidia, 580.159.03"])
def test_both_forms_of_dkms(version: str) -> None:
    (entry,) = accelerators.dkms(f"{version}, 6.17.0-1021-nvidia, aarch64: built\n")
    assert (entry["module"], entry["version"], entry["kernel"]) == ("nvidia", "580.159.03", "6.17.0-1021-nvidia")
    assert accelerators.dkms("Deprecated feature: REMAKE_INITRD\n") == []


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Wed Jan 22", "570.86.15", False),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build", "575.57.08", True),
        ("something else", None, False),
    ],
)
def test_the_driver_names_itself(tmp_path: Path, text: str, version: str | None, is_open: bool) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert accelerators.driver(accelerators.Look(str(tmp_path))) == {"nvidia": version, "open": is_open}


def test_a_message_of_a_tool_is_no_row() -> None:
    text = "No devices were found\n0, NVIDIA GB10\n"
    assert accelerators.smi_rows(text, ("index", "name")) == [{"index": "0", "name": "NVIDIA GB10"}]


def test_programs_are_asked_in_one_locale_and_with_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    said = accelerators.ask(["sh", "-c", "echo $LC_ALL; exec sleep 20"], 0.5)
    assert (said.rc, said.stdout) == (124, "C.UTF-8\n")


def test_a_program_that_cannot_be_killed_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "GRACE_S", 0.5)
    host, never = Recorded("spark-right", tmp_path), threading.Event()

    def ask(argv: Sequence[str], timeout_s: float) -> Result:
        if argv[0] == "nvidia-smi":
            never.wait()
        return host.ask(argv, timeout_s)

    look = host.look()
    look.ask, look.timeout_s = ask, 2.0
    start = time.monotonic()
    found = accelerators.facts(look, NOW)
    assert 2.0 < time.monotonic() - start < 20
    never.set()
    assert found["sources"]["nvidia-smi"]["error"] == "cannot be stopped: it hangs in the kernel"
    assert found["counts"]["nvidia"]["tool"] is None
    assert found["driver"]["nvidia"] == "580.159.03"


def test_a_clock_behind_its_own_files_is_wrong(tmp_path: Path) -> None:
    host = Recorded("no-accelerator", tmp_path)
    look = accelerators.Look(str(tmp_path), host.ask, lambda _path: host.room, lambda: NOW - 90_000)
    found = accelerators.facts(look, NOW)["clock"]
    assert (found["behind_files_s"], found["ahead_s"]) == (89_000.0, -90_000.0)
