# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments: a venv made from one lock, in a folder named by the digest of what decides its content.

Standard library only, Python 3.9 or newer. Used on the host (build, compare) and on the controller (digest, lock).
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import assertions as asserted
from ansible_collections.enplace.inference.plugins.module_utils.command import Result, base_environment, run
from ansible_collections.enplace.inference.plugins.module_utils.files import (
    Failure,
    Lock,
    canonical_json,
    is_disk_full,
    read_json,
    remove,
    sha256_bytes,
    sized,
    space,
    write_json,
    write_text,
)
from ansible_collections.enplace.inference.plugins.module_utils.transaction import watched

#: Written last into an environment: without it the folder is what a cut run left over.
SEAL_NAME = "enplace-environment.json"

#: The lock in an environment that is being built.
LOCK_NAME = "enplace-requirements.lock.txt"

#: Characters of the digest that name the folder.
DIGEST_NAME_LENGTH = 12

#: What `python -m venv` puts into a venv of its own accord.
SEEDED = ("pip", "setuptools", "wheel")

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[A-Za-z0-9._, -]*\])?==(?P<version>[A-Za-z0-9.!+_-]+)$")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}(?=\s|$)")


def environment_digest(
    lock_sha256: str,
    python_version: str,
    aliases: Sequence[Mapping[str, str]] = (),
    fixes: Sequence[str] = (),
) -> str:
    """The digest of everything that decides what an environment holds: 64 hexadecimal digits.

    ``lock_sha256`` is the SHA-256 of the lock file's bytes. ``python_version`` may be ``3.11`` or ``3.11.2``: only the
    first two parts count, because the third does not change what is installed. ``aliases`` are mappings with the keys
    ``distribution``, ``name`` and ``version``; their order does not count. ``fixes`` name the applied fixes, in the
    order in which they are applied, each with what decides its content. Raises ValueError for anything else.
    """
    if len(lock_sha256) != 64 or set(lock_sha256) - set("0123456789abcdef"):
        raise ValueError(f"lock_sha256: expected 64 hexadecimal digits, found {lock_sha256!r}")
    content = {
        # 2: an alias has a file WHEEL as well. What has no alias is as it was.
        "schema": 2 if aliases else 1,
        "lock": lock_sha256,
        "python": short_version(python_version),
        "aliases": sorted([alias["distribution"], alias["name"], alias["version"]] for alias in aliases),
        "fixes": list(fixes),
    }
    return sha256_bytes(canonical_json(content))


def short_version(python_version: str) -> str:
    """``3.11`` for ``3.11`` and ``3.11.2``. Raises ValueError for what is not a version."""
    parts = python_version.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        raise ValueError(f"python_version: expected a version such as 3.11, found {python_version!r}")
    return ".".join(parts[:2])


def canonical_name(name: str) -> str:
    """A distribution's name as indexes compare it: lower case, one hyphen for each run of ``-``, ``_`` and ``.``."""
    return re.sub(r"[-_.]+", "-", name).lower()


