# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Traps of any host: packages, kernels, Secure Boot, disk, clock, network, and what engines compile with."""

from __future__ import annotations

import re

from ..traps import GAUDI2, GB10, Catalogue, Facts, Missing, Verdict, not_applicable, ok, trap, unknown, warn
from . import common

catalogue = Catalogue()

#: Packages whose change without a restart, or without a test, ends a server.
DRIVERS = rf"{common.NVIDIA_DRIVER}|{common.NVIDIA_MODULES}|nvidia-open|cuda-drivers.*|habanalabs-.*"

#: The oldest C library that the wheels of the engines' locks run with: a wheel of theirs is for manylinux_2_34.
GLIBC = (2, 34)

#: How far a clock may be off: certificates, and signatures of package lists, are judged by it.
CLOCK_S = 60


def uses_dkms(facts: Facts) -> bool:
    """Whether a driver comes from DKMS, which needs headers for each kernel."""
    return bool(facts.installed(r"nvidia-dkms-.*|habanalabs-dkms") or facts.maybe("dkms"))


def blacklisted(facts: Facts, name: str) -> bool:
    """Whether unattended-upgrades leaves a package alone: its list has expressions for the name's beginning."""
    return any(re.match(pattern, name) for pattern in facts("apt.unattended.blacklist"))


def compiles(facts: Facts) -> bool:
    """Whether an engine of this host compiles kernels at its first start. Raises Missing."""
    if {"gb10", "gaudi2"} & facts.platforms():
        return True
    if not facts.known_platforms():
        raise Missing("/sys/bus/pci/devices")
    return False


def unattended(facts: Facts, pattern: str) -> Verdict:
    """Whether unattended-upgrades may change packages."""
    found = sorted(facts.installed(pattern))
    if not found:
        return not_applicable("no such package is installed")
    if "unattended-upgrades" not in facts.packages or facts("apt.unattended.enabled") is False:
        return ok("unattended-upgrades is off")
    free = [name for name in facts.held(found) if not blacklisted(facts, name)]
    if not free:
        return ok("on hold, or named in its Package-Blacklist")
    return warn(f"unattended-upgrades is on and may change {common.listed(free)}")


# Packages ------------------------------------------------------------------------------------------------------------


@catalogue.trap(
    "no-accelerator",
    "any",
    "The accelerators that the host's recipes are for are on its PCI bus.",
    "use another host, or another variant of the recipe",
    "the recipe's accelerator",
)
def no_accelerator(facts: Facts) -> Verdict:
    wished = [name for name in facts.wish.accelerators if name != "cpu"]
    if not wished:
        return not_applicable("no recipe of this host wants one")
    there = {card["device"] for vendor in ("nvidia", "habana") for card in facts.cards(vendor)}
    lacking = [
        name for name, devices in (("gb10", GB10), ("gaudi2", GAUDI2)) if name in wished and not there & {*devices}
    ]
    return trap(f"nothing on the PCI bus for {common.listed(lacking)}") if lacking else ok(common.listed(wished))


@catalogue.trap(
    "apt-lock",
    "any",
    "Nobody holds the locks of apt and dpkg.",
    "wait for it: sudo systemctl stop apt-daily.timer apt-daily-upgrade.timer, then run again",
    "https://github.com/ansible/ansible/issues/51663",
)
def apt_lock(facts: Facts) -> Verdict:
    if not facts("sources.locks.found"):
        raise Missing("/proc/locks")
    locks = facts("apt.locks")
    if not locks:
        return ok("nobody holds one")
    return trap(
        common.listed(f"{lock['program'] or 'a process'} (pid {lock['pid']}) holds {lock['file']}" for lock in locks)
    )


@catalogue.trap(
    "dpkg-half-done",
    "any",
    "dpkg left no package half installed.",
    "sudo dpkg --configure -a; sudo apt-get install -f",
    "dpkg(1), package states",
)
def dpkg_half_done(facts: Facts) -> Verdict:
    if not facts("sources.dpkg.found"):
        raise Missing("dpkg-query")
    broken = facts("packages.broken")
    return trap(common.versions(broken)) if broken else ok("none of those looked at")


@catalogue.trap(
    "unattended-driver",
    "any",
    "unattended-upgrades does not change drivers: new libraries under a loaded module end every CUDA program.",
    'printf \'Unattended-Upgrade::Package-Blacklist { "nvidia"; "libnvidia"; "cuda-drivers"; "habanalabs"; };\\n\' | '
    "sudo tee /etc/apt/apt.conf.d/52enplace-drivers",
    "https://github.com/kubernetes-sigs/kubespray/issues/8540 https://github.com/pando85/homelab/pull/4110",
)
def unattended_driver(facts: Facts) -> Verdict:
    return unattended(facts, DRIVERS)


