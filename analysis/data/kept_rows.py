"""Keeps what an experiment's numbers need without its logs (docs/reference/kept-results.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import logs
from analysis.data.evidence import (
    BLOCK,
    FACTOR_PREFIX,
    IDENTITY,
    MISSING,
    PASSED,
    VERDICTS,
    Evidence,
    Run,
)
from analysis.data.load import Results
from analysis.data.metrics import METRICS, TOLERANCE_VARIED, is_metric, is_tail_quantile

Column = pl.DataType | type[pl.DataType]
Document = dict[str, Any]
SCHEMA = 1
EXPERIMENT, PLAN = "experiment.json", "plan.jsonl"
ATTEMPTS, GATES, ROWS, MANIFEST = "attempts.csv", "gates.csv", "rows.csv", "manifest.json"
# The latency of each round, of which the metrics `OF_ROUNDS` can be recomputed. Results of before
# 2026-11-28 have none, and so no 95th or 99th percentile.
ROUNDS = "rounds.parquet"
ROUND_COLUMNS = ("run_key", "round", "critical", "latency_s", "impairments")
OF_ROUNDS = "round_latency_s."

ATTEMPT_COLUMNS: dict[str, Column] = {
    "run_key": pl.String,
    "attempt": pl.Int64,
    "counts": pl.Boolean,
    "arm": pl.String,
    "seed": pl.Int64,
    "verdict": pl.String,
    "began_at": pl.String,
    "wall_s": pl.Float64,
    "congestion_controls": pl.String,
    "note": pl.String,
    "reason": pl.String,
}
GATE_COLUMNS: dict[str, Column] = {
    "run_key": pl.String,
    "attempt": pl.Int64,
    "gate": pl.String,
    "value": pl.Float64,
    "limit": pl.Float64,
    "outcome": pl.String,
    "decides": pl.Boolean,
    "waived": pl.String,
    "where": pl.String,
}
_AS_THEY_ARE = ("experiment", "description", "commands", "arms", "levels")
_OF_A_RUN = ("key", "arm", "seed", "factors")
_OF_AN_ATTEMPT = ("arm", "seed", "verdict", "began_at", "wall_s")
_MOST_BYTES = 2_000_000  # of an experiment's rounds; beyond it none are kept


@dataclass(frozen=True, kw_only=True)
class KeptRows(Evidence):
    """Kept evidence: its runs have of a manifest only `IDENTITY` and whether it is simulated."""

    rows: pl.DataFrame
    rounds: pl.DataFrame | None

    def measured(self) -> pl.DataFrame:
        return self.rows


def write(folder: Path, evidence: Results) -> None:
    """Keep an experiment's evidence in a folder, without quantiles that nobody can recompute."""
    rows, has_rounds = evidence.per_run(), _write_rounds(folder, evidence.frame("latencies"))
    first = evidence.ok_runs[0].manifest
    # Where results lay while they were made is of no interest.
    commands = [re.sub(r" --out[ =]\S+", "", command) for command in evidence.commands]
    place = rf" \S*/({re.escape(evidence.experiment)})/?(?= |$)"
    shared = common([_without_place(run.config) for run in evidence.runs if run.config])
    document = {
        "schema": SCHEMA,
        "experiment": evidence.experiment,
        "description": evidence.description,
        "commands": [re.sub(place, r" \1", command) for command in commands],
        "arms": evidence.arms,
        "published": evidence.published_ids,
        **({"compare": evidence.compare} if evidence.compare else {}),
        "levels": evidence.levels,
        "planned": {"runs": len(evidence.runs)},  # so that a line that was lost is missed
        "config": shared,
    }
    for name, content in ((EXPERIMENT, document), (MANIFEST, first)):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    lines = (json.dumps(_entry(run, shared, first), ensure_ascii=False) for run in evidence.runs)
    (folder / PLAN).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    attempts, gates = _attempts(evidence)
    _write_csv(folder / ATTEMPTS, pl.DataFrame(attempts, schema=ATTEMPT_COLUMNS, strict=False))
    _write_csv(folder / GATES, pl.DataFrame(gates, schema=GATE_COLUMNS, strict=False))
    left_out = {metric.name for metric in METRICS if not rows[metric.name].count()}
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
    """The part that all objects have, at any depth; lists are shared whole or not at all."""
    first, *others = documents or [{}]
    shared: dict[str, Any] = {}
    for name, value in first.items():
        values = [other[name] for other in others if name in other]
        if len(values) < len(others):
            continue
        if all(isinstance(other, dict) for other in (value, *values)):
            shared[name] = common([value, *values])
        elif len({json.dumps(other, sort_keys=True) for other in (value, *values)}) == 1:
            shared[name] = value  # equal as JSON, where 1, 1.0 and true are three
    return shared


