"""The sending path: the transfers to one peer share it."""

import math

from testbed.shared import own_code
from testbed.transport.congestion.base import CongestionControl
from testbed.transport.fast_path import defines
from testbed.transport.pacing import MAX_BATCH, QUANTUM_S, SEGMENTED_SENDS, SHORT_QUANTUM_S, Pacer
from testbed.transport.path_estimates import PathEstimates
from testbed.transport.repair.base import SenderRepair
from testbed.transport.wire import MAX_DATAGRAM_BYTES, new_frames, wire_bytes


class SendingPath:
    """Holds congestion control, estimates of the path, pacer, and the memory of batches."""

    def __init__(
        self,
        *,
        congestion: CongestionControl,
        chunk_bytes: int,
        receive_buffer_bytes: float = math.inf,
        trailer_bytes: int = 0,
        tag_bytes: int = 0,
        quantum_s: float = QUANTUM_S,
        queue_bytes: float = math.inf,
    ) -> None:
        """An unpaced sender is limited by what the peer's socket holds, which it would overrun.

        `trailer_bytes` are what a datagram has besides `wire_bytes`; of these, `tag_bytes` follow
        its chunk.
        """
        self.congestion = congestion
        self.estimates = PathEstimates()
        self.latest_rtt_s: float | None = None
        self._repairs: list[SenderRepair] = []
        self._held: list[SenderRepair] = []
        datagram_bytes = new_frames(0, chunk_bytes).shape[1]
        infers = congestion.measures and congestion.infers_queue
        congestion.receive_buffer_bytes = receive_buffer_bytes
        # Both are this sender's shares: of the queue, and of the link that empties it.
        is_finite = math.isfinite(queue_bytes) and math.isfinite(self.rate_bps)
        self._full_queue_s = queue_bytes / (self.rate_bps / 8) if is_finite else None
        self.flow_window = max(2, receive_buffer_bytes / wire_bytes(1, chunk_bytes))
        # One segmented send may not be larger than the largest datagram.
        max_batch = max(1, min(MAX_BATCH, MAX_DATAGRAM_BYTES // datagram_bytes))
        self.datagram_wire_bytes = wire_bytes(1, chunk_bytes) + trailer_bytes
        self.pacer = Pacer(
            rate_bps=self.rate_bps,
            datagram_wire_bytes=self.datagram_wire_bytes,
            max_batch=max_batch,
            quantum_s=min(quantum_s, SHORT_QUANTUM_S) if infers else quantum_s,
            queue_bytes=queue_bytes,
        )
        self.frames = new_frames(max_batch * SEGMENTED_SENDS, chunk_bytes, tag_bytes=tag_bytes)

    @property
    def may_queue(self) -> bool:
        return self._full_queue_s is None or self.estimates.may_queue(self._full_queue_s)

    @property
    def rate_bps(self) -> float:
        rate_bps = self.congestion.rate_bps
        if not (isinstance(rate_bps, own_code.NUMBER) and rate_bps > 0):
            valid = "bit/s above 0, or math.inf for unpaced"
            raise own_code.unfit(self.congestion, "rate_bps", rate_bps, valid)
        return rate_bps

    @property
    def steady_until_s(self) -> float:
        """Returns the control's, where there is a pace to be steady; else -math.inf."""
        paced = defines(self.congestion, "steady_until_s") and not math.isinf(self.rate_bps)
        until_s = self.congestion.steady_until_s if paced else -math.inf
        if not isinstance(until_s, own_code.NUMBER):
            valid = "a time, or -math.inf for never"
            raise own_code.unfit(self.congestion, "steady_until_s", until_s, valid)
        return until_s

    @property
    def in_flight(self) -> int:
        total = 0
        for repair in self._repairs:  # asked for with every batch; `sum` takes thrice as long
            total += repair.in_flight
        return total

    @property
    def shared(self) -> bool:
        return len(self._repairs) + len(self._held) > 1

    def begin(self, repair: SenderRepair, now_s: float) -> None:
        if not self._repairs:  # what is held has left the network
            self.congestion.on_transfer_begin(now_s)
            self.pacer.resume(now_s)
        self._repairs.append(repair)

    def end(self, repair: SenderRepair) -> None:
        (self._held if repair in self._held else self._repairs).remove(repair)

    def hold(self, repair: SenderRepair) -> None:
        """Counts a transfer no longer for which the receiver has not asked yet."""
        if repair in self._repairs:
            self._repairs.remove(repair)
            self._held.append(repair)

    def go_on(self, repair: SenderRepair, now_s: float) -> None:
        if repair in self._held:
            self._held.remove(repair)
            self.begin(repair, now_s)
