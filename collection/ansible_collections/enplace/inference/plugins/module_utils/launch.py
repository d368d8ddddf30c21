# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Start the engine with the key of its interface: from the unit's credential into the engine's own variable.

Before the engine's argv in ExecStart, only where there is a key. Runs from the release folder, beside ready.py, and
turns into the engine: no process is left between systemd and it. Those who ask the engine whether it is ready or alive
find the key in the folder of this run of the unit: systemd 252 shows credentials to ExecStart alone. Standard library
only.

The engine imports this file, too: it guards what lies below /v1 by itself, but not /invocations, which is the same.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

try:
    from ansible_collections.enplace.inference.plugins.module_utils import ready
except ImportError:
    import ready  # type: ignore[import-not-found, no-redef]

#: The engine takes its key from this variable as well as from a flag, and logs its flags.
VARIABLE = "VLLM_API_KEY"
#: What everybody may ask: they tell whether the server is well and how busy it is, and generate nothing.
OPEN = ("/health", "/metrics")
REFUSAL = b'{"error": {"message": "Unauthorized", "type": "unauthorized", "code": 401}}'

Scope = MutableMapping[str, Any]
Send = Callable[[Scope], Awaitable[None]]


class Guard:
    """An ASGI middleware of the engine: whatever is not OPEN wants the key. Raises KeyError where there is none.

    The argument `--middleware launch.Guard` puts it in front of the engine's own.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self._digest = _digest(os.environ[VARIABLE].encode("utf-8"))

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Pass a request on, or answer it with 401; a websocket is closed."""
        kind = scope["type"]
        # A browser asks by OPTIONS what it may ask, before it has a key to show.
        free = kind not in ("http", "websocket") or scope.get("method") == "OPTIONS"
        if free or scope["path"] in OPEN or self._has_key(scope["headers"]):
            await self.app(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(REFUSAL)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSAL})

    def _has_key(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        for name, value in headers:
            scheme, _space, key = value.partition(b" ")
            # Digests are of one length, and compared in the same time whatever was sent.
            if name.lower() == b"authorization" and scheme.lower() == b"bearer":
                return hmac.compare_digest(_digest(key), self._digest)
        return False


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def main(argv: Sequence[str]) -> int:
    """Become the program `argv`. Returns 2, which no restart follows, where that cannot be."""
    try:
        key = ready.read_key(os.path.join(os.environ["CREDENTIALS_DIRECTORY"], ready.KEY_NAME))
        if not key:
            raise ValueError("the key in the unit's credential is empty")
        leave(os.path.join(os.environ["RUNTIME_DIRECTORY"], ready.KEY_NAME), key)
        # Where the engine finds this file.
        path = os.pathsep.join(filter(None, (os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH"))))
        os.execve(argv[0], list(argv), {**os.environ, VARIABLE: key, "PYTHONPATH": path})
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
