"""Networks of several switches in virtual time: store and forward, queues per port, and routes."""

from collections import Counter

import numpy as np
import pytest

import topologies
from testbed.run.simulated_network import SimulatedNetwork, describe
from testbed.simulate.engine import Simulation
from tests.simulate.trains import SIZE_BYTES, Sinks, feed

RATE_BPS, CORE_BPS, DELAY_S, CORE_DELAY_S = 80_000_000, 40_000_000, 0.001, 0.005
BITS = SIZE_BYTES * 8
DUMBBELL = {
    "name": "dumbbell",
    "workers": 2,
    "rate_bps": RATE_BPS,
    "delay_s": DELAY_S,
    "queue_bytes": 150_000,
    "core": {"rate_bps": CORE_BPS, "delay_s": CORE_DELAY_S, "queue_bytes": 5 * SIZE_BYTES},
}
LEAF_SPINE = {"name": "leaf-spine", "workers": 64, "leaves": 4, "spines": 4}


def network(seed=1, **keys):
    simulation = Simulation()
    info = describe(topologies.parse(keys))
    return simulation, SimulatedNetwork(simulation, info, seed=seed)


def names(simulated, way):
    ends = {id(link): name for name, link in simulated.links.items()}
    return [ends[id(link)] for link in way.links]


@pytest.mark.parametrize("length", [1, 64])
def test_each_switch_stores_and_forwards(length):
    """One datagram, and three in a row: the second and third wait for the slow link's rate."""
    simulation, simulated = network(**DUMBBELL)
    there, _ = simulated.ways(["worker-1", "worker-2"])["worker-1"]
    assert names(simulated, there) == [
        ("worker-1", "left"),
        ("left", "right"),
        ("right", "server"),
    ]
    sinks = Sinks()
    feed(simulation, there.links, np.zeros(3), sinks, length=length)
    simulation.run()
    first_s = 2 * (BITS / RATE_BPS + DELAY_S) + BITS / CORE_BPS + CORE_DELAY_S
    assert sinks.in_order[1] == pytest.approx(first_s + np.arange(3) * BITS / CORE_BPS)


def test_a_port_s_queue_is_its_own():
    """A full port to one host delays nobody on the way to another."""
    simulation, simulated = network(name="star", workers=3, rate_bps=RATE_BPS, delay_s=DELAY_S)
    ways = simulated.ways(["worker-1", "worker-2", "worker-3"])
    sinks = Sinks()
    for source, name in enumerate(("worker-1", "worker-2")):
        feed(simulation, ways[name][0].links, np.zeros(50), sinks, source=source)
    feed(simulation, simulated._way("worker-3", "worker-1").links, np.zeros(1), sinks, source=2)
    simulation.run()
    assert max(sinks.in_order[1]) > 100 * BITS / RATE_BPS
    assert sinks.in_order[1][-1] == pytest.approx(2 * (BITS / RATE_BPS + DELAY_S))


def test_flows_spread_over_paths_of_equal_length_by_the_seed():
    workers = [f"worker-{rank}" for rank in range(1, 65)]

    def hops(seed):
        _, simulated = network(seed=seed, **LEAF_SPINE)
        ways = simulated.ways(workers)
        return {name: [names(simulated, way) for way in ways[name]] for name in workers}

    taken = hops(1)
    every = [way for both in taken.values() for way in both]
    assert {len(way) for way in every} == {2, 4}
    spines = Counter(way[1][1] for way in every if len(way) == 4)
    assert len(spines) == 4
    assert spines.total() == 2 * 48  # a quarter is at the server's own leaf
    assert min(spines.values()) > 10  # 24 in the mean
    assert hops(1) == taken != hops(2)
