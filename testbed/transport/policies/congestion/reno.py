"""Reno: one datagram more each round trip, half the window after a loss (RFC 5681, RFC 9002)."""

from testbed.transport.policies.congestion.options import (
    DATAGRAM_BYTES,
    INITIAL_WINDOW,
    check_options,
)
from testbed.transport.policies.congestion.window import WindowControl


class Reno(WindowControl):
    """Additive increase, multiplicative decrease."""

    def __init__(
        self,
        *,
        datagram_bytes: int = DATAGRAM_BYTES,
        initial_window: float = INITIAL_WINDOW,
        beta: float = 0.5,
    ) -> None:
        """Reno's halving by default.

        Args:
            beta: the fraction of the window that a loss leaves, below 1.
        """
        super().__init__(datagram_bytes=datagram_bytes, initial_window=initial_window)
        check_options(at_most=0.99, beta=beta)
        self._beta = beta

    def _increase(self, delivered_bytes: float, now_s: float) -> float:
        return self._datagram_bytes * delivered_bytes / self._window

    def _after_loss(self, now_s: float) -> float:
        return self._beta * self._window
