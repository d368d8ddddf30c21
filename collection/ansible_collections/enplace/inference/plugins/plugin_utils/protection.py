# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Files of a host beside its units: what keeps logins alive where card and host share one memory. Pure data.

On such a host (GB10) the memory that an engine takes on the card is charged to no cgroup, so that no limit on its unit
holds it back: what a person needs to log in is protected from being pushed out instead, and the unit's OOMScoreAdjust
makes the kernel take the engine first. MemoryMin is what of a group's memory is never reclaimed, up to so much; nothing
is set aside. Protecting ssh.service alone is not enough: the login then hangs in user.slice. That, and the figures of
user.slice, are from jschmied/dgx-spark-setup-guide.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

_HEAD = "# Written by enplace. Where card and host share one memory, an engine must not push out what a login needs.\n"
_UNITS = "/etc/systemd/system"
_NAME = "50-enplace.conf"

_UNIFIED = {
    f"{_UNITS}/user.slice.d/{_NAME}": "[Slice]\nMemoryMin=4G\nMemoryLow=6G\n",
    # A group's protection is never more than its parent's. These two ask for all of it, so that the engine, which lies
    # in the same slice, gets none.
    f"{_UNITS}/system.slice.d/{_NAME}": "[Slice]\nMemoryMin=256M\n",
    f"{_UNITS}/ssh.service.d/{_NAME}": "[Service]\nMemoryMin=128M\n",
    f"{_UNITS}/systemd-logind.service.d/{_NAME}": "[Service]\nMemoryMin=128M\n",
}
# The engine's unit may not load it, and may open only the devices that there were when it was started.
_MODULES = {"/etc/modules-load.d/enplace.conf": "# Written by enplace.\nnvidia-uvm\n"}


def host_files(accelerators: Collection[str]) -> list[dict[str, str]]:
    """The files for a host with such accelerators, in the order of their paths: `path`, `content`, `mode`."""
    if "gb10" not in accelerators:
        return []
    files = {**{path: _HEAD + text for path, text in _UNIFIED.items()}, **_MODULES}
    return [{"path": path, "content": text, "mode": "0644"} for path, text in sorted(files.items())]


def folders_of(files: list[dict[str, str]]) -> list[str]:
    """The folders that such files lie in, as far as they may be missing."""
    folders = {str(PurePosixPath(item["path"]).parent) for item in files}
    return sorted(folder for folder in folders if folder.startswith(f"{_UNITS}/"))
