"""Compares run directories with the dictionary of their files."""

import itertools
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
    described = reference.sections()
    undefined: set[str] = set()
    for path in sorted(run.glob("*.json")):
        undefined |= _unknown(path.name, [json.loads(path.read_text())], described["documents"])
    for path in sorted((run / "events").glob("*.jsonl")):
        name = re.sub(r"^(transfers|training|congestion|endpoint)-.*", r"\1-HOST.jsonl", path.name)
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            record.pop("schema", None)  # each record's first key
            if own_code.is_own(str(record.get("kind", ""))):
                record.pop("details")  # a user's own impairment says what it likes
        undefined |= _unknown(name, records, described["events"])
    for path in sorted((run / "samples").glob("*")):
        if path.suffix == ".parquet":
            columns = dict.fromkeys(pl.read_parquet_schema(path))
            undefined |= _unknown(path.name, [columns], described["samples"])
        elif path.suffix == ".json":
            undefined |= _unknown(path.name, [json.loads(path.read_text())], described["samples"])
    return sorted(undefined)


def _unknown(
    name: str, documents: list[Any], described: Mapping[str, Mapping[str, str]]
) -> set[str]:
    if name not in described:
        return {name}
    return {
        f"{name}: {key}"
        for document in documents
        for key in unknown_keys(document, described[name])
    }


def unknown_keys(document: Any, keys: Mapping[str, str]) -> Iterator[str]:
    patterns = [tuple(key.replace("[]", ".[]").split(".")) for key in keys]
    for path in _paths(document):
        if not any(_matches(path, pattern) for pattern in patterns):
            yield ".".join(path)


def _paths(value: Any, at: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of everything in a document that is no mapping and no list, or is an empty one."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _paths(inner, (*at, str(key)))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _paths(inner, (*at, "[]"))
    else:
        yield at


def _matches(path: KeyPath, pattern: KeyPath) -> bool:
    """Compare a path with a pattern, below which the path of an empty container ends."""
    for part, expected in itertools.zip_longest(path, pattern[: len(path)]):
        if expected == "**":
            return True
        if expected not in (part, "*"):
            return False
    return True
