# SPDX-License-Identifier: Apache-2.0
"""What this machine can do, and what follows from it. The choices are pure functions of what was probed."""

from __future__ import annotations

import ipaddress
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError

# Bits of the capability set, from linux/capability.h.
_CAPABILITY_BITS = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_SYS_RESOURCE": 24}

# What podman asks the kernel for when nothing is said: more than many machines' hard limit.
_WANTED_NOFILE = 1048576

UNLIMITED = -1
"""How a limit without an end is written here (as in resource.RLIM_INFINITY, and as podman takes it)."""

NETWORK_POOLS = ("10.213.0.0/16", "172.29.0.0/16", "192.168.128.0/17")
"""Address ranges networks of test hosts are taken from, in /24 pieces; podman and docker begin elsewhere."""


@dataclass(frozen=True)
class Machine:
    """What decides how containers can be started here.

    Attributes:
        cgroup: ``v1``, ``hybrid`` or ``v2``.
        capabilities: effective capabilities of this process, of those that matter here.
        hard_limits: resource name (``nofile``, ``nproc``) to hard limit, :data:`UNLIMITED` where there is none.
        pid_max: the kernel's highest process id.
        runtimes: names of the container runtimes installed.
    """

    cgroup: str
    capabilities: frozenset[str]
    hard_limits: Mapping[str, int]
    pid_max: int
    runtimes: frozenset[str]


@dataclass(frozen=True)
class Choice:
    """The settings that follow.

    Attributes:
        runtime: name of the container runtime.
        ulimits: ``name=soft:hard`` for podman; empty where podman's defaults are right.
        reasons: one sentence for each setting that differs from podman's defaults.
    """

    runtime: str
    ulimits: tuple[str, ...]
    reasons: tuple[str, ...]


def choose(machine: Machine) -> Choice:
    """Choose the container runtime and the limits its containers start with.

    Raises:
        LabError: no runtime that works on this cgroup layout is installed.
    """
    # crun refuses the hybrid layout ("cgroups in hybrid mode not supported"); on the other two both work.
    # On v1 runc is preferred because that is where it is proven; on v2 crun is podman's own default.
    order = {"v2": ("crun", "runc"), "v1": ("runc", "crun"), "hybrid": ("runc",)}.get(machine.cgroup)
    if order is None:
        raise LabError(
            "The cgroup layout of this machine is unknown.",
            where="/proc/self/mountinfo",
            expected="cgroup or cgroup2 file systems below /sys/fs/cgroup",
            found=machine.cgroup or "none",
            todo="mount the cgroup file systems (systemd does), then try again",
        )
    runtime = next((name for name in order if name in machine.runtimes), None)
    if runtime is None:
        raise LabError(
            "No container runtime that works here is installed.",
            where=f"cgroup layout {machine.cgroup}",
            expected=" or ".join(order),
            found=", ".join(sorted(machine.runtimes)) or "none",
            todo=f"apt-get install {order[0]}, or run tests/sim/bootstrap",
        )
    reasons = []
    if machine.cgroup != "v2":
        reasons.append(f"runtime {runtime}: the cgroup layout is {machine.cgroup}")
    ulimits: list[str] = []
    if "CAP_SYS_RESOURCE" not in machine.capabilities:
        # Without this capability a hard limit can only be lowered, so ask for no more than there is.
        # podman lowers its own limit of processes to the kernel's highest process id, and hands that on.
        for name, wanted in (("nofile", _WANTED_NOFILE), ("nproc", machine.pid_max)):
            hard = machine.hard_limits.get(name, UNLIMITED)
            value = wanted if hard == UNLIMITED else min(hard, wanted)
            ulimits.append(f"{name}={value}:{value}")
        reasons.append(f"limits {' '.join(ulimits)}: CAP_SYS_RESOURCE is missing, so hard limits cannot be raised")
    return Choice(runtime, tuple(ulimits), tuple(reasons))


