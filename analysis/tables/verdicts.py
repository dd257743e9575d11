"""Tables of the runs' verdicts: all runs, how many are ok at each point, and their gates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from analysis.data import gates
from analysis.data.evidence import MISSING, Run
from analysis.data.load import Results
from analysis.summary.lookup import factors_text
from analysis.tables.cells import missing
from analysis.tables.rendering import Cell, Table, row
from analysis.words import formatting
from analysis.words.formatting import joined, short

_MOST_COLUMNS = 8  # of single runs in the table of gates
_TONES = {"ok": "good", "failed": "bad", "invalid": "bad", MISSING: "quiet"}


def all_runs_table(results: Results) -> Table:
    """All runs with verdict, reason and gates; links lead from the report to their directories."""
    notes = []
    if results.others:
        notes.append(
            f"The last {len(results.others)} rows are earlier attempts, or runs that the plan does "
            "not name, each with the reason. No number of this report includes them."
        )
    return _run_table(results, "all runs", [*results.runs, *results.others], notes)


def not_ok_table(results: Results) -> Table:
    """The planned runs that enter no number, and why."""
    not_ok = [run for run in results.runs if run.verdict != "ok"]
    return _run_table(results, "planned runs that are not ok", not_ok, [])


def _run_table(results: Results, title: str, runs: list[Run], notes: list[str]) -> Table:
    return Table(
        title=f"{results.experiment}: {title}",
        columns=["Run", "Arm", "Seed", "Verdict", "Reason", "Wall time", "Gates"],
        rows=[_run_row(run) for run in runs],
        notes=notes,
        numeric=False,
    )


def coverage_table(results: Results) -> Table:
    """How many of each arm's planned runs are ok at each point of the sweep."""
    by_point: dict[str, dict[str, list[Run]]] = {}
    for run in sorted(results.runs, key=results.point_order):
        point = factors_text(run.factors) or "all"
        by_point.setdefault(point, {}).setdefault(run.arm, []).append(run)
    return Table(
        title=f"{results.experiment}: ok runs of those planned",
        columns=["Point", *results.arms],
        rows=[
            row(point, *(_coverage(of_arm.get(arm, [])) for arm in results.arms))
            for point, of_arm in by_point.items()
        ],
    )


def _coverage(runs: list[Run]) -> Cell:
    if not runs:
        return Cell(text="not planned", tone="quiet")
    ok = sum(run.verdict == "ok" for run in runs)
    others = [run.verdict for run in runs if run.verdict != "ok"]
    detail = ", ".join(f"{others.count(each)} {each}" for each in dict.fromkeys(others))
    return Cell(text=f"{ok} of {len(runs)}", detail=detail, tone="" if ok == len(runs) else "bad")


def _run_row(run: Run) -> list[Cell]:
    href = ""
    if run.directory is not None:
        href = f"../{quote(run.directory.name)}/"
    factors = ", ".join(f"{name} = {value}" for name, value in run.factors.items())
    wall = formatting.DASH if run.wall_s is None else f"{formatting.number(run.wall_s)} s"
    name = Cell(text=run.key, href=href, detail=joined(factors, run.note))
    verdict = Cell(text=run.verdict, tone=_TONES.get(run.verdict, ""))
    reason = run.reason or formatting.DASH
    return row(name, run.arm, str(run.seed), verdict, reason, wall, _gates(run))


def _gates(run: Run) -> Cell:
    if not run.gates:
        return Cell(text=formatting.DASH)
    outcomes = [gates.outcome(gate) for gate in run.gates]
    details = [  # all values stand in the table of gates
        f"{gate.get('name')}: {_short_value(gate)}"
        for gate in run.gates
        if gates.calls_attention(gate)
    ]
    details += [f"waived: {words}" for words in gates.waived([run])]
    return Cell(
        text=", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes)),
        detail="; ".join(details),
        tone="bad" if any(gates.stops(gate) for gate in run.gates) else "",
    )


def _short_value(gate: dict[str, Any]) -> str:
    if not isinstance(gate.get("value"), int | float):
        return f"{gates.outcome(gate)}, {gate.get('note')}"
    return f"{short(gate.get('value'))} (limit {short(gate.get('limit'))})"


def gate_table(results: Results) -> Table:
    """One row per gate: its limit, the worst value and where, and the values of single runs."""
    judged = [run for run in results.runs if run.gates]
    columns = {f"{run.arm}, seed {run.seed}": [run] for run in judged}
    if len(judged) > _MOST_COLUMNS or len(columns) < len(judged):
        columns = {}
        for run in judged:
            columns.setdefault(f"{run.arm}, worst of its runs", []).append(run)
    names = list(dict.fromkeys(_name(gate) for run in judged for gate in run.gates))
    return Table(
        title=f"{results.experiment}: gates, the emulator against its limits",
        columns=["Gate", "Limit", "Worst", *columns],
        rows=[_gate_row(name, judged, columns.values()) for name in names],
        notes=[
            "A value beyond its limit makes a run invalid, and so does a gate that could not be "
            "measured, unless the experiment waives it. Limits are keys of `limits` in the "
            "experiment file."
        ],
        records=[
            {"run": run.key, "arm": run.arm, "seed": run.seed, **gate}
            for run in judged
            for gate in run.gates
        ],
    )


def _name(gate: dict[str, Any]) -> str:
    return str(gate.get("key") or gate.get("name"))


def _gate_row(name: str, runs: list[Run], columns: Iterable[list[Run]]) -> list[Cell]:
    known = [gate for run in runs if (gate := _find(run, name)) is not None]
    limits = sorted({float(gate["limit"]) for gate in known if gate.get("limit") is not None})
    title = str(known[0].get("name"))
    about = [] if name == title else [f"limits.{name}"]
    about += sorted({f"waived: {gate['waived']}" for gate in known if gate.get("waived")})
    return row(
        Cell(text=title, detail="; ".join(about)),
        ", ".join(f"{limit:g}" for limit in limits),
        _value(_worst(known)),
        *(_value(_worst([_find(run, name) for run in column])) for column in columns),
    )


def _worst(found: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The gate furthest beyond its limit, else one that was not measured, else the largest."""

    def badness(gate: dict[str, Any]) -> tuple[int, float]:
        value = gate.get("value")
        order = {gates.FAILED: 2, gates.NOT_MEASURED: 1}.get(gates.outcome(gate), 0)
        return order, float(value) if isinstance(value, int | float) else -math.inf

    return max((gate for gate in found if gate is not None), key=badness, default=None)


def _find(run: Run, name: str) -> dict[str, Any] | None:
    return next((gate for gate in run.gates if _name(gate) == name), None)


def _value(gate: dict[str, Any] | None) -> Cell:
    if gate is None:
        return missing()
    value = gate.get("value")
    if not isinstance(value, int | float):
        tone = "bad" if gates.stops(gate) else "quiet"
        return Cell(text=gates.outcome(gate), detail=str(gate.get("note") or ""), tone=tone)
    remarks = "; ".join(filter(None, (gate.get("where"), gate.get("note"))))
    tone = "bad" if gates.outcome(gate) == gates.FAILED else ""
    return Cell(text=f"{value:.3g}", detail=remarks, tone=tone)
