"""Spreads datagrams over time: tokens accrue with the rate, a batch spends them.

A batch is about a millisecond of the rate: fewer would cost a system call per datagram, more would
overflow the shallow queue of a switch that serves several senders. An event loop wakes up late
now and then; what accrued meanwhile is kept up to CATCH_UP_S, so lateness costs no rate, and what
is older is forgotten, so a long stall does not end in a burst.
"""

import math

QUANTUM_S = 1e-3
# A busy system's scheduler takes a process away for a tick of 4 ms.
CATCH_UP_S = 5e-3
MAX_BATCH = 44  # datagrams; 44 of MTU size are the most that one segmented send can carry
# Without a rate a batch is several segmented sends: what a batch costs besides its bytes is then
# shared by 500 kB, which still fit a processor's cache on their way to the kernel.
UNPACED_BATCH = 8 * MAX_BATCH


class Pacer:
    """Token pacing of equal datagrams; sizes are wire bytes, times are seconds."""

    def __init__(
        self,
        *,
        rate_bps: float,
        datagram_wire_bytes: int,
        max_batch: int = MAX_BATCH,
        unpaced_batch: int | None = None,
    ) -> None:
        """At most `max_batch` datagrams go at once, without a rate `unpaced_batch` (as many)."""
        self._datagram_bytes = datagram_wire_bytes
        self._max_batch = max_batch
        self._unpaced_batch = max_batch if unpaced_batch is None else unpaced_batch
        self._tokens = 0.0
        self._refilled_s: float | None = None
        self.set_rate(rate_bps)

    def set_rate(self, rate_bps: float) -> None:
        """Paces at this rate from the next refill on; math.inf for not at all."""
        self._bytes_per_s = rate_bps / 8
        if math.isinf(rate_bps):
            self.quantum = self._unpaced_batch
        else:
            datagrams = int(self._bytes_per_s * QUANTUM_S / self._datagram_bytes)
            self.quantum = max(1, min(self._max_batch, datagrams))

    def allowance(self, now_s: float, wanted: int | None = None) -> int:
        """How many datagrams may go now: none, or a batch.

        `wanted` is how many there are; a batch that is smaller than a quantum because there are
        no more does not have to wait for a whole quantum's tokens.
        """
        if math.isinf(self._bytes_per_s):
            return self._unpaced_batch
        self._refill(now_s)
        batch = self.quantum if wanted is None else min(self.quantum, wanted)
        # A byte of tolerance: clocks of large values round, and must not cost another wait.
        return batch if self._tokens >= batch * self._datagram_bytes - 1 else 0

    def spend(self, datagrams: int) -> None:
        """Accounts for datagrams that were sent."""
        if not math.isinf(self._bytes_per_s):
            self._tokens -= datagrams * self._datagram_bytes

    def next_s(self, now_s: float, wanted: int | None = None) -> float:
        """When `allowance` will be above zero."""
        if self.allowance(now_s, wanted):
            return now_s
        batch = self.quantum if wanted is None else min(self.quantum, wanted)
        return now_s + (batch * self._datagram_bytes - self._tokens) / self._bytes_per_s

    def resume(self, now_s: float) -> None:
        """Starts to send after having had nothing to send: at once, but with one batch only."""
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
