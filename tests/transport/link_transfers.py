"""Whole transfers over one bottleneck in virtual time, and what it delivers meanwhile."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.party import link_up
from testbed.simulate.way import Way
from testbed.transport import PayloadLayout, SendingPath
from testbed.transport.core.events import Event, TransferDone
from testbed.transport.core.tolerance import FractionRule
from testbed.transport.policies.congestion import CONGESTION_CONTROLS, CongestionControl
from testbed.transport.policies.repair import REPAIRS
from tests.transport.virtual import connections, layout_of, random_payload

DATAGRAM_BYTES = 1514
# By how far the share of a single round trip may fall short where the mean of five does not.
_ROUND_SLACK = 0.05


class TransferFlow:
    """One payload after another between two connections.

    Attributes:
        ended_s: when each transfer's STOP reached the sender.
        intact: whether every chunk that was received so far is right.
    """

    def __init__(
        self,
        simulation: Simulation,
        links: Sequence[Link],
        congestion: CongestionControl,
        *,
        repair: str,
        layout: PayloadLayout,
        payload: NDArray[np.uint8],
        return_delay_s: float,
        transfers: int = 1,
        pause_s: float = 0.0,
        tolerance: float = 0.0,
        queue_bytes: float = math.inf,
    ) -> None:
        """Control messages back take `return_delay_s`."""
        self.congestion = congestion
        self.ended_s: list[float] = []
        self.intact = True
        self.path = SendingPath(
            congestion=congestion, chunk_bytes=layout.chunk_bytes, queue_bytes=queue_bytes
        )
        self._simulation = simulation
        self._layout = layout
        self._payload = payload
        self._transfers = transfers
        self._pause_s = pause_s
        self._rule = FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance)
        self._into = layout.new_buffer()
        self._before = 0  # chunks of the transfers that have ended
        self._worker, self._server = connections(
            simulation,
            (Way(links), Way([], control_delay_s=return_delay_s)),
            layout,
            repair=REPAIRS.create(repair),
            path=self.path,
        )
        link_up(self._worker, self._server)
        self._worker.on_event, self._server.on_event = self._on_sent, self._on_received

    @property
    def delivered(self) -> int:
        """Chunks that the receiver has of all transfers together."""
        receivers = self._server.connection.incoming.receivers.values()
        return self._before + sum(receiver.received_count for receiver in receivers)

    @property
    def done(self) -> bool:
        return len(self.ended_s) == self._transfers

    def start(self, now_s: float) -> None:
        """Begins the first transfer at `now_s`."""
        self._simulation.at(now_s, self._begin)

    def _begin(self) -> None:
        now_s, number = self._simulation.now_s, len(self.ended_s)
        self._into[:] = 0
        self._server.connection.post_receive(number, self._rule, self._into, now_s)
        self._worker.connection.post_send(number, self._payload, now_s)
        self._server.work()
        self._worker.work()

    def _on_received(self, event: Event) -> None:
        assert isinstance(event, TransferDone) and event.report.received is not None
        here = event.report.received
        self._before += int(here.sum())
        rows, sent = self._layout.rows(self._into), self._layout.rows(self._payload)
        self.intact = self.intact and np.array_equal(rows[here], sent[here])

    def _on_sent(self, event: Event) -> None:
        assert isinstance(event, TransferDone)
        self.ended_s.append(self._simulation.now_s)
        if not self.done:
            self._simulation.at(self._simulation.now_s + self._pause_s, self._begin)


class Scenario:
    """Flows of one kind through a bottleneck that holds `queue` bandwidth-delay products.

    Attributes:
        link: the bottleneck; its `loss` can be set.
        flows: in the order of their starts, which are `stagger_s` apart; by default without end.
    """

    def __init__(
        self,
        control: str,
        repair: str = "selective",
        *,
        rate_bps: float,
        rtt_s: float,
        flows: int = 1,
        stagger_s: float = 0.0,
        queue: float = 2.0,
        loss: float = 0.0,
        chunks: int = 100_000,
        **settings: float,
    ) -> None:
        self.simulation = Simulation()
        self.rate_bps = rate_bps
        self.rtt_s = rtt_s
        self.product_bytes = rate_bps * rtt_s / 8
        self.link = Link(
            self.simulation,
            rate_bps=rate_bps,
            delay_s=rtt_s / 2,
            queue_bytes=queue * self.product_bytes,
            loss=loss,
            seed=1,
        )
        layout = layout_of(chunks, chunk_bytes=1456)
        payload = random_payload(layout)
        self.flows = []
        for number in range(flows):
            flow = TransferFlow(
                self.simulation,
                [self.link],
                CONGESTION_CONTROLS.create(
                    control, rate_bps=rate_bps / flows, datagram_bytes=DATAGRAM_BYTES
                ),
                repair=repair,
                layout=layout,
                payload=payload,
                return_delay_s=rtt_s / 2,
                **settings,  # type: ignore[arg-type]
            )
            flow.start(number * stagger_s)
            self.flows.append(flow)

    @property
    def busy_s(self) -> float:
        """For how long the bottleneck has sent until now."""
        left_bytes = self.link.queued_bytes  # first: it serves
        entered = self.link.sent - self.link.dropped
        return (entered * DATAGRAM_BYTES - left_bytes) * 8 / self.link.rate_bps

    def run(self, round_trips: float) -> list[float]:
        """The share of the rate that came out of the bottleneck in each round trip from now on."""
        shares = []
        for _ in range(math.ceil(round_trips)):
            busy_s, lost = self.busy_s, self.link.lost
            self.simulation.run(until_s=self.simulation.now_s + self.rtt_s)
            lost_s = (self.link.lost - lost) * DATAGRAM_BYTES * 8 / self.link.rate_bps
            shares.append((self.busy_s - busy_s - lost_s) / self.rtt_s)
        return shares

    def run_watching_queue(self, round_trips: int) -> tuple[float, float]:
        """The mean share, and the mean queue in bandwidth-delay products."""
        shares, queues = [], []
        for _ in range(round_trips):
            shares += self.run(1)
            queues.append(self.link.queued_bytes / self.product_bytes)
        return statistics.mean(shares), statistics.mean(queues)

    def end(self) -> None:
        """Runs until all transfers have ended, and are right."""
        self.simulation.run(until_s=60.0, done=lambda: all(flow.done for flow in self.flows))
        assert all(flow.done and flow.intact for flow in self.flows)


def burst(scenario: Scenario, *, loss: float, round_trips: float, before: float = 100) -> None:
    """Lets the flows settle for `before` round trips, then loses so much of what comes out."""
    scenario.run(before)
    scenario.link.loss = loss
    scenario.run(round_trips)
    scenario.link.loss = 0.0


def back_after(shares: list[float], *, level: float = 0.95) -> int | None:
    """The round trip from which on five in a row deliver `level`, on average; None for never."""
    for begin in range(len(shares) - 4):
        five = shares[begin : begin + 5]
        if sum(five) / 5 >= level and five[0] >= level - _ROUND_SLACK:
            return begin
    return None
