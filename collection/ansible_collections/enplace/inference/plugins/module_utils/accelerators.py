# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The accelerators of a host, their drivers, and what decides whether they work: read only, judged elsewhere.

Standard library only, Python 3.9 or newer. Nothing is taken for granted: a tool may be missing, hang, or say N/A. Each
source is recorded by name with how it ended, and what is not known is None or absent, never 0 and never "fine".
"""

from __future__ import annotations

import contextlib
import csv
import glob
import json
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import host_facts
from ansible_collections.enplace.inference.plugins.module_utils.command import TIMED_OUT, Result, run
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

#: PCI vendors, and the PCI classes that are accelerators: display and 3D controllers, and processing accelerators. A
#: GB10 has PCI bridges of the same vendor, which are none.
VENDORS = {"0x10de": "nvidia", "0x1da3": "habana"}
CLASSES = ("0x0300", "0x0302", "0x1200")

#: The kernel modules of each vendor; the first one is the driver itself.
MODULES = {
    "nvidia": ("nvidia", "nvidia_uvm", "nvidia_modeset"),
    "habana": ("habanalabs", "habanalabs_cn", "habanalabs_en", "habanalabs_ib", "habanalabs_compat"),
}

NVIDIA_FIELDS = (
    "index",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "temperature.gpu",
    "persistence_mode",
    "compute_cap",
    "mig.mode.current",
)
HABANA_FIELDS = ("index", "module_id", "bus_id", "driver_version", "name", "memory.total", "temperature.aip")

PACKAGES = (
    *("*nvidia*", "cuda-*", "habanalabs*", "linux-image-*", "linux-headers-*", "linux-modules-*"),
    *("datacenter-gpu-manager*", "docker-ce", "docker.io", "containerd.io", "unattended-upgrades", "earlyoom"),
    *("libc6", "dkms", "mokutil", "build-essential", "gcc", "ninja-build", "python3.*-dev", "python3-dev"),
)

#: Packages whose newest version apt is asked for.
CANDIDATES = (
    *("nvidia-driver-580-open", "nvidia-dkms-580-open", "nvidia-open", "cuda-toolkit-13-0", "cuda-drivers"),
    *("linux-image-nvidia-hwe-24.04", "linux-modules-nvidia-580-open-nvidia-hwe-24.04", "habanalabs-dkms"),
    "habanalabs-firmware",
)

UNITS = (
    *("nvidia-persistenced.service", "nvidia-dcgm.service", "unattended-upgrades.service", "earlyoom.service"),
    *("systemd-oomd.service", "docker.service", "user.slice", "ssh.service", "systemd-logind.service"),
)
UNIT_PROPERTIES = (
    *("Id", "LoadState", "ActiveState", "UnitFileState", "MemoryMin", "MemoryLow", "MemoryHigh", "MemoryMax"),
    "EffectiveMemoryMax",
)

PROGRAMS = {
    "nvidia-smi": ["nvidia-smi", "--query-gpu=" + ",".join(NVIDIA_FIELDS), "--format=csv,noheader,nounits"],
    "hl-smi": ["hl-smi", "-Q", ",".join(HABANA_FIELDS), "-f", "csv,noheader"],
    "uname": ["uname", "-m"],
    "dkms": ["dkms", "status"],
    "dpkg": [
        *("dpkg-query", "--show"),
        "--showformat=${db:Status-Want}\t${db:Status-Status}\t${Package}\t${Version}\t${Architecture}\n",
        *PACKAGES,
    ],
    "apt-config": ["apt-config", "dump"],
    "apt-policy": ["apt-cache", "policy", *CANDIDATES],
    "mokutil": ["mokutil", "--sb-state"],
    "mok-key": ["mokutil", "--test-key", "/var/lib/shim-signed/mok/MOK.der"],
    "timedatectl": ["timedatectl", "show"],
    "systemd": ["systemctl", "show", "--property=DefaultLimitMEMLOCK", "--property=DefaultLimitNOFILE"],
    "units": ["systemctl", "show", "--property=" + ",".join(UNIT_PROPERTIES), *UNITS],
}

#: Programs and headers that engines need when they compile kernels at their first start.
TOOLS = ("ninja", "gcc", "g++", "make", "git", "dkms", "mokutil", "docker", "nvidia-ctk", "habana-container-runtime")

#: The kernel's options that matter for accelerators.
_OPTIONS = re.compile(
    r"iommu(\..+)?|(intel|amd)_iommu|arm-smmu.*|kho|nouveau\..+|nvidia.*|module_blacklist|modprobe\.blacklist|pci|"
    r"(default_)?hugepages(z)?|intel_idle\..+|init_on_alloc|cma"
)

#: Seconds that a program has to die after it was killed at its deadline.
GRACE_S = 2.0

#: Kernels whose modules are looked at, newest first.
MAX_KERNELS = 6

#: What a tool says where it knows nothing.
NOTHING = {"", "n/a", "[n/a]", "[not supported]", "not supported", "[unknown error]", "[gpu requires reset]", "err!"}

Ask = Callable[[Sequence[str], float], Result]
Room = Callable[[str], Any]


def ask(argv: Sequence[str], timeout_s: float) -> Result:
    """A program, asked with a deadline; its locale is C.UTF-8, as `base_environment` sets it."""
    return run(argv, timeout_s=timeout_s)


class Look:
    """One look at a host: where it reads, whom it asks, and how each source ended."""

    def __init__(
        self,
        root: str = "/",
        ask: Ask = ask,
        room: Room = os.statvfs,
        time: Callable[[], float] = time.time,
        timeout_s: float = 10.0,
    ) -> None:
        self.root = root
        self.ask = ask
        self.room = room
        self.time = time
        self.timeout_s = timeout_s
        self.sources: dict[str, dict[str, Any]] = {}

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def here(self, path: str) -> bool:
        return os.path.lexists(self.path(path))

    def glob(self, pattern: str) -> list[str]:
        """Paths of the host that match, as the host names them."""
        prefix = self.path("")
        return sorted("/" + found[len(prefix) :] for found in glob.glob(prefix + pattern.lstrip("/")))

    def read(self, path: str) -> str | None:
        """A file's text without the blanks around it; None where there is none, or where it cannot be read."""
        try:
            with open(self.path(path), encoding="utf-8", errors="replace") as stream:
                return stream.read().strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        text = self.read(path)
        try:
            return int(text) if text else None
        except ValueError:
            return None

    def link(self, path: str) -> str:
        """The name that a link leads to; empty where there is none."""
        try:
            return os.path.basename(os.readlink(self.path(path)))
        except OSError:
            return ""

    def follow(self, path: str) -> str:
        """Where links lead to, as the host names it; empty where there is nothing. None leads out of the root."""
        for _step in range(8):
            try:
                path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(self.path(path))))
            except OSError:
                break
        return path if os.path.exists(self.path(path)) else ""

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def source(self, name: str, path: str) -> str | None:
        """A file that is a source of its own."""
        text = self.read(path)
        error = "" if text is not None else "cannot be read" if self.here(path) else "no such file"
        self.sources[name] = {"found": text is not None, "rc": None, "error": error}
        return text

    def programs(self, asked: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """What programs printed, by name, all asked at once. How each ended is in `sources`.

        One that hangs in the kernel, as a driver's tool may, cannot even be killed: it is left behind at its deadline.
        """
        answers: dict[str, Result | Failure] = {}

        def one(name: str, argv: Sequence[str]) -> None:
            try:
                answers[name] = self.ask(argv, self.timeout_s)
            except Failure as failure:
                answers[name] = failure

        # Not a pool: Python waits for the threads of one before it ends.
        threads = [threading.Thread(target=one, args=item, daemon=True) for item in asked.items()]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + self.timeout_s + GRACE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        answered = dict(answers)
        return {name: self._note(name, answered.get(name)) for name in asked}

    def _note(self, name: str, said: Result | Failure | None) -> str:
        """Note how a program ended; what it printed."""
        if said is None:
            self.sources[name] = {"found": True, "rc": TIMED_OUT, "error": "cannot be stopped: it hangs in the kernel"}
            return ""
        if isinstance(said, Failure):
            self.sources[name] = {"found": False, "rc": None, "error": f"{said.what}: {said.where}"}
            return ""
        error = "" if said.ok else (said.tail(2) or said.said())
        self.sources[name] = {"found": True, "rc": said.rc, "error": error[:400]}
        return said.stdout


def facts(look: Look, now: float | None = None, environments: Sequence[str] = ()) -> dict[str, Any]:
    """Everything. ``now``: the time as another machine has it, in seconds, to compare this host's clock with.
    ``environments``: further folders of venvs whose torch is looked at."""
    kernel = look.read("/proc/sys/kernel/osrelease") or ""
    installed = kernels(look, kernel)
    asked = dict(PROGRAMS)
    for release in installed:
        asked[f"modinfo {release}"] = ["modinfo", "-k", release, MODULES["nvidia"][0], MODULES["habana"][0]]
    said = look.programs(asked)
    if said["dpkg"]:
        # It complains of every pattern that nothing matches.
        look.sources["dpkg"].update(rc=0, error="")
    devices = pci(look)
    cards = {
        "nvidia": smi_rows(said["nvidia-smi"], NVIDIA_FIELDS),
        "habana": smi_rows(said["hl-smi"], HABANA_FIELDS),
    }
    nodes = device_nodes(look)
    result: dict[str, Any] = {
        "os": host_facts.os_release(look.root),
        "arch": said["uname"].strip(),
        "dgx": dgx(look),
        "pci": devices,
        "nodes": nodes,
        "cards": cards,
        "counts": counts(devices, nodes, cards, look.sources),
        "accel": accel(look),
        "modules": loaded_modules(look),
        "driver": driver(look),
        "kernel": {
            "running": kernel,
            "installed": [kernel_facts(look, release, said[f"modinfo {release}"]) for release in installed],
            "options": options(look.source("cmdline", "/proc/cmdline")),
        },
        "dkms": dkms(said["dkms"]),
        "packages": packages(said["dpkg"]),
        "apt": apt(look, said["apt-config"], said["apt-policy"]),
        "secure_boot": secure_boot(look, said["mokutil"], said["mok-key"]),
        "boot": boot(look),
        "memory": memory(look),
        "limits": fields(said["systemd"]),
        "units": units(said["units"]),
        "earlyoom": assignments(look.read("/etc/default/earlyoom") or "").get("EARLYOOM_ARGS", ""),
        "network": network(look),
        "iommu": iommu(look, devices),
        "clock": clock(look, said["timedatectl"], now),
        "locale": assignments(look.read("/etc/default/locale") or look.read("/etc/locale.conf") or ""),
        "proxy": proxy(look, said["apt-config"]),
        "cuda": cuda(look),
        "build": build(look),
        "containers": containers(look),
        "torch": torch(look, environments),
    }
    result["sources"] = dict(sorted(look.sources.items()))
    return result


# --- devices ---------------------------------------------------------------------------------------------------------


def pci(look: Look) -> list[dict[str, str]]:
    """The accelerators on the PCI bus: address, vendor, device (hex), class and the driver that is bound."""
    result = []
    found = look.names("/sys/bus/pci/devices")
    look.sources["pci"] = {
        "found": bool(found),
        "rc": None,
        "error": "" if found else "nothing in /sys/bus/pci/devices",
    }
    for address in found:
        folder = f"/sys/bus/pci/devices/{address}"
        vendor = VENDORS.get(look.read(f"{folder}/vendor") or "")
        kind = (look.read(f"{folder}/class") or "")[:6]
        if vendor and kind in CLASSES:
            result.append(
                {
                    "address": address,
                    "vendor": vendor,
                    "device": (look.read(f"{folder}/device") or "")[2:],
                    "class": kind[2:],
                    "driver": look.link(f"{folder}/driver"),
                }
            )
    return result


def device_nodes(look: Look) -> dict[str, list[str]]:
    """Device nodes by vendor, and those of RDMA. `/dev/hl0` is how older Gaudi drivers name a card."""
    return {
        "nvidia": look.glob("/dev/nvidia[0-9]*"),
        "nvidia_control": [name for name in ("/dev/nvidiactl", "/dev/nvidia-uvm") if look.here(name)],
        "habana": look.glob("/dev/accel/accel[0-9]*") or look.glob("/dev/hl[0-9]*"),
        "infiniband": look.glob("/dev/infiniband/uverbs*"),
    }


def smi_rows(text: str, names: Sequence[str]) -> list[dict[str, str | None]]:
    """The rows of a csv query; None where the tool says that it does not know.

    A line with another number of fields is a message, no row.
    """
    rows = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == len(names):
            values = (value.strip() for value in row)
            rows.append({name: None if value.lower() in NOTHING else value for name, value in zip(names, values)})
    return rows


def counts(
    devices: Iterable[Mapping[str, str]],
    nodes: Mapping[str, Sequence[str]],
    cards: Mapping[str, Sequence[Any]],
    sources: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """How many cards the bus, the device nodes and the tool have, and which of them differ from the bus.

    The tool's number is None where it is not there or failed: it has not counted.
    """
    seen = [device["vendor"] for device in devices]
    result = {}
    for vendor, tool in (("nvidia", "nvidia-smi"), ("habana", "hl-smi")):
        answered = sources[tool]["found"] and sources[tool]["rc"] == 0
        on_bus = seen.count(vendor)
        found = {"pci": on_bus, "nodes": len(nodes[vendor]), "tool": len(cards[vendor]) if answered else None}
        differs = [name for name in ("nodes", "tool") if found[name] is not None and found[name] != on_bus]
        result[vendor] = {**found, "differs": differs}
    return result


def accel(look: Look) -> list[dict[str, str | None]]:
    """What the Gaudi driver says of each card in sysfs: name, status, and the firmware it booted."""
    result = []
    for folder in look.glob("/sys/class/accel/accel[0-9]*"):
        entry: dict[str, str | None] = {"name": os.path.basename(folder)}
        for key in ("device_type", "status", "pci_addr", "preboot_btl_ver", "fw_os_ver", "cpld_ver"):
            entry[key] = look.read(f"{folder}/device/{key}")
        result.append(entry)
    return result


# --- modules and kernels ---------------------------------------------------------------------------------------------


def loaded_modules(look: Look) -> dict[str, str]:
    """The loaded modules that matter, with their version; empty where the module has none."""
    names = [*MODULES["nvidia"], *MODULES["habana"], "nouveau", "ib_uverbs", "sbsa_gwdt"]
    return {name: look.read(f"/sys/module/{name}/version") or "" for name in names if look.here(f"/sys/module/{name}")}


def driver(look: Look) -> dict[str, Any]:
    """The loaded NVIDIA driver as it names itself: version, and whether its modules are the open ones."""
    text = look.source("proc-driver-nvidia-version", "/proc/driver/nvidia/version")
    match = re.search(r"NVRM version:.*?Module(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)", text or "")
    return {
        "nvidia": match.group(1) if match else None,
        "open": "Open Kernel Module" in text if text else None,
    }


def version_key(text: str) -> list[int]:
    """The numbers of a version, for comparing."""
    return [int(part) for part in re.findall(r"\d+", text)]


def kernels(look: Look, running: str) -> list[str]:
    """Releases of the kernels that this host can boot, newest first, the running one among them."""
    found = {path[len("/boot/vmlinuz-") :] for path in look.glob("/boot/vmlinuz-*")}
    found = {release for release in found if look.here(f"/lib/modules/{release}")}
    newest = sorted(found - {running}, key=version_key, reverse=True)[:MAX_KERNELS]
    return sorted({*newest, running} - {""}, key=version_key, reverse=True)


def kernel_facts(look: Look, release: str, modinfo: str) -> dict[str, Any]:
    """A kernel: whether its headers are there, and the driver modules that depmod knows for it.

    ``modules`` is None where modules.dep cannot be read: then nobody knows.
    """
    listed = look.read(f"/lib/modules/{release}/modules.dep")
    modules: dict[str, Any] | None = None
    if listed is not None:
        told = modinfo_blocks(modinfo)
        modules = {}
        for line in listed.splitlines():
            path = line.partition(":")[0]
            name = re.sub(r"\.ko(\.\w+)?$", "", os.path.basename(path)).replace("-", "_")
            if name in (MODULES["nvidia"][0], MODULES["habana"][0]):
                modules[name] = {"path": path, "version": "", "signer": None, **told.get(name, {})}
    return {
        "release": release,
        "image": look.here(f"/boot/vmlinuz-{release}"),
        "initrd": look.here(f"/boot/initrd.img-{release}"),
        "headers": look.here(f"/lib/modules/{release}/build/Makefile"),
        "modules": modules,
    }


def modinfo_blocks(text: str) -> dict[str, dict[str, str]]:
    """Version, signer and licence by module, from modinfo's answer about several.

    ``signer`` is None for a module without a signature, and empty for one whose signer modinfo does not name.
    """
    result: dict[str, dict[str, Any]] = {}
    entry: dict[str, Any] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        value = value.strip()
        if not colon:
            continue
        if key == "filename":
            name = re.sub(r"\.ko(\.\w+)?$", "", os.path.basename(value)).replace("-", "_")
            entry = result[name] = {"version": "", "signer": None, "license": ""}
        elif key in ("version", "license"):
            entry[key] = value
        elif key == "signer":
            entry["signer"] = value
        elif key == "sig_id" and entry.get("signer") is None:
            entry["signer"] = ""
    return result


def dkms(text: str) -> list[dict[str, str]]:
    """What `dkms status` tells, in its form since 2.8 (name/version, ...) and the one before (name, version, ...)."""
    result = []
    for line in text.splitlines():
        match = re.match(r"([\w.+-]+)(?:/|, )([^,:]+)(?:, ([^,]+), ([^:]+))?:\s*(\w+)(.*)", line.strip())
        if match:
            name, version, kernel, arch, state, note = match.groups()
            entry = {"module": name, "version": version, "kernel": kernel or "", "arch": arch or "", "state": state}
            result.append({**entry, "note": note.strip(" ()")})
    return result


# --- packages --------------------------------------------------------------------------------------------------------


def packages(text: str) -> dict[str, Any]:
    """Installed packages (version by name), those on hold, and those that dpkg left half done."""
    installed, held, broken = {}, [], {}
    for line in text.splitlines():
        parts = line.split("\t")
        if len(parts) != 5:
            continue
        want, status, name, version, _arch = parts
        if status == "installed":
            installed[name] = version
        elif status not in ("not-installed", "config-files"):
            broken[name] = status
        if want == "hold":
            held.append(name)
    return {"installed": installed, "held": sorted(held), "broken": broken}


def apt(look: Look, config: str, policy: str) -> dict[str, Any]:
    """What decides which package comes next: sources, pins and candidates, unattended-upgrades, locks."""
    settings = apt_settings(config)
    prefix, on = "Unattended-Upgrade::", settings.get("APT::Periodic::Unattended-Upgrade", ["0"])[-1]
    return {
        "sources": apt_sources(look),
        "pins": apt_pins(look),
        "candidates": candidates(policy),
        "unattended": {
            "enabled": on not in ("", "0") if settings else None,
            "origins": settings.get(prefix + "Allowed-Origins", []) + settings.get(prefix + "Origins-Pattern", []),
            "blacklist": settings.get(prefix + "Package-Blacklist", []),
        },
        "lock_timeout": (settings.get("DPkg::Lock::Timeout") or [""])[-1],
        "locks": apt_locks(look),
    }


def apt_settings(text: str) -> dict[str, list[str]]:
    """`apt-config dump`: the values of each key; a list's items are those of ``Key::``."""
    result: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = re.match(r'([^ ]+?)(?:::)? "(.*)";$', line.strip())
        if match and match.group(2):
            result.setdefault(match.group(1), []).append(match.group(2))
    return result


def without_credentials(url: str) -> str:
    """A URL without user and password, and without its query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def apt_sources(look: Look) -> list[dict[str, Any]]:
    """Sources of the vendors: file, URL without credentials, suites, whether it is enabled and names its key."""
    result = []
    for path in ["/etc/apt/sources.list", *look.glob("/etc/apt/sources.list.d/*.list")]:
        for line in (look.read(path) or "").splitlines():
            match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)", line.strip())
            if match:
                given, url, suite = match.groups()
                result.append(_source(path, url, suite, True, "signed-by=" in (given or "").lower()))
    for path in look.glob("/etc/apt/sources.list.d/*.sources"):
        for block in re.split(r"\n\s*\n", look.read(path) or ""):
            keys = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", block, re.MULTILINE))
            enabled = keys.get("Enabled", "yes").strip().lower() not in ("no", "false")
            for url in keys.get("URIs", "").split():
                result.append(_source(path, url, keys.get("Suites", "").strip(), enabled, "Signed-By" in keys))
    return [source for source in result if source["vendor"]]


def _source(path: str, url: str, suite: str, enabled: bool, signed_by: bool) -> dict[str, Any]:
    host = (urllib.parse.urlsplit(url).hostname or "").lower()
    vendor = "nvidia" if host.endswith("nvidia.com") or "nvidia" in url else "habana" if "habana" in url else ""
    entry = {"file": path, "url": without_credentials(url), "suite": suite, "enabled": enabled}
    return {**entry, "signed_by": signed_by, "vendor": vendor}


def apt_pins(look: Look) -> list[dict[str, str]]:
    """Pins that name a package or an origin of the vendors."""
    result = []
    for path in ["/etc/apt/preferences", *look.glob("/etc/apt/preferences.d/*")]:
        for block in re.split(r"\n\s*\n", look.read(path) or ""):
            keys = dict(re.findall(r"^(Package|Pin|Pin-Priority):[ \t]*(.*)$", block, re.MULTILINE))
            text = " ".join(keys.values()).lower()
            if len(keys) == 3 and re.search(r"nvidia|cuda|habana", text):
                values = {"package": keys["Package"], "pin": keys["Pin"], "priority": keys["Pin-Priority"]}
                result.append({"file": path, **{key: value.strip() for key, value in values.items()}})
    return result


def candidates(text: str) -> dict[str, str]:
    """The version that apt would take next, by package; those without one are left out."""
    result, name = {}, ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            name = line.rstrip(":")
        elif line.strip().startswith("Candidate:"):
            version = line.partition(":")[2].strip()
            if version != "(none)":
                result[name] = version
    return result


def apt_locks(look: Look) -> list[dict[str, Any]]:
    """Who holds a lock of dpkg or apt at the moment: file, pid and the program's name."""
    paths = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock")
    inodes = {}
    for path in paths:
        try:
            inodes[str(os.stat(look.path(path)).st_ino)] = path
        except OSError:
            continue
    result = []
    for line in (look.source("locks", "/proc/locks") or "").splitlines():
        parts = line.split()
        # "1: POSIX ADVISORY WRITE 4711 08:02:131 0 EOF"; a waiting one has an arrow after the number.
        if len(parts) >= 8 and parts[1] != "->" and parts[5].rpartition(":")[2] in inodes:
            pid = parts[4]
            path = inodes[parts[5].rpartition(":")[2]]
            result.append({"file": path, "pid": int(pid), "program": look.read(f"/proc/{pid}/comm") or ""})
    return result


# --- boot ------------------------------------------------------------------------------------------------------------


def options(text: str | None) -> list[str] | None:
    """The options of the kernel's command line that matter here; another one may hold a secret."""
    if text is None:
        return None
    return [word for word in text.split() if _OPTIONS.fullmatch(word.partition("=")[0])]


def secure_boot(look: Look, state: str, key: str) -> dict[str, Any]:
    """Whether Secure Boot is on (None: nobody knows), how that is known, and whether the host's own key is enrolled."""
    enabled: bool | None = None
    known = ""
    if not look.here("/sys/firmware/efi"):
        enabled, known = (False, "no EFI") if look.here("/sys/firmware") else (None, "")
    for path in look.glob("/sys/firmware/efi/efivars/SecureBoot-*"):
        try:
            with open(look.path(path), "rb") as stream:
                data = stream.read()
        except OSError:
            continue
        if len(data) == 5:
            enabled, known = data[4] == 1, "efivars"
    if enabled is None and "SecureBoot" in state:
        enabled, known = "SecureBoot enabled" in state, "mokutil"
    enrolled: bool | None = None
    if "is already enrolled" in key:
        enrolled = True
    elif "is not enrolled" in key:
        enrolled = False
    waiting = "is already in the enrollment request" in key
    return {"enabled": enabled, "known_from": known, "key_enrolled": enrolled, "key_waits_for_reboot": waiting}


def boot(look: Look) -> dict[str, Any]:
    """The room where kernels and initrds go, and how large they are there."""
    try:
        room = look.room(look.path("/boot"))
        free: int | None = room.f_bavail * room.f_frsize
        total: int | None = room.f_blocks * room.f_frsize
    except OSError:
        free = total = None
    sizes = []
    for path in look.glob("/boot/initrd.img-*"):
        try:
            sizes.append(os.stat(look.path(path)).st_size)
        except OSError:
            continue
    reboot = look.read("/var/run/reboot-required.pkgs") or look.read("/run/reboot-required.pkgs")
    return {
        "free_bytes": free,
        "total_bytes": total,
        "largest_initrd_bytes": max(sizes) if sizes else None,
        "reboot_required": sorted(set(reboot.split())) if reboot else [],
    }


def memory(look: Look) -> dict[str, Any]:
    """Of /proc/meminfo, in bytes; huge pages; swap. None where it says nothing."""
    found: dict[str, int] = {}
    for line in (look.source("meminfo", "/proc/meminfo") or "").splitlines():
        key, _colon, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[key] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    swaps = look.read("/proc/swaps")
    return {
        "total_bytes": found.get("MemTotal"),
        "available_bytes": found.get("MemAvailable"),
        "swap_total_bytes": found.get("SwapTotal"),
        "swap_free_bytes": found.get("SwapFree"),
        "swap_on": None if swaps is None else [line.split()[0] for line in swaps.splitlines()[1:] if line.split()],
        "swappiness": look.number("/proc/sys/vm/swappiness"),
        "huge_pages": found.get("HugePages_Total"),
        "huge_pages_free": found.get("HugePages_Free"),
        "huge_page_bytes": found.get("Hugepagesize"),
    }


# --- services, network, clock ----------------------------------------------------------------------------------------


def fields(text: str) -> dict[str, str]:
    """Lines of ``key=value``."""
    return {key: value for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def assignments(text: str) -> dict[str, str]:
    """A shell's assignments, without quotes and comments."""
    return {key: value.strip("\"'") for key, value in fields(text).items() if not key.startswith("#")}


def units(text: str) -> dict[str, dict[str, str]]:
    """Units by name, with their properties."""
    blocks = [fields(block) for block in text.split("\n\n")]
    return {block["Id"]: block for block in blocks if block.get("Id")}


def network(look: Look) -> list[dict[str, Any]]:
    """Interfaces with a device behind them: name, vendor, driver, MTU, and no addresses.

    ``up``: whether somebody brought it up; ``state``: whether it has a link besides, which it has not without a cable.
    """
    result = []
    for name in look.names("/sys/class/net"):
        folder = f"/sys/class/net/{name}"
        vendor = look.read(f"{folder}/device/vendor")
        if vendor is None:
            continue
        entry = {"name": name, "vendor": VENDORS.get(vendor, vendor), "driver": look.link(f"{folder}/device/driver")}
        flags = look.read(f"{folder}/flags")
        up = bool(int(flags, 16) & 1) if flags and re.fullmatch("0x[0-9a-f]+", flags) else None
        state = {"up": up, "state": look.read(f"{folder}/operstate"), "mtu": look.number(f"{folder}/mtu")}
        result.append({**entry, **state})
    return result


def iommu(look: Look, devices: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Whether there is an IOMMU, and how it treats the accelerators: by address, the type of the group."""
    kinds = {}
    for device in devices:
        kind = look.read(f"/sys/bus/pci/devices/{device['address']}/iommu_group/type")
        if kind:
            kinds[device["address"]] = kind
    return {"units": look.names("/sys/class/iommu"), "types": kinds}


def clock(look: Look, text: str, now: float | None) -> dict[str, Any]:
    """Whether the clock is synchronized, and how far it is off: ahead of ``now``, and behind the package database."""
    said = fields(text)
    here = look.time()
    try:
        behind: float | None = round(max(0.0, os.stat(look.path("/var/lib/dpkg/status")).st_mtime - here), 1)
    except OSError:
        behind = None
    return {
        "synchronized": {"yes": True, "no": False}.get(said.get("NTPSynchronized", "")),
        "ntp": {"yes": True, "no": False}.get(said.get("NTP", "")),
        "timezone": said.get("Timezone", ""),
        "ahead_s": None if now is None else round(here - now, 1),
        "behind_files_s": behind,
    }


def proxy(look: Look, config: str) -> dict[str, str]:
    """Proxies without credentials: apt's, and that of the whole system."""
    settings, system = apt_settings(config), assignments(look.read("/etc/environment") or "")
    result = {}
    for name, value in (
        ("apt", (settings.get("Acquire::https::Proxy") or settings.get("Acquire::http::Proxy") or [""])[-1]),
        ("system", system.get("https_proxy") or system.get("HTTPS_PROXY") or ""),
    ):
        if value and value != "DIRECT":
            result[name] = without_credentials(value if "://" in value else "http://" + value)
    return result


# --- what engines need -----------------------------------------------------------------------------------------------


def cuda(look: Look) -> dict[str, Any]:
    """The CUDA toolkits: version by folder, where /usr/local/cuda leads to, and the compilers there."""
    found = {}
    for folder in look.glob("/usr/local/cuda-[0-9]*.[0-9]*"):
        version = os.path.basename(folder)[len("cuda-") :]
        with contextlib.suppress(ValueError, KeyError, TypeError):
            version = str(json.loads(look.read(f"{folder}/version.json") or "")["cuda"]["version"])
        found[folder] = version
    target = look.follow("/usr/local/cuda")
    return {
        "toolkits": found,
        "default": target,
        "nvcc": bool(target) and look.here(f"{target}/bin/nvcc"),
        "ptxas": bool(target) and look.here(f"{target}/bin/ptxas"),
    }


def build(look: Look) -> dict[str, Any]:
    """What compiles at an engine's first start: tools, the Pythons with their headers, and the C library's version."""
    tools = {
        name: any(look.here(f"{folder}/{name}") for folder in ("/usr/bin", "/usr/local/bin", "/usr/sbin"))
        for name in TOOLS
    }
    pythons = {}
    for path in look.glob("/usr/bin/python3.*"):
        version = os.path.basename(path)[len("python") :]
        if re.fullmatch(r"3\.\d+", version):
            pythons[version] = look.here(f"/usr/include/python{version}/Python.h")
    return {"tools": tools, "python_headers": pythons, "python": look.link("/usr/bin/python3")[len("python") :]}


def containers(look: Look) -> dict[str, Any]:
    """Docker's runtimes by name, its default one, and whether CDI knows a device. None: its settings cannot be read."""
    text = look.read("/etc/docker/daemon.json")
    runtimes: dict[str, str] | None = {}
    default, error = "", ""
    if text:
        try:
            loaded = json.loads(text)
            runtimes = {name: str(entry.get("path", "")) for name, entry in loaded.get("runtimes", {}).items()}
            default = str(loaded.get("default-runtime", ""))
        except (ValueError, AttributeError) as problem:
            runtimes, error = None, str(problem)
    cdi = [*look.glob("/etc/cdi/*"), *look.glob("/var/run/cdi/*")]
    return {"runtimes": runtimes, "default": default, "error": error, "cdi": [os.path.basename(path) for path in cdi]}


def torch(look: Look, environments: Sequence[str] = ()) -> list[dict[str, str]]:
    """Each place that has torch: folder, its version, and that of Habana's plug-in, empty where there is none."""
    patterns = ["/usr/local/lib/python3*/dist-packages", "/usr/lib/python3/dist-packages"]
    for folder in ("/root/habanalabs-venv", "/home/*/habanalabs-venv", "/opt/habanalabs-venv", *environments):
        patterns.append(f"{folder}/lib/python3*/site-packages")
    result = []
    for place in sorted({place for pattern in patterns for place in look.glob(pattern)}):
        versions = {}
        for name in ("torch", "habana_torch_plugin"):
            found = look.glob(f"{place}/{name}-*.dist-info")
            versions[name] = os.path.basename(found[-1])[len(name) + 1 : -len(".dist-info")] if found else ""
        if versions["torch"]:
            result.append({"path": place, "torch": versions["torch"], "habana": versions["habana_torch_plugin"]})
    return result


def dgx(look: Look) -> dict[str, str]:
    """What /etc/dgx-release names, without the serial number; empty on a host that is no DGX."""
    said = assignments(look.read("/etc/dgx-release") or "")
    return {key: said[key] for key in ("DGX_NAME", "DGX_SWBUILD_VERSION", "DGX_OTA_VERSION") if key in said}