# --- the lock --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pin:
    """One requirement of a lock: exact version, the marker that decides whether it applies, allowed hashes."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    line: int

    def __str__(self) -> str:
        text = f"{self.name}=={self.version}"
        return f"{text} ; {self.marker}" if self.marker else text


def parse_lock(text: str, where: str) -> list[Pin]:
    """The pins of a lock file, in its order. Every one must be exact and carry a SHA-256.

    Raises Failure, with the line, for anything else: an option, a link, a range, a pin without a hash, no pin at all.
    """
    pins = []
    pending = ""
    start = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not pending:
            start = number
        if line.startswith("#"):
            line = ""
        elif " #" in line:
            line = line.split(" #", 1)[0].rstrip()
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        logical = (pending + line).strip()
        pending = ""
        if logical:
            pins.append(_parse_pin(logical, start, where))
    if pending.strip():
        pins.append(_parse_pin(pending.strip(), start, where))
    if not pins:
        raise Failure(
            what="the lock is empty",
            where=where,
            expected="lines of the form name==version --hash=sha256:...",
            found="no requirement",
            todo="make the lock anew with uv pip compile --generate-hashes",
        )
    return pins


def _parse_pin(logical: str, line: int, where: str) -> Pin:
    head = logical.split(" --", 1)[0].strip()
    requirement, _semicolon, marker = head.partition(";")
    matched = _PIN.match(requirement.strip())
    hashes = tuple(found.partition("sha256:")[2] for found in _HASH.findall(logical))
    if matched is None or not hashes:
        raise Failure(
            what="the lock holds a requirement that is not pinned by version and hash",
            where=f"{where} line {line}",
            expected="name==version --hash=sha256:<64 hexadecimal digits>",
            found=logical if len(logical) <= 160 else logical[:160] + "...",
            todo="make the lock anew with uv pip compile --generate-hashes; options and links belong to the inventory",
        )
    return Pin(canonical_name(matched.group("name")), matched.group("version"), marker.strip(), hashes, line)


def read_lock(path: str, expected_sha256: str = "") -> list[Pin]:
    """The pins of the lock file at ``path``; raises Failure if its SHA-256 is not the expected one."""
    with open(path, "rb") as stream:
        return _parse_expected(stream.read(), path, expected_sha256)


def _parse_expected(content: bytes, where: str, expected_sha256: str) -> list[Pin]:
    found = sha256_bytes(content)
    if expected_sha256 and found != expected_sha256:
        raise Failure(
            what="the lock file is not the one that was asked for",
            where=where,
            expected=f"sha256 {expected_sha256}",
            found=f"sha256 {found}",
            todo="transfer the file again; if it was edited, resolve the recipe again so that its digest follows",
        )
    return parse_lock(content.decode("utf-8"), where)


# --- what is there ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drift:
    """One distribution (or the interpreter) of a sealed environment that is not as it was sealed."""

    name: str
    expected: str
    found: str

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "expected": self.expected, "found": self.found}

    def __str__(self) -> str:
        return f"{self.name}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class State:
    """What lies at an environment's path. ``state`` is absent, unfinished, sealed or drifted."""

    path: str
    state: str
    seal: dict[str, Any] = field(default_factory=dict)
    drift: tuple[Drift, ...] = ()


def site_packages(path: str) -> str:
    """The one folder below ``path`` that holds the installed distributions; empty if there is none."""
    library = os.path.join(path, "lib")
    try:
        names = sorted(name for name in os.listdir(library) if name.startswith("python"))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    found = [os.path.join(library, name, "site-packages") for name in names]
    found = [folder for folder in found if os.path.isdir(folder)]
    return found[0] if len(found) == 1 else ""


def records(path: str) -> dict[str, int]:
    """The size in bytes of every installed distribution's RECORD, by the name of its folder; -1 where it is missing."""
    folder = site_packages(path)
    result: dict[str, int] = {}
    if not folder:
        return result
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".dist-info") and entry.is_dir():
                try:
                    result[entry.name] = os.stat(os.path.join(entry.path, "RECORD")).st_size
                except FileNotFoundError:
                    result[entry.name] = -1
    return result


def fingerprint(sizes: Mapping[str, int]) -> dict[str, Any]:
    """The quick fingerprint: how many distributions, and one SHA-256 over the names and sizes of their RECORD files."""
    return {"distributions": len(sizes), "sha256": sha256_bytes(canonical_json(dict(sizes)))}


def inspect(path: str) -> State:
    """Compare an environment with its seal, cheaply: names and sizes of the RECORD files, and its interpreter."""
    if not os.path.lexists(path):
        return State(path, "absent")
    seal = read_json(os.path.join(path, SEAL_NAME))
    if seal is None:
        return State(path, "unfinished")
    drift = []
    sizes = records(path)
    if fingerprint(sizes) != seal.get("fingerprint"):
        drift.extend(_compare(seal.get("records", {}), sizes))
    version = interpreter_version(os.path.join(path, "bin", "python"))
    sealed_version = str(seal.get("python", ""))
    if not version or short_version(version) != short_version(sealed_version or "0.0"):
        drift.append(Drift("python", sealed_version, version or "an interpreter that does not start"))
    return State(path, "drifted" if drift else "sealed", seal, tuple(drift))


def _compare(sealed: Mapping[str, int], found: Mapping[str, int]) -> list[Drift]:
    def versions(sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
        result: dict[str, dict[str, int]] = {}
        for folder, size in sizes.items():
            name, _dash, version = folder[: -len(".dist-info")].rpartition("-")
            result.setdefault(canonical_name(name), {})[version] = size
        return result

    def said(entry: Mapping[str, int] | None, other: Mapping[str, int] | None) -> str:
        if not entry:
            return "not installed"
        names = " and ".join(sorted(entry))
        if other is not None and sorted(entry) == sorted(other):
            sizes = ("no RECORD" if entry[v] < 0 else f"RECORD of {entry[v]} bytes" for v in sorted(entry))
            return "{} with {}".format(names, " and ".join(sizes))
        return names

    before, after = versions(sealed), versions(found)
    result = []
    for name in sorted(set(before) | set(after)):
        old, new = before.get(name), after.get(name)
        if old != new:
            result.append(Drift(name, said(old, new), said(new, old)))
    if not result:
        result.append(Drift("seal", "the fingerprint of its own records", "another one: the seal was edited"))
    return result


def interpreter_version(python: str) -> str:
    """``3.11.2``, as the interpreter itself says; empty if it does not start."""
    if os.path.realpath(python) == os.path.realpath(sys.executable) and os.path.exists(python):
        return ".".join(str(part) for part in sys.version_info[:3])
    code = "import sys; print('.'.join(str(part) for part in sys.version_info[:3]))"
    try:
        result = run([python, "-I", "-S", "-c", code], timeout_s=30)
    except Failure:
        return ""
    return result.stdout.strip() if result.ok else ""


def users_of(path: str) -> list[str]:
    """The processes that have a file below ``path`` mapped or as their program: ``process 12 (vllm serve ...)``."""
    inside = path.rstrip("/") + "/"
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/maps", encoding="utf-8", errors="replace") as stream:
                mapped = any(inside in line for line in stream)
            with open(f"/proc/{name}/cmdline", "rb") as stream:
                argv = [part.decode("utf-8", "replace") for part in stream.read().split(b"\0") if part]
        except OSError:
            continue
        if mapped or any(part.startswith(inside) for part in argv[:2]):
            found.append("process {} ({})".format(name, " ".join(argv)[:120]))
    return found


# --- build -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What an environment is built from, and how. Paths are on the host.

    The lock is the file ``requirements``, or ``text`` where there is no such file.
    """

    path: str
    digest: str
    lock_sha256: str
    requirements: str = ""
    text: str = ""
    python: str = "/usr/bin/python3"
    uv: str = ""
    find_links: tuple[str, ...] = ()
    index_url: str = ""
    torch_backend: str = ""
    ca_bundle: str = ""
    aliases: tuple[Mapping[str, str], ...] = ()
    assertions: tuple[Mapping[str, Any], ...] = ()
    cache: str = "/var/cache/enplace/uv"
    timeout_s: float = 3600.0


def pins_of(request: Request) -> list[Pin]:
    """The pins of a request's lock. Raises Failure where it is not the one that the digest was made for."""
    if request.text:
        return _parse_expected(request.text.encode("utf-8"), "the lock that was sent", request.lock_sha256)
    return read_lock(request.requirements, request.lock_sha256)


def _lock_file(request: Request) -> str:
    """The path of the lock. A text is written into the environment: what a cut build leaves is removed as a whole."""
    if not request.text:
        return request.requirements
    path = os.path.join(request.path, LOCK_NAME)
    write_text(path, request.text)
    return path


def check_request(request: Request) -> str:
    """Refuse a request that contradicts itself; return the interpreter's version, empty if there is no interpreter yet.

    The path must end in the start of the digest: then a folder there can only be an environment, and may be removed.
    """
    expected_name = request.digest[:DIGEST_NAME_LENGTH]
    if os.path.basename(request.path) != expected_name or not os.path.isabs(request.path):
        raise Failure(
            what="an environment's folder is named by its digest",
            where="path",
            expected=f"an absolute path that ends in /{expected_name}",
            found=request.path,
            todo=f"name the folder by the first {DIGEST_NAME_LENGTH} characters of the digest",
        )
    version = interpreter_version(request.python)
    if version:
        expected = environment_digest(request.lock_sha256, version, request.aliases)
        if expected != request.digest:
            raise Failure(
                what="the digest does not belong to this lock, interpreter and aliases",
                where=f"digest (lock {request.lock_sha256[:12]}, Python {version}, aliases: {len(request.aliases)})",
                expected=expected,
                found=request.digest,
                todo="resolve the recipe again: the host's Python or the lock is not what the plan was made for",
            )
    return version


def build(request: Request) -> dict[str, Any]:
    """Make the environment and return its seal. Raises Failure; then nothing is left at its path.

    The caller has made sure that nothing worth keeping lies there. The steps: venv, distributions from the lock by
    hash, aliases, comparison of what is installed with the lock, the engine's own assertions, flush to the disk, seal.
    """
    pins = pins_of(request)
    version = check_request(request)
    if not version:
        raise Failure(
            what="the interpreter is missing",
            where=request.python,
            expected="a Python that starts",
            found="nothing that starts",
            todo="install it (on Debian and Ubuntu: python3 and python3-venv)",
        )
    parent = os.path.dirname(request.path)
    previous_umask = os.umask(0o022)
    try:
        os.makedirs(parent, exist_ok=True)
        lock_path = os.path.join(parent, f".{os.path.basename(request.path)}.lock")
        # A run whose controller is gone builds on to its end, and what it builds is what is wanted here.
        locked = Lock(lock_path, f"building the environment {request.path}", orphan_wait_s=request.timeout_s)
        with locked as lock, watched(lock):
            state = inspect(request.path)
            if state.state == "sealed":
                # Somebody built it between the first look and the lock.
                return state.seal
            remove(request.path)
            try:
                return _build(request, pins, version, lock.handle)
            except BaseException:
                remove(request.path)
                raise
    except OSError as error:
        if is_disk_full(error):
            raise _disk_full(request, str(error)) from error
        raise
    finally:
        os.umask(previous_umask)


def _build(request: Request, pins: Sequence[Pin], version: str, handle: int) -> dict[str, Any]:
    builder = _build_with_uv(request, pins, handle) if request.uv else _build_with_pip(request, pins, handle)
    remove(os.path.join(request.path, LOCK_NAME))
    for alias in request.aliases:
        write_alias(request.path, alias)
    installed = _installed(request.path)
    _check_installed(request, pins, installed)
    _demand_assertions(request, installed, [handle])
    sizes = records(request.path)
    # A power cut must not leave a seal over files whose content never reached the disk.
    _expect(request, run(["sync", "-f", request.path], timeout_s=request.timeout_s, keep=[handle]), "sync")
    seal = {
        "schema": 1,
        "digest": request.digest,
        "lock_sha256": request.lock_sha256,
        "python": version,
        "builder": builder,
        "aliases": sorted((dict(alias) for alias in request.aliases), key=lambda alias: alias["name"]),
        "assertions": list(request.assertions),
        "distributions": [f"{name}=={installed[name]}" for name in sorted(installed)],
        "fingerprint": fingerprint(sizes),
        "records": sizes,
    }
    write_json(os.path.join(request.path, SEAL_NAME), seal)
    return seal


def owes_assertions(request: Request, seal: Mapping[str, Any]) -> bool:
    """Whether a sealed environment has not yet been asked all that the request asserts.

    Assertions decide nothing of what an environment holds, so they are no part of its digest: where the engine's
    manifest asks for more than it did, what is there is asked, and not built again.
    """
    known = [canonical_json(entry) for entry in seal.get("assertions", [])]
    return any(canonical_json(entry) not in known for entry in request.assertions)


def assert_sealed(request: Request, seal: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a sealed environment what the request asserts, and record that it holds; the new seal. Raises Failure."""
    lock_path = os.path.join(os.path.dirname(request.path), f".{os.path.basename(request.path)}.lock")
    with Lock(lock_path, f"asking the environment {request.path}") as lock:
        _demand_assertions(request, _installed(request.path), [lock.handle])
        seal = {**seal, "assertions": list(request.assertions)}
        write_json(os.path.join(request.path, SEAL_NAME), seal)
    return seal


def _demand_assertions(request: Request, installed: Mapping[str, str], keep: Sequence[int]) -> None:
    if request.assertions:
        env = _child_environment(request)
        wrong = asserted.broken(request.path, request.assertions, installed, request.uv, env, keep)
        asserted.demand(request.path, wrong)


def _child_environment(request: Request) -> dict[str, str]:
    env = base_environment()
    # Configuration files and variables of the tools are not read: the options decide, on every host alike.
    env.update({"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"})
    env.update({"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"})
    env["UV_CACHE_DIR"] = request.cache
    # Hard links would share every file with the cache and with other environments: an edit by hand in one of them
    # would change all. Where the filesystem can clone, a copy is a clone.
    env["UV_LINK_MODE"] = "copy"
    # The bytecode is compared with the source by content, so that a file put back by a backup, or by a fix taken back,
    # with an old time stamp is not run from stale bytecode.
    env["PYC_INVALIDATION_MODE"] = "CHECKED_HASH"
    if request.index_url:
        env["UV_DEFAULT_INDEX"] = env["PIP_INDEX_URL"] = request.index_url
    if request.ca_bundle:
        for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
            env[name] = request.ca_bundle
    return env


def _build_with_uv(request: Request, pins: Sequence[Pin], handle: int) -> str:
    env = _child_environment(request)
    python = os.path.join(request.path, "bin", "python")

    def uv(*arguments: str, what: str) -> Result:
        result = run([request.uv, *arguments], env=env, timeout_s=request.timeout_s, keep=[handle])
        _expect(request, result, what)
        return result

    said = uv("--version", what="uv --version").stdout.split()
    uv("venv", "--python", request.python, request.path, what="uv venv")
    arguments = ["pip", "sync", "--python", python, "--require-hashes", "--no-build", "--compile-bytecode"]
    for place in request.find_links:
        arguments += ["--find-links", place]
    if request.torch_backend and wanted_from_torch_index(pins, request.find_links, request.ca_bundle):
        arguments += ["--torch-backend", request.torch_backend]
    uv(*arguments, _lock_file(request), what="uv pip sync")
    # uv's own lock file, writable for everybody: of no use once nothing is installed here any more.
    remove(os.path.join(request.path, ".lock"))
    return " ".join(said[:2])


def _build_with_pip(request: Request, pins: Sequence[Pin], handle: int) -> str:
    env = _child_environment(request)
    python = os.path.join(request.path, "bin", "python")

    def start(*argv: str, what: str) -> Result:
        result = run(argv, env=env, timeout_s=request.timeout_s, keep=[handle])
        _expect(request, result, what)
        return result

    start(request.python, "-m", "venv", request.path, what="python -m venv")
    said = start(python, "-m", "pip", "--version", what="pip --version").stdout.split()
    arguments = [python, "-m", "pip", "install", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    arguments += ["--no-compile", "--no-cache-dir", "--progress-bar", "off"]
    for place in request.find_links:
        arguments += ["--find-links", place]
    start(*arguments, "--requirement", _lock_file(request), what="pip install")
    # What the venv came with is not in the lock: another host's Python would bring another pip.
    locked = {pin.name for pin in pins}
    extra = [name for name in SEEDED if name not in locked and name in _installed(request.path)]
    if extra:
        start(python, "-m", "pip", "uninstall", "--yes", *extra, what="pip uninstall")
    # Its return code says that some file does not compile; packages do carry files for other versions of Python.
    run(
        [
            python,
            "-m",
            "compileall",
            "-q",
            "-j",
            "0",
            "--invalidation-mode",
            "checked-hash",
            site_packages(request.path),
        ],
        env=env,
        timeout_s=request.timeout_s,
        keep=[handle],
    )
    return " ".join(said[:2])


def wanted_from_torch_index(pins: Sequence[Pin], find_links: Sequence[str], ca_bundle: str = "") -> list[Pin]:
    """The pins with a local version (``2.13.0+cpu``) that no place in ``find_links`` holds a wheel of.

    Only PyTorch's own indexes have such versions. Naming one of those indexes when the wheel is at hand would need a
    network path for nothing, so it is named only for what this returns. A folder is listed; of a URL the page is read
    and searched for the wheel's name. A place that cannot be read holds nothing.
    """
    local = [pin for pin in pins if "+" in pin.version]
    if not local:
        return []
    listings = [_listing(place, ca_bundle) for place in find_links]
    missing = []
    for pin in local:
        start = "{}-{}-".format(pin.name.replace("-", "_"), pin.version).lower()
        if not any(start in listing for listing in listings):
            missing.append(pin)
    return missing


def _listing(place: str, ca_bundle: str) -> str:
    if "://" not in place or place.startswith("file://"):
        folder = urllib.parse.unquote(urllib.parse.urlsplit(place).path) if "://" in place else place
        try:
            return "\n".join(sorted(os.listdir(folder))).lower()
        except OSError:
            return ""
    trust = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_bundle or None))
    try:
        with urllib.request.build_opener(trust).open(place, timeout=20) as answer:
            page: bytes = answer.read(16 * 1024 * 1024)
    except (OSError, ValueError):
        return ""
    return urllib.parse.unquote(page.decode("utf-8", "replace")).lower()


def write_alias(path: str, alias: Mapping[str, str]) -> None:
    """Make the metadata by which a program finds distribution ``alias["distribution"]`` under another name.

    ``alias`` has the keys ``distribution`` (which is installed), ``name`` and ``version``. Raises Failure if the former
    is not installed, or if a distribution of that name is.
    """
    installed = _installed(path)
    source, name, version = canonical_name(alias["distribution"]), alias["name"], alias["version"]
    if source not in installed or canonical_name(name) in installed:
        raise Failure(
            what=f"the alias {name} cannot be made",
            where="aliases",
            expected=f"{source} installed and no distribution {name}",
            found="{}: {}; {}: {}".format(
                source,
                installed.get(source, "not installed"),
                name,
                installed.get(canonical_name(name), "not installed"),
            ),
            todo="correct the engine's aliases, or its lock",
        )
    folder_name = "{}-{}.dist-info".format(re.sub(r"[-_.]+", "_", name), version.replace("-", "_"))
    folder = os.path.join(site_packages(path), folder_name)
    os.mkdir(folder)
    metadata = (
        "Metadata-Version: 2.1\n"
        f"Name: {name}\n"
        f"Version: {version}\n"
        f"Summary: An alias made by enplace: the code is that of the distribution {source} {installed[source]}.\n"
    )
    # Without it uv takes the distribution for a broken one.
    wheel = "Wheel-Version: 1.0\nGenerator: enplace\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = []
    for file_name, text in (("INSTALLER", "enplace\n"), ("METADATA", metadata), ("WHEEL", wheel)):
        content = text.encode("utf-8")
        with open(os.path.join(folder, file_name), "wb") as stream:
            stream.write(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode("ascii")
        lines.append(f"{folder_name}/{file_name},sha256={digest},{len(content)}\n")
    lines.append(f"{folder_name}/RECORD,,\n")
    with open(os.path.join(folder, "RECORD"), "w", encoding="utf-8") as stream:
        stream.write("".join(lines))


def _installed(path: str) -> dict[str, str]:
    """Version by name, as the distributions' own metadata says."""
    folder = site_packages(path)
    result: dict[str, str] = {}
    for name in sorted(records(path)):
        fields: dict[str, str] = {}
        with open(os.path.join(folder, name, "METADATA"), encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if not line.strip():
                    break
                key, _colon, value = line.partition(":")
                fields.setdefault(key.lower(), value.strip())
        result[canonical_name(fields.get("name", name))] = fields.get("version", "")
    return result


def _check_installed(request: Request, pins: Sequence[Pin], installed: Mapping[str, str]) -> None:
    """What is installed must be what the lock says and nothing else, whatever the installer thought of it."""
    allowed: dict[str, set[str]] = {}
    for pin in pins:
        allowed.setdefault(pin.name, set()).add(pin.version)
    for alias in request.aliases:
        allowed.setdefault(canonical_name(alias["name"]), set()).add(alias["version"])
    always = {pin.name for pin in pins if not pin.marker}
    wrong = []
    for name in sorted(set(installed) | always):
        expected = " or ".join(sorted(allowed.get(name, set()))) or "not in the lock"
        found = installed.get(name, "not installed")
        if found not in allowed.get(name, set()):
            wrong.append(f"{name}: {expected} in the lock, {found} in the environment")
    if wrong:
        raise Failure(
            what="the environment does not hold what the lock says",
            where=request.path,
            expected=f"exactly the {len(pins)} distributions of the lock that apply to this host",
            found="; ".join(wrong[:10]),
            todo="check that the lock was made for this platform and Python",
        )


def _expect(request: Request, result: Result, what: str) -> None:
    if result.ok:
        return
    output = result.tail(20)
    if is_disk_full(output):
        raise _disk_full(request, output)
    raise Failure(
        what=f"the environment could not be built: {what} failed",
        where=f"{request.path}, from {request.requirements or 'the lock that was sent'}",
        expected="return code 0",
        found=result.said(),
        todo=_advice(output),
        detail=output,
    )


def _disk_full(request: Request, output: str) -> Failure:
    places = []
    for path in (os.path.dirname(request.path), request.cache, "/tmp"):
        room = space(path)
        places.append(f"{sized(room.free)} free on {room.mount} (for {path})")
    return Failure(
        what="the disk is full: the environment could not be built",
        where=request.path,
        expected="room for the distributions and for the cache they are unpacked in",
        found="; ".join(places),
        todo="free space there and run again; what was built so far has been removed",
        detail=output,
    )


_ADVICE = (
    (
        r"hash mismatch|do not match the hashes",
        "a file at the index is not the one that was locked: if the index is trusted, make the lock anew; "
        "otherwise find out who changed it",
    ),
    (
        r"certificate|CERTIFICATE_VERIFY_FAILED|UnknownIssuer",
        "the host does not trust the index's certificate: name the CA bundle (enplace_ca_bundle)",
    ),
    (
        r"dns error|name resolution|error sending request|Connection refused|Network is unreachable|No route to host|"
        r"timed out|Failed to fetch|Max retries",
        "the host does not reach the package index: check network, proxy, enplace_index_url and enplace_find_links",
    ),
    (
        r"no version of|No matching distribution|not found in the package registry|no wheels|has no usable wheels|"
        r"No solution found|could not be found",
        "a distribution is not at the index or not for this platform: check enplace_index_url and enplace_find_links, "
        "and that the lock was made for this platform",
    ),
    (r"ensurepip|No module named venv", "install the package python3-venv and run again"),
)


def _advice(output: str) -> str:
    for pattern, advice in _ADVICE:
        if re.search(pattern, output, re.IGNORECASE):
            return advice
    return "read the output below, mend its cause and run again; what was built so far has been removed"
