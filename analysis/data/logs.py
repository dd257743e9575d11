"""Reads one kind of log of many runs at a time, and remarks on what is wrong with a run's.

Whole logs are parsed together: a call for each of ten thousand files would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analysis.data import programs, records
from analysis.data.evidence import FACTOR_PREFIX, Run, factor_names, factor_text, kind_name

_AT_ONCE = 50  # runs whose logs are parsed together: a few ten MB of text
_IMPAIRMENTS = "impairments.jsonl"
_EFFECTS = "effects.jsonl"
_ROUNDS = "rounds.jsonl"
_LOGS = {
    "rounds": (_ROUNDS, records.ROUNDS),
    "transfers": ("transfers-*.jsonl", records.TRANSFERS),
    "training": ("training-*.jsonl", records.TRAINING),
    "impairments": (_IMPAIRMENTS, records.IMPAIRMENTS),
    "effects": (_EFFECTS, records.EFFECTS),
}


def batches(runs: Sequence[Run]) -> Iterator[Sequence[Run]]:
    """The runs in groups whose logs fit into memory together."""
    for first in range(0, len(runs), _AT_ONCE):
        yield runs[first : first + _AT_ONCE]


def read(runs: Sequence[Run], log: str) -> pl.DataFrame:
    """A log of some runs: `run_key`, then the columns of its records."""
    pattern, schema = _LOGS[log]
    frames = [pl.DataFrame(schema={"run_key": pl.String, **schema})]
    frames += [_read(batch, pattern, schema) for batch in batches(runs)]
    frame = pl.concat(frames)
    if log == "rounds":
        _remark_on_missing_rounds(runs, frame)
    if log == "impairments":
        kinds = pl.col("kind").map_elements(kind_name, return_dtype=pl.String)
        frame = frame.with_columns(kinds)
    return frame


def transfers_and_layers(runs: Sequence[Run]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The transfers of few runs, and what was missing of each layer, the mean over transfers."""
    pattern, _ = _LOGS["transfers"]
    frame = _read(runs, pattern, records.TENSOR_LOSS)
    return frame.drop("tensor_loss"), records.layer_loss(frame)


def labelled(frame: pl.DataFrame, runs: Sequence[Run]) -> pl.DataFrame:
    """The rows led by the columns that say whose each is; rows of other runs are left out."""
    factors = factor_names(runs)
    rows = label_rows(runs, factors)
    of_runs = pl.DataFrame(rows, schema=label_schema(factors), orient="row")
    return of_runs.join(frame, on="run_key", how="inner", maintain_order="right")


def label_schema(factors: Sequence[str]) -> dict[str, Any]:
    """The columns that lead every frame, and their types."""
    names = ["run_key", "arm", "seed", *(FACTOR_PREFIX + name for name in factors)]
    return dict.fromkeys(names, pl.String) | {"seed": pl.Int64}


def label_rows(runs: Sequence[Run], factors: Sequence[str]) -> list[tuple[Any, ...]]:
    """The values of these columns for each run."""
    return [
        (run.key, run.arm, run.seed, *(factor_text(run.factors.get(name)) for name in factors))
        for run in runs
    ]


def _read(runs: Sequence[Run], pattern: str, schema: records.Schema) -> pl.DataFrame:
    """The logs of some runs in one piece, or one by one where not all of them are whole."""
    found = [(run, path) for run in runs for path in _paths(run, pattern)]
    texts = [_text(path, expected=_is_expected(pattern, run.config)) for run, path in found]
    whole = [text for text in texts if text is not None]
    if len(whole) == len(texts) and all(not text or text.endswith(b"\n") for text in whole):
        frame = records.read_whole(b"".join(whole), schema)
        if frame is not None:
            lines = np.array([text.count(b"\n") for text in whole], dtype=np.int64)
            rows = np.repeat(np.arange(len(found)), lines)
            keys = pl.Series("run_key", [run.key for run, _ in found], dtype=pl.String)
            return frame.insert_column(0, keys.gather(rows))
    frames = [pl.DataFrame(schema={"run_key": pl.String, **schema})]
    for run, path in found:
        problems: list[str] = []
        frame = records.read_lines(path, schema, problems)
        if _is_expected(pattern, run.config):
            remark(run, problems)
        frames.append(frame.select(pl.lit(run.key).alias("run_key"), pl.all()))
    return pl.concat(frames)


def _paths(run: Run, pattern: str) -> list[Path]:
    """The run's logs of this kind; where there is none, the path that says what is missing."""
    assert run.directory is not None
    events = run.directory / "events"
    return sorted(events.glob(pattern)) or [events / pattern]


def _text(path: Path, *, expected: bool) -> bytes | None:
    """The text of a log; None where there is something to remark on."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None if expected else b""
    except OSError:
        return None


def remark(run: Run, problems: Sequence[str]) -> None:
    """Add what is wrong with a run's files, once: a log may be read again."""
    run.problems.extend(each for each in problems if each not in run.problems)


def _is_expected(pattern: str, config: dict[str, Any]) -> bool:
    """Whether a run with this configuration writes such a log at all."""
    if programs.is_of_script(config) and pattern != _IMPAIRMENTS:
        return False
    if programs.runs_programs(config) and pattern != _IMPAIRMENTS:
        # Whether programs announce rounds is up to them, unless the experiment states how many.
        return pattern == _ROUNDS and bool(config.get("rounds"))
    if pattern == _EFFECTS:
        return bool(records.section(config, "training").get("measure_every"))
    return pattern != _IMPAIRMENTS or bool(config.get("impairments"))


def _remark_on_missing_rounds(runs: Sequence[Run], rounds: pl.DataFrame) -> None:
    found = dict(rounds.group_by("run_key").len().iter_rows())
    for run in runs:
        planned, logged = run.config.get("rounds"), found.get(run.key, 0)
        if programs.is_of_script(run.config):
            continue
        if isinstance(planned, int) and logged != planned:
            lacks = "maximum"
            if not programs.runs_programs(run.config):
                lacks = "training time, bytes or maximum"
            remark(run, [f"{logged} of {planned} rounds in rounds.jsonl: it has no {lacks}"])