def own(document: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an object beyond `shared`, which is the `common` part of some with it."""
    rest: dict[str, Any] = {}
    for name, value in document.items():
        if name not in shared:
            rest[name] = value
        elif isinstance(value, dict) and (inner := own(value, shared[name])):
            rest[name] = inner
    return rest


def joined(shared: Mapping[str, Any], own_part: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(shared)
    for name, value in own_part.items():
        below = shared.get(name)
        if isinstance(below, dict) and isinstance(value, dict):
            value = joined(below, value)
        both[name] = value
    return both


def _write_csv(path: Path, rows: pl.DataFrame) -> None:
    rows.with_columns(pl.col(pl.String).replace("", None)).write_csv(path)


def _without_place(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what each entry of the plan says, and without a place on a disk."""
    return {name: value for name, value in config.items() if name not in (*_OF_A_RUN, "folder")}


def _entry(run: Run, shared: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {name: getattr(run, name) for name in _OF_A_RUN}
    if run.config:
        entry["config"] = own(_without_place(run.config), shared)
    if run.verdict == "ok":
        differing = [name for name in IDENTITY if run.manifest.get(name) != first.get(name)]
        if differing:
            entry["manifest"] = {name: run.manifest.get(name) for name in differing}
    return entry


def _attempts(evidence: Evidence) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    counted = {run.key: run for run in evidence.runs}
    by_key: dict[str, list[Run]] = {key: [] for key in counted}
    for run in (*evidence.others, *evidence.runs):
        by_key.setdefault(run.key, []).append(run)
    attempts, gates = [], []
    for number, run in (pair for runs in by_key.values() for pair in enumerate(runs, start=1)):
        attempts.append(
            {
                "run_key": run.key,
                "attempt": 0 if run.verdict == MISSING else number,  # it was never started
                "counts": run is counted.get(run.key),
                **{name: getattr(run, name) for name in _OF_AN_ATTEMPT},
                "congestion_controls": " ".join(run.congestion_controls),
                "note": run.note,
                "reason": " ".join(run.reason.split()),
            }
        )
        for gate in run.gates:
            if (outcome := gate.get("outcome")) != "not applicable":
                row = {
                    "run_key": run.key,
                    "attempt": number,
                    "gate": gate.get("key") or gate.get("name"),
                    "value": _short(gate.get("value")),
                    "limit": _short(gate.get("limit")),
                    "outcome": outcome,
                    "decides": gate.get("decides", True) is not False,
                    "waived": gate.get("waived"),
                    "where": None if outcome == PASSED else gate.get("where"),
                }
                gates.append(row)
    return attempts, gates


def _short(value: Any) -> float | None:
    """Six digits of a number, which say how far a gate was from its limit."""
    return float(f"{value:.6g}") if isinstance(value, int | float) else None


def read(folder: Path) -> KeptRows:
    try:
        return _read(folder)
    except (LookupError, TypeError, AttributeError) as error:  # an entry that is not there
        raise ValueError(f"{folder}: {error!r}; valid: the files as they were kept") from None


def wall_s_by_arm(folder: Path) -> dict[str, float]:
    """Returns how long all attempts at an arm's runs took, one after the other."""
    attempts = _read_csv(folder / ATTEMPTS, ATTEMPT_COLUMNS.get, ATTEMPT_COLUMNS)
    return dict(attempts.group_by("arm").agg(pl.col("wall_s").sum()).iter_rows())


def _read(folder: Path) -> KeptRows:
    document = document_of(folder / EXPERIMENT)
    if document.get("schema") != SCHEMA:
        schema = document.get("schema")
        raise ValueError(f"{folder / EXPERIMENT}: schema {schema!r}; valid: {SCHEMA}")
    plan = _plan(folder / PLAN, document)
    attempts = _read_csv(folder / ATTEMPTS, ATTEMPT_COLUMNS.get, ATTEMPT_COLUMNS)
    gates: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for gate in _read_csv(folder / GATES, GATE_COLUMNS.get, GATE_COLUMNS).iter_rows(named=True):
        texts = {name: gate[name] or "" for name in ("outcome", "waived", "where")}
        of_status = {"name": gate["gate"], "key": gate["gate"], **gate, **texts}
        gates.setdefault((gate["run_key"], gate["attempt"]), []).append(of_status)
    manifest = document_of(folder / MANIFEST)
    counted: dict[str, Run] = {}
    others: list[Run] = []
    for line, attempt in enumerate(attempts.iter_rows(named=True), start=2):
        entry = plan.get(attempt["run_key"]) if attempt["counts"] else None
        place = f"{folder / ATTEMPTS}, line {line}"
        run = _run(place, attempt, entry, gates.pop((attempt["run_key"], attempt["attempt"]), []))
        if not attempt["counts"]:
            others.append(run)
        elif entry is None or run.key in counted:
            raise ValueError(f"{place}: run {run.key}; valid: each run of {PLAN}, once")
        elif run.verdict == "ok" and "config" not in entry:
            raise ValueError(f"{folder / PLAN}: no config of {named(entry)}; valid: one, it is ok")
        else:
            counted[run.key] = _completed(run, document["config"], entry, manifest)
    if left := [entry for key, entry in plan.items() if key not in counted]:
        raise ValueError(f"{folder / ATTEMPTS}: no attempt at {named(left[0])}")
    if gates:
        key, number = next(iter(gates))
        raise ValueError(
            f"{folder / GATES}: attempt {number} at {key}; valid: the attempts in {ATTEMPTS}"
        )
    runs = [counted[key] for key in plan]
    return KeptRows(
        **{name: document[name] for name in _AS_THEY_ARE},
        published_ids=document["published"],
        compare=document.get("compare", []),
        runs=runs,
        others=others,
        rows=_rows(folder / ROWS, [run for run in runs if run.verdict == "ok"]),
        rounds=_rounds(folder / ROUNDS),
    )


def _rounds(path: Path) -> pl.DataFrame | None:
    try:
        return pl.read_parquet(path, columns=list(ROUND_COLUMNS))
    except FileNotFoundError:
        return None
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: {reason}; valid: rounds as they were kept") from None


def _read_csv(
    path: Path, kind_of: Callable[[str], Column | None], required: Collection[str]
) -> pl.DataFrame:
    try:
        names = pl.read_csv(path, n_rows=0).columns
        if lacking := [name for name in required if name not in names]:
            raise ValueError(f"{path}: no column {lacking[0]!r}; valid: {', '.join(required)}, ...")
        kinds = {name: kind for name in names if (kind := kind_of(name)) is not None}
        if unknown := [name for name in names if name not in kinds]:
            raise ValueError(f"{path}: unknown column {unknown[0]!r}; valid: those of this version")
        rows = pl.read_csv(path, schema_overrides=kinds)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = "missing" if isinstance(error, FileNotFoundError) else str(error).splitlines()[0]
        raise ValueError(f"{path}: {reason}; valid: rows as they were kept") from None
    for numbers in rows.select(pl.col(pl.Float64)):
        for place in (~numbers.is_finite()).arg_true()[:1]:
            line, value = place + 2, numbers[place]  # the header is line 1
            raise ValueError(f"{path}, line {line}: {numbers.name} {value}; valid: a number")
    return rows


def document_of(path: Path, remedy: str = "valid: the file as it was kept") -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; {remedy}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}; {remedy}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: not a JSON object; {remedy}")
    return document


def _plan(path: Path, document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        by_key = {str(entry["key"]): entry for entry in entries}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: {error!r}; valid: a JSON object per planned run") from None
    for entry in entries:
        if entry["arm"] not in document["arms"]:
            valid = ", ".join(document["arms"])
            raise ValueError(f"{path}: arm {entry['arm']!r} of run {entry['key']}; valid: {valid}")
    if len(by_key) != (count := document["planned"]["runs"]):
        raise ValueError(f"{path}: {len(by_key)} runs; valid: {count}, all planned")
    return by_key


def _run(place: str, row: Document, entry: Document | None, gates: list[Document]) -> Run:
    if row["verdict"] not in (*VERDICTS, MISSING):
        valid = ", ".join((*VERDICTS, MISSING))
        raise ValueError(f"{place}: verdict {row['verdict']!r}; valid: {valid}")
    planned = entry or {**row, "factors": {}}
    return Run(
        key=row["run_key"],
        **{name: planned[name] for name in ("arm", "seed", "factors")},
        **{name: row[name] for name in ("verdict", "began_at", "wall_s")},
        reason=row["reason"] or "",
        note=row["note"] or "",
        gates=gates,
        congestion_controls=(row["congestion_controls"] or "").split(),
    )


def _completed(run: Run, shared: Document, entry: Document, manifest: Document) -> Run:
    if "config" not in entry:
        return run
    config = joined(shared, entry["config"]) | {name: entry[name] for name in _OF_A_RUN}
    machine = {name: manifest.get(name) for name in (*IDENTITY, "simulated")}
    machine |= entry.get("manifest", {})
    return replace(run, config=config, manifest=machine if run.verdict == "ok" else {})


def _kind(name: str) -> Column | None:
    if name in ("run_key", "arm") or name.startswith(FACTOR_PREFIX):
        return pl.String
    others: dict[str, Column] = {"seed": pl.Int64, TOLERANCE_VARIED: pl.Boolean}
    return others.get(name) or (pl.Float64 if is_metric(name) else None)


def _rows(path: Path, ok_runs: Sequence[Run]) -> pl.DataFrame:
    """The rows as `per_run` has them, in its order: one of each ok run, with the plan's labels."""
    rows = _read_csv(path, _kind, ("run_key",))
    kept = set(rows["run_key"])
    for run in ok_runs:
        if run.key not in kept:
            raise ValueError(f"{path}: no row of {named(vars(run))}")
    if rows.height != len(ok_runs):
        raise ValueError(f"{path}: {rows.height} rows; valid: {len(ok_runs)}, one per ok run")
    labels = logs.labelled(rows.select("run_key"), ok_runs)
    for planned in labels:
        here = rows[planned.name]
        for place in here.ne_missing(planned).arg_true()[:1]:
            key, valid = rows["run_key"][place], planned[place]
            raise ValueError(
                f"{path}: {here.name} {here[place]} of run {key}; valid: {valid}, as in {PLAN}"
            )
    absent = [metric.name for metric in METRICS if metric.name not in rows.columns]
    return labels.hstack(rows.drop(labels.columns)).with_columns(
        pl.lit(None, dtype=pl.Float64).alias(name) for name in absent
    )


def named(run: Mapping[str, Any]) -> str:
    return f"run {run['key']} ({run['arm']}, seed {run['seed']})"
