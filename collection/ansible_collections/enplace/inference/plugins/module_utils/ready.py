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


def _ask(url: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    # No proxy: the server is on this host, and http_proxy in the environment must not send the question elsewhere.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout_s) as reply:
        text = reply.read(MAX_REPLY)
    return json.loads(text) if text else None


def answers(url: str, model: str, timeout_s: float) -> tuple[bool, str]:
    """Ask once: (True, what was generated) or (False, the reason). `timeout_s` bounds each of the three questions."""
    try:
        _ask(f"{url}/health", None, min(timeout_s, 10))
        served = [entry["id"] for entry in _ask(f"{url}/v1/models", None, min(timeout_s, 10))["data"]]
        if model not in served:
            return False, f"serves {served}, not {model}"
        question = {
            "model": model,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 1,
            "temperature": 0,
        }
        reply = _ask(f"{url}/v1/chat/completions", question, timeout_s)
        generated = reply["usage"]["completion_tokens"]
        if generated < 1:
            return False, "the completion has no token"
        _ask(f"{url}/health", None, min(timeout_s, 10))
    except urllib.error.HTTPError as error:
        return False, f"HTTP {error.code} from {error.url}: {error.read(300).decode(errors='replace')}"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return False, f"{type(error).__name__}: {error}"
    return True, f"{generated} token generated"


def alive(pid: int) -> bool:
    """Whether a process still runs. One that has ended and waits to be collected does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            state = stream.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def wait(url: str, model: str, deadline_s: float, *, pid: int = 0, pause_s: float = 1.0) -> tuple[bool, str]:
    """Ask until the server answers, `deadline_s` seconds have passed, or its process `pid` (0: not watched) has ended.

    The last reason is returned.
    """
    end = time.monotonic() + deadline_s
    while True:
        # systemd itself goes on waiting for this program when the main process ends before it.
        if pid and not alive(pid):
            return False, f"the server's process {pid} has ended"
        left = end - time.monotonic()
        ok, reason = answers(url, model, max(left, 1.0))
        if ok or time.monotonic() + pause_s >= end:
            return ok, reason
        time.sleep(pause_s)


def main() -> int:
    parser = argparse.ArgumentParser(description="wait until the server gives a real completion")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--deadline", type=float, required=True, help="seconds")
    options = parser.parse_args()
    start = time.monotonic()
    # Set by systemd for ExecStartPost.
    pid = int(os.environ.get("MAINPID", "0"))
    ok, reason = wait(options.url, options.model, options.deadline, pid=pid)
    sys.stdout.write(f"enplace: {'ready' if ok else 'not ready'} after {time.monotonic() - start:.1f} s: {reason}\n")
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
