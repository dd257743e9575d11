"""Senders and receivers for tests that speak to them directly."""

import math

import numpy as np

from testbed.transport.core.receiver import Receiver
from testbed.transport.core.sender import Sender
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.tolerance import FractionRule, Progress
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import InOrder
from testbed.transport.policies.repair import Passes
from tests.transport.virtual import SESSION, random_payload


def new_sender(layout, *, rate_bps=10e6, number=6, path=None, repair=None, **settings):
    return Sender(
        session=SESSION,
        transfer=number,
        layout=layout,
        repair=repair or Passes(),
        path=path
        or SendingPath(congestion=FixedRate(rate_bps=rate_bps), chunk_bytes=layout.chunk_bytes),
        **{"payload": random_payload(layout), "order": InOrder(), "now_s": 0.0, **settings},
    )


def new_receiver(layout, *, tolerance=0.0, number=6, repair=None, **settings):
    into = layout.new_buffer()
    receiver = Receiver(
        session=SESSION,
        transfer=number,
        layout=layout,
        into=into,
        repair=repair or Passes(),
        now_s=0.0,
        **{
            "rule": FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance),
            **settings,
        },
    )
    return receiver, into


def progress(received, *, now_s=0.0, first_s=0.0, last_s=0.0, probes=0, **known):
    """What a rule sees of a transfer of which these chunks are there."""
    received = np.asarray(received, np.bool_)
    return Progress(
        received=received,
        received_count=int(received.sum()),
        now_s=now_s,
        first_arrival_s=first_s,
        last_arrival_s=last_s,
        probes=probes,
        **known,
    )


def all_frames(layout, number=6):
    """Every datagram of the transfer, in order."""
    sender = new_sender(layout, rate_bps=math.inf, number=number)
    parts = []
    while len(frames := sender.offer(0.0)):
        parts.append(frames.copy())
        sender.sent(len(frames), 0.0)
    return np.concatenate(parts)
