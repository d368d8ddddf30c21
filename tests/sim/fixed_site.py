# SPDX-License-Identifier: Apache-2.0
"""A small installed package and a small pack of fixes for it, made anew for each test."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fix_engine

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "fixes" / "apply_all.py"
PROFILE = "v1.0"

ENGINE = '''"""A package of nobody."""

LIMIT = 4


class Batch:
    """Rows."""

    def __init__(self, size):
        self.size = size  # as asked
        self.rows = [0] * size

    def swap(self, a, b):
        """Two rows change places."""
        self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
        return self.rows

    def total(self):
        result = 0
        for row in self.rows:
            result += row
        return result
'''
HELPERS = """def first(values):
    if values:
        return values[0]
    return None
"""
SOURCES = {"engine_one/__init__.py": "", "engine_one/batch.py": ENGINE, "engine_one/helpers.py": HELPERS}


def edit(file: str, scope: str, at: str, do: str, *code: str) -> dict[str, Any]:
    """An edit as a pack holds it, with the digest of what it is placed in."""
    source = fix_engine.Source(SOURCES[file].encode())
    (within,) = fix_engine.find_scope(source.tree, scope)
    (node,) = fix_engine.find_anchor(within, at, do)
    digest = fix_engine.sha256(fix_engine.shape(fix_engine.surroundings(within, node)).encode())
    return {"file": file, "in": scope, "digest": digest, "at": at, "do": do, "code": list(code)}


def fixes() -> dict[str, dict[str, Any]]:
    """Four fixes that touch two files, one function twice, and a module of the pack's own."""
    batch, helpers = "engine_one/batch.py", "engine_one/helpers.py"
    return {
        "wide-rows": {
            "edits": [
                edit(batch, "Batch.__init__", "self.rows = ...", "after", "self.dirty = False"),
                edit(batch, "", "LIMIT = ...", "replace", "LIMIT = 8"),
            ]
        },
        "dirty-swap": {
            "edits": [
                edit(batch, "Batch.swap", "return ...", "before", "self.dirty = True"),
                edit(batch, "Batch.__init__", "[0] * size", "expression", "[1] * size"),
            ]
        },
        "first-row": {
            "modules": ["rows.py"],
            "edits": [
                edit(
                    helpers,
                    "first",
                    "if ...: ...",
                    "before",
                    "from enplace_gaudi.rows import known",
                    "values = known(values)",
                )
            ],
        },
        "slow-total": {"edits": [edit(batch, "Batch.total", "for row in ...: ...", "before", "result = 100")]},
    }


class Installed:
    """A folder with an installed package, and one with the pack that is for it."""

    def __init__(self, folder: Path, version: str = "1.0", commit: str = "") -> None:
        self.site = folder / "site-packages"
        self.packs = folder / "packs"
        self.site.mkdir()
        for name, text in SOURCES.items():
            path = self.site / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self.info = self.site / f"engine_one-{version}.dist-info"
        self.info.mkdir()
        (self.info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: engine-one\nVersion: {version}\n", "utf-8")
        (self.info / "RECORD").write_text("".join(map(_record, SOURCES.items())), "utf-8")
        if commit:
            (self.info / "direct_url.json").write_text(json.dumps({"vcs_info": {"commit_id": commit}}), "utf-8")
        self.write_pack(fixes())

    def write_pack(self, written: Mapping[str, Any], profile: str = PROFILE) -> None:
        folder = self.packs / profile
        (folder / "enplace_gaudi").mkdir(parents=True, exist_ok=True)
        digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in SOURCES.items()}
        target = {"distribution": "engine_one", "version": "1.0", "commit": "c0ffee", "files": digests}
        listed = [
            {"name": "wide-rows", "opt_in": False, "requires": [], "summary": "Rows are wide."},
            {"name": "dirty-swap", "opt_in": False, "requires": ["wide-rows"], "summary": "A swap is noted."},
            {"name": "first-row", "opt_in": False, "requires": [], "summary": "The first row is known."},
            {"name": "slow-total", "opt_in": True, "requires": ["dirty-swap"], "summary": "A total begins at 100."},
        ]
        pack = {"format": 1, "profile": profile, "targets": [target], "fixes": listed}
        (folder / "pack.json").write_text(json.dumps(pack), "utf-8")
        for name, content in written.items():
            (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
        (folder / "enplace_gaudi" / "__init__.py").write_text("", "utf-8")
        (folder / "enplace_gaudi" / "rows.py").write_text("def known(values):\n    return values or [7]\n", "utf-8")

    def argv(self, *arguments: str) -> list[str]:
        own = ["--packs", str(self.packs), "--path", str(self.site)]
        if not any(argument.startswith("--profile") for argument in arguments):
            own += ["--profile", PROFILE]
        return [sys.executable, str(PROGRAM), *own, *arguments]

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.argv(*arguments), capture_output=True, text=True, check=False, **more)

    def engine(self, accept_changed: bool = False, profile: str = PROFILE) -> fix_engine.Site:
        return fix_engine.Site(fix_engine.load_pack(self.packs / profile), [str(self.site)], accept_changed)

    def content(self) -> dict[str, bytes]:
        """Every file below site-packages, whoever wrote it."""
        found = {str(path.relative_to(self.site)): path for path in sorted(self.site.rglob("*"))}
        links = {name: str(path.readlink()).encode() for name, path in found.items() if path.is_symlink()}
        return {**{name: path.read_bytes() for name, path in found.items() if path.is_file()}, **links}


def _record(item: tuple[str, str]) -> str:
    name, text = item
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(text)}\n"
