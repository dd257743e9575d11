"""Paces datagrams with a token bucket: tokens accrue at the rate, and each batch spends them.

A batch holds about a millisecond of the rate. Smaller batches would cost a system call per
datagram; larger ones would overflow the shallow queue of a switch that serves several senders. An
event loop sometimes wakes up late, so tokens are kept for up to CATCH_UP_S: lateness costs no rate,
and a long stall does not end in a burst.
"""

import math

QUANTUM_S = 1e-3
# A busy system's scheduler may suspend a process for a tick of 4 ms.
CATCH_UP_S = 5e-3
MAX_BATCH = 44  # datagrams; 44 of MTU size are the most that one segmented send can carry
# Without a rate a batch is several segmented sends, so 500 kB share a batch's fixed cost. That
# still fits a processor's cache.
UNPACED_BATCH = 8 * MAX_BATCH


class Pacer:
    """A token bucket for datagrams of equal size; sizes are wire bytes, times are seconds."""

    def __init__(
        self,
        *,
        rate_bps: float,
        datagram_wire_bytes: int,
        max_batch: int = MAX_BATCH,
        unpaced_batch: int | None = None,
    ) -> None:
        """A batch is at most `max_batch` datagrams; unpaced `unpaced_batch` (default: the same)."""
        self._datagram_bytes = datagram_wire_bytes
        self._max_batch = max_batch
        self._unpaced_batch = max_batch if unpaced_batch is None else unpaced_batch
        self._tokens = 0.0
        self._refilled_s: float | None = None
        self.set_rate(rate_bps)

    def set_rate(self, rate_bps: float) -> None:
        """Paces at this rate from the next refill on; math.inf turns pacing off."""
        self._bytes_per_s = rate_bps / 8
        if math.isinf(rate_bps):
            self.quantum = self._unpaced_batch
        else:
            datagrams = int(self._bytes_per_s * QUANTUM_S / self._datagram_bytes)
            self.quantum = max(1, min(self._max_batch, datagrams))

    def allowance(self, now_s: float, wanted: int | None = None) -> int:
        """How many datagrams may go now: none, or a batch.

        `wanted` is how many there are. When these are fewer than a quantum, they do not wait for
        a whole quantum's tokens.
        """
        if math.isinf(self._bytes_per_s):
            return self._unpaced_batch
        self._refill(now_s)
        batch = self.quantum if wanted is None else min(self.quantum, wanted)
        # One byte of slack, because the rounding of large clock values must not cost a wait.
        return batch if self._tokens >= batch * self._datagram_bytes - 1 else 0

    def spend(self, datagrams: int) -> None:
        if not math.isinf(self._bytes_per_s):
            self._tokens -= datagrams * self._datagram_bytes

    def next_s(self, now_s: float, wanted: int | None = None) -> float:
        """When `allowance` will be above zero."""
        if self.allowance(now_s, wanted):
            return now_s
        batch = self.quantum if wanted is None else min(self.quantum, wanted)
        return now_s + (batch * self._datagram_bytes - self._tokens) / self._bytes_per_s

    def resume(self, now_s: float) -> None:
        """Resumes sending after an idle time: at once, but with one batch only."""
        if math.isinf(self._bytes_per_s):
            return
        self._refill(now_s)
        self._tokens = min(self._tokens, float(self.quantum * self._datagram_bytes))

    def _refill(self, now_s: float) -> None:
        quantum_bytes = self.quantum * self._datagram_bytes
        if self._refilled_s is None:
            self._tokens = float(quantum_bytes)
        else:
            accrued = self._bytes_per_s * max(0.0, now_s - self._refilled_s)
            most = quantum_bytes + self._bytes_per_s * CATCH_UP_S
            self._tokens = min(self._tokens + accrued, most)
        self._refilled_s = now_s
