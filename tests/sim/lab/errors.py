# SPDX-License-Identifier: Apache-2.0
"""The one error the test hosts raise."""

from __future__ import annotations


class LabError(Exception):
    """Something a person must know or change before test hosts can run.

    Args:
        what: one sentence: what could not be done.
        where: the file, command or setting it was found in.
        expected: what would have been right.
        found: what was there instead.
        todo: what to do about it.
    """

    def __init__(self, what: str, *, where: str = "", expected: str = "", found: str = "", todo: str = "") -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.todo = todo
        super().__init__(self.text())

    def text(self) -> str:
        """The message, one labelled line for each part that is known."""
        lines = [self.what]
        parts = (("where", self.where), ("expected", self.expected), ("found", self.found), ("to do", self.todo))
        lines += [f"  {label}: {value}" for label, value in parts if value]
        return "\n".join(lines)
