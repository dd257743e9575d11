"""Turns the figures of a case's processes into its record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from testbed.bench.transport.cases import GLOO, OURS, Case
from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.wire import wire_bytes


def byte_bound_s(case: Case) -> float | None:
    """Link time of the chunks to be sent on average: N (1-P) / (1-q); None for unshaped links.

    It bounds the mean. A transfer that loses a smaller share than q is faster.

    Kernel TCP and Gloo are held against the same frames, with nothing to give up. All flows of
    an incast share the link.
    """
    if case.link.rate_bps is None:
        return None
    layout = PayloadLayout([("payload", case.payload_bytes // 4)], case.chunk_bytes)
    tolerance = case.tolerance if case.peer == OURS else 0.0
    chunks = math.ceil(layout.chunk_count * (1 - tolerance)) / (1 - case.link.loss)
    frame_bits = wire_bytes(1, layout.chunk_bytes) * 8
    return chunks * case.link.workers * frame_bits / case.link.rate_bps


def jain(values: Iterable[float]) -> float:
    """Jain's fairness index: 1 for equal shares, 1/n when one has all."""
    shares = list(values)
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def record_of(
    case: Case, status: str, figures: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """The record of a case; what was not measured is null."""
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
        "tolerance": case.tolerance if ours else 0.0,
        "repair": case.repair if ours else None,
        "congestion_control": case.congestion_control if case.peer != GLOO else None,
        "checksum": case.checksum,
        "chunk_bytes": case.chunk_bytes,
        "limit_s": case.limit_s,
        "byte_bound_s": byte_bound_s(case),
    }
    measured = dict.fromkeys(
        (
            *("n", "completion_s", "completion_min_s", "completion_max_s", "ratio_to_bound"),
            *("goodput_bps", "cpu_s_per_gb_sender", "cpu_s_per_gb_receiver"),
            *("control_share", "passes", "jain", "link_busy"),
        )
    )
    if status == "ok":
        measured |= _measured(case, figures)
    return record | measured


def _measured(case: Case, figures: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    server = figures["server"]
    workers = [mine for name, mine in figures.items() if name != "server"]
    rounds = list(zip(*workers, strict=True))
    spans = [
        max(flow["ended_s"] for flow in flows) - min(flow["began_s"] for flow in flows)
        for flows in rounds
    ]
    bound_s = byte_bound_s(case)
    completion_s = statistics.median(spans)
    sizes = [_delivered_bytes(case, at_server) for at_server in server]
    cost = {
        "sender": [sum(flow["cpu_s"] for flow in flows) for flows in rounds],
        "receiver": [at_server["cpu_s"] for at_server in server],
    }
    measured: dict[str, Any] = {
        "n": len(spans),
        "completion_s": completion_s,
        "completion_min_s": min(spans),
        "completion_max_s": max(spans),
        "ratio_to_bound": None if bound_s is None else completion_s / bound_s,
        "goodput_bps": statistics.median(
            size * 8 / span for size, span in zip(sizes, spans, strict=True)
        ),
    }
    for side, values in cost.items():
        measured[f"cpu_s_per_gb_{side}"] = statistics.median(
            value / size * 1e9 for value, size in zip(values, sizes, strict=True)
        )
    if case.peer == GLOO:
        return measured
    sent = sum(flow["bytes_sent"] for flows in rounds for flow in flows)
    control = sum(flow["control_bytes"] for flows in rounds for flow in flows)
    control += sum(at_server["control_bytes"] for at_server in server)
    measured["control_share"] = control / (sent + control)
    if case.peer == OURS:
        measured["passes"] = max(flow["passes"] for flows in rounds for flow in flows)
    if case.link.workers > 1 and case.link.rate_bps is not None:
        measured["jain"] = statistics.median(
            jain(1 / (flow["ended_s"] - flow["began_s"]) for flow in flows) for flows in rounds
        )
        measured["link_busy"] = statistics.median(
            at_server["carried_bytes"] * 8 / case.link.rate_bps / span
            for at_server, span in zip(server, spans, strict=True)
        )
    return measured


def _delivered_bytes(case: Case, at_server: Mapping[str, Any]) -> float:
    """Payload that arrived in one round, at all flows together."""
    if case.peer != OURS:
        return float(case.payload_bytes * case.link.workers)
    share = at_server["chunks_received"] / at_server["chunk_count"]
    return float(case.payload_bytes * case.link.workers * share)
