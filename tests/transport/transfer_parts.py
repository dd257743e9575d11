"""Senders and receivers for tests that speak to them directly."""

import math

import numpy as np

from testbed.transport.core.receiver import Receiver
from testbed.transport.core.sender import Sender
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import InOrder
from testbed.transport.policies.repair import Passes
from testbed.transport.policies.tolerance import FractionRule
from tests.transport.virtual import (
    SESSION,
    random_payload,
)


def new_sender(layout, *, rate_bps=10e6, number=6, path=None, repair=None):
    return Sender(
        session=SESSION,
        transfer=number,
        layout=layout,
        payload=random_payload(layout),
        repair=repair or Passes(),
        order=InOrder(),
        path=path
        or SendingPath(congestion=FixedRate(rate_bps=rate_bps), chunk_bytes=layout.chunk_bytes),
        now_s=0.0,
    )


def new_receiver(layout, *, tolerance=0.0, number=6, rule=None):
    into = layout.new_buffer()
    receiver = Receiver(
        session=SESSION,
        transfer=number,
        layout=layout,
        into=into,
        rule=rule or FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance),
        repair=Passes(),
        now_s=0.0,
    )
    return receiver, into


def all_frames(layout, number=6):
    """Every datagram of the transfer, in order."""
    sender = new_sender(layout, rate_bps=math.inf, number=number)
    parts = []
    while len(frames := sender.offer(0.0)):
        parts.append(frames.copy())
        sender.sent(len(frames), 0.0)
    return np.concatenate(parts)
