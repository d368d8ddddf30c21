# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights: model repositories at a pinned revision, every file checked against its manifest.

The layout is the standard cache of the model hub's own client, so that other tools can share it. What is downloaded is
downloaded by that client (`hf download`); what is there is judged here, by size and SHA-256 and never by its presence.

Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import download, fleet, hub_preflight
from ansible_collections.enplace.inference.plugins.module_utils.command import GIVEN_UP, Result, base_environment, run
from ansible_collections.enplace.inference.plugins.module_utils.files import (
    Failure,
    Lock,
    git_blob_sha1,
    is_disk_full,
    read_json,
    remove,
    sha256_file,
    sha256_files,
    sized,
    space,
    sync_file,
    sync_folder,
    write_json,
)
from ansible_collections.enplace.inference.plugins.module_utils.job import Progress

#: Folder in the cache that remembers which files were hashed, so that a converged run need not hash them again.
VERIFIED_NAME = "enplace-verified"

#: Held while something is downloaded into a cache.
LOCK_NAME = ".enplace.lock"

#: The client downloads no larger file without Xet, in bytes: it refuses to.
MAX_PLAIN_BYTES = 50_000_000_000

#: Files that an error names; of more it says how many.
NAMED_FILES = 8


@dataclass(frozen=True)
class File:
    """One file of a manifest: path inside the repository, size in bytes, SHA-256 (64 hexadecimal digits)."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Model:
    """A repository at a revision, with the files that are wanted of it."""

    repo: str
    revision: str
    files: tuple[File, ...]

    @property
    def key(self) -> str:
        """What a model is called in mappings: repository and the whole revision."""
        return f"{self.repo}@{self.revision}"

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision[:12]}"


@dataclass(frozen=True)
class Found:
    """What lies where a file should be. ``state`` is whole, missing or wrong.

    ``size`` and ``sha256`` are as found (-1 and empty where there is nothing, or where the size alone decides).
    ``verified`` says that the file had been found whole by an earlier run.
    """

    file: File
    state: str
    size: int = -1
    sha256: str = ""
    verified: bool = False

    def said(self) -> str:
        if self.state == "missing":
            return "no such file"
        return "{} bytes{}".format(self.size, f", sha256 {self.sha256}" if self.sha256 else "")


def parse_models(value: Sequence[Mapping[str, Any]]) -> list[Model]:
    """Models from plain data: ``repo``, ``revision`` and ``files`` with ``path``, ``bytes`` and ``sha256`` each.

    Raises Failure that names the field for anything that is not pinned or would lead out of the repository.
    """
    models = []
    for number, entry in enumerate(value):
        where = f"models[{number}]"
        _demand(where + ".repo", entry["repo"], r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", "organisation/name")
        _demand(where + ".revision", entry["revision"], r"[0-9a-f]{40}", "a commit, 40 hexadecimal digits")
        files = []
        for index, item in enumerate(entry["files"]):
            field = f"{where}.files[{index}]"
            parts = item["path"].split("/")
            if item["path"].startswith("-") or any(part in ("", ".", "..") for part in parts):
                raise _bad_field(field + ".path", "a path inside the repository", item["path"])
            _demand(field + ".sha256", item["sha256"], r"[0-9a-f]{64}", "64 hexadecimal digits")
            if item["bytes"] < 0:
                raise _bad_field(field + ".bytes", "a number of bytes", str(item["bytes"]))
            files.append(File(item["path"], item["bytes"], item["sha256"]))
        names = [file.path for file in files]
        if not files or len(set(names)) != len(names):
            raise _bad_field(where + ".files", "every wanted file once", ", ".join(names) or "no file")
        models.append(Model(entry["repo"], entry["revision"], tuple(files)))
    return models


def _demand(field: str, text: str, pattern: str, expected: str) -> None:
    if not re.fullmatch(pattern, text):
        raise _bad_field(field, expected, text)


def _bad_field(field: str, expected: str, found: str) -> Failure:
    return Failure(
        what="the manifest of the weights is not valid",
        where=field,
        expected=expected,
        found=found,
        todo="correct it in the recipe",
    )


# --- what is there ---------------------------------------------------------------------------------------------------


def repository_path(cache: str, repo: str) -> str:
    """The folder of a repository in the cache."""
    return os.path.join(cache, "models--" + repo.replace("/", "--"))


def snapshot_path(cache: str, model: Model) -> str:
    """The folder that holds a model's files at its revision; what a server is given as model."""
    return os.path.join(repository_path(cache, model.repo), "snapshots", model.revision)


