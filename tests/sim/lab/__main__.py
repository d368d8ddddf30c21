# SPDX-License-Identifier: Apache-2.0
"""The command line of the test hosts."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import LabError
from .hosts import HUB, HUB_NAME, HUB_PORT, Lab, as_json

CHECKOUT = Path(__file__).resolve().parents[3]
# What a run through sudo still has to know of the person's environment.
_KEPT = ("PIP_FIND_LINKS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.lab", description="Test hosts of this checkout.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="create or start hosts and wait until they can be worked with")
    up.add_argument("hosts", nargs="+", metavar="HOST")
    up.add_argument(
        "--tmpfs",
        action="append",
        default=[],
        metavar="PATH:SIZE",
        help="a small file system at PATH on each of them, such as /opt:64m",
    )
    up.add_argument("--no-network", action="store_true", help="no route beyond the bridge, and no hub")
    up.add_argument("--no-cache", action="store_true", help="do not share this machine's uv cache")

    down = commands.add_parser("down", help="remove hosts")
    down.add_argument("hosts", nargs="*", metavar="HOST")
    down.add_argument("--all", action="store_true", help="all of this checkout, the hub and the networks included")

    for name, text in (("stop", "stop a host"), ("start", "start a stopped host"), ("restart", "stop, then start")):
        command = commands.add_parser(name, help=text)
        command.add_argument("host", metavar="HOST")
        if name != "start":
            command.add_argument("--power-cut", action="store_true", help="kill everything at once; no shutdown")

    hub = commands.add_parser("hub", help=f"run the model hub, http://{HUB_NAME}:{HUB_PORT} for the hosts")
    hub.add_argument("--root", type=Path, metavar="DIR", help="serve this folder instead of tests/sim/hub/repositories")

    address = commands.add_parser("address", help="print a host's address")
    address.add_argument("host", metavar="HOST")
    for name, text in (("ssh", "a shell or a command on a host, through ssh"), ("exec", "a command as root, past ssh")):
        command = commands.add_parser(name, help=text)
        command.add_argument("host", metavar="HOST")
        command.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD...")

    status = commands.add_parser("status", help="list the hosts")
    status.add_argument("--json", action="store_true")
    return parser


def _say(message: str) -> None:
    print(f"lab: {message}", file=sys.stderr, flush=True)


def _tmpfs(entries: Sequence[str]) -> dict[str, str]:
    found = {}
    for entry in entries:
        path, _, size = entry.partition(":")
        found[path] = size.lower()
    return found


def _through_sudo() -> None:
    """Start again as root, where there is sudo; this process is replaced."""
    sudo = shutil.which("sudo")
    if sudo is None:
        return
    # Where nobody is there to be asked for a password, and sudo asks for one, say what is needed instead.
    without_password = [sudo, "--non-interactive", "true"]
    if not sys.stdin.isatty() and subprocess.run(without_password, capture_output=True, check=False).returncode != 0:
        return
    _say("test hosts need root: running through sudo")
    kept = [f"{name}={os.environ[name]}" for name in _KEPT if name in os.environ]
    os.chdir(CHECKOUT)
    command = [sudo, "--set-home", "--", "env", *kept, sys.executable, "-m", "tests.sim.lab", *sys.argv[1:]]
    os.execv(sudo, command)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "ssh" and os.geteuid() != 0:
        # No root is needed for it, and the files are the caller's.
        config = CHECKOUT / ".lab" / "ssh_config"
        os.execvp("ssh", ["ssh", "-F", str(config), arguments.host, *arguments.argv])
    if os.geteuid() != 0:
        _through_sudo()
    lab = Lab(CHECKOUT, say=_say)
    if arguments.command == "up":
        for reason in lab.podman.choice.reasons:
            _say(reason)
        if lab.podman.driver != "overlay":
            _say(f"storage driver {lab.podman.driver}: overlay does not work here; it is slower and takes more space")
        hosts = lab.up(
            *arguments.hosts,
            tmpfs=_tmpfs(arguments.tmpfs),
            network=not arguments.no_network,
            cache=not arguments.no_cache,
        )
        for host in hosts:
            _say(f"{host.name}: up at {host.address}")
    elif arguments.command == "hub":
        host = lab.hub(arguments.root)
        _say(f"hub: http://{HUB_NAME}:{HUB_PORT} for the hosts, http://{host.address}:{HUB_PORT} from here")
    elif arguments.command == "down":
        if arguments.all == bool(arguments.hosts):
            raise LabError("Nothing was removed.", where="down", expected="either hosts or --all", todo="name one")
        lab.down(*arguments.hosts, everything=arguments.all)
    elif arguments.command == "stop":
        lab.stop(arguments.host, power_cut=arguments.power_cut)
    elif arguments.command == "start":
        lab.start(arguments.host)
    elif arguments.command == "restart":
        lab.restart(arguments.host, power_cut=arguments.power_cut)
    elif arguments.command == "address":
        print(lab.address(arguments.host))
    elif arguments.command == "ssh":
        lab.host(arguments.host)
        os.execvp("ssh", ["ssh", "-F", str(lab.ssh_config), arguments.host, *arguments.argv])
    elif arguments.command == "exec":
        terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        container = lab.host(arguments.host).container
        lab.podman.replace_process(["exec", "--interactive", *terminal, container, *(arguments.argv or ["bash"])])
    elif arguments.json:
        print(as_json(lab.hosts()))
    else:
        for host in lab.hosts():
            closed = "" if host.network or host.name == HUB else "  no network"
            print(f"{host.name:<16} {host.state:<10} {host.address:<15} {host.image}{closed}")
    return 0


def _terminate(number: int, _frame: object) -> None:
    """End as an exception does, so that what is half made is removed."""
    sys.exit(128 + number)


def main() -> int:
    """Run one command; 3 where test hosts cannot be had, with a message that says why."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return _run(_parser().parse_args())
    except LabError as error:
        print(f"lab: {error.text()}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
