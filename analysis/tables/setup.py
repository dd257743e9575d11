"""Tables of the experimental setup: arms or programs, impairments, links, machines."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any

import polars as pl

from analysis.data import programs
from analysis.data.load import Results
from analysis.data.records import section
from analysis.tables.cells import missing
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting


def arm_settings_table(results: Results) -> Table:
    """Every arm's transport as its first ok run resolved it."""
    rows = []
    for arm in results.arms:
        run = next((run for run in results.ok_runs if run.arm == arm), None)
        protocol = dict(section(run.config, "protocol")) if run else {}
        protocol.pop("name", None)
        filling = section(run.config, "filling") if run else {}
        asked = protocol.pop("congestion_control", None)
        used = ", ".join(results.congestion_controls(arm)) or formatting.DASH
        rows.append(row(arm, asked or formatting.DASH, used, _listed(protocol), _listed(filling)))
    return Table(
        title=f"{results.experiment}: the arms",
        columns=[
            *("Arm", "Congestion control", "Read back", "Transport"),
            "Filling of what is missing",
        ],
        rows=rows,
        notes=[
            "Read back: what the kernel says of each TCP socket after the last round; of our own "
            "transport, what its senders were built with. A run in which it is not what the arm "
            "asks for has failed."
        ],
        numeric=False,
    )


def _listed(settings: dict[str, Any]) -> str:
    known = [f"{name}: {value}" for name, value in settings.items() if value is not None]
    return "; ".join(known) or formatting.DASH


def impairment_table(results: Results) -> Table:
    """Per arm and impairment: how often, how late, and what it dropped, over the ok runs."""
    frame = results.impairments
    ends = (
        frame.filter(pl.col("action") == "end")
        .group_by("name", "arm")
        .agg(pl.col("dropped", "frames_sent").sum(), pl.col("dropped").count().alias("counted"))
    )
    sent_late_s = pl.col("sent_s") - pl.col("planned_s")
    acknowledged_late_s = pl.col("acknowledged_s") - pl.col("planned_s")
    skipped = frame.filter(pl.col("action") == "skipped").height
    begins = (
        frame.filter(pl.col("action") == "begin")
        .with_columns(pl.coalesce("target", "host"))
        .group_by("name", "kind", "target", "arm", maintain_order=True)
        .agg(
            times=pl.len(),
            sent_median=sent_late_s.median(),
            sent_max=sent_late_s.max(),
            acknowledged_median=acknowledged_late_s.median(),
            acknowledged_max=acknowledged_late_s.max(),
        )
        .join(ends, on=["name", "arm"], how="left")
        .sort("name", pl.col("arm").cast(pl.Enum(results.arms)))
    )
    notes = [
        "Planned: its leg began, or its instant came. Sent: the controller acted. In force: the "
        "switch, or the host's filter, confirmed it."
    ]
    if skipped:
        notes.append(
            f"{skipped} planned times were skipped: the leg or the run had ended, or the same "
            "impairment was still in force."
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
        rows=[_impairment_row(each) for each in begins.iter_rows(named=True)],
        notes=notes,
        records=frame.drop("run_key").to_dicts(),
    )


def _impairment_row(found: dict[str, Any]) -> list[Cell]:
    unit = formatting.Unit("ms", 1e3)
    late = (
        " / ".join(
            formatting.number(found[f"{event}_{which}"], unit) for which in ("median", "max")
        )
        for event in ("sent", "acknowledged")
    )
    per_time = (
        formatting.number(found[name] / found["counted"])
        if found["counted"] and found[name]
        else formatting.DASH
        for name in ("dropped", "frames_sent")
    )
    name = Cell(text=str(found["name"]), detail=f"{found['kind']} at {found['target']}")
    return row(name, found["arm"], str(found["times"]), *late, *per_time)


def link_table(results: Results) -> Table:
    """Calibration of every path before training: the mean over runs, and the extremes."""
    links: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in results.ok_runs:
        for link in run.calibration.get("links") or []:
            if isinstance(link, dict):
                ends = (str(link.get("from")), str(link.get("to")))
                links.setdefault(ends, []).append(link)
    measured = [
        *(("configured_rate_bps", "bps"), ("rate_bps", "bps")),
        *(("configured_rtt_s", "s"), ("rtt_s", "s")),
    ]
    return Table(
        title=f"{results.experiment}: paths as calibrated before each run",
        columns=[
            *("Path", "Configured rate", "Measured rate"),
            *("Configured round trip", "Round-trip time", "Runs"),
        ],
        rows=[
            row(
                f"{begin} to {end}",
                *(_spread([link.get(key) for link in found], unit) for key, unit in measured),
                str(len(found)),
            )
            for (begin, end), found in links.items()
        ],
        notes=["Each number is a mean over runs, with the smallest and the largest."],
        records=[link for found in links.values() for link in found],
    )


