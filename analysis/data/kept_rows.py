"""What is kept of an experiment, from which all its numbers can be recomputed without its logs.

Five files, small enough to commit (docs/reference/kept-results.md says what each column is):
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import logs
from analysis.data.evidence import (
    FAILED,
    IDENTITY,
    MISSING,
    NOT_MEASURED,
    VERDICTS,
    Evidence,
    Run,
    section,
    stops,
)
from analysis.data.metrics import METRICS, is_metric

Column = pl.DataType | type[pl.DataType]
SCHEMA = 1
EXPERIMENT, PLAN = "experiment.json", "plan.jsonl"
ATTEMPTS, GATES, ROWS, MANIFEST = "attempts.csv", "gates.csv", "rows.csv", "manifest.json"
FILES = (EXPERIMENT, PLAN, ATTEMPTS, GATES, ROWS)
# The latency of each round, of which the metrics `OF_ROUNDS` can be recomputed. Results of before
# 2026-11-28 have none, and so no 95th or 99th percentile.
ROUNDS = "rounds.parquet"
ROUND_COLUMNS = ("run_key", "round", "critical", "latency_s", "impairments")
OF_ROUNDS = "round_latency_s."
# A column of `per_run` that is no metric.
TOLERANCE_VARIED = "tolerance_varied"

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
_FACTS: dict[str, Column] = {TOLERANCE_VARIED: pl.Boolean}
OF_A_RUN = ("key", "arm", "seed", "factors")


@dataclass(frozen=True, kw_only=True)
class KeptRows(Evidence):
    """Kept evidence. Its runs have no logs, no directories, and of a manifest only `IDENTITY`
    and whether they are simulated.
    """

    rows: pl.DataFrame
    rounds: pl.DataFrame | None


def read(folder: Path) -> KeptRows:
    """The evidence that a folder keeps."""
    try:
        return _read(folder)
    except (LookupError, TypeError, AttributeError) as error:  # an entry that is not there
        raise ValueError(f"{folder}: {error!r}; valid: the files as they were kept") from None


def _read(folder: Path) -> KeptRows:
    document = _document(folder / EXPERIMENT)
    if document.get("schema") != SCHEMA:
        schema = document.get("schema")
        raise ValueError(f"{folder / EXPERIMENT}: schema {schema!r}; valid: {SCHEMA}")
    plan = _plan(folder / PLAN, document)
    attempts = read_csv(folder / ATTEMPTS, ATTEMPT_COLUMNS)
    gates: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for gate in read_csv(folder / GATES, GATE_COLUMNS).iter_rows(named=True):
        gates.setdefault((gate["run_key"], gate["attempt"]), []).append(_gate(gate))
    manifest = _document(folder / MANIFEST)
    counted: dict[str, Run] = {}
    others: list[Run] = []
    for line, each in enumerate(attempts.iter_rows(named=True), start=2):
        entry = plan.get(each["run_key"]) if each["counts"] else None
        place = f"{folder / ATTEMPTS}, line {line}"
        run = _run(place, each, entry, gates.pop((each["run_key"], each["attempt"]), []))
        if not each["counts"]:
            others.append(run)
        elif entry is None or run.key in counted:
            raise ValueError(f"{place}: run {run.key}; valid: each run of {PLAN}, once")
        elif run.verdict == "ok" and "config" not in entry:
            raise ValueError(f"{folder / PLAN}: no config of {_named(entry)}; valid: one, it is ok")
        else:
            counted[run.key] = _completed(run, document["config"], entry, manifest)
    if left := [entry for key, entry in plan.items() if key not in counted]:
        raise ValueError(f"{folder / ATTEMPTS}: no attempt at {_named(left[0])}")
    if gates:
        key, number = next(iter(gates))
        raise ValueError(
            f"{folder / GATES}: attempt {number} at {key}; valid: the attempts in {ATTEMPTS}"
        )
    runs = [counted[key] for key in plan]
    _check_gates(folder / GATES, runs, others)
    return KeptRows(
        **{name: document[name] for name in _AS_THEY_ARE},
        published_ids=document["published"],
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


def read_csv(
    path: Path, columns: Mapping[str, Column], *, others: Column | None = None
) -> pl.DataFrame:
    """The rows of a table, typed; an empty cell is null."""
    try:
        texts = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = "missing" if isinstance(error, FileNotFoundError) else str(error).splitlines()[0]
        raise ValueError(f"{path}: {reason}; valid: rows as they were kept") from None
    if lacking := [name for name in columns if name not in texts.columns]:
        raise ValueError(f"{path}: no column {lacking[0]!r}; valid: {', '.join(columns)}, ...")
    unknown = [name for name in texts.columns if name not in columns]
    if unknown and others is None:
        raise ValueError(f"{path}: unknown column {unknown[0]!r}; valid: {', '.join(columns)}")
    types = dict.fromkeys(texts.columns, others or pl.String) | dict(columns)
    return texts.select(_typed(path, texts[name], types[name]) for name in texts.columns)


def _typed(path: Path, texts: pl.Series, kind: Column) -> pl.Series:
    if kind == pl.String:
        return texts
    if kind == pl.Boolean:
        known = {"true": True, "false": False}
        typed = texts.replace_strict(known, default=None, return_dtype=pl.Boolean)
        valid = "true, false or nothing"
    else:
        typed, valid = texts.cast(kind, strict=False), "a number or nothing"
        if kind == pl.Float64:
            typed = typed.set(~typed.is_finite(), None)
    wrong = (texts.is_not_null() & typed.is_null()).arg_true()
    if len(wrong):
        line, value = wrong[0] + 2, texts[wrong[0]]  # the header is line 1
        raise ValueError(f"{path}, line {line}: {texts.name} {value!r}; valid: {valid}")
    return typed


def joined(shared: Mapping[str, Any], own_part: Mapping[str, Any]) -> dict[str, Any]:
    """The object of which `own_part` is its own."""
    both_parts = dict(shared)
    for name, value in own_part.items():
        below = shared.get(name)
        both = isinstance(below, dict) and isinstance(value, dict)
        both_parts[name] = joined(below, value) if both and below is not None else value
    return both_parts


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; valid: the file as it was kept") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}; valid: the file as it was kept") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: not a JSON object; valid: the file as it was kept")
    return document


def _plan(path: Path, document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The planned runs by key, as many as the experiment says and of the seeds that it names."""
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        by_key = {str(each["key"]): each for each in entries}
        seeds = sorted({int(each["seed"]) for each in entries})
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: {error!r}; valid: a JSON object per planned run") from None
    for each in entries:
        if each["arm"] not in document["arms"]:
            valid = ", ".join(document["arms"])
            raise ValueError(f"{path}: arm {each['arm']!r} of run {each['key']}; valid: {valid}")
    planned = document.get("planned", {})
    for seed in planned.get("seeds", []):
        if seed not in seeds:
            raise ValueError(f"{path}: seed {seed} is missing; valid: {planned['seeds']}")
    if len(by_key) != planned.get("runs"):
        raise ValueError(f"{path}: {len(by_key)} runs; valid: {planned.get('runs')}, all planned")
    return by_key


