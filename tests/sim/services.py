# SPDX-License-Identifier: Apache-2.0
"""A simulated host to activate releases on: systemd as a table over real files in a folder, memory, a power switch.

What a unit does is said by a marker in its text: `# engine: good`, `fails` (at start), `hangs` (never answers), `lies`
(its checks fail). The search path, enabling, conflicts and what a daemon-reload reads are those of systemd.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import files
from ansible_collections.enplace.inference.plugins.module_utils import release as releases
from ansible_collections.enplace.inference.plugins.module_utils.activation import Activator, Options
from ansible_collections.enplace.inference.plugins.module_utils.environment import State as EnvironmentState
from ansible_collections.enplace.inference.plugins.module_utils.files import Failure
from ansible_collections.enplace.inference.plugins.module_utils.machine import Machine, Process
from ansible_collections.enplace.inference.plugins.module_utils.systemd import Systemd
from ansible_collections.enplace.inference.plugins.module_utils.verify import child
from ansible_collections.enplace.inference.plugins.module_utils.verify import report as reports

GIGABYTE = 1_000_000_000
TOTAL = 100 * GIGABYTE


class Crash(BaseException):
    """The process is killed here. No error: nothing may catch it."""


class Services(Systemd):
    """systemd, simulated. `tick` is called at each call that changes something, and may raise Crash."""

    def __init__(self, layout: releases.Layout, tick: Callable[[], None]) -> None:
        self.layout = layout
        self.tick = tick
        self.loaded: dict[str, tuple[str, str]] = {}
        self.running: dict[str, dict[str, str]] = {}
        self.runs = 0
        self.log: list[str] = []
        for folder in (layout.owners, layout.units, layout.candidates, layout.owners / "multi-user.target.wants"):
            folder.mkdir(parents=True, exist_ok=True)

    def _find(self, unit: str) -> tuple[str, str]:
        """Path and text of a unit, by the search path; empty where there is none."""
        for folder in (self.layout.owners, self.layout.candidates, self.layout.units):
            if (folder / unit).is_file():
                drop = ""
                for place in (self.layout.candidates, self.layout.units):
                    drop = drop or releases.read_text(place / f"{unit}.d" / releases.DROPIN)
                return str(folder / unit), (folder / unit).read_text() + drop
        return "", ""

    def _link(self, unit: str) -> Path:
        return self.layout.owners / "multi-user.target.wants" / unit

    def load(self, unit: str) -> tuple[str, str]:
        """What systemd knows of a unit: read once, and at a daemon-reload."""
        known = self.loaded.get(unit, ("", ""))
        if not known[0]:
            known = self.loaded[unit] = self._find(unit)
        return known

    def show_all(self, units: Any) -> dict[str, dict[str, str]]:
        found = {}
        for unit in dict.fromkeys(units):
            path, text = self.load(unit)
            state = self.running.get(unit, {})
            found[unit] = {
                "Id": unit,
                "LoadState": "loaded" if path else "not-found",
                "ActiveState": state.get("state", "inactive"),
                "SubState": "",
                "UnitFileState": ("enabled" if self._link(unit).is_symlink() else "disabled") if path else "",
                "Result": "exit-code" if state.get("state") == "failed" else "success",
                "NRestarts": "0",
                "InvocationID": state.get("invocation", ""),
                "ExecMainStatus": "1" if state.get("state") == "failed" else "0",
                "FragmentPath": path,
                "DropInPaths": "",
                "NeedDaemonReload": "yes" if self._find(unit) != (path, text) else "no",
                "ControlGroup": f"/system.slice/{unit}" if state.get("state") in ("active", "activating") else "",
            }
        return found

    def _did(self, what: str) -> None:
        self.log.append(what)
        self.tick()

    def reload(self) -> None:
        self.loaded = {unit: self._find(unit) for unit in self.loaded}
        self._did("daemon-reload")

    def begin(self, unit: str) -> None:
        """Start a unit at once: what its text says decides what becomes of it."""
        path, text = self.load(unit)
        if not path:
            raise Failure(f"systemctl start {unit} failed", found="no such unit")
        if self.running.get(unit, {}).get("state") in ("active", "activating"):
            return
        for other in list(self.running):
            if other in text.replace(unit, "") and f"Conflicts={other}" in text:
                self.running.pop(other)
        self.runs += 1
        kind = (re.search(r"# engine: (\w+)", text) or ["", "good"])[1]
        state = {"fails": "failed", "hangs": "activating"}.get(kind, "active")
        self.running[unit] = {"state": state, "invocation": f"{self.runs:032x}", "text": text, "kind": kind}

    def start(self, *units: str) -> None:
        for unit in units:
            self.begin(unit)
            self._did(f"start {unit}")

    def stop(self, *units: str) -> None:
        for unit in units:
            self.running.pop(unit, None)
            self._did(f"stop {unit}")

    def forget(self, *units: str) -> None:
        for unit in units:
            if self.running.get(unit, {}).get("state") == "failed":
                self.running.pop(unit)
        self.tick()

    def enable(self, unit: str) -> None:
        if not self.load(unit)[0]:
            raise Failure(f"systemctl enable {unit} failed", found="no such unit")
        self._link(unit).unlink(missing_ok=True)
        self._link(unit).symlink_to(self._find(unit)[0])
        self._did(f"enable {unit}")

    def disable(self, unit: str) -> None:
        self._link(unit).unlink(missing_ok=True)
        self._did(f"disable {unit}")

    def journal(self, unit: str, invocation: str, lines: int = 20) -> str:
        return f"the journal of {unit}"

    def boot(self) -> None:
        """What a start of the host does: /run is empty, and what is enabled is started."""
        files.remove(str(self.layout.candidates))
        self.layout.candidates.mkdir(parents=True)
        self.loaded, self.running = {}, {}
        for link in sorted((self.layout.owners / "multi-user.target.wants").iterdir()):
            if self.load(link.name)[0]:
                self.begin(link.name)


class Kernel(Machine):
    """The kernel's answers, simulated: a running engine takes a gigabyte for every `# gigabytes:` of its unit."""

    def __init__(self, services: Services) -> None:
        super().__init__(services.layout.root)
        self.services = services
        self.boots = 1
        self.held: list[Process] = []
        self.port: list[Process] = []
        self.lag: list[int] = []

    def boot(self) -> str:
        return f"boot-{self.boots}"

    def memory(self, name: str = "MemAvailable") -> int:
        if name == "MemTotal":
            return TOTAL
        texts = [state["text"] for state in self.services.running.values() if state["state"] != "failed"]
        taken = sum(int((re.search(r"# gigabytes: (\d+)", text) or ["", "0"])[1]) for text in texts)
        return TOTAL - taken * GIGABYTE - (self.lag.pop() if self.lag else 0)

    def largest(self, count: int = 3) -> list[tuple[Process, int]]:
        return [(Process(77, "a large one"), 5 * GIGABYTE)]

    def members(self, cgroup: str) -> list[int]:
        return []

    def listeners(self, port: int, addresses: Any) -> list[Process]:
        running = self.services.running.items()
        return self.port + [Process(5, "an engine", unit) for unit, state in running if f":{port}" in state["text"]]

    def accelerator_holders(self, cards: Any) -> list[Process]:
        return self.held

    def users(self, folders: Any) -> dict[Path, list[Process]]:
        return {}


