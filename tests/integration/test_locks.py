# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The locks that ship, put to the real uv and the real package index: they can be installed, and be made again.

Real: uv, the index. Nothing is installed and no wheel is read whole: uv resolves names, versions and hashes alone.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from ansible_collections.enplace.inference.plugins.module_utils.environment import parse_lock
from ansible_collections.enplace.inference.plugins.plugin_utils import engines, locks
from ansible_collections.enplace.inference.plugins.plugin_utils.recipe import ENGINES

from tests.sim.packages import uv_program

pytestmark = pytest.mark.integration

#: Wheels that the index does not have: torch for the CPU, where PyTorch's own index cannot be reached.
FIND_LINKS = os.environ.get("PIP_FIND_LINKS", "").split()
PLATFORMS = [
    platform
    for path in sorted(ENGINES.glob("*/*/engine.yaml"))
    for platform in engines.platforms(engines.load_engine(path.parent.parent.name, path.parent.name))
]
IDS = [f"{platform.engine}-{platform.version}-{platform.accelerator}" for platform in PLATFORMS]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all: the engines share most of their packages."""
    return tmp_path_factory.mktemp("uv")


def uv(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """uv with nothing of this user's own but the network path."""
    passed = ("PATH", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "https_proxy")
    environment = {name: os.environ[name] for name in passed if name in os.environ}
    environment.update({"UV_NO_CONFIG": "1", "UV_CACHE_DIR": str(cache), "NO_COLOR": "1"})
    argv = [uv_program(), *arguments]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600, check=False)


def sync(
    platform: engines.Platform, lock: Path, target: Path, cache: Path, *options: str, tag: str = ""
) -> subprocess.CompletedProcess[str]:
    """A lock put to uv for its platform, with the options of the module environment."""
    options = ("--require-hashes", "--no-build", "--target", str(target), *options)
    options += ("--python-platform", tag or platform.tag, "--python-version", platform.python)
    for place in FIND_LINKS if platform.torch_backend else ():
        options += ("--find-links", place)
    return uv(cache, "pip", "sync", *options, str(lock))


def needs_torch_at_hand(platform: engines.Platform) -> None:
    if platform.torch_backend and not FIND_LINKS:
        pytest.skip("PIP_FIND_LINKS names no folder with torch for the CPU")


@pytest.mark.parametrize("platform", PLATFORMS, ids=IDS)
def test_uv_accepts_every_lock_for_its_platform(platform: engines.Platform, tmp_path: Path, cache: Path) -> None:
    needs_torch_at_hand(platform)
    ran = sync(platform, platform.lock, tmp_path / "target", cache, "--dry-run")
    assert ran.returncode == 0, ran.stderr
    pins = parse_lock(platform.lock.read_text(encoding="utf-8"), str(platform.lock))
    said = {line.strip() for line in (ran.stdout + ran.stderr).splitlines()}
    assert {f"+ {pin.name}=={pin.version}" for pin in pins if not pin.marker} <= said
    assert [path.name for path in (tmp_path / "target").glob("*") if path.name != ".lock"] == []


def spark() -> engines.Platform:
    (found,) = (p for p in PLATFORMS if (p.engine, p.version) == ("vllm", "0.24.0"))
    return found


def test_a_lock_with_one_hash_missing_is_refused(tmp_path: Path, cache: Path) -> None:
    platform = spark()
    text = platform.lock.read_text(encoding="utf-8")
    spoiled, count = re.subn(r"^(vllm==0\.24\.0) \\\n(?: +--hash=\S+(?: \\)?\n)+", r"\1\n", text, flags=re.M)
    assert count == 1
    lock = tmp_path / "spoiled.txt"
    lock.write_text(spoiled)
    ran = sync(platform, lock, tmp_path / "target", cache, "--dry-run")
    assert ran.returncode != 0
    assert "vllm" in ran.stderr


@pytest.mark.parametrize("digit", ["", "0"])
def test_a_file_with_another_hash_than_the_lock_allows_is_refused(digit: str, tmp_path: Path, cache: Path) -> None:
    """uv compares when it has the file, so one small package of the lock is really installed, or not."""
    platform = spark()
    text = platform.lock.read_text(encoding="utf-8")
    found = re.search(r"^annotated-doc==\S+ \\\n(?: +--hash=\S+(?: \\)?\n)+", text, flags=re.M)
    assert found
    lock, target = tmp_path / "one.txt", tmp_path / "target"
    lock.write_text(re.sub(r"(?<=sha256:)[0-9a-f]", digit, found[0]) if digit else found[0])
    assert (lock.read_text() == found[0]) is not bool(digit)
    ran = sync(platform, lock, target, cache)
    assert (ran.returncode == 0) is not bool(digit), ran.stderr
    assert (target / "annotated_doc").exists() is not bool(digit)
    assert ("ash mismatch" in ran.stderr) is bool(digit), ran.stderr


def test_a_lock_of_another_machine_is_refused(tmp_path: Path, cache: Path) -> None:
    platform = spark()
    ran = sync(platform, platform.lock, tmp_path / "t", cache, "--dry-run", tag="aarch64-manylinux_2_28")
    assert ran.returncode != 0, "some, tilelang among them, have no wheel for a libc that old"
    assert "No solution found" in ran.stderr


@pytest.mark.parametrize("platform", PLATFORMS, ids=IDS)
def test_every_lock_is_made_again_byte_for_byte(
    platform: engines.Platform, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_torch_at_hand(platform)
    monkeypatch.setenv("UV_CACHE_DIR", str(cache))
    links = FIND_LINKS if platform.torch_backend else []
    made = locks.compile_lock(platform, uv=uv_program(), find_links=links)
    text = platform.lock.read_text(encoding="utf-8")
    assert made == text, "\n".join(locks.difference(text, made).lines())