def host_cpu_table(results: Results) -> Table:
    """Processor time of each host: the mean over an arm's ok runs, and the extremes."""
    rows, records = [], []
    for arm in results.arms:
        used: dict[str, list[float]] = {}
        for each in results.host_cpu.filter(pl.col("arm") == arm).iter_rows(named=True):
            used.setdefault(each["host"], []).append(each["cpu_s"])
            names = ("run_key", "arm", "seed", "host", "cpu_s")
            records.append({name: each[name] for name in names})
        rows += [row(arm, host, _spread(each, "s"), str(len(each))) for host, each in used.items()]
    return Table(
        title=f"{results.experiment}: processor time per host",
        columns=["Arm", "Host", "Sampled processes", "Runs"],
        rows=rows,
        notes=[
            "Sampled: the last value of each process in a host, up to 0.1 s before its end. "
            "Shells, and programs of less than about 2 s, may be missing."
        ],
        records=records,
    )


def _spread(values: list[Any], quantity: str) -> Cell:
    known = [float(value) for value in values if isinstance(value, int | float)]
    if not known:
        return missing()
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
            group, _, name = path.partition(".")
            group, name = (group, name) if name else ("machine", group)
            collected.setdefault(group, {}).setdefault(name, []).append(value)
    return [
        Table(
            title=group,
            columns=["Fact", "Value"],
            rows=[row(name, _agreed(each, len(results.ok_runs))) for name, each in facts.items()],
            numeric=False,
        )
        for group, facts in collected.items()
        if group != "schema"
    ]


def _agreed(values: list[str], runs: int) -> Cell:
    distinct = list(dict.fromkeys(values))
    detail = "" if len(values) == runs else f"in {len(values)} of {runs} runs"
    if len(distinct) > 1:
        detail = f"{len(distinct)} different values"
    return Cell(
        text="; ".join(distinct[:3]) + (", ..." if len(distinct) > 3 else ""), detail=detail
    )


def _flat(document: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(document, list) and any(isinstance(each, dict | list) for each in document):
        for index, value in enumerate(document):
            yield from _flat(value, f"{path}.{index}")
    elif isinstance(document, list):
        yield path, ", ".join(map(formatting.short, document)) or "none"
    elif path != "schema":
        yield path, formatting.short(document)


def program_table(results: Results) -> Table:
    """Every arm's programs, over all runs that wrote what became of them."""
    rows = []
    for arm in results.arms:
        runs = [run for run in results.runs if run.arm == arm and run.directory is not None]
        found = [each for run in runs for each in programs.workload(run.directory)]
        used = ", ".join(results.congestion_controls(arm)) or formatting.DASH
        for name in dict.fromkeys(str(each.get("name")) for each in found):
            rows.append(
                row(arm, name, *_program_cells([e for e in found if e.get("name") == name]), used)
            )
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
        records=[
            {"run_key": run.key, "arm": run.arm, "seed": run.seed, **_flat_program(each)}
            for run in results.runs
            for each in programs.workload(run.directory)
        ],
        numeric=False,
    )


def _program_cells(found: list[dict[str, Any]]) -> list[str]:
    first = found[0]
    commands = list(dict.fromkeys(shlex.join(map(str, each.get("run") or [])) for each in found))
    more = f" (and {len(commands) - 1} more)" if commands[1:] else ""
    statuses = Counter(str(each.get("exit_status")) for each in found)
    told = ", ".join(f"{status} ({count} x)" for status, count in sorted(statuses.items()))
    times = [
        each["ended_s"] - each["began_s"]
        for each in found
        if each.get("began_s") and each.get("ended_s")
    ]
    ends = dict.fromkeys(map(formatting.number, sorted(times)[:: max(1, len(times) - 1)]))
    return [
        str(first.get("host")),
        commands[0] + more,
        f"service, {told}" if first.get("service") else told,
        formatting.TO.join(ends) or formatting.DASH,
        str(first.get("congestion_control") or formatting.DASH),
    ]


def _flat_program(program: dict[str, Any]) -> dict[str, Any]:
    return {**program, "run": shlex.join(map(str, program.get("run") or []))}
