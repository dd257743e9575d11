"""Masks: the indices of the packets that a loss takes, as text.

    3,7-9;12      in a configuration: packets 3, 7, 8 and 9 of one occurrence, 12 of the next

In a file, each index or range has a line of its own, and the line `next` begins another occurrence.
Indices count the packets that the loss meets from its begin on, from 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from testbed.shared import given_file

_VALID = "valid: an index such as 12, a range such as 15-18"
_ITEM = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def read(name: str, folders: Sequence[Path]) -> str:
    """The mask in a file, as a configuration has it.

    Raises:
        ValueError: there is no such file, or a line is wrong: the message names it.
    """
    occurrences: list[list[str]] = [[]]
    for place, line in given_file.lines(name, folders):
        if line == "next":
            occurrences.append([])
            continue
        try:
            _item(line)
        except ValueError as error:
            raise ValueError(f"{place}: {error}, or next") from None
        occurrences[-1].append(line)
    return ";".join(map(",".join, occurrences))


def parse(text: str) -> list[list[range]]:
    """The lost packets of each occurrence.

    Raises:
        ValueError: the text is no mask.
    """
    return [
        [_item(each.strip()) for each in one.split(",") if each.strip()] for one in text.split(";")
    ]


def _item(text: str) -> range:
    found = _ITEM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}; {_VALID}")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise ValueError(f"{text!r}: ends before it begins; {_VALID}")
    return range(first, last + 1)
