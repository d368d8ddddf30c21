# SPDX-License-Identifier: Apache-2.0
"""The image of the test hosts: a plain Debian with systemd, as a cloud image would have it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .errors import LabError
from .podman import Podman, locked

SUITE = "bookworm"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "python3",
    "python3-venv",
    "python3-apt",
    "ca-certificates",
    "iproute2",
    "openssh-server",
    "sudo",
    "procps",
    "curl",
)
CUSTOMIZE = Path(__file__).with_name("customize")
REPOSITORY = "localhost/enplace-lab-host"
_CHANGES = ('CMD ["/lib/systemd/systemd"]', "STOPSIGNAL SIGRTMIN+3")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_NEEDED_BYTES = 2 * 1024**3
_FORMAT = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(SIGNED_BY)|$(CREATED_BY)"


def sources(targets: str, codename: str, suite: str = SUITE) -> list[str]:
    """The lines of sources.list for the image, from the mirrors this machine itself uses.

    Args:
        targets: output of ``apt-get indextargets`` in the format of this module.
        codename: this machine's Debian release; its mirrors carry the other releases too.
        suite: the release of the image.

    Returns:
        Lines, or an empty list if no mirror of the release itself is configured: mmdebstrap knows what to do then.
    """
    wanted = {codename + suffix: suite + suffix for suffix in ("", "-updates", "-security")}
    lines = []
    for target in targets.splitlines():
        fields = [field if not field.startswith("$(") else "" for field in target.split("|")]
        if len(fields) != 6:
            continue
        uri, release, component, origin, signed_by, created_by = fields
        if created_by != "Packages" or component != "main" or release not in wanted:
            continue
        if not uri.startswith(("http://", "https://")):
            continue
        # Other people's repositories use Debian's release names too. Where the lists are not downloaded yet,
        # nothing but the key tells them apart.
        if origin != "Debian" and (origin or Path(signed_by).name not in ("", "debian-archive-keyring.gpg")):
            continue
        lines.append((list(wanted).index(release), f"deb [signed-by={_KEYRING}] {uri} {wanted[release]} main"))
    ordered = [line for _, line in sorted(set(lines))]
    return ordered if any(f" {suite} " in line for line in ordered) else []


def machine_sources() -> list[str]:
    """The lines for this machine; empty where it is no Debian or has no apt."""
    release: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            release[key] = value.strip('"')
    if release.get("ID") != "debian" or not Path(_KEYRING).exists() or shutil.which("apt-get") is None:
        return []
    result = subprocess.run(
        ["apt-get", "indextargets", "--format", _FORMAT], capture_output=True, text=True, check=False
    )
    return sources(result.stdout, release.get("VERSION_CODENAME", "")) if result.returncode == 0 else []


def reference(lines: list[str]) -> str:
    """The image's name: the digest of all that decides its content."""
    digest = hashlib.sha256()
    hook = CUSTOMIZE.read_text(encoding="utf-8")
    for part in (SUITE, " ".join(PACKAGES), "\n".join(lines), hook, " ".join(_CHANGES), os.uname().machine):
        digest.update(part.encode() + b"\0")
    return f"{REPOSITORY}:{digest.hexdigest()[:12]}"


def ensure(podman: Podman, say: Callable[[str], None]) -> str:
    """Return the image's name, building it first where it is not there. Two processes build it once.

    Raises:
        LabError: mmdebstrap or space is missing, or the build failed. Nothing is left of a failed build.
    """
    lines = machine_sources()
    name = reference(lines)
    if podman.run("image", "exists", name, check=False).returncode == 0:
        return name
    with locked(podman.folder / "image.lock"):
        if podman.run("image", "exists", name, check=False).returncode != 0:
            _build(podman, name, lines, say)
    return name


def _build(podman: Podman, name: str, lines: list[str], say: Callable[[str], None]) -> None:
    if shutil.which("mmdebstrap") is None:
        raise LabError(
            "mmdebstrap is missing: the image of the test hosts cannot be built.",
            where="PATH",
            expected="mmdebstrap",
            found="no mmdebstrap",
            todo="run tests/sim/bootstrap, or apt-get install mmdebstrap",
        )
    free = shutil.disk_usage(podman.folder).free
    if free < _NEEDED_BYTES:
        raise LabError(
            "Not enough space to build the image of the test hosts.",
            where=str(podman.folder),
            expected=f"{_NEEDED_BYTES / 1e9:.1f} GB free",
            found=f"{free / 1e9:.1f} GB free",
            todo="free space, or set XDG_CACHE_HOME to a folder on a larger disk",
        )
    say(f"building the image of the test hosts ({SUITE}, {len(PACKAGES)} packages; about half a minute)")
    started = time.monotonic()
    for left in podman.folder.glob("build-*"):
        # The lock is ours, so a build folder here is what a killed build left behind.
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=podman.folder) as folder:
        archive = Path(folder) / "rootfs.tar"
        command = [
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            f'--customize-hook=sh {shlex.quote(str(CUSTOMIZE))} "$1"',
            SUITE,
            str(archive),
            *lines,
        ]
        environment = {**os.environ, "TMPDIR": folder}
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
        )
        if result.returncode != 0:
            tail = "\n".join(result.stderr.strip().splitlines()[-15:])
            raise LabError(
                "The image of the test hosts could not be built.",
                where=shlex.join(command),
                expected="exit status 0",
                found=f"{result.returncode}:\n{tail}",
                todo="check that the package mirrors of this machine answer (apt-get update), then try again",
            )
        podman.run("import", "--quiet", *(f"--change={change}" for change in _CHANGES), str(archive), name)
    # Images of earlier inputs, unless a container still needs them or another checkout used them lately.
    podman.run("image", "prune", "--all", "--force", "--filter", "until=720h", check=False)
    say(f"image {name} built in {time.monotonic() - started:.0f} s")
