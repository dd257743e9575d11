"""What the files of a folder of results hold: the dictionary, and whether a folder keeps to it."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed.documentation import markup
from testbed.shared import docstrings, own_code

Path_ = tuple[str, ...]
_FILE = Path(__file__).with_suffix(".yaml")
_SUFFIX_UNITS = {"_s": "s", "_bps": "bit/s", "_bytes": "bytes", "_hz": "1/s"}
_OWN_UNITS = {"count": "", "per_s": "1/s"}


@cache
def sections() -> dict[str, dict[str, dict[str, str]]]:
    """Section -> file -> key path -> meaning."""
    written = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {
        section: {name: _keys(entry["keys"]) for name, entry in files.items()}
        for section, files in written.items()
    }


def purpose(section: str, name: str) -> str:
    """What a file is, in a sentence."""
    written = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return str(written[section][name]["what"])


def _keys(written: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, meaning in written.items():
        if isinstance(meaning, str):
            found[key] = meaning
            continue
        module, _, name = meaning["from"].partition(":")
        told = docstrings.arguments(getattr(importlib.import_module(module), name))
        told = {
            each: text for each, text in told.items() if each not in meaning.get("leave_out", ())
        }
        for each, text in {**told, **meaning.get("keys", {})}.items():
            found.setdefault(f"{key}.{each}" if key else each, text)
    return found


def reference(section: str) -> str:
    """A heading and a table for each file of a section."""
    parts = []
    for name, keys in sections()[section].items():
        rows = [(markup.code(key), _unit(key), markup.sentence(text)) for key, text in keys.items()]
        parts.append(
            f"## {name}\n\n{purpose(section, name)}\n\n"
            + markup.table(("key", "unit", "meaning"), rows)
        )
    return "\n".join(parts)


def files() -> str:
    """The list of all files with what they are, and where they are described."""
    places = {"documents": "", "events": "events/", "samples": "samples/"}
    rows = [
        (markup.code(places[section] + name), purpose(section, name))
        for section in places
        for name in sections()[section]
    ]
    return markup.table(("file", "what it holds"), rows)


def metrics() -> str:
    """The metrics of `summary.json` with their units and meanings."""
    from analysis.data.metrics import METRICS

    rows = [
        (
            markup.code(each.name),
            _OWN_UNITS.get(each.unit, each.unit),
            markup.sentence(each.meaning),
        )
        for each in METRICS
    ]
    return markup.table(("metric", "unit", "meaning"), rows)


def _unit(key: str) -> str:
    return next((unit for suffix, unit in _SUFFIX_UNITS.items() if key.endswith(suffix)), "")


def undescribed(run: Path) -> list[str]:
    """The files and keys of a run directory that the dictionary does not have."""
    known = sections()
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
            import polars as pl

            columns = dict.fromkeys(pl.read_parquet_schema(path))
            found |= _unknown(path.name, [columns], known["samples"])
        elif path.suffix == ".json":
            found |= _unknown(path.name, [json.loads(path.read_text())], known["samples"])
    return sorted(found)


def _unknown(name: str, documents: list[Any], known: Mapping[str, Mapping[str, str]]) -> set[str]:
    if name not in known:
        return {name}
    return {f"{name}: {key}" for each in documents for key in unknown_keys(each, known[name])}


def unknown_keys(document: Any, keys: Mapping[str, str]) -> Iterator[str]:
    """The key paths of a document that no key of the dictionary matches."""
    patterns = [_parts(key) for key in keys]
    for path in _paths(document):
        if not any(_matches(path, pattern) for pattern in patterns):
            yield ".".join(path)


def _parts(key: str) -> Path_:
    return tuple(key.replace("[]", ".[]").split("."))


def _paths(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """The paths of everything in a document that is no mapping and no list, or is an empty one."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _paths(each, (*at, str(key)))
    elif isinstance(value, list) and value:
        for each in value:
            yield from _paths(each, (*at, "[]"))
    else:
        yield at


def _matches(path: Path_, pattern: Path_) -> bool:
    """Whether a path fits; an empty container is a path that ends above where the pattern does."""
    for position, part in enumerate(path):
        wanted = pattern[position] if position < len(pattern) else None
        if wanted == "**":
            return True
        if wanted != part and wanted != "*":
            return False
    return True
