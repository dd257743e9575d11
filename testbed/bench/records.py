"""Makes a case's record of its processes' figures, and writes records.

Values are medians of `n` repetitions; `*_low` and `*_high` are the 95 % interval of the median of
values whose logarithms are normal: Student's t, times sqrt(pi / 2). `cpu_s_per_gb_*` is process
time per 1e9 bytes of payload that arrived, `_wire_*` per 1e9 bytes that the senders' links sent.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from testbed.bench.cases import GLOO, OURS, Case
from testbed.lab.kernel import privileges
from testbed.run import manifest
from testbed.transport.layout import PayloadLayout
from testbed.transport.native.fast_path import FAST_PATH
from testbed.transport.wire import wire_bytes

NARROW = 0.1  # the ends of a narrow interval are at most this far from the median, as a share
TIME_S = 3.0
_FEWEST = 2


def byte_bound_s(case: Case) -> float | None:
    """Link time of the chunks to be sent on average: N (1-P) / (1-q); None for unlimited ones."""
    if case.rate_bps is None:
        return None
    layout = PayloadLayout([("payload", case.payload_bytes // 4)], case.chunk_bytes)
    chunks = math.ceil(layout.chunk_count * (1 - case.given_up)) / (1 - case.link.loss)
    frame_bits = wire_bytes(1, layout.chunk_bytes) * 8
    return chunks * frame_bits / case.rate_bps


def jain(values: Iterable[float]) -> float:
    """Jain's fairness index: 1 for equal shares, 1/n when one has all."""
    shares = list(values)
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


WITH_INTERVAL = ("completion_s", "cpu_s_per_gb_sender", "cpu_s_per_gb_receiver")
"""What decides how often a case is repeated: narrow when the interval of each is."""
INTERVALS = (*WITH_INTERVAL, "cpu_s_per_gb_wire_sender", "cpu_s_per_gb_wire_receiver")
"""What has an interval."""
_MEDIANS = (*INTERVALS, "wire_bytes", "goodput_bps", "delivered_share", "jain", "link_busy")


def ends_of(key: str) -> tuple[str, str]:
    """The keys of the interval of a value: `completion_s` has `completion_low_s`, `_high_s`."""
    stem, unit = (key.removesuffix("_s"), "_s") if key.endswith("_s") else (key, "")
    return f"{stem}_low{unit}", f"{stem}_high{unit}"


_MEASURED = (
    *("n", "completion_min_s", "completion_max_s", "narrow", "ratio_to_bound"),
    *(end for key in INTERVALS for end in ends_of(key)),
    *(*_MEDIANS, "control_share", "passes"),
)


