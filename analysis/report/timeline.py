"""`timeline.html`: one page on which everything that a run measured lies on one axis of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import logs
from analysis.data.evidence import Run, kind_name, runs_programs
from analysis.data.load import Results
from analysis.report.html import embedded, render

FILE = "timeline.html"
_MOST_POINTS = 400_000  # of a page, which then has about 6 MB; runs share them evenly
_FEWEST_POINTS = 10_000  # of a run: fewer would show nothing, so further runs are left out
_MOST_SERIES = 12  # of a kind: queues, flows, processes
_KINDS = 4  # of series that a run has

Series = dict[str, Any]


def timeline_page(results: Results) -> tuple[str, set[str]]:
    """The page and the keys of its runs; an empty text when no run has anything to show."""
    runs = [run for run in results.runs if run.directory is not None]
    first = {(run.arm, str(run.factors)): run for run in reversed(runs)}  # of each arm and point
    runs.sort(key=lambda run: run is not first[run.arm, str(run.factors)])
    points = max(_FEWEST_POINTS, _MOST_POINTS // max(1, len(runs)))
    within = runs[: _MOST_POINTS // points]
    shown = {run.key: data for run in within if (data := run_data(run, points)) is not None}
    if not shown:
        return "", set()
    page = render(
        "timeline.html.j2",
        results=results,
        runs=[(run, embedded(shown[run.key])) for run in results.runs if run.key in shown],
        left_out=len(runs) - len(within),
    )
    return page, set(shown)


def run_data(run: Run, points: int) -> dict[str, Any] | None:
    """The data that the page draws of one run; times count from its first round or sample."""
    assert run.directory is not None
    events = run.directory / "events"
    rounds = [
        record
        for record in _records(events / "rounds.jsonl", logs.ROUNDS)
        if None not in (record["began_s"], record["ended_s"])
    ]
    queues, flows, processes = (
        logs.samples(run.directory, name) for name in ("queues", "flows", "processes")
    )
    times_s = [record[end] for record in rounds for end in ("began_s", "ended_s")]
    times_s = times_s or queues["t_s"].to_list()
    if not times_s:
        return None
    clock = _Clock(min(times_s), max(times_s), points // (_KINDS * _MOST_SERIES))
    facts = logs.sampler(run.directory)
    return {
        "key": run.key,
        "arm": run.arm,
        "seed": run.seed,
        "verdict": run.verdict,
        "duration": clock.duration_s,
        "step": clock.step_s,
        "sampler": {name: facts.get(name) for name in ("reached_hz", "cpu_share", "largest_gap_s")},
        "rounds": [
            [
                record["round"],
                *clock.relative(record["began_s"], record["ended_s"]),
                record["latency_s"] and round(record["latency_s"], 5),
                bool(record["critical"]),
            ]
            for record in rounds
        ],
        "impairments": _impairments(
            _records(events / "impairments.jsonl", logs.IMPAIRMENTS), clock
        ),
        "workers": _workers(run, rounds, clock, points),
        "queues": _queues(queues, facts, clock),
        **_flows(flows, clock),
        "processes": _processes(processes, clock),
    }


class _Clock:
    """The run's axis: seconds since its origin, cut into equal intervals."""

    def __init__(self, origin_s: float, last_s: float, intervals: int) -> None:
        self.origin_s, self.intervals = origin_s, intervals
        self.duration_s = round(max(last_s - origin_s, 1e-3), 5)
        self.step_s = self.duration_s / intervals

    def relative(self, *times_s: float) -> list[float]:
        return [round(time_s - self.origin_s, 5) for time_s in times_s]

    def intervals_of(self, times_s: pl.Series, values: pl.Series) -> pl.DataFrame:
        """The `lowest`, `highest` and `sum` of each interval with finite values."""
        places = ((times_s - self.origin_s) / self.step_s).floor().cast(pl.Int64)
        frame = pl.DataFrame({"at": places, "value": values.cast(pl.Float64)})
        value, at = pl.col("value"), pl.col("at")
        frame = frame.filter(value.is_finite(), at >= 0, at < self.intervals)
        lowest, highest = value.min().round_sig_figs(4), value.max().round_sig_figs(4)
        return frame.group_by("at").agg(lowest=lowest, highest=highest, sum=value.sum()).sort("at")

    def reduce(self, times_s: pl.Series, values: pl.Series) -> list[Any]:
        """[interval, lowest, highest] where they change, and of the last interval."""
        intervals = self.intervals_of(times_s, values).drop("sum")
        ends = pl.struct("lowest", "highest")
        is_last = pl.int_range(pl.len()) == pl.len() - 1
        return list(map(list, intervals.filter(ends.ne_missing(ends.shift()) | is_last).rows()))


