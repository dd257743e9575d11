"""Hand-made feedback for a congestion control by itself."""

from typing import Generic, TypeVar

import pytest

from testbed.transport.core.congestion import Feedback
from testbed.transport.policies.congestion import (
    CONGESTION_CONTROLS,
    CongestionControl,
    Cubic,
    Reno,
)
from tests.shared.entries import every

C = TypeVar("C", bound=CongestionControl)
SIZE = 1514
RTT_S = 100e-6  # of a local network
LOSS_BASED = [
    pytest.param(Reno, {}, 0.5, id="reno"),
    pytest.param(Cubic, {}, 0.7, id="cubic"),
]
ALL = every(CONGESTION_CONTROLS, "fixed", rate_bps=50e6, datagram_bytes=SIZE)


def create(text: str) -> CongestionControl:
    return CONGESTION_CONTROLS.create(text, rate_bps=50e6, datagram_bytes=SIZE)


class Rounds(Generic[C]):
    """Answers whole windows: each round, what the window admits is sent and then reported."""

    def __init__(self, control: C, *, rtt_s: float = RTT_S) -> None:
        self.control = control
        self.now_s = 5.0
        self.rtt_s = rtt_s
        control.on_transfer_begin(self.now_s)

    def round(self, *, lost: int = 0, sent: int | None = None, limited: bool = False) -> None:
        """One round trip in which `lost` datagrams are lost."""
        count = int(self.control.window_bytes // SIZE) if sent is None else sent
        sent_s = self.now_s
        self.control.on_sent(count * SIZE, sent_s)
        self.now_s += self.rtt_s
        delivered = count - lost
        self.control.on_feedback(
            Feedback(
                now_s=self.now_s,
                delivered_bytes=delivered * SIZE,
                lost_bytes=lost * SIZE,
                in_flight_bytes=0,
                rtt_s=self.rtt_s if delivered else None,
                app_limited=limited,
                newest_lost_sent_s=sent_s if lost else None,
            )
        )

    @property
    def window(self) -> float:
        control = self.control
        if isinstance(control, Reno):
            return control._window / SIZE
        return control.window_bytes / SIZE
