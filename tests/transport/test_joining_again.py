"""Joining, dying and joining again, in virtual time."""

import numpy as np

from testbed.transport.core.connection import ConnectionState
from testbed.transport.core.events import Started
from testbed.transport.core.tolerance import FractionRule
from tests.transport.clusters import TIMEOUT_S, cluster_of
from tests.transport.virtual import layout_of, random_payload


def started(party):
    return any(isinstance(event, Started) for event in party.events)


def test_workers_may_begin_once_all_have_joined_however_long_the_last_one_takes():
    cluster = cluster_of("a", "b")
    early = cluster.join("a")
    cluster.simulation.run(until_s=50 * TIMEOUT_S)
    assert early.connection.state is ConnectionState.WAITING
    assert not started(early)
    late = cluster.join("b")
    cluster.simulation.run()
    assert started(early) and started(late)


def test_a_worker_that_died_while_others_joined_takes_its_place_again():
    cluster = cluster_of("a", "b")
    cluster.join("a")
    cluster.simulation.run()
    cluster.kill("a")
    cluster.simulation.run()
    again = cluster.join("a")
    cluster.join("b")
    cluster.simulation.run()
    assert started(again)
    assert cluster.servers["a"].connection.state is ConnectionState.OPEN
    assert cluster.refused == []


def test_a_worker_that_the_server_believes_alive_may_join_again():
    cluster = cluster_of("a")
    cluster.join("a")
    cluster.simulation.run()
    former = cluster.servers["a"]
    again = cluster.join("a")
    cluster.simulation.run()
    assert former.connection.lost == "it has joined again"
    assert started(again)


def test_a_worker_that_joins_again_goes_on_with_the_next_transfer():
    cluster = cluster_of("a")
    layout = layout_of(40)
    cluster.join("a")
    cluster.simulation.run()
    cluster.workers["a"].connection.post_send(0, random_payload(layout), 0.0)
    cluster.kill("a")
    cluster.simulation.run()
    cluster.join("a")
    cluster.simulation.run()
    now_s, into, payload = cluster.simulation.now_s, layout.new_buffer(), random_payload(layout, 2)
    rule = FractionRule(chunk_count=40, tolerance=0.0)
    cluster.servers["a"].connection.post_receive(2, rule, into, now_s)
    cluster.workers["a"].connection.post_send(2, payload, now_s)
    cluster.workers["a"].work()
    cluster.simulation.run()
    assert np.array_equal(into, payload)