def state_path(cache: str, model: Model) -> str:
    """The file that remembers what was verified of a model."""
    return os.path.join(cache, VERIFIED_NAME, "{}--{}.json".format(model.repo.replace("/", "--"), model.revision))


def is_remembered(cache: str, model: Model) -> bool:
    """Whether every file is there and was found whole before, judged by size, time of modification and inode alone."""
    snapshot = snapshot_path(cache, model)
    known = (read_json(state_path(cache, model)) or {}).get("files", {})
    try:
        return all(
            known.get(file.path) == _identity(file, os.stat(os.path.join(snapshot, file.path))) for file in model.files
        )
    except (FileNotFoundError, NotADirectoryError):
        return False


def examine(
    cache: str, model: Model, deep: bool = False, remember: bool = True, fresh: Mapping[str, str] | None = None
) -> list[Found]:
    """Compare every file of a model with its manifest, in the manifest's order.

    A file that an earlier run hashed is not hashed again while size, time of modification and inode are the same,
    unless ``deep``. Files found whole are flushed to the disk and then, with ``remember``, recorded. ``fresh`` are
    SHA-256 by path of files that were hashed just now.
    """
    snapshot = snapshot_path(cache, model)
    known = (read_json(state_path(cache, model)) or {}).get("files", {})
    stats: dict[str, os.stat_result] = {}
    for file in model.files:
        try:
            stats[file.path] = os.stat(os.path.join(snapshot, file.path))
        except (FileNotFoundError, NotADirectoryError):
            continue
    to_hash = []
    for file in model.files:
        status = stats.get(file.path)
        if status is None or status.st_size != file.size:
            continue
        if deep or known.get(file.path) != _identity(file, status):
            to_hash.append(file.path)
    hashes = {os.path.join(snapshot, path): digest for path, digest in (fresh or {}).items()}
    hashes.update(
        sha256_files(path for path in (os.path.join(snapshot, name) for name in to_hash) if path not in hashes)
    )
    result, entries = [], {}
    for file in model.files:
        status = stats.get(file.path)
        verified = known.get(file.path, {}).get("sha256") == file.sha256
        if status is None:
            result.append(Found(file, "missing", verified=verified))
            continue
        digest = hashes.get(os.path.join(snapshot, file.path), "") if file.path in to_hash else file.sha256
        if status.st_size != file.size or digest != file.sha256:
            shown = digest if status.st_size == file.size else ""
            result.append(Found(file, "wrong", status.st_size, shown, verified))
            if _still_holds(known.get(file.path), status, shown):
                entries[file.path] = known[file.path]
            continue
        result.append(Found(file, "whole", status.st_size, digest, verified))
        entries[file.path] = _identity(file, status)
    if remember and entries != known and entries:
        _remember(cache, model, entries, [path for path in to_hash if path in entries])
    return result


def _still_holds(entry: Mapping[str, Any] | None, status: os.stat_result, digest: str) -> bool:
    """Whether a record is true of a file that differs from the manifest: then it is the manifest that has changed."""
    if entry is None or (digest and entry["sha256"] != digest):
        return False
    return [entry["bytes"], entry["mtime_ns"], entry["inode"]] == [status.st_size, status.st_mtime_ns, status.st_ino]


def _identity(file: File, status: os.stat_result) -> dict[str, Any]:
    return {
        "bytes": status.st_size,
        "sha256": file.sha256,
        "mtime_ns": status.st_mtime_ns,
        "inode": status.st_ino,
    }


