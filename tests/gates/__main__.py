# SPDX-License-Identifier: Apache-2.0
"""Run the gates: `python -m tests.gates [PART ...]`, all of them where none is named.

Each part runs to its end whatever became of the others. Several run at a time: the output of the first lane is shown as
it comes, that of the others when they have ended. The last line is the sum, `N passed, N failed`; the exit status is 0
only when nothing failed and every part had something to say.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "collection" / "ansible_collections" / "enplace" / "inference"
# The order in which a host is prepared, which is the order in which the roles' scenarios run on their shared host.
MOLECULE_HOST = "molecule1"
SCENARIOS = ("host", "environment", "weights", "service", "verify", "serve")


@dataclass
class Result:
    """What a part found: how many checks or tests passed, and the names of those that failed or were skipped."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0


def environment() -> dict[str, str]:
    """Of this checkout, whatever the shell says: its tools, its ansible.cfg."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        # Another virtual environment that is active in the shell is not the one meant.
        "VIRTUAL_ENV": str(Path(sys.executable).parent.parent),
    }


def run(argv: Sequence[str], folder: Path = ROOT) -> int:
    """Run a command with its output shown; its exit status, 127 where it is not there."""
    print(f"\n$ {' '.join(argv)}", flush=True)
    try:
        return subprocess.run(argv, cwd=folder, env=environment(), check=False).returncode
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 127


def commands(*named: tuple[str, Sequence[str], Path]) -> Result:
    """Commands of which each is one check."""
    result = Result()
    for name, argv, folder in named:
        if run(argv, folder) == 0:
            result.passed += 1
        else:
            result.failed.append(name)
    return result


def counted(report: Path, status: int) -> Result:
    """The tests in a JUnit file. A run that ended badly without a failed test is a failure of its own."""
    result = Result()
    if report.is_file():
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                result.failed.append(name)
            elif case.find("skipped") is not None:
                result.skipped.append(name)
            else:
                result.passed += 1
    if status != 0 and not result.failed:
        result.failed.append(f"exit status {status}")
    return result


def pytest(folder: str, *arguments: str) -> Callable[[], Result]:
    def part() -> Result:
        with tempfile.TemporaryDirectory(prefix="enplace-gates-") as scratch:
            report = Path(scratch) / "junit.xml"
            status = run([sys.executable, "-m", "pytest", folder, "--durations=10", *arguments, f"--junitxml={report}"])
            return counted(report, status)

    return part


def lint() -> Result:
    return commands(
        ("ruff", ["ruff", "check", "."], ROOT),
        ("mypy", ["mypy"], ROOT),
        ("yamllint", ["yamllint", "--strict", "."], ROOT),
        ("ansible-lint", ["ansible-lint", "--offline"], ROOT),
        ("recipes", ["enplace", "lint"], ROOT),
        ("roles: specs, defaults, READMEs", [sys.executable, "-m", "tests.gates.roles", "check"], ROOT),
        ("docs made of tables", [sys.executable, "-m", "tests.gates.reference", "check"], ROOT),
        ("changelog", ["antsibull-changelog", "lint"], COLLECTION),
    )


def sanity() -> Result:
    with tempfile.TemporaryDirectory(prefix="enplace-gates-") as scratch:
        report = Path(scratch) / "junit.xml"
        status = run([sys.executable, "-m", "tests.gates.sanity", "--junitxml", str(report)])
        return counted(report, status)


def forget_molecule() -> None:
    """Remove the scenarios' host, and what molecule remembers of hosts."""
    run([sys.executable, "-m", "tests.sim.lab", "down", MOLECULE_HOST])
    run(["molecule", "reset", "--all"])


def molecule() -> Result:
    """One check for each role's scenario; a role without one is a failed check. Its host is left, with an engine."""
    result = Result()
    there = {path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml")}
    roles = {path.name for path in (COLLECTION / "roles").iterdir() if path.is_dir()}
    result.failed += [f"role {name} has no scenario molecule/{name}" for name in sorted(roles - there)]
    order = [name for name in SCENARIOS if name in there] + sorted(there - set(SCENARIOS))
    # The first begins on a bare host, the next where it leaves off.
    forget_molecule()
    for name in order:
        if run(["molecule", "test", "--scenario-name", name, "--destroy", "never"]) == 0:
            result.passed += 1
        else:
            result.failed.append(name)
    # What follows in this lane asks its engine, or needs torch.
    os.environ.setdefault("ENPLACE_ENGINE_HOST", MOLECULE_HOST)
    return result


def untracked() -> set[str]:
    """Files in the checkout that git neither tracks nor ignores."""
    argv = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True)
    return {name for name in listed.stdout.split("\0") if name}


