"""Whether a run directory keeps to the dictionary of its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from testbed.documentation import reference
from testbed.shared import own_code

KeyPath = tuple[str, ...]


def undescribed(run: Path) -> list[str]:
    """The files and keys of a run directory that the dictionary does not have."""
    known = reference.sections()
    found: set[str] = set()
    for path in sorted(run.glob("*.json")):
        found |= _unknown(path.name, [json.loads(path.read_text())], known["documents"])
    for path in sorted((run / "events").glob("*.jsonl")):
        name = re.sub(r"^(transfers|training|congestion|endpoint)-.*", r"\1-HOST.jsonl", path.name)
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            record.pop("schema", None)  # each record's first key
            if own_code.is_own(str(record.get("kind", ""))):
                record.pop("details")  # a user's own impairment says what it likes
        found |= _unknown(name, records, known["events"])
    for path in sorted((run / "samples").glob("*")):
        if path.suffix == ".parquet":
            columns = dict.fromkeys(pl.read_parquet_schema(path))
            found |= _unknown(path.name, [columns], known["samples"])
        elif path.suffix == ".json":
            found |= _unknown(path.name, [json.loads(path.read_text())], known["samples"])
    return sorted(found)


def _unknown(name: str, documents: list[Any], known: Mapping[str, Mapping[str, str]]) -> set[str]:
    if name not in known:
        return {name}
    return {
        f"{name}: {key}" for document in documents for key in unknown_keys(document, known[name])
    }


def unknown_keys(document: Any, keys: Mapping[str, str]) -> Iterator[str]:
    """The key paths of a document that no key of the dictionary matches."""
    patterns = [tuple(key.replace("[]", ".[]").split(".")) for key in keys]
    for path in _paths(document):
        if not any(_matches(path, pattern) for pattern in patterns):
            yield ".".join(path)


def _paths(value: Any, at: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of everything in a document that is no mapping and no list, or is an empty one."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _paths(each, (*at, str(key)))
    elif isinstance(value, list) and value:
        for each in value:
            yield from _paths(each, (*at, "[]"))
    else:
        yield at


def _matches(path: KeyPath, pattern: KeyPath) -> bool:
    """Whether a path fits; an empty container is a path that ends above where the pattern does."""
    for position, part in enumerate(path):
        wanted = pattern[position] if position < len(pattern) else None
        if wanted == "**":
            return True
        if wanted != part and wanted != "*":
            return False
    return True
