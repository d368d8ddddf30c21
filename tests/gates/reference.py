# SPDX-License-Identifier: Apache-2.0
"""Pages made from the product's own tables: docs/reference.md (every key of a recipe, every check, every rule) and
docs/preflight.md (every trap of a host).

`python -m tests.gates.reference check` compares, `python -m tests.gates.reference write` makes them anew (`make docs`).
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils.verify.checks import CHECKS
from ansible_collections.enplace.inference.plugins.plugin_utils.lint import catalogue
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import schema
from ansible_collections.enplace.inference.plugins.plugin_utils.traps import PLATFORMS
from ansible_collections.enplace.inference.plugins.plugin_utils.traps import catalogue as traps

from tests.gates import ROOT

HEAD = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `make docs` from recipes/schema.json, module_utils/verify/checks.py and the rules. Edit those. -->

# Reference

How to write a recipe is told in [recipes.md](recipes.md); this page is what to look things up in.

- [Keys of a recipe](#keys-of-a-recipe)
- [Checks](#checks)
- [Rules](#rules)
"""


def cell(text: str) -> str:
    """Text as one cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def kind_of(node: Mapping[str, Any]) -> str:
    """The type of a value in a reader's words, bounds and choices with it."""
    if "const" in node:
        return f"`{str(node['const']).lower() if isinstance(node['const'], bool) else node['const']}`"
    if "enum" in node:
        return "one of " + ", ".join(f"`{choice}`" for choice in node["enum"])
    if "anyOf" in node and "type" not in node:
        return " or ".join(dict.fromkeys(kind_of(branch) for branch in node["anyOf"]))
    names = {
        "string": "text",
        "integer": "whole number",
        "object": "mapping",
        "array": "list",
        "boolean": "true, false",
    }
    kinds = node.get("type", "")
    text = " or ".join(names.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))
    bounds = [f"{word} {node[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in node]
    if node.get("minimum") == 1 and "maximum" not in node:
        bounds = []
    return text + (f", {' and '.join(bounds)}" if bounds else "")


def keys(node: Mapping[str, Any], definitions: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, str, str]]:
    """Path, type and meaning of every key below a node; a definition that occurs twice is told at both places."""
    required = set(node.get("required", []))
    for name, raw in node.get("properties", {}).items():
        value = {**definitions[raw["$ref"].rsplit("/", 1)[1]], **raw} if "$ref" in raw else raw
        path = f"{inside}{name}"
        told = value.get("description", "")
        must = " **required**" if name in required else ""
        yield f"`{path}`", kind_of(value) + must, told
        yield from below(value, definitions, path)


