# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Traps of NVIDIA GPUs, and of the GB10 of a DGX Spark."""

from __future__ import annotations

import re

from ..traps import Catalogue, Facts, Missing, Verdict, not_applicable, ok, trap, unknown, warn
from . import common

catalogue = Catalogue()

INSTALL = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
SPARK = "https://docs.nvidia.com/dgx/dgx-spark/known-issues.html"


def loaded(facts: Facts) -> str:
    """The version of the loaded driver, empty where none is loaded."""
    if facts.maybe("driver.nvidia"):
        return str(facts("driver.nvidia"))
    return str(facts("modules").get("nvidia", ""))


def wanted(facts: Facts) -> str:
    return facts.wish.drivers.get("nvidia", "")


def branch_of(facts: Facts) -> str:
    """The driver's branch that is meant: that of the recipes, of the loaded driver, or the newest that is installed."""
    version = wanted(facts) or loaded(facts)
    if version:
        return version.partition(".")[0]
    found = branches(facts)
    return found[-1] if found else "580"


def branches(facts: Facts) -> list[str]:
    """The branches of the driver that are installed, a half installed one among them."""
    names = [*facts.packages, *facts("packages.broken")]
    found = {
        match[1]
        for name in names
        if (match := re.match(r"(?:nvidia-(?:driver|dkms|utils)|libnvidia-compute)-(\d+)", name))
    }
    return sorted(found, key=int)


def smi(facts: Facts, column: str) -> list[str | None]:
    """A column of nvidia-smi. Raises Missing where it has no rows."""
    rows = facts("cards.nvidia")
    if not rows:
        raise Missing("the rows of nvidia-smi")
    return [row[column] for row in rows]


def is_gb10(facts: Facts) -> bool:
    return "gb10" in facts.platforms()


# The driver ----------------------------------------------------------------------------------------------------------


@catalogue.trap(
    "nvidia-no-driver",
    "nvidia",
    "A GPU is on the bus and a driver is loaded.",
    "sudo apt-get install nvidia-driver-580-open linux-modules-nvidia-580-open-nvidia-hwe-24.04, then restart",
    INSTALL,
)
def no_driver(facts: Facts) -> Verdict:
    cards = facts.cards("nvidia")
    if not cards:
        return trap("no NVIDIA GPU on the PCI bus", "use another host, or take the recipe from enplace_recipes")
    version = loaded(facts)
    if version:
        return ok(f"{len(cards)} on the bus, driver {version} loaded")
    there = common.versions(facts.installed(common.NVIDIA_DRIVER))
    if there:
        todo = "sudo modprobe nvidia; sudo dmesg | grep -iE 'nvidia|NVRM'"
        return trap(f"no driver is loaded, though installed: {there}", todo)
    return trap("no driver is loaded and none is installed")


@catalogue.trap(
    "nvidia-driver-version",
    "nvidia",
    "The loaded driver is the one that the recipe was verified with, to the last figure: 580.159.04 is not 580.159.03.",
    "pin the recipe's version (Pin-Priority: 1001 in /etc/apt/preferences.d), install it, restart",
    "the recipe's host.driver; Ubuntu's archive has 580.159.03-0ubuntu0.24.04.1, NVIDIA's own 580.159.04-1ubuntu1",
)
def driver_version(facts: Facts) -> Verdict:
    wish, version = wanted(facts), loaded(facts)
    if not wish:
        return not_applicable("no recipe of this host names a driver")
    if not version:
        raise Missing("the version of a loaded driver")
    if version == wish:
        return ok(f"{version} is loaded, as wanted")
    package = f"nvidia-driver-{wish.partition('.')[0]}-open"
    return trap(
        f"{version} is loaded, {wish} is wanted",
        f"apt-cache madison {package}; sudo apt-get install --allow-downgrades '{package}={wish}-*'; sudo reboot",
    )


