# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Start the engine with the key of its interface: from the unit's credential into the engine's own variable.

Before the engine's argv in ExecStart, only where there is a key. Runs from the release folder, beside ready.py, and
turns into the engine: no process is left between systemd and it. Standard library only.
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
        key = ready.find_key()
        if not key:
            sys.stderr.write("enplace: the unit has no credential with a key; the server is not started without it\n")
            return 2
        os.execve(argv[0], list(argv), {**os.environ, VARIABLE: key})
    except (OSError, ValueError, IndexError) as error:
        sys.stderr.write(f"enplace: the engine cannot be started: {error}\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