def _remember(cache: str, model: Model, entries: Mapping[str, Any], fresh: Iterable[str]) -> None:
    # What was hashed may be in memory only: a record of it must not outlive the content in a power cut.
    snapshot = snapshot_path(cache, model)
    folders = {snapshot}
    for path in fresh:
        real = os.path.realpath(os.path.join(snapshot, path))
        sync_file(real)
        folders.update((os.path.dirname(real), os.path.dirname(os.path.join(snapshot, path))))
    for folder in sorted(folders):
        sync_folder(folder)
    path = state_path(cache, model)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    write_json(path, {"schema": 1, "repo": model.repo, "revision": model.revision, "files": dict(entries)})


def extra_files(cache: str, model: Model) -> list[str]:
    """Files of the snapshot that are not in the manifest, sorted."""
    snapshot = snapshot_path(cache, model)
    wanted = {file.path for file in model.files}
    found = []
    for folder, _folders, names in os.walk(snapshot):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), snapshot)
            if path not in wanted:
                found.append(path)
    return sorted(found)


# --- download --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """How weights are fetched. ``hf``, ``token_file`` and ``rsync`` are paths on the host; ``user`` empty means this
    process's.

    ``offers``: what neighbours offer, by the model's key; with one, the hub is asked for what the neighbour cannot give
    alone. ``offline``: nothing is asked of any network. ``holder``: on whose behalf, for those who find the lock taken.
    ``stall_s``: seconds without a byte after which the client is started again, ``restarts`` times at most.
    """

    cache: str
    hf: str
    endpoint: str = ""
    token_file: str = ""
    user: str = ""
    ca_bundle: str = ""
    timeout_s: float = 86400.0
    offline: bool = False
    offers: Mapping[str, fleet.Offer] = field(default_factory=dict)
    holder: str = ""
    stall_s: float = 120.0
    restarts: int = 3
    rsync: str = "/usr/bin/rsync"


@dataclass
class _Fetched:
    bytes: int = 0
    warnings: list[str] = field(default_factory=list)


def ensure(
    request: Request,
    models: Sequence[Model],
    deep: bool = False,
    check_mode: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make every model whole; the module's result. Raises Failure: then a model may be in part there, and the next run
    goes on where this one ended.

    In check mode nothing is written, files that would be downloaded are listed, and the hub is asked whether it would
    give them.
    """
    progress = progress or Progress()
    progress.tell(phase="verifying", models=[str(model) for model in models])
    missing_of = _missing(request, models, deep, check_mode)
    fetched = {model: _Fetched() for model in models}
    if any(missing_of.values()):
        if check_mode:
            _demand_all(request, missing_of)
        else:
            with _locked(request, progress) as lock:
                # Whoever held the lock until now may have fetched the same.
                still = _missing(request, models, False, check_mode)
                _demand_all(request, still)
                left = _Counter(progress, sum(file.size for files in still.values() for file in files))
                for model, files in still.items():
                    if files:
                        fetched[model] = _fetch(request, model, files, lock, left)
    results = [
        {
            "repo": model.repo,
            "revision": model.revision,
            "snapshot": snapshot_path(request.cache, model),
            "files": len(model.files),
            "bytes": sum(file.size for file in model.files),
            "missing": [{"path": file.path, "bytes": file.size} for file in missing_of[model]],
            "downloaded_bytes": fetched[model].bytes,
            "extra": extra_files(request.cache, model),
        }
        for model in models
    ]
    return {
        "changed": any(missing_of.values()),
        "models": results,
        "downloaded_bytes": sum(one.bytes for one in fetched.values()),
        "missing_bytes": sum(file.size for files in missing_of.values() for file in files),
        "warnings": [warning for one in fetched.values() for warning in one.warnings],
    }


def _missing(request: Request, models: Sequence[Model], deep: bool, check_mode: bool) -> dict[Model, list[File]]:
    """The files of each model that are to be fetched. Raises Failure for damage, and for anything missing offline."""
    found = {model: examine(request.cache, model, deep, remember=not check_mode) for model in models}
    if request.offline:
        _demand_whole_offline(request, found)
    for model, items in found.items():
        _refuse_damage(request.cache, model, items, check_mode)
    return {model: [item.file for item in items if item.state != "whole"] for model, items in found.items()}


