# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of the command."""

from __future__ import annotations


def main() -> int:
    """Run one command; its exit status."""
    return 0
