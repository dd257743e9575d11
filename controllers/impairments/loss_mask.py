"""Masks: the indices of the packets that a loss takes, as text.

    3,7-9;12      in a configuration: packets 3, 7, 8 and 9 of one occurrence, 12 of the next

In a file, each index or range has a line of its own, and the line `next` begins another occurrence.
Indices count the packets that the loss meets from its begin on, from 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from testbed.lab import loss_table
from testbed.shared import given_file

_VALID = "valid: an index such as 12, a range such as 15-18"
_ITEM = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def read(name: str, folders: Sequence[Path]) -> tuple[str, list[str]]:
    """The mask in a file, as a configuration has it, and where each occurrence begins.

    Raises:
        ValueError: there is no such file, or a line is wrong: the message names it.
    """
    occurrences: list[list[range]] = [[]]
    places: list[list[str]] = [[]]
    begins = [name]
    for place, line in given_file.lines(name, folders):
        if line == "next":
            occurrences.append([])
            places.append([])
            begins.append(place)
            continue
        try:
            occurrences[-1].append(_item(line))
        except ValueError as error:
            raise ValueError(f"{place}: {error}, or next") from None
        places[-1].append(place)
    if found := loss_table.too_much(occurrences):
        number, item, said = found
        raise ValueError(f"{places[number][item]}: {said}")
    return ";".join(",".join(map(_text, each)) for each in occurrences), begins


def parse(text: str) -> list[list[range]]:
    """The lost packets of each occurrence.

    Raises:
        ValueError: the text is no mask.
    """
    return [
        [_item(each.strip()) for each in one.split(",") if each.strip()] for one in text.split(";")
    ]


def _text(item: range) -> str:
    return f"{item[0]}-{item[-1]}" if len(item) > 1 else f"{item[0]}"


def _item(text: str) -> range:
    found = _ITEM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}; {_VALID}")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise ValueError(f"{text!r}: ends before it begins; {_VALID}")
    return range(first, last + 1)