@catalogue.trap(
    "nvidia-driver-candidate",
    "nvidia",
    "What apt would install next is the driver that the recipe wants.",
    "pin the recipe's version (Pin-Priority: 1001 in /etc/apt/preferences.d)",
    "Ubuntu's archive against the pin 600 of NVIDIA's CUDA repository: apt takes the newer build",
)
def driver_candidate(facts: Facts) -> Verdict:
    wish = wanted(facts)
    if not wish:
        return not_applicable("no recipe of this host names a driver")
    package = f"nvidia-driver-{wish.partition('.')[0]}-open"
    if not facts("sources.apt-policy.found"):
        raise Missing("apt-cache policy")
    candidate = facts("apt.candidates").get(package)
    if not candidate:
        return unknown(f"apt knows no {package}, or was not asked for it")
    if common.upstream(candidate) == wish:
        return ok(f"{package} {candidate}")
    pin = f"printf 'Package: *nvidia*{wish.partition('.')[0]}*\\nPin: version {wish}*\\nPin-Priority: 1001\\n'"
    return trap(
        f"apt would install {package} {candidate}, {wish} is wanted",
        f"{pin} | sudo tee /etc/apt/preferences.d/enplace-nvidia",
    )


@catalogue.trap(
    "nvidia-two-branches",
    "nvidia",
    "Packages of one driver branch alone are installed.",
    "sudo apt-get purge '*nvidia*-<branch>*' for the branch that is not wanted",
    "https://github.com/NVIDIA/ansible-role-nvidia-driver/pull/11",
)
def two_branches(facts: Facts) -> Verdict:
    found = branches(facts)
    if not found:
        return not_applicable("no driver is installed from packages")
    if len(found) == 1:
        return ok(f"branch {found[0]} alone")
    kept = branch_of(facts)
    others = [branch for branch in found if branch != kept]
    return trap(
        f"branches {common.listed(found)} side by side",
        f"sudo apt-get purge {' '.join(repr(f'*nvidia*-{branch}*') for branch in others)}",
    )


@catalogue.trap(
    "nvidia-nouveau",
    "nvidia",
    "nouveau has not taken the GPU.",
    "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/nouveau.conf; "
    "sudo update-initramfs -u -k all; sudo reboot",
    "https://github.com/NVIDIA/ansible-role-nvidia-driver/issues/44",
)
def nouveau(facts: Facts) -> Verdict:
    bound = [card["address"] for card in facts.cards("nvidia") if card["driver"] == "nouveau"]
    if bound:
        return trap(f"nouveau drives {common.listed(bound)}")
    if "nouveau" in facts("modules"):
        return trap("the module nouveau is loaded")
    return ok("nouveau is not loaded")


@catalogue.trap(
    "nvidia-module-running",
    "nvidia",
    "The running kernel has the driver's module.",
    "sudo apt-get install linux-modules-nvidia-580-open-$(uname -r); with DKMS: sudo dkms autoinstall -k $(uname -r)",
    INSTALL,
)
def module_running(facts: Facts) -> Verdict:
    return common.module_of_running(facts, "nvidia")


@catalogue.trap(
    "nvidia-module-next",
    "nvidia",
    "Every installed kernel has the driver's module: the next start may take another one.",
    "sudo apt-get install linux-modules-nvidia-580-open-<kernel>, or remove that kernel",
    "https://github.com/TechPreacher/dgx-spark-vllm-cluster (an update brought a kernel without linux-modules-nvidia)",
)
def module_next(facts: Facts) -> Verdict:
    def todo(kernel: str) -> str:
        return f"sudo apt-get install linux-modules-nvidia-{branch_of(facts)}-open-{kernel}, before the next restart"

    return common.module_of_others(facts, "nvidia", todo)


@catalogue.trap(
    "nvidia-loaded-older",
    "nvidia",
    "The loaded module is the one that is installed for the running kernel.",
    "sudo reboot",
    "https://github.com/kubernetes-sigs/kubespray/issues/8540",
)
def loaded_older(facts: Facts) -> Verdict:
    version = loaded(facts)
    if not version:
        return not_applicable("no driver is loaded")
    module = facts.module(facts.running_kernel, "nvidia")
    if not module or not module["version"]:
        raise Missing("the version of the installed module")
    if module["version"] == version:
        return ok(f"{version} is loaded and installed")
    return trap(f"{version} is loaded, {module['version']} is installed")


