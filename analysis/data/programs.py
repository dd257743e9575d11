"""Measures runs of a user's own programs: from the lab's own samples, whatever programs print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import logs
from analysis.data.evidence import Run
from analysis.data.metrics import order

_LEAST_BYTES = 10_000  # a flow of less only answers
_LEAST_QUEUE_BYTES = 3_000  # two packets: with less, nothing ever had to wait
_LEAST_SAMPLES = 2  # of one there is no rate
Values = Iterator[tuple[str, float]]  # the name of a metric (`metrics`), and its value


def workload(directory: Path | None) -> list[dict[str, Any]]:
    if directory is None:
        return []
    return logs.read_document(directory / "workload.json", []).get("programs") or []


def with_metrics(frame: pl.DataFrame, runs: Sequence[Run]) -> pl.DataFrame:
    of_run = {run.key: measured(run.directory) for run in runs if run.directory}
    names = sorted({name for values in of_run.values() for name in values}, key=order)
    return frame.with_columns(
        pl.Series(name, [of_run.get(key, {}).get(name) for key in frame["run_key"]], pl.Float64)
        for name in names
    )


def measured(directory: Path) -> dict[str, float]:
    programs = workload(directory)
    ended = [program for program in programs if program.get("began_s") and program.get("ended_s")]
    if not ended:
        return {}
    queues = logs.samples(directory, "queues")
    inside = _announced(directory, queues)
    if inside is None:
        began_s = min(float(program["began_s"]) for program in ended)
        inside = pl.col("t_s").is_between(began_s, max(program["ended_s"] for program in ended))
    queues = queues.filter(inside)
    hosts = {str(program.get("host")) for program in programs}
    values = dict(_waits(directory, programs))
    for program in ended:
        if not program.get("service"):
            duration_s = program["ended_s"] - program["began_s"]
            values[f"programs.{_key(program['name'])}.duration_s"] = duration_s
    values |= dict(_flows(logs.samples(directory, "flows"), inside))
    values |= dict(_hosts(queues, hosts))
    for host, used_s in logs.cpu_s_of_hosts(directory).items():
        values[f"hosts.{_key(host)}.cpu_s"] = used_s
    return values | dict(_queues(queues, logs.sampler(directory)))


def _announced(directory: Path, queues: pl.DataFrame) -> pl.Expr | None:
    """An expression that is true from the first announced round's begin to the last one's end."""
    rounds = logs.read_lines(directory / "events" / "rounds.jsonl", logs.ROUNDS, [])
    began_s, ended_s = rounds["began_s"].min(), rounds["ended_s"].max()
    if began_s is None or ended_s is None:
        return None
    inside = pl.col("t_s").is_between(_number(began_s), _number(ended_s))
    of_links = queues.group_by("link", "from").agg(pl.col("t_s").filter(inside).n_unique())
    return None if (of_links["t_s"] < _LEAST_SAMPLES).any() else inside


def congestion_controls(directory: Path) -> list[str]:
    connections = logs.sampler(directory).get("congestion_controls") or []
    return sorted({connection["congestion_control"] for connection in connections} - {""})


def _waits(directory: Path, programs: list[dict[str, Any]]) -> Values:
    """The waits of programs whose hook wrote a log of its steps."""
    names: dict[int, str] = {}  # by rank
    waited: dict[tuple[int, int], tuple[int, float]] = {}  # by step and rank: for whom, how long
    for program in programs:
        path = directory / "events" / f"training-{program.get('name')}.jsonl"
        if not path.exists():
            continue
        steps = logs.read_lines(path, logs.TRAINING, [])
        waits = steps["wait_s"].drop_nulls()
        if len(waits):
            yield f"programs.{_key(program['name'])}.wait_s", _number(waits.mean())
        names.update(dict.fromkeys(steps["rank"].drop_nulls().to_list(), _key(program["name"])))
        columns = ("round", "rank", "slowest_rank", "slowest_s")
        for step, rank, slowest, slowest_s in steps.select(columns).drop_nulls().rows():
            waited[step, rank] = slowest, slowest_s
    if waited:
        for rank, name in sorted(names.items()):
            yield f"programs.{name}.waited_for_s", _waited_for_s(rank, waited)


def _waited_for_s(rank: int, waited: Mapping[tuple[int, int], tuple[int, float]]) -> float:
    """The mean time that others waited for a rank in a step; `waited` is as in `_waits`."""
    longest_s = dict.fromkeys((step for step, _ in waited), 0.0)
    for (step, _), (slowest, waited_s) in waited.items():
        if slowest == rank:
            # A mean that is late because its maker waits for a gradient is not its maker's fault.
            _, own_s = waited.get((step, rank), (rank, 0.0))
            longest_s[step] = max(longest_s[step], waited_s - own_s)
    return sum(longest_s.values()) / len(longest_s)


def _flows(flows: pl.DataFrame, inside: pl.Expr) -> Values:
    connection = ["host", "peer", "port", "peer_port"]
    big = pl.col("acked_bytes").max().over(connection) >= _LEAST_BYTES
    for (host, peer), rows in (
        flows.filter(big).sort("t_s").group_by(["host", "peer"], maintain_order=True)
    ):
        within = rows.filter(inside)
        sent = pl.col("acked_bytes").last() - pl.col("acked_bytes").first()
        delivered = within.group_by(connection).agg(sent)["acked_bytes"].sum()
        place = f"flows.{_key(host)}->{_key(peer)}"
        span_s = _number(within["t_s"].max()) - _number(within["t_s"].min())
        if span_s > 0:
            yield f"{place}.goodput_bps", _number(delivered) * 8 / span_s
        last = rows.group_by(connection).agg(pl.col("acked_bytes", "retransmits").last())
        yield f"{place}.bytes", _number(last["acked_bytes"].sum())
        yield f"{place}.retransmits", _number(last["retransmits"].sum())
        yield from _quantiles(f"{place}.rtt", within["rtt_s"].drop_nulls())


def _hosts(queues: pl.DataFrame, hosts: set[str]) -> Values:
    all_sent = 0.0
    for (link, sender), rows in queues.group_by(["link", "from"], maintain_order=True):
        span_s = _number(rows["t_s"].max()) - _number(rows["t_s"].min())
        ends = set(str(link).split("--"))
        for host in sorted(ends & hosts):
            if span_s > 0:
                sent = _number(rows["sent_bytes"].max()) - _number(rows["sent_bytes"].min())
                all_sent += sent * (host == sender)
                quantity = "sent_bps" if host == sender else "received_bps"
                yield f"hosts.{_key(host)}.{quantity}", sent * 8 / span_s
    if all_sent:
        yield "hosts.all.sent_bytes", all_sent


def _queues(queues: pl.DataFrame, facts: Mapping[str, Any]) -> Values:
    links = facts.get("directed_links") or []
    rates_bps = {(link["link"], link["from"]): link.get("rate_bps") for link in links}
    for (link, sender), rows in queues.group_by(["link", "from"], maintain_order=True):
        rate_bps = rates_bps.get((link, sender))
        if not rate_bps or _number(rows["backlog_bytes"].max()) < _LEAST_QUEUE_BYTES:
            continue
        first, _, second = str(link).partition("--")
        place = f"queues.{_key(sender)}->{_key(second if sender == first else first)}.delay"
        yield from _quantiles(place, rows["backlog_bytes"] * (8 / rate_bps))


def _quantiles(place: str, values: pl.Series) -> Values:
    for percent in (50, 95):
        quantile = values.quantile(percent / 100, interpolation="linear")
        if quantile is not None:
            yield f"{place}_p{percent}_s", float(quantile)


def _number(value: Any) -> float:
    return float(value or 0.0)


def _key(name: object) -> str:
    """A name as a part of a metric's, whose parts have dots between them."""
    return str(name).replace(".", "_")
