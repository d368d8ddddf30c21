# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What is known to go wrong on accelerator hosts: each trap judges the facts of a host and says what to do.

Pure, controller side. A trap ends in one of five ways: ok (looked at, and not there), warn (it works, and may not
tomorrow), trap (it will not work), not applicable (the host has nothing that it is about), unknown (the facts do not
tell). What is not known is never ok.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

OK = "ok"
WARN = "warn"
TRAP = "trap"
NOT_APPLICABLE = "not applicable"
UNKNOWN = "unknown"

#: In the order of a table: what must be done first.
STATUSES = (TRAP, WARN, UNKNOWN, OK, NOT_APPLICABLE)

#: What a trap may be about. A GB10 is an NVIDIA GPU too.
PLATFORMS = ("any", "nvidia", "gb10", "gaudi2")

#: PCI ids of the accelerators that recipes are for.
GB10 = ("2e12",)
GAUDI2 = ("1020", "1030")

FORMAT = 1

#: What to do about what is not known.
FIND_OUT = "make it readable, or look yourself; the facts' `sources` say why it could not be told"


@dataclass(frozen=True)
class Verdict:
    """How a trap ended. todo: the exact command or setting, where it is another one than the trap's own."""

    status: str
    evidence: str
    todo: str = ""


def ok(evidence: str) -> Verdict:
    """Looked at, and not there."""
    return Verdict(OK, evidence)


def warn(evidence: str, todo: str = "") -> Verdict:
    """It works, and may not tomorrow, or not as well as it could."""
    return Verdict(WARN, evidence, todo)


def trap(evidence: str, todo: str = "") -> Verdict:
    """It will not work."""
    return Verdict(TRAP, evidence, todo)


def not_applicable(evidence: str) -> Verdict:
    """The host has nothing that this is about."""
    return Verdict(NOT_APPLICABLE, evidence)


def unknown(evidence: str, todo: str = "") -> Verdict:
    """The facts do not tell."""
    return Verdict(UNKNOWN, evidence, todo)


@dataclass(frozen=True)
class Wish:
    """What the recipes of a host want of it. Empty: none of them says."""

    accelerators: Sequence[str] = ()
    drivers: Mapping[str, str] = field(default_factory=dict)
    gaudi_software: str = ""
    cuda: str = ""
    python: str = ""
    kernel: str = ""
    cards: int = 0
    memory_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "accelerators": list(self.accelerators),
            "drivers": dict(self.drivers),
            "gaudi_software": self.gaudi_software,
            "cuda": self.cuda,
            "python": self.python,
            "kernel": self.kernel,
            "cards": self.cards,
            "memory_bytes": self.memory_bytes,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Wish:
        """Raises ValueError for a key that is none, and for a value of another kind than its default."""
        known = cls().as_dict()
        for name, value in data.items():
            if name not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}")
            if type(value) is not type(known[name]):
                raise ValueError(f"{name}: expected a {type(known[name]).__name__}, found {value!r}")
        return cls(**data)


class Missing(Exception):
    """The facts do not hold what a trap asks for."""