def _run(
    place: str, each: dict[str, Any], entry: dict[str, Any] | None, gates: list[dict[str, Any]]
) -> Run:
    """An attempt. Of what the plan names it must be the run that the plan says."""
    if each["verdict"] not in (*VERDICTS, MISSING):
        valid = ", ".join((*VERDICTS, MISSING))
        raise ValueError(f"{place}: verdict {each['verdict']!r}; valid: {valid}")
    planned = entry or each
    for name in ("arm", "seed"):
        if each[name] != planned[name]:
            valid = f"{planned[name]!r}, as in {PLAN}"
            raise ValueError(f"{place}: {name} {each[name]!r}; valid: {valid}")
    return Run(
        key=each["run_key"],
        arm=each["arm"],
        seed=each["seed"],
        factors=entry["factors"] if entry else {},
        verdict=each["verdict"],
        reason=each["reason"] or "",
        note=each["note"] or "",
        began_at=each["began_at"],
        wall_s=each["wall_s"],
        gates=gates,
        congestion_controls=(each["congestion_controls"] or "").split(),
    )


def _completed(
    run: Run, shared: dict[str, Any], entry: dict[str, Any], manifest: dict[str, Any]
) -> Run:
    """A planned run with its configuration, and with its machine and commit if it is ok."""
    if "config" not in entry:
        return run
    config = joined(shared, entry["config"]) | {name: entry[name] for name in OF_A_RUN}
    machine = {name: manifest.get(name) for name in (*IDENTITY, "simulated")}
    machine |= entry.get("manifest", {})
    return replace(run, config=config, manifest=machine if run.verdict == "ok" else {})


