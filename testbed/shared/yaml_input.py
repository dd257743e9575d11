"""Reads YAML that a person wrote: a file, or a value of `--set` that replaces one in it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from testbed.shared import plain_yaml, units
from testbed.shared.input_error import InputError, shown

__all__ = [
    *("InputError", "SUFFIXES", "overlap", "override", "read", "replace", "value_of", "within"),
]

SUFFIXES = (".yaml", ".yml")
_MOST_BYTES = 1 << 20
# Their keys are key paths themselves.
_OF_KEY_PATHS = ("factors",)


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, values with a unit as plain numbers."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"larger than {_MOST_BYTES} bytes")
        document = plain_yaml.parse(path.read_text(encoding="utf-8-sig"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except OSError as error:
        words = "a loop of symbolic links" if error.errno == errno.ELOOP else error.strerror
        raise InputError(f"{path}: {words}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}: line {line}: not UTF-8 text") from None
    if document is None:
        raise InputError(f"{path}: empty; valid: a mapping of keys to values")
    if not isinstance(document, dict):
        raise InputError(f"{path}: must be a mapping of keys to values")
    converted: dict[str, Any] = units.converted(document)
    return converted


def override(document: dict[str, Any], text: str) -> str:
    """Apply one `key.path=value`, whose value is read as YAML; return the key."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"--set {text}: valid: KEY=VALUE, for example --set rounds=10")
    try:
        replace(document, key, value_of(key, value))
    except InputError as error:
        raise InputError(f"--set {text}: {error}") from None
    return key


def value_of(key: str, text: str) -> Any:
    """The value that a text on the command line gives a key."""
    try:
        return units.converted(plain_yaml.parse(text), key)
    except InputError as error:
        raise InputError(str(error).removeprefix("line 1: ")) from None


def replace(document: dict[str, Any], key: str, value: Any) -> None:
    """Replace what a dotted path names; numbers index lists. The schema checks the result."""
    *parents, last = _divided(document, key)
    place: Any = document
    for number, part in enumerate(parents):
        if isinstance(place, dict) and place.get(part) is None:
            place[part] = {}
        place = place[_index(place, part, key, parents[:number])]
    place[_index(place, last, key, parents)] = value


def within(key: str, other: str) -> bool:
    """Whether a key path is the other one or leads to a part of it."""
    return f"{key}.".startswith(f"{other}.")


def overlap(key: str, other: str) -> bool:
    """Whether one of two key paths is the other one or leads to a part of it."""
    return within(key, other) or within(other, key)


def _divided(document: dict[str, Any], key: str) -> list[str]:
    first, *others = key.split(".")
    if len(others) > plain_yaml.DEEPEST:
        raise InputError(f"{shown(key)}: {len(others)} dots; valid: up to {plain_yaml.DEEPEST}")
    if "" in others:
        raise InputError(f"{key}: a key is missing beside a dot; valid: such as topology.workers")
    if first in _OF_KEY_PATHS and len(others) > 1:
        known = document.get(first)
        if not isinstance(known, dict) or others[0] not in known:
            return [first, ".".join(others)]
    return [first, *others]


def _index(place: Any, part: str, key: str, above: list[str]) -> str | int:
    """The index of a part of a key path in what the parts above it lead to."""
    where = ".".join(above)
    if isinstance(place, dict):
        return part
    if not isinstance(place, list):
        raise InputError(f"{key}: {where} is {shown(place)}, which has no keys")
    if not part.isdecimal() or int(part) >= len(place):
        valid = "none, the list is empty"
        if place:
            valid = "0" if len(place) == 1 else f"0 to {len(place) - 1}"
        raise InputError(f"{key}: there is no entry {part!r} in {where}; valid: {valid}")
    return int(part)
