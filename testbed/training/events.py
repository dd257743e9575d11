"""The records that training appends to its event logs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.shared.jsonl import JsonLinesWriter
from testbed.training.loss_effects import tensor_loss
from testbed.transport import Endpoint, PayloadLayout, TransferReport


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
