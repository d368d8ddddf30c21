# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from a neighbour: one host offers its cache to others of the fleet, they take it from there.

The engine is rsync. The offering host runs its daemon, read-only, in a transient unit with an end, for those who know
the secret of this run; a taking host keeps parts of files and goes on with them. What arrives is as little trusted as
what a hub sends: it is hashed before it gets a name in the cache.

Standard library only, Python 3.9 or newer. Nothing here knows Ansible.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ansible_collections.enplace.inference.plugins.module_utils.command import base_environment, run
from ansible_collections.enplace.inference.plugins.module_utils.download import Watchdog, bytes_in
from ansible_collections.enplace.inference.plugins.module_utils.files import (
    Failure,
    Lock,
    is_disk_full,
    read_json,
    remove,
    sha256_files,
    sized,
    space,
    write_json,
    write_text,
)

UNIT = "enplace-fleet"
#: What is offered: the name of the daemon's module.
SHARE = "hub"
#: The daemon's settings and secrets.
FOLDER = "/run/enplace-fleet"
#: Beside the blobs of a repository: what has been taken so far and is not yet known to be right.
STAGE_NAME = "enplace-partial"
PORT = 8730
#: Tries of one transfer that breaks off, with 2 s, 4 s, ... between them.
TRIES = 4
CONNECT_S = 20

_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_RUN = re.compile(r"[A-Za-z0-9]{8,64}")


# --- the host that offers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """How a cache is offered. ``user`` owns it, and runs the daemon. ``limit_s``: after that the daemon is ended."""

    cache: str
    user: str
    port: int = PORT
    rsync: str = "/usr/bin/rsync"
    limit_s: int = 6 * 3600
    folder: str = FOLDER


def etags(repository: str, snapshot: str, paths: Sequence[str]) -> dict[str, str]:
    """The name of each file's content in the cache; files that do not lie there in the standard layout are left out."""
    blobs = os.path.realpath(os.path.join(repository, "blobs"))
    found = {}
    for path in paths:
        folder, name = os.path.split(os.path.realpath(os.path.join(snapshot, path)))
        if folder == blobs and _ETAG.fullmatch(name):
            found[path] = name
    return found


def offer(source: Source, run_id: str, secret: str, hosts: Sequence[str]) -> bool:
    """Run the daemon, and let those who have the secret of this run in, from these hosts; whether anything changed.

    Runs of two controllers may offer the same cache at once: each has a name and a secret of its own, and the last one
    that withdraws ends the daemon. Raises Failure if it does not start.
    """
    if not _RUN.fullmatch(run_id) or not re.fullmatch(r"[A-Za-z0-9]{16,128}", secret):
        raise ValueError("a run and its secret are letters and digits")
    if not os.access(source.rsync, os.X_OK):
        raise Failure(
            what="weights cannot be offered to other hosts: rsync is not there",
            where=source.rsync,
            expected="the package rsync",
            found="no such program",
            todo="run this host with enplace_weights_source: fleet once, which installs it",
        )
    addresses = _addresses(hosts)
    owner = pwd.getpwnam(source.user)
    _make_folder(source, owner)
    with Lock(os.path.join(source.folder, "lock"), "offering weights", wait_s=30.0):
        runs = _runs(source)
        entry = {"secret": secret, "hosts": addresses, "until": int(time.time()) + source.limit_s}
        known = runs.get(run_id, {})
        active = run(["systemctl", "is-active", "--quiet", UNIT]).ok
        if active and {**known, "until": 0} == {**entry, "until": 0}:
            return False
        runs[run_id] = entry
        _write(source, runs, owner)
        if not active:
            _start(source)
        return True


def withdraw(source: Source, run_id: str) -> bool:
    """Let this run in no more; the last one ends the daemon and leaves nothing behind. Whether there was anything."""
    if not os.path.isdir(source.folder):
        return False
    with Lock(os.path.join(source.folder, "lock"), "withdrawing weights", wait_s=30.0):
        runs = _runs(source)
        known = runs.pop(run_id, None) is not None
        if runs:
            if known:
                _write(source, runs, pwd.getpwnam(source.user))
            return known
        run(["systemctl", "stop", UNIT])
        run(["systemctl", "reset-failed", UNIT])
    remove(source.folder)
    return True


