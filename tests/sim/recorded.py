# SPDX-License-Identifier: Apache-2.0
"""A host from a recording below tests/unit/accelerators: its files in a folder, its programs as answers.

A recording is a folder with `source.txt`, which says where it comes from, and `host.txt`, whose lines are:

    like NAME                   all of another recording first
    drop PATH                   without this file, link or folder of it
    file PATH                   a file; its lines follow, each after `| `
    value PATH TEXT             a file of one line
    bytes PATH 00 01            a file of bytes
    sized PATH N                a file of N bytes that nobody reads
    folder PATH                 a folder
    link PATH TARGET            a link
    program NAME RC             a program, named as in accelerators.PROGRAMS; what it prints follows as with a file, and
                                what it prints on its error stream after `! `
    absent NAME                 without this program of the other recording
    room FREE TOTAL             the bytes of the file system of /boot

A program that is not recorded is not there. `{inode:PATH}` in a file is the inode of another one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import accelerators
from ansible_collections.enplace.inference.plugins.module_utils.command import Result
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure

FOLDER = Path(__file__).resolve().parents[1] / "unit" / "accelerators"
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())

# The moment of every recording, far behind the files that are made of it would be a wrong clock.
NOW = 1_790_000_000.0


class Recorded:
    """A recorded host, unpacked into a folder."""

    def __init__(self, name: str, root: Path) -> None:
        self.root = root
        self.programs: dict[str, Result] = {}
        self.room = SimpleNamespace(f_bavail=0, f_blocks=0, f_frsize=1)
        self.asked: list[tuple[str, ...]] = []
        self._take(name)
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink() and b"{inode:" in path.read_bytes():
                text = re.sub(
                    r"\{inode:([^}]+)\}", lambda found: str(os.stat(self._at(found[1])).st_ino), path.read_text()
                )
                path.write_text(text)
        if (root / "var/lib/dpkg/status").exists():
            os.utime(root / "var/lib/dpkg/status", (NOW - 1000, NOW - 1000))

    def look(self) -> accelerators.Look:
        return accelerators.Look(str(self.root), self.ask, lambda _path: self.room, lambda: NOW)

    def facts(self) -> dict[str, Any]:
        return accelerators.facts(self.look(), NOW)

    def ask(self, argv: Sequence[str], _timeout_s: float) -> Result:
        self.asked.append(tuple(argv))
        names = {tuple(words): name for name, words in accelerators.PROGRAMS.items()}
        name = names.get(tuple(argv)) or f"modinfo {argv[2]}"
        if name not in self.programs:
            raise Failure("a program is missing", where=argv[0])
        return self.programs[name]

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _take(self, name: str) -> None:
        kind, where = "", ""
        lines: list[str] = []
        errors: list[str] = []

        def close() -> None:
            if kind == "file":
                self._write(where, "".join(f"{line}\n" for line in lines).encode())
            elif kind == "program":
                label, _blank, rc = where.rpartition(" ")
                texts = ["".join(f"{line}\n" for line in part) for part in (lines, errors)]
                self.programs[label] = Result((label,), int(rc), texts[0], texts[1])

        for line in (FOLDER / name / "host.txt").read_text(encoding="utf-8").splitlines():
            if line == "|" or line.startswith("| "):
                lines.append(line[2:])
            elif line.startswith("! "):
                errors.append(line[2:])
            elif line and not line.startswith("#"):
                close()
                kind, _blank, where = line.partition(" ")
                lines, errors = [], []
                if kind not in ("file", "program"):
                    self._one(kind, where)
        close()

    def _one(self, kind: str, where: str) -> None:
        path, _blank, rest = where.partition(" ")
        if kind == "like":
            self._take(where)
        elif kind == "drop":
            target = self._at(path)
            shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()
        elif kind == "value":
            self._write(path, f"{rest}\n".encode())
        elif kind == "bytes":
            self._write(path, bytes.fromhex(rest))
        elif kind == "sized":
            self._write(path, b"")
            os.truncate(self._at(path), int(rest))
        elif kind == "folder":
            self._at(path).mkdir(parents=True, exist_ok=True)
        elif kind == "link":
            self._at(path).parent.mkdir(parents=True, exist_ok=True)
            self._at(path).unlink(missing_ok=True)
            self._at(path).symlink_to(rest)
        elif kind == "absent":
            del self.programs[where]
        elif kind == "room":
            self.room.f_bavail, self.room.f_blocks = int(path), int(rest)
        else:
            raise ValueError(f"a recording has no lines that begin with {kind}")

    def _write(self, path: str, data: bytes) -> None:
        target = self._at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
