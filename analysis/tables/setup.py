"""Tables of the experimental setup: arms or programs, impairments, links, machines."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from analysis import formatting
from analysis.data import programs
from analysis.data.evidence import section
from analysis.data.load import Results
from analysis.tables.rendering import Cell, Table, missing, table_of


def arm_settings_table(results: Results) -> Table:
    """Every arm's transport as its first ok run resolved it."""
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


def _listed(settings: dict[str, Any], *unsaid: str) -> str:
    known = {name: value for name, value in settings.items() if value is not None}
    return "; ".join(f"{name}: {value}" for name, value in known.items() if name not in unsaid)


_MS = formatting.Unit("ms", 1e3)


def impairment_table(results: Results) -> Table:
    """Per arm and impairment: how often, how late, and what it dropped, over the ok runs."""
    frame = results.frame("impairments")
    counted = pl.col("dropped").count()
    ends = (
        frame.filter(pl.col("action") == "end")
        .group_by("name", "arm")
        .agg(pl.when(counted > 0).then(pl.col("dropped", "frames_sent").sum() / counted))
    )
    skipped = frame.filter(pl.col("action") == "skipped").height
    late_s = pl.col("sent_s", "acknowledged_s") - pl.col("planned_s")
    begins = (
        frame.filter(pl.col("action") == "begin")
        .with_columns(pl.coalesce("target", "host"))
        .group_by("name", "kind", "target", "arm", maintain_order=True)
        .agg(pl.len(), late_s.median(), late_s.max().name.suffix(".max"))
        .join(ends, on=["name", "arm"], how="left")
        .sort("name", pl.col("arm").cast(pl.Enum(results.arms)))
    )

    def late(event: str) -> Callable[[dict[str, Any]], str]:
        return lambda each: " / ".join(
            formatting.number(each[name], _MS) for name in (event, f"{event}.max")
        )

    def per_time(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda each: formatting.number(each[name]) if each[name] else ""

    notes = [
        "Planned: its leg began, or its instant came. Sent: the controller acted. In force: the "
        "switch, or the host's filter, confirmed it."
    ]
    if skipped:
        notes.append(
            f"{skipped} planned times were skipped: the leg or the run had ended, or the same "
            "impairment was still in force."
        )
    return table_of(
        f"{results.experiment}: impairments as they happened",
        {
            "Impairment": lambda each: Cell(
                text=each["name"], detail=f"{each['kind']} at {each['target']}"
            ),
            "Arm": lambda each: each["arm"],
            "Times": lambda each: str(each["len"]),
            "Sent after planned: median / maximum (ms)": late("sent_s"),
            "In force after planned: median / maximum (ms)": late("acknowledged_s"),
            "Packets dropped per time": per_time("dropped"),
            "Frames sent per time": per_time("frames_sent"),
        },
        begins.iter_rows(named=True),
        notes=notes,
        records=frame.drop("run_key").to_dicts(),
    )


def link_table(results: Results) -> Table:
    """Calibration of every path before training: the mean over runs, and the extremes."""
    links: dict[str, list[dict[str, Any]]] = {}
    for run in results.ok_runs:
        for link in run.calibration.get("links") or []:
            links.setdefault(f"{link['from']} to {link['to']}", []).append(link)

    def spread(key: str, unit: str) -> Callable[[str], Cell]:
        return lambda path: _spread([link.get(key) for link in links[path]], unit)

    return table_of(
        f"{results.experiment}: paths as calibrated before each run",
        {
            "Path": str,
            "Configured rate": spread("configured_rate_bps", "bps"),
            "Measured rate": spread("rate_bps", "bps"),
            "Configured round trip": spread("configured_rtt_s", "s"),
            "Round-trip time": spread("rtt_s", "s"),
            "Runs": lambda path: str(len(links[path])),
        },
        links,
        notes=["Each number is a mean over runs, with the smallest and the largest."],
        records=[link for of_path in links.values() for link in of_path],
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


def machine_table(results: Results) -> Table:
    """The manifests: what all runs share, and what differs."""
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
    """Every arm's programs, over all runs that wrote what became of them."""
    records = [
        {"run_key": run.key, "arm": run.arm, "seed": run.seed, **each}
        | {"run": shlex.join(map(str, each.get("run") or []))}
        for run in results.runs
        for each in programs.workload(run.directory)
    ]
    by_program: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in sorted(records, key=lambda each: results.arms.index(each["arm"])):
        by_program.setdefault((each["arm"], str(each.get("name"))), []).append(each)
    return table_of(
        f"{results.experiment}: the programs",
        {
            "Arm": lambda runs: runs[0]["arm"],
            "Program": lambda runs: str(runs[0].get("name")),
            "Host": lambda runs: str(runs[0].get("host")),
            "Command": _commands,
            "Exit status": _statuses,
            "Duration (s)": _durations,
            "Congestion control": lambda runs: runs[0].get("congestion_control"),
            "Seen in the arm": lambda runs: ", ".join(results.congestion_controls(runs[0]["arm"])),
        },
        by_program.values(),
        notes=[
            "Services are ended when all others have ended: their status is not judged. Seen: what "
            "the kernel says of the connections between hosts that were sampled."
        ],
        records=records,
        numeric=False,
    )


def _commands(runs: list[dict[str, Any]]) -> str:
    first, *others = dict.fromkeys(run["run"] for run in runs)
    return first + (f" (and {len(others)} more)" if others else "")


def _statuses(runs: list[dict[str, Any]]) -> str:
    counts = Counter(str(run.get("exit_status")) for run in runs)
    listed = [f"{status} ({count} x)" for status, count in sorted(counts.items())]
    return ", ".join(["service"] * bool(runs[0].get("service")) + listed)


def _durations(runs: list[dict[str, Any]]) -> str:
    """The shortest and the longest."""
    whole = [run for run in runs if run.get("began_s") and run.get("ended_s")]
    times = sorted(run["ended_s"] - run["began_s"] for run in whole)
    return formatting.TO.join(dict.fromkeys(map(formatting.number, times[:1] + times[-1:])))
