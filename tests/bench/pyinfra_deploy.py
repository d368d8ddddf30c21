# SPDX-License-Identifier: Apache-2.0
"""What a converged enplace host is, said to pyinfra in its own operations, as far as they go. Run by tests/bench.

Not asked, for pyinfra has no operation for it: whether the packages in the environments are the locked ones, and
whether the run of the unit is the one that was verified.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

from pyinfra.operations import apt, files, pip, server, systemd

wanted = json.loads(Path(os.environ["ENPLACE_BENCH"]).read_text(encoding="utf-8"))

apt.packages(name="packages", packages=wanted["packages"], update=False, _sudo=True)
server.group(name="group", group=wanted["user"], system=True, _sudo=True)
# The linter takes the login shell for a call of a shell.
account: dict[str, Any] = {"shell": "/usr/sbin/nologin", "create_home": False, "ensure_home": False, "system": True}
server.user(name="user", user=wanted["user"], group=wanted["user"], **account, _sudo=True)
for entry in wanted["directories"]:
    files.directory(
        name=entry["path"],
        path=entry["path"],
        user=entry["owner"],
        group=entry["group"],
        mode=entry["mode"],
        _sudo=True,
    )
for path in wanted["environments"]:
    pip.venv(name=path, path=path, _sudo=True)
for path, text in wanted["files"].items():
    files.put(name=path, src=io.StringIO(text), dest=path, user="root", group="root", mode="644", _sudo=True)
for path, target in wanted["links"].items():
    files.link(name=path, path=path, target=target, _sudo=True)
for entry in wanted["weights"]:
    # Neither URL nor client is used: the file is there, and its sum is asked of the host.
    files.download(
        name=entry["path"], src=f"{wanted['hub']}/none", dest=entry["path"], sha256sum=entry["sha256"], _sudo=True
    )
for unit in wanted["units"]:
    systemd.service(name=unit, service=unit, running=True, enabled=True, _sudo=True)
