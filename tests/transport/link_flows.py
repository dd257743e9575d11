"""A congestion control with something to send over links in virtual time, and nothing else.

It has one acknowledgement per datagram, and finds losses by reordering or a timer (RFC 9002,
section 6). It is fast, and it can echo marks; `link_transfers` has whole transfers.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from testbed.simulate.engine import Alarm, Simulation
from testbed.simulate.link import Link
from testbed.simulate.train import Batch, Train, depart
from testbed.transport.core.congestion import Feedback
from testbed.transport.core.pacing import SHORT_QUANTUM_S, Pacer
from testbed.transport.policies.congestion import CongestionControl

DATAGRAM_BYTES = 1514


class AckedFlow:
    """A congestion control with something to send and one acknowledgement per datagram.

    Attributes:
        delivered_bytes, sent_bytes: so far.
        ended_s: when `total_bytes` were delivered; None before that.
    """

    def __init__(
        self,
        simulation: Simulation,
        links: Sequence[Link],
        congestion: CongestionControl,
        *,
        return_delay_s: float,
        total_bytes: float = math.inf,
    ) -> None:
        self.congestion = congestion
        self.delivered_bytes = self.sent_bytes = 0
        self.ended_s: float | None = None
        self._simulation = simulation
        self._links = links
        self._return_delay_s = return_delay_s
        self._total_bytes = total_bytes
        self._pacer = Pacer(
            rate_bps=congestion.rate_bps,
            datagram_wire_bytes=DATAGRAM_BYTES,
            quantum_s=SHORT_QUANTUM_S,
        )
        self._outstanding: dict[int, float] = {}  # number -> when sent, ascending
        self._next = 0
        self._smoothed_s = 0.1
        self._heard_s = 0.0
        self._pace = Alarm(simulation, self._pump)
        self._watching = False

    def start(self, now_s: float, more_bytes: float = 0) -> None:
        """Begins at `now_s`, or goes on after the end with so many bytes more."""

        def begin() -> None:
            self._total_bytes += more_bytes
            self.ended_s = None
            self._heard_s = self._simulation.now_s
            self._outstanding.clear()
            self.congestion.on_transfer_begin(self._simulation.now_s)
            self._pacer.resume(self._simulation.now_s)
            self._pump()

        self._simulation.at(now_s, begin)

    @property
    def in_flight_bytes(self) -> int:
        return len(self._outstanding) * DATAGRAM_BYTES

    def _left(self) -> float:
        """Datagrams that are neither delivered nor on their way."""
        missing = self._total_bytes - self.delivered_bytes - self.in_flight_bytes
        return missing if math.isinf(missing) else max(0, math.ceil(missing / DATAGRAM_BYTES))

    def _pump(self) -> None:
        now_s, control = self._simulation.now_s, self.congestion
        while self.ended_s is None and (left := self._left()) > 0:
            self._pacer.set_rate(control.rate_bps)
            whole = max(1.0, control.window_bytes / DATAGRAM_BYTES)
            room = min(whole - len(self._outstanding), left)
            if room < 1:
                break
            count = int(min(self._pacer.allowance(now_s, int(min(left, 1e9))), room))
            if not count:
                self._pace.by(self._pacer.next_s(now_s, int(min(left, 1e9))))
                break
            for _ in range(count):
                self._send(now_s)
            self._pacer.spend(count)
            control.on_sent(count * DATAGRAM_BYTES, now_s)
        self._watch()

    def _send(self, now_s: float) -> None:
        number = self._next
        self._next += 1
        self._outstanding[number] = now_s
        self.sent_bytes += DATAGRAM_BYTES
        simulation = self._simulation

        def arrive(train: Train) -> None:
            for time_s in train.times_s.tolist():
                simulation.at(
                    time_s + self._return_delay_s,
                    functools.partial(self._acknowledged, number, now_s),
                )

        batch = Batch(size_bytes=DATAGRAM_BYTES, links=self._links, deliver=arrive)
        depart(batch, np.array([now_s]))

    def _acknowledged(self, number: int, sent_s: float) -> None:
        now_s = self._simulation.now_s
        if self._outstanding.pop(number, None) is None:
            return  # given up before, or of a transfer that is over
        self._smoothed_s += (now_s - sent_s - self._smoothed_s) / 8
        self.delivered_bytes += DATAGRAM_BYTES
        if self.delivered_bytes >= self._total_bytes and self.ended_s is None:
            self.ended_s = now_s
        lost = []
        for other in self._outstanding:
            if other > number - 3:
                break
            lost.append(other)
        self._report(DATAGRAM_BYTES, lost, now_s - sent_s)

    def _report(self, delivered: int, lost: list[int], rtt_s: float | None) -> None:
        now_s = self._simulation.now_s
        lost_sent_s = [self._outstanding.pop(number) for number in lost]
        self._heard_s = now_s
        self.congestion.on_feedback(
            Feedback(
                now_s=now_s,
                delivered_bytes=delivered,
                lost_bytes=len(lost) * DATAGRAM_BYTES,
                in_flight_bytes=self.in_flight_bytes,
                rtt_s=rtt_s,
                app_limited=self._left() <= 0,
                newest_lost_sent_s=max(lost_sent_s, default=None),
            )
        )
        self._pump()

    def _watch(self) -> None:
        """Keeps a timer that gives up everything after three silent round trips."""
        if self._watching or not self._outstanding:
            return
        self._watching = True

        def look() -> None:
            self._watching = False
            if self._outstanding and self._simulation.now_s >= self._patience_s():
                self._report(0, list(self._outstanding), None)
            self._watch()

        self._simulation.at(self._patience_s(), look)

    def _patience_s(self) -> float:
        oldest_s = next(iter(self._outstanding.values()), self._simulation.now_s)
        return max(self._heard_s, oldest_s) + 3 * self._smoothed_s
