# SPDX-License-Identifier: Apache-2.0
"""Roles are described in one place, meta/argument_specs.yml: defaults agree with it, and the README is made from it.

`python -m tests.gates.roles check` compares, `python -m tests.gates.roles write` makes the READMEs anew (`make docs`).
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "collection" / "ansible_collections" / "enplace" / "inference"
ROLES = COLLECTION / "roles"
MADE_FROM = "<!-- Made from meta/argument_specs.yml by `make docs`. Edit it there. -->"


def load(path: Path) -> Any:
    """The one YAML document of a file; an empty file counts as an empty mapping."""
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def entry_points(role: Path) -> Mapping[str, Any]:
    """Entry points of a role by name, such as `main`."""
    return load(role / "meta" / "argument_specs.yml").get("argument_specs", {})  # type: ignore[no-any-return]


def differences(role: Path) -> Iterator[str]:
    """Every disagreement between a role's argument specs, its defaults and its task files, one line each."""
    name = role.name
    specs = entry_points(role)
    where, defaulted = f"roles/{name}/meta/argument_specs.yml", f"roles/{name}/defaults/main.yml"
    if "main" not in specs:
        yield f"{where}: no entry point main"
    options: dict[str, Any] = {}
    for entry, spec in specs.items():
        if not (role / "tasks" / f"{entry}.yml").is_file():
            yield f"{where}: entry point {entry} has no tasks/{entry}.yml"
        options |= spec.get("options", {})
    defaults = load(role / "defaults" / "main.yml")
    for option, spec in options.items():
        if not option.startswith(f"{name}_"):
            yield f"{where}: option {option} does not begin with {name}_"
        if spec.get("required") and "default" in spec:
            yield f"{where}: {option} is required and has a default; drop one of the two"
        if spec.get("required") and option in defaults:
            yield f"{defaulted}: {option} is required in the argument spec, so its default would never count"
        if "default" in spec:
            if option not in defaults:
                yield f"{defaulted}: {option} is missing; the argument spec says {spec['default']!r}"
            # 1 and true are equal to Python, and not to a reader.
            elif (type(defaults[option]), defaults[option]) != (type(spec["default"]), spec["default"]):
                yield f"{defaulted}: {option} is {defaults[option]!r}; the argument spec says {spec['default']!r}"
        if not spec.get("description"):
            yield f"{where}: {option} has no description"
    for option in defaults:
        if option not in options:
            yield f"{defaulted}: {option} is not an option of the argument spec"
        elif "default" not in options[option] and not options[option].get("required"):
            yield f"{where}: {option} has a default in defaults/main.yml that is not told here: {defaults[option]!r}"


def prose(text: str) -> str:
    """Ansible's markup (C, V, O, M, ...) as Markdown."""
    text = re.sub(r"\b[CVOEPM]\(((?:\\.|[^)\\])*)\)", lambda match: f"`{match[1]}`", text.strip())
    text = re.sub(r"\bB\(([^)]*)\)", r"**\1**", text)
    text = re.sub(r"\bI\(([^)]*)\)", r"*\1*", text)
    text = re.sub(r"\bL\(([^,)]*), *([^)]*)\)", r"[\1](\2)", text)
    return re.sub(r"\bU\(([^)]*)\)", r"<\1>", text)


def sentences(value: str | list[str] | None) -> list[str]:
    return [prose(text) for text in ([value] if isinstance(value, str) else value or [])]


def cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def rows(options: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    """Rows of a table of options, those inside a dictionary after it as `outer.inner`."""
    for option, spec in options.items():
        kind = spec.get("type", "str") + (f" of {spec['elements']}" if spec.get("elements") else "")
        if spec.get("required"):
            default = "**required**"
        elif "default" in spec:
            default = f"`{yaml.safe_dump(spec['default'], default_flow_style=True, width=1000).splitlines()[0]}`"
        else:
            default = ""
        told = sentences(spec.get("description"))
        if spec.get("choices"):
            told.append("One of " + ", ".join(f"`{choice}`" for choice in spec["choices"]) + ".")
        yield f"| `{inside}{option}` | {kind} | {cell(default)} | {cell(' '.join(told))} |"
        yield from rows(spec.get("options", {}), f"{inside}{option}{'[]' if spec.get('elements') else ''}.")


def readme(role: Path) -> str:
    """The README of a role, whole."""
    specs = entry_points(role)
    lines = ["<!-- SPDX-License-Identifier: Apache-2.0 -->", MADE_FROM, "", f"# Role {role.name}"]
    shared: dict[str, str] = {}
    for entry, spec in specs.items():
        if entry != "main":
            lines += ["", f"## tasks_from: {entry}"]
        lines += ["", prose(spec.get("short_description", "")).rstrip(".") + "."]
        if told := sentences(spec.get("description")):
            lines += ["", *(f"- {sentence}" for sentence in told)]
        table = list(rows(spec.get("options", {})))
        if same := shared.get("\n".join(table)):
            lines += ["", f"The options are those of {same}."]
        elif table:
            shared["\n".join(table)] = f"`{entry}`"
            lines += ["", "| option | type | default | what it is |", "| --- | --- | --- | --- |", *table]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gates.roles", description=__doc__)
    parser.add_argument("what", choices=("check", "write"))
    what = parser.parse_args().what
    found: list[str] = []
    roles = sorted(path.parents[1] for path in ROLES.glob("*/meta/argument_specs.yml"))
    if not roles:
        found.append(f"{ROLES}: no role with meta/argument_specs.yml")
    for role in roles:
        found += differences(role)
        path, text = role / "README.md", readme(role)
        is_text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if is_text == text:
            continue
        if what == "write":
            path.write_text(text, encoding="utf-8")
            print(f"roles/{role.name}/README.md: written")
        else:
            first = f"roles/{role.name}/README.md differs from the argument specs; run `make docs`"
            delta = difflib.unified_diff(is_text.splitlines(), text.splitlines(), "is", "should be", lineterm="")
            found.append("\n".join([first, *delta]))
    for line in found:
        print(line, file=sys.stderr)
    print(f"{len(roles)} roles, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