class Facts:
    """The facts of a host, asked by path; what is not there raises Missing and so ends a trap as unknown."""

    def __init__(self, accelerators: Mapping[str, Any], host: Mapping[str, Any], wish: Wish) -> None:
        self.accelerators = accelerators
        self.host = host
        self.wish = wish

    def __call__(self, path: str) -> Any:
        """`memory.huge_pages` of accelerator_facts. Raises Missing where it is not there, or None."""
        return self._find(self.accelerators, path)

    def of_host(self, path: str) -> Any:
        """The same of host_facts."""
        return self._find(self.host, path)

    def maybe(self, path: str) -> Any:
        """The same of accelerator_facts, None where it is not there."""
        try:
            return self(path)
        except Missing:
            return None

    @staticmethod
    def _find(found: Any, path: str) -> Any:
        for key in path.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
            if found is None:
                raise Missing(path)
        return found

    # What several traps ask ------------------------------------------------------------------------------------------

    def cards(self, vendor: str) -> list[Mapping[str, str]]:
        """The accelerators of a vendor on the PCI bus."""
        if not self("sources.pci.found"):
            raise Missing("/sys/bus/pci/devices")
        return [device for device in self("pci") if device["vendor"] == vendor]

    def platforms(self) -> set[str]:
        """What the host is: what its recipes are for, and what is on its bus."""
        found = {"any", *self.wish.accelerators}
        for device in self.maybe("pci") or []:
            if device["vendor"] == "nvidia":
                found |= {"nvidia", "gb10"} if device["device"] in GB10 else {"nvidia"}
            elif device["device"] in GAUDI2 or "gaudi2" in self.wish.accelerators:
                found.add("gaudi2")
        return found | ({"nvidia"} if "gb10" in found else set())

    def known_platforms(self) -> bool:
        """Whether the bus could be read at all."""
        return bool(self.maybe("sources.pci.found"))

    @property
    def packages(self) -> dict[str, str]:
        """Installed packages. Raises Missing where dpkg did not answer."""
        if not self("sources.dpkg.found"):
            raise Missing("dpkg-query")
        return dict(self("packages.installed"))

    def installed(self, pattern: str) -> dict[str, str]:
        """Installed packages whose whole name matches."""
        return {name: version for name, version in self.packages.items() if re.fullmatch(pattern, name)}

    @property
    def running_kernel(self) -> Mapping[str, Any]:
        """The entry of the running kernel."""
        running = self("kernel.running")
        for kernel in self("kernel.installed"):
            if kernel["release"] == running:
                return dict(kernel)
        raise Missing(f"kernel {running}")

    @property
    def other_kernels(self) -> list[Mapping[str, Any]]:
        running = self("kernel.running")
        return [kernel for kernel in self("kernel.installed") if kernel["release"] != running]

    def module(self, kernel: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
        """A driver module of a kernel; None where it has none. Raises Missing where nobody could look."""
        if kernel.get("modules") is None:
            raise Missing(f"modules.dep of kernel {kernel['release']}")
        found: Mapping[str, Any] | None = kernel["modules"].get(name)
        return found

    def unit(self, name: str) -> Mapping[str, str] | None:
        """A unit's properties; None where it is not installed. Raises Missing where systemd did not answer."""
        if self("sources.units.rc") != 0:
            raise Missing("systemctl show")
        found: Mapping[str, str] | None = self("units").get(name)
        return found if found and found.get("LoadState") == "loaded" else None

    def held(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are not on hold."""
        held = set(self("packages.held"))
        return sorted(name for name in names if name not in held)


Judge = Callable[[Facts], Verdict]


@dataclass(frozen=True)
class Trap:
    """One trap. source: where it is known from, addresses or a document's title."""

    id: str
    platform: str
    summary: str
    todo: str
    source: str
    judge: Judge


class Catalogue:
    """Collects the traps of a module."""

    def __init__(self) -> None:
        self.traps: list[Trap] = []

    def trap(self, id: str, platform: str, summary: str, todo: str, source: str) -> Callable[[Judge], Judge]:
        def add(judge: Judge) -> Judge:
            self.traps.append(Trap(id, platform, summary, todo, source, judge))
            return judge

        return add


@functools.cache
def catalogue() -> tuple[Trap, ...]:
    """Every trap, ordered by platform and id."""
    found: list[Trap] = []
    for name in ("system", "nvidia", "gaudi"):
        found += import_module(f"..preflight.{name}", __name__).catalogue.traps
    return tuple(sorted(found, key=lambda trap: (PLATFORMS.index(trap.platform), trap.id)))


@dataclass(frozen=True)
class Finding:
    """What one trap says of one host."""

    id: str
    platform: str
    status: str
    evidence: str
    todo: str

    def as_dict(self) -> dict[str, str]:
        return {
            "id": self.id,
            "platform": self.platform,
            "status": self.status,
            "evidence": self.evidence,
            "todo": self.todo,
        }


def judge(facts: Facts, traps: Iterable[Trap] | None = None) -> list[Finding]:
    """All traps at once, what must be done first in front."""
    found = [_one(trap, facts) for trap in (catalogue() if traps is None else traps)]
    return sorted(found, key=lambda finding: STATUSES.index(finding.status))


def _one(trap: Trap, facts: Facts) -> Finding:
    verdict = _verdict(trap, facts)
    done = verdict.status in (OK, NOT_APPLICABLE)
    if not verdict.todo and not done:
        # What repairs a fault is no advice where nobody knows whether there is one.
        verdict = replace(verdict, todo=FIND_OUT if verdict.status == UNKNOWN else trap.todo)
    return Finding(trap.id, trap.platform, verdict.status, verdict.evidence, "" if done else verdict.todo)


def _verdict(trap: Trap, facts: Facts) -> Verdict:
    if trap.platform not in facts.platforms():
        if not facts.known_platforms():
            return unknown("nobody could look at the PCI bus")
        return not_applicable(f"no {NAMES[trap.platform]} here, and none wanted")
    try:
        return trap.judge(facts)
    except Missing as missing:
        return unknown(f"not in the facts: {missing}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # Facts of another version, or changed by hand.
        return unknown(f"the facts have another form: {type(error).__name__}: {error}")


NAMES = {"nvidia": "NVIDIA GPU", "gb10": "GB10", "gaudi2": "Gaudi 2 card", "any": "host"}


def counted(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings have each status."""
    found = dict.fromkeys(STATUSES, 0)
    for finding in findings:
        found[finding.status] += 1
    return found


def wish_of(variants: Iterable[Mapping[str, Any]]) -> Wish:
    """What the variants of a host's recipes want together.

    Where two want different things, the first one counts; that they cannot share a host is said when they are planned.
    """
    accelerators: list[str] = []
    drivers: dict[str, str] = {}
    texts = {"gaudi_software": "", "cuda": "", "python": ""}
    cards = memory_bytes = 0
    for variant in variants:
        host = variant.get("host", {})
        accelerators.append(variant["accelerator"])
        if "driver" in host:
            drivers.setdefault(host["driver"]["name"], host["driver"]["version"])
        for name, value in texts.items():
            texts[name] = value or str(host.get(name, ""))
        if variant["accelerator"] != "cpu":
            cards = max(cards, int(variant.get("count", 1)))
        memory_bytes = max(memory_bytes, int(host.get("memory_bytes", 0)))
    return Wish(
        list(dict.fromkeys(accelerators)),
        drivers,
        texts["gaudi_software"],
        texts["cuda"],
        texts["python"],
        "",
        cards,
        memory_bytes,
    )


# The facts of a host as a file ---------------------------------------------------------------------------------------


def document(host: str, facts: Facts, findings: Iterable[Finding]) -> dict[str, Any]:
    """What a ticket needs of one host: its facts, what was wanted of it, and what was found."""
    return {
        "format": FORMAT,
        "host": host,
        "wish": facts.wish.as_dict(),
        "accelerator_facts": dict(facts.accelerators),
        "host_facts": dict(facts.host),
        "findings": [finding.as_dict() for finding in findings],
    }


def facts_of(data: Any) -> tuple[str, Facts]:
    """The host's name and its facts out of a document. Raises ValueError, with the field, for anything else.

    What accelerator_facts alone gives counts as well: the host then has no name, and nothing is wanted of it.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"expected a mapping, found a {type(data).__name__}")
    if "format" not in data and "sources" in data:
        return "host", Facts(data, {}, Wish())
    if data.get("format") != FORMAT:
        raise ValueError(f"format: expected {FORMAT}, found {data.get('format')!r}")
    for name in ("accelerator_facts", "host_facts", "wish"):
        if not isinstance(data.get(name), Mapping):
            raise ValueError(f"{name}: expected a mapping, found {type(data.get(name)).__name__}")
    try:
        wish = Wish.from_dict(data["wish"])
    except ValueError as error:
        raise ValueError(f"wish.{error}") from None
    return str(data.get("host") or "host"), Facts(data["accelerator_facts"], data["host_facts"], wish)


# For people ----------------------------------------------------------------------------------------------------------


def text(host: str, findings: Sequence[Finding]) -> str:
    """One table about one host. What is well, or not there, is only counted."""
    numbers = counted(findings)
    head = f"{host}: " + ", ".join(f"{numbers[status]} {status}" for status in STATUSES)
    lines = [head]
    for finding in findings:
        if finding.status in (OK, NOT_APPLICABLE):
            continue
        lines.append(f"  {finding.status:8} {finding.id}")
        lines.append(f"    evidence    {finding.evidence}")
        lines.append(f"    what to do  {finding.todo}")
    return "\n".join(lines)
