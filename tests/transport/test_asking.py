"""Which datagrams of a batch ask for an ACK."""

import math
from typing import Any

import numpy as np
import pytest

from testbed.transport import SendingPath
from testbed.transport.core.repair import Repair, SenderRepair
from testbed.transport.core.wire import ACK_REQUESTED, SEND_INDEX_MODULUS, fields, wire_bytes
from tests.transport.transfer_parts import Recorder, new_sender
from tests.transport.virtual import layout_of


class Wanting(SenderRepair):
    """Wants an ACK or not, as it is told; notes what it is asked."""

    def __init__(self, wants: bool, waiting: int) -> None:
        super().__init__()
        self.wants, self.waiting = wants, waiting
        self.asked: list[tuple[int, float]] = []

    @property
    def remaining(self):
        return self.waiting

    def upcoming(self, limit):
        return np.arange(min(limit, self.waiting)) % 64

    def on_sent(self, count, now_s):
        """Nothing is sent here."""

    def on_message(self, message, now_s):
        """Nothing is answered."""

    def on_window_closed(self, now_s):
        """It is never asked to ask."""

    def wants_ack(self, count, window_left):
        self.asked.append((count, window_left))
        return self.wants


class Given(Repair):
    """The repair whose sender it was given."""

    def of(self, sender: Wanting) -> "Given":
        object.__setattr__(self, "_sender", sender)
        return self

    def sender(self, **_: Any):
        return self._sender  # type: ignore[attr-defined]

    def receiver(self, **_: Any):
        raise NotImplementedError


def asking(*, window: float, waiting: int, wants: bool = True) -> tuple[list[int], Wanting, int]:
    """Which places of an offer ask, the repair, and how many datagrams the offer has."""
    layout = layout_of(64)
    repair = Wanting(wants, waiting)
    control = Recorder(rate_bps=math.inf, window_bytes=window * wire_bytes(1, 16))
    path = SendingPath(congestion=control, chunk_bytes=layout.chunk_bytes)
    sender = new_sender(layout, path=path, repair=Given().of(repair))
    stamps = fields(sender.offer(0.0), layout.chunk_bytes)["stamp"]
    assert (stamps & (SEND_INDEX_MODULUS - 1)).tolist() == list(range(len(stamps)))
    return np.flatnonzero(stamps & ACK_REQUESTED).tolist(), repair, len(stamps)


@pytest.mark.parametrize(
    ("window", "waiting", "places"),
    [
        (6000, 5000, [0]),  # with room left the first asks: a full queue drops the last
        (20, 9, [8]),  # the last of all asks, so that the answer names them
        (math.inf, 9, [8]),
        (20, 1, [0]),
        # A batch that fills the window asks at both ends if it is worth it, also if it is the last.
        (1, 20, [0]),
        (3, 20, [2]),
        (4, 20, [0, 3]),
        (9, 20, [0, 8]),
        (9, 9, [0, 8]),
    ],
)
def test_which_of_a_batch_ask(window, waiting, places):
    asked, _, count = asking(window=window, waiting=waiting)
    assert asked == places
    assert count < 5000
