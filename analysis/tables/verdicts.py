"""Tables of the runs' verdicts: all runs, how many are ok at each point, and their gates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import quote

import polars as pl

from analysis import formatting
from analysis.data import evidence
from analysis.data.evidence import FACTOR_PREFIX, MISSING, Run
from analysis.data.load import Results
from analysis.data.metrics import in_table, metric_names
from analysis.formatting import joined, short
from analysis.summary.lookup import factors_text
from analysis.tables.rendering import Cell, Table, table_of

_TONES = {"ok": "good", "failed": "bad", "invalid": "bad", MISSING: "quiet"}


def run_table(results: Results, *, not_ok: bool = False) -> Table:
    title, runs, notes = "all runs", [*results.runs, *results.others], []
    if not_ok:
        title = "planned runs that are not ok"
        runs = [run for run in results.runs if run.verdict != "ok"]
    elif results.others:
        notes.append(
            f"The last {len(results.others)} rows are earlier attempts, or runs that the plan does "
            "not name, each with the reason. No number of this report includes them."
        )

    def name(run: Run) -> Cell:
        factors = ", ".join(f"{name} = {value}" for name, value in run.factors.items())
        href = f"../{quote(run.directory.name)}/" if run.directory else ""
        return Cell(text=run.key, href=href, detail=joined(factors, run.note))

    return table_of(
        f"{results.experiment}: {title}",
        {
            "Run": name,
            "Arm": lambda run: run.arm,
            "Seed": lambda run: str(run.seed),
            "Verdict": lambda run: Cell(text=run.verdict, tone=_TONES.get(run.verdict, "")),
            "Reason": lambda run: run.reason,
            "Wall time": lambda run: f"{formatting.number(run.wall_s)} s" if run.wall_s else None,
            "Gates": _gates,
        },
        runs,
        notes=notes,
        numeric=False,
    )


def _gates(run: Run) -> Cell | None:
    if not run.gates:
        return None
    details = []
    for gate in filter(evidence.calls_attention, run.gates):  # the table of gates has all
        value = f"{short(gate.get('value'))} (limit {short(gate.get('limit'))})"
        if gate.get("value") is None:
            value = f"{gate['outcome']}, {gate.get('note')}"
        details.append(f"{gate.get('name')}: {value}")
    details += [f"waived: {words}" for words in evidence.waived([run])]
    counts = Counter(gate["outcome"] for gate in run.gates)
    return Cell(
        text=", ".join(f"{count} {outcome}" for outcome, count in counts.items()),
        detail="; ".join(details),
        tone="bad" if any(evidence.stops(gate) for gate in run.gates) else "",
    )


def gate_table(results: Results) -> Table:
    """One row per gate: its limit, the worst value and where; the records have all runs."""
    gates: dict[str, list[dict[str, Any]]] = {}
    for run in results.runs:
        for gate in run.gates:
            key = str(gate.get("key") or gate["name"])
            record = {"run": run.key, "arm": run.arm, "seed": run.seed, **gate}
            gates.setdefault(key, []).append(record)

    def title(key: str) -> Cell:
        waived = {f"waived: {gate['waived']}" for gate in gates[key] if gate.get("waived")}
        limit = [f"limits.{key}"] if key != gates[key][0]["name"] else []
        return Cell(text=gates[key][0]["name"], detail="; ".join([*limit, *sorted(waived)]))

    def limits(key: str) -> str:
        distinct = {gate["limit"] for gate in gates[key] if gate.get("limit") is not None}
        return ", ".join(f"{limit:g}" for limit in sorted(distinct))

    return table_of(
        f"{results.experiment}: gates, the emulator against its limits",
        {"Gate": title, "Limit": limits, "Worst": lambda key: _worst(gates[key])},
        gates,
        notes=[
            "A value beyond its limit makes a run invalid, and so does a gate that could not be "
            "measured, unless the experiment waives it. Limits are keys of `limits` in the "
            "experiment file."
        ],
        records=[gate for of_key in gates.values() for gate in of_key],
    )


def _worst(gates: Sequence[dict[str, Any]]) -> Cell:
    """The gate furthest beyond its limit, else one that was not measured, else the largest."""

    def badness(gate: dict[str, Any]) -> tuple[int, float]:
        order = {evidence.FAILED: 2, evidence.NOT_MEASURED: 1}.get(gate["outcome"], 0)
        return order, -math.inf if gate.get("value") is None else gate["value"]

    gate = max(gates, key=badness)
    text = gate["outcome"] if gate.get("value") is None else f"{gate['value']:.3g}"
    where = (gate.get("where"), gate.get("note"), gate["run"])
    return Cell(
        text=text, detail="; ".join(filter(None, where)), tone="bad" if evidence.stops(gate) else ""
    )


_OF_PROGRAMS = ("programs.", "flows.", "hosts.")
_MOST_SHOWN = 11  # programs may have any number of metrics; the table's files have all


def every_run_table(results: Results, in_timeline: Collection[str]) -> Table:
    runs = sorted(
        results.ok_runs,
        key=lambda run: (results.point_order(run), results.arms.index(run.arm), run.seed),
    )
    order = pl.DataFrame({"run_key": [run.key for run in runs]}, schema={"run_key": pl.String})
    frame = order.join(results.per_run(), on="run_key", how="left", maintain_order="left")
    metrics = metric_names(frame)
    with_values = [name for name in metrics if frame[name].count()]
    of_programs = [name for name in with_values if name.startswith(_OF_PROGRAMS)]
    shown = [name for name in (*in_table("runs"), *of_programs) if name in with_values]
    slowest_rounds = (
        results.frame("latencies")
        .drop_nulls("latency_s")
        .sort("latency_s", "round", descending=[True, False])
        .group_by("run_key")
        .agg(slowest_round=pl.col("round").first(), slowest_round_s=pl.col("latency_s").first())
    )
    frame = frame.join(slowest_rounds, on="run_key", how="left", maintain_order="left")
    factors = results.factor_columns
    names = {name: name.removeprefix(FACTOR_PREFIX) for name in factors}

    def slowest(run: dict[str, Any]) -> Cell | None:
        if run["slowest_round"] is None:
            return None
        # `timeline.js` reads it.
        href = f"timeline.html#{quote(run['run_key'], safe='')}&round={run['slowest_round']}"
        return Cell(
            text=str(run["slowest_round"]),
            detail=f"{formatting.number(run['slowest_round_s'])} s",
            href=href if run["run_key"] in in_timeline else "",
        )

    def column(metric: str) -> tuple[str, Callable[[dict[str, Any]], str]]:
        label, unit = formatting.metric_unit(metric, frame[metric])
        return label, lambda run: formatting.number(run[metric], unit)

    def point(run: dict[str, Any]) -> str:
        return factors_text({name: run[column] for column, name in names.items()})

    return table_of(
        f"{results.experiment}: the values of each ok run",
        {
            "Run": lambda run: run["run_key"],
            "Arm": lambda run: run["arm"],
            **({"Point": point} if factors else {}),
            "Seed": lambda run: str(run["seed"]),
            "Slowest round": slowest,
            **dict(map(column, shown[:_MOST_SHOWN])),
        },
        frame.iter_rows(named=True),
        records=frame.select(
            *("run_key", "arm", *factors, "seed", "slowest_round", "slowest_round_s", *metrics)
        )
        .rename(names)
        .to_dicts(),
    )
