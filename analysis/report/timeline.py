"""`timeline.html`: one page on which everything that a run measured lies on one axis of time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analysis.data import logs
from analysis.data.evidence import Run, kind_name, runs_programs
from analysis.data.load import Results
from analysis.report.html import embedded, render

FILE = "timeline.html"
PAGE_BYTES = 6_000_000
_MOST_RUNS = 80
# Intervals per series: more than any screen has columns, unless many runs share the page.
_MOST_INTERVALS, _FEWEST_INTERVALS = 3000, 300
_INTERVALS_IN_ALL = 300_000
_QUEUES_SHOWN = 8
_FLOWS_SHOWN = 16
_PROCESSES_SHOWN = 12
# Bars of single rounds are drawn up to here; longer runs have curves only.
_MOST_BARS = 30_000

Series = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Page:
    """The page's text, and the keys of the runs that it has."""

    text: str
    keys: frozenset[str]


def timeline_page(results: Results) -> Page | None:
    """The page; None when no run has anything to show."""
    runs = [run for run in results.runs if run.directory is not None]
    places = _places(results, runs)
    series_per_run = 2 * _FLOWS_SHOWN + _QUEUES_SHOWN + _PROCESSES_SHOWN
    intervals = _INTERVALS_IN_ALL // max(1, min(len(runs), _MOST_RUNS) * series_per_run)
    intervals = min(_MOST_INTERVALS, max(_FEWEST_INTERVALS, intervals))
    shown: dict[str, str] = {}
    used = left_out = 0
    for run in sorted(runs, key=lambda each: places[each.key]):
        if len(shown) == _MOST_RUNS:  # further ones are not even read: it takes its time
            left_out += 1
            continue
        data = run_data(run, intervals)
        if data is None:
            continue
        text = embedded(data)
        if shown and used + len(text) > PAGE_BYTES:
            left_out += 1
            continue
        used += len(text)
        shown[run.key] = text
    if not shown:
        return None
    page = render(
        "timeline.html.j2",
        results=results,
        runs=[(run, shown[run.key]) for run in runs if run.key in shown],
        left_out=left_out,
    )
    return Page(text=page, keys=frozenset(shown))


def _places(results: Results, runs: Sequence[Run]) -> dict[str, tuple[bool, float]]:
    """The order when not all fit: the first run of each arm and point, then those furthest off."""
    slowest = dict(
        results.frame("rounds").group_by("run_key").agg(pl.col("latency_s").max()).iter_rows()
    )
    cells: dict[str, list[Run]] = {}
    for run in runs:
        cells.setdefault(f"{run.arm} {run.factors}", []).append(run)
    places = {}
    for cell in cells.values():
        known = [slowest[run.key] for run in cell if slowest.get(run.key)]
        usual = float(np.median(known)) if known else 1.0
        for run in cell:
            times_usual = (slowest.get(run.key) or usual) / usual
            places[run.key] = (run is not cell[0], -times_usual)
    return places


def run_data(run: Run, intervals: int) -> dict[str, Any] | None:
    """The data that the page draws of one run; times count from its first round or sample."""
    assert run.directory is not None
    events = run.directory / "events"
    rounds = list(_records(events / "rounds.jsonl", logs.ROUNDS))
    queues = logs.samples(run.directory, "queues")
    began = [each["began_s"] for each in rounds if each["began_s"] is not None]
    if not began and queues.is_empty():
        return None
    origin_s = min(began) if began else float(queues["t_s"].min())  # type: ignore[arg-type]
    ended = [each["ended_s"] for each in rounds if each["ended_s"] is not None]
    last_s = max([*ended, *([] if queues.is_empty() else [float(queues["t_s"].max())])])  # type: ignore[arg-type]
    if ended:
        last_s = min(last_s, max(ended) + 0.5)
    clock = _Clock(origin_s, max(last_s, origin_s + 1e-3), intervals)
    facts = logs.sampler(run.directory)
    return {
        "key": run.key,
        "arm": run.arm,
        "seed": run.seed,
        "verdict": run.verdict,
        "duration": clock.relative(clock.last_s),
        "step": clock.step_s,
        "sampler": {name: facts.get(name) for name in ("reached_hz", "cpu_share", "largest_gap_s")},
        "rounds": [
            [
                each["round"],
                clock.relative(each["began_s"]),
                clock.relative(each["ended_s"]),
                each["latency_s"] and round(each["latency_s"], 5),
                bool(each["critical"]),
            ]
            for each in rounds
            if None not in (each["began_s"], each["ended_s"])
        ],
        "impairments": _impairments(
            _records(events / "impairments.jsonl", logs.IMPAIRMENTS), clock
        ),
        "workers": _workers(run, rounds, clock),
        "queues": _queues(queues, facts, clock),
        **_flows(logs.samples(run.directory, "flows"), clock),
        "processes": _processes(logs.samples(run.directory, "processes"), clock),
    }


