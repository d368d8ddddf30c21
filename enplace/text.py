# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""Pages for people: headings, prose, tables. With colours on a terminal, plain text elsewhere.

Every text is taken as it is: no markup, nothing guessed from it, and nothing that a terminal would obey.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import common

# Columns where no terminal says how many there are.
WIDTH = 120


class Page:
    """A page that is written part by part and printed once. A part without content leaves no heading behind."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self.console = Console(
            file=sys.stdout, markup=False, highlight=False, emoji=False, width=None if self.terminal else WIDTH
        )
        self.console.begin_capture()

    def print(self) -> None:
        """To standard output, without the blanks that fill up the lines of a table."""
        written = self.console.end_capture()
        sys.stdout.write("\n".join(line.rstrip() for line in written.split("\n")).lstrip("\n"))

    def title(self, text: str) -> None:
        self.console.print()
        self.console.print(Text(common.clean(text), "bold"))

    def heading(self, text: str) -> None:
        self.console.print()
        self.console.print(Text(common.clean(text), "bold cyan"))

    def paragraph(self, text: str, style: str = "") -> None:
        self.console.print(Text(common.clean(text.strip()), style))

    def prose(self, heading: str, text: str | None) -> None:
        """Paragraphs under a heading."""
        if text:
            self.heading(heading)
            self.paragraph(text)

    def bullets(self, heading: str, texts: Iterable[str]) -> None:
        """A list of sentences."""
        self.rows(heading, [("-", text.strip()) for text in texts])

    def rows(self, heading: str, rows: Sequence[tuple[str, str]]) -> None:
        """Names and what belongs to them."""
        if not rows:
            return
        self.heading(heading)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style="bold")
        grid.add_column(overflow="fold")
        for name, text in rows:
            grid.add_row(Text(common.clean(name)), Text(common.clean(text)))
        self.console.print(grid)

    def lines(self, heading: str, lines: Sequence[str]) -> None:
        """Text that is copied: never broken into other lines."""
        if not lines:
            return
        self.heading(heading)
        for line in lines:
            self.console.print(Text(common.clean(line)), soft_wrap=True)

    def table(
        self,
        heading: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        styles: Mapping[str, str] | None = None,
    ) -> None:
        """A table; a column that is empty in every row is left out. styles: of cells, by their whole text."""
        kept = [index for index in range(len(columns)) if any(row[index] for row in rows)]
        if not kept:
            return
        if heading:
            self.heading(heading)
        lines = box.SIMPLE_HEAD if self.terminal else box.ASCII2
        table = Table(box=lines, pad_edge=False, header_style="bold")
        for index in kept:
            table.add_column(Text(columns[index]), overflow="fold")
        for row in rows:
            table.add_row(*(Text(common.clean(row[index]), (styles or {}).get(row[index], "")) for index in kept))
        self.console.print(table)
