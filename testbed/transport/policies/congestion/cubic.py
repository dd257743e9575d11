"""CUBIC: the window is a cubic function of the time since the last loss (RFC 9438).

With the Reno-friendly region (section 4.3) and fast convergence (section 4.7), without HyStart++.
"""

import math

from testbed.transport.policies.congestion.path import (
    DATAGRAM_BYTES,
    INITIAL_WINDOW,
    check_options,
)
from testbed.transport.policies.congestion.window import WindowControl

_C = 0.4  # how fast the window grows, in datagrams per second cubed


class Cubic(WindowControl):
    """RFC 9438, with windows in datagrams, as the RFC's constants require."""

    infers_queue = False

    def __init__(
        self,
        *,
        datagram_bytes: int = DATAGRAM_BYTES,
        initial_window: float = INITIAL_WINDOW,
        beta: float = 0.7,
    ) -> None:
        """The constants of the RFC.

        Args:
            beta: the fraction of the window that a loss leaves, below 1.
        """
        super().__init__(datagram_bytes=datagram_bytes, initial_window=initial_window)
        check_options(at_most=0.99, beta=beta)
        self._beta = beta
        self._w_max = 0.0
        self._prior = 0.0  # the window before the last reduction
        self._epoch_s: float | None = None
        self._k_s = 0.0  # from the epoch's begin until the window is _w_max again
        self._estimate = 0.0  # the window that Reno would have

    def _increase(self, delivered_bytes: float, now_s: float) -> float:
        window = self._window / self._datagram_bytes
        if self._epoch_s is None:
            self._begin_epoch(window, now_s)
        assert self._epoch_s is not None
        acknowledged = delivered_bytes / self._datagram_bytes
        # Section 4.3: alpha makes the mean window that of Reno with its factor of a half.
        alpha = 3 * (1 - self._beta) / (1 + self._beta) if self._estimate < self._prior else 1.0
        self._estimate += alpha * acknowledged / window
        age_s = now_s - self._epoch_s
        if self._cubic(age_s) < self._estimate:
            return max(0.0, self._estimate - window) * self._datagram_bytes
        ahead_s = self.path.smoothed_rtt_s or 0.0
        target = min(max(self._cubic(age_s + ahead_s), window), 1.5 * window)
        return (target - window) / window * acknowledged * self._datagram_bytes

    def _cubic(self, age_s: float) -> float:
        return _C * (age_s - self._k_s) ** 3 + self._w_max

    def _begin_epoch(self, window: float, now_s: float) -> None:
        self._epoch_s = now_s
        self._estimate = window
        if window < self._w_max:
            self._k_s = math.cbrt((self._w_max - window) / _C)
        else:
            self._k_s = 0.0
            self._w_max = window

    def _after_loss(self, now_s: float) -> float:
        window = self._window / self._datagram_bytes
        # Whoever loses twice in a row gives up more (section 4.7).
        self._w_max = window * (1 + self._beta) / 2 if window < self._w_max else window
        self._prior = window
        self._epoch_s = None
        return self._beta * self._window

    def _idle(self, pause_s: float) -> None:
        # Section 5.8: idle time does not count. Linux shifts its epoch in the same way.
        if self._epoch_s is not None:
            self._epoch_s += pause_s
