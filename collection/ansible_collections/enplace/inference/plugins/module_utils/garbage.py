# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""What nothing needs any more: old releases, environments and tools that no release names and no process uses, weights.

Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ansible_collections.enplace.inference.plugins.module_utils import environment, files, weights
from ansible_collections.enplace.inference.plugins.module_utils.machine import Machine
from ansible_collections.enplace.inference.plugins.module_utils.release import MANIFEST, Layout


def manifests(layout: Layout) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Folder and manifest of every release of every recipe on the host."""
    if not layout.releases.is_dir():
        return
    for recipe in sorted(layout.releases.iterdir()):
        if recipe.is_dir() and not recipe.is_symlink():
            yield from _of_recipe(recipe)


def _of_recipe(recipe: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in sorted(recipe.iterdir()):
        manifest = None if folder.is_symlink() else files.read_json(str(folder / MANIFEST))
        if manifest is not None:
            yield folder, manifest


def old_releases(layout: Layout, keep: int) -> list[Path]:
    """Folders of releases beyond the newest `keep` of their recipe; `current` and `previous` always stay."""
    found = []
    recipes = sorted(layout.releases.iterdir()) if layout.releases.is_dir() else []
    for recipe in recipes:
        if not recipe.is_dir() or recipe.is_symlink():
            continue
        linked = {layout.linked(recipe.name, "current"), layout.linked(recipe.name, "previous")} - {""}
        others = [folder for folder, _manifest in _of_recipe(recipe) if folder.name not in linked]
        # The manifest is written last, and once.
        others.sort(key=lambda folder: (folder / MANIFEST).stat().st_mtime_ns, reverse=True)
        found += others[max(0, keep - len(linked)) :]
    return found


def named_environments(manifest: dict[str, Any]) -> set[Path]:
    """Environments that a release needs."""
    path = manifest.get("environment", {}).get("path", "")
    return {Path(path)} if path else set()


def unused(layout: Layout, machine: Machine, in_use: Iterable[str]) -> list[Path]:
    """Environments and tools that no release names, that are not in use (`in_use`: paths) and that no process uses."""
    kept = {Path(path) for path in in_use}
    for _folder, manifest in manifests(layout):
        kept |= named_environments(manifest)
    found = []
    for parent in (layout.environments, layout.tools):
        if parent.is_dir():
            found += [path for path in sorted(parent.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    candidates = [path for path in found if path not in kept]
    used = machine.users(candidates)
    return [path for path in candidates if path not in used]


def collect(layout: Layout, machine: Machine, keep: int, in_use: Iterable[str] | None = None) -> list[str]:
    """Remove what is garbage; the paths that were removed.

    Environments and tools are looked at only where the caller says which ones are in use: a run builds an environment
    before there is a release that names it. What cannot be removed is left for the next run.
    """
    removed = []
    for folder in old_releases(layout, keep):
        with contextlib.suppress(OSError):
            files.remove(str(folder))
            removed.append(str(folder))
    if in_use is not None:
        removed += remove_environments(unused(layout, machine, in_use))
    return removed


def remove_environments(paths: Iterable[Path]) -> list[str]:
    """Remove environments or tools, one that is being built excepted; what was removed."""
    removed = []
    for path in paths:
        try:
            with files.Lock(str(path.parent / f".{path.name}.lock"), f"removing {path}"):
                # Without its seal the rest is what a cut run left over, whatever happens to this one.
                files.remove(str(path / environment.SEAL_NAME))
                files.remove(str(path))
                removed.append(str(path))
        except (files.Failure, OSError):
            continue
    return removed


def models_of(manifest: dict[str, Any]) -> set[tuple[str, str, str]]:
    """(repository, revision, path of its snapshot) of what a release has from the hub."""
    parts = [manifest.get("weights"), manifest.get("draft")]
    return {(part["repository"], part["revision"], part["path"]) for part in parts if part}


def remove_weights(layout: Layout, models: Iterable[tuple[str, str, str]]) -> list[str]:
    """Remove snapshots that no release on the host names any more, and the content that no other snapshot has.

    `models` is as `models_of` gives it. The paths that were removed are returned; content is named by its repository.
    """
    named = {path for _folder, manifest in manifests(layout) for _repo, _revision, path in models_of(manifest)}
    removed = []
    for repository, revision, path in sorted(models):
        snapshot = Path(path)
        folder = snapshot.parent.parent
        cache = folder.parent
        if path in named or snapshot.name != revision or folder.name != "models--" + repository.replace("/", "--"):
            continue
        if not folder.is_dir():
            continue
        with files.Lock(str(cache / weights.LOCK_NAME), f"removing {repository}@{revision[:12]}"):
            model = weights.Model(repository, revision, ())
            # The record first: it must not speak for content that is gone.
            files.remove(weights.state_path(str(cache), model))
            if files.remove(path):
                removed.append(path)
            removed += _remove_content(folder)
    return removed


def _remove_content(repository: Path) -> list[str]:
    """Remove a repository's blobs that no snapshot leads to, or all of it where no snapshot is left."""
    snapshots = repository / "snapshots"
    if not snapshots.is_dir() or not any(snapshots.iterdir()):
        # hf's locks of its blobs: nobody downloads it now, our own lock says so. First, for what is left of a teardown
        # that was cut off is found by the repository.
        files.remove(str(repository.parent / ".locks" / repository.name))
        files.remove(str(repository))
        return [str(repository)]
    used: set[str] = set()
    for folder, _folders, names in os.walk(snapshots):
        used.update(os.path.realpath(os.path.join(folder, name)) for name in names)
    removed = []
    blobs = repository / "blobs"
    for blob in sorted(blobs.iterdir()) if blobs.is_dir() else ():
        if os.path.realpath(blob) not in used and files.remove(str(blob)):
            removed.append(str(blob))
    return removed
