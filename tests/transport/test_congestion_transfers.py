"""Congestion controls under the real sender and receiver: in virtual time and over sockets."""

import numpy as np
import pytest

from testbed.bench.transport.records import jain
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.transport import PayloadLayout, preset
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.repair import REPAIRS
from tests.transport.link_flows import DATAGRAM_BYTES
from tests.transport.link_transfers import TransferFlow
from tests.transport.loopback import run_all, site
from tests.transport.virtual import layout_of, random_payload

RATE_BPS = 100e6
RTT_S = 1e-3
ALL = ["fixed", "timely", "reno", "cubic", "bbr", "ltp"]
REPORTING = ["selective", "streaming"]


def flows_of(
    name: str,
    repair: str,
    *,
    count: int = 1,
    chunks: int = 300,
    transfers: int = 1,
    tolerance: float = 0.0,
    loss: float = 0.0,
) -> tuple[Simulation, Link, list[TransferFlow]]:
    """Hosts with links of their own, and one link of the same rate to the receiver."""
    simulation = Simulation()
    bottleneck = Link(
        simulation,
        rate_bps=RATE_BPS,
        delay_s=RTT_S / 2,
        queue_bytes=100 * DATAGRAM_BYTES,
        loss=loss,
        seed=3,
    )
    layout = layout_of(chunks, chunk_bytes=1456)
    payload = random_payload(layout)
    flows = []
    for index in range(count):
        host = Link(simulation, rate_bps=RATE_BPS, delay_s=0.0)
        control = CONGESTION_CONTROLS.create(
            name, rate_bps=RATE_BPS / count, datagram_bytes=DATAGRAM_BYTES
        )
        flow = TransferFlow(
            simulation,
            [host, bottleneck],
            control,
            repair=REPAIRS.create(repair),
            layout=layout,
            payload=payload,
            return_delay_s=RTT_S / 2,
            transfers=transfers,
            pause_s=0.02,
            tolerance=tolerance,
        )
        flow.start(index * 1e-4)
        flows.append(flow)
    return simulation, bottleneck, flows


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("repair", "settings"),
    [
        *(
            (repair, {"chunks": 150, "transfers": 2, "loss": 0.3})
            for repair in ("passes", *REPORTING)
        ),
        ("streaming", {"chunks": 60, "tolerance": 0.1, "loss": 0.9}),
    ],
)
def test_transfers_end_and_are_right_whatever_is_lost(name, repair, settings):
    simulation, _, (flow,) = flows_of(name, repair, **settings)
    simulation.run(until_s=60.0, done=lambda: flow.done)
    assert flow.done
    assert flow.intact
    assert settings["loss"] > 0.3 or flow.delivered == 2 * 150


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("repair", REPORTING)
def test_one_flow_is_close_to_the_byte_bound(name, repair):
    simulation, _, (flow,) = flows_of(name, repair, chunks=600)
    simulation.run(done=lambda: flow.done)
    bound_s = 600 * DATAGRAM_BYTES * 8 / RATE_BPS
    assert flow.ended_s[0] <= (1.3 if name == "timely" else 1.05) * bound_s  # it starts slowly


@pytest.mark.parametrize("name", ALL)
def test_incast_of_eight_completes_fairly_and_keeps_the_bottleneck_busy(name):
    simulation, bottleneck, flows = flows_of(name, "streaming", count=8, transfers=4)
    simulation.run(until_s=30.0, done=lambda: any(flow.done for flow in flows))
    assert bottleneck.busy_s / simulation.now_s >= 0.93
    simulation.run(until_s=30.0, done=lambda: all(flow.done for flow in flows))
    assert all(flow.done and flow.intact for flow in flows)
    assert jain([1 / flow.ended_s[-1] for flow in flows]) >= 0.9


@pytest.mark.parametrize("name", [*ALL, "cubic:beta=0.8", "timely:t_low_s=5e-3,t_high_s=2e-2"])
@pytest.mark.parametrize("repair", REPORTING)
def test_over_loopback_every_byte_arrives(name, repair):
    protocol = preset("fixed-low", tolerance=0, repair=repair, congestion_control=name)
    place = site(protocol, layout=PayloadLayout([("weights", 200_001)]))
    payload = random_payload(place.layout)
    into, back = place.layout.new_buffer(), place.layout.new_buffer()

    def server(endpoint):
        for round_ in range(3):
            endpoint.receive(2 * round_, 0.0, {"worker-1": into})
            endpoint.send(2 * round_ + 1, {"worker-1": into})

    def worker(endpoint, index):
        for round_ in range(3):
            endpoint.send(2 * round_, {"server": payload})
            endpoint.receive(2 * round_ + 1, 0.0, {"server": back})

    run_all(place, server, worker)
    assert np.array_equal(into, payload)
    assert np.array_equal(back, payload)
