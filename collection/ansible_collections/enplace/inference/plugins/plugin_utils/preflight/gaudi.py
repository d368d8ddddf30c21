# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Traps of servers with Gaudi 2 cards."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..traps import GAUDI2, Catalogue, Facts, Missing, Verdict, not_applicable, ok, trap, unknown, warn
from . import common

catalogue = Catalogue()

INSTALL = "https://docs.habana.ai/en/latest/Installation_Guide/Driver_Installation.html"
VERIFY = "https://docs.habana.ai/en/latest/Installation_Guide/SW_Verification.html"
CUSTOM = "https://docs.habana.ai/en/latest/Installation_Guide/Custom_Driver_and_Software_Installation.html"
HL_SMI = (
    "https://docs.habana.ai/en/latest/Management_and_Monitoring/Embedded_System_Tools_Guide/"
    "System_Management_Interface_Tool.html"
)
PACKAGES = r"habanalabs-.*"
# What a bare host needs beside the driver is decided by its use; these two belong to the driver itself.
DRIVER = r"habanalabs-(dkms|firmware)"


def loaded(facts: Facts) -> str:
    """The version of the loaded driver, empty where none is loaded."""
    return str(facts("modules").get("habanalabs", ""))


def wanted(facts: Facts) -> str:
    """The release that is meant: that of the recipes, or of the packages that are installed. Raises Missing."""
    if facts.wish.gaudi_software:
        return facts.wish.gaudi_software
    for version in facts.installed(r"habanalabs-dkms").values():
        return version
    raise Missing("the release that is wanted")


def build_of(facts: Facts) -> str:
    """Release and build, as packages have it: `1.24.1-482`; a star where the build is not known."""
    wish = facts.wish.gaudi_software or "1.24.1"
    if "-" in wish:
        return wish
    return f"{wish}-{common.GAUDI[wish]['build'] if wish in common.GAUDI else '*'}"


def rows(facts: Facts, column: str) -> Sequence[str | None]:
    """A column of hl-smi. Raises Missing where it has no rows."""
    found = facts("cards.habana")
    if not found:
        raise Missing("the rows of hl-smi")
    return [row[column] for row in found]


# Cards ---------------------------------------------------------------------------------------------------------------


@catalogue.trap(
    "gaudi-no-driver",
    "gaudi2",
    "Gaudi cards are on the bus and their driver is loaded.",
    "sudo apt-get install dkms linux-headers-$(uname -r) habanalabs-firmware=1.24.1-482 habanalabs-dkms=1.24.1-482; "
    "sudo modprobe habanalabs",
    CUSTOM,
)
def no_driver(facts: Facts) -> Verdict:
    cards = facts.cards("habana")
    if not cards:
        return trap("no Gaudi card on the PCI bus", "use another host, or take the recipe from enplace_recipes")
    if "habanalabs" in facts("modules"):
        return ok(f"{len(cards)} on the bus, driver {loaded(facts)} loaded")
    there = facts.installed(DRIVER)
    if there:
        todo = "sudo modprobe habanalabs; sudo dmesg | grep habana"
        return trap(f"no driver is loaded, though installed: {common.versions(there)}", todo)
    return trap(
        "no driver is loaded and none is installed",
        f"sudo apt-get install dkms linux-headers-$(uname -r) habanalabs-firmware={build_of(facts)} "
        f"habanalabs-dkms={build_of(facts)}; sudo modprobe habanalabs",
    )


@catalogue.trap(
    "gaudi-other-cards",
    "gaudi2",
    "The cards are Gaudi 2.",
    "use a recipe that is for these cards, or another host",
    "https://github.com/HabanaAI/vllm-fork/issues/776 https://github.com/intel/PerfSpect/issues/478",
)
def other_cards(facts: Facts) -> Verdict:
    cards = facts.cards("habana")
    if not cards:
        return not_applicable("no card on the bus")
    others = [f"{card['address']} {card['device']}" for card in cards if card["device"] not in GAUDI2]
    return trap(f"no Gaudi 2: {common.listed(others)}") if others else ok(f"{len(cards)} Gaudi 2")


@catalogue.trap(
    "gaudi-too-few-cards",
    "gaudi2",
    "The host has as many cards as its largest recipe uses.",
    "use another variant of the recipe, or another host",
    "the recipe's count",
)
def too_few_cards(facts: Facts) -> Verdict:
    if not facts.wish.cards:
        return not_applicable("no recipe of this host says how many it uses")
    there = len(facts.cards("habana"))
    told = f"{there} on the bus, {facts.wish.cards} wanted"
    return ok(told) if there >= facts.wish.cards else trap(told)


