"""The records that training appends to its event logs, and the effects of loss that they hold."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.shared.jsonl import JsonLinesWriter
from testbed.training.filling import Vector
from testbed.transport import Endpoint, Leg, Observation, PayloadLayout, TransferReport

# Vectors are read in pieces, which avoids a copy of a whole model in double precision.
_PIECE = 1 << 18
_MEASURED = (
    *("chunk_count", "chunks_received", "passes", "chunks_sent", "chunks_left_out"),
    *("bytes_sent", "bytes_received", "control_bytes", "retransmitted_bytes", "duplicates"),
    *("began_s", "ended_s", "duration_s"),
)


def norm(values: NDArray[np.float32]) -> float:
    """Return the Euclidean norm; infinite where a model has diverged beyond float32's squares."""
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(values))


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def nonfinite(values: NDArray[np.float32]) -> int:
    """The number of elements that are NaN or infinite; they are delivered unchanged."""
    return int(values.size - np.count_nonzero(np.isfinite(values)))


def write_endpoint(directory: Path, host: str, endpoint: Endpoint) -> None:
    log = JsonLinesWriter(directory / "events" / f"endpoint-{host}.jsonl")
    log.write({"host": host, "facts": endpoint.facts(), "ignored": endpoint.counters()})
    log.close()


class TransferLog:
    def __init__(self, directory: Path, host: str, layout: PayloadLayout | None) -> None:
        self._writer = JsonLinesWriter(directory / "events" / f"transfers-{host}.jsonl")
        self._host = host
        self._layout = layout

    def write(self, round_number: int, leg: str, reports: Iterable[TransferReport]) -> None:
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
    def __init__(self, directory: Path, host: str) -> None:
        self._path = directory / "events" / f"congestion-{host}.jsonl"
        self._host = host
        self._writer: JsonLinesWriter | None = None
        self._observed: list[Observation] = []

    def observe(self, observation: Observation) -> None:
        self._observed.append(observation)

    def flush(self) -> None:
        if not self._observed:
            return
        if self._writer is None:
            self._writer = JsonLinesWriter(self._path)
        for path in self._observed:
            self._writer.write(
                {
                    "t_s": path.now_s,
                    "host": self._host,
                    "peer": path.peer,
                    "leg": Leg(path.transfer % len(Leg)).name.lower(),
                    "kind": "udp",
                    "cwnd_bytes": finite(path.window_bytes),
                    "rtt_s": path.rtt_s,
                    "rate_bps": finite(path.rate_bps),
                    "retransmits": path.retransmits,
                    "round": Leg.round_of(path.transfer),
                }
            )
        self._observed.clear()


def tensor_loss(layout: PayloadLayout, received: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Compute the share of each tensor's elements that did not arrive, shape (tensors,)."""
    pieces = layout.pieces
    lost = np.where(received[pieces.chunk], 0, pieces.elements)
    counts = np.array([count for _, count in layout.tensors], dtype=np.int64)
    missing = np.bincount(pieces.tensor, weights=lost, minlength=len(counts))
    return missing / np.maximum(counts, 1)


def deviation(vector: Vector, reference: Vector) -> dict[str, float | None]:
    """Compare a gradient with the same one without loss, by L2 norms; None: has no meaning."""
    difference = own = norm = product = 0.0
    for start in range(0, len(reference), _PIECE):
        one = vector[start : start + _PIECE].astype(np.float64)
        two = reference[start : start + _PIECE].astype(np.float64)
        own += float(one @ one)
        norm += float(two @ two)
        product += float(one @ two)
        one -= two
        difference += float(one @ one)
    if norm == 0:
        equal = 0.0 if own == 0 else None
        return {"relative_error": equal, "cosine": None, "norm_ratio": None}
    return {
        "relative_error": finite((difference / norm) ** 0.5),
        "cosine": finite(product / (own * norm) ** 0.5) if own else None,
        "norm_ratio": finite((own / norm) ** 0.5),
    }


def divergence(replicas: Sequence[Vector]) -> float | None:
    """The workers' weights' root mean square L2 distance from their mean, over its L2 norm."""
    spread = norm = 0.0
    for start in range(0, len(replicas[0]), _PIECE):
        # Relative to the first, so that equal replicas give exactly 0.
        first = replicas[0][start : start + _PIECE].astype(np.float64)
        offsets = [replica[start : start + _PIECE] - first for replica in replicas]
        shift = sum(offsets[1:], start=offsets[0]) / len(replicas)
        spread += sum(float(np.square(offset - shift).sum()) for offset in offsets)
        norm += float(np.square(first + shift).sum())
    if norm == 0:
        return 0.0 if spread == 0 else None
    return finite((spread / len(replicas) / norm) ** 0.5)