def cgroup_layout(mountinfo: str) -> str:
    """Name the cgroup layout from the text of /proc/self/mountinfo: ``v1``, ``hybrid``, ``v2``, or empty if none."""
    kinds: dict[str, str] = {}
    for line in mountinfo.splitlines():
        fields = line.split()
        if "-" not in fields:
            continue
        kind = fields[fields.index("-") + 1]
        if kind in ("cgroup", "cgroup2"):
            kinds[fields[4]] = kind
    if kinds.get("/sys/fs/cgroup") == "cgroup2":
        return "v2"
    if "cgroup" in kinds.values():
        return "hybrid" if kinds.get("/sys/fs/cgroup/unified") == "cgroup2" else "v1"
    return ""


def capabilities(status: str) -> frozenset[str]:
    """The effective capabilities, of those that matter here, from the text of /proc/self/status."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
            return frozenset(name for name, bit in _CAPABILITY_BITS.items() if mask >> bit & 1)
    return frozenset()


def probe() -> Machine:
    """Look at this machine."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    limits = {
        name: resource.getrlimit(number)[1]
        for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))
    }
    return Machine(
        cgroup=cgroup_layout(Path("/proc/self/mountinfo").read_text(encoding="utf-8")),
        capabilities=capabilities(Path("/proc/self/status").read_text(encoding="utf-8")),
        hard_limits={name: UNLIMITED if hard == resource.RLIM_INFINITY else hard for name, hard in limits.items()},
        pid_max=int(Path("/proc/sys/kernel/pid_max").read_text(encoding="utf-8")),
        runtimes=frozenset(name for name in ("crun", "runc") if shutil.which(name, path=path)),
    )


def choose_subnet(taken: Iterable[ipaddress.IPv4Network], seed: int) -> ipaddress.IPv4Network:
    """Choose a /24 that overlaps none of the networks taken.

    Args:
        taken: destinations of existing routes and subnets of existing networks. Routes to (nearly) everywhere,
            shorter than /4, do not count: they are defaults.
        seed: where to begin in the pool, so that different checkouts seldom meet.

    Raises:
        LabError: every candidate overlaps something.
    """
    busy = [network for network in taken if network.prefixlen >= 4]
    for pool in NETWORK_POOLS:
        pieces = list(ipaddress.IPv4Network(pool).subnets(new_prefix=24))
        for index in range(len(pieces)):
            piece = pieces[(seed + index) % len(pieces)]
            if not any(piece.overlaps(network) for network in busy):
                return piece
    raise LabError(
        "No free address range for the network of the test hosts.",
        where="ip route show table all",
        expected=f"one unused /24 within {', '.join(NETWORK_POOLS)}",
        found="each overlaps an existing route or network",
        todo="remove a route, or networks of other checkouts (python -m tests.sim.lab down --all there)",
    )


def routes(addresses: str, table: str) -> list[ipaddress.IPv4Network]:
    """Read networks from the outputs of ``ip -json -4 addr`` and ``ip -json -4 route show table all``."""
    found = []
    for link in json.loads(addresses or "[]"):
        for entry in link.get("addr_info", []):
            found.append(ipaddress.IPv4Network(f"{entry['local']}/{entry['prefixlen']}", strict=False))
    for route in json.loads(table or "[]"):
        destination = route.get("dst", "default")
        if destination != "default":
            found.append(ipaddress.IPv4Network(destination, strict=False))
    return found


def taken_networks() -> list[ipaddress.IPv4Network]:
    """The networks this machine has addresses in or routes to."""
    outputs = []
    for command in (["ip", "-json", "-4", "addr"], ["ip", "-json", "-4", "route", "show", "table", "all"]):
        try:
            outputs.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        except (OSError, subprocess.CalledProcessError) as error:
            raise LabError(
                "The routes of this machine cannot be read.",
                where=" ".join(command),
                expected="JSON on standard output",
                found=str(error),
                todo="apt-get install iproute2, or run tests/sim/bootstrap",
            ) from error
    return routes(outputs[0], outputs[1])