@catalogue.trap(
    "gaudi-count",
    "gaudi2",
    "PCI bus, device nodes and hl-smi count the same number of cards.",
    "sudo dmesg | grep habana; sudo reboot; a card that stays away: seat it anew, or ask the vendor",
    VERIFY,
)
def count(facts: Facts) -> Verdict:
    return common.counts(facts, "habana", "hl-smi")


@catalogue.trap(
    "gaudi-device-nodes",
    "gaudi2",
    "/dev/accel has the nodes of the cards.",
    "sudo modprobe habanalabs; ls /dev/accel; sudo dmesg | grep habana",
    "https://github.com/HabanaAI/habanalabs-container-runtime",
)
def device_nodes(facts: Facts) -> Verdict:
    found = facts("nodes.habana")
    if not found:
        return trap("nothing in /dev/accel")
    if found[0].startswith("/dev/hl"):
        return trap("/dev/hl0 instead of /dev/accel/accel0: a driver older than 1.12", "install the recipe's release")
    return ok(common.listed(found, 8))


@catalogue.trap(
    "gaudi-card-dead",
    "gaudi2",
    "Every card was initialized: it is operational and has a temperature. 0 C means that it failed.",
    "sudo dmesg | grep habana; sudo reboot; a card that stays so: sudo hl-smi -q -i <address>, and ask the vendor",
    VERIFY,
)
def card_dead(facts: Facts) -> Verdict:
    dead = [
        f"{card['name']} is {card['status']}" for card in facts("accel") if card["status"] not in (None, "operational")
    ]
    temperatures = rows(facts, "temperature.aip")
    numbers = [None if text is None else common.numbers(text)[:1] for text in temperatures]
    dead += [f"card {row} has 0 C" for row, number in enumerate(numbers) if number == (0,)]
    if dead:
        return trap(common.listed(dead))
    if None in temperatures:
        return unknown(
            "hl-smi does not say the temperature of every card", "sudo hl-smi, as root and not in a container"
        )
    return ok(f"{len(temperatures)} cards, {common.listed(map(str, temperatures), 8)}")


@catalogue.trap(
    "gaudi-hl-smi-fails",
    "gaudi2",
    "hl-smi answers.",
    "sudo apt-get install habanalabs-firmware-tools=1.24.1-482; sudo hl-smi",
    HL_SMI,
)
def hl_smi_fails(facts: Facts) -> Verdict:
    source = facts("sources.hl-smi")
    if not source["found"]:
        return trap("hl-smi is not installed", f"sudo apt-get install habanalabs-firmware-tools={build_of(facts)}")
    if source["rc"] == 0 and facts("cards.habana"):
        return ok(f"{len(facts('cards.habana'))} rows")
    return trap(f"return code {source['rc']}: {source['error'] or 'no rows'}".replace("\n", "; "))


@catalogue.trap(
    "gaudi-hl-smi-silent",
    "gaudi2",
    "hl-smi knows the name, memory and temperature of every card.",
    "sudo hl-smi: as root and not in a container it knows more",
    "https://github.com/opea-project/Enterprise-Inference/issues/11",
)
def hl_smi_silent(facts: Facts) -> Verdict:
    silent = [name for name in ("name", "memory.total", "temperature.aip") if None in rows(facts, name)]
    return warn(f"N/A for {common.listed(silent)}") if silent else ok("it says all three")


# Releases ------------------------------------------------------------------------------------------------------------


@catalogue.trap(
    "gaudi-mixed-packages",
    "gaudi2",
    "All habanalabs packages are of one release: a plain upgrade mixes them.",
    "sudo apt-get install --allow-downgrades habanalabs-dkms=1.24.1-482 and all others in the same version, then "
    "sudo apt-mark hold 'habanalabs-*'",
    CUSTOM,
)
def mixed_packages(facts: Facts) -> Verdict:
    found = facts.installed(PACKAGES)
    if not found:
        return not_applicable("no habanalabs package is installed")
    if len(set(found.values())) == 1:
        return ok(f"{len(found)} packages of {next(iter(found.values()))}")
    build = build_of(facts)
    wanted_ones = " ".join(f"{name}={build}" for name in sorted(found))
    return trap(common.versions(found), f"sudo apt-get install --allow-downgrades {wanted_ones}")