class _Clock:
    """The run's axis: seconds since its origin, cut into equal intervals."""

    def __init__(self, origin_s: float, last_s: float, intervals: int) -> None:
        self.origin_s, self.last_s, self.intervals = origin_s, last_s, intervals
        self.step_s = (last_s - origin_s) / intervals

    def relative(self, at_s: float) -> float:
        return round(at_s - self.origin_s, 5)

    def reduce(self, times_s: NDArray[np.float64], values: NDArray[np.float64]) -> list[Any]:
        """Lowest and highest value per interval: [interval, lowest, highest] where they change."""
        places = np.floor((times_s - self.origin_s) / self.step_s).astype(np.int64)
        good = (places >= 0) & (places < self.intervals) & np.isfinite(values)
        places, values = places[good], values[good]
        if not len(places):
            return []
        order = np.argsort(places, kind="stable")
        places, values = places[order], values[order]
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        lowest = np.minimum.reduceat(values, starts)
        highest = np.maximum.reduceat(values, starts)
        changed = np.ones(len(starts), dtype=np.bool_)
        changed[1:] = (lowest[1:] != lowest[:-1]) | (highest[1:] != highest[:-1])
        changed[-1] = True
        return [
            [int(place), _short(low), _short(high)]
            for place, low, high in zip(
                places[starts][changed], lowest[changed], highest[changed], strict=True
            )
        ]


def _queues(frame: pl.DataFrame, facts: Mapping[str, Any], clock: _Clock) -> list[dict[str, Any]]:
    """The links that ever queued, the fullest first."""
    links = facts.get("directed_links") or []
    limits = {each["link"]: each.get("queue_bytes") for each in links}
    links_shown = []
    for (link, sender), rows in frame.group_by(["link", "from"], maintain_order=True):
        highest = int(rows["backlog_bytes"].max() or 0)  # type: ignore[arg-type]
        drops = int(rows["drops"].max() or 0) - int(rows["drops"].min() or 0)  # type: ignore[arg-type]
        if not highest and not drops:
            continue
        times_s = rows["t_s"].to_numpy()
        new = np.diff(rows["drops"].to_numpy(), prepend=rows["drops"][0])
        lost: Counter[int] = Counter()
        for index in np.flatnonzero(new > 0):
            place = int((times_s[index] - clock.origin_s) / clock.step_s)
            if 0 <= place < clock.intervals:
                lost[place] += int(new[index])
        first, _, second = str(link).partition("--")
        links_shown.append(
            {
                "name": f"{sender} \u2192 {second if sender == first else first}",
                "limit": limits.get(link),
                "highest": highest,
                "dropped": drops,
                "bytes": clock.reduce(times_s, rows["backlog_bytes"].to_numpy().astype(float)),
                "drops": [[place, count] for place, count in sorted(lost.items())],
            }
        )
    links_shown.sort(key=lambda each: (each["dropped"], each["highest"]), reverse=True)
    return links_shown[:_QUEUES_SHOWN]


def _flows(frame: pl.DataFrame, clock: _Clock) -> dict[str, list[Series]]:
    """Windows (or, of a sender without one, its pace) and round trips per flow."""
    columns = {"windows": "cwnd_bytes", "rates": "rate_bps", "round_trips": "rtt_s"}
    series: dict[str, list[Series]] = {kind: [] for kind in columns}
    groups = list(frame.group_by(["host", "peer"], maintain_order=True))
    for (host, peer), rows in sorted(groups, key=lambda each: str(each[0]))[:_FLOWS_SHOWN]:
        name, times_s = f"{host} \u2192 {peer}", rows["t_s"].to_numpy()
        for kind, column in columns.items():
            reduced = clock.reduce(times_s, rows[column].fill_null(math.nan).to_numpy())
            if reduced:
                series[kind].append({"name": name, "values": reduced})
    return series


