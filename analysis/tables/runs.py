"""Tables about the runs themselves: their verdicts, the impairments, the links, the machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import polars as pl

from analysis.data.load import MISSING, Results, Run
from analysis.tables.model import Cell, Table
from analysis.words import formatting

_TONES = {"ok": "good", "failed": "bad", "invalid": "bad", MISSING: "quiet"}


def status_table(results: Results, link_prefix: str = "../") -> Table:
    """All runs with verdict, reason and gates; links lead from the report to their directories."""
    rows = [_status_row(run, results.experiment, link_prefix) for run in results.runs]
    rows += [_status_row(run, results.experiment, link_prefix) for run in results.others]
    notes = []
    if results.others:
        notes.append(
            f"The last {len(results.others)} are no part of the plan's count: earlier attempts, "
            "or runs that the plan does not name. They enter no number of this report."
        )
    return Table(
        title=f"{results.experiment}: all runs",
        columns=["Run", "Arm", "Seed", "Verdict", "Reason", "Wall time", "Gates"],
        rows=rows,
        notes=notes,
        numeric=False,
    )


def not_ok_table(results: Results, link_prefix: str = "../") -> Table:
    """The planned runs that enter no number, and why."""
    return Table(
        title=f"{results.experiment}: planned runs that are not ok",
        columns=["Run", "Arm", "Seed", "Verdict", "Reason", "Wall time", "Gates"],
        rows=[
            _status_row(run, results.experiment, link_prefix)
            for run in results.runs
            if run.verdict != "ok"
        ],
        numeric=False,
    )


def coverage_table(results: Results) -> Table:
    """How many of each arm's planned runs are ok at each point of the sweep."""
    cells: dict[str, dict[str, list[Run]]] = {}
    for run in sorted(results.runs, key=results.place):
        point = ", ".join(f"{name.split('.')[-1]} = {each}" for name, each in run.factors.items())
        cells.setdefault(point or "all", {}).setdefault(run.arm, []).append(run)
    return Table(
        title=f"{results.experiment}: ok runs of those planned",
        columns=["Point", *results.arms],
        rows=[
            [Cell(text=point), *(_coverage(of_arm.get(arm, [])) for arm in results.arms)]
            for point, of_arm in cells.items()
        ],
    )


def _coverage(runs: list[Run]) -> Cell:
    if not runs:
        return Cell(text="not planned", tone="quiet")
    ok = sum(run.verdict == "ok" for run in runs)
    others = [run.verdict for run in runs if run.verdict != "ok"]
    detail = ", ".join(f"{others.count(each)} {each}" for each in dict.fromkeys(others))
    return Cell(text=f"{ok} of {len(runs)}", detail=detail, tone="" if ok == len(runs) else "bad")


def _status_row(run: Run, experiment: str, link_prefix: str) -> list[Cell]:
    href = ""
    if run.directory is not None:
        href = f"{link_prefix}{quote(experiment)}/{quote(run.directory.name)}/"
    factors = ", ".join(f"{name} = {value}" for name, value in run.factors.items())
    wall = formatting.DASH if run.wall_s is None else f"{formatting.number(run.wall_s)} s"
    return [
        Cell(text=run.key, href=href, detail=", ".join(filter(None, (factors, run.note)))),
        Cell(text=run.arm),
        Cell(text=str(run.seed)),
        Cell(text=run.verdict, tone=_TONES.get(run.verdict, "")),
        Cell(text=run.reason or formatting.DASH),
        Cell(text=wall),
        _gates(run),
    ]


def _gates(run: Run) -> Cell:
    if not run.gates:
        return Cell(text=formatting.DASH)
    failed = [str(gate.get("name")) for gate in run.gates if gate.get("passed") is False]
    unknown = [str(gate.get("name")) for gate in run.gates if gate.get("passed") is None]
    passed = len(run.gates) - len(failed) - len(unknown)
    text = f"{passed} of {len(run.gates)} passed"
    values = [  # all values stand in the table of gates
        f"{gate.get('name')}: {_short(gate.get('value'))} (limit {_short(gate.get('limit'))})"
        for gate in run.gates
        if gate.get("passed") is not True
    ]
    return Cell(
        text="; ".join(
            [
                text,
                *(f"not passed: {name}" for name in failed),
                *(f"not checked: {name}" for name in unknown),
            ]
        ),
        detail="; ".join(values),
        tone="bad" if failed else "",
    )