@catalogue.trap(
    "gaudi-release",
    "gaudi2",
    "The loaded driver is of the release that the recipe was verified with: engine and release go together one to one.",
    "install the recipe's release of every habanalabs package, then sudo reboot",
    "https://github.com/vllm-project/vllm-gaudi (README: supported releases) https://github.com/HabanaAI/vllm-fork/issues/380",
)
def wrong_release(facts: Facts) -> Verdict:
    wish = facts.wish.gaudi_software
    if not wish:
        return not_applicable("no recipe of this host names a release")
    version = loaded(facts)
    if not version:
        raise Missing("the version of a loaded driver")
    packaged = facts.installed(r"habanalabs-dkms").get("habanalabs-dkms", "")
    build = wish.partition("-")[2]
    if common.release(version) != common.release(wish):
        return trap(f"driver {version} is loaded, {wish} is wanted")
    if build and packaged and packaged != wish:
        return trap(f"habanalabs-dkms {packaged} is installed, {wish} is wanted")
    return ok(f"driver {version}" + (f", package {packaged}" if packaged else ""))


@catalogue.trap(
    "gaudi-loaded-older",
    "gaudi2",
    "The loaded module is the one that is installed for the running kernel.",
    "sudo reboot",
    VERIFY,
)
def loaded_older(facts: Facts) -> Verdict:
    version = loaded(facts)
    if not version:
        return not_applicable("no driver is loaded")
    module = facts.module(facts.running_kernel, "habanalabs")
    if not module or not module["version"]:
        raise Missing("the version of the installed module")
    if module["version"] == version:
        return ok(f"{version} is loaded and installed")
    return trap(f"{version} is loaded, {module['version']} is installed")


@catalogue.trap(
    "gaudi-module-running",
    "gaudi2",
    "The running kernel has the module habanalabs.",
    "sudo apt-get install linux-headers-$(uname -r); sudo dkms autoinstall -k $(uname -r); sudo modprobe habanalabs",
    "https://github.com/dell/omnia (known issue: a kernel update during provisioning, then hl-smi finds no driver)",
)
def module_running(facts: Facts) -> Verdict:
    return common.module_of_running(facts, "habanalabs")


@catalogue.trap(
    "gaudi-module-next",
    "gaudi2",
    "Every installed kernel has the module habanalabs: the next start may take another one.",
    "sudo apt-get purge linux-image-<kernel>, or build the module for it: sudo dkms autoinstall -k <kernel>",
    "https://github.com/dell/omnia (known issue: a kernel update during provisioning, then hl-smi finds no driver)",
)
def module_next(facts: Facts) -> Verdict:
    def todo(kernel: str) -> str:
        return f"sudo apt-get purge linux-image-{kernel}, or: sudo dkms autoinstall -k {kernel}"

    return common.module_of_others(facts, "habanalabs", todo)


@catalogue.trap(
    "gaudi-modules-loaded",
    "gaudi2",
    "The modules for the network between cards are loaded too: habanalabs_cn, _en, _ib, and ib_uverbs.",
    "sudo modprobe ib_uverbs; sudo modprobe habanalabs_cn habanalabs_en habanalabs_ib; lsmod | grep habana",
    VERIFY,
)
def modules_loaded(facts: Facts) -> Verdict:
    there = facts("modules")
    if "habanalabs" not in there:
        return not_applicable("habanalabs itself is not loaded")
    lacking = [name for name in ("habanalabs_cn", "habanalabs_en", "habanalabs_ib", "ib_uverbs") if name not in there]
    if not lacking:
        return ok("all are loaded")
    return trap(f"not loaded: {common.listed(lacking)}", f"sudo modprobe -a {' '.join(reversed(lacking))}")


@catalogue.trap(
    "gaudi-dkms",
    "gaudi2",
    "DKMS has built and installed the driver for the running kernel, and the file there is the one it built.",
    "sudo dkms install --force habanalabs/1.24.1-482 -k $(uname -r); see /var/lib/dkms/habanalabs/*/build/make.log",
    "https://github.com/dkms-project/dkms https://github.com/intel/media-delivery/issues/172",
)
def dkms(facts: Facts) -> Verdict:
    if not facts("sources.dkms.found"):
        return not_applicable("no DKMS here")
    running = facts("kernel.running")
    entries = [entry for entry in facts("dkms") if entry["module"].startswith("habanalabs")]
    if not entries:
        return not_applicable("DKMS has no habanalabs")
    for entry in entries:
        if entry["kernel"] == running and entry["state"] == "installed" and "WARNING" not in entry["note"]:
            return ok(f"habanalabs/{entry['version']} is installed for {running}")
    told = common.listed(
        f"{entry['version']} {entry['kernel']} {entry['state']} {entry['note']}".strip() for entry in entries
    )
    version = entries[0]["version"]
    return trap(told, f"sudo dkms install --force habanalabs/{version} -k {running}")