def _processes(frame: pl.DataFrame, clock: _Clock) -> list[Series]:
    """The share of a core that each of the busiest processes used."""
    busiest = []
    for (name,), rows in frame.group_by(["name"], maintain_order=True):
        times_s, cpu_s = rows["t_s"].to_numpy(), rows["cpu_s"].to_numpy()
        # Processor time comes in steps of 10 ms: shares over half a second.
        apart = 5
        if len(times_s) <= apart:
            continue
        shares = (cpu_s[apart:] - cpu_s[:-apart]) / (times_s[apart:] - times_s[:-apart])
        used = float(cpu_s[-1] - cpu_s[0])
        busiest.append((used, {"name": str(name), "values": clock.reduce(times_s[apart:], shares)}))
    busiest.sort(key=lambda each: -each[0])
    return [each for _, each in busiest[:_PROCESSES_SHOWN] if each["values"]]


def _impairments(records: Iterable[Mapping[str, Any]], clock: _Clock) -> list[dict[str, Any]]:
    """Per impairment its times in force: [planned, acknowledged, planned end, acknowledged end]."""
    by_name: dict[str, dict[str, Any]] = {}
    for each in records:
        if None in (each["planned_s"], each["acknowledged_s"]):
            continue
        name, kind = str(each["name"]), kind_name(str(each["kind"]))
        entry = by_name.setdefault(name, {"name": name, "kind": kind, "bars": []})
        times = [clock.relative(each[at]) for at in ("planned_s", "acknowledged_s")]
        if each["action"] == "begin":
            entry["bars"].append(times)
        else:
            for bar in entry["bars"]:
                if len(bar) == 2:  # the first that has not ended yet
                    bar += times
                    break
    for entry in by_name.values():
        for bar in entry["bars"]:
            if len(bar) == 2:  # still in force at the end
                bar += [clock.relative(clock.last_s)] * 2
    return list(by_name.values())


def _workers(run: Run, rounds: Sequence[Mapping[str, Any]], clock: _Clock) -> list[dict[str, Any]]:
    """Per worker, or rank, its bars: [0 compute | 1 gather | 2 broadcast, begin, end, round]."""
    assert run.directory is not None
    began_s = {each["round"]: each["began_s"] for each in rounds}
    paths = sorted((run.directory / "events").glob("transfers-*.jsonl"), key=_natural)
    if not runs_programs(run.config):  # there the host `server` has a rank, too
        paths = [path for path in paths if path.stem != "transfers-server"]
    if 3 * len(rounds) * len(paths) > _MOST_BARS:
        return []
    workers = []
    for path in paths:
        name = path.stem.removeprefix("transfers-")
        bars = []
        for each in _records(path.with_name(f"training-{name}.jsonl"), logs.TRAINING):
            begin_s, compute_s = began_s.get(each["round"]), each["compute_s"]
            if begin_s is not None and compute_s is not None:
                end_s = begin_s + compute_s
                bars.append([0, clock.relative(begin_s), clock.relative(end_s), each["round"]])
        for each in _records(path, logs.TRANSFERS):
            if None not in (each["began_s"], each["ended_s"]):
                leg = 1 if each["leg"] == "gather" else 2
                times = [clock.relative(each["began_s"]), clock.relative(each["ended_s"])]
                bars.append([leg, *times, each["round"]])
        if bars:
            workers.append({"name": name, "bars": bars})
    return workers


def _records(path: Path, schema: logs.Schema) -> Iterator[dict[str, Any]]:
    """The whole records of a log; none where there is no such log."""
    return logs.read_lines(path, schema, []).iter_rows(named=True)


def _natural(path: Path) -> tuple[str, int]:
    """An order in which worker-10 comes after worker-9."""
    stem, _, number = path.stem.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (path.stem, 0)


def _short(value: float) -> float | int:
    """Four significant digits: more would not be seen, and the page holds many."""
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded
