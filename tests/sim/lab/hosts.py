# SPDX-License-Identifier: Apache-2.0
"""Test hosts of one checkout: made, reached and removed."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import image, probe
from .errors import LabError
from .podman import Podman, cache_folder, locked, write_atomically

HUB = "hub"
"""The name of the model hub's container; no host can have it."""
HUB_NAME = "hub.enplace.test"
HUB_PORT = 8080
USER = "admin"

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_SIZE = re.compile(r"[0-9]+[kmg]?")
# Places in a network: the bridge is 1, the hub 2, hosts follow from 10.
_HUB_PLACE, _FIRST_PLACE, _LAST_PLACE = 2, 10, 254
_BOOT_S = 120.0
_LABEL = "enplace.lab"


@dataclass(frozen=True)
class Host:
    """A test host, or the hub, as it is.

    Attributes:
        name: its name in the inventory.
        address: IPv4 address; the same for as long as the host exists.
        state: podman's word: ``running``, ``exited``, ``created``, ...
        image: the image it was made from.
        container: podman's name for it.
        network: false if it was made without a route to anywhere beyond its bridge.
    """

    name: str
    address: str
    state: str
    image: str
    container: str
    network: bool


def _mac(address: ipaddress.IPv4Address) -> str:
    """A MAC address that belongs to an IPv4 address, so that neighbours keep knowing a host that was restarted."""
    return "02:65:" + ":".join(f"{octet:02x}" for octet in address.packed)


def _quiet(message: str) -> None:
    """Say nothing."""


def ssh_config(root: Path, hosts: Sequence[Host]) -> str:
    """The text of ``.lab/ssh_config``: one block for each host."""
    folder = root / ".lab"

    def quoted(path: Path) -> str:
        # ssh expands per cent signs in these, and reads blanks as separators.
        return '"' + str(path).replace("%", "%%") + '"'

    blocks = ["# Written by tests/sim/lab; a change is overwritten.\n"]
    for host in hosts:
        blocks.append(
            f"Host {host.name}\n"
            f"    HostName {host.address}\n"
            f"    HostKeyAlias {host.name}\n"
            f"    User {USER}\n"
            f"    IdentityFile {quoted(folder / 'id_ed25519')}\n"
            "    IdentitiesOnly yes\n"
            f"    UserKnownHostsFile {quoted(folder / 'known_hosts')}\n"
            "    GlobalKnownHostsFile /dev/null\n"
            "    StrictHostKeyChecking yes\n"
            "    PasswordAuthentication no\n"
            "    ConnectTimeout 10\n"
        )
    return "\n".join(blocks)


def wheels_folder(environment: Mapping[str, str]) -> Path | None:
    """The first existing folder that PIP_FIND_LINKS names, among entries parted by blanks or colons."""
    for entry in re.split(r"[\s:]+", environment.get("PIP_FIND_LINKS", "")):
        # "file:///folder" falls into "file" and "///folder", which is the folder.
        if entry.startswith("/") and Path(entry).is_dir():
            return Path("/" + entry.lstrip("/"))
    return None


def ca_bundle(environment: Mapping[str, str]) -> Path | None:
    """The machine's CA bundle: SSL_CERT_FILE, REQUESTS_CA_BUNDLE, or the system's; None where it has none.

    Raises:
        LabError: a variable names a file that is not there.
    """
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        value = environment.get(variable)
        if value:
            if not Path(value).is_file():
                raise LabError(
                    "The CA bundle is missing.",
                    where=f"environment variable {variable}",
                    expected="the path of a file with certificates",
                    found=value,
                    todo=f"correct {variable} or unset it",
                )
            return Path(value).resolve()
    system = Path("/etc/ssl/certs/ca-certificates.crt")
    return system if system.is_file() else None


