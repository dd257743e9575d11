"""Switches that choose a path for each datagram: what goes where, and what repairs make of it."""

import itertools

import pytest

import topologies
from testbed.run.simulated_network import Routes, SimulatedNetwork, describe
from testbed.simulate.engine import Simulation
from tests.simulate.parties import Parties
from tests.transport.virtual import random_payload, reports

CHUNKS, DELAY_S = 401, 0.0005
UP = [("leaf-2", "spine-1"), ("leaf-2", "spine-2")]


class Pair:
    """Two leaves under two spines; a worker on one, the server on the other.

    Args:
        longer_s: what the link down from the first spine takes more than the others.
    """

    def __init__(self, *, repair="selective", spray=True, ahead=True, longer_s=0.0, loss=0.0):
        slow = {"delay_s": DELAY_S + longer_s, "loss": loss}
        fabric = {"name": "leaf-spine", "workers": 3, "leaves": 2, "spines": 2, "delay_s": DELAY_S}
        topology = topologies.parse({**fabric, "links": {"leaf-1--spine-1": slow}})
        simulation = Simulation()
        self.network = SimulatedNetwork(simulation, describe(topology), seed=1, spray=spray)
        ways = self.network.ways(["worker-1"])["worker-1"]
        self._pair = Parties(
            simulation, ways, chunks=CHUNKS, rate_bps=90e6, repair=repair, ahead=ahead
        )

    def transfer(self, number):
        pair = self._pair
        into, payload = pair.layout.new_buffer(), random_payload(pair.layout, seed=number)
        pair.receive(number, into, tolerance=0)
        pair.send(number, payload)
        pair.simulation.run(limit=300_000)
        assert (into == payload).all()
        return reports(pair.worker)[-1]

    def carried(self):
        return [self.network.links[hop].sent for hop in UP]


def test_the_datagrams_of_a_flow_take_its_paths_in_turn():
    sprayed, hashed = Pair(), Pair(spray=False)
    for pair in (sprayed, hashed):
        assert pair.transfer(2).retransmitted_bytes == 0
    assert sorted(sprayed.carried()) == [CHUNKS // 2, CHUNKS // 2 + 1]
    assert sorted(hashed.carried()) == [0, CHUNKS]


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
@pytest.mark.parametrize("harm", [{"loss": 0.3}, {"longer_s": 0.001}, {"longer_s": 0.0001}])
def test_what_a_sender_sends_ahead_takes_the_paths_that_it_takes_batch_by_batch(repair, harm):
    """All bytes arrive, by datagrams that are as many, and in as much time."""
    one, two = Pair(repair=repair, **harm), Pair(repair=repair, ahead=False, **harm)
    for number in (2, 4):
        first, second = one.transfer(number), two.transfer(number)
        assert first.bytes_sent == second.bytes_sent
        took_s = second.ended_s - second.began_s
        assert first.ended_s - first.began_s == pytest.approx(took_s, abs=1e-9)
    up = one.carried()
    assert abs(up[0] - up[1]) <= 1


def test_a_repair_that_learns_of_reordering_sends_less_in_vain():
    """Every second datagram comes 0.1 ms late: 15 of them are then on the longer path.

    `selective` declares some of them lost before it has learned that they come, and again when it
    has forgotten half of that, after a transfer without any. A receiver of `passes`
    says what it lacks when all has been sent, and `streaming` repeats what seems lost.
    """
    learns, does_not, repeats = (
        [pair.transfer(number).retransmitted_bytes for number in (2, 4, 6)]
        for pair in (
            Pair(repair=kind, longer_s=0.0001) for kind in ("selective", "passes", "streaming")
        )
    )
    assert learns[0] > 0
    assert learns[1] == 0
    assert sum(learns) < sum(does_not) < sum(repeats)
    assert min(does_not) > 0


def test_all_shortest_paths_are_found_the_flow_s_own_first():
    network = describe(topologies.parse({"name": "fat-tree", "k": 4, "workers": 15})).as_json()
    routes = Routes(network, seed=3)
    paths = routes.paths("worker-15", "server")
    assert paths[0] == routes.path("worker-15", "server")
    cores = {node for hops in paths for _, node in hops if node.startswith("core-")}
    assert cores == {"core-1", "core-2", "core-3", "core-4"}
    assert len(paths) == len({tuple(path) for path in paths}) == 4
    for hops in paths:
        assert all(one[1] == two[0] for one, two in itertools.pairwise(hops))
