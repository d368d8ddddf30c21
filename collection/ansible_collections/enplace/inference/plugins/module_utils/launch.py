# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Start the engine with the key of its interface: from the unit's credential into the engine's own variable.

Before the engine's argv in ExecStart, only where there is a key. Runs from the release folder, beside ready.py, and
turns into the engine: no process is left between systemd and it. Those who ask the engine whether it is ready or alive
find the key in the folder of this run of the unit: systemd 252 shows credentials to ExecStart alone. Standard library
only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

try:
    from ansible_collections.enplace.inference.plugins.module_utils import ready
except ImportError:
    import ready  # type: ignore[import-not-found, no-redef]

#: The engine takes its key from this variable as well as from a flag, and logs its flags.
VARIABLE = "VLLM_API_KEY"


def main(argv: Sequence[str]) -> int:
    """Become the program `argv`. Returns 2, which no restart follows, where that cannot be."""
    try:
        key = ready.read_key(os.path.join(os.environ["CREDENTIALS_DIRECTORY"], ready.KEY_NAME))
        if not key:
            raise ValueError("the key in the unit's credential is empty")
        leave(os.path.join(os.environ["RUNTIME_DIRECTORY"], ready.KEY_NAME), key)
        os.execve(argv[0], list(argv), {**os.environ, VARIABLE: key})
    except KeyError as error:
        sys.stderr.write(f"enplace: the engine is not started without its key: {error.args[0]} is not set\n")
    except (OSError, ValueError, IndexError) as error:
        sys.stderr.write(f"enplace: the engine is not started: {error}\n")
    return 2


def leave(path: str, key: str) -> None:
    """Write the key for the unit's own user alone. Raises OSError."""
    handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, key.encode("ascii"))
        os.fchmod(handle, 0o400)
    finally:
        os.close(handle)
    os.replace(f"{path}.new", path)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
