# Copyright (c) 2026, the enplace authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments: a venv made from one lock, in a folder named by the digest of what decides its content.

Standard library only, Python 3.9 or newer. Used on the host (build, compare) and on the controller (digest, lock).
"""

from __future__ import annotations

from typing import Mapping, Sequence

from ansible_collections.enplace.inference.plugins.module_utils.files import canonical_json, sha256_bytes

#: Written last into an environment: without it the folder is what a cut run left over.
SEAL_NAME = "enplace-environment.json"

#: Characters of the digest that name the folder.
DIGEST_NAME_LENGTH = 12


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
        raise ValueError("lock_sha256: expected 64 hexadecimal digits, found {0!r}".format(lock_sha256))
    parts = python_version.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        raise ValueError("python_version: expected a version such as 3.11, found {0!r}".format(python_version))
    content = {
        "schema": 1,
        "lock": lock_sha256,
        "python": ".".join(parts[:2]),
        "aliases": sorted([alias["distribution"], alias["name"], alias["version"]] for alias in aliases),
        "fixes": list(fixes),
    }
    return sha256_bytes(canonical_json(content))
