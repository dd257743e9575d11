"""What travels over links in virtual time: one transfer after another between two connections."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.party import link_up
from testbed.simulate.way import Way
from testbed.transport import PayloadLayout, SendingPath
from testbed.transport.core.events import Event, TransferDone
from testbed.transport.core.repair import Repair
from testbed.transport.core.tolerance import FractionRule
from testbed.transport.policies.congestion import CongestionControl
from tests.transport.virtual import connections


class TransferFlow:
    """One payload after another; control messages back take `return_delay_s`.

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
        repair: Repair,
        layout: PayloadLayout,
        payload: NDArray[np.uint8],
        return_delay_s: float,
        transfers: int = 1,
        pause_s: float = 0.0,
        tolerance: float = 0.0,
        queue_bytes: float = math.inf,
    ) -> None:
        self.congestion = congestion
        self.ended_s: list[float] = []
        self.intact = True
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
            repair=repair,
            path=SendingPath(
                congestion=congestion, chunk_bytes=layout.chunk_bytes, queue_bytes=queue_bytes
            ),
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
