"""The gates of all runs in one table: the worst value of each, beside its limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from analysis.data.load import Results, Run
from analysis.tables.model import Cell, Table
from analysis.words import formatting

_MOST_COLUMNS = 8


def gate_table(results: Results) -> Table:
    """One row per gate: its limit, the worst value and where, and the values of single runs.

    Runs have a column each while they are few; else the worst of each arm stands for them.
    """
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
        rows=[_row(name, judged, columns.values()) for name in names],
        notes=[
            "A value beyond its limit makes a run invalid. Limits are keys of `limits` in the "
            "experiment file. What could not be measured is not checked, and says so."
        ],
        records=[
            {"run": run.key, "arm": run.arm, "seed": run.seed, **gate}
            for run in judged
            for gate in run.gates
        ],
    )


def _name(gate: dict[str, Any]) -> str:
    return str(gate.get("key") or gate.get("name"))


def _row(name: str, runs: list[Run], columns: Iterable[list[Run]]) -> list[Cell]:
    known = [gate for gate in (_find(run, name) for run in runs) if gate is not None]
    limits = sorted({float(gate["limit"]) for gate in known if gate.get("limit") is not None})
    title = str(known[0].get("name"))
    return [
        Cell(text=title, detail="" if name == title else f"limits.{name}"),
        Cell(text=", ".join(f"{limit:g}" for limit in limits)),
        _value(_worst(known)),
        *(_value(_worst([_find(run, name) for run in column])) for column in columns),
    ]


def _worst(gates: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The gate nearest to its limit or furthest beyond; one without a value if none has one."""
    known = [gate for gate in gates if gate is not None]
    measured = [gate for gate in known if isinstance(gate.get("value"), int | float)]
    return max(measured, key=_badness, default=known[0] if known else None)


def _badness(gate: dict[str, Any]) -> tuple[bool, float]:
    return gate.get("passed") is False, float(gate["value"])


def _find(run: Run, name: str) -> dict[str, Any] | None:
    return next((gate for gate in run.gates if _name(gate) == name), None)


def _value(gate: dict[str, Any] | None) -> Cell:
    if gate is None:
        return Cell(text=formatting.DASH, tone="quiet")
    value = gate.get("value")
    if not isinstance(value, int | float):
        return Cell(text="not checked", detail=str(gate.get("note") or ""), tone="quiet")
    remarks = "; ".join(filter(None, (gate.get("where"), gate.get("note"))))
    tone = "" if gate.get("passed") else "bad"
    return Cell(text=f"{value:.3g}", detail=remarks, tone=tone)
