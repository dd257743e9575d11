"""Reads docstrings: their first sentence, and what their `Args:` or `Attributes:` say of a name."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ ]{4}.*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def first_paragraph(of: object) -> str:
    """The first paragraph of an object's own docstring, on one line; empty where it has none."""
    text = inspect.cleandoc(getattr(of, "__doc__", None) or "")
    return " ".join(text.partition("\n\n")[0].split())


def first_sentence(of: object) -> str:
    """The first sentence of an object's own docstring; empty where it has none."""
    return re.split(r"(?<=[.?!]) (?=[A-Z])", first_paragraph(of))[0]


def arguments(of: object) -> dict[str, str]:
    """What the docstrings of a function, or of a class, say of each argument or attribute."""
    found: dict[str, str] = {}
    for each in reversed(of.__mro__) if isinstance(of, type) else [of]:
        found |= _told(each) | _told(vars(each).get("__init__") if isinstance(each, type) else None)
    return found


def _told(of: object) -> dict[str, str]:
    text = inspect.cleandoc(getattr(of, "__doc__", None) or "") + "\n"
    return {
        name: " ".join(meaning.split())
        for section in _SECTION.findall(text)
        for names, meaning in _ENTRY.findall(section)
        for name in names.split(", ")
    }
