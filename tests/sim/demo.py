# SPDX-License-Identifier: Apache-2.0
"""The demo: from nothing to a served, checked model on a test host of this machine, through the real site.yml.

Run by `make demo`. Exits non-zero when any step fails, and prints only what was measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOST = "demo1"
REPORT = ROOT / "reports" / HOST / "enplace-smoke-cpu.json"


def step(text: str) -> None:
    print(f"\n== {text}", flush=True)


def curl_line(url: str, model: str) -> str:
    """A question to the served model that works as printed, in any POSIX shell."""
    body = json.dumps(
        {
            "model": model,
            "temperature": 0,
            "messages": [{"role": "user", "content": "What is the capital of France? Reply with one word."}],
        }
    )
    return f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


def lab(*arguments: str) -> str:
    """The test hosts' own command, which asks sudo where it must. Ends the demo with its exit status and message."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.lab", *arguments], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    return done.stdout.strip()


def main() -> int:
    begin = time.monotonic()
    step("a simulated model hub and a bare test host with systemd and sshd")
    lab("hub")
    lab("up", HOST)
    lab_s = time.monotonic() - begin

    step(f"ansible-playbook site.yml -l {HOST}")
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [str(playbook), "site.yml", "-l", HOST],
        cwd=ROOT,
        check=False,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
    )
    if done.returncode != 0:
        print(f"\nThe run failed (exit status {done.returncode}); the messages above say why.", file=sys.stderr)
        return done.returncode
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    total_s = time.monotonic() - begin

    step("served")
    checks = report["checks"]
    passed = sum(check["status"] == "pass" for check in checks)
    url = f"http://{lab('address', HOST)}:8000"
    print(f"checks     {passed} of {len(checks)} passed: {', '.join(check['name'] for check in checks)}")
    print(f"report     {REPORT.relative_to(ROOT)}")
    print(f"time       {total_s:.0f} s in all, {lab_s:.0f} s of it for the test host")
    print(f"address    {url}")
    print(f"host       ssh -F .lab/ssh_config {HOST}")
    print(f"\n{curl_line(url, report['subject']['model'])}\n", flush=True)
    return 0 if passed == len(checks) and checks else 1


if __name__ == "__main__":
    sys.exit(main())
