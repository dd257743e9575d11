"""Tables of the experimental setup: arms or programs, impairments, links, machines."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any

import polars as pl

from analysis import formatting
from analysis.data import programs
from analysis.data.evidence import section
from analysis.data.load import Results
from analysis.tables.rendering import Cell, Shown, Table, missing, row, table_of


def arm_settings_table(results: Results) -> Table:
    configs: dict[str, Any] = {arm: {} for arm in results.arms} | {
        run.arm: run.config for run in reversed(results.ok_runs)
    }
    protocols = {arm: section(configs[arm], "protocol") for arm in results.arms}
    return table_of(
        f"{results.experiment}: the arms",
        {
            "Arm": str,
            "Congestion control": lambda arm: protocols[arm].get("congestion_control"),
            "Read back": lambda arm: ", ".join(results.congestion_controls(arm)),
            "Transport": lambda arm: _listed(protocols[arm], "name", "congestion_control"),
            "Filling of what is missing": lambda arm: _listed(section(configs[arm], "filling")),
        },
        results.arms,
        notes=[
            "Read back: what the kernel says of each TCP socket after the last round; of our own "
            "transport, what its senders were built with. A run in which it is not what the arm "
            "asks for has failed."
        ],
        numeric=False,
    )


def _listed(settings: dict[str, Any], *left_out: str) -> str:
    return "; ".join(
        f"{name}: {value}"
        for name, value in settings.items()
        if value is not None and name not in left_out
    )


_MS = formatting.Unit("ms", 1e3)


def impairment_table(results: Results) -> Table:
    frame = results.frame("impairments")
    counted = pl.col("dropped").count()
    ends = (
        frame.filter(action="end")
        .group_by("name", "arm")
        .agg(pl.when(counted > 0).then(pl.col("dropped", "frames_sent").sum() / counted))
    )
    late_s = pl.col("sent_s", "acknowledged_s") - pl.col("planned_s")
    begins = (
        frame.filter(action="begin")
        .with_columns(pl.coalesce("target", "host"))
        .group_by("name", "kind", "target", "arm", maintain_order=True)
        .agg(pl.len(), late_s.median(), late_s.max().name.suffix(".max"))
        .join(ends, on=["name", "arm"], how="left")
        .sort("name", pl.col("arm").cast(pl.Enum(results.arms)))
    )

    rows = []
    for begin in begins.iter_rows(named=True):
        cells: list[Shown] = [
            Cell(text=begin["name"], detail=f"{begin['kind']} at {begin['target']}"),
            begin["arm"],
            str(begin["len"]),
        ]
        for event in ("sent_s", "acknowledged_s"):
            late = (begin[event], begin[f"{event}.max"])
            cells.append(" / ".join(formatting.number(late_s, _MS) for late_s in late))
        for name in ("dropped", "frames_sent"):
            cells.append(formatting.number(begin[name]) if begin[name] else "")
        rows.append(row(*cells))
    notes = [
        "Planned: its leg began, or its instant came. Sent: the controller acted. In force: the "
        "switch, or the host's filter, confirmed it."
    ]
    if skipped := frame.filter(action="skipped").height:
        notes.append(
            f"{skipped} planned times were skipped: the leg or the run had ended, or the same "
            "impairment was still in force."
        )
    return Table(
        title=f"{results.experiment}: impairments as they happened",
        columns=[
            *("Impairment", "Arm", "Times"),
            "Sent after planned: median / maximum (ms)",
            "In force after planned: median / maximum (ms)",
            *("Packets dropped per time", "Frames sent per time"),
        ],
        rows=rows,
        notes=notes,
        records=frame.drop("run_key").to_dicts(),
    )


def link_table(results: Results) -> Table:
    links = [link for run in results.ok_runs for link in run.calibration.get("links") or []]
    paths = dict.fromkeys((link["from"], link["to"]) for link in links)
    rows = []
    for path in paths:
        of_path = [link for link in links if (link["from"], link["to"]) == path]
        cells = [_spread([link.get(key) for link in of_path], unit) for key, unit in _CALIBRATED]
        rows.append(row(" to ".join(path), *cells, str(len(of_path))))
    names = ("Configured rate", "Measured rate", "Configured round trip", "Round-trip time")
    return Table(
        title=f"{results.experiment}: paths as calibrated before each run",
        columns=["Path", *names, "Runs"],
        rows=rows,
        notes=["Each number is a mean over runs, with the smallest and the largest."],
        records=links,
    )


_CALIBRATED = (
    *(("configured_rate_bps", "bps"), ("rate_bps", "bps")),
    *(("configured_rtt_s", "s"), ("rtt_s", "s")),
)


def _spread(values: list[Any], quantity: str) -> Cell:
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if not numbers:
        return missing()
    unit = formatting.unit_for(quantity, numbers)
    low, high = (formatting.number(end, unit) for end in (min(numbers), max(numbers)))
    return Cell(
        text=f"{formatting.number(sum(numbers) / len(numbers), unit)} {unit.symbol}",
        detail="" if low == high else f"{low}{formatting.TO}{high}",
    )


def machine_table(results: Results) -> Table:
    facts: dict[str, dict[str, None]] = {}
    for run in results.ok_runs:
        for path, value in _flat(run.manifest):
            facts.setdefault(path, {})[value] = None

    def values(path: str) -> Cell:
        first, more = list(facts[path])[:3], len(facts[path]) > 3
        detail = f"{len(facts[path])} different values" if len(facts[path]) > 1 else ""
        return Cell(text="; ".join(first) + ", ..." * more, detail=detail)

    title = f"{results.experiment}: machine, versions and settings"
    return table_of(title, {"Fact": str, "Value": values}, facts, numeric=False)


def _flat(document: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        elif isinstance(value, list):
            yield f"{path}{key}", ", ".join(map(formatting.short, value)) or "none"
        elif key != "schema":
            yield f"{path}{key}", formatting.short(value)


def program_table(results: Results) -> Table:
    records = [
        {"run_key": run.key, "arm": run.arm, "seed": run.seed, **program}
        | {"run": shlex.join(map(str, program.get("run") or []))}
        for run in results.runs
        for program in programs.workload(run.directory)
    ]
    by_program: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: results.arms.index(record["arm"])):
        by_program.setdefault((record["arm"], str(record.get("name"))), []).append(record)
    rows = []
    for (arm, name), runs in by_program.items():
        command, *others = dict.fromkeys(run["run"] for run in runs)
        statuses = Counter(str(run.get("exit_status")) for run in runs)
        listed = [f"{status} ({count} x)" for status, count in sorted(statuses.items())]
        times_s = sorted(
            run["ended_s"] - run["began_s"]
            for run in runs
            if run.get("began_s") and run.get("ended_s")
        )
        ends_s = dict.fromkeys(map(formatting.number, times_s[:1] + times_s[-1:]))
        cells = (
            *(arm, name, str(runs[0].get("host"))),
            command + (f" (and {len(others)} more)" if others else ""),
            ", ".join(["service"] * bool(runs[0].get("service")) + listed),
            formatting.TO.join(ends_s),  # the shortest and the longest
            runs[0].get("congestion_control"),
            ", ".join(results.congestion_controls(arm)),
        )
        rows.append(row(*cells))
    return Table(
        title=f"{results.experiment}: the programs",
        columns=[
            *("Arm", "Program", "Host", "Command", "Exit status", "Duration (s)"),
            *("Congestion control", "Seen in the arm"),
        ],
        rows=rows,
        notes=[
            "Services are ended when all others have ended: their status is not judged. Seen: what "
            "the kernel says of the connections between hosts that were sampled."
        ],
        records=records,
        numeric=False,
    )
