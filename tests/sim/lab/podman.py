# SPDX-License-Identifier: Apache-2.0
"""Podman with settings, storage and networks of our own: nothing of the user's podman is read or changed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import probe
from .errors import LabError

# Where podman looks for the programs that help it.
_HELPER_FOLDERS = (
    "/usr/lib/podman",
    "/usr/libexec/podman",
    "/usr/local/lib/podman",
    "/usr/local/libexec/podman",
)

_LEASES = Path("/run/containers/networks/ipam.db")


def cache_folder() -> Path:
    """Where caches of enplace live: ``${XDG_CACHE_HOME:-~/.cache}/enplace``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "enplace"


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a whole file or nothing: aside, synced, then renamed. A file that is right already is left alone."""
    with contextlib.suppress(OSError):
        if path.read_text(encoding="utf-8") == text and path.stat().st_mode & 0o777 == mode:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel drops it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def demand_own_root() -> None:
    """Refuse to work in a chroot: container runtimes leave it, and would boot the machine around it instead.

    Raises:
        LabError: the root of this process is not the root of its first process.
    """
    try:
        here, first = Path("/").stat(), Path("/proc/1/root/").stat()
        own = (here.st_dev, here.st_ino) == (first.st_dev, first.st_ino)
    except PermissionError:
        # Some sandboxes do not let root look at process 1. A chroot mostly is no mount point, which shows too.
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        own = any(line.split()[4] == "/" for line in mounts)
    if not own:
        raise LabError(
            "Test hosts cannot be started in a chroot.",
            where="/",
            expected="the root of the machine, or of a container",
            found="another root than that of process 1, or none that is mounted",
            todo="run it outside, or in a container started with --privileged",
        )


def forget_leases(leases: Path, booted: float) -> bool:
    """Remove netavark's list of used addresses if it dates from before the machine started. True if it did.

    Its place is fixed and is emptied at each start by a system that keeps /run in memory. Where /run is on a disk, the
    addresses of hosts that were running would stay taken for ever.

    Args:
        leases: the file.
        booted: when the machine started, in seconds since the epoch.
    """
    try:
        if leases.stat().st_mtime >= booted:
            return False
        leases.unlink()
    except FileNotFoundError:
        return False
    return True


def _is_alive(pid: int) -> bool:
    """Whether a container's first process runs. Another process that got its number since does not count."""
    try:
        # "number (name) state ..."
        name, state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").partition("(")[2].rsplit(") ", 1)
    except OSError:
        return False
    return state[0] not in "ZX" and name.startswith(("systemd", "init", "python", "conmon", "runc", "crun"))