def _queues(frame: pl.DataFrame, facts: Mapping[str, Any], clock: _Clock) -> list[Series]:
    links = facts.get("directed_links") or []
    limits = {link["link"]: link.get("queue_bytes") for link in links}
    shown = []
    for (link, sender), rows in frame.group_by(["link", "from"], maintain_order=True):
        times_s, backlog, new_drops = rows["t_s"], rows["backlog_bytes"], rows["drops"].diff()
        highest, dropped = int(backlog.max() or 0), int(new_drops.sum() or 0)  # type: ignore[arg-type]
        if not highest and not dropped:
            continue
        first, _, second = str(link).partition("--")
        lost = clock.intervals_of(times_s, new_drops).filter(pl.col("sum") > 0)
        series = {
            "name": f"{sender} \u2192 {second if sender == first else first}",
            "limit": limits.get(link),
            "highest": highest,
            "dropped": dropped,
            "bytes": clock.reduce(times_s, backlog),
            "drops": list(map(list, lost.select("at", "sum").rows())),
        }
        shown.append(series)
    shown.sort(key=lambda series: (series["dropped"], series["highest"]), reverse=True)
    return shown[:_MOST_SERIES]


def _flows(frame: pl.DataFrame, clock: _Clock) -> dict[str, list[Series]]:
    columns = {"windows": "cwnd_bytes", "rates": "rate_bps", "round_trips": "rtt_s"}
    series: dict[str, list[Series]] = {kind: [] for kind in columns}
    groups = list(frame.group_by(["host", "peer"], maintain_order=True))
    for (host, peer), rows in sorted(groups, key=lambda group: str(group[0]))[:_MOST_SERIES]:
        for kind, column in columns.items():
            if reduced := clock.reduce(rows["t_s"], rows[column]):
                series[kind].append({"name": f"{host} \u2192 {peer}", "values": reduced})
    return series


def _processes(frame: pl.DataFrame, clock: _Clock) -> list[Series]:
    used = pl.col("cpu_s").max() - pl.col("cpu_s").min()
    busiest = frame.group_by("name").agg(used).sort("cpu_s", "name", descending=[True, False])
    shown = []
    for name in busiest["name"].head(_MOST_SERIES):
        rows = frame.filter(name=name)
        # Processor time comes in steps of 10 ms: shares over five samples, half a second.
        shares = rows["cpu_s"].diff(5) / rows["t_s"].diff(5)
        if reduced := clock.reduce(rows["t_s"], shares):
            shown.append({"name": str(name), "values": reduced})
    return shown


def _impairments(records: Iterable[Mapping[str, Any]], clock: _Clock) -> list[dict[str, Any]]:
    """The times of each impairment: [planned, acknowledged, planned end, acknowledged end]."""
    by_name: dict[str, dict[str, Any]] = {}
    for record in records:
        if None in (record["planned_s"], record["acknowledged_s"]):
            continue
        name, kind = str(record["name"]), kind_name(str(record["kind"]))
        bars = by_name.setdefault(name, {"name": name, "kind": kind, "bars": []})["bars"]
        times = clock.relative(record["planned_s"], record["acknowledged_s"])
        if record["action"] == "begin":
            bars.append(times)
        elif in_force := [bar for bar in bars if len(bar) == 2]:
            in_force[0] += times
    for entry in by_name.values():
        for bar in entry["bars"]:
            bar += [clock.duration_s] * (4 - len(bar))  # still in force at the end
    return list(by_name.values())


def _workers(
    run: Run, rounds: Sequence[Mapping[str, Any]], clock: _Clock, most_bars: int
) -> list[dict[str, Any]]:
    """The bars of each worker or rank: [0 compute | 1 gather | 2 broadcast, begin, end, round]."""
    assert run.directory is not None
    began_s = {record["round"]: record["began_s"] for record in rounds}
    paths = list((run.directory / "events").glob("transfers-*.jsonl"))
    if not runs_programs(run.config):  # there the host `server` has a rank, too
        paths = [path for path in paths if path.stem != "transfers-server"]
    if 3 * len(rounds) * len(paths) > most_bars:  # such runs have curves only
        return []
    workers = []
    for path in sorted(paths, key=lambda path: (len(path.stem), path.stem)):  # 10 is after 9
        name, bars = path.stem.removeprefix("transfers-"), []
        for record in _records(path.with_name(f"training-{name}.jsonl"), logs.TRAINING):
            if record["round"] in began_s and record["compute_s"] is not None:
                begin_s = began_s[record["round"]]
                times = clock.relative(begin_s, begin_s + record["compute_s"])
                bars.append([0, *times, record["round"]])
        for record in _records(path, logs.TRANSFERS):
            if None not in (record["began_s"], record["ended_s"]):
                leg = 1 if record["leg"] == "gather" else 2
                times = clock.relative(record["began_s"], record["ended_s"])
                bars.append([leg, *times, record["round"]])
        if bars:
            workers.append({"name": name, "bars": bars})
    return workers


def _records(path: Path, schema: logs.Schema) -> Iterator[dict[str, Any]]:
    return logs.read_lines(path, schema, []).iter_rows(named=True)