def _gate(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the gates, with the names that `status.json` has for them."""
    texts = {name: row[name] or "" for name in ("outcome", "waived", "where")}
    return {"name": row["gate"], "key": row["gate"], **row, **texts}


def _rows(path: Path, ok_runs: Sequence[Run]) -> pl.DataFrame:
    """The rows as `per_run` has them, in its order: one of each ok run, with the plan's labels."""
    texts = read_csv(path, {"run_key": pl.String}, others=pl.String)
    kept = set(texts["run_key"])
    for run in ok_runs:
        if run.key not in kept:
            raise ValueError(f"{path}: no row of {_named(vars(run))}")
    if texts.height != len(ok_runs):
        raise ValueError(f"{path}: {texts.height} rows; valid: {len(ok_runs)}, one per ok run")
    labels = logs.labelled(texts.select("run_key"), ok_runs)
    for planned in labels.cast(pl.String):
        here = texts[planned.name]
        for place in here.ne_missing(planned).arg_true()[:1]:
            key, valid = texts["run_key"][place], planned[place]
            raise ValueError(
                f"{path}: {here.name} {here[place]} of run {key}; valid: {valid}, as in {PLAN}"
            )
    typed = [*labels]
    for column in texts.drop(labels.columns):
        if column.name not in _FACTS and not is_metric(column.name):
            raise ValueError(
                f"{path}: unknown column {column.name!r}; valid: a metric of this version"
            )
        typed.append(_typed(path, column, _FACTS.get(column.name, pl.Float64)))
    absent = [each.name for each in METRICS if each.name not in texts.columns]
    return pl.DataFrame(typed).with_columns(
        pl.lit(None, dtype=pl.Float64).alias(name) for name in absent
    )


def _named(run: Mapping[str, Any]) -> str:
    return f"run {run['key']} ({run['arm']}, seed {run['seed']})"


PASSED = "passed"
# These apply only where a run happened to meet something: packets that wait, or a loss.
_BY_CHANCE = {"rate_under_load", "packet_bytes", "loss_error", "impairments_unmet"}
_AS_KEPT = "the gates as they were kept"


def _check_gates(path: Path, runs: Sequence[Run], others: Sequence[Run]) -> None:
    """Refuse gates that cannot have been kept like this."""
    for run in (*runs, *others):
        for gate in run.gates:
            if wrong := _wrong_gate(gate, run):
                raise ValueError(f"{path}: {gate['name']} of an attempt at {run.key}: {wrong}")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.verdict == "ok":
            # The same machine and version try the same gates at the same point of a sweep.
            kind = json.dumps([run.factors, run.manifest], sort_keys=True)
            groups.setdefault(kind, []).append(run)
    for alike in groups.values():
        for lack in _lacking_gates(alike):
            raise ValueError(f"{path}: {lack}; valid: {_AS_KEPT}")


def _wrong_gate(gate: dict[str, Any], run: Run) -> str:
    """What is wrong with a gate, and what would be valid; empty if nothing is."""
    outcome, value, limit = gate["outcome"], gate["value"], gate["limit"]
    known = section(run.config, "limits")
    if known and gate["name"] not in known:
        return "no such gate; valid: a key of the run's limits"
    if outcome not in (PASSED, FAILED, NOT_MEASURED):
        return f"outcome {outcome!r}; valid: {PASSED}, {FAILED}, {NOT_MEASURED}"
    if gate["decides"] is False and not gate["waived"]:
        return "decides is false, and nothing waives it; valid: true"
    if run.verdict == "ok" and stops(gate):
        return f"{outcome}, and the run is ok; valid: {PASSED}, or waived by limits.waive"
    if outcome == NOT_MEASURED:
        return ""
    if value is None or limit is None:
        return f"{outcome} without a value or limit; valid: both"
    # Both are kept to six digits, so a value just beyond its limit may be equal to it.
    if (value > limit) if outcome == PASSED else (value < limit):
        return f"{outcome} with the value {value:g} and the limit {limit:g}; valid: not both"
    return ""


def _lacking_gates(alike: Sequence[Run]) -> Iterator[str]:
    """The gates that some of these runs have and others lack, in words."""
    tried = [{_family(gate["name"]): gate["name"] for gate in run.gates} for run in alike]
    usual = {family: name for each in tried for family, name in each.items()}
    for run, each in zip(alike, tried, strict=True):
        # Nothing judges a simulated run but whether its impairments met something.
        if not each and not run.config.get("simulated"):
            yield f"run {run.key} is ok without any gate"
        for family, name in usual.items():
            if family not in each and name not in _BY_CHANCE:
                yield f"run {run.key} has no gate {name}, which runs of its kind have"


def _family(gate: str) -> str:
    """The gate without its unit: a share and a time can be limits of the same thing."""
    return gate.removesuffix("_s")
