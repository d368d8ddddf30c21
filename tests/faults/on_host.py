# SPDX-License-Identifier: Apache-2.0
"""Questions that the fault tests ask on a host: what is served there, what is left over, has a stage been reached.

Sent to the host's Python through standard input: standard library only, nothing of the collection, so that what is
found does not depend on the code that is tested. The answer is JSON.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RELEASES = Path("/opt/enplace/releases")
ENVIRONMENTS = Path("/opt/enplace/environments")
TOOLS = Path("/opt/enplace/tools")
UNITS = Path("/usr/local/lib/systemd/system")
STATE = Path("/var/lib/enplace")
HUB = STATE / "hub"
JOURNAL = STATE / "activation.json"
LOCK = Path("/run/enplace/host.lock")
SEAL = "enplace-environment.json"

# What a writer that was cut off leaves behind. A name with a dot in front and eight letters behind is what
# tempfile.mkstemp makes of a file that is written aside.
LITTER = re.compile(r".*\.(new|old|incomplete|part|partial|aside|tmp)|\..+\.[a-z0-9_]{8}|\.(.+\.)?lock")


def text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def without(value: Any, fields: tuple[str, ...]) -> Any:
    """Data without some fields, wherever they are."""
    if isinstance(value, dict):
        return {key: without(entry, fields) for key, entry in value.items() if key not in fields}
    return [without(entry, fields) for entry in value] if isinstance(value, list) else value


def manifest(*fields: str) -> dict[str, Any]:
    """Everything a run decides: releases, units, what is enabled and runs, environments, tools, weights.

    All of it is text as it stands there, but the records of the weights, which are data without the fields.
    """
    found: dict[str, Any] = {"recipes": {}, "units": {}, "states": {}, "environments": {}, "tools": {}, "weights": {}}
    for folder in sorted(RELEASES.iterdir()) if RELEASES.is_dir() else ():
        current = folder / "current"
        entry: dict[str, Any] = {
            link: os.readlink(folder / link) for link in ("current", "previous") if (folder / link).is_symlink()
        }
        if current.is_dir():
            entry["files"] = {path.name: text(path) for path in sorted(current.iterdir())}
            entry["modes"] = {path.name: oct(path.stat().st_mode) for path in sorted(current.iterdir())}
        entry["failed"] = sorted(path.name for path in (folder / "failed").glob("*"))
        found["recipes"][folder.name] = entry
    for place in (UNITS, Path("/etc/systemd/system"), Path("/run/systemd/system")):
        for path in sorted(place.rglob("*enplace*")) + sorted(place.glob("*enplace*.d/*")):
            if path.is_symlink():
                found["units"][str(path)] = "-> " + os.readlink(path)
            elif path.is_file():
                found["units"][str(path)] = text(path)
    shown = run("systemctl", "show", "--property", "Id,UnitFileState,ActiveState,NeedDaemonReload", "enplace-*")
    for block in shown.strip().split("\n\n"):
        state = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        # What the liveness timer starts comes and goes.
        if state and not state["Id"].endswith("-alive.service"):
            found["states"][state.pop("Id")] = state
    for name, root in (("environments", ENVIRONMENTS), ("tools", TOOLS)):
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            seal = folder / SEAL
            found[name][folder.name] = text(seal) if seal.is_file() else "unsealed"
    for path in sorted((HUB / "enplace-verified").glob("*.json")):
        found["weights"][path.name] = without(json.loads(text(path)), fields)
    return found


def weights(repository: str, *fields: str) -> dict[str, Any]:
    """A repository in the hub's cache: the text of each link, sum and owner of each file; its record without fields."""
    folder = Path(repository)
    found: dict[str, Any] = {"records": [], "files": {}}
    for path in sorted((HUB / "enplace-verified").glob(f"{folder.name.removeprefix('models--')}--*.json")):
        found["records"].append(without(json.loads(text(path)), fields))
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found["files"][name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found["files"][name] = f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.owner()}"
    return found


