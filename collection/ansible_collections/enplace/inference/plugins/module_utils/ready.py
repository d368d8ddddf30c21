# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Wait until an OpenAI-compatible server really answers: a completion with a token in it, not an open port.

Runs as ExecStartPost of a recipe's unit, and wherever else readiness is asked. Standard library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any

MAX_REPLY = 1_000_000
MAX_SHOWN = 300
#: Name of the file with the key, in the folder of the unit's credentials and in that of what belongs to one run of it.
KEY_NAME = "api-key"


def read_key(path: str) -> str:
    """The key in a file. Raises OSError, and ValueError for what is no text."""
    with open(path, encoding="ascii") as stream:
        return stream.read(4097).strip()


def find_key(key_file: str = "") -> str:
    """The server's key: from this file, or from where launch.py left it for this run; empty where there is neither.

    Raises what read_key does.
    """
    left = os.path.join(os.environ.get("RUNTIME_DIRECTORY", "/nowhere"), KEY_NAME)
    if key_file or os.path.exists(left):
        return read_key(key_file or left)
    return ""


class StayHere(urllib.request.HTTPRedirectHandler):
    """A server that sends us elsewhere is no server of ours."""

    def redirect_request(self, *_asked: Any) -> None:
        return None


def fetch(url: str, body: dict[str, Any] | None, timeout_s: float, key: str = "") -> bytes:
    """What a server replies: to a body by POST, else by GET. Raises urllib's and http.client's errors."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    if key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    # No proxy: the server is on this host, and http_proxy in the environment must not send the question elsewhere.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), StayHere)
    with opener.open(request, timeout=timeout_s) as reply:
        return bytes(reply.read(MAX_REPLY))


def complete(url: str, model: str, timeout_s: float, key: str = "") -> int:
    """Ask for one token; how many were generated. Raises what `fetch` does, ValueError, KeyError, TypeError."""
    question = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
        "temperature": 0,
    }
    reply = json.loads(fetch(f"{url}/v1/chat/completions", question, timeout_s, key))
    return int(reply["usage"]["completion_tokens"])


def reason_of(error: Exception, key: str = "") -> str:
    """An error of `fetch` or `complete` for people, without the key."""
    if isinstance(error, urllib.error.HTTPError):
        text = f"HTTP {error.code} from {error.url}: {_body(error)}"
    else:
        text = f"{type(error).__name__}: {error}"
    # Before it is cut: the start of a key is a secret as well.
    return (text.replace(key, "***") if key else text)[:MAX_SHOWN]


def _body(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(MAX_REPLY).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""


def answers(url: str, model: str, timeout_s: float, key: str = "") -> tuple[bool, str]:
    """Ask once: (True, what was generated) or (False, the reason). `timeout_s` bounds each of the three questions."""
    try:
        fetch(f"{url}/health", None, min(timeout_s, 10), key)
        listed = json.loads(fetch(f"{url}/v1/models", None, min(timeout_s, 10), key))
        served = [entry["id"] for entry in listed["data"]]
        if model not in served:
            return False, f"serves {served}, not {model}"
        generated = complete(url, model, timeout_s, key)
        if generated < 1:
            return False, "the completion has no token"
        fetch(f"{url}/health", None, min(timeout_s, 10), key)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return False, reason_of(error, key)
    return True, f"{generated} token generated"


def alive(pid: int) -> bool:
    """Whether a process still runs. One that has ended and waits to be collected does not, as far as that can be seen.

    In a sandbox with users of its own /proc hides the other processes of the same unit; signals still reach them.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    # Under ProtectProc=invisible with PrivateUsers=yes the folder of the server's process is hidden from this one.
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            state = stream.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state not in ("Z", "X")


def wait(
    url: str, model: str, deadline_s: float, *, pid: int = 0, pause_s: float = 1.0, key: str = ""
) -> tuple[bool, str]:
    """Ask until the server answers, `deadline_s` seconds have passed, or its process `pid` (0: not watched) has ended.

    The last reason is returned.
    """
    end = time.monotonic() + deadline_s
    while True:
        # systemd itself goes on waiting for this program when the main process ends before it.
        if pid and not alive(pid):
            return False, f"the server's process {pid} has ended"
        left = end - time.monotonic()
        ok, reason = answers(url, model, max(left, 1.0), key)
        if ok or time.monotonic() + pause_s >= end:
            return ok, reason
        time.sleep(pause_s)


def main() -> int:
    parser = argparse.ArgumentParser(description="wait until the server gives a real completion")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--deadline", type=float, required=True, help="seconds")
    parser.add_argument(
        "--key-file", default="", help="holds the server's key; default: what launch.py left, if anything"
    )
    options = parser.parse_args()
    start = time.monotonic()
    # Set by systemd for ExecStartPost.
    pid = int(os.environ.get("MAINPID", "0"))
    key = find_key(options.key_file)
    ok, reason = wait(options.url, options.model, options.deadline, pid=pid, key=key)
    sys.stdout.write(f"enplace: {'ready' if ok else 'not ready'} after {time.monotonic() - start:.1f} s: {reason}\n")
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