@catalogue.trap(
    "gaudi-firmware",
    "gaudi2",
    "The firmware that the cards booted is the one that the release wants, on all of them.",
    "sudo hl-fw-loader (package habanalabs-firmware-odm), as the vendor's page on firmware upgrades says",
    common.GAUDI_MATRIX,
)
def firmware(facts: Facts) -> Verdict:
    found = {}
    for card in facts("accel"):
        match = re.search(r"\d+\.\d+\.\d+-(rc-)?fw-?[\d.]*\d", card["preboot_btl_ver"] or "")
        if not match:
            raise Missing(f"the firmware of {card['name']}")
        found[card["name"]] = match.group()
    if not found:
        raise Missing("/sys/class/accel")
    if len(set(found.values())) > 1:
        return trap(common.listed(f"{name} {version}" for name, version in found.items()))
    version = next(iter(found.values()))
    wish = common.release(wanted(facts))
    if wish not in common.GAUDI:
        return unknown(f"{version} on all cards; what release {wish} wants is not known here")
    expected = common.GAUDI[wish]["firmware"]
    told = f"{version} on all cards, release {wish} goes with {expected}"
    return ok(told) if version == expected else trap(told)


# The host ------------------------------------------------------------------------------------------------------------


@catalogue.trap(
    "gaudi-kernel",
    "gaudi2",
    "The running kernel is one that the release supports: 5.15 or newer on Ubuntu 22.04, 6.8 on Ubuntu 24.04.",
    "sudo apt-get install linux-image-generic linux-headers-generic; start that kernel and hold it",
    common.GAUDI_MATRIX,
)
def kernel(facts: Facts) -> Verdict:
    wish = common.release(wanted(facts))
    if wish not in common.GAUDI:
        return unknown(f"which kernels release {wish} supports is not known here")
    running = facts("kernel.running")
    name, version = facts("os.id"), facts("os.version")
    expected = common.GAUDI[wish]["kernels"].get(version) if name == "ubuntu" else None
    if expected is None:
        return warn(f"{facts('os.name') or name} is none of Ubuntu 22.04 and 24.04", "install Ubuntu 24.04")
    found = common.numbers(running)[:2]
    supported = found >= expected if version == "22.04" else found == expected
    told = f"{running} on Ubuntu {version}"
    return ok(told) if supported else trap(f"{told}, release {wish} is for {'.'.join(map(str, expected))}")


@catalogue.trap(
    "gaudi-iommu",
    "gaudi2",
    "The IOMMU passes the cards through: the kernel was started with iommu=pt, and intel_iommu=on on Intel.",
    'GRUB_CMDLINE_LINUX_DEFAULT="... iommu=pt intel_iommu=on" in /etc/default/grub; sudo update-grub; sudo reboot',
    f"{INSTALL} (Ubuntu 22.04.5 and 24.04.2 with kernel 6.8)",
)
def iommu(facts: Facts) -> Verdict:
    options = facts("kernel.options")
    kinds = set(facts("iommu.types").values())
    if kinds and kinds <= {"identity"}:
        return ok("the cards' groups are of type identity")
    if kinds - {"identity"}:
        return trap(
            f"the cards' groups are of type {common.listed(sorted(kinds))}; options {common.listed(options) or 'none'}"
        )
    if not facts("iommu.units") and "iommu=pt" not in options:
        return warn("no IOMMU is active, and iommu=pt is not set")
    return ok("iommu=pt") if "iommu=pt" in options else trap(f"options {common.listed(options) or 'none'}")