def below(value: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """The keys inside of a value: of a mapping, of the items of a list, of a mapping with names of the reader's own."""
    if value.get("type") == "array":
        item = value["items"]
        item = {**definitions[item["$ref"].rsplit("/", 1)[1]], **item} if "$ref" in item else item
        for branch in item.get("oneOf", [item]) if "properties" not in item else [item]:
            chosen = {**definitions[branch["$ref"].rsplit("/", 1)[1]], **branch} if "$ref" in branch else branch
            yield from keys(chosen, definitions, f"{path}[].")
    elif "properties" in value:
        yield from keys(value, definitions, f"{path}.")
    elif isinstance(value.get("additionalProperties"), Mapping):
        inner = value["additionalProperties"]
        inner = {**definitions[inner["$ref"].rsplit("/", 1)[1]], **inner} if "$ref" in inner else inner
        yield from keys(inner, definitions, f"{path}.<name>.")


def page() -> str:
    """The whole page."""
    loaded = schema()
    lines = [HEAD, "## Keys of a recipe", "", "| key | value | what it is |", "| --- | --- | --- |"]
    # Layers differ by kind and share keys; the same row twice tells nothing new.
    rows = dict.fromkeys(keys(loaded, loaded["$defs"]))
    lines += [f"| {path} | {cell(kind)} | {cell(told)} |" for path, kind, told in rows]
    lines += [
        "",
        "## Checks",
        "",
        "Every check also takes `deadline_s`, the seconds until it is given up as failed, and `suite`: `gate` (the",
        "default) for what a release must pass to serve, `full` for what only `playbooks/verify.yml` asks.",
    ]
    for check in CHECKS.values():
        lines += ["", f"### {check.name}", "", f"{check.summary} Given up after {check.deadline_s} s."]
        if check.own:
            lines += ["", "| parameter | kind | default | what it is |", "| --- | --- | --- | --- |"]
        for name, own in check.own.items():
            default = "**required**" if own.required else "" if own.default is None else f"`{own.default}`"
            lines.append(f"| `{name}` | {own.kind} | {default} | {cell(own.summary)} |")
    lines += ["", "## Rules", "", "`enplace lint` refuses a recipe with an error, and so does a run on a host.", ""]
    lines += ["| rule | severity | what must hold | source |", "| --- | --- | --- | --- |"]
    for rule in sorted(catalogue(), key=lambda rule: rule.id):
        lines.append(f"| `{rule.id}` | {rule.severity} | {cell(rule.summary)} | {cell(rule.source)} |")
    return "\n".join(lines) + "\n"


PREFLIGHT = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `make docs` from plugin_utils/traps.py and plugin_utils/preflight/. Edit those. -->

# Preflight

What is known to go wrong on accelerator hosts, and what to do about it. Nothing here changes a host:

```console
$ uv run ansible-playbook playbooks/preflight.yml -l spark                                # fails where there is a trap
$ uv run ansible-playbook playbooks/preflight.yml -l spark -e enplace_preflight_fail=false # only shows
$ uv run enplace doctor spark                                                             # the same as a table
$ uv run enplace doctor --json spark > facts.json                                         # for a ticket
$ uv run enplace doctor --facts facts.json                                                # judge what somebody sent
```

The host is asked twice: `accelerator_facts` reads the PCI bus, drivers, kernels, packages, memory, clock and network,
with a deadline for every program; `host_facts` tries the vendors' repositories. What the host should have is what its
recipes say. The facts hold no serial number, no address, and no user or password of a URL.

| status | what it means |
| --- | --- |
| trap | it will not work; the playbook fails, and `enplace doctor` ends with 1 |
| warn | it works, and may not tomorrow, or not as well as it could |
| unknown | the facts do not tell: a tool is missing, failed, stopped at its deadline, or says N/A |
| ok | looked at, and not there |
| not applicable | the host has nothing that this is about |

The commands below are the general ones; a finding names the exact version, kernel or file of its host.
"""

TITLES = {"any": "Any host", "nvidia": "NVIDIA GPUs", "gb10": "DGX Spark (GB10)", "gaudi2": "Gaudi 2"}


def preflight() -> str:
    """The page of the traps."""
    lines = [PREFLIGHT.rstrip("\n")]
    for platform in PLATFORMS:
        lines += ["", f"## {TITLES[platform]}", "", "| trap | what must hold | what to do | source |"]
        lines.append("| --- | --- | --- | --- |")
        for trap in traps():
            if trap.platform == platform:
                # In Markdown, the patterns of packages would be emphasis.
                todo = re.sub(r"([*<])", r"\\\1", cell(trap.todo))
                lines.append(f"| `{trap.id}` | {cell(trap.summary)} | {todo} | {cell(trap.source)} |")
    return "\n".join(lines) + "\n"


PAGES: Mapping[Path, Callable[[], str]] = {
    ROOT / "docs" / "reference.md": page,
    ROOT / "docs" / "preflight.md": preflight,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gates.reference", description=__doc__)
    parser.add_argument("what", choices=("check", "write"))
    what = parser.parse_args().what
    status = 0
    for path, made in PAGES.items():
        name, text = path.relative_to(ROOT), made()
        there = path.read_text(encoding="utf-8") if path.is_file() else ""
        if what == "write":
            path.write_text(text, encoding="utf-8")
        elif there != text:
            print(f"{name} differs from the tables it is made from; run `make docs`", file=sys.stderr)
            delta = difflib.unified_diff(there.splitlines(), text.splitlines(), "is", "should be", lineterm="")
            print("\n".join(delta), file=sys.stderr)
            status = 1
            continue
        print(f"{name}: {'written' if what == 'write' else 'as its tables'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