class Lab:
    """The test hosts of one checkout.

    Args:
        root: the checkout; ``.lab`` below it holds the key, the known hosts and ``ssh_config``.
        say: called with each line of progress.

    Raises:
        LabError: this machine cannot run test hosts.
    """

    def __init__(self, root: Path, say: Callable[[str], None] = _quiet) -> None:
        self.root = root.resolve()
        self.say = say
        self.checkout = hashlib.sha256(str(self.root).encode()).hexdigest()[:8]
        self.folder = self.root / ".lab"
        self.ssh_config = self.folder / "ssh_config"
        self.podman = Podman()

    # What there is

    def hosts(self) -> list[Host]:
        """This checkout's hosts, by name, stopped ones included; the hub is among them."""
        found = []
        for entry in self.podman.containers(self.checkout):
            labels = entry["Labels"]
            found.append(
                Host(
                    name=labels[f"{_LABEL}.host"],
                    address=labels[f"{_LABEL}.address"],
                    state=entry["State"],
                    image=entry["Image"],
                    container=entry["Names"][0],
                    network=labels[f"{_LABEL}.network"] == "yes",
                )
            )
        return sorted(found, key=lambda host: host.name)

    def host(self, name: str) -> Host:
        """One host.

        Raises:
            LabError: there is none of that name.
        """
        hosts = self.hosts()
        for host in hosts:
            if host.name == name:
                return host
        raise LabError(
            f"There is no test host {name}.",
            where=f"checkout {self.root}",
            expected="the name of a host that is up or stopped",
            found=", ".join(host.name for host in hosts) or "no hosts at all",
            todo=f"python -m tests.sim.lab {'hub' if name == HUB else 'up ' + name}",
        )

    def address(self, name: str) -> str:
        """The IPv4 address of a host, or of the hub."""
        return self.host(name).address

    # Making and removing

    def up(
        self, *names: str, tmpfs: Mapping[str, str] | None = None, network: bool = True, cache: bool = True
    ) -> list[Host]:
        """Make hosts, or start those that are stopped, and wait until each can be worked with.

        Args:
            names: inventory names.
            tmpfs: path on the host to size (``64m``): a small file system of memory; it is empty after a stop.
            network: false for a host that ssh reaches, and that reaches nothing itself: no route, no hub.
            cache: whether the uv cache of this machine is the host's too.

        Returns:
            The hosts, in the order of the names.

        Raises:
            LabError: a host could not be made; what was made of it is removed again.
        """
        settings = self._settings(tmpfs or {}, network, cache)
        for name in names:
            if not _HOST_NAME.fullmatch(name) or name == HUB:
                raise LabError(
                    "This is no name for a test host.",
                    where="up",
                    expected=f"small letters, digits and hyphens, 32 at most, not '{HUB}'",
                    found=repr(name),
                    todo="choose another name",
                )
        reference = image.ensure(self.podman, self.say)
        self._make_key()
        made: list[str] = []
        try:
            for name in names:
                if self._make(name, reference, settings):
                    made.append(name)
            for name in names:
                self._wait(name, first=name in made)
        except BaseException:
            self._remove(made)
            raise
        self._write_ssh_files()
        for name in names:
            self._wait_for_ssh(name)
        known = {host.name: host for host in self.hosts()}
        return [known[name] for name in names]

    def hub(self, repositories: Path | None = None) -> Host:
        """Run the model hub in a container of its own, and wait until it answers.

        Args:
            repositories: the folder it serves; tests/sim/hub/repositories if not given.
        """
        source = self.root / "tests" / "sim" / "hub"
        program = source / "hub.py"
        served = (repositories or source / "repositories").resolve()
        for path, kind in ((program, "a file"), (served, "a folder")):
            if not (path.is_file() if kind == "a file" else path.is_dir()):
                raise LabError(
                    "The hub cannot be started.", where=str(path), expected=kind, found="nothing", todo="restore it"
                )
        reference = image.ensure(self.podman, self.say)
        # The program is part of what the hub is: a container keeps the file it was made with, even if that is replaced.
        settings = {"root": str(served), "program": hashlib.sha256(program.read_bytes()).hexdigest()[:12]}
        made = False
        with locked(self.podman.lock):
            existing = {host.name: host for host in self.hosts()}.get(HUB)
            if existing is not None and self._difference(HUB, settings):
                self.say("hub: its program or its folder is another now; replacing it")
                self.podman.run("rm", "--force", "--time=0", "--volumes", existing.container)
                existing = None
            if existing is None:
                made = True
                self._create_hub(reference, program, served, settings)
            if existing is None or existing.state != "running":
                self._start(HUB, network=True)
        try:
            self._wait_for_hub()
        except BaseException:
            if made:
                self._remove([HUB])
            raise
        return self.host(HUB)

    def down(self, *names: str, everything: bool = False) -> None:
        """Remove hosts. Names that do not exist are gone already, which is no error.

        Args:
            names: inventory names; ``hub`` for the hub.
            everything: all hosts of this checkout, and its networks.
        """
        existing = [host.name for host in self.hosts()]
        self._remove([name for name in existing if everything or name in names])
        self._forget_connections()

    def stop(self, name: str, *, power_cut: bool = False) -> None:
        """Shut a host down in order, or, with ``power_cut``, kill everything on it at once."""
        host = self.host(name)
        if host.state != "running":
            return
        if power_cut:
            self.podman.run("kill", "--signal", "KILL", host.container)
            self.podman.run("wait", host.container)
        else:
            self.podman.run("stop", host.container)
        self._forget_connections()

    def start(self, name: str) -> Host:
        """Start a stopped host and wait until ssh answers; services may still be starting then."""
        with locked(self.podman.lock):
            host = self.host(name)
            if host.state != "running":
                self._start(name, host.network)
        if name == HUB:
            self._wait_for_hub()
        else:
            self._wait(name, first=False)
            self._write_ssh_files()
            self._wait_for_ssh(name)
        return self.host(name)

    def restart(self, name: str, *, power_cut: bool = False) -> Host:
        """Stop a host, then start it."""
        self.stop(name, power_cut=power_cut)
        return self.start(name)

    # Working on a host

    def ssh_command(self, name: str, argv: Sequence[str] = ()) -> list[str]:
        """The ssh command line that runs ``argv`` on a host as the user ``admin``; a shell if it is empty."""
        return ["ssh", "-F", str(self.ssh_config), name, *([_quoted(argv)] if argv else [])]

    def ssh(
        self, name: str, argv: Sequence[str], *, stdin: str = "", timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host through ssh, as the user ``admin``; the caller judges the exit status."""
        return subprocess.run(
            self.ssh_command(name, argv), input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def exec(
        self, name: str, argv: Sequence[str], *, stdin: str = "", timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host as root, past ssh; the caller judges the exit status."""
        command = ["exec", "--interactive", self._container(name), *argv]
        return self.podman.run(*command, check=False, stdin=stdin, timeout_s=timeout_s)

    # The parts

    def _container(self, name: str) -> str:
        return f"enplace-{self.checkout}-{name}"

    def _network(self, network: bool) -> dict[str, Any] | None:
        """What podman keeps of this checkout's open or closed network; None if there is none at the moment."""
        for file in self.podman.networks.glob(f"enplace-{self.checkout}*.json"):
            settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if settings["internal"] is not network:
                return settings
        return None

    def _bridge(self, network: bool) -> str:
        return f"en{self.checkout}" + ("" if network else "c")

    def _settings(self, tmpfs: Mapping[str, str], network: bool, cache: bool) -> dict[str, str]:
        """What a host was asked to be, as labels; two hosts of equal settings are equal."""
        for path, size in tmpfs.items():
            if not path.startswith("/") or ":" in path or not _SIZE.fullmatch(size):
                raise LabError(
                    "This is no memory file system.",
                    where="--tmpfs",
                    expected="PATH:SIZE, such as /opt:64m",
                    found=f"{path}:{size}",
                    todo="correct it",
                )
        return {
            "network": "yes" if network else "no",
            "cache": "yes" if cache else "no",
            "tmpfs": " ".join(f"{path}:{size}" for path, size in sorted(tmpfs.items())),
        }

    def _labels(self, name: str, address: str, settings: Mapping[str, str]) -> list[str]:
        labels = {"checkout": self.checkout, "host": name, "address": address, "network": "yes", **settings}
        return [f"--label={_LABEL}.{key}={value}" for key, value in labels.items()]

    def _difference(self, name: str, settings: Mapping[str, str]) -> tuple[str, str, str] | None:
        """The first setting in which an existing host differs: its name, what was asked for, what is there."""
        command = ["container", "inspect", "--format", "{{json .Config.Labels}}", self._container(name)]
        labels = json.loads(self.podman.run(*command).stdout)
        for key, value in settings.items():
            present = labels.get(f"{_LABEL}.{key}", "")
            if present != value:
                return key, value, present
        return None

    def _demand_settings(self, name: str, settings: Mapping[str, str]) -> None:
        """Refuse to pass off an existing host for one with other settings."""
        difference = self._difference(name, settings)
        if difference is not None:
            raise LabError(
                f"The test host {name} exists with other settings.",
                where=difference[0],
                expected=difference[1] or "none",
                found=difference[2] or "none",
                todo=f"python -m tests.sim.lab down {name}, then try again",
            )

    def _make(self, name: str, reference: str, settings: Mapping[str, str]) -> bool:
        """Create the host if it is not there, and start it if it does not run. True if it was created."""
        with locked(self.podman.lock):
            existing = {host.name: host for host in self.hosts()}.get(name)
            if existing is not None:
                self._demand_settings(name, settings)
                if existing.image != reference:
                    self.say(f"{name}: made from an older image; 'down {name}' first to renew it")
                if existing.state != "running":
                    self.say(f"{name}: starting")
                    self._start(name, existing.network)
                return False
            self._demand_space()
            self.say(f"{name}: creating")
            self._create(name, reference, settings)
            try:
                self._start(name, settings["network"] == "yes")
            except BaseException:
                self.podman.run("rm", "--force", "--time=0", "--volumes", self._container(name), check=False)
                self._remove_unused_networks()
                raise
            return True

    def _create(self, name: str, reference: str, settings: Mapping[str, str]) -> None:
        network = settings["network"] == "yes"
        joined, subnet = self._ensure_network(network)
        address = self._free_address(subnet)
        command = [
            "create",
            f"--name={self._container(name)}",
            f"--hostname={name}",
            f"--network={joined}",
            f"--ip={address}",
            f"--mac-address={_mac(address)}",
            "--systemd=always",
            "--privileged",
            "--shm-size=2g",
            "--stop-timeout=20",
            *self._labels(name, str(address), settings),
        ]
        if network:
            command.append(f"--add-host={HUB_NAME}:{subnet[_HUB_PLACE]}")
        for entry in settings["tmpfs"].split():
            path, size = entry.split(":")
            command.append(f"--tmpfs={path}:rw,exec,suid,dev,mode=0755,size={size}")
        wheels, bundle = wheels_folder(os.environ), ca_bundle(os.environ)
        if wheels is not None:
            command.append(f"--volume={wheels}:/srv/wheels:ro")
        if bundle is not None:
            command.append(f"--volume={bundle}:/srv/ca.crt:ro")
        if settings["cache"] == "yes":
            cache = cache_folder() / "uv"
            cache.mkdir(parents=True, exist_ok=True)
            command.append(f"--volume={cache}:/var/cache/enplace/uv")
        self._create_container(command, reference, ["/lib/systemd/systemd"])

    def _create_hub(self, reference: str, program: Path, served: Path, settings: Mapping[str, str]) -> None:
        joined, subnet = self._ensure_network(True)
        address = subnet[_HUB_PLACE]
        command = [
            "create",
            f"--name={self._container(HUB)}",
            f"--hostname={HUB}",
            f"--network={joined}",
            f"--ip={address}",
            f"--mac-address={_mac(address)}",
            # A first process that sets no handler does not hear SIGTERM, and the hub has nothing to save.
            "--stop-signal=SIGKILL",
            f"--volume={program}:/srv/hub/hub.py:ro",
            f"--volume={served}:/srv/hub/repositories:ro",
            *self._labels(HUB, str(address), settings),
        ]
        arguments = ["--root", "/srv/hub/repositories", "--host", "0.0.0.0", "--port", str(HUB_PORT)]
        self._create_container(command, reference, ["python3", "/srv/hub/hub.py", *arguments])

    def _start(self, name: str, network: bool) -> None:
        """Start a container, then set what must hold of its bridge, which comes and goes with its containers."""
        self.podman.run("start", self._container(name))
        gateway = self._ensure_network(network)[1][1]
        bridge = self._bridge(network)
        # Left alone, a bridge takes the lowest of its ports' MAC addresses: it changes as hosts come and go, and
        # connections of the others then hang until their neighbour tables are renewed.
        commands = [["ip", "link", "set", "dev", bridge, "address", _mac(gateway)]]
        if not network:
            # podman gives the bridge of a closed network no address, so that not even this machine reaches it.
            commands.append(["ip", "addr", "replace", f"{gateway}/24", "dev", bridge])
        for command in commands:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise LabError(
                    "The bridge of the test hosts cannot be set up.",
                    where=" ".join(command),
                    expected="exit status 0",
                    found=f"{result.returncode}: {result.stderr.strip()}",
                    todo="see the message above",
                )

    def _create_container(self, command: Sequence[str], reference: str, argv: Sequence[str]) -> None:
        try:
            self.podman.run(*command, reference, *argv)
        except BaseException:
            self._remove_unused_networks()
            raise

    def _demand_space(self) -> None:
        free = shutil.disk_usage(self.podman.folder).free
        if free < 1024**3:
            raise LabError(
                "Not enough space for a test host.",
                where=str(self.podman.folder),
                expected="1 GB free",
                found=f"{free / 1e9:.1f} GB free",
                todo="free space, or set XDG_CACHE_HOME to a folder on a larger disk",
            )

    def _ensure_network(self, network: bool) -> tuple[str, ipaddress.IPv4Network]:
        """Make the network if it is not there; its name and its addresses. The lock must be held."""
        present = self._network(network)
        if present is not None:
            return present["name"], ipaddress.IPv4Network(present["subnets"][0]["subnet"])
        taken = probe.taken_networks() + [ipaddress.IPv4Network(text) for text in self.podman.network_subnets()]
        subnet = probe.choose_subnet(taken, seed=int(self.checkout, 16))
        # Used addresses are recorded by the network's name, outside our folders: a name that is always new inherits
        # none of a host that ended unrecorded.
        name = f"enplace-{self.checkout}" + ("" if network else "-closed") + "." + secrets.token_hex(3)
        internal = [] if network else ["--internal"]
        label = f"--label={_LABEL}.checkout={self.checkout}"
        self.podman.run("network", "create", "--disable-dns", f"--subnet={subnet}", label, *internal, name)
        # podman numbers its bridges by what it sees in its own settings, so that a network of the user's podman
        # that is not up at the moment would get the same name. Not every version lets one choose it.
        file = self.podman.networks / f"{name}.json"
        settings = json.loads(file.read_text(encoding="utf-8"))
        settings["network_interface"] = self._bridge(network)
        write_atomically(file, json.dumps(settings, indent=2) + "\n")
        return name, subnet

    def _free_address(self, subnet: ipaddress.IPv4Network) -> ipaddress.IPv4Address:
        used = {host.address for host in self.hosts()}
        for place in range(_FIRST_PLACE, _LAST_PLACE + 1):
            if str(subnet[place]) not in used:
                return subnet[place]
        raise LabError(
            "No free address for another test host.",
            where=str(subnet),
            expected=f"fewer than {_LAST_PLACE - _FIRST_PLACE + 1} hosts",
            found=f"{len(used)} hosts",
            todo="remove hosts: python -m tests.sim.lab down HOST",
        )

    def _forget_connections(self) -> None:
        """Ansible's open connections may lead to a host that is no more; without their sockets it opens new ones."""
        for entry in (self.folder / "cp").glob("*"):
            entry.unlink(missing_ok=True)

    def _remove(self, names: Sequence[str]) -> None:
        with locked(self.podman.lock):
            for name in names:
                self.podman.run("rm", "--force", "--time=0", "--volumes", self._container(name))
            self._remove_unused_networks()
        self._write_ssh_files()

    def _remove_unused_networks(self) -> None:
        """Remove this checkout's networks that no host is on. The lock must be held."""
        hosts = self.hosts()
        for network in (True, False):
            present = self._network(network)
            if present is not None and not any(host.network is network for host in hosts):
                self.podman.run("network", "rm", present["name"])

    # Waiting

    def _wait(self, name: str, *, first: bool) -> None:
        """Wait until a host has booted: on its first boot until all is started, later until sshd is."""
        container = self._container(name)
        # A service that a test installed may take its time, or fail: that is not the lab's to judge.
        question = ["is-system-running"] if first else ["is-active", "ssh.service"]
        answers = ("running", "degraded") if first else ("active",)
        deadline = time.monotonic() + _BOOT_S
        while True:
            result = self.podman.run("exec", container, "systemctl", *question, check=False)
            state = result.stdout.strip() or result.stderr.strip() or "no answer"
            if state in answers:
                break
            if time.monotonic() > deadline or not self._runs(container):
                raise self._boot_error(name, state)
            time.sleep(0.2)
        if state == "degraded":
            self.say(f"{name}: booted, but these units failed: {', '.join(self._failed_units(container))}")
        # The key is given again at each start: it is the checkout's, and may be a new one.
        install = "install -o admin -g admin -m 0600 /dev/stdin /home/admin/.ssh/authorized_keys"
        key = (self.folder / "id_ed25519.pub").read_text(encoding="utf-8")
        self.podman.run("exec", "--interactive", container, "sh", "-c", install, stdin=key)

    def _failed_units(self, container: str) -> list[str]:
        command = ["exec", container, "systemctl", "--failed", "--plain", "--no-legend"]
        return [line.split()[0] for line in self.podman.run(*command, check=False).stdout.splitlines() if line.strip()]

    def _runs(self, container: str) -> bool:
        state = self.podman.run("container", "inspect", "--format", "{{.State.Status}}", container, check=False)
        return state.stdout.strip() == "running"

    def _boot_error(self, name: str, state: str) -> LabError:
        container = self._container(name)
        logs = self.podman.run("logs", "--tail", "15", container, check=False)
        details = "\n".join([*self._failed_units(container), (logs.stdout + logs.stderr).strip()])
        settings = "; ".join(self.podman.choice.reasons) or f"runtime {self.podman.choice.runtime}, podman's defaults"
        return LabError(
            f"The test host {name} did not boot.",
            where=f"container {container} ({settings})",
            expected=f"an answer of systemd and sshd within {_BOOT_S:.0f} s",
            found=f"{state}\n{details}".strip(),
            todo="see the lines above; systemd needs a privileged container and a writable cgroup file system",
        )

    def _wait_for_ssh(self, name: str) -> None:
        deadline = time.monotonic() + 30
        while True:
            options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=3"]
            command = ["ssh", "-F", str(self.ssh_config), *options, name, "true"]
            result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if result.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise LabError(
                    f"The test host {name} does not answer ssh.",
                    where=f"ssh -F {self.ssh_config} {name}",
                    expected="exit status 0 within 30 s",
                    found=f"{result.returncode}: {result.stderr.strip()}",
                    todo="look at it with: python -m tests.sim.lab exec HOST journalctl -u ssh",
                )
            time.sleep(0.2)

    def _wait_for_hub(self) -> None:
        host = self.host(HUB)
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host.address, HUB_PORT), timeout=2):
                return
            if time.monotonic() > deadline or not self._runs(host.container):
                logs = self.podman.run("logs", "--tail", "15", host.container, check=False)
                raise LabError(
                    "The hub does not answer.",
                    where=f"{host.address}:{HUB_PORT}",
                    expected="a connection within 30 s",
                    found=(logs.stdout + logs.stderr).strip() or "no answer, no output",
                    todo="see the lines above",
                )
            time.sleep(0.1)

    # ssh

    def _make_key(self) -> None:
        with self._owned_files():
            key = self.folder / "id_ed25519"
            if key.exists() and key.with_suffix(".pub").exists():
                return
            if shutil.which("ssh-keygen") is None:
                raise LabError(
                    "ssh-keygen is missing.",
                    where="PATH",
                    expected="the OpenSSH client",
                    found="none",
                    todo="run tests/sim/bootstrap, or apt-get install openssh-client",
                )
            aside = self.folder / ".id_ed25519.new"
            for path in (aside, aside.with_suffix(".new.pub")):
                path.unlink(missing_ok=True)
            comment = f"enplace-lab-{self.checkout}"
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(aside)],
                check=True,
                stdin=subprocess.DEVNULL,
            )
            Path(f"{aside}.pub").replace(key.with_suffix(".pub"))
            aside.replace(key)

    def _write_ssh_files(self) -> None:
        """Bring ssh_config and known_hosts in line with the hosts there are; without hosts, remove them and the key."""
        with self._owned_files():
            hosts = [host for host in self.hosts() if host.name != HUB]
            known_hosts = self.folder / "known_hosts"
            if not hosts:
                for path in (self.ssh_config, known_hosts, self.folder / "id_ed25519", self.folder / "id_ed25519.pub"):
                    path.unlink(missing_ok=True)
                return
            recorded: dict[str, list[str]] = {}
            if known_hosts.exists():
                for line in known_hosts.read_text(encoding="utf-8").splitlines():
                    recorded.setdefault(line.split(",")[0], []).append(line)
            lines = []
            for host in hosts:
                lines += self._host_keys(host) if host.state == "running" else recorded.get(host.name, [])
            write_atomically(known_hosts, "".join(f"{line}\n" for line in lines))
            write_atomically(self.ssh_config, ssh_config(self.root, hosts))

    def _host_keys(self, host: Host) -> list[str]:
        """The host's public keys as known_hosts lines, read past ssh: nothing is trusted on first use."""
        command = ["exec", host.container, "sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub"]
        keys = self.podman.run(*command, check=False).stdout.splitlines()
        return [f"{host.name},{host.address} {' '.join(key.split()[:2])}" for key in keys if key]

    @contextlib.contextmanager
    def _owned_files(self) -> Iterator[None]:
        """Hold this checkout's lock, and leave its files to the person who called sudo."""
        with locked(self.folder / "lock"):
            try:
                yield
            finally:
                user, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
                if user and group:
                    for path in (self.folder, *self.folder.iterdir()):
                        os.chown(path, int(user), int(group), follow_symlinks=False)


def _quoted(argv: Sequence[str]) -> str:
    """One string for the shell that sshd starts, in which each argument stays one argument."""
    return shlex.join(argv)


def as_json(hosts: Sequence[Host]) -> str:
    """The hosts as a JSON list of objects."""
    return json.dumps([asdict(host) for host in hosts], indent=2)