def impairment_table(results: Results) -> Table:
    """Per arm and impairment: how often, how late, and what it dropped, over the ok runs."""
    frame = results.impairments
    ends = (
        frame.filter(pl.col("action") == "end")
        .group_by("name", "arm")
        .agg(pl.col("dropped", "frames_sent").sum(), pl.col("dropped").count().alias("counted"))
    )
    skipped = frame.filter(pl.col("action") == "skipped").height
    begins = (
        frame.filter(pl.col("action") == "begin")
        .with_columns(
            (pl.col("sent_s") - pl.col("planned_s")).alias("sent_late_s"),
            (pl.col("acknowledged_s") - pl.col("planned_s")).alias("acknowledged_late_s"),
        )
        .with_columns(pl.coalesce("target", "host"))
        .group_by("name", "kind", "target", "arm", maintain_order=True)
        .agg(
            pl.len().alias("times"),
            pl.col("sent_late_s").median().alias("sent_median"),
            pl.col("sent_late_s").max().alias("sent_max"),
            pl.col("acknowledged_late_s").median().alias("acknowledged_median"),
            pl.col("acknowledged_late_s").max().alias("acknowledged_max"),
        )
        .join(ends, on=["name", "arm"], how="left")
        .sort("name", pl.col("arm").cast(pl.Enum(results.arms)))
    )
    return Table(
        title=f"{results.experiment}: impairments as they happened",
        columns=[
            "Impairment",
            "Arm",
            "Times",
            "Sent after planned: median / maximum (ms)",
            "In force after planned: median / maximum (ms)",
            "Packets dropped per time",
            "Frames sent per time",
        ],
        rows=[_impairment_row(row) for row in begins.iter_rows(named=True)],
        notes=[
            "Planned: the leg began. Sent: the controller acted. In force: the switch, or the "
            "host's filter, had confirmed it.",
            *(
                [
                    f"{skipped} planned times were skipped: their leg, or the run, had ended "
                    "before, or the same impairment was still in force."
                ]
                if skipped
                else []
            ),
        ],
        records=frame.drop("run_key").to_dicts(),
    )


def _impairment_row(row: dict[str, Any]) -> list[Cell]:
    per_time = [
        None if not row["counted"] or row[name] is None else row[name] / row["counted"]
        for name in ("dropped", "frames_sent")
    ]
    return [
        Cell(text=str(row["name"]), detail=f"{row['kind']} at {row['target']}"),
        Cell(text=row["arm"]),
        Cell(text=str(row["times"])),
        Cell(text=_milliseconds(row["sent_median"], row["sent_max"])),
        Cell(text=_milliseconds(row["acknowledged_median"], row["acknowledged_max"])),
        *(Cell(text=formatting.number(value) if value else formatting.DASH) for value in per_time),
    ]


def _milliseconds(median: float | None, maximum: float | None) -> str:
    unit = formatting.Unit("ms", 1e3)
    return f"{formatting.number(median, unit)} / {formatting.number(maximum, unit)}"


def link_table(results: Results) -> Table:
    """Calibration of every path before training: the mean over runs, and the extremes."""
    links: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in results.ok_runs:
        for link in run.calibration.get("links") or []:
            if isinstance(link, dict):
                ends = (str(link.get("from")), str(link.get("to")))
                links.setdefault(ends, []).append(link)
    return Table(
        title=f"{results.experiment}: paths as calibrated before training",
        columns=[
            *("Path", "Configured rate", "Measured rate"),
            *("Configured round trip", "Round-trip time", "Runs"),
        ],
        rows=[
            [
                Cell(text=f"{begin} to {end}"),
                _spread([link.get("configured_rate_bps") for link in found], "bps"),
                _spread([link.get("rate_bps") for link in found], "bps"),
                _spread([link.get("configured_rtt_s") for link in found], "s"),
                _spread([link.get("rtt_s") for link in found], "s"),
                Cell(text=str(len(found))),
            ]
            for (begin, end), found in links.items()
        ],
        notes=["Means over runs, each with the smallest and the largest."],
        records=[link for found in links.values() for link in found],
    )


def _spread(values: list[Any], quantity: str) -> Cell:
    known = [float(value) for value in values if isinstance(value, int | float)]
    if not known:
        return Cell(text=formatting.DASH, tone="quiet")
    unit = formatting.unit_for(quantity, known)
    low, high = formatting.number(min(known), unit), formatting.number(max(known), unit)
    return Cell(
        text=f"{formatting.number(sum(known) / len(known), unit)} {unit.symbol}",
        detail="" if low == high else f"{low}{formatting.TO}{high}",
    )


def machine_tables(results: Results) -> list[Table]:
    """The manifests, one table per section: what all runs share, and what differs."""
    collected: dict[str, dict[str, list[str]]] = {}
    for run in results.ok_runs:
        for path, value in _flat(run.manifest):
            section, _, name = path.partition(".")
            section, name = (section, name) if name else ("machine", section)
            collected.setdefault(section, {}).setdefault(name, []).append(value)
    return [
        Table(
            title=section,
            columns=["Fact", "Value"],
            rows=[
                [Cell(text=name), _agreed(values, len(results.ok_runs))]
                for name, values in facts.items()
            ],
            numeric=False,
        )
        for section, facts in collected.items()
        if section != "schema"
    ]


def _agreed(values: list[str], runs: int) -> Cell:
    distinct = list(dict.fromkeys(values))
    shown = "; ".join(distinct[:3])
    if len(distinct) > 1:
        more = ", ..." if len(distinct) > 3 else ""
        return Cell(text=shown + more, detail=f"{len(distinct)} different values")
    return Cell(
        text=shown, detail="" if len(values) == runs else f"in {len(values)} of {runs} runs"
    )


def _flat(document: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(document, list) and any(isinstance(each, dict | list) for each in document):
        for index, value in enumerate(document):
            yield from _flat(value, f"{path}.{index}")
    elif isinstance(document, list):
        yield path, ", ".join(map(_short, document))
    elif path != "schema":
        yield path, _short(document)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None:
        return formatting.DASH
    return str(value)
