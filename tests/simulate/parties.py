"""A worker and a server in virtual time, without a training around them."""

from testbed.simulate.peer import Peer, link_up
from testbed.transport import SendingPath
from testbed.transport.congestion import FixedRate
from testbed.transport.repair import REPAIRS
from testbed.transport.tolerance import FractionRule
from tests.transport.virtual import connections, layout_of


class Parties:
    """Both, joined over ways there and back. Without `ahead` each batch is an event of its own."""

    def __init__(self, simulation, ways, *, chunks, rate_bps, repair, ahead):
        self.simulation = simulation
        self.layout = layout_of(chunks)
        path = SendingPath(congestion=FixedRate(rate_bps=rate_bps), chunk_bytes=16, queue_bytes=1e4)
        joined = connections(
            simulation, ways, self.layout, repair=REPAIRS.create(repair), path=path
        )
        self.worker, self.server = (
            Peer(simulation, end.connection, end.way, ahead=ahead) for end in joined
        )
        link_up(self.worker, self.server)

    def receive(self, number, into, *, tolerance):
        rule = FractionRule(tolerance)
        self.server.catch_up()
        self.server.connection.post_receive(number, rule, into, self.simulation.now_s)
        self.server.work()

    def send(self, number, payload):
        self.worker.catch_up()
        self.worker.connection.post_send(number, payload, self.simulation.now_s)
        self.worker.work()
