"""What the terminal shows keeps whole words, in a pipe as well as on a narrow screen."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

_UNBOUNDED_COLUMNS = 10_000


def console(**options: Any) -> Console:
    """A console as wide as the terminal; without a terminal, lines have any length."""
    found = Console(**options)
    if found.is_terminal:
        return found
    return Console(width=_UNBOUNDED_COLUMNS, **options)


class PlainTable(Table):
    """A table without lines; a word that has no room goes on in the next line, uncut."""

    def __init__(self, *headings: str, pad_edge: bool = False) -> None:
        super().__init__(box=None, pad_edge=pad_edge)
        for heading in headings:
            self.add_column(heading, overflow="fold")


def say(console: Console, text: str) -> None:
    """Print a text as it is: one line however long, and brackets in it are no markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
