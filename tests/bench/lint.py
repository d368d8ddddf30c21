# SPDX-License-Identifier: Apache-2.0
"""Measure the linter: the largest shipped recipe 200 times over, and one process from its start to its end.

`python -m tests.bench.lint`. It needs no host. Python's compiled modules are kept in a folder of this program's, as
they are on any machine that has run the command once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ansible_collections.enplace.inference.plugins.plugin_utils import lint as rules
from ansible_collections.enplace.inference.plugins.plugin_utils import recipe

from enplace import common
from tests.bench import ROOT

COPIES = 200
ROUNDS = 5
MANY_TARGET_S = 2.0
ONE_TARGET_S = 0.3


def largest() -> Path:
    """The shipped recipe with the most bytes."""
    return max(recipe.RECIPES.glob("*/*/recipe.yaml"), key=lambda path: path.stat().st_size)


def copies(folder: Path, source: Path) -> None:
    """The recipe under 200 names. Each is a file and a model of its own; nothing can be kept from one to the next."""
    text = source.read_text(encoding="utf-8")
    name = f"{source.parent.parent.name}/{source.parent.name}"
    for number in range(COPIES):
        path = folder / "bench" / f"m{number:03}" / "recipe.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text.replace(f"  name: {name}\n", f"  name: bench/m{number:03}\n", 1), encoding="utf-8")


def timed(work: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Seconds of each round, after one that does not count."""
    work()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found


def told(name: str, seconds: list[float], target: float | None = None) -> str:
    """Median with minimum and maximum, and the target beside it."""
    middle = statistics.median(seconds)
    aim = "" if target is None else f"  target under {target} s: {'met' if middle < target else 'NOT MET'}"
    return f"{name:<34} {middle:8.3f} s  ({min(seconds):.3f} to {max(seconds):.3f}){aim}"


def main() -> int:
    """Print the figures; 0 unless the command itself fails."""
    source = largest()
    command = [str(Path(sys.executable).with_name("enplace")), "lint"]
    with tempfile.TemporaryDirectory() as folder:
        copies(Path(folder) / "recipes", source)
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        statuses = set()

        def run(*arguments: str) -> None:
            ended = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, check=False)
            statuses.add(ended.returncode)

        def start() -> None:
            subprocess.run([sys.executable, "-c", "pass"], cwd=ROOT, env=environment, check=True)

        size = source.stat().st_size
        print(f"{common.shown(source)}: {size} bytes, {len(rules.catalogue())} rules, "
              f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")  # fmt: skip
        text = source.read_text(encoding="utf-8")
        document = recipe.parse_yaml(source, text)
        print(told("load", timed(lambda: recipe.parse_yaml(source, text))))
        print(told("check against the schema", timed(lambda: recipe.validate(document))))
        print(told("schema and rules", timed(lambda: rules.lint_document(document))))
        print(told("Python alone, one process", timed(start)))
        print(told("enplace lint FILE, one process", timed(lambda: run(str(source))), ONE_TARGET_S))
        print(told(f"enplace lint of {COPIES} recipes", timed(lambda: run(f"{folder}/recipes"), 3), MANY_TARGET_S))
    if statuses - {0, 1}:
        print(f"enplace lint ended with {statuses}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
