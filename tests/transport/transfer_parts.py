"""Senders and receivers for tests that speak to them directly."""

import math

import numpy as np

from testbed.transport.core.congestion import CongestionControl, Feedback
from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.core.incoming import Receiver
from testbed.transport.core.outgoing import Sender
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.tolerance import FractionRule, Progress
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import InOrder
from testbed.transport.policies.repair import Passes
from tests.transport.virtual import SESSION, random_payload


def settings_of(layout, repair=None, order=None, **settings):
    """What both sides of these tests share."""
    common = {"repair": repair or Passes(), "order": order or InOrder(), **settings}
    return ConnectionSettings(session=SESSION, layout=layout, **common)


def new_sender(
    layout, *, rate_bps=10e6, number=6, path=None, repair=None, order=None, payload=None, now_s=0.0
):
    control = FixedRate(rate_bps=rate_bps)
    return Sender(
        settings=settings_of(layout, repair, order),
        transfer=number,
        payload=random_payload(layout) if payload is None else payload,
        path=path or SendingPath(congestion=control, chunk_bytes=layout.chunk_bytes),
        now_s=now_s,
    )


def new_receiver(layout, *, tolerance=0.0, number=6, repair=None, **settings):
    into = layout.new_buffer()
    rule = FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance)
    receiver = Receiver(
        settings=settings_of(layout, repair),
        transfer=number,
        into=into,
        now_s=0.0,
        **{"rule": rule, **settings},
    )
    return receiver, into


class Recorder(CongestionControl):
    """Limits as told; keeps what it hears."""

    def __init__(self, *, rate_bps: float = 10e6, window_bytes: float = math.inf) -> None:
        self._limits = rate_bps, window_bytes
        self.sent: list[int] = []
        self.heard: list[Feedback] = []

    @property
    def rate_bps(self) -> float:
        return self._limits[0]

    @property
    def window_bytes(self) -> float:
        return self._limits[1]

    def on_sent(self, sent_bytes: int, now_s: float) -> None:
        self.sent.append(sent_bytes)

    def on_feedback(self, feedback: Feedback) -> None:
        self.heard.append(feedback)


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
