# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The journal of one run of a unit, line by line."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator

from ansible_collections.enplace.inference.plugins.module_utils.verify.server import CheckFailed, Deadline

# A longer line is searched up to here: a pattern that tries many ways must come to an end.
MAX_LINE = 8192
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def lines(invocation: str, deadline: Deadline) -> Iterator[str]:
    """The lines that the processes of one run of a unit wrote, oldest first, without colours.

    `invocation` is systemd's identity of that run. Lines of an earlier run, and of systemd itself, are not among them.
    Raises CheckFailed at the deadline, or where the journal cannot be read.
    """
    program = shutil.which("journalctl")
    if program is None:
        raise CheckFailed("the journal cannot be read", "a program journalctl", "none in PATH")
    argv = [program, "--quiet", "--no-pager", "--all", "--output=cat", f"_SYSTEMD_INVOCATION_ID={invocation}"]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        if process.stdout is None or process.stderr is None:
            raise AssertionError("both are pipes")
        # A read cannot be given an end from inside.
        watch = threading.Timer(deadline.left(), process.kill)
        watch.daemon = True
        watch.start()
        try:
            for line in process.stdout:
                yield _COLOURS.sub("", line.rstrip("\n")[:MAX_LINE])
            deadline.left()
            errors = process.stderr.read()
            if process.wait() != 0:
                todo = "the checks must run as root, or as a user of the group systemd-journal"
                found = f"{errors.strip()} (return code {process.returncode})"
                raise CheckFailed("the journal cannot be read", "return code 0 of journalctl", found, todo)
        finally:
            watch.cancel()
            process.kill()