def _demand_whole_offline(request: Request, found: Mapping[Model, Sequence[Found]]) -> None:
    for model, items in found.items():
        lines = [f"{item.file.path}: {item.said()}" for item in items if item.state != "whole"]
        if not lines:
            continue
        snapshot = snapshot_path(request.cache, model)
        wanted = [
            f"{item.file.path}: {item.file.size} bytes, sha256 {item.file.sha256}"
            for item in items
            if item.state != "whole"
        ]
        raise Failure(
            what="the weights are not whole, and the host is not to ask any network for them",
            where=f"{model}: {snapshot} (enplace_weights_source: offline)",
            expected=_listed(wanted),
            found=_listed(lines),
            todo=f"on a machine with a network: hf download {model.repo} --revision {model.revision} --cache-dir hub; "
            f"then bring {os.path.basename(repository_path('', model.repo))} as it is, links included (rsync -a, tar), "
            f"into {request.cache}, owned by {request.user or 'the user who serves'}; single files may also be put "
            "straight into the snapshot's folder",
        )


def _listed(lines: Sequence[str]) -> str:
    more = f"\nand {len(lines) - NAMED_FILES} more" if len(lines) > NAMED_FILES else ""
    return "\n".join(lines[:NAMED_FILES]) + more


def _demand_all(request: Request, missing_of: Mapping[Model, Sequence[File]]) -> None:
    """Whatever can be known to be in the way before the first byte. Raises Failure."""
    wanted = {model: files for model, files in missing_of.items() if files}
    if not wanted:
        return
    total = sum(file.size for files in wanted.values() for file in files)
    staged = sum(fleet.staged_bytes(repository_path(request.cache, model.repo)) for model in wanted)
    token = hub_preflight.read_token(request.token_file)
    for model, files in wanted.items():
        if model.key not in request.offers:
            _ask_hub(request, model, files, token)
    _demand_room(request, max(0, total - staged))


def _ask_hub(request: Request, model: Model, files: Sequence[File], token: str) -> None:
    paths = [file.path for file in files]
    hub_preflight.demand(request.endpoint, model.repo, model.revision, paths, token, request.ca_bundle)


@contextlib.contextmanager
def _locked(request: Request, progress: Progress) -> Iterator[Lock]:
    """The cache's lock. Another run's download is waited for, and named: it is of use to this one, too."""
    owner = _owner(request.user)[1] if request.user else (-1, -1)
    if not os.path.isdir(request.cache):
        os.makedirs(request.cache, mode=0o755)
        os.chown(request.cache, *owner)
    lock = Lock(os.path.join(request.cache, LOCK_NAME), "downloading weights", request.holder)
    deadline = time.monotonic() + request.timeout_s
    while True:
        try:
            lock.__enter__()
            break
        except Failure as failure:
            if time.monotonic() >= deadline:
                raise
            progress.tell(phase=f"waiting for another run ({failure.found})")
            time.sleep(1.0)
    try:
        yield lock
    finally:
        lock.__exit__(None, None, None)


