# SPDX-License-Identifier: Apache-2.0
"""The rendered units as real systemd reads and runs them: arguments, sandbox, the key, the end, and liveness."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.module_utils import unit as unit_file
from ansible_collections.enplace.inference.plugins.module_utils.unit import (
    Unit,
    render,
    render_alive,
    render_environment,
    render_whole,
)

from tests.sim.lab import Lab
from tests.unit.test_unit_file import AWKWARD

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(unit_file.__file__).parent
HOST = "units"
SLUG = "org-model-cpu"
NAME = f"enplace-{SLUG}.service"
ALIVE = f"enplace-{SLUG}-alive.service"
TIMER = f"enplace-{SLUG}-alive.timer"
UNITS = "/usr/local/lib/systemd/system"
FOLDER = "/opt/release"
OUT = f"/var/cache/enplace/{SLUG}/seen.json"
PROGRAM = (
    "import json, os, sys\n"
    "own = {name: value for name, value in os.environ.items() if name.startswith('T_')}\n"
    f"json.dump({{'argv': sys.argv[1:], 'env': own}}, open('{OUT}', 'w'))\n"
)
KEY = "sk-0123456789-abcdef"
KEY_FILE = "/etc/enplace-key"
LEFT = f"/run/enplace/{SLUG}/api-key"
PYTHON = "/usr/bin/python3"
MODEL = "enplace/smoke"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab(ROOT)
    made.down(HOST)
    made.up(HOST)
    made.exec(HOST, ["install", "-d", "-o", "admin", "/var/lib/enplace"])
    made.exec(HOST, ["mkdir", "-p", UNITS, FOLDER])
    for name in ("ready.py", "alive.py", "launch.py"):
        write(made, f"{FOLDER}/{name}", (PROGRAMS / name).read_text(encoding="utf-8"))
    write(made, f"{FOLDER}/liar.py", (ROOT / "tests" / "sim" / "liar.py").read_text(encoding="utf-8"))
    write(made, KEY_FILE, f"{KEY}\n")
    run(made, "chmod", "0600", KEY_FILE)
    yield made
    made.down(HOST)


@pytest.fixture(autouse=True)
def stopped(lab: Lab) -> Iterator[None]:
    """Every test finds and leaves a host without units of ours."""
    lab.exec(HOST, ["sh", "-c", "date +%s.%6N > /run/since"])
    yield
    lab.exec(HOST, ["sh", "-c", f"systemctl stop 'enplace-*'; rm -rf {UNITS}/enplace-* /run/enplace"])
    lab.exec(HOST, ["sh", "-c", "systemctl daemon-reload; systemctl reset-failed"])


def run(lab: Lab, *argv: str) -> str:
    """What a command on the host prints; it must succeed."""
    done = lab.exec(HOST, list(argv))
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}\n{journal(lab)}"
    return done.stdout


def write(lab: Lab, path: str, text: str) -> None:
    assert lab.exec(HOST, ["tee", path], stdin=text).returncode == 0


def journal(lab: Lab, unit: str = "enplace-*") -> str:
    """What units of this test said."""
    since = lab.exec(HOST, ["cat", "/run/since"]).stdout.strip()
    return lab.exec(HOST, ["journalctl", "--no-pager", "-b", f"--since=@{since}", "-u", unit]).stdout


def show(lab: Lab, unit: str, name: str) -> str:
    return run(lab, "systemctl", "show", "-P", name, unit).strip()


def wait_for(lab: Lab, what: str, true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s\n{journal(lab)}"
        time.sleep(0.2)


UNIT = Unit(
    description="100% of $it",
    slug=SLUG,
    user="admin",
    argv=["/bin/sleep", "infinity"],
    ready_argv=["/bin/true"],
    environment={},
    ready_timeout_s=30,
    alive_argv=[PYTHON, f"{FOLDER}/alive.py", "--url", "http://127.0.0.1:8000", "--model", MODEL],
)


def put(lab: Lab, *units: Unit) -> None:
    """Install units with all that belongs to them; liveness is asked ten times as fast."""
    for unit in units:
        service, timer = render_alive(unit)
        files = {
            unit.name: render(unit),
            f"{unit.name}.d/10-environment.conf": render_environment(unit),
            f"enplace-{unit.slug}-alive.service": service.replace("--deadline 120", "--deadline 2"),
            f"enplace-{unit.slug}-alive.timer": timer.replace("OnCalendar=minutely", "OnCalendar=*:*:0/6").replace(
                "RandomizedDelaySec=10", "RandomizedDelaySec=0"
            ),
        }
        run(lab, "mkdir", "-p", f"{UNITS}/{unit.name}.d")
        for name, text in files.items():
            write(lab, f"{UNITS}/{name}", text)
    run(lab, "systemctl", "daemon-reload")


def test_arguments_and_variables_arrive_as_they_were(lab: Lab) -> None:
    environment = {f"T_{index}": text for index, text in enumerate(AWKWARD) if text.isprintable()}
    put(lab, replace(UNIT, argv=[PYTHON, "-c", PROGRAM, *AWKWARD], environment=environment))
    lab.exec(HOST, ["systemctl", "start", NAME])
    wait_for(lab, "what the program saw", lambda: lab.exec(HOST, ["test", "-s", OUT]).returncode == 0)
    assert json.loads(run(lab, "cat", OUT)) == {"argv": AWKWARD, "env": environment}


# ---- what systemd thinks of the text

VARIANTS = {
    "cpu": UNIT,
    "gb10": replace(UNIT, accelerator="gb10", slug="org-model-gb10", conflicts=["enplace-a.service"]),
    "gaudi2": replace(UNIT, accelerator="gaudi2", slug="org-model-gaudi2", cards=[0, 1], ready_timeout_s=2700),
    "with a key": replace(
        UNIT, slug="org-model-key", api_key_file=KEY_FILE, launch_argv=[PYTHON, f"{FOLDER}/launch.py"]
    ),
}
# Exposure by systemd's own measure, 0 to 10. What an accelerator needs open is open there.
MOST = {"cpu": 3.0, "gb10": 3.0, "gaudi2": 3.0, "with a key": 3.0}
MOST_ALIVE = 1.5


@pytest.mark.parametrize("variant", VARIANTS)
def test_systemd_finds_nothing_wrong(lab: Lab, variant: str) -> None:
    put(lab, VARIANTS[variant])
    slug = VARIANTS[variant].slug
    names = [f"enplace-{slug}{kind}" for kind in (".service", "-alive.service", "-alive.timer")]
    done = lab.exec(HOST, ["systemd-analyze", "verify", *(f"{UNITS}/{name}" for name in names)])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    write(lab, "/tmp/whole.service", render_whole(VARIANTS[variant]))
    done = lab.exec(HOST, ["systemd-analyze", "verify", "/tmp/whole.service"])
    assert (done.returncode, done.stderr) == (0, "")


# What systemd counts against a unit -> the word in a comment of the unit that says why; others are named as they are.
EXPLAINED = {
    "SystemCallFilter=~@debug": "@debug",
    "SystemCallFilter=~@resources": "@resources",
    "SystemCallFilter=~@privileged": "@privileged",
    "RestrictAddressFamilies=~AF_NETLINK": "AF_NETLINK",
    "RestrictAddressFamilies=~AF_UNIX": "AF_UNIX",
    "RestrictAddressFamilies=~AF_(INET|INET6)": "AF_INET",
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_units_leave_little_open_and_say_why_they_leave_it(lab: Lab, variant: str) -> None:
    unit = VARIANTS[variant]
    put(lab, unit)
    texts = {unit.name: render(unit), f"enplace-{unit.slug}-alive.service": render_alive(unit)[0]}
    for (name, text), most in zip(texts.items(), (MOST[variant], MOST_ALIVE), strict=True):
        argv = ["systemd-analyze", "security", "--no-pager", "--json=short", f"--threshold={most * 10:g}", name]
        done = lab.exec(HOST, argv)
        assert done.returncode == 0, f"more than {most} for {name}: {done.stdout[-3000:]}"
        comments = [line for line in text.splitlines() if line.startswith("#")]
        for entry in json.loads(done.stdout):
            if entry["set"] is False and float(entry["exposure"] or 0) > 0:
                option = entry["name"].partition("=")[0]
                words = EXPLAINED.get(entry["name"], option)
                assert any(words in line for line in comments), f"{name}: nothing says why {entry['name']} is left open"


# ---- the key


def test_the_key_reaches_the_engine_and_nothing_else(lab: Lab) -> None:
    # It knows the engine's flags as little as the engine's middleware.
    argv = [
        PYTHON,
        "-c",
        f"import runpy, sys; sys.argv[3:] = []; runpy.run_path('{FOLDER}/liar.py', run_name='__main__')",
    ]
    argv += ["--port", "8000"]
    ready = [PYTHON, f"{FOLDER}/ready.py", "--url", "http://127.0.0.1:8000", "--model", MODEL, "--deadline", "20"]
    launch = [PYTHON, f"{FOLDER}/launch.py"]
    put(lab, replace(UNIT, argv=argv, ready_argv=ready, api_key_file=KEY_FILE, launch_argv=launch))
    run(lab, "systemctl", "start", NAME)
    pid = show(lab, NAME, "MainPID")
    assert f"VLLM_API_KEY={KEY}" in run(lab, "cat", f"/proc/{pid}/environ").split("\0")
    assert run(lab, "stat", "-c", "%a %U", f"/proc/{pid}/environ").split() == ["400", "admin"]
    seen = run(lab, "cat", f"/proc/{pid}/cmdline") + run(lab, "ps", "axww", "-o", "args")
    assert "liar.py" in seen
    assert "launch.py" not in seen, "it turned into the engine"
    seen += run(lab, "systemctl", "show", NAME) + run(lab, "systemctl", "cat", NAME)
    seen += run(lab, "journalctl", "--no-pager", "-b", "-o", "json", "--all")
    seen += run(lab, "grep", "-rs", "", "/etc/systemd", UNITS, "/run/systemd/system")
    assert KEY not in seen
    # As it is for everybody else on the host.
    other = lab.exec(HOST, ["setpriv", "--reuid=65534", "--clear-groups", "cat", f"/proc/{pid}/environ"])
    assert other.returncode != 0
    status = "import sys, urllib.request as r; r.urlopen(sys.argv[1])"
    refused = lab.exec(HOST, [PYTHON, "-c", status, "http://127.0.0.1:8000/v1/models"])
    assert "401" in refused.stderr
    assert run(lab, "stat", "-c", "%a %U", LEFT).split() == ["400", "admin"]
    assert run(lab, "stat", "-c", "%a %U", str(Path(LEFT).parent)).split() == ["700", "admin"]
    run(lab, "systemctl", "start", ALIVE)
    state = json.loads(run(lab, "cat", f"/run/enplace/{SLUG}-alive/state.json"))
    assert state == {"run": show(lab, NAME, "InvocationID"), "strikes": 0, "said": ""}, "it was asked, with the key"
    assert "No entries" in journal(lab, ALIVE), "no line a minute about an engine that is well"
    run(lab, "systemctl", "stop", NAME)
    assert lab.exec(HOST, ["test", "-e", LEFT]).returncode != 0


def test_without_its_key_a_unit_does_not_start(lab: Lab) -> None:
    unit = replace(UNIT, api_key_file="/etc/no-such-key", launch_argv=[PYTHON, f"{FOLDER}/launch.py"])
    put(lab, unit)
    assert lab.exec(HOST, ["systemctl", "start", NAME]).returncode != 0


# ---- the end

STUBBORN = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "open('/dev/shm/left', 'w').write('x')\n"
    "subprocess.Popen([sys.executable, '-c', 'import os, signal, time; os.setsid(); "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)'])\n"
    "print('has a child', flush=True)\n"
    "time.sleep(1000)\n"
)


def test_a_stop_leaves_no_process_and_no_shared_memory(lab: Lab) -> None:
    unit = replace(UNIT, argv=[PYTHON, "-c", STUBBORN])
    put(lab, unit)
    write(lab, f"{UNITS}/{NAME}.d/20-soon.conf", "[Service]\nTimeoutStopSec=1\n")
    run(lab, "systemctl", "daemon-reload")
    run(lab, "systemctl", "start", NAME)
    wait_for(lab, "the child", lambda: "has a child" in journal(lab, NAME))
    assert lab.exec(HOST, ["test", "-e", "/dev/shm/left"]).returncode != 0, "it is the unit's own"
    assert len(run(lab, "pgrep", "-u", "admin", "python3").split()) == 2
    run(lab, "systemctl", "stop", NAME)
    assert lab.exec(HOST, ["pgrep", "-u", "admin", "python3"]).stdout == ""


def test_units_that_conflict_are_stopped_before_the_other_starts(lab: Lab) -> None:
    # Their names decide who waits for whom: both ways round.
    names = ["enplace-a.service", "enplace-b.service"]
    slow = [
        PYTHON,
        "-c",
        "import signal, sys, time\nsignal.signal(15, lambda *_: (time.sleep(1), sys.exit(0)))\ntime.sleep(1000)",
    ]
    put(lab, *(replace(UNIT, slug=name[8:9], argv=slow, conflicts=names) for name in names))
    for first, second in (names, names[::-1]):
        run(lab, "systemctl", "start", first)
        time.sleep(0.5)
        run(lab, "systemctl", "start", second)
        assert lab.exec(HOST, ["systemctl", "is-active", *names]).stdout.split().count("active") == 1
        ended = int(show(lab, first, "ExecMainExitTimestampMonotonic"))
        began = int(show(lab, second, "ExecMainStartTimestampMonotonic"))
        assert ended < began, "the cards, or the memory, must be free"
        run(lab, "systemctl", "stop", second)


# ---- liveness


def serve(lab: Lab, lie: str) -> str:
    """Start a simulated server that lies; the run of its unit."""
    argv = [PYTHON, f"{FOLDER}/liar.py", "--port", "8000", *(["--lie", lie] if lie else [])]
    put(lab, replace(UNIT, argv=argv, ready_argv=["/bin/sleep", "1"]))
    run(lab, "systemctl", "start", NAME)
    return show(lab, NAME, "InvocationID")


def test_a_dead_engine_whose_health_says_200_is_restarted_by_the_timer(lab: Lab) -> None:
    before = serve(lab, "hangs")
    run(lab, "systemctl", "start", TIMER)
    wait_for(lab, "a restart", lambda: show(lab, NAME, "InvocationID") not in ("", before), 90)
    said = journal(lab, ALIVE)
    assert "may be dead (1 of 2): no answer within 2 s; its counters stood still" in said
    assert f"{NAME} is dead, asked 2 times in a row, and is restarted: no answer within 2 s" in said
    assert show(lab, ALIVE, "Result") in ("success", "exec-condition")
    assert "failed" not in lab.exec(HOST, ["systemctl", "is-failed", ALIVE]).stdout


@pytest.mark.parametrize("lie", ["", "hangs_busy", "error_401"])
def test_an_engine_that_works_or_refuses_is_left_alone(lab: Lab, lie: str) -> None:
    before = serve(lab, lie)
    for _ in range(3):
        run(lab, "systemctl", "start", ALIVE)
    assert show(lab, NAME, "InvocationID") == before
    said = journal(lab, ALIVE)
    assert "dead" not in said
    assert said.count("HTTP 401") == (1 if lie == "error_401" else 0), "once, not every minute"


def test_nobody_is_restarted_during_an_activation_or_when_stopped(lab: Lab) -> None:
    before = serve(lab, "hangs")
    run(lab, "systemctl", "start", ALIVE)
    # The candidate wins over the verified unit while it is there.
    run(lab, "mkdir", "-p", "/run/systemd/system")
    run(lab, "cp", f"{UNITS}/{NAME}", f"/run/systemd/system/{NAME}")
    try:
        run(lab, "systemctl", "start", ALIVE)
        run(lab, "systemctl", "start", ALIVE)
        assert show(lab, NAME, "InvocationID") == before
    finally:
        run(lab, "rm", f"/run/systemd/system/{NAME}")
    run(lab, "systemctl", "stop", NAME)
    for _ in range(2):
        run(lab, "systemctl", "start", ALIVE)
    assert show(lab, NAME, "ActiveState") == "inactive"
