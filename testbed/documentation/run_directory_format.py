"""What the files of a folder of results hold: the dictionary, as tables."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed.documentation import markup
from testbed.shared import docstrings

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
        told = docstrings.arguments(pkgutil.resolve_name(meaning["from"]))
        for each, text in {**told, **meaning.get("keys", {})}.items():
            if each not in meaning.get("leave_out", ()):
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
    from analysis.data.program_metrics import KINDS

    rows = [
        (
            markup.code(each.name),
            _OWN_UNITS.get(each.unit, each.unit),
            markup.sentence(each.meaning),
        )
        for each in METRICS
    ]
    for (section, quantity), (unit, _, meaning) in KINDS.items():
        name = markup.code(f"{section}.NAME.{quantity}")
        rows.append((name, _OWN_UNITS.get(unit, unit), markup.sentence(meaning)))
    return markup.table(("metric", "unit", "meaning"), rows)


def _unit(key: str) -> str:
    return next((unit for suffix, unit in _SUFFIX_UNITS.items() if key.endswith(suffix)), "")
