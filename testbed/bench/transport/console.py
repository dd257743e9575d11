"""Prints the benchmark of the transport, a line per case, and writes its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.bench import record_file
from testbed.bench.transport import cases, figure, measurement
from testbed.shared.yaml_input import InputError

_COLUMNS = (
    *("case", "completion", "min..max", "n", "/ bound", "goodput", "CPU s/GB send", "receive"),
    *("control", "note"),
)


def run(*, pattern: str, quick: bool, json_file: Path | None) -> bool:
    """Measure, print and write; return whether every case of ours finished.

    Raises InputError for a pattern without cases and for a file that cannot be written.
    """
    expected = cases.select(pattern, quick=quick)
    if not expected:
        kinds = sorted({case.name.split("/")[0] for case in cases.select(quick=quick)})
        raise InputError(f"--cases {pattern}: matches none; they begin with {', '.join(kinds)}")
    record_file.require_folder(json_file)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    facts = record_file.machine()
    records: list[dict[str, Any]] = []
    with console.status("") as status:

        def begins(name: str) -> None:
            status.update(f"{len(records) + 1}/{len(expected)}  {name}")

        for record in measurement.measure(pattern, quick=quick, begins=begins):
            records.append(record)
            if not console.is_terminal:
                console.print(f"{len(records)}/{len(expected)} {' '.join(_cells(record))}")
    if console.is_terminal:
        table = Table(*_COLUMNS, box=None)
        for record in records:
            table.add_row(*_cells(record))
        console.print(table)
    if json_file is not None:
        record_file.write(json_file, records, facts)
        console.print(f"records: {json_file}")
        picture = json_file.with_suffix(".png")
        if figure.draw(records, picture):
            console.print(f"figure: {picture}")
    return all(record["status"] == "ok" for record in records if record["peer"] == cases.OURS)


def _cells(record: dict[str, Any]) -> list[str]:
    if record["status"] != "ok":
        late = record["status"] == "timeout"
        note = f"not done in {record['limit_s']:g} s" if late else record["status"]
        return [record["case"], *["-"] * (len(_COLUMNS) - 2), note]
    notes = []
    if record["jain"] is not None:
        notes = [f"link {record['link_busy']:.1%} busy", f"Jain {record['jain']:.3f}"]
    return [
        record["case"],
        _time(record["completion_s"]),
        f"{_time(record['completion_min_s'])}..{_time(record['completion_max_s'])}",
        str(record["n"]),
        _number(record["ratio_to_bound"], ".2f"),
        f"{record['goodput_bps'] / 1e6:.4g} Mbit/s",
        _number(record["cpu_s_per_gb_sender"], ".2f"),
        _number(record["cpu_s_per_gb_receiver"], ".2f"),
        _number(record["control_share"], ".2%"),
        ", ".join(notes),
    ]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