@catalogue.trap(
    "nvidia-library-mismatch",
    "nvidia",
    "The driver's libraries have the version of the loaded module.",
    "sudo reboot; if it stays: sudo apt-get install --reinstall the driver's packages in one version",
    "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch",
)
def library_mismatch(facts: Facts) -> Verdict:
    version = loaded(facts)
    if not version:
        return not_applicable("no driver is loaded")
    error = facts("sources.nvidia-smi")["error"]
    if "version mismatch" in error:
        return trap(f"nvidia-smi says: {error}".replace("\n", "; "))
    found = {common.upstream(package) for package in facts.installed(r"libnvidia-compute-\d+.*").values()}
    if not found:
        raise Missing("libnvidia-compute among the packages")
    if found == {version}:
        return ok(f"{version} both")
    return trap(f"the module is {version}, libnvidia-compute {common.listed(sorted(found))}")


@catalogue.trap(
    "nvidia-smi-fails",
    "nvidia",
    "nvidia-smi answers.",
    "nvidia-smi; sudo dmesg | grep -iE 'nvidia|NVRM|Xid'",
    INSTALL,
)
def smi_fails(facts: Facts) -> Verdict:
    source = facts("sources.nvidia-smi")
    if not source["found"]:
        return trap("nvidia-smi is not installed", f"sudo apt-get install nvidia-utils-{branch_of(facts)}")
    if source["rc"] == 0 and facts("cards.nvidia"):
        return ok(f"{len(facts('cards.nvidia'))} rows")
    return trap(f"return code {source['rc']}: {source['error'] or 'no rows'}".replace("\n", "; "))


@catalogue.trap(
    "nvidia-count",
    "nvidia",
    "PCI bus, device nodes and nvidia-smi count the same number of GPUs.",
    "sudo dmesg | grep -iE 'NVRM|Xid'; a GPU that fell off the bus comes back with a restart, or not at all",
    "https://docs.nvidia.com/deploy/xid-errors/ (Xid 79: GPU has fallen off the bus)",
)
def count(facts: Facts) -> Verdict:
    return common.counts(facts, "nvidia", "nvidia-smi")


@catalogue.trap(
    "nvidia-device-nodes",
    "nvidia",
    "/dev/nvidia0, /dev/nvidiactl and /dev/nvidia-uvm are there.",
    "sudo nvidia-modprobe -u -c=0; sudo systemctl enable --now nvidia-persistenced",
    "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/ (Device Node Verification)",
)
def device_nodes(facts: Facts) -> Verdict:
    lacking = [name for name in ("/dev/nvidiactl", "/dev/nvidia-uvm") if name not in facts("nodes.nvidia_control")]
    if not facts("nodes.nvidia"):
        lacking.insert(0, "/dev/nvidia0")
    if not lacking:
        return ok("all three are there")
    # The last one is made when CUDA is used first, by a program that a sandboxed service may not run.
    made_later = lacking == ["/dev/nvidia-uvm"]
    told = f"not there: {common.listed(lacking)}"
    return warn(told, "sudo nvidia-modprobe -u -c=0") if made_later else trap(told)


@catalogue.trap(
    "nvidia-persistence",
    "nvidia",
    "The driver stays initialized while nobody uses the GPU.",
    "sudo systemctl enable --now nvidia-persistenced",
    "https://docs.nvidia.com/deploy/driver-persistence/",
)
def persistence(facts: Facts) -> Verdict:
    modes = smi(facts, "persistence_mode")
    unit = facts.unit("nvidia-persistenced.service")
    active = bool(unit and unit.get("ActiveState") == "active")
    if set(modes) == {"Enabled"}:
        return ok("persistence mode is on" + (", nvidia-persistenced runs" if active else ""))
    if None in modes:
        return unknown("nvidia-smi does not say the persistence mode")
    runs = "runs" if active else "does not run"
    return warn(f"persistence mode is {common.listed(map(str, modes))}, nvidia-persistenced {runs}")


@catalogue.trap(
    "nvidia-memory-fields",
    "nvidia",
    "nvidia-smi knows the memory of a GPU that has its own; on a GB10, which has none, [N/A] is right.",
    "on a GB10 read /proc/meminfo (MemAvailable) instead; elsewhere: nvidia-smi -q, and sudo dmesg | grep NVRM",
    SPARK,
)
def memory_fields(facts: Facts) -> Verdict:
    values = smi(facts, "memory.total")
    told = common.listed("N/A" if value is None else f"{value} MiB" for value in values)
    if is_gb10(facts):
        if all(value is None for value in values):
            return ok(f"memory.total is {told}: right on unified memory, /proc/meminfo counts")
        return warn(
            f"memory.total is {told}, where a GB10 says N/A: something stands between nvidia-smi and the driver"
        )
    return trap(f"memory.total is {told}") if None in values else ok(f"memory.total is {told}")


@catalogue.trap(
    "nvidia-mig",
    "nvidia",
    "No GPU is cut into MIG instances; N/A means that it cannot be, as on a GB10.",
    "sudo nvidia-smi -mig 0",
    "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
)
def mig(facts: Facts) -> Verdict:
    modes = smi(facts, "mig.mode.current")
    if "Enabled" in modes:
        return trap(f"MIG is on for GPU {common.listed(n for n, mode in enumerate(modes) if mode == 'Enabled')}")
    return ok("this GPU cannot be cut" if set(modes) == {None} else "MIG is off")


@catalogue.trap(
    "nvidia-container-runtime",
    "nvidia",
    "Where there is a Docker, it can give GPUs to containers.",
    "sudo apt-get install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; "
    "sudo systemctl restart docker",
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
)
def container_runtime(facts: Facts) -> Verdict:
    return common.runtime(facts, "nvidia", "nvidia-ctk")


# CUDA ----------------------------------------------------------------------------------------------------------------


@catalogue.trap(
    "cuda-path",
    "nvidia",
    "/usr/local/cuda leads to the CUDA that the recipe wants.",
    "sudo update-alternatives --set cuda /usr/local/cuda-13.0",
    "https://github.com/vllm-project/vllm/issues/31424",
)
def cuda_path(facts: Facts) -> Verdict:
    wish = facts.wish.cuda
    if not wish:
        return not_applicable("no recipe of this host names a CUDA")
    toolkits, default = facts("cuda.toolkits"), facts("cuda.default")
    if not default:
        package = f"cuda-toolkit-{wish.replace('.', '-')}"
        return trap("there is no /usr/local/cuda", f"sudo apt-get install {package}")
    version = toolkits.get(default, default.rpartition("-")[2])
    if common.numbers(version)[:2] == common.numbers(wish)[:2]:
        return ok(f"/usr/local/cuda leads to {version}")
    there = [folder for folder in toolkits if folder.endswith(f"-{wish}")]
    install = f"sudo apt-get install cuda-toolkit-{wish.replace('.', '-')}; "
    todo = ("" if there else install) + f"sudo update-alternatives --set cuda /usr/local/cuda-{wish}"
    return trap(f"/usr/local/cuda leads to {version}, {wish} is wanted", todo)


@catalogue.trap(
    "cuda-compiler",
    "gb10",
    "nvcc and ptxas are there: engines compile kernels for the GB10 at their first start.",
    "sudo apt-get install cuda-toolkit-13-0",
    "https://github.com/vllm-project/vllm/issues/21960 https://github.com/vllm-project/vllm/issues/36077",
)
def cuda_compiler(facts: Facts) -> Verdict:
    lacking = [name for name in ("nvcc", "ptxas") if not facts(f"cuda.{name}")]
    if lacking:
        return trap(f"no {common.listed(lacking)} in {facts('cuda.default') or '/usr/local/cuda'}/bin")
    return ok(f"nvcc and ptxas in {facts('cuda.default')}/bin")


# GB10 ----------------------------------------------------------------------------------------------------------------


@catalogue.trap(
    "gb10-open-module",
    "gb10",
    "The driver's modules are the open ones; the others do not know a GB10.",
    "sudo apt-get install nvidia-driver-580-open; sudo apt-get purge nvidia-driver-580; sudo reboot",
    "https://download.nvidia.com/XFree86/Linux-aarch64/580.159.03/README/kernel_open.html "
    "https://github.com/Start9Labs/start-technologies/pull/3693",
)
def open_module(facts: Facts) -> Verdict:
    if facts.maybe("driver.open") is not None:
        return (
            ok("the open module is loaded") if facts("driver.open") else trap("the loaded module is not the open one")
        )
    closed = facts.installed(r"nvidia-(driver|dkms)-\d+(-server)?")
    if closed:
        return trap(f"installed: {common.versions(closed)}")
    if facts.installed(r"nvidia-(driver|dkms)-\d+(-server)?-open"):
        return ok("the package is the open one")
    raise Missing("/proc/driver/nvidia/version")


@catalogue.trap(
    "gb10-driver-branch",
    "gb10",
    "The driver is of no branch that is known to fail on a GB10.",
    "sudo apt-get install nvidia-driver-580-open; sudo apt-get purge '*nvidia*-590*'; sudo reboot",
    "https://conselara.dev/notes/dgx-spark-gb10-hardware-reference/ (a report of users, not of NVIDIA)",
)
def driver_branch(facts: Facts) -> Verdict:
    version = loaded(facts)
    if not version:
        raise Missing("the version of a loaded driver")
    branch = version.partition(".")[0]
    if branch in common.DENIED_BRANCHES:
        return warn(f"{version}: {common.DENIED_BRANCHES[branch]}")
    return ok(version)


@catalogue.trap(
    "gb10-kernel-denied",
    "gb10",
    "The running kernel, and those that may be started next, are none that a GB10 fails with.",
    'GRUB_CMDLINE_LINUX_DEFAULT="... kho=off" in /etc/default/grub, sudo update-grub, sudo reboot; or start another '
    "kernel and sudo apt-get purge '*7.0.0-1019-nvidia*'",
    "https://github.com/NVIDIA/NV-Kernels/pull/590 https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358",
)
def kernel_denied(facts: Facts) -> Verdict:
    running, options = facts("kernel.running"), facts("kernel.options")
    if "kho=off" in options:
        return ok(f"{running}, with kho=off")
    if running in common.DENIED_KERNELS:
        return trap(f"{running} runs: {common.DENIED_WHY}")
    waiting = [kernel["release"] for kernel in facts.other_kernels if kernel["release"] in common.DENIED_KERNELS]
    if waiting:
        todo = f"sudo apt-get purge {' '.join(repr(f'*{release}*') for release in waiting)}, or start with kho=off"
        return warn(f"installed, and may be started next: {common.listed(waiting)}", todo)
    return ok(running)


@catalogue.trap(
    "gb10-kernel-flavour",
    "gb10",
    "The kernel is NVIDIA's flavour: a GB10 needs patches that others lack.",
    "sudo apt-get install linux-nvidia-hwe-24.04; sudo reboot",
    "https://docs.nvidia.com/dgx/dgx-os-7-user-guide/",
)
def kernel_flavour(facts: Facts) -> Verdict:
    running = facts("kernel.running")
    if re.search(r"-nvidia(-|$)", running):
        return ok(running)
    return warn(f"{running} runs")