def _make_folder(source: Source, owner: pwd.struct_passwd) -> None:
    os.makedirs(source.folder, exist_ok=True)
    os.chmod(source.folder, 0o750)
    os.chown(source.folder, 0, owner.pw_gid)


def _runs(source: Source) -> dict[str, Any]:
    """The runs that still may take. One whose controller died has an end all the same."""
    runs = (read_json(os.path.join(source.folder, "runs.json")) or {}).get("runs", {})
    return {name: entry for name, entry in runs.items() if entry["until"] > time.time()}


def _write(source: Source, runs: Mapping[str, Any], owner: pwd.struct_passwd) -> None:
    # The daemon reads both again for each connection; the secrets come first, so that nobody is named without one.
    secrets = "".join("{}:{}\n".format(name, entry["secret"]) for name, entry in sorted(runs.items()))
    write_text(os.path.join(source.folder, "secrets"), secrets, 0o600, owner.pw_uid, owner.pw_gid)
    write_text(os.path.join(source.folder, "rsyncd.conf"), configuration(source, runs), 0o644)
    write_json(os.path.join(source.folder, "runs.json"), {"runs": runs}, 0o600)


def configuration(source: Source, runs: Mapping[str, Any]) -> str:
    """The text of rsyncd.conf."""
    hosts = sorted({address for entry in runs.values() for address in entry["hosts"]})
    return f"""\
# Written by enplace; gone when the last host has taken what it wants.
use chroot = no
munge symlinks = no
reverse lookup = no
max connections = 64
lock file = /tmp/enplace-fleet.lock

[{SHARE}]
path = {source.cache}
read only = yes
list = no
hosts allow = {" ".join(hosts)}
auth users = {",".join(sorted(runs))}
secrets file = {source.folder}/secrets
exclude = /.locks /.enplace* /enplace-* {STAGE_NAME} *.incomplete
"""


def _addresses(hosts: Sequence[str]) -> list[str]:
    found: set[str] = set()
    for host in hosts:
        try:
            found.update(str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        except OSError as error:
            raise Failure(
                what="a host that is to take weights from here has no address that is known here",
                where=host,
                expected="an address, or a name that this host can look up",
                found=error.strerror or str(error),
                todo="set enplace_fleet_address of that host to the address by which the fleet reaches it",
            ) from None
    return sorted(found)


def _start(source: Source) -> None:
    properties = {
        "Description": "enplace: weights for other hosts of the fleet",
        "RuntimeMaxSec": f"{source.limit_s}",
        # Started again when something kills it, and not when its time is over.
        "Restart": "on-abort",
        "RestartSec": "1",
        "User": source.user,
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    }
    run(["systemctl", "reset-failed", UNIT])
    argv = ["systemd-run", f"--unit={UNIT}", "--collect", "--quiet"]
    argv += [f"--property={name}={value}" for name, value in properties.items()]
    argv += ["--", source.rsync, "--daemon", "--no-detach", f"--config={source.folder}/rsyncd.conf"]
    argv += [f"--port={source.port}"]
    result = run(argv)
    deadline = time.monotonic() + 10.0
    while result.ok and time.monotonic() < deadline:
        if not run(["systemctl", "is-active", "--quiet", UNIT]).ok:
            break
        if _listens(source.port):
            return
        time.sleep(0.1)
    said = run(["journalctl", "--unit", UNIT, "--lines", "5", "--no-pager", "--output", "cat"])
    run(["systemctl", "stop", UNIT])
    raise Failure(
        what="weights cannot be offered to other hosts: the daemon does not run",
        where=f"unit {UNIT}",
        expected=f"rsync to listen on port {source.port} (enplace_fleet_port)",
        found=result.said() if not result.ok else "it ended, or does not listen",
        todo="read the output below; is the port free?",
        detail=result.tail(4) or said.tail(5),
    )


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("localhost", port), timeout=2):
            return True
    except OSError:
        return False


# --- the host that takes ---------------------------------------------------------------------------------------------