class Podman:
    """The podman command with our settings.

    Attributes:
        folder: images, containers and settings that outlive a reboot.
        lock: the file to lock while networks and containers are made, for all checkouts that share the folder.
        choice: runtime and limits.
        driver: storage driver.
    """

    def __init__(self) -> None:
        if os.geteuid() != 0:
            # Privileged systemd hosts with addresses of their own need real root: rootless podman has neither.
            raise LabError(
                "Test hosts need root.",
                where="the user running this",
                expected="user id 0",
                found=f"user id {os.geteuid()}",
                todo="run it through sudo",
            )
        demand_own_root()
        binary = shutil.which("podman")
        if binary is None:
            raise LabError(
                "podman is missing.",
                where="PATH",
                expected="podman 4.3 or newer",
                found="no podman",
                todo="run tests/sim/bootstrap, or apt-get install podman",
            )
        if not any((Path(folder) / "netavark").exists() for folder in _HELPER_FOLDERS):
            raise LabError(
                "netavark, which makes podman's networks, is missing.",
                where=", ".join(_HELPER_FOLDERS),
                expected="a program netavark",
                found="none",
                todo="run tests/sim/bootstrap, or apt-get install netavark",
            )
        self._binary = binary
        self.folder = cache_folder() / "lab"
        self.lock = self.folder / "lock"
        # What must not outlive a reboot lies where the system clears it. The folder's digest keeps apart the
        # states that belong to different storages.
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]
        self._volatile = Path("/run") / f"enplace-lab-{digest}"
        self.networks = self.folder / "networks"
        machine = probe.probe()
        if "CAP_SYS_ADMIN" not in machine.capabilities or "CAP_NET_ADMIN" not in machine.capabilities:
            raise LabError(
                "This root may neither mount file systems nor configure networks, and test hosts need both.",
                where="/proc/self/status, CapEff",
                expected="CAP_SYS_ADMIN and CAP_NET_ADMIN",
                found=", ".join(sorted(machine.capabilities)) or "none of them",
                todo="run it on a machine (or in a container started with --privileged) that has them",
            )
        self.choice = probe.choose(machine)
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("CONTAINER_", "CONTAINERS_"))},
            "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin",
            # What podman 5 says at each command on the older cgroup layouts.
            "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }
        with locked(self.lock):
            self._forget_last_boot()
            self._write_settings()
            self.driver = self._choose_driver()

    def _forget_last_boot(self) -> None:
        """Drop running state that a reboot made void, where /run itself was not cleared by it."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        mark = self._volatile / "boot_id"
        if self._volatile.exists() and (not mark.exists() or mark.read_text(encoding="utf-8") != boot):
            shutil.rmtree(self._volatile)
            forget_leases(_LEASES, time.time() - float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0]))
        self._volatile.mkdir(mode=0o700, exist_ok=True)
        write_atomically(mark, boot)

    def _write_settings(self) -> None:
        """Write containers.conf, which podman then reads instead of the system's and the user's."""
        limits = ", ".join(json.dumps(limit) for limit in self.choice.ulimits)
        self.networks.mkdir(parents=True, exist_ok=True)
        write_atomically(
            self.folder / "containers.conf",
            "# Written by the test hosts; a change is overwritten.\n"
            "[containers]\n"
            f"default_ulimits = [{limits}]\n"
            'log_driver = "k8s-file"\n'
            "pids_limit = 0\n"
            "[engine]\n"
            f"runtime = {json.dumps(self.choice.runtime)}\n"
            'events_logger = "file"\n'
            # The default, shared memory of one fixed name, is the user's podman's too.
            'lock_type = "file"\n'
            f"tmp_dir = {json.dumps(str(self._volatile / 'libpod'))}\n"
            "[network]\n"
            'network_backend = "netavark"\n'
            f"network_config_dir = {json.dumps(str(self.networks))}\n",
        )

    def _storage(self, driver: str) -> str:
        root, volatile = self.folder / f"storage-{driver}", self._volatile / f"storage-{driver}"
        return (
            "# Written by the test hosts; a change is overwritten.\n"
            "[storage]\n"
            f"driver = {json.dumps(driver)}\n"
            f"graphroot = {json.dumps(str(root))}\n"
            f"runroot = {json.dumps(str(volatile))}\n"
        )

    def _choose_driver(self) -> str:
        """Take overlay where it works, else vfs, and stay with what was taken: images belong to a driver."""
        settings = self.folder / "storage.conf"
        for driver in ("overlay", "vfs"):
            if settings.exists() and settings.read_text(encoding="utf-8") == self._storage(driver):
                return driver
        problems = []
        for driver in ("overlay", "vfs"):
            write_atomically(settings, self._storage(driver))
            result = self.run("info", check=False)
            if result.returncode == 0:
                return driver
            problems.append(f"{driver}: {result.stderr.strip().splitlines()[-1:] or ['no message']}")
        settings.unlink(missing_ok=True)
        raise LabError(
            "podman cannot use its storage.",
            where=str(self.folder),
            expected="storage driver overlay or vfs",
            found="; ".join(problems),
            todo="free some space or set XDG_CACHE_HOME to a folder on a local disk",
        )

    def run(
        self, *arguments: str, check: bool = True, stdin: str | None = None, timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run podman and capture its output.

        Raises:
            LabError: it failed and ``check`` is true.
        """
        result = subprocess.run(
            [self._binary, *arguments],
            env=self._environment,
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and result.returncode != 0:
            message = result.stderr.strip() or result.stdout.strip()
            todo = "see the message above; tests/sim/bootstrap installs what podman needs"
            if "already allocated" in message:
                todo = "python -m tests.sim.lab down --all gives up all addresses; then make the hosts anew"
            if "no space left" in message.lower():
                todo = f"free space on the file system of {self.folder}"
            raise LabError(
                f"podman {arguments[0]} failed.",
                where=" ".join(["podman", *arguments]),
                expected="exit status 0",
                found=f"{result.returncode}: {message}",
                todo=todo,
            )
        return result

    def replace_process(self, arguments: Sequence[str]) -> None:
        """Become podman, with its terminal; does not return."""
        os.execve(self._binary, [self._binary, *arguments], self._environment)

    def containers(self, checkout: str) -> list[dict[str, Any]]:
        """What ``podman ps`` says of a checkout's containers, stopped ones included."""
        listed = self._list(checkout)
        if self._bury(listed):
            listed = self._list(checkout)
        return listed

    def _list(self, checkout: str) -> list[dict[str, Any]]:
        result = self.run("ps", "--all", "--filter", f"label=enplace.lab.checkout={checkout}", "--format", "json")
        listed: list[dict[str, Any]] = json.loads(result.stdout or "[]") or []
        return listed

    def _bury(self, listed: Sequence[dict[str, Any]]) -> bool:
        """Tell podman of containers that ended together with their monitor. True if there were any.

        A container's monitor process writes down how it ended; podman believes a container to run until then. Where
        everything was killed at once (the end of a CI job, say), nobody writes, and the host could neither be
        started nor stopped.
        """
        buried = []
        for entry in listed:
            if entry["State"] not in ("running", "stopping") or _is_alive(int(entry["Pid"])):
                continue
            record = self._volatile / "libpod" / "exits" / entry["Id"]
            if not record.exists():
                record.parent.mkdir(exist_ok=True)
                # As the monitor writes it: the exit status of a process that was killed.
                write_atomically(record, "137", mode=0o600)
                buried.append(entry["Id"])
        if buried:
            # This is what makes podman look; listing alone does not, in every version.
            self.run("container", "inspect", *buried)
        return bool(buried)

    def network_subnets(self) -> list[str]:
        """The subnets of all networks of ours, in CIDR form, whichever checkout they belong to."""
        found = []
        for file in sorted(self.networks.glob("*.json")):
            settings = json.loads(file.read_text(encoding="utf-8"))
            found += [entry["subnet"] for entry in settings.get("subnets") or []]
        return found
