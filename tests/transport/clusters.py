"""A server and its workers in virtual time, for tests."""

import math

from testbed.simulate.cluster import Cluster
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.way import Way
from testbed.transport import SendingPath
from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.order import ORDERS
from testbed.transport.policies.repair import REPAIRS
from tests.transport.virtual import SESSION, layout_of

TIMEOUT_S = 5.0


def cluster_of(
    *names,
    simulation=None,
    layouts=None,
    repair="passes",
    order="in-order",
    congestion="fixed",
    links=None,
):
    """A cluster whose sides may have layouts of their own, and links made by `links(side)`."""
    simulation = simulation or Simulation()
    layouts = layouts or {}
    default = layout_of(40)

    def layout(side):
        return layouts.get(side, default)

    def link(side):
        if links is not None:
            return links(simulation, side)
        return Link(simulation, rate_bps=math.inf, delay_s=0.002)

    def path(side):
        control = CONGESTION_CONTROLS.create(congestion, rate_bps=10e6, datagram_bytes=74)
        return SendingPath(congestion=control, chunk_bytes=16)

    return Cluster(
        simulation,
        {
            name: (
                Way([link(name)], control_delay_s=0.002),
                Way([link(f"to {name}")], control_delay_s=0.002),
            )
            for name in names
        },
        settings=lambda side: ConnectionSettings(
            session=SESSION,
            layout=layout(side),
            repair=REPAIRS.create(repair),
            order=ORDERS.create(order, seed=1),
            peer_timeout_s=TIMEOUT_S,
        ),
        path=path,
    )