class _Counter:
    """Adds up what comes of several models, for the one line that people see."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def of(self, model: Model, size: int, base: int) -> Callable[[int], None]:
        """What is told the bytes in a folder, where ``base`` of them are not of this download."""

        def told(have: int) -> None:
            done = self.done + min(size, max(0, have - base))
            self.progress.tell(phase="downloading", model=str(model), done=done, total=self.total)

        return told


def _refuse_damage(cache: str, model: Model, found: Sequence[Found], check_mode: bool) -> None:
    """Decide about the files that are wrong before anything is downloaded.

    One whose content is what the hub says it is contradicts the manifest: no download can mend that. One that an
    earlier run found whole was changed afterwards: that is worth an error, not only a download. Anything else is what
    a cut download left, and is simply fetched again. What is not worth keeping is removed, except in check mode.
    """
    damaged = []
    for item in found:
        if item.state != "wrong":
            continue
        path = os.path.join(snapshot_path(cache, model), item.file.path)
        if is_what_the_hub_has(path):
            raise _manifest_differs(model, item, path)
        if not check_mode:
            _discard(cache, path)
        if item.verified:
            damaged.append((item, path))
    if damaged:
        item, path = damaged[0]
        others = ", ".join(other.file.path for other, _path in damaged[1:])
        raise Failure(
            what="a file of the weights was changed after it had been verified",
            where="{}: {}{}".format(model, path, f" (and {others})" if others else ""),
            expected=f"{item.file.size} bytes, sha256 {item.file.sha256}",
            found=item.said(),
            todo="{}; if it happens again, look at the disk and at who writes there".format(
                "run without check mode, and once more: the first run removes the file"
                if check_mode
                else "run again: the file has been removed and will be downloaded anew"
            ),
        )


def is_what_the_hub_has(path: str) -> bool:
    """Whether a file's content is the one its name in the cache stands for.

    The cache names content by the hub's ETag: the SHA-256 for large files, git's SHA-1 for small ones. False where the
    name is neither, because then nothing is known.
    """
    real = os.path.realpath(path)
    name = os.path.basename(real)
    if not os.path.islink(path) or set(name) - set("0123456789abcdef"):
        return False
    if len(name) == 64:
        return sha256_file(real) == name
    return len(name) == 40 and git_blob_sha1(real) == name


def _manifest_differs(model: Model, item: Found, path: str) -> Failure:
    found = item.said() if item.sha256 else f"{item.size} bytes, sha256 {sha256_file(path)}"
    field = "bytes" if item.size != item.file.size else "sha256"
    return Failure(
        what="the recipe's manifest does not fit the file that the hub has at this revision",
        where=f"recipe field weights.files, entry {item.file.path}, {field} ({model})",
        expected=f"{item.file.size} bytes, sha256 {item.file.sha256}",
        found=found,
        todo="correct repository, revision, bytes or sha256 in the recipe; if they are right, do not trust this hub",
    )


def _discard(cache: str, path: str) -> None:
    """Remove a snapshot's file and, if it is a link, what it leads to, as far as that lies in the cache."""
    inside = os.path.realpath(cache) + os.sep
    chain = [path]
    while os.path.islink(chain[-1]) and len(chain) < 8:
        chain.append(os.path.normpath(os.path.join(os.path.dirname(chain[-1]), os.readlink(chain[-1]))))
    for step in chain:
        if os.path.realpath(os.path.dirname(step)).startswith(inside):
            remove(step)


def _demand_room(request: Request, total: int) -> None:
    room = space(request.cache)
    if total > room.free:
        raise Failure(
            what="the disk is too small for the weights",
            where=f"{request.cache} (mounted at {room.mount})",
            expected=f"{sized(total)} free, for what is still missing",
            found=f"{sized(room.free)} free of {sized(room.total)}",
            todo="free space there, or mount a larger disk",
        )


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _fetch(request: Request, model: Model, missing: Sequence[File], lock: Lock, counter: _Counter) -> _Fetched:
    """Bring the missing files of a model and verify them. Raises Failure."""
    fetched, digests = _Fetched(), {}
    home, owner = _owner(request.user) if request.user else ("", (-1, -1))
    size = sum(file.size for file in missing)
    offered = request.offers.get(model.key)
    if offered:
        repository = repository_path(request.cache, model.repo)
        taker = fleet.Taker(
            repository,
            snapshot_path(request.cache, model),
            request.user,
            owner,
            request.stall_s,
            request.rsync,
            (lock.handle,),
            request.timeout_s,
        )
        taken = fleet.take(offered, taker, missing, counter.of(model, size, 0))
        digests, fetched.bytes = taken.digests, taken.bytes
        missing = [file for file in missing if file.path not in digests]
        if missing:
            fetched.warnings = [f"{model}: {reason}; taken from the hub instead" for reason in taken.reasons]
    if missing:
        token = hub_preflight.read_token(request.token_file)
        try:
            if offered:
                _ask_hub(request, model, missing, token)
            fetched.bytes += _download(request, model, missing, lock, counter, (home, owner, token))
        except Failure as failure:
            if fetched.warnings:
                failure.detail = "\n".join([*fetched.warnings, failure.detail]).rstrip()
            raise
    counter.progress.tell(phase="verifying", model=str(model))
    _demand_whole(request.cache, model, digests)
    counter.done += size
    return fetched


