"""A flow of CUBIC beside one of ours in virtual time.

The rival shares no code with our controls: RFC 9438 with an ACK for each segment, clocked by ACKs
and not paced, and RFC 9002's numbering, so that a segment that is sent again is a new one.
"""

import functools
import itertools
import math
import random

import numpy as np

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Batch, Link, Train, depart
from tests.transport.test_congestion_goals import SIZE, TransferFlow, payload_of

_BETA, _C = 0.7, 0.4
_ALPHA = 3 * (1 - _BETA) / (1 + _BETA)
_THRESHOLD = 3  # segments that overtake one which is lost then


class CubicFlow:
    """Sends without end; windows in segments."""

    def __init__(self, simulation: Simulation, link: Link, *, back_s: float, seed: int) -> None:
        self.delivered = 0
        self._simulation, self._link, self._back_s = simulation, link, back_s
        # ACKs that come in step with the queue's departures would find room by their phase.
        self._random = random.Random(seed)
        self._jitter_s = SIZE * 8 / link.rate_bps
        self._window, self._threshold = 10.0, math.inf
        self._sent_s: dict[int, float] = {}  # of those in flight, ascending
        self._next = 0
        self._recovery = 0  # losses of earlier segments belong to the last reduction
        self._w_max = self._prior = self._estimate = 0.0
        self._epoch_s: float | None = None
        self._rtt_s = 0.0
        self._heard_s = self._acked_s = 0.0

    def start(self, now_s: float) -> None:
        self._simulation.at(now_s, self._send)
        self._simulation.at(now_s + 1.0, self._watch)

    def _send(self) -> None:
        count = int(self._window) - len(self._sent_s)
        if count <= 0:
            return
        now_s, first = self._simulation.now_s, self._next
        self._next += count
        self._sent_s.update(dict.fromkeys(range(first, self._next), now_s))

        def arrive(train: Train) -> None:
            for place, at_s in zip(train.index.tolist(), train.times_s.tolist(), strict=True):
                late_s = at_s + self._back_s + self._random.random() * self._jitter_s
                self._acked_s = max(self._acked_s, late_s)
                number = first + place
                self._simulation.at(self._acked_s, functools.partial(self._on_ack, number))

        batch = Batch(size_bytes=SIZE, links=[self._link], deliver=arrive)
        depart(batch, np.full(count, now_s))

    def _on_ack(self, number: int) -> None:
        now_s = self._heard_s = self._simulation.now_s
        self.delivered += 1
        sent_s = self._sent_s.pop(number, None)
        if sent_s is None:
            return
        self._rtt_s += (now_s - sent_s - self._rtt_s) / 8 if self._rtt_s else now_s - sent_s
        passed = itertools.takewhile(lambda one: one <= number - _THRESHOLD, self._sent_s)
        if lost := list(passed):
            for one in lost:
                del self._sent_s[one]
            if lost[-1] >= self._recovery:
                self._reduce()
        elif number >= self._recovery:
            self._grow(now_s)
        self._send()

    def _reduce(self) -> None:
        window = self._window
        self._w_max = window * (1 + _BETA) / 2 if window < self._w_max else window
        self._prior = window
        self._window = self._threshold = max(2.0, window * _BETA)
        self._epoch_s = None
        self._recovery = self._next

    def _grow(self, now_s: float) -> None:
        window = self._window
        if window < self._threshold:
            self._window += 1
            return
        if self._epoch_s is None:
            self._epoch_s, self._estimate = now_s, window
            self._w_max = max(self._w_max, window)
            self._k_s = math.cbrt((self._w_max - window) / _C)
        self._estimate += (_ALPHA if self._estimate < self._prior else 1.0) / window
        age_s = now_s - self._epoch_s
        if _C * (age_s - self._k_s) ** 3 + self._w_max < self._estimate:
            self._window = max(window, self._estimate)
            return
        target = _C * (age_s + self._rtt_s - self._k_s) ** 3 + self._w_max
        self._window += (min(max(target, window), 1.5 * window) - window) / window

    def _watch(self) -> None:
        """Begins anew where all in flight was lost."""
        now_s = self._simulation.now_s
        if now_s - self._heard_s > max(0.2, 4 * self._rtt_s):
            self._reduce()
            self._window = 2.0
            self._sent_s.clear()
            self._send()
        self._simulation.at(now_s + 0.1, self._watch)


def share(
    control: str,
    repair: str = "streaming",
    *,
    rate_bps: float = 10e6,
    rtt_s: float = 0.02,
    queue: float = 1.0,
    until_s: float = 14.0,
) -> float:
    """The part of what both deliver that is ours, from 4 s on; `queue` is in products.

    Of two runs, in which either has a head start of half a second. `control` is one of ours, or
    `rival` for another flow of CUBIC.
    """
    mine = its = 0
    for starts_s, seed in (((0.5, 0.0), 1), ((0.0, 0.5), 2)):
        simulation = Simulation()
        queue_bytes = queue * rate_bps * rtt_s / 8
        link = Link(simulation, rate_bps=rate_bps, delay_s=rtt_s / 2, queue_bytes=queue_bytes)
        rival = CubicFlow(simulation, link, back_s=rtt_s / 2, seed=seed)
        ours: CubicFlow | TransferFlow
        if control == "rival":
            ours = CubicFlow(simulation, link, back_s=rtt_s / 2, seed=seed + 100)
        else:
            layout, payload = payload_of(math.ceil(1.1 * rate_bps * until_s / 8 / SIZE))
            ours = TransferFlow(
                simulation=simulation,
                links=[link],
                congestion=control,
                rate_bps=rate_bps / 2,
                chunk_bytes=1456,
                repair=repair,
                layout=layout,
                payload=payload,
                delay_s=rtt_s / 2,
            )
        ours.start(starts_s[0])
        rival.start(starts_s[1])
        simulation.run(until_s=4.0, limit=10**9)
        before = ours.delivered, rival.delivered
        simulation.run(until_s=until_s, limit=10**9)
        mine, its = mine + ours.delivered - before[0], its + rival.delivered - before[1]
    assert (mine + its) * SIZE * 4 > 0.8 * rate_bps * (until_s - 4)
    return mine / (mine + its)
