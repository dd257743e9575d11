"""A repair's estimates of a path, which it keeps from one transfer to the next."""

import math
import statistics
from collections import deque

# Weights of a new sample in the smoothed round trip and its deviation (RFC 6298, section 2).
_SMOOTHING, _DEVIATION_SMOOTHING = 1 / 8, 1 / 4
# A sample below this fraction of the smallest shows that all earlier ones met a delay that is not
# the path's, such as a host that was busy, and the estimate begins anew.
FALLEN = 0.25
_LOSS_MEMORY = 64  # datagrams: enough to be steady, few enough to follow a microburst
_EARLIER = 8  # as many datagrams count of earlier transfers, whose microburst may be over
# How many places later an arriving datagram must have been sent to prove a loss. RFC 9002, section
# 6.1.1, has 3; Linux raises its threshold up to 300 when it sees reordering.
REORDERING = 3
_MOST_REORDERING = 300
# A round trip above this multiple of the smallest, and by this many seconds, met a long queue.
_QUEUEING = 1.5
_QUEUEING_S = 2e-3
_FIRST_ANSWERS = 16  # transfers


class PathEstimates:
    def __init__(self) -> None:
        self.smoothed_s: float | None = None  # the round trip, without the receiver's delay
        self.deviation_s = 0.0
        self.latest_s = 0.0
        self.min_s = math.inf
        self.reordering = REORDERING
        self.patience = 1
        self._arrived = 0.0
        self._lost = 0.0
        self._reordered = False
        self.first_answer_s: float | None = None
        self._first_answers_s: deque[float] = deque(maxlen=_FIRST_ANSWERS)

    def on_first_answer(self, took_s: float) -> None:
        self._first_answers_s.append(took_s)
        self.first_answer_s = statistics.median(self._first_answers_s)

    @property
    def loss(self) -> float:
        counted = self._arrived + self._lost
        return self._lost / counted if counted else 0.0

    def on_transfer_begin(self) -> None:
        """Forgets most losses, and half the tolerance of reordering unless it was seen lately."""
        if (counted := self._arrived + self._lost) > _EARLIER:
            self._arrived *= _EARLIER / counted
            self._lost *= _EARLIER / counted
        if not self._reordered:
            self.reordering = REORDERING + (self.reordering - REORDERING) // 2
            self.patience = max(1, self.patience // 2)
        self._reordered = False

    def on_round_trip(self, sample_s: float) -> None:
        self.latest_s = sample_s
        fallen = sample_s < FALLEN * self.min_s
        self.min_s = min(self.min_s, sample_s)
        if self.smoothed_s is None or fallen:
            self.smoothed_s, self.deviation_s = sample_s, sample_s / 2
            return
        error_s = sample_s - self.smoothed_s
        self.smoothed_s += _SMOOTHING * error_s
        self.deviation_s += _DEVIATION_SMOOTHING * (abs(error_s) - self.deviation_s)

    def on_fates(self, *, arrived: int = 0, lost: int = 0) -> None:
        counted = arrived + lost
        if counted:
            kept = max(0.0, 1 - counted / _LOSS_MEMORY)
            scale = min(1.0, _LOSS_MEMORY / counted)
            self._arrived = self._arrived * kept + arrived * scale
            self._lost = self._lost * kept + lost * scale

    def on_overtaken(self, count: int, extent: int) -> None:
        """Notes arrivals that had been declared lost, and by how many places the worst was late."""
        self._reordered = True
        self.reordering = max(self.reordering, min(extent + 1, _MOST_REORDERING))
        self.patience += 1
        self._lost = max(0.0, self._lost - count)

    @property
    def queueing(self) -> bool:
        """Round trips are so long that a full queue probably causes the losses."""
        if self.smoothed_s is None:
            return False
        most_s = _QUEUEING * self.min_s + _QUEUEING_S
        return min(self.smoothed_s, self.latest_s) > most_s

    def may_queue(self, full_queue_s: float) -> bool:
        """Returns whether the latest round trip met half of a queue of this length."""
        if self.smoothed_s is None:
            return True
        most_s = min(full_queue_s / 2, self.min_s / 2 + _QUEUEING_S)
        return self.latest_s > self.min_s + most_s

    def overtaking_s(self) -> float:
        """Returns how long a datagram may be overtaken (RACK, RFC 8985, section 6.2)."""
        if self.smoothed_s is None:
            return 0.0
        return min(self.patience * self.min_s / 4, self.smoothed_s)