class Host:
    """A simulated host, below a folder. `crash_at(n)` kills the process at the n-th thing it writes or asks for."""

    def __init__(self, root: Path) -> None:
        self.layout = releases.Layout(root)
        self.ticks = 0
        self.last: int | None = None
        self.services = Services(self.layout, self.tick)
        self.kernel = Kernel(self.services)
        self.now = 0.0
        self.verified: list[Mapping[str, Any]] = []

    def tick(self) -> None:
        self.ticks += 1
        if self.last is not None and self.ticks >= self.last:
            raise Crash

    def crash_at(self, number: int | None) -> None:
        self.ticks, self.last = 0, number

    def power_cut(self) -> None:
        """The host goes down and starts again."""
        self.kernel.boots += 1
        self.services.boot()

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def verify(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The checks: what the unit's text says of its answers decides."""
        self.verified.append(request)
        self.tick()
        state = self.services.running.get(request["unit"], {})
        passed = state.get("state") == "active" and state.get("kind") != "lies"
        unit = {"name": request["unit"], "invocation": state.get("invocation", "")}
        check = {"name": "known_answers", "status": "pass" if passed else "fail", "reason": "a wrong answer"}
        check.update({"expected": "Mars", "found": "Venus", "todo": ""})
        ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now))
        report = {"format": reports.FORMAT, "complete": True, "all_passed": passed, "ended": ended}
        report.update(subject=child.subject_of(request).as_data(), unit=unit, problems=[], checks=[check])
        reports.store(request["report"], report)
        return report

    def activator(self, **options: Any) -> Activator:
        def sealed(path: str) -> EnvironmentState:
            return EnvironmentState(path, "sealed", {"digest": "e" * 64})

        given = Options(**{"holder": "a test", **options})
        return Activator(
            self.layout, self.services, self.kernel, given, self.verify, sealed, self.sleep, lambda: self.now
        )

    def release(
        self,
        name: str,
        slug: str = "org-model-cpu",
        engine: str = "good",
        gigabytes: int = 10,
        conflicts: str = "",
        timer: bool = True,
        **manifest: Any,
    ) -> releases.Release:
        """A release; `name` decides its digest."""
        digest = files.sha256_bytes(f"{slug} {name}".encode())
        port = manifest.get("port", 8000)
        against = f"Conflicts={releases.unit_of(conflicts)}\n" if conflicts else ""
        unit = f"{releases.OURS}\n# engine: {engine}\n# gigabytes: {gigabytes}\n# {digest} :{port}\n[Unit]\n{against}"
        contents = {
            releases.UNIT: unit,
            releases.ENVIRONMENT: f"[Service]\nEnvironment=NAME={name}\n",
            releases.CHECKS: files.json_text(
                {
                    "python": "/usr/bin/python3",
                    "url": f"http://127.0.0.1:{port}",
                    "model": "org/model",
                    "recipe": f"org/model:{slug}",
                    "release": digest,
                    "engine": {"name": "vllm", "version": "1"},
                    "checks": [{"check": "healthy"}],
                    "report": str(self.layout.root / "reports" / slug / "latest.json"),
                }
            ),
            "ready.py": "# ready\n",
        }
        if timer:
            alive = (releases.ALIVE_SERVICE, releases.ALIVE_TIMER, "alive.py")
            contents.update({file_name: f"# {file_name}\n" for file_name in alive})
        value = {
            "format": releases.FORMAT,
            "recipe": f"org/model:{slug}",
            "slug": slug,
            "digest": digest,
            "environment": {"path": str(self.layout.environments / "e1"), "digest": "e" * 64},
            "port": port,
            "ready_timeout_s": 60,
            "memory": {"start_bytes": 20 * GIGABYTE},
            **manifest,
            "files": {key: files.sha256_bytes(text.encode()) for key, text in contents.items()},
        }
        contents[releases.MANIFEST] = files.json_text(value)
        return releases.Release(slug, digest, contents, f"org/model:{slug}", self.layout)

    # What is there

    def serves(self, slug: str = "org-model-cpu") -> str:
        """The digest of the release whose unit runs; empty where none does."""
        state = self.services.running.get(releases.unit_of(slug), {})
        named = re.search(r"^# ([0-9a-f]{64})", state.get("text", ""), re.MULTILINE)
        return named[1] if named and state["state"] == "active" else ""

    def rest(self) -> list[str]:
        """What a finished activation must not leave behind, whatever became of it."""
        left = [str(path) for path in self.layout.candidates.rglob("*")]
        made = (self.layout.releases, self.layout.units, self.layout.history)
        left += [str(path) for folder in made for path in folder.rglob(".*")]
        left += [str(path) for path in self.layout.journal.parent.glob(".*")]
        left += [str(path) for path in (self.layout.journal, self.layout.lock) if path.exists()]
        return left