def left_over(*environments: str) -> list[str]:
    """What no finished run leaves, a line each; empty on a clean host.

    Environments are looked for in these folders too.
    """
    roots = {ENVIRONMENTS, TOOLS, *map(Path, environments)}
    return sorted({*_files(roots), *_releases(), *_processes(), *_units()})


def _files(environments: set[Path]) -> Iterator[str]:
    if JOURNAL.exists():
        yield f"open transaction {JOURNAL}: {json.loads(text(JOURNAL)).get('phase')}"
    if LOCK.exists() and _locked(LOCK):
        yield f"held lock {LOCK}: {text(LOCK).strip()}"
    for root in (RELEASES, UNITS, STATE, Path("/run/enplace"), Path("/etc/systemd/system")):
        for folder, folders, names in os.walk(root):
            # The engine's own caches are its own.
            folders[:] = [name for name in folders if name not in ("__pycache__", ".cache")]
            for name in names + folders:
                path = Path(folder, name)
                if path != LOCK and LITTER.fullmatch(name) and not (name.endswith("lock") and not _locked(path)):
                    yield f"litter {path}"
    for root in environments:
        for path in root.iterdir() if root.is_dir() else ():
            if path.is_dir() and not (path / SEAL).is_file():
                yield f"half an environment {path}"
            elif not path.is_dir() and not (path.name.endswith(".lock") and not _locked(path)):
                yield f"litter {path}"
    for root in (Path("/run/systemd/system"), Path("/run/systemd/transient")):
        for path in root.glob("*enplace*"):
            yield f"candidate {path}"
    for root in (Path("/tmp"), Path("/var/tmp"), Path("/root/.ansible/tmp"), Path("/home/admin/.ansible/tmp")):
        for path in root.glob("*"):
            if re.match(r"ansible|enplace|uv-|\.tmp", path.name):
                yield f"temporary {path}"


def _locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _releases() -> Iterator[str]:
    for folder in RELEASES.iterdir() if RELEASES.is_dir() else ():
        for path in folder.iterdir():
            if path.name in ("current", "previous"):
                if not path.is_dir():
                    yield f"dangling {path}"
            elif path.name != "failed" and not (path / "release.json").is_file():
                yield f"half a release {path}"


def _processes() -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), os.getppid()):
            continue
        try:
            command = text(entry / "cmdline").replace("\0", " ").strip()
            group = text(entry / "cgroup")
        except OSError:
            continue
        # What belongs to a unit of ours is the server, or a question whether it is alive.
        if re.search(r"enplace|ansible|AnsiballZ|vllm", command) and not re.search(r"/enplace-[^/]*\.service", group):
            yield f"process {command[:160]}"


def _units() -> Iterator[str]:
    listed = run(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", "--state", "failed,not-found", "enplace-*"
    )
    for line in listed.splitlines():
        yield f"unit {' '.join(line.split()[:4])}"


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def phase(*names: str) -> bool:
    """The open transaction is in one of these phases."""
    try:
        return json.loads(text(JOURNAL)).get("phase") in names
    except (OSError, ValueError):
        return False


def unfinished(path: str) -> bool:
    """A file of a download is there in part."""
    return any(True for _ in Path(path).rglob("*.incomplete"))


def unsealed(path: str, packages: str) -> bool:
    """An environment is being built: so many packages of it are there, and its seal is not."""
    count = sum(1 for _ in Path(path).glob("lib/python*/site-packages/*.dist-info"))
    return count >= int(packages) and not (Path(path) / SEAL).exists()


CONDITIONS: dict[str, Callable[..., bool]] = {"phase": phase, "unfinished": unfinished, "unsealed": unsealed}


def wait(seconds: str, name: str, *arguments: str) -> bool:
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        if CONDITIONS[name](*arguments):
            return True
        time.sleep(0.03)
    return False


if __name__ == "__main__":
    asked, *rest = sys.argv[1:]
    answers: dict[str, Callable[..., Any]] = {
        "manifest": manifest,
        "left_over": left_over,
        "weights": weights,
        "wait": wait,
    }
    json.dump(answers[asked](*rest), sys.stdout)
