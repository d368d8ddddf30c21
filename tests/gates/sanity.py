# SPDX-License-Identifier: Apache-2.0
"""`ansible-test sanity` over the collection, without a trace in the checkout or in the home of the person who runs it.

The collection's files are copied to a folder of its own, because ansible-test writes beside what it tests. Its tools go
into a cache below ${XDG_CACHE_HOME:-~/.cache}/enplace, where it is given the pip that comes with Python: its own one is
a download from a server that a closed network does not reach.
"""

from __future__ import annotations

import argparse
import configparser
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = Path("collection") / "ansible_collections" / "enplace" / "inference"
# ansible-test hands no variable of the environment on to pip.
PIP_SETTINGS = ("cert", "extra-index-url", "find-links", "index-url", "proxy", "trusted-host")


def copy(target: Path) -> int:
    """Copy what git tracks, or would track, of the collection to `target`, a repository of its own; how many files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", str(COLLECTION)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    # A file that is deleted and not yet committed is listed as well.
    names = [name for name in listed.split("\0") if name and (ROOT / name).exists()]
    for name in names:
        path = target / Path(name).relative_to(COLLECTION)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, path, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet"], cwd=target, check=True)
    subprocess.run(["git", "add", "--all"], cwd=target, check=True)
    return len(names)


def pip_settings(home: Path) -> configparser.RawConfigParser:
    """The settings of pip in this environment: those of the person's own files, and over them the variables PIP_*."""
    settings = configparser.RawConfigParser()
    settings.read([home / ".pip" / "pip.conf", home / ".config" / "pip" / "pip.conf"], encoding="utf-8")
    for name in PIP_SETTINGS:
        if value := os.environ.get(f"PIP_{name.replace('-', '_').upper()}"):
            if not settings.has_section("global"):
                settings.add_section("global")
            settings.set("global", name, value)
    return settings


def prepare(home: Path) -> None:
    """Make `home` one in which ansible-test can install its tools."""
    from ansible_test._internal.python_requirements import get_venv_packages

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    pip = get_venv_packages(SimpleNamespace(version=version))["pip"].replace(".", "_")
    bootstrap = home / ".ansible" / "test" / "cache" / f"get_pip_{pip}.py"
    bootstrap.parent.mkdir(parents=True, exist_ok=True)
    bootstrap.write_text("import ensurepip\n\nensurepip.bootstrap()\n", encoding="utf-8")
    config = home / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True, exist_ok=True)
    with config.open("w", encoding="utf-8") as file:
        pip_settings(Path.home()).write(file)


def cases(folder: Path) -> list[ElementTree.Element]:
    """The tests that ran, from the JUnit files that ansible-test left; one file a test."""
    return [case for path in sorted(folder.glob("*.xml")) for case in ElementTree.parse(path).iter("testcase")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gates.sanity", description=__doc__.splitlines()[0])
    parser.add_argument("--test", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--junitxml", type=Path, metavar="FILE", help="write the outcome of each test here")
    options = parser.parse_args()
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        sys.exit(
            f"sanity: {sys.executable} has no ensurepip, which ansible-test's tools are installed with; "
            "on Debian it is in the package python3-venv"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enplace" / "ansible-test"
    prepare(cache)
    with tempfile.TemporaryDirectory(prefix="enplace-sanity-") as scratch:
        target = Path(scratch) / "ansible_collections" / "enplace" / "inference"
        count = copy(target)
        print(f"sanity: {count} files", flush=True)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        tests = [word for name in options.test for word in ("--test", name)]
        environment = {**os.environ, "HOME": str(cache), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        # The checkout's settings must not reach the copy.
        environment.pop("ANSIBLE_CONFIG", None)
        done = subprocess.run(
            ["ansible-test", "sanity", "--venv", "--python", version, "--color", "no", "--junit", *tests],
            cwd=target,
            env=environment,
            check=False,
        )
        ran = cases(target / "tests" / "output" / "junit")
    if options.junitxml:
        suite = ElementTree.Element("testsuite", name="ansible-test sanity")
        suite.extend(ran)
        ElementTree.ElementTree(suite).write(options.junitxml, encoding="utf-8")
    return done.returncode or (0 if ran else 1)


if __name__ == "__main__":
    sys.exit(main())
