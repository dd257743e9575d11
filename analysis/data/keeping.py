"""Writes what is kept of an experiment: the files that `kept_rows` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data.evidence import BLOCK, IDENTITY, MISSING, Evidence, Run
from analysis.data.frames import per_run
from analysis.data.kept_rows import (
    ATTEMPT_COLUMNS,
    ATTEMPTS,
    EXPERIMENT,
    GATE_COLUMNS,
    GATES,
    MANIFEST,
    OF_A_RUN,
    OF_ROUNDS,
    PLAN,
    ROUND_COLUMNS,
    ROUNDS,
    ROWS,
    SCHEMA,
    Column,
)
from analysis.data.load import Results
from analysis.data.metrics import METRICS, is_tail_quantile

_OUT = re.compile(r" --out[ =]\S+")  # where results lay while they were made
_MOST_BYTES = 2_000_000  # of an experiment's rounds; beyond it none are kept
_NOT_APPLICABLE, _PASSED = "not applicable", "passed"  # outcomes of gates


def write(folder: Path, evidence: Results) -> None:
    """Keep an experiment's evidence in a folder, without quantiles that nobody can recompute."""
    rows, has_rounds = per_run(evidence), _write_rounds(folder, evidence.frame("latencies"))
    first = evidence.ok_runs[0].manifest
    shared = common([_kept(run.config) for run in evidence.runs if run.config])
    document = {
        "schema": SCHEMA,
        "experiment": evidence.experiment,
        "description": evidence.description,
        "commands": [_anywhere(each, evidence.experiment) for each in evidence.commands],
        "arms": evidence.arms,
        "published": evidence.published_ids,
        "levels": evidence.levels,
        "planned": _planned(evidence.runs),
        "config": shared,
    }
    _write_text(folder / EXPERIMENT, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    _write_text(folder / MANIFEST, json.dumps(first, indent=2, ensure_ascii=False) + "\n")
    lines = (json.dumps(_entry(run, shared, first), ensure_ascii=False) for run in evidence.runs)
    _write_text(folder / PLAN, "".join(f"{line}\n" for line in lines))
    attempts = list(_attempts(evidence))
    described = [_described(*each) for each in attempts]
    _write_csv(folder / ATTEMPTS, _frame(described, ATTEMPT_COLUMNS))
    gates = [gate for number, run, _ in attempts for gate in _gates(number, run)]
    _write_csv(folder / GATES, _frame(gates, GATE_COLUMNS))
    left_out = {each.name for each in METRICS if not rows[each.name].count()}
    left_out |= {
        name
        for name in filter(is_tail_quantile, rows.columns)
        if not (has_rounds and name.startswith(OF_ROUNDS))
    }
    _write_csv(folder / ROWS, rows.drop(*left_out, *BLOCK))


def _write_rounds(folder: Path, rounds: pl.DataFrame) -> bool:
    """Keep the latency of each round of the ok runs, unless it is too much; whether it is kept."""
    path = folder / ROUNDS
    rounds.select(ROUND_COLUMNS).write_parquet(path, compression="zstd")
    is_small = path.stat().st_size <= _MOST_BYTES
    if not is_small:
        path.unlink()
    return is_small


def common(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all of some objects have, at any depth; lists are shared whole or not at all."""
    first, *others = documents or [{}]
    shared: dict[str, Any] = {}
    for name, value in first.items():
        values = [each[name] for each in others if name in each]
        if len(values) < len(others):
            continue
        if all(isinstance(each, dict) for each in (value, *values)):
            shared[name] = common([value, *values])
        elif all(_same(each, value) for each in values):
            shared[name] = value
    return shared


def own(document: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """What an object has beyond `shared`, which is the `common` part of some with it."""
    rest: dict[str, Any] = {}
    for name, value in document.items():
        if name not in shared:
            rest[name] = value
        elif isinstance(value, dict) and (inner := own(value, shared[name])):
            rest[name] = inner
    return rest


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON, where 1, 1.0 and true are three."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _frame(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, Column]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=dict(columns), strict=False)


def _write_csv(path: Path, rows: pl.DataFrame) -> None:
    """A header and a line per row. What is null, or an empty text, is an empty cell."""
    texts = pl.col(pl.String)
    rows.with_columns(pl.when(texts != "").then(texts).name.keep()).write_csv(path)


def _anywhere(command: str, experiment: str) -> str:
    """A command without the folders in which its results lay."""
    folder = rf" \S*/{re.escape(experiment)}/?(?= |$)"
    return re.sub(folder, f" {experiment}", _OUT.sub("", command))


def _kept(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what each entry of the plan says, and without a place on a disk."""
    return {name: value for name, value in config.items() if name not in (*OF_A_RUN, "folder")}


def _write_text(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _planned(runs: Sequence[Run]) -> dict[str, Any]:
    """How many there are, so that a line that was lost is missed."""
    return {"runs": len(runs), "seeds": sorted({run.seed for run in runs})}


def _entry(run: Run, shared: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {name: getattr(run, name) for name in OF_A_RUN}
    if run.config:
        entry["config"] = own(_kept(run.config), shared)
    if run.verdict == "ok":
        differing = [name for name in IDENTITY if run.manifest.get(name) != first.get(name)]
        if differing:
            entry["manifest"] = {name: run.manifest.get(name) for name in differing}
    return entry


def _attempts(evidence: Evidence) -> Iterator[tuple[int, Run, bool]]:
    """Every attempt: its number, and whether it is the one that counts of a planned run."""
    earlier: dict[str, list[Run]] = {}
    for run in evidence.others:
        earlier.setdefault(run.key, []).append(run)
    for run in evidence.runs:
        before = earlier.pop(run.key, [])
        yield from ((number, each, False) for number, each in enumerate(before, start=1))
        yield len(before) + 1, run, True
    for unplanned in earlier.values():
        yield from ((number, each, False) for number, each in enumerate(unplanned, start=1))


def _described(number: int, run: Run, counts: bool) -> dict[str, Any]:
    """A row of the attempts. One that was never started has number 0."""
    return {
        "run_key": run.key,
        "attempt": 0 if run.verdict == MISSING else number,
        "counts": counts,
        "arm": run.arm,
        "seed": run.seed,
        "verdict": run.verdict,
        "began_at": run.began_at,
        "wall_s": run.wall_s,
        "congestion_controls": " ".join(run.congestion_controls),
        "note": run.note,
        "reason": " ".join(run.reason.split()),
    }


def _gates(number: int, run: Run) -> Iterator[dict[str, Any]]:
    """A row per gate that applied; where it was found is of interest only if it did not pass."""
    for gate in run.gates:
        outcome = gate.get("outcome")
        if outcome == _NOT_APPLICABLE:
            continue
        yield {
            "run_key": run.key,
            "attempt": number,
            "gate": gate.get("key") or gate.get("name"),
            "value": _short(gate.get("value")),
            "limit": _short(gate.get("limit")),
            "outcome": outcome,
            "decides": gate.get("decides", True) is not False,
            "waived": gate.get("waived"),
            "where": None if outcome == _PASSED else gate.get("where"),
        }


def _short(value: Any) -> float | None:
    """Six digits of a number, which tell how far a gate was from its limit."""
    return float(f"{value:.6g}") if isinstance(value, int | float) else None
