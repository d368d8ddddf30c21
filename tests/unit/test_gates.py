# SPDX-License-Identifier: Apache-2.0
"""The gates can fail: a role whose parts disagree, a run that tested nothing, a part that broke."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import __main__ as gates
from tests.gates import roles

SPECS = """
argument_specs:
  main:
    short_description: Make a thing
    options:
      thing_size:
        type: int
        default: 3
        description: How large, in O(thing_unit).
      thing_parts:
        type: list
        elements: dict
        required: true
        description: What it is made of.
        options:
          name:
            type: str
            required: true
            description: What it is called.
"""


@pytest.fixture
def role(tmp_path: Path) -> Path:
    """A role whose parts agree."""
    folder = tmp_path / "thing"
    for name, text in {
        "meta/argument_specs.yml": SPECS,
        "defaults/main.yml": "thing_size: 3\n",
        "tasks/main.yml": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_role_whose_parts_agree(role: Path) -> None:
    assert list(roles.differences(role)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("defaults/main.yml", "thing_size: 3", "thing_size: 4", "is 4; the argument spec says 3"),
        ("defaults/main.yml", "thing_size: 3", "thing_size: '3'", "is '3'; the argument spec says 3"),
        ("defaults/main.yml", "thing_size: 3", "", "thing_size is missing"),
        ("defaults/main.yml", "thing_size: 3", "thing_size: 3\nthing_colour: red", "thing_colour is not an option"),
        ("defaults/main.yml", "thing_size: 3", "thing_size: 3\nthing_parts: []", "thing_parts is required"),
        ("meta/argument_specs.yml", "thing_size", "size", "does not begin with thing_"),
        ("meta/argument_specs.yml", "        default: 3\n", "", "has a default in defaults/main.yml that is not told"),
        ("meta/argument_specs.yml", "  main:", "  other:", "no entry point main"),
        ("meta/argument_specs.yml", "required: true", "required: true\n        default: []", "drop one of the two"),
        ("meta/argument_specs.yml", "description: What it is made of.", "description: ''", "has no description"),
    ],
)
def test_a_role_whose_parts_disagree(role: Path, file: str, old: str, new: str, said: str) -> None:
    path = role / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert any(said in line for line in roles.differences(role)), list(roles.differences(role))


def test_a_readme_has_every_option(role: Path) -> None:
    text = roles.readme(role)
    assert "| `thing_size` | int | `3` | How large, in `thing_unit`. |" in text
    assert "| `thing_parts` | list of dict | **required** | What it is made of. |" in text
    assert "| `thing_parts[].name` | str | **required** | What it is called. |" in text


JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="good"/>
<testcase classname="a" name="bad"><failure/></testcase>
<testcase classname="a" name="broken"><error/></testcase>
<testcase classname="a" name="not asked"><skipped/></testcase>
</testsuite></testsuites>"""


