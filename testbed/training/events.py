"""The records that training appends to its event logs: transfers, endpoints, congestion."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.shared.jsonl import JsonLinesWriter
from testbed.training.lost_chunk_effects import tensor_loss
from testbed.transport import Endpoint, Leg, Observation, PayloadLayout, TransferReport


def finite(value: float) -> float | None:
    """The value, or None when it is NaN or infinite (JSON has neither)."""
    return value if math.isfinite(value) else None


def nonfinite(values: NDArray[np.float32]) -> int:
    """How many elements are NaN or infinite; they are delivered unchanged and counted."""
    return int(values.size - np.count_nonzero(np.isfinite(values)))


def write_endpoint(directory: Path, host: str, endpoint: Endpoint) -> None:
    """Log, after all rounds, what the kernel granted to a host's endpoint and what it ignored.

    This includes the congestion control that kernel TCP really used.
    """
    log = JsonLinesWriter(directory / "events" / f"endpoint-{host}.jsonl")
    log.write({"host": host, "facts": endpoint.facts(), "ignored": endpoint.counters()})
    log.close()


def transfer_record(
    report: TransferReport,
    *,
    host: str,
    round_number: int,
    leg: str,
    layout: PayloadLayout | None = None,
) -> dict[str, Any]:
    """One line of `events/transfers-<host>.jsonl`.

    With a layout, a receiver's line has `tensor_loss`: the missing share of each tensor.
    """
    by_tensor = {}
    if layout is not None and report.role == "receiver" and report.received is not None:
        lost = tensor_loss(layout, report.received)
        by_tensor = {"tensor_loss": np.round(lost, 4).tolist()}
    return {
        "round": round_number,
        "leg": leg,
        "role": report.role,
        "host": host,
        "peer": report.peer,
        "chunk_count": report.chunk_count,
        "chunks_received": report.chunks_received,
        "passes": report.passes,
        "chunks_sent": report.chunks_sent,
        "bytes_sent": report.bytes_sent,
        "bytes_received": report.bytes_received,
        "control_bytes": report.control_bytes,
        "retransmitted_bytes": report.retransmitted_bytes,
        "duplicates": report.duplicates,
        "began_s": report.began_s,
        "ended_s": report.ended_s,
        "duration_s": report.duration_s,
        "ignored": dict(report.ignored),
        **by_tensor,
    }


class CongestionLog:
    """Logs the congestion state of a host's sending paths to `events/congestion-<host>.jsonl`.

    `observe` is for `EndpointConfig.observer` and only remembers; `flush` writes. Without
    observations there is no file. `round_of` tells the round that an exchange belongs to.
    """

    def __init__(self, directory: Path, host: str, round_of: Callable[[int], int]) -> None:
        self._path = directory / "events" / f"congestion-{host}.jsonl"
        self._host = host
        self._round_of = round_of
        self._writer: JsonLinesWriter | None = None
        self._observed: list[Observation] = []

    def observe(self, observation: Observation) -> None:
        """Remember one observation."""
        self._observed.append(observation)

    def flush(self) -> None:
        """Append the observations to the log; call it outside measured times."""
        if not self._observed:
            return
        if self._writer is None:
            self._writer = JsonLinesWriter(self._path)
        for each in self._observed:
            self._writer.write(
                {
                    "t_s": each.now_s,
                    "host": self._host,
                    "peer": each.peer,
                    "leg": Leg(each.transfer % len(Leg)).name.lower(),
                    "kind": "udp",
                    "cwnd_bytes": each.window_bytes if math.isfinite(each.window_bytes) else None,
                    "rtt_s": each.rtt_s,
                    "rate_bps": each.rate_bps if math.isfinite(each.rate_bps) else None,
                    "retransmits": each.retransmits,
                    "round": self._round_of(Leg.round_of(each.transfer)),
                }
            )
        self._observed.clear()
