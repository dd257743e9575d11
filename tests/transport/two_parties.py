"""A worker and a server that have joined, in virtual time."""

import math

import numpy as np

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.party import Party, link_up
from testbed.simulate.way import Way
from testbed.transport import PayloadLayout, SendingPath
from testbed.transport.core.events import PeerGone, TransferDone
from testbed.transport.core.tolerance import FractionRule, StopRule
from testbed.transport.core.wire import wire_bytes
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.repair import REPAIRS
from tests.transport.virtual import Bytes, connections, layout_of, random_payload

DELAY_S = 0.005
TIMEOUT_S = 5.0


class Two:
    """A worker that sends and a server that receives."""

    def __init__(
        self,
        *,
        chunks=100,
        loss=0.0,
        repair="passes",
        congestion="fixed",
        rate_bps=10e6,
        seed=0,
        delay_s=DELAY_S,
        chunk_bytes=16,
        layout=None,
        receive_buffer_bytes=math.inf,
        **settings,
    ) -> None:
        self.simulation = Simulation()
        self.layout = layout or layout_of(chunks, chunk_bytes=chunk_bytes)
        self.link = Link(self.simulation, rate_bps=math.inf, delay_s=delay_s, loss=loss, seed=seed)
        there, back = Way([self.link]), Way([], control_delay_s=delay_s)
        self.path = SendingPath(
            congestion=CONGESTION_CONTROLS.create(
                congestion, rate_bps=rate_bps, datagram_bytes=wire_bytes(1, chunk_bytes)
            ),
            chunk_bytes=self.layout.chunk_bytes,
            receive_buffer_bytes=receive_buffer_bytes,
        )
        self.worker, self.server = connections(
            self.simulation,
            (there, back),
            self.layout,
            repair=REPAIRS.create(repair),
            path=self.path,
            **{"peer_timeout_s": TIMEOUT_S, **settings},
        )
        self.into: dict[int, Bytes] = {}
        self.sent: dict[int, Bytes] = {}
        link_up(self.worker, self.server)

    def send(self, transfer: int, payload: Bytes | None = None) -> None:
        self.sent[transfer] = random_payload(self.layout, transfer) if payload is None else payload
        now_s = self.simulation.now_s
        self.worker.connection.post_send(transfer, self.sent[transfer], now_s)
        self.worker.work()

    def receive(
        self,
        transfer: int,
        tolerance: float = 0.0,
        rule: StopRule | None = None,
        layout: PayloadLayout | None = None,
    ) -> None:
        layout = layout or self.layout
        self.into[transfer] = layout.new_buffer()
        rule = rule or FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance)
        now_s = self.simulation.now_s
        self.server.connection.post_receive(transfer, rule, self.into[transfer], now_s)
        self.server.work()

    def carry(self, *transfers: int) -> None:
        """Asks for these and sends them, and runs until nothing happens."""
        for transfer in transfers:
            self.receive(transfer)
            self.send(transfer)
        self.run()

    def run(self, until_s: float = math.inf) -> None:
        self.simulation.run(until_s=until_s, limit=200_000)

    @property
    def intact(self) -> list[int]:
        """The transfers that have arrived whole."""
        return [
            number
            for number, into in self.into.items()
            if number in self.sent and np.array_equal(into, self.sent[number])
        ]


def ended(party: Party) -> list[int]:
    return [event.transfer for event in party.events if isinstance(event, TransferDone)]


def gone(party: Party) -> str:
    """Why the connection has ended, empty while it has not."""
    reasons = [event.reason for event in party.events if isinstance(event, PeerGone)]
    return reasons[0] if reasons else ""
