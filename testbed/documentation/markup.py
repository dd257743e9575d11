"""Writes the few forms of Markdown that generated parts consist of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a cell's line breaks become spaces and its pipes are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def code(text: object) -> str:
    """Text in the type of code; empty text stays empty."""
    return f"`{text}`" if str(text) else ""


def sentence(text: str) -> str:
    """A text with a capital at its beginning and a full stop at its end."""
    text = " ".join(text.split())
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "?", "!", ":")) else ".")


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())
