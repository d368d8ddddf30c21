# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""`enplace doctor`: what is known to go wrong on hosts, asked of them or judged from stored facts.

Hosts are asked by the playbook preflight, which changes nothing. What `--json` prints is what `--facts` reads.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.plugin_utils import traps
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import Problem, RecipeError
from ansible_collections.enplace.inference.plugins.plugin_utils.traps import Facts, Finding

from . import ROOT, common

COLLECTIONS = ROOT / "collection"
PLAYBOOK = COLLECTIONS / "ansible_collections" / "enplace" / "inference" / "playbooks" / "preflight.yml"
# Facts of a host are some ten thousand bytes.
MAX_FACTS_BYTES = 64 * 1024 * 1024

STYLES = {traps.TRAP: "bold red", traps.WARN: "bold yellow", traps.UNKNOWN: "bold cyan", traps.OK: "green"}


def run(options: argparse.Namespace) -> int:
    """The command."""
    if options.facts and (options.hosts or options.inventory):
        common.err("enplace doctor: --facts judges a file; it asks no host and reads no inventory")
        return 2
    problems: list[Problem] = []
    try:
        hosts = read(Path(options.facts)) if options.facts else ask(options.hosts, options.inventory, problems)
    except RecipeError as error:
        return common.tell(error.problems)
    judged = [(host, facts, traps.judge(facts)) for host, facts in hosts]
    if options.json:
        documents = [traps.document(host, facts, findings) for host, facts, findings in judged]
        common.print_json({"format": traps.FORMAT, "hosts": documents})
    else:
        _print(judged, options.all)
    common.tell(problems)
    if problems:
        return 2
    return 1 if any(finding.status == traps.TRAP for *_, findings in judged for finding in findings) else 0


def _print(judged: Sequence[tuple[str, Facts, list[Finding]]], everything: bool) -> None:
    # Not needed for data, and slow to import.
    from .text import Page

    page = Page()
    for host, _facts, findings in judged:
        numbers = traps.counted(findings)
        page.title(f"{host}: " + ", ".join(f"{numbers[status]} {status}" for status in traps.STATUSES))
        told = [each for each in findings if everything or each.status not in (traps.OK, traps.NOT_APPLICABLE)]
        page.table("", ("status", "trap", "evidence"), [(each.status, each.id, each.evidence) for each in told], STYLES)
        # Not in the table: commands are copied, and a table would break them.
        todo = {
            f"{each.id if each.todo != traps.FIND_OUT else each.status}: {each.todo}": None
            for each in told
            if each.todo
        }
        page.lines("What to do", list(todo))
    page.print()


# Stored facts --------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[tuple[str, Facts]]:
    """Hosts and their facts out of a file. Raises RecipeError."""
    todo = "name a file that `enplace doctor --json` has written"
    name = common.shown(path)
    try:
        if path.stat().st_size > MAX_FACTS_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
        several = isinstance(data, dict) and isinstance(data.get("hosts"), list)
        return [
            _host(each, f"hosts[{n}]." if several else "")
            for n, each in enumerate(data["hosts"] if several else [data])
        ]
    except OSError as error:
        found = error.strerror or str(error)
        raise RecipeError([Problem(name, "cannot be read", found, "facts as JSON", todo, "unreadable")]) from None
    except (ValueError, RecursionError) as error:
        expected = "facts of hosts as JSON"
        raise RecipeError([Problem(name, "holds no facts", str(error), expected, todo, "unreadable")]) from None


def _host(data: Any, where: str) -> tuple[str, Facts]:
    try:
        return traps.facts_of(data)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


# Hosts ---------------------------------------------------------------------------------------------------------------


def ask(hosts: Sequence[str], inventory: str | None, problems: list[Problem]) -> list[tuple[str, Facts]]:
    """The facts of hosts, by the playbook preflight; hosts that did not answer become problems. Raises RecipeError."""
    # Not needed for stored facts, and slow to import.
    import ansible_runner

    arguments = ["--extra-vars", json.dumps({"enplace_preflight_fail": False})]
    arguments += ["--inventory", inventory] if inventory else []
    arguments += ["--limit", ",".join(hosts)] if hosts else []
    found: list[tuple[str, Facts]] = []
    with tempfile.TemporaryDirectory(prefix="enplace-doctor-") as scratch:
        runner = ansible_runner.run(
            private_data_dir=scratch,
            project_dir=os.getcwd(),
            playbook=str(PLAYBOOK),
            cmdline=shlex.join(arguments),
            # Ansible beside this Python, and this collection before an installed one.
            envvars={
                "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
                "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            },
            quiet=True,
        )
        for event in runner.events:
            data = event.get("event_data", {})
            if event["event"] == "runner_on_ok" and "document" in data["res"]:
                found.append(traps.facts_of(data["res"]["document"]))
            elif event["event"] in ("runner_on_failed", "runner_on_unreachable"):
                problems.append(_silent(data["host"], data["res"]))
        if not found and not problems:
            # The runner forces colours.
            said = re.sub(r"\x1b\[[0-9;]*m", "", runner.stdout.read()).strip()
            todo = "name hosts of an inventory: enplace doctor HOST -i inventories/my"
            raise RecipeError([Problem("enplace doctor", "no host answered", said[-1500:], "", todo, "unreadable")])
    return sorted(found, key=lambda each: each[0])


def _silent(host: str, result: dict[str, Any]) -> Problem:
    said = [str(result.get(name) or "").strip() for name in ("msg", "module_stderr")]
    text = "\n".join(filter(None, said))[:1500]
    # A message of enplace itself says what to do.
    todo = "" if "what to do: " in text else f"try the way there: ansible -m ansible.builtin.ping --become {host}"
    return Problem(host, "could not be asked", text, "", todo, "unreadable")
