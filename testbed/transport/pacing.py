"""Paces datagrams with a token bucket: tokens accrue at the rate, and each batch spends them.

A batch waits for a *quantum* of tokens, since every batch costs both sides a wake-up. Tokens are
kept for up to CATCH_UP_S, for a late wake-up; `docs/concepts/pacing.md` has the reasons.
"""

import math

QUANTUM_S = 4e-3
LONGEST_QUANTUM_S = 1.0  # that may be asked for
# Where the smallest queue is unknown, and for congestion controls that measure the path: their own
# batches would be the queue they find.
SHORT_QUANTUM_S = 1e-3
# A quantum takes at most this share of the queue that its sender may expect for itself, and what it
# sends after a delay at most the second share.
QUEUE_SHARE = 0.25
LATE_QUEUE_SHARE = 0.5
ROUND_TRIP_SHARE = 0.25  # in which larger batches than a segmented send go; else they are a queue
# The end of a transfer depends on reports about its beginning, so a quantum is short beside the
# transfer, unless that would cost a short one too many wake-ups.
TRANSFER_SHARE = 0.05
LEAST_OF_TRANSFER = 8
CATCH_UP_S = 5e-3  # a busy system's scheduler may suspend a process for a tick of 4 ms
MAX_BATCH = 44  # datagrams; 44 of MTU size are the most that one segmented send can carry
# Of a batch without a rate: so 500 kB share its fixed cost, which still fits a processor's cache.
SEGMENTED_SENDS = 8


class Pacer:
    """A token bucket for datagrams of equal size; sizes are wire bytes, times are seconds."""

    def __init__(
        self,
        *,
        rate_bps: float,
        datagram_wire_bytes: int,
        max_batch: int = MAX_BATCH,
        quantum_s: float = QUANTUM_S,
        queue_bytes: float = math.inf,
    ) -> None:
        self._queue_known = not math.isinf(queue_bytes)
        self.datagram_bytes = datagram_wire_bytes
        self._max_batch = max_batch
        self._unpaced_batch = max_batch * SEGMENTED_SENDS
        self._quantum_s = quantum_s if self._queue_known else min(quantum_s, SHORT_QUANTUM_S)
        self._most_of_transfer = math.inf
        self._most_late_bytes = queue_bytes * LATE_QUEUE_SHARE
        self._most_of_queue = queue_bytes * QUEUE_SHARE / datagram_wire_bytes
        self.tokens = 0.0  # wire bytes that may go, and since when
        self.refilled_s: float | None = None
        self._rate_bps = 0.0
        self.set_rate(rate_bps)

    def fit(self, datagrams: int) -> None:
        """A transfer of so many datagrams begins; a quantum is short beside it."""
        most = max(LEAST_OF_TRANSFER, int(datagrams * TRANSFER_SHARE))
        if most != self._most_of_transfer:
            self._most_of_transfer = most
            self._set_quantum()

    def set_rate(self, rate_bps: float, least_rtt_s: float = math.inf) -> None:
        """Paces at this rate from the next refill on; a long path has larger batches.

        `least_rtt_s` is infinite where it is not known.
        """
        if rate_bps == self._rate_bps:
            return
        self._rate_bps = rate_bps
        long_s = least_rtt_s * ROUND_TRIP_SHARE if least_rtt_s < math.inf else 0.0
        self._large_s = min(SHORT_QUANTUM_S, long_s)
        self.bytes_per_s = rate_bps / 8  # the rate, and the size of a datagram
        self._set_quantum()

    def _set_quantum(self) -> None:
        if math.isinf(self.bytes_per_s):
            self.quantum = self._unpaced_batch
        else:
            per_s = self.bytes_per_s / self.datagram_bytes
            most = min(max(self._max_batch, per_s * self._large_s), self._unpaced_batch)
            most = min(most, self._most_of_queue, self._most_of_transfer)
            self.quantum = max(1, int(min(most, per_s * self._quantum_s)))

    def allowance(self, now_s: float, remaining: int | None = None) -> int:
        """Returns how many datagrams may go now: none, or a batch of at least a quantum."""
        if math.isinf(self.bytes_per_s):
            return self._unpaced_batch
        self._refill(now_s)
        batch = self.quantum if remaining is None else min(self.quantum, remaining)
        # One byte of slack, because the rounding of large clock values must not cost a wait.
        covered = int((self.tokens + 1) // self.datagram_bytes)
        if covered < batch:
            return 0
        return min(covered, self.most)

    @property
    def most(self) -> int:
        return max(self._max_batch, self.quantum) if self._queue_known else self.quantum

    @property
    def most_tokens(self) -> float:
        """So many tokens are kept for a sender that wakes up late."""
        quantum_bytes = self.quantum * self.datagram_bytes
        late_bytes = quantum_bytes + self.bytes_per_s * CATCH_UP_S
        return max(quantum_bytes, min(late_bytes, self._most_late_bytes))

    def spend(self, datagrams: int) -> None:
        if not math.isinf(self.bytes_per_s):
            self.tokens -= datagrams * self.datagram_bytes

    def next_s(self, now_s: float, remaining: int | None = None) -> float:
        if self.allowance(now_s, remaining):
            return now_s
        batch = self.quantum if remaining is None else min(self.quantum, remaining)
        return now_s + (batch * self.datagram_bytes - self.tokens) / self.bytes_per_s

    def resume(self, now_s: float) -> None:
        """Resumes sending after an idle time: at once, but with one batch only."""
        if math.isinf(self.bytes_per_s):
            return
        self._refill(now_s)
        self.tokens = min(self.tokens, float(self.quantum * self.datagram_bytes))

    def _refill(self, now_s: float) -> None:
        if self.refilled_s is None:
            self.tokens = float(self.quantum * self.datagram_bytes)
        else:
            accrued = self.bytes_per_s * max(0.0, now_s - self.refilled_s)
            self.tokens = min(self.tokens + accrued, self.most_tokens)
        self.refilled_s = now_s