@catalogue.trap(
    "gb10-watchdog",
    "gb10",
    "The board's watchdog is fed: on plain Ubuntu without its driver, hosts were seen to reset every 20 minutes.",
    "echo sbsa_gwdt | sudo tee /etc/modules-load.d/sbsa_gwdt.conf; sudo modprobe sbsa_gwdt",
    "https://github.com/timothystewart6/ubuntu-gb10",
)
def watchdog(facts: Facts) -> Verdict:
    if facts("dgx"):
        return ok("DGX OS sees to it")
    if "sbsa_gwdt" in facts("modules"):
        return ok("sbsa_gwdt is loaded")
    return warn("no DGX OS, and sbsa_gwdt is not loaded; it may also be built into the kernel")


@catalogue.trap(
    "gb10-swap",
    "gb10",
    "Swap, where there is some, is used late: the memory of the GPU is the host's.",
    "echo vm.swappiness=10 | sudo tee /etc/sysctl.d/90-swappiness.conf; sudo sysctl --system",
    "https://github.com/jschmied/dgx-spark-setup-guide",
)
def swap(facts: Facts) -> Verdict:
    if not facts("memory.swap_on"):
        return ok("no swap")
    swappiness = facts("memory.swappiness")
    told = f"swap on {common.listed(facts('memory.swap_on'))}, vm.swappiness {swappiness}"
    return ok(told) if swappiness <= 10 else warn(told)


@catalogue.trap(
    "gb10-oom-daemon",
    "gb10",
    "A daemon that ends processes when memory is short spares logins: no control group sees what the GPU takes.",
    "EARLYOOM_ARGS=\"-m 2 -s 80 --prefer '(^|/)(vllm|python)' --avoid '(^|/)(init|sshd|systemd)'\" in "
    "/etc/default/earlyoom; sudo systemctl restart earlyoom",
    "https://github.com/jschmied/dgx-spark-setup-guide https://github.com/rfjakob/earlyoom",
)
def oom_daemon(facts: Facts) -> Verdict:
    oomd = facts.unit("systemd-oomd.service")
    if oomd and oomd.get("ActiveState") == "active":
        todo = "sudo systemctl disable --now systemd-oomd"
        return warn("systemd-oomd runs, which judges by control groups and so does not see the GPU's memory", todo)
    early = facts.unit("earlyoom.service")
    if not early or early.get("ActiveState") != "active":
        return ok("none runs")
    arguments = facts("earlyoom")
    if "--avoid" in arguments and "ssh" in arguments:
        return ok(f"earlyoom with {arguments}")
    return warn(f"earlyoom runs with {arguments or 'its defaults'}, and may end logins")


@catalogue.trap(
    "gb10-login-memory",
    "gb10",
    "Logins keep memory when the GPU takes all: user.slice has a MemoryMin.",
    "run site.yml: the role host protects user.slice, ssh and logind on such hosts",
    "https://github.com/jschmied/dgx-spark-setup-guide",
)
def login_memory(facts: Facts) -> Verdict:
    unit = facts.unit("user.slice")
    if unit is None or "MemoryMin" not in unit:
        raise Missing("MemoryMin of user.slice")
    limited = [f"{key}={unit[key]}" for key in ("MemoryMax", "MemoryHigh") if unit.get(key, "infinity").isdigit()]
    if limited:
        told = f"user.slice is limited ({common.listed(limited)}), which what is run by hand there counts against"
        return warn(told, "sudo systemctl revert user.slice, or raise the limit")
    if unit["MemoryMin"] == "0":
        return warn("user.slice has no MemoryMin")
    return ok(f"user.slice has MemoryMin {unit['MemoryMin']}")


@catalogue.trap(
    "gb10-memory-held",
    "gb10",
    "As much memory is available as the recipe's server needs, or the server that is to be replaced holds it.",
    "ps -eo pid,rss,comm --sort=-rss | head; nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
    "https://github.com/vllm-project/vllm/issues/48140",
)
def memory_held(facts: Facts) -> Verdict:
    needed = facts.wish.memory_bytes
    if not needed:
        return not_applicable("no recipe of this host says what it needs")
    available = facts("memory.available_bytes")
    told = f"MemAvailable {common.gib(available)}, needed {common.gib(needed)}"
    return ok(told) if available >= needed else warn(told)