PARTS: dict[str, Callable[[], Result]] = {
    "lint": lint,
    "sanity": sanity,
    # The tests share nothing but the machine's cores.
    "unit": pytest("tests/unit", "--numprocesses=auto", "--dist=worksteal"),
    "browser": pytest("tests/browser"),
    "molecule": molecule,
    "e2e": pytest("tests/e2e"),
    # On the demo host as the end-to-end tests leave it: the first asks its server, the second disturbs it.
    "matrix": pytest("tests/matrix"),
    "faults": pytest("tests/faults"),
    "integration": pytest("tests/integration"),
}
# What runs at the same time, each lane's parts in this order. A lane has test hosts of its own: the demo's hosts, which
# the faults are done to as the end-to-end tests leave them; molecule's, and those that tests make for themselves; none.
# Most parts wait for their hosts most of the time.
LANES = (("e2e", "faults"), ("molecule", "matrix", "integration"), ("lint", "sanity", "unit", "browser"))


def perform(name: str) -> Result:
    """Run one part, and say so."""
    print(f"\n===== {name}", flush=True)
    begin = time.monotonic()
    result = PARTS[name]()
    result.seconds = time.monotonic() - begin
    if not result.passed and not result.failed:
        result.failed.append("nothing was tested")
    return result


@contextlib.contextmanager
def aside(names: Sequence[str], results: dict[str, Result]) -> Iterator[None]:
    """Run parts in a process of their own while the block lasts; then show what they said and note their results."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryFile() as said:
        receive, send = fork.Pipe(duplex=False)

        def work() -> None:
            # Of the commands that it starts, and its own.
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            with open(1, "w", encoding="utf-8", closefd=False) as stream:
                sys.stdout = sys.stderr = stream
                if names[0] == LANES[-1][0]:
                    # Whose hosts wait for nobody has time.
                    os.nice(10)
                send.send({name: perform(name) for name in names})

        process = fork.Process(target=work)
        process.start()
        # Ours, or its end would not be seen.
        send.close()
        try:
            yield
        finally:
            try:
                found = receive.recv()
            except EOFError:
                found = {}
            process.join()
            said.seek(0)
            print(said.read().decode("utf-8", "replace"), flush=True)
        lost = f"ended with status {process.exitcode}, without a result"
        results.update({name: found.get(name) or Result(failed=[lost]) for name in names})


def table(results: dict[str, Result]) -> str:
    lines = [f"{'part':<12} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}"]
    for name, result in results.items():
        lines.append(
            f"{name:<12} {result.passed:>7} {len(result.failed):>7} {len(result.skipped):>8} {result.seconds:>8.0f}"
        )
    for name, result in results.items():
        lines += [f"skipped: {name}: {entry}" for entry in result.skipped]
    for name, result in results.items():
        lines += [f"failed: {name}: {entry}" for entry in result.failed]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gates", description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join(PARTS)}; all where none is named",
    )
    chosen = parser.parse_args().parts or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    begin = time.monotonic()
    before = untracked()
    found: dict[str, Result] = {}
    lanes = [lane for lane in ([name for name in names if name in chosen] for names in LANES) if lane]
    lanes += [[name] for name in chosen if not any(name in lane for lane in lanes)]
    with contextlib.ExitStack() as beside:
        for lane in lanes[1:]:
            beside.enter_context(aside(lane, found))
        for name in lanes[0]:
            found[name] = perform(name)
    if "molecule" in chosen:
        forget_molecule()
    results = {name: found[name] for name in chosen}
    # What a test leaves behind in the checkout is somebody's next commit.
    results["tree"] = Result(failed=[f"left behind: {name}" for name in sorted(untracked() - before)])
    results["tree"].passed = 0 if results["tree"].failed else 1
    print(f"\n===== {time.monotonic() - begin:.0f} s\n{table(results)}\n")
    failed = sum(len(result.failed) for result in results.values())
    print(f"{sum(result.passed for result in results.values())} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    status = main()
    if os.environ.get("CI"):
        # Nobody looks at the hosts afterwards, and a converged one takes 4 GB of the machine's disk.
        subprocess.run([sys.executable, "-m", "tests.sim.lab", "down", "--all"], cwd=ROOT, check=False)
    sys.exit(status)