class Wanted(Protocol):
    """A file of a manifest: path in the repository, size in bytes, SHA-256."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str: ...


@dataclass(frozen=True)
class Offer:
    """What a neighbour offers of one model: where, for whom, and how the content of each file is called there; or why
    there is nothing.
    """

    name: str
    address: str
    port: int
    run: str
    secret: str = field(repr=False)
    etags: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Taker:
    """The host that takes. ``repository``: the model's folder in its cache; ``owner``: its files' uid and gid."""

    repository: str
    snapshot: str
    user: str
    owner: tuple[int, int]
    stall_s: float = 120.0
    rsync: str = "/usr/bin/rsync"
    keep: tuple[int, ...] = ()
    timeout_s: float = 86400.0


@dataclass
class Taken:
    """What came of it: SHA-256 of the files that are now in the cache, by path, and why others are not."""

    digests: dict[str, str] = field(default_factory=dict)
    bytes: int = 0
    reasons: list[str] = field(default_factory=list)


def staged_bytes(repository: str) -> int:
    """Bytes that an earlier run has taken and that this one need not take again."""
    return bytes_in(os.path.join(repository, STAGE_NAME))


def take(offered: Offer, taker: Taker, files: Sequence[Wanted], told: Callable[[int], None]) -> Taken:
    """Take files from a neighbour, verify them and put them into the cache.

    Where the neighbour was not reached, or what it has is not right, the result says so and the caller looks elsewhere.
    Raises Failure where the transfer broke off for good after bytes had come: what is there is kept, and the next run
    goes on with it. ``told`` is called with the bytes that are there so far.
    """
    taken = Taken()
    wanted = {}
    if offered.reason:
        taken.reasons.append(f"{offered.name} offers nothing: {offered.reason}")
        return taken
    for file in files:
        etag = offered.etags.get(file.path, "")
        if not _ETAG.fullmatch(etag):
            taken.reasons.append(f"{offered.name} does not have {file.path}")
        elif len(etag) == 64 and etag != file.sha256:
            taken.reasons.append(f"{offered.name} has another {file.path}: sha256 {etag}")
        else:
            wanted[file.path] = (etag, file)
    if not wanted:
        return taken
    stage = os.path.join(taker.repository, STAGE_NAME)
    _make(stage, taker)
    begun = {name for name in os.listdir(stage) if os.path.getsize(os.path.join(stage, name))}
    reason = _transfer(offered, taker, stage, {etag: file.size for etag, file in wanted.values()}, told)
    if reason:
        _remove_if_empty(stage)
        taken.reasons.append(reason)
        return taken
    wrong = _place(taker, stage, wanted, taken)
    # What was begun by an earlier run may have been cut by a loss of power: then it is not the neighbour's fault.
    again = {path: entry for path, entry in wrong.items() if entry[0] in begun}
    if again:
        reason = _transfer(offered, taker, stage, {etag: file.size for etag, file in again.values()}, told)
        if reason:
            taken.reasons.append(reason)
        else:
            wrong = {path: wrong[path] for path in wrong if path not in again}
            wrong.update(_place(taker, stage, again, taken))
    for path in sorted(wrong):
        taken.reasons.append(
            f"the copy of {path} on {offered.name} is damaged or gone (its sha256 is another): run that host "
            "with enplace_deep: true, and look at its disk"
        )
    _remove_if_empty(stage)
    return taken


def _remove_if_empty(folder: str) -> None:
    if not os.listdir(folder):
        os.rmdir(folder)


def _make(folder: str, taker: Taker) -> None:
    """A folder below the repository's, each new part of it the service user's."""
    if os.path.isdir(folder):
        return
    _make(os.path.dirname(folder), taker)
    os.mkdir(folder, 0o755)
    # Its parent is the service user's, who may have put a link there by now.
    os.lchown(folder, *taker.owner)


def _transfer(offered: Offer, taker: Taker, stage: str, sizes: Mapping[str, int], told: Callable[[int], None]) -> str:
    """Bring blobs into the stage; why it could not begin, or nothing. Raises Failure where it broke off."""
    host = f"[{offered.address}]" if ":" in offered.address else offered.address
    folder = os.path.basename(taker.repository)
    before = bytes_in(stage)
    scratch = tempfile.mkdtemp(prefix="enplace-fleet-")
    try:
        os.chown(scratch, *taker.owner)
        names = os.path.join(scratch, "names")
        # From the top on: rsync 3.5.0 without chroot does not find the files of a folder that the address names.
        write_text(names, "".join(f"{folder}/blobs/{etag}\n" for etag in sorted(sizes)))
        argv = [taker.rsync, "--append", f"--contimeout={CONNECT_S}", f"--timeout={int(taker.stall_s)}"]
        argv += ["--no-motd", "--no-relative", f"--files-from={names}"]
        argv += [f"rsync://{offered.run}@{host}:{offered.port}/{SHARE}/", stage + "/"]
        # In the environment only its own user and root can read it.
        env = {**base_environment(scratch), "RSYNC_PASSWORD": offered.secret}
        for number in range(1, TRIES + 1):
            # rsync has deadlines of its own; the watch is for progress, and for one that hangs with them.
            watch = Watchdog(stage, 2 * taker.stall_s, told)
            result = run(
                argv,
                env=env,
                user=taker.user,
                keep=taker.keep,
                watch=watch,
                # Of its two processes the one that writes would go on for itself, beside that of the next run.
                leash=True,
                timeout_s=taker.timeout_s,
            )
            # Nothing may have been left to send: whoever was cut off had all of it. 23 and 24: all that it has was
            # sent. What is missing is seen when it is looked for.
            if result.rc == 0 or (result.rc in (23, 24) and bytes_in(stage) > before):
                return ""
            output = result.tail(6).replace(offered.secret, "***")
            if is_disk_full(output):
                raise _disk_full(stage, output)
            came = bytes_in(stage) > before
            if not came and re.search(r"@ERROR|auth failed|access denied|unknown option", output):
                break
            if number < TRIES:
                time.sleep(2**number)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not came:
        return (
            f"{offered.name} gives nothing ({offered.address}, port {offered.port}): {result.said()}: {_last(output)}"
        )
    raise Failure(
        what="taking weights from another host broke off",
        where=f"{folder} from {offered.name} ({offered.address}, port {offered.port})",
        expected=sized(sum(sizes.values())),
        found=f"{sized(bytes_in(stage))} after {TRIES} tries; {result.said()}",
        todo="run again: it goes on where it ended; see the network, and the journal of enplace-fleet on that host",
        detail=output,
    )


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if not line.startswith("rsync error:")] or [output]
    return lines[0].strip()


def _disk_full(stage: str, output: str) -> Failure:
    room = space(stage)
    return Failure(
        what="the disk is full: the weights could not be taken from another host",
        where=f"{stage} (mounted at {room.mount})",
        expected="room for what is missing",
        found=f"{sized(room.free)} free of {sized(room.total)}",
        todo="free space there and run again: it goes on where it ended",
        detail=output,
    )


def _place(taker: Taker, stage: str, wanted: Mapping[str, tuple[str, Any]], taken: Taken) -> dict[str, tuple[str, Any]]:
    """Move what is right into the cache, remove what is not; the latter."""
    staged = {path: os.path.join(stage, etag) for path, (etag, _file) in wanted.items()}
    digests = sha256_files(path for path in staged.values() if os.path.isfile(path))
    blobs = os.path.join(taker.repository, "blobs")
    _make(blobs, taker)
    wrong = {}
    for path, (etag, file) in wanted.items():
        # Two files of one content are one blob, which the first of them has moved.
        digest, blob = digests.get(staged[path], ""), os.path.join(blobs, etag)
        if digest != file.sha256:
            wrong[path] = (etag, file)
            continue
        if os.path.exists(staged[path]):
            taken.bytes += os.path.getsize(staged[path])
            # One that was begun by a run before has the mode of an unfinished file. Not of what a link leads to.
            handle = os.open(staged[path], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.fchmod(handle, 0o644)
            os.close(handle)
            os.replace(staged[path], blob)
        _link(taker, blob, os.path.join(taker.snapshot, path))
        taken.digests[path] = digest
    for path in wrong:
        remove(staged[path])
    return wrong


def _link(taker: Taker, blob: str, path: str) -> None:
    folder = os.path.dirname(path)
    _make(folder, taker)
    remove(path)
    os.symlink(os.path.relpath(blob, folder), path)
    os.lchown(path, *taker.owner)
