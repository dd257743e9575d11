"""Splits JSON objects that are much alike into what they share and what is each one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]


def common(documents: Sequence[Mapping[str, Any]]) -> Document:
    """What all of some objects have, at any depth; lists are shared whole or not at all."""
    first, *others = documents or [{}]
    found: Document = {}
    for name, value in first.items():
        values = [each[name] for each in others if name in each]
        if len(values) < len(others):
            continue
        if all(isinstance(each, dict) for each in (value, *values)):
            found[name] = common([value, *values])
        elif all(_same(each, value) for each in values):
            found[name] = value
    return found


def own(document: Mapping[str, Any], shared: Mapping[str, Any]) -> Document:
    """What an object has beyond `shared`, which is the `common` part of some with it."""
    found: Document = {}
    for name, value in document.items():
        if name not in shared:
            found[name] = value
        elif isinstance(value, dict) and (inner := own(value, shared[name])):
            found[name] = inner
    return found


def joined(shared: Mapping[str, Any], own_part: Mapping[str, Any]) -> Document:
    """The object of which `own_part` is its own."""
    found = dict(shared)
    for name, value in own_part.items():
        below = shared.get(name)
        both = isinstance(below, dict) and isinstance(value, dict)
        found[name] = joined(below, value) if both and below is not None else value
    return found


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON, where 1, 1.0 and true are three."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