@catalogue.trap(
    "gaudi-huge-pages",
    "gaudi2",
    "Huge pages are reserved. How many the release wants stands in the sysctl file of its installer.",
    "sudo sysctl --system; grep -r nr_hugepages /etc/sysctl.d /usr/lib/sysctl.d",
    f"{INSTALL} (the installer sets them; how many, no public page says)",
)
def huge_pages(facts: Facts) -> Verdict:
    number = facts("memory.huge_pages")
    size = facts.maybe("memory.huge_page_bytes")
    return ok(f"{number} of {common.mib(size) if size else 'unknown size'}") if number else trap("HugePages_Total is 0")


@catalogue.trap(
    "gaudi-nics-down",
    "gaudi2",
    "The network interfaces of the cards were brought up, where a recipe uses several cards; each load of the driver "
    "leaves them down. One without a link is a port without a cable.",
    "sudo /opt/habanalabs/qual/gaudi2/bin/manage_network_ifs.sh --up (package habanalabs-qual)",
    INSTALL,
)
def nics_down(facts: Facts) -> Verdict:
    if len(facts.cards("habana")) < 2 or (facts.wish.accelerators and facts.wish.cards < 2):
        return not_applicable("one card alone is used")
    interfaces = [entry for entry in facts("network") if entry["vendor"] == "habana"]
    if not interfaces:
        return trap("the driver has made no network interface", "sudo modprobe habanalabs_en; sudo dmesg | grep habana")
    if any(entry["up"] is None for entry in interfaces):
        raise Missing("the flags of the cards' interfaces")
    down = [entry["name"] for entry in interfaces if not entry["up"]]
    linked = sum(entry["state"] == "up" for entry in interfaces)
    told = f"{len(interfaces) - len(down)} of {len(interfaces)} are up, {linked} have a link"
    return trap(f"{told}; not up: {common.listed(down)}") if down else ok(told)


@catalogue.trap(
    "gaudi-rdma",
    "gaudi2",
    "/dev/infiniband has the cards' nodes, where a recipe uses several cards.",
    "sudo modprobe -a ib_uverbs habanalabs_ib; sudo apt-get install habanalabs-rdma-core=1.24.1-482",
    "https://github.com/HabanaAI/vllm-fork/issues/344",
)
def rdma(facts: Facts) -> Verdict:
    if len(facts.cards("habana")) < 2 or (facts.wish.accelerators and facts.wish.cards < 2):
        return not_applicable("one card alone is used")
    found = facts("nodes.infiniband")
    return ok(f"{len(found)} nodes") if found else trap("nothing in /dev/infiniband")


@catalogue.trap(
    "gaudi-memlock",
    "gaudi2",
    "What systemd starts may lock memory without a limit.",
    "printf '[Manager]\\nDefaultLimitMEMLOCK=infinity\\n' | sudo tee /etc/systemd/system.conf.d/memlock.conf; "
    "sudo systemctl daemon-reexec",
    "https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html (RLIMIT_MEMLOCK)",
)
def memlock(facts: Facts) -> Verdict:
    limit = facts("limits.DefaultLimitMEMLOCK")
    if limit in ("infinity", str(2**64 - 1)):
        return ok("no limit")
    return warn(f"DefaultLimitMEMLOCK is {limit}; units of enplace lift it for themselves")


@catalogue.trap(
    "gaudi-container-runtime",
    "gaudi2",
    "Where there is a Docker, it can give cards to containers.",
    "sudo apt-get install habanalabs-container-runtime=1.24.1-482; name the runtime habana in /etc/docker/daemon.json; "
    "sudo systemctl restart docker",
    "https://github.com/HabanaAI/habanalabs-container-runtime",
)
def container_runtime(facts: Facts) -> Verdict:
    return common.runtime(facts, "habana", "habana-container-runtime")


@catalogue.trap(
    "gaudi-torch-cpu",
    "gaudi2",
    "No torch for the CPU lies over Gaudi's: pip install torch puts one there.",
    "install torch from the release's pytorch_modules archive again: habanalabs-installer.sh install --type pytorch",
    "https://github.com/vllm-project/vllm-gaudi/pull/330",
)
def torch_cpu(facts: Facts) -> Verdict:
    places = facts("torch")
    if not places:
        return not_applicable("no torch in the usual places")
    wrong = [
        f"{place['path']}: torch {place['torch']}, habana_torch_plugin {place['habana'] or 'missing'}"
        for place in places
        if not place["habana"] or re.search(r"\+(cpu|cu\d+)", place["torch"])
    ]
    return (
        trap("; ".join(wrong))
        if wrong
        else ok(common.listed(f"{place['torch']} with {place['habana']}" for place in places))
    )
