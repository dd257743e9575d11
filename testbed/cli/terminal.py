"""Prints tables and sentences with whole words, in a pipe as well as on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_UNBOUNDED_COLUMNS = 10_000
_MOST_ROWS = 100  # of longer tables the first and the last rows are shown
_FIRST_ROWS, _LAST_ROWS = 12, 4


def console(**options: Any) -> Console:
    """A console as wide as the terminal; without a terminal, lines have any length."""
    screen = Console(**options)
    if screen.is_terminal:
        return screen
    return Console(width=_UNBOUNDED_COLUMNS, **options)


def show_table(console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table without lines; a word that has no room goes on in the next line, uncut."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    rows = list(rows)
    if (hidden := len(rows) - _FIRST_ROWS - _LAST_ROWS) > _MOST_ROWS - _FIRST_ROWS - _LAST_ROWS:
        rows[_FIRST_ROWS:-_LAST_ROWS] = [("...", f"{hidden:,} more")]
    for row in rows:
        table.add_row(*row)
    console.print(table)


def say(console: Console, text: str) -> None:
    """Print a text as it is: one line however long, and brackets in it are no markup.

    A terminal's control characters, which results of others may hold, become a question mark.
    """
    text = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
