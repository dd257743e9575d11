"""A congestion control: additive increase, multiplicative decrease of a window.

`congestion_control: ./own_congestion_control.py`, or with options
`congestion_control: {name: ./own_congestion_control.py, decrease: 0.7}`

How often it hears feedback depends on the repair: see docs/how-to/congestion-control.md.
"""

import math

from testbed.transport import CongestionControl, Feedback


class Aimd(CongestionControl):
    """The keyword parameters are the options; the lab supplies `datagram_bytes`."""

    def __init__(
        self, *, datagram_bytes: int, increase: float = 1.0, decrease: float = 0.5
    ) -> None:
        if not 0 < decrease < 1:
            raise ValueError(f"decrease is {decrease!r}; valid: between 0 and 1")
        self._datagram_bytes = datagram_bytes
        self._increase = increase
        self._decrease = decrease
        self._window = 10.0 * datagram_bytes

    @property
    def rate_bps(self) -> float:
        return math.inf  # no pacing: the window alone limits

    @property
    def window_bytes(self) -> float:
        return self._window

    def on_feedback(self, feedback: Feedback) -> None:
        """A window of delivered bytes adds `increase` datagrams; a report of losses takes a share.

        The built-in ones reduce once per round trip (see `Reno`).
        """
        if feedback.lost_bytes:
            self._window = max(2 * self._datagram_bytes, self._decrease * self._window)
        elif not feedback.app_limited:
            share = feedback.delivered_bytes / self._window
            self._window += self._increase * self._datagram_bytes * share
