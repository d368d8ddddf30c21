# SPDX-License-Identifier: Apache-2.0
"""Test hosts: real systemd, sshd and apt in containers, reached as any other host is, through ssh.

From the command line: ``python -m tests.sim.lab --help``. From Python: :class:`Lab`.
"""

from __future__ import annotations

from .errors import LabError
from .hosts import Host, Lab

__all__ = ["Host", "Lab", "LabError"]