def _download(
    request: Request,
    model: Model,
    missing: Sequence[File],
    lock: Lock,
    counter: _Counter,
    identity: tuple[str, tuple[int, int], str],
) -> int:
    """Let the hub's client download files; the bytes that were added to the cache. Raises Failure.

    A client that gets nothing for ``stall_s`` seconds is killed and started again, and so is one that gave up on its
    connection after bytes had come. From the second time on it does without Xet.
    """
    home, owner, token = identity
    repository = repository_path(request.cache, model.repo)
    blobs = os.path.join(repository, "blobs")
    size = sum(file.size for file in missing)
    download.remove_unfinished(repository)
    before, base, most = _sizes(blobs), download.bytes_in(blobs), 0
    plain_from = 2 if all(file.size <= MAX_PLAIN_BYTES for file in missing) else request.restarts + 1
    argv = [request.hf, "download", model.repo]
    argv += [*(file.path for file in missing), "--revision", model.revision, "--cache-dir", request.cache, "--quiet"]
    for number in range(request.restarts + 1):
        download.remove_unfinished(repository)
        begin = download.bytes_in(blobs)
        watch = download.Watchdog(blobs, request.stall_s, counter.of(model, size, base))
        # What the client keeps besides the cache (its logs, its search for updates) is of no use to the next run.
        scratch = tempfile.mkdtemp(prefix="enplace-hf-")
        try:
            os.chown(scratch, *owner)
            env = _child_environment(request, home, scratch, token)
            if number >= plain_from:
                env["HF_HUB_DISABLE_XET"] = "1"
            result = run(
                argv,
                env=env,
                timeout_s=request.timeout_s,
                user=request.user,
                keep=[lock.handle],
                watch=watch,
                leash=True,
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        most = max(most, watch.most - base)
        if result.ok:
            break
        passing = watch.most > begin and re.search(_PASSING, result.tail(8), re.IGNORECASE)
        if result.rc != GIVEN_UP and not (passing and number < request.restarts):
            download.remove_unfinished(repository)
            raise _download_failed(request, model, result, token)
        counter.progress.tell(phase=f"started again ({number + 1} of {request.restarts}): {result.said()}")
    else:
        download.remove_unfinished(repository)
        raise _stalled(request, model, size, most, plain_from)
    return sum(size for name, size in _sizes(blobs).items() if name not in before)


def _stalled(request: Request, model: Model, size: int, most: int, plain_from: int) -> Failure:
    plain = max(0, request.restarts + 1 - plain_from)
    tries = f"{request.restarts + 1} tries" + (f", the last {plain} without Xet" if plain else "")
    return Failure(
        what="the download stands still",
        where="{} from {}".format(model, request.endpoint or "the hub's default address"),
        expected=f"bytes within {request.stall_s:.0f} s (weights_stall_s)",
        found=f"{sized(max(0, most))} of {sized(size)} came in {tries}",
        todo="check the line and enplace_hub_endpoint, and run again: whole files are kept, unfinished ones begin anew",
    )


def _owner(name: str) -> tuple[str, tuple[int, int]]:
    """Home, uid and gid of a user. Raises Failure."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise Failure(
            what="no such user",
            where="user",
            expected=f"the service user {name}",
            found="none in the user database",
            todo="run the host role first, it makes the user",
        ) from None
    return entry.pw_dir, (entry.pw_uid, entry.pw_gid)


def _child_environment(request: Request, home: str, scratch: str, token: str) -> dict[str, str]:
    env = base_environment(home)
    env.update(
        {
            "HF_HOME": scratch,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            # One place for each file, as every tool that reads this cache expects it.
            "HF_HUB_DISABLE_SHARED_BLOBS": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "30",
            "NO_COLOR": "1",
        }
    )
    if request.endpoint:
        env["HF_ENDPOINT"] = request.endpoint.rstrip("/")
    if request.ca_bundle:
        env["SSL_CERT_FILE"] = env["REQUESTS_CA_BUNDLE"] = request.ca_bundle
    # In the environment only its own user and root can read it; on the command line everybody could.
    if token:
        env["HF_TOKEN"] = token
    else:
        env["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
    return env


def _sizes(folder: str) -> dict[str, int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    return {name: _size(os.path.join(folder, name)) for name in names if not name.endswith(".incomplete")}


def _demand_whole(cache: str, model: Model, fresh: Mapping[str, str] | None = None) -> None:
    """Verify a model after its download. What is wrong is removed, so that the next run downloads it again."""
    for item in examine(cache, model, fresh=fresh):
        if item.state == "whole":
            continue
        path = os.path.join(snapshot_path(cache, model), item.file.path)
        if item.state == "missing":
            raise Failure(
                what="the hub's client ended well, and yet a file is missing",
                where=f"{model}: {path}",
                expected=f"{item.file.size} bytes, sha256 {item.file.sha256}",
                found=item.said(),
                todo="check that the repository has this file at this revision, or correct the recipe",
            )
        if is_what_the_hub_has(path):
            raise _manifest_differs(model, item, path)
        found = item.said() if item.sha256 else f"{item.size} bytes, sha256 {sha256_file(path)}"
        _discard(cache, path)
        raise Failure(
            what="a downloaded file is not the one in the recipe's manifest",
            where=f"{model}: {path}",
            expected=f"{item.file.size} bytes, sha256 {item.file.sha256}",
            found=found,
            todo="run again: the file has been removed and will be downloaded anew; if it comes out the same, correct "
            f"weights.files in the recipe (entry {item.file.path}) or use another hub",
        )


# What passes, if anything passes: the line, or a hub that is busy.
_PASSING = (
    r"\b(429|5\d\d)\b|timed out|Timeout|Connection|ConnectError|ReadError|RemoteProtocolError|IncompleteRead|"
    r"Consistency check|name resolution|Name or service|Network is unreachable"
)

# Looked through in this order: what the client says of a cut line may also hold "not found", and so on.
_ADVICE = (
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate",
        "the host does not trust the hub's certificate: name the CA bundle (enplace_ca_bundle)",
    ),
    (
        r"Permission denied|PermissionError",
        "the service user cannot write into the cache: give it the folder and all in it",
    ),
    (
        r"Revision ?Not ?Found",
        "correct the revision in the recipe: the hub has the repository, but not this commit",
    ),
    (
        r"name resolution|Name or service|Connection refused|Failed to connect|ConnectError|Network is unreachable|"
        r"No route to host|timed out|Timeout|Local entry not found|LocalEntryNotFound",
        "the host does not reach the hub: check network, proxy and enplace_hub_endpoint; then run again",
    ),
    (
        r"gated|Access denied|requires approval|\b40[13]\b|Unauthorized|Forbidden",
        "accept the model's terms at the hub and name a file with a token that may read it (enplace_hub_token_file)",
    ),
    (
        r"not found|\b404\b",
        "correct the repository in the recipe, or name a token if it is private (enplace_hub_token_file)",
    ),
)


def _download_failed(request: Request, model: Model, result: Result, token: str) -> Failure:
    output = result.tail(8)
    if token:
        output = output.replace(token, "***")
    if is_disk_full(output):
        room = space(request.cache)
        return Failure(
            what="the disk is full: the weights could not be downloaded",
            where=f"{request.cache} (mounted at {room.mount})",
            expected=f"room for {model}",
            found=f"{sized(room.free)} free of {sized(room.total)}",
            todo="free space there and run again: whole files are kept",
            detail=output,
        )
    todo = "read the output below and run again: whole files are kept"
    for pattern, advice in _ADVICE:
        if re.search(pattern, output, re.IGNORECASE):
            todo = advice
            break
    return Failure(
        what="the weights could not be downloaded",
        where="{} from {}".format(model, request.endpoint or "the hub's default address"),
        expected="hf download to end well",
        found=result.said(),
        todo=todo,
        detail=output,
    )
