"""`./lab bench transport` and `peer`: measures cases, prints them and writes records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.bench import cases, measurement, records
from testbed.bench.cases import Selection
from testbed.bench.peer import Peer
from testbed.bench.records import INTERVALS, NARROW, TIME_S
from testbed.experiment import estimates
from testbed.shared.yaml_input import InputError

SCHEMA = 2  # 1: without intervals and processor time by bytes on the wire
_COLUMNS = (
    *("case", "completion", "interval", "n", "/ bound", "goodput"),
    *("CPU s/GB send", "receive", "on the wire: send", "receive", "control", "note"),
)
Record = Mapping[str, Any]


def run(selection: Selection, *, json_file: Path | None, peer: Peer | None = None) -> bool:
    expected = selection.cases()
    if not expected:
        every = replace(selection, pattern="*").cases()
        such = ", ".join({case.name.split("/")[0]: case.name for case in every}.values())
        raise InputError(f"--cases {selection.pattern}: matches none; valid: such as {such}")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    case_s = 1 if selection.quick else TIME_S + 2  # and a lab for most
    about = estimates.in_words(len(expected) * case_s)
    console.print(f"{len(expected)} cases, one after another, about {about}")
    facts = records.machine()
    measured: list[dict[str, Any]] = []
    console.print(" | ".join(_COLUMNS))
    for number, record in enumerate(measurement.measure(selection, peer), start=1):
        measured.append(record)
        console.print(f"{number}/{len(expected)} {' | '.join(cells(record))}")
    if json_file is not None:
        records.write(json_file, measured, facts, schema=SCHEMA)
        console.print(f"records: {json_file}")
    must = {cases.OURS, selection.other}
    return all(record["status"] == "ok" for record in measured if record["peer"] in must)


def cells(record: Record) -> list[str]:
    if record["status"] != "ok":
        late = record["status"] == "timeout"
        note = f"not done in {record['limit_s']:g} s" if late else record["status"]
        return [record["case"], *["-"] * (len(_COLUMNS) - 2), note]
    notes = []
    if not record["narrow"]:
        notes.append(f"wide: an interval beyond {NARROW:.0%}")
    if record["jain"] is not None:
        notes += [f"link {record['link_busy']:.1%} busy", f"Jain {record['jain']:.3f}"]
    ends_s = record["completion_low_s"], record["completion_high_s"]
    spread = "-" if None in ends_s else "..".join(map(_time, ends_s))
    return [
        *(record["case"], _time(record["completion_s"]), spread, str(record["n"])),
        _number(record["ratio_to_bound"], ".2f"),
        f"{record['goodput_bps'] / 1e6:.4g} Mbit/s",
        *(_number(record[key], ".2f") for key in INTERVALS[1:]),
        *(_number(record["control_share"], ".2%"), ", ".join(notes)),
    ]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
