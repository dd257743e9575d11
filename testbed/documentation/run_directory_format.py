"""What the files of a folder of results hold: the dictionary, as tables."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from analysis.data.columns import type_name, unit_of
from analysis.data.frame_columns import FRAMES, LABELS
from testbed.documentation import markup
from testbed.shared import docstrings

_FILE = Path(__file__).with_suffix(".yaml")
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
        told = _columns(meaning["frame"]) if "frame" in meaning else {}
        if "from" in meaning:
            told = docstrings.arguments(pkgutil.resolve_name(meaning["from"])) | told
        for each, text in {**told, **meaning.get("keys", {})}.items():
            if each not in meaning.get("leave_out", ()):
                found.setdefault(f"{key}.{each}" if key else each, text)
    return found


def _columns(frame: str) -> dict[str, str]:
    """The columns of a frame as key paths, with their meanings."""
    return {
        each.name + "[]" * isinstance(each.kind, pl.List): each.meaning
        for each in FRAMES[frame].columns
    }


def frames() -> str:
    """A heading and a table for each frame that results have."""
    labels = [(markup.code(each.name), "", markup.sentence(each.meaning)) for each in LABELS]
    parts = ["## All frames\n\n" + markup.table(("column", "unit", "meaning"), labels)]
    for name, frame in FRAMES.items():
        rows = [
            (markup.code(each.name), type_name(each.kind), each.unit, markup.sentence(each.meaning))
            for each in frame.columns
        ]
        parts.append(
            f"## {name}\n\nOne row for each {frame.row}. Source: `{frame.source}`.\n\n"
            + markup.table(("column", "type", "unit", "meaning"), rows)
        )
    return "\n".join(parts)


def reference(section: str) -> str:
    """A heading and a table for each file of a section."""
    parts = []
    for name, keys in sections()[section].items():
        rows = [
            (markup.code(key), unit_of(key), markup.sentence(text)) for key, text in keys.items()
        ]
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
