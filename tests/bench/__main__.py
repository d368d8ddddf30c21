# SPDX-License-Identifier: Apache-2.0
"""Measure the linter, then a converged run, beside an equal deploy with pyinfra: `python -m tests.bench [HOST ...]`.

The hosts are converged test hosts of the demo inventory, demo1 where none is named; with several, one alone is
measured, then two at once, and so on. Times of one machine mean little elsewhere; the ratios and the counts do.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.enplace.inference.plugins.plugin_utils import plan
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import ENGINES

from tests.bench import ROOT, lint
from tests.e2e.plays import play
from tests.sim.lab import Lab, LabError

HOST = "demo1"
ROUNDS = 5
# What the project wants of a converged run: SSH executions, and seconds a host.
MOST_EXECUTIONS, MOST_SECONDS = 8, 6.0
BIN = Path(sys.executable).parent
UNITS = "/usr/local/lib/systemd/system"


def spread(values: Sequence[float]) -> str:
    """Median with minimum and maximum, in seconds."""
    return f"{statistics.median(values):6.2f} s  ({min(values):.2f} to {max(values):.2f}, {len(values)} rounds)"


def wanted(lab: Lab, host: str) -> dict[str, Any]:
    """What pyinfra is to find: the recipe's and the plan's words, and the texts that are on the host."""
    recipe = yaml.safe_load((ROOT / "recipes" / "enplace" / "smoke" / "recipe.yaml").read_text(encoding="utf-8"))
    weights = recipe["variants"]["cpu"]["weights"]
    engine = yaml.safe_load((ENGINES / "vllm" / "0.28.0" / "engine.yaml").read_text(encoding="utf-8"))
    snapshot = (
        plan.HUB_CACHE / f"models--{weights['repository'].replace('/', '--')}" / "snapshots" / weights["revision"]
    )

    def listed(pattern: str) -> list[str]:
        done = lab.exec(host, ["sh", "-c", f"ls -d {pattern} 2>/dev/null"])
        return done.stdout.split()

    link = listed("/opt/enplace/releases/*/current")[0]
    target = lab.exec(host, ["readlink", link]).stdout.strip()
    units = listed(f"{UNITS}/enplace-*.service {UNITS}/enplace-*.timer")
    texts = [*listed(f"{Path(link).parent}/{target}/*"), *units, *listed(f"{UNITS}/enplace-*.d/*")]
    return {
        "packages": sorted({*plan.BASE_PACKAGES, *engine["platforms"][0]["packages"]}),
        "user": plan.USER,
        "directories": plan.directories(),
        "environments": [*listed("/opt/enplace/tools/*"), *listed("/opt/enplace/environments/*")],
        "files": {path: lab.exec(host, ["cat", path]).stdout for path in texts},
        "links": {link: target},
        # A snapshot is links to the files themselves, which pyinfra takes for something else than files.
        "weights": [
            {
                "path": lab.exec(host, ["readlink", "-f", str(snapshot / entry["path"])]).stdout.strip(),
                "sha256": entry["sha256"],
            }
            for entry in weights["files"]
        ],
        "hub": "http://hub.enplace.test:8080",
        # What the timer starts is neither enabled nor running.
        "units": [Path(path).name for path in units if not path.endswith("-alive.service")],
    }


def inventory(lab: Lab, hosts: Sequence[str]) -> str:
    """The hosts for pyinfra, reached with the same key and the same known hosts as Ansible reaches them."""
    data = {
        "ssh_user": "admin",
        "ssh_key": str(lab.folder / "id_ed25519"),
        "ssh_known_hosts_file": str(lab.folder / "known_hosts"),
        "ssh_strict_host_key_checking": "yes",
    }
    return f"hosts = {[(host, {**data, 'ssh_hostname': lab.address(host)}) for host in hosts]!r}\n"


def run(argv: Sequence[str], **environment: str) -> tuple[float, str]:
    """Seconds and output of a program that must succeed."""
    begin = time.monotonic()
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}: exit status {done.returncode}\n{done.stdout[-4000:]}")
    return time.monotonic() - begin, done.stdout


def measure(lab: Lab, hosts: Sequence[str], folder: Path) -> None:
    """Rounds over some hosts at once, ours and pyinfra's by turns, and what came of them."""
    (folder / "inventory.py").write_text(inventory(lab, hosts), encoding="utf-8")
    (folder / "wanted.json").write_text(json.dumps(wanted(lab, hosts[0])), encoding="utf-8")
    (folder / "hosts.yml").write_text(yaml.safe_dump({"demo": {"hosts": dict.fromkeys(hosts)}}), encoding="utf-8")
    variables = (ROOT / "inventories" / "demo" / "group_vars" / "demo.yml").read_text(encoding="utf-8")
    (folder / "group_vars").mkdir(exist_ok=True)
    (folder / "group_vars" / "demo.yml").write_text(
        variables.replace("{{ inventory_dir }}/../..", str(ROOT)), encoding="utf-8"
    )
    ours = [str(BIN / "ansible-playbook"), "-i", str(folder / "hosts.yml"), "site.yml"]
    theirs = [str(BIN / "pyinfra"), "-y", str(folder / "inventory.py"), "tests/bench/pyinfra_deploy.py"]
    told = {"ENPLACE_BENCH": str(folder / "wanted.json")}

    # Once each before anything is measured: they must find nothing to do, and their executions are counted.
    warm = play(folder, "-i", str(folder / "hosts.yml"))
    if warm.rc != 0 or warm.changed:
        raise SystemExit(f"{', '.join(hosts)}: not converged ({warm.changed or warm.message}): run site.yml first")
    said = run([*theirs[:1], "--debug", *theirs[1:]], **told)[1]
    executions = len(re.findall(r"Running command on ", said)) / len(hosts)
    changes = pyinfra_changes(said)
    if changes:
        raise SystemExit(f"pyinfra would change {changes} things of a converged host:\n{said[-4000:]}")

    calls: dict[str, Callable[[], float]] = {
        "one plain ssh": lambda: run(lab.ssh_command(hosts[0], ["true"]))[0],
        "enplace": lambda: run(ours)[0],
        "pyinfra": lambda: run(theirs, **told)[0],
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        # By turns, so that all of them meet the same load of the machine.
        for name, call in calls.items():
            seconds[name].append(call())
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    counted = warm.ssh_executions / len(hosts)
    print(f"{len(hosts)} host{'s' if len(hosts) > 1 else ''}, converged")
    print(f"  enplace        {spread(seconds['enplace'])}  {counted:.0f} SSH executions a host")
    print(f"  pyinfra        {spread(seconds['pyinfra'])}  {executions:.0f} SSH executions a host")
    print(f"  one plain ssh  {spread(seconds['one plain ssh'])}")
    each = {name: value / len(hosts) for name, value in middle.items()}
    print(f"  a host         {each['enplace']:6.2f} s  enplace, {each['pyinfra']:.2f} s pyinfra")
    print(f"  ratio          {middle['enplace'] / middle['pyinfra']:6.2f}    enplace to pyinfra")
    good = counted <= MOST_EXECUTIONS and each["enplace"] < MOST_SECONDS
    good = good and middle["enplace"] <= middle["pyinfra"]
    wish = f"at most {MOST_EXECUTIONS} executions, below {MOST_SECONDS:.0f} s a host, not slower than pyinfra"
    print(f"  target         {wish}: {'met' if good else 'NOT met'}", flush=True)


def pyinfra_changes(said: str) -> int:
    """How many operations pyinfra found something to do in, from the last table that it prints.

    Its columns are hosts, success (something was done), error and no change; a dash is none.
    """
    found = re.findall(r"^\s*Grand total((?:\s+(?:\d+|-)){4})\s*$", said, re.M)
    if not found:
        raise SystemExit(f"pyinfra printed no sum of four columns:\n{said[-2000:]}")
    _hosts, done, errors, _same = (0 if cell == "-" else int(cell) for cell in found[-1].split())
    return done + errors


def main() -> int:
    hosts = sys.argv[1:] or [HOST]
    # The linter needs no host.
    status = lint.main()
    if status:
        return status
    print()
    try:
        lab = Lab(ROOT)
        for host in hosts:
            lab.host(host)
    except LabError as error:
        print(error, file=sys.stderr)
        return 3
    for count in range(1, len(hosts) + 1):
        with tempfile.TemporaryDirectory(prefix="enplace-bench-") as folder:
            measure(lab, hosts[:count], Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
