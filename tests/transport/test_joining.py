"""Who may join: what a newcomer says, piece by piece, how its HELLO is judged, who joins again."""

import numpy as np
import pytest

from testbed.transport.core.connection import ConnectionState
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.events import Started
from testbed.transport.core.joining import HELLO_WITHIN_S, Admission, Newcomer, UnknownSenderError
from testbed.transport.core.messages import ControlMessage, Hello, MessageType
from testbed.transport.core.tolerance import FractionRule
from tests.transport.test_cluster import TIMEOUT_S, cluster_of
from tests.transport.virtual import SESSION, layout_of, random_payload

LAYOUT = layout_of(3)
HELLO = Hello(session=SESSION, name="worker-1", terms="x", layout=LAYOUT.encode())
ENCODED = HELLO.message().encode()


def changed(**fields):
    return Hello(**{"session": SESSION, "name": "worker-1", "terms": "x", **fields})


def turned_away(*pieces):
    """Why, and the name that is known by then; all but the last piece are taken."""
    newcomer = Newcomer(SESSION, 0.0)
    for piece in pieces[:-1]:
        assert newcomer.feed(piece) is None
    with pytest.raises(UnknownSenderError) as caught:
        newcomer.feed(pieces[-1])
    return str(caught.value), caught.value.name


@pytest.mark.parametrize("split", [0, 1, 12, 15, 16, len(ENCODED) - 1])
def test_a_hello_is_read_once_it_is_complete(split):
    newcomer = Newcomer(SESSION, 3.0)
    assert newcomer.until_s == 3.0 + HELLO_WITHIN_S
    if split:
        assert newcomer.feed(ENCODED[:split]) is None
    assert newcomer.feed(ENCODED[split:]) == HELLO


def test_a_hello_of_another_session_is_turned_away_as_soon_as_that_shows():
    other = changed(session=SESSION + 1).message().encode()
    assert turned_away(other) == ("wrong-session", "worker-1")
    assert turned_away(other[:15], other[15:16]) == ("wrong-session", None)


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([b""], "silent"),
        ([ENCODED[:-1], b""], "silent"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "garbage"),
        ([ControlMessage(MessageType.PING).encode()], "garbage"),
        ([ENCODED + b"x"], "garbage"),  # a peer waits for the WELCOME before it says more
        ([2 * ENCODED], "garbage"),
    ],
)
def test_what_is_no_hello_is_turned_away(pieces, why):
    assert turned_away(*pieces) == (why, None)


def admission(**settings):
    return Admission(addresses={"worker-1": "10.0.0.1", "worker-2": "10.0.0.2"}, **settings)


@pytest.mark.parametrize(
    ("name", "address", "identity", "why"),
    [
        ("worker-3", "10.0.0.1", None, "unknown-name"),
        ("worker-1", "10.0.0.2", None, "unknown-address"),
        ("worker-1", "10.0.0.1", "worker-2", "another-name"),
    ],
)
def test_who_is_not_expected_is_turned_away_by_name(name, address, identity, why):
    with pytest.raises(UnknownSenderError) as caught:
        admission(terms="x").judge(changed(name=name), address, identity)
    assert (str(caught.value), caught.value.name) == (why, name)


@pytest.mark.parametrize("identity", [None, "worker-1"])
@pytest.mark.parametrize("layout", [None, LAYOUT])
def test_who_is_expected_may_join(layout, identity):
    admission(terms="x", layout=layout).judge(HELLO, "10.0.0.1", identity)


def test_one_of_ours_that_cannot_take_part_is_told_why():
    with pytest.raises(ProtocolError, match="the transports differ: the server has y, worker-1 x"):
        admission(terms="y").judge(HELLO, "10.0.0.1")
    with pytest.raises(ProtocolError, match="the payload layouts differ: "):
        admission(terms="x", layout=layout_of(4)).judge(HELLO, "10.0.0.1")


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