def test_tests_are_counted_by_outcome(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(JUNIT, encoding="utf-8")
    found = gates.counted(report, 1)
    assert (found.passed, found.failed, found.skipped) == (1, ["a::bad", "a::broken"], ["a::not asked"])


@pytest.mark.parametrize("junit", ["", '<testsuite><testcase classname="a" name="good"/></testsuite>'])
def test_a_run_that_ended_badly_failed(tmp_path: Path, junit: str) -> None:
    report = tmp_path / "junit.xml"
    if junit:
        report.write_text(junit, encoding="utf-8")
    assert gates.counted(report, 2).failed == ["exit status 2"]


def run_parts(monkeypatch: pytest.MonkeyPatch, *found: gates.Result) -> int:
    monkeypatch.setattr(gates, "PARTS", {f"part{number}": lambda one=one: one for number, one in enumerate(found)})
    monkeypatch.setattr("sys.argv", ["gates"])
    return gates.main()


def test_the_last_line_is_the_sum(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gates, "untracked", set)
    status = run_parts(monkeypatch, gates.Result(passed=2), gates.Result(passed=3, failed=["a"]))
    out = capsys.readouterr().out
    assert status == 1
    assert out.endswith("\n6 passed, 1 failed\n")
    assert "failed: part1: a" in out


def test_lanes_run_at_the_same_time_and_the_first_is_told_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def part(name: str, wait_for: str = "") -> Callable[[], gates.Result]:
        def run() -> gates.Result:
            (tmp_path / name).touch()
            while wait_for and not (tmp_path / wait_for).exists():
                time.sleep(0.01)
            print(f"said by {name}", flush=True)
            return gates.Result(passed=4, failed=["one"] if name == "lint" else [])

        return run

    def killed() -> gates.Result:
        os.kill(os.getpid(), signal.SIGKILL)
        return gates.Result(passed=1)

    monkeypatch.setattr(gates, "untracked", set)
    monkeypatch.setattr("sys.argv", ["gates"])
    # None of the three that begin ends before the others have begun; what no lane has runs in one of its own.
    parts = {"lint": part("lint", "e2e"), "unit": part("unit"), "other": part("other", "lint")}
    parts |= {"e2e": part("e2e", "other"), "faults": part("faults")}
    monkeypatch.setattr(gates, "PARTS", parts)
    assert gates.main() == 1
    out = capfd.readouterr().out
    places = [out.index(f"said by {name}") for name in ("e2e", "faults")]
    assert places == sorted(places)
    assert max(places) < min(out.index(f"said by {name}") for name in ("lint", "unit", "other"))
    assert out.index("said by lint") < out.index("===== unit")
    assert re.search(r"^lint +4 +1 ", out, re.M)
    assert [line.split()[0] for line in out.splitlines() if re.match(r"\w+ +4 ", line)] == list(parts)
    monkeypatch.setattr(gates, "PARTS", {"lint": killed, "e2e": part("e2e")})
    assert gates.main() == 1
    assert "failed: lint: ended with status -9, without a result" in capfd.readouterr().out


def test_every_part_is_in_one_lane() -> None:
    assert sorted(name for lane in gates.LANES for name in lane) == sorted(gates.PARTS)


def test_a_part_that_tested_nothing_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gates, "untracked", set)
    assert run_parts(monkeypatch, gates.Result(skipped=["all"])) == 1
    assert "failed: part0: nothing was tested" in capsys.readouterr().out


def test_a_file_left_behind_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    states = iter([set(), {"litter.txt"}])
    monkeypatch.setattr(gates, "untracked", lambda: next(states))
    assert run_parts(monkeypatch, gates.Result(passed=1)) == 1
    assert "failed: tree: left behind: litter.txt" in capsys.readouterr().out


def test_all_is_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gates, "untracked", set)
    assert run_parts(monkeypatch, gates.Result(passed=1)) == 0
    assert capsys.readouterr().out.endswith("\n2 passed, 0 failed\n")


def test_make_has_a_target_for_each_part() -> None:
    text = (gates.ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", text, re.M))
    # A target faults would be named as what is tested, not as the test.
    assert {"test-faults" if part == "faults" else part for part in gates.PARTS} <= targets
    shown = subprocess.run(["make", "--no-print-directory", "help"], cwd=gates.ROOT, capture_output=True, text=True)
    assert all(f"  {target} " in shown.stdout for target in targets)


def programs() -> list[str]:
    """The modules of the tests that are run with `python -m`."""
    files = (path for path in (gates.ROOT / "tests").rglob("*.py") if "\nif __name__ == " in path.read_text("utf-8"))
    named = {".".join(path.relative_to(gates.ROOT).with_suffix("").parts) for path in files}
    # That one runs on a host, in the engine's environment.
    return sorted(named - {"tests.sim.smoke_model.build"})


@pytest.mark.parametrize("module", programs())
def test_a_program_finds_all_that_it_imports(module: str) -> None:
    # Not under pytest, whose configuration puts more folders on the path.
    argv = [sys.executable, "-c", f"import {module}"]
    done = subprocess.run(argv, cwd=gates.ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