def record_of(
    case: Case, status: str, figures: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    ours = case.peer == OURS
    record: dict[str, Any] = {
        "case": case.name,
        "status": status,
        "peer": case.peer,
        "rate_bps": case.link.rate_bps,
        "rtt_s": case.link.rtt_s or 0.0001,
        "added_rtt_s": case.link.rtt_s,
        "loss": case.link.loss,
        "workers": case.link.workers,
        "offloads": case.link.offloads,
        "payload_bytes": case.payload_bytes,
        "pace_bps": case.rate_bps if ours else None,
        "tolerance": case.given_up,
        "repair": case.repair if ours else None,
        "congestion_control": case.congestion_control if case.peer != GLOO else None,
        "order": case.order if ours else None,
        "authenticate": case.authenticate,
        "chunk_bytes": case.chunk_bytes,
        "limit_s": case.limit_s,
        "byte_bound_s": byte_bound_s(case),
    }
    measured: dict[str, Any] = dict.fromkeys(_MEASURED)
    if status == "ok":
        measured |= _measured(case, figures)
    return record | measured


def series(case: Case, figures: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """The values of every repetition, by the record's keys; one without meaning is missing."""
    server = figures["server"]
    workers = [mine for name, mine in figures.items() if name != "server"]
    values: dict[str, list[float]] = {}
    for at_server, *flows in zip(server, *workers, strict=True):
        for key, value in _of_one(case, at_server, flows).items():
            values.setdefault(key, []).append(value)
    return values


def _of_one(
    case: Case, at_server: Mapping[str, Any], flows: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    # Another implementation is done when both calls have returned; of ours, the senders know.
    ends = flows if not case.is_other else [*flows, at_server]
    span_s = max(end["ended_s"] for end in ends) - min(flow["began_s"] for flow in flows)
    size = case.payload_bytes * case.link.workers * _share(case, at_server)
    wire = sum(flow["wire_bytes"] for flow in flows)
    values = {
        "completion_s": span_s,
        "goodput_bps": size * 8 / span_s,
        "delivered_share": _share(case, at_server),
        "wire_bytes": wire,
    }
    spent_s = {"sender": sum(flow["cpu_s"] for flow in flows), "receiver": at_server["cpu_s"]}
    for side, used_s in spent_s.items():
        if size:
            values[f"cpu_s_per_gb_{side}"] = used_s / size * 1e9
        if wire:
            values[f"cpu_s_per_gb_wire_{side}"] = used_s / wire * 1e9
    if case.link.workers > 1 and case.link.rate_bps is not None:
        values["jain"] = jain(1 / (flow["ended_s"] - flow["began_s"]) for flow in flows)
        values["link_busy"] = at_server["carried_bytes"] * 8 / case.link.rate_bps / span_s
    return values


def _share(case: Case, at_server: Mapping[str, Any]) -> float:
    if case.peer == OURS or case.is_other:
        return float(at_server["chunks_received"] / at_server["chunk_count"])
    return 1.0


def _measured(case: Case, figures: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    by_key = series(case, figures)
    spans = by_key["completion_s"]
    measured: dict[str, Any] = {
        "n": len(spans),
        "completion_min_s": min(spans),
        "completion_max_s": max(spans),
        "narrow": all(is_narrow(by_key.get(key, ())) for key in WITH_INTERVAL),
    }
    for key in _MEDIANS:
        if key in by_key:
            measured[key] = statistics.median(by_key[key])
    for key in INTERVALS:
        ends = interval(by_key.get(key, ())) or (None, None)
        measured |= dict(zip(ends_of(key), ends, strict=True))
    if (bound_s := byte_bound_s(case)) is not None:
        measured["ratio_to_bound"] = measured["completion_s"] / bound_s
    senders = [flow for name, mine in figures.items() if name != "server" for flow in mine]
    all_flows = [*senders, *figures["server"]]
    if all("control_bytes" in flow for flow in all_flows):
        control = sum(flow["control_bytes"] for flow in all_flows)
        sent = sum(flow["bytes_sent"] for flow in senders)
        measured["control_share"] = control / (sent + control)
    if case.peer == OURS:
        measured["passes"] = max(flow["passes"] for flow in all_flows)
    return measured


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the values' median; None for fewer than two, or where not all are > 0."""
    n = len(values)
    if n < _FEWEST or min(values) <= 0:
        return None
    spread = statistics.stdev(math.log(value) for value in values)
    share = math.sqrt(math.pi / 2) * float(stdtrit(n - 1, 0.975)) * spread / math.sqrt(n)
    middle = statistics.median(values)
    if share > math.log(1e6):  # the values differ by orders of magnitude: it says nothing
        return None
    return middle * math.exp(-share), middle * math.exp(share)


def is_narrow(values: Sequence[float]) -> bool:
    ends = interval(values)
    return ends is not None and ends[1] <= (1 + NARROW) * statistics.median(values)


def is_finished(case: Case, figures: Mapping[str, list[dict[str, Any]]]) -> bool:
    by_key = series(case, figures)
    n, spent_s = len(by_key["completion_s"]), sum(by_key["completion_s"])
    if n < case.repeats:
        return False
    # As long as those before, the next one would end after the time.
    over = n >= case.most or spent_s * (n + 1) / n > TIME_S
    return over or all(is_narrow(by_key.get(key, ())) for key in WITH_INTERVAL)


def machine() -> dict[str, Any]:
    return {
        "commit": manifest.commit(),
        "cpu": manifest.cpu_model(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiled": FAST_PATH.compiled,
        "load_average": os.getloadavg(),
        "receive_buffer_max_bytes": int(Path("/proc/sys/net/core/rmem_max").read_text()),
        "user_namespace": not privileges.may_be_root(),
    }


def write(path: Path, records: list[dict[str, Any]], facts: dict[str, Any], *, schema: int) -> None:
    """Write the records as a JSON list, one per line; each holds the machine's facts."""
    lines = [json.dumps({"schema": schema, **record, "machine": facts}) for record in records]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