@catalogue.trap(
    "unattended-kernel",
    "any",
    "unattended-upgrades does not bring kernels to a host whose driver is built for the ones it has.",
    "printf 'Unattended-Upgrade::Package-Blacklist { \"linux-\"; };\\n' | "
    "sudo tee /etc/apt/apt.conf.d/52enplace-kernel",
    "https://github.com/GoogleCloudPlatform/compute-gpu-installation/issues/25",
)
def unattended_kernel(facts: Facts) -> Verdict:
    if not facts.installed(DRIVERS):
        return not_applicable("no driver is installed")
    return unattended(facts, common.KERNEL)


@catalogue.trap(
    "no-holds",
    "any",
    "Drivers are on hold: a plain upgrade would move them.",
    "sudo apt-mark hold 'nvidia-*-580*' 'libnvidia-*-580*' 'linux-modules-nvidia-*' 'habanalabs-*'",
    "https://github.com/GoogleCloudPlatform/compute-gpu-installation/issues/25",
)
def no_holds(facts: Facts) -> Verdict:
    found = sorted(facts.installed(DRIVERS))
    if not found:
        return not_applicable("no driver is installed")
    free = facts.held(found)
    if not free:
        return ok(f"{len(found)} packages are on hold")
    return warn(f"not on hold: {common.listed(free)}", f"sudo apt-mark hold {' '.join(free)}")


@catalogue.trap(
    "vendor-source-twice",
    "any",
    "No repository of a vendor is named in two files: apt refuses all work where their keys differ.",
    "remove one of the two files, then sudo apt-get update",
    "https://github.com/NVIDIA/nvidia-docker/issues/1631",
)
def source_twice(facts: Facts) -> Verdict:
    seen: dict[tuple[str, str], list[str]] = {}
    for source in facts("apt.sources"):
        if source["enabled"]:
            files = seen.setdefault((source["url"].rstrip("/"), source["suite"]), [])
            if source["file"] not in files:
                files.append(source["file"])
    if not seen:
        return not_applicable("apt knows no repository of a vendor")
    twice = {url: files for (url, _suite), files in seen.items() if len(files) > 1}
    if not twice:
        return ok(common.listed(url for url, _suite in seen))
    told = "; ".join(f"{url} in {common.listed(files)}" for url, files in twice.items())
    return trap(told, f"sudo rm {next(iter(twice.values()))[0]}; sudo apt-get update")


@catalogue.trap(
    "vendor-source-key",
    "any",
    "Each repository of a vendor names its own key.",
    "add Signed-By: /usr/share/keyrings/<key>.gpg to the source",
    "https://manpages.ubuntu.com/manpages/noble/man5/sources.list.5.html",
)
def source_key(facts: Facts) -> Verdict:
    sources = [source for source in facts("apt.sources") if source["enabled"]]
    if not sources:
        return not_applicable("apt knows no repository of a vendor")
    without = sorted({source["file"] for source in sources if not source["signed_by"]})
    return warn(f"any key that apt trusts counts for {common.listed(without)}") if without else ok("all do")


# Boot ----------------------------------------------------------------------------------------------------------------


@catalogue.trap(
    "boot-full",
    "any",
    "/boot has room for another kernel and its initrd.",
    "sudo apt-get autoremove --purge; df -h /boot",
    "https://help.ubuntu.com/community/RemoveOldKernels",
)
def boot_full(facts: Facts) -> Verdict:
    free = facts("boot.free_bytes")
    largest = facts.maybe("boot.largest_initrd_bytes")
    # While a new initrd is made the old one of that kernel is still there, and the kernel itself is beside both.
    needed = 2 * largest + 64 * 2**20 if largest else 512 * 2**20
    told = f"{common.mib(free)} free, about {common.mib(needed)} needed"
    return ok(told) if free >= needed else trap(told)


@catalogue.trap(
    "reboot-required",
    "any",
    "No package waits for a restart.",
    "sudo reboot",
    "https://manpages.ubuntu.com/manpages/noble/man8/update-notifier.8.html",
)
def reboot_required(facts: Facts) -> Verdict:
    waiting = facts("boot.reboot_required")
    return warn(f"waiting: {common.listed(waiting)}") if waiting else ok("none waits")


@catalogue.trap(
    "kernel-headers",
    "any",
    "Where DKMS builds a driver, every installed kernel has its headers.",
    "sudo apt-get install linux-headers-$(uname -r)",
    "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/pre-installation-actions.html",
)
def kernel_headers(facts: Facts) -> Verdict:
    if not uses_dkms(facts):
        return not_applicable("no driver is built by DKMS")
    lacking = [kernel["release"] for kernel in facts("kernel.installed") if not kernel["headers"]]
    if not lacking:
        return ok(f"all {len(facts('kernel.installed'))} kernels have them")
    return trap(f"none for {common.listed(lacking)}", f"sudo apt-get install linux-headers-{lacking[0]}")


@catalogue.trap(
    "secure-boot-module",
    "any",
    "Where Secure Boot is on, the driver's module is signed with a key that the firmware knows.",
    "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der, restart, and enrol the key at the console; or install the "
    "signed linux-modules-nvidia packages instead of DKMS",
    "https://wiki.ubuntu.com/UEFI/SecureBoot/DKMS https://docs.habana.ai/en/latest/Management_and_Monitoring/"
    "Embedded_System_Tools_Guide/Enable_Secure_Boot.html",
)
def secure_boot(facts: Facts) -> Verdict:
    enabled = facts.maybe("secure_boot.enabled")
    if enabled is False:
        return ok(f"Secure Boot is off ({facts('secure_boot.known_from')})")
    modules = {name: found for name in ("nvidia", "habanalabs") if (found := facts.module(facts.running_kernel, name))}
    if not modules:
        return not_applicable("no driver module is installed for the running kernel")
    if enabled is None:
        return unknown("whether Secure Boot is on", "sudo mokutil --sb-state")
    for name, module in modules.items():
        if name in facts("modules"):
            continue
        if module["signer"] is None:
            return trap(f"Secure Boot is on, and {name} ({module['path']}) has no signature")
        if facts.maybe("secure_boot.key_waits_for_reboot"):
            return trap(
                f"{name} is signed by {module['signer']}, whose key waits for a restart", "sudo reboot, at the console"
            )
        if "/dkms/" in module["path"]:
            if facts("secure_boot.key_enrolled") is False:
                return trap(f"{name} is signed by {module['signer']}, whose key is not enrolled")
        elif "Canonical" not in module["signer"]:
            return unknown(f"whether the firmware knows the key of {module['signer'] or 'an unnamed signer'}")
    return ok(common.listed(f"{name}: {module['signer'] or 'loaded'}" for name, module in modules.items()))


# Clock, locale, network ----------------------------------------------------------------------------------------------


@catalogue.trap(
    "clock-wrong",
    "any",
    "The clock is right: it agrees with the controller's, and is not behind the host's own files.",
    "sudo timedatectl set-ntp true; timedatectl",
    "https://manpages.ubuntu.com/manpages/noble/man8/apt-secure.8.html (Release file is not valid yet)",
)
def clock_wrong(facts: Facts) -> Verdict:
    ahead, behind = facts.maybe("clock.ahead_s"), facts.maybe("clock.behind_files_s")
    if behind is not None and behind > CLOCK_S:
        return trap(f"{behind:.0f} s behind the package database")
    if ahead is None:
        return unknown("the controller's time was not given")
    return trap(f"{ahead:+.0f} s beside the controller's") if abs(ahead) > CLOCK_S else ok(f"{ahead:+.0f} s")


@catalogue.trap(
    "clock-not-synchronized",
    "any",
    "The clock is kept right by NTP.",
    "sudo timedatectl set-ntp true",
    "timedatectl(1)",
)
def clock_synchronized(facts: Facts) -> Verdict:
    return ok("synchronized") if facts("clock.synchronized") else warn("not synchronized")


@catalogue.trap(
    "locale",
    "any",
    "The system's locale is one of UTF-8.",
    "sudo localectl set-locale LANG=C.UTF-8",
    "https://docs.python.org/3/using/cmdline.html#envvar-PYTHONUTF8",
)
def locale(facts: Facts) -> Verdict:
    found = facts("locale")
    value = found.get("LC_ALL") or found.get("LC_CTYPE") or found.get("LANG") or ""
    if not value:
        return warn("none is set, so it is C")
    return ok(value) if re.search(r"utf-?8", value, re.IGNORECASE) else warn(value)


@catalogue.trap(
    "proxy-half",
    "any",
    "A proxy that the system has, apt has too, and the other way round.",
    'Acquire::https::Proxy "http://proxy:3128"; in /etc/apt/apt.conf.d/90proxy, and https_proxy in /etc/environment',
    "https://github.com/NVIDIA/deepops/issues/40",
)
def proxy_half(facts: Facts) -> Verdict:
    found = facts("proxy")
    if not found:
        return ok("no proxy")
    if len(found) == 2:
        return ok(common.listed(f"{name} {url}" for name, url in found.items()))
    (name, url), other = next(iter(found.items())), "system" if "apt" in found else "apt"
    todo = (
        f"echo https_proxy={url} | sudo tee -a /etc/environment"
        if other == "system"
        else f"echo 'Acquire::https::Proxy \"{url}\";' | sudo tee /etc/apt/apt.conf.d/90proxy"
    )
    return warn(f"{name} has {url}, {other} has none", todo)


@catalogue.trap(
    "repository-unreachable",
    "any",
    "The vendors' repositories take a connection, directly or through the proxy.",
    "open the way in the firewall, or set a proxy, or mirror the repository and name the mirror in apt's sources",
    "https://github.com/NVIDIA/deepops/issues/35",
)
def repository_unreachable(facts: Facts) -> Verdict:
    asked = facts.of_host("reachable")
    if not asked:
        return not_applicable("none was asked")
    away = [f"{entry['url']}: {entry['error']}" for entry in asked if not entry["ok"]]
    return warn("; ".join(away)) if away else ok(common.listed(entry["url"] for entry in asked))


# What engines need ---------------------------------------------------------------------------------------------------


@catalogue.trap(
    "python-version",
    "any",
    "The host has the Python that the recipe's environment is made with.",
    "sudo apt-get install python3.12 python3.12-venv",
    "the recipe's host.python",
)
def python_version(facts: Facts) -> Verdict:
    wish = facts.wish.python
    if not wish:
        return not_applicable("no recipe of this host names a Python")
    found = sorted(facts("build.python_headers"))
    told = f"{common.listed(found) or 'none'} in /usr/bin, {wish} wanted"
    return ok(told) if wish in found else trap(told, f"sudo apt-get install python{wish} python{wish}-venv")


@catalogue.trap(
    "python-headers",
    "any",
    "Python.h is there where an engine compiles at its first start: a virtual environment does not bring it.",
    "sudo apt-get install python3.12-dev",
    "https://github.com/vllm-project/vllm/issues/27890",
)
def python_headers(facts: Facts) -> Verdict:
    if not compiles(facts):
        return not_applicable("no accelerator here, and none wanted")
    version = facts.wish.python or facts("build.python")
    if not version:
        raise Missing("which Python is meant")
    if facts("build.python_headers").get(version):
        return ok(f"/usr/include/python{version}/Python.h")
    return trap(f"no /usr/include/python{version}/Python.h", f"sudo apt-get install python{version}-dev")


@catalogue.trap(
    "compiler",
    "any",
    "gcc and g++ are there where an engine compiles at its first start.",
    "sudo apt-get install build-essential",
    "https://docs.vllm.ai/en/latest/getting_started/installation/",
)
def compiler(facts: Facts) -> Verdict:
    if not compiles(facts):
        return not_applicable("no accelerator here, and none wanted")
    lacking = [name for name in ("gcc", "g++") if not facts("build.tools").get(name)]
    return trap(f"not there: {common.listed(lacking)}") if lacking else ok("both are there")


@catalogue.trap(
    "ninja",
    "gb10",
    "ninja is on the system's path; engines of enplace have their own, others started by hand may not find theirs.",
    "sudo apt-get install ninja-build",
    "https://github.com/flashinfer-ai/flashinfer/pull/3386",
)
def ninja(facts: Facts) -> Verdict:
    return ok("/usr/bin/ninja") if facts("build.tools").get("ninja") else warn("no ninja in /usr/bin")


@catalogue.trap(
    "glibc",
    "any",
    "The C library is new enough for the wheels of the engines' locks (2.34).",
    "install Ubuntu 22.04 or newer, or Debian 12 or newer",
    "https://github.com/pypa/manylinux (tilelang, which a lock holds, ships manylinux_2_34 alone)",
)
def glibc(facts: Facts) -> Verdict:
    version = facts.packages.get("libc6", "")
    if not version:
        raise Missing("libc6 among the packages")
    told = f"libc6 {version}"
    return ok(told) if common.numbers(version)[:2] >= GLIBC else trap(told)
