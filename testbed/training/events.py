"""The records that training appends to its event logs: transfers, endpoints, congestion."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.shared.jsonl import JsonLinesWriter
from testbed.training.lost_chunk_effects import tensor_loss
from testbed.training.vectors import finite
from testbed.transport import Endpoint, Leg, Observation, PayloadLayout, TransferReport

_MEASURED = (
    *("chunk_count", "chunks_received", "passes", "chunks_sent", "chunks_left_out"),
    *("bytes_sent", "bytes_received", "control_bytes", "retransmitted_bytes", "duplicates"),
    *("began_s", "ended_s", "duration_s"),
)


def nonfinite(values: NDArray[np.float32]) -> int:
    """How many elements are NaN or infinite; they are delivered unchanged and counted."""
    return int(values.size - np.count_nonzero(np.isfinite(values)))


def write_endpoint(directory: Path, host: str, endpoint: Endpoint) -> None:
    """Log, after all rounds, what the kernel granted to a host's endpoint and what it ignored."""
    log = JsonLinesWriter(directory / "events" / f"endpoint-{host}.jsonl")
    log.write({"host": host, "facts": endpoint.facts(), "ignored": endpoint.counters()})
    log.close()


class TransferLog:
    """Logs the transfers of a host to `events/transfers-<host>.jsonl`."""

    def __init__(self, directory: Path, host: str, layout: PayloadLayout | None) -> None:
        self._writer = JsonLinesWriter(directory / "events" / f"transfers-{host}.jsonl")
        self._host = host
        self._layout = layout

    def write(self, round_number: int, leg: str, reports: Iterable[TransferReport]) -> None:
        """Append one line for each report of a leg."""
        for report in reports:
            by_tensor = {}
            received = report.received
            if self._layout is not None and report.role == "receiver" and received is not None:
                lost = tensor_loss(self._layout, received)
                by_tensor = {"tensor_loss": np.round(lost, 4).tolist()}
            self._writer.write(
                {
                    "round": round_number,
                    "leg": leg,
                    "role": report.role,
                    "host": self._host,
                    "peer": report.peer,
                    **{name: getattr(report, name) for name in _MEASURED},
                    "ignored": dict(report.ignored),
                    **by_tensor,
                }
            )


class CongestionLog:
    """Logs the congestion state of a host's sending paths to `events/congestion-<host>.jsonl`."""

    def __init__(self, directory: Path, host: str, round_of: Callable[[int], int]) -> None:
        self._path = directory / "events" / f"congestion-{host}.jsonl"
        self._host = host
        self._round_of = round_of
        self._writer: JsonLinesWriter | None = None
        self._observed: list[Observation] = []

    def observe(self, observation: Observation) -> None:
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
                    "cwnd_bytes": finite(each.window_bytes),
                    "rtt_s": each.rtt_s,
                    "rate_bps": finite(each.rate_bps),
                    "retransmits": each.retransmits,
                    "round": self._round_of(Leg.round_of(each.transfer)),
                }
            )
        self._observed.clear()
