"""Writes the time series of runs as data files of flent (version 4 of its format), to plot them.

A file is JSON, packed by gzip. Its `results` hold every series on one axis of equal steps, the mean
in each; `raw_values` hold the samples. flent's plots find what they show by the names of series, of
keys and of test parameters. So these are flent's own where a plot fits: those of its test `ping`
and what may be added to it, the round latency as one more host that is pinged.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analysis.data import samples
from testbed.shared import jsonl, run_directory
from testbed.shared.input_error import InputError

SUFFIX = ".flent.gz"
STEP_S = 0.1
_VERSION = 4
_TEST = "ping"  # of flent, whose plots apply
_UNKNOWN = "1970-01-01T00:00:00+00:00"
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_ROUND, _QUEUE = "Ping (ms) ICMP round latency (extra)", "qdisc_stats_"

_Values = list[dict[str, float]]  # of a series: `t` in seconds, `val`, and further keys


def export(folder: Path, target: Path) -> list[Path]:
    """Write a data file for each run of an experiment's folder that has a verdict and any series.

    Args:
        folder: of the experiment.
        target: the folder for the files, `RUN.flent.gz` each; it is made where it is not there.

    Returns:
        What was written.

    Raises:
        InputError: no run has any series, a file exists already, or one cannot be written.
    """
    runs = sorted(path.parent for path in folder.glob("*/status.json"))
    written = []
    for run in runs:
        if (document := describe(run)) is None:
            continue
        path = target / f"{run.name}{SUFFIX}"
        try:
            target.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                packed.write(json.dumps(document, sort_keys=True).encode())
        except FileExistsError:
            raise InputError(f"--flent {target}: {path} exists; valid: another folder") from None
        except OSError as error:
            raise InputError(f"--flent {target}: cannot be written: {error.strerror}") from None
        written.append(path)
    if not written:
        raise InputError(f"{folder}: no run has rounds or samples; valid: results of runs")
    return written


def describe(run: Path) -> dict[str, Any] | None:
    """What flent's data file of a run holds; None where nothing was recorded."""
    raw = {name: values for name, values in _series(run) if values}
    if not raw:
        return None
    config = run_directory.read_or_empty(run / "config.json")
    status = run_directory.read_or_empty(run / "status.json")
    begin_s = min(values[0]["t"] for values in raw.values())
    length_s = max(values[-1]["t"] for values in raw.values()) - begin_s
    steps = int(length_s / STEP_S) + 1
    began = datetime.fromisoformat(status.get("began_at") or _UNKNOWN).astimezone(UTC)
    moved_s = began.timestamp() - begin_s
    queues = [name.removeprefix(_QUEUE) for name in raw if name.startswith(_QUEUE)]
    parameters = {"ping_hosts": "round latency"} if _ROUND in raw else {}
    if queues:
        parameters["qdisc_stats_hosts"] = ",".join(queues)
        parameters["qdisc_stats_interfaces"] = ",".join("link" for _ in queues)
    metadata = {
        "NAME": _TEST,
        "TITLE": f"{config.get('experiment')} {run.name}",
        "TIME": began.strftime(_TIME),
        "T0": began.strftime(_TIME),
        "LENGTH": length_s,
        "TOTAL_LENGTH": length_s,
        "STEP_SIZE": STEP_S,
        "HOST": "server",
        "HOSTS": ["server"],
        "LOCAL_HOST": "lab",
        "TEST_PARAMETERS": parameters,
        "NOTE": f"{status.get('verdict')}{', in virtual time' * bool(config.get('simulated'))}",
        "SERIES_META": {name: {"UNITS": _unit(name)} for name in raw},
    }
    return {
        "version": _VERSION,
        "metadata": metadata,
        "x_values": [round(number * STEP_S, 9) for number in range(steps)],
        "results": {name: _means(values, begin_s, steps) for name, values in raw.items()},
        "raw_values": {
            name: [{**each, "t": round(each["t"] + moved_s, 6)} for each in values]
            for name, values in raw.items()
        },
    }


def _series(run: Path) -> Iterator[tuple[str, _Values]]:
    """The name of each series and its samples, in the order of time."""
    rounds = jsonl.read(run / "events" / "rounds.jsonl")
    known = [each for each in rounds if None not in (each.get("ended_s"), each.get("latency_s"))]
    yield _ROUND, [{"t": each["ended_s"], "val": 1e3 * each["latency_s"]} for each in known]
    for (link, sender), rows in samples.queues(run).group_by("link", "from", maintain_order=True):
        first, _, second = str(link).partition("--")
        receiver = second if sender == first else first
        backlog, drops = pl.col("backlog_bytes"), pl.col("drops").diff().fill_null(0)
        found = rows.select(t="t_s", val=backlog / 1e3, backlog_bytes=backlog, dropped=drops)
        yield f"{_QUEUE}{sender}->{receiver}", _values(found)
    flows = samples.flows(run).group_by("kind", "host", "peer", maintain_order=True)
    for (kind, host, peer), rows in flows:
        found = rows.select(
            "cwnd_bytes", t="t_s", val=pl.col("rate_bps") / 1e6, tcp_rtt=pl.col("rtt_s") * 1e3
        )
        yield f"{str(kind).upper()} {host}->{peer}", _values(found)


def _values(frame: pl.DataFrame) -> _Values:
    """A frame's rows, without what was not measured."""
    rows = frame.rows(named=True)
    return [{key: each for key, each in row.items() if each is not None} for row in rows]


def _unit(name: str) -> str:
    return "ms" if name == _ROUND else "kB" if name.startswith(_QUEUE) else "Mbits/s"


def _means(values: _Values, begin_s: float, steps: int) -> Sequence[float | None]:
    """The mean of a series in each step; None where it has no value."""
    given = [(each["t"] - begin_s, each["val"]) for each in values if "val" in each]
    places = np.array([t for t, _ in given]) // STEP_S
    places = np.clip(places.astype(int), 0, steps - 1)
    counts = np.bincount(places, minlength=steps)
    sums = np.bincount(places, weights=[each for _, each in given], minlength=steps)
    return [float(total / n) if n else None for total, n in zip(sums, counts, strict=True)]
