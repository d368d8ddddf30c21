# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What several traps need: versions, packages, and what each release of a stack goes together with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..traps import Facts, Missing, Verdict, not_applicable, ok, trap, warn

#: Kernels that a GB10 fails with while kexec handover (KHO), which they turn on by default, takes 9 GiB of it.
DENIED_KERNELS = ("7.0.0-1019-nvidia", "7.0.0-31-generic")
DENIED_WHY = "RDMA cannot register memory (ibv_reg_mr ENOMEM), and hosts wedge with NV_ERR_NO_MEMORY"

#: Branches of the NVIDIA driver that a GB10 fails with, and how.
DENIED_BRANCHES = {"590": "it deadlocks in CUDA graphs"}

#: What a release of the Gaudi software goes together with: build, firmware of a card (SPI), kernels by Ubuntu version.
GAUDI: dict[str, dict[str, Any]] = {
    "1.24.1": {"build": "482", "firmware": "1.24.0-fw-62.6.2", "kernels": {"22.04": (5, 15), "24.04": (6, 8)}},
}
GAUDI_MATRIX = "https://docs.habana.ai/en/latest/Support_Matrix/Support_Matrix.html (release 1.24.1)"

#: Where the vendors give away their packages.
REPOSITORIES = {
    "nvidia": "https://developer.download.nvidia.com/compute/cuda/repos/",
    "habana": "https://vault.habana.ai/artifactory/debian",
}

#: Packages that hold an NVIDIA driver, its modules or its libraries.
NVIDIA_DRIVER = r"nvidia-(driver|dkms|kernel-common|kernel-source|utils|firmware)-\d+.*|libnvidia-(compute|gl)-\d+.*"
NVIDIA_MODULES = r"linux-modules-nvidia-.*"
KERNEL = r"linux-image-.*"


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def upstream(version: str) -> str:
    """The upstream part of a Debian version: `580.159.03` of `580.159.03-0ubuntu0.24.04.1`."""
    return version.rpartition(":")[2].partition("-")[0]


def release(version: str) -> str:
    """`1.24.1` of `1.24.1-482`, `1.24.1-0a1b2c3` and `1.24.1.482`."""
    match = re.match(r"\d+\.\d+\.\d+", version)
    return match.group() if match else version


def gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def mib(number: int) -> str:
    return f"{number / 2**20:.0f} MiB"


def listed(items: Iterable[Any], limit: int = 6) -> str:
    """Names in one line, the first few where there are many."""
    found = [str(item) for item in items]
    return ", ".join(found[:limit]) + (f" and {len(found) - limit} more" if len(found) > limit else "")


def versions(packages: Mapping[str, str]) -> str:
    return listed(f"{name} {version}" for name, version in sorted(packages.items()))


def repositories(facts: Facts) -> list[str]:
    """Where the packages of a host's accelerators come from: as its apt has it, else the vendors' own places."""
    platforms, found = facts.platforms(), []
    for platform, vendor in (("nvidia", "nvidia"), ("gaudi2", "habana")):
        if platform in platforms:
            sources = [source["url"] for source in (facts.maybe("apt.sources") or []) if source["vendor"] == vendor]
            found += [url for url in sources if url.startswith(("http://", "https://"))] or [REPOSITORIES[vendor]]
    return list(dict.fromkeys(found))


def module_of_running(facts: Facts, name: str) -> Verdict:
    """Whether the running kernel has a driver's module."""
    kernel = facts.running_kernel
    found = facts.module(kernel, name)
    if found:
        return ok(f"kernel {kernel['release']} has {found['path']} {found['version']}".rstrip())
    return trap(f"kernel {kernel['release']} has no module {name}")


def module_of_others(facts: Facts, name: str, todo: Callable[[str], str]) -> Verdict:
    """Whether every other installed kernel has a driver's module: one of them may be started next."""
    others = facts.other_kernels
    if not others:
        return ok(f"{facts('kernel.running')} is the only kernel")
    lacking = [kernel["release"] for kernel in others if facts.module(kernel, name) is None]
    if lacking:
        return trap(f"no module {name} for {listed(lacking)}", todo(lacking[0]))
    return ok(f"all {len(others) + 1} kernels have {name}")


def counts(facts: Facts, vendor: str, tool: str) -> Verdict:
    """Whether bus, device nodes and tool count the same number of cards."""
    found = facts(f"counts.{vendor}")
    if not found["pci"]:
        return not_applicable("no card on the bus")
    if found["tool"] is None:
        raise Missing(f"the number of cards that {tool} sees")
    told = f"{found['pci']} on the PCI bus, {found['nodes']} device nodes, {found['tool']} in {tool}"
    return trap(told) if found["differs"] else ok(told)


def runtime(facts: Facts, name: str, program: str) -> Verdict:
    """Whether Docker knows a vendor's runtime, where there is a Docker."""
    if not facts("build.tools.docker"):
        return not_applicable("no Docker here; enplace itself needs none")
    error = facts("containers.error")
    if error:
        return trap(f"/etc/docker/daemon.json is no JSON: {error}", "correct /etc/docker/daemon.json")
    if name in facts("containers.runtimes"):
        return ok(f"/etc/docker/daemon.json names the runtime {name}")
    if name == "nvidia" and any("nvidia" in file for file in facts("containers.cdi")):
        return ok("CDI describes the GPUs")
    there = "is installed" if facts("build.tools").get(program) else "is not installed"
    return warn(f"/etc/docker/daemon.json names no runtime {name}; {program} {there}")
