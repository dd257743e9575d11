"""Reads docstrings: their first sentence, and the entries of `Args:` and `Attributes:`."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ ]{4}.*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def first_paragraph(of: object) -> str:
    text = inspect.cleandoc(getattr(of, "__doc__", None) or "")
    return " ".join(text.partition("\n\n")[0].split())


def first_sentence(of: object) -> str:
    """Return the first sentence of an object's own docstring; empty where it has none."""
    return re.split(r"(?<=[.?!]) (?=[A-Z])", first_paragraph(of))[0]


def arguments(of: object) -> dict[str, str]:
    entries: dict[str, str] = {}
    for owner in reversed(of.__mro__) if isinstance(of, type) else [of]:
        entries |= _entries(owner)
        if isinstance(owner, type):
            entries |= _entries(vars(owner).get("__init__"))
    return entries


def _entries(of: object) -> dict[str, str]:
    text = inspect.cleandoc(getattr(of, "__doc__", None) or "") + "\n"
    return {
        name: " ".join(meaning.split())
        for section in _SECTION.findall(text)
        for names, meaning in _ENTRY.findall(section)
        for name in names.split(", ")
    }
