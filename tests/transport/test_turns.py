"""The driver serves one peer for a few milliseconds at most, then the others."""

import socket

import numpy as np
import pytest

from testbed.transport.connection import Connection
from testbed.transport.messages import Ack, ControlMessage, MessageType
from testbed.transport.net.control import Stream
from testbed.transport.net.driver import Link
from testbed.transport.receiver import Incoming
from testbed.transport.wire import fields, new_frames
from tests.transport.loopback import joined, site, tcp_pair
from tests.transport.test_coalescing import FakeSocket, OneSender
from tests.transport.test_plans import data_of
from tests.transport.virtual import SESSION, Two, random_payload

EMPTY_ACK = Ack(first=0, arrived=np.zeros(0, np.bool_), echo=None, held_s=0, probed=0).message(0)


@pytest.fixture
def link():
    """A worker's link whose connection sends a transfer, and the peer's end of its stream."""
    two = Two(repair="selective", chunks=40_000)
    two.worker.connection.post_send(0, random_payload(two.layout), 0.0)
    connection, peer = tcp_pair()
    stream = Stream(connection)
    yield Link(two.worker.connection, stream), peer
    peer.close()
    stream.close()


class Recorder:
    """Records what a connection takes in each call, and whether that counts as having waited."""

    def __init__(self, link, monkeypatch):
        self.counts: list[int] = []
        self.waited: list[bool | None] = []
        take, self._link = Connection._take, link

        def noted(connection, message, now_s, waited):
            self.counts[-1] += 1
            self.waited[-1] = waited
            take(connection, message, now_s, waited)

        monkeypatch.setattr(Connection, "_take", noted)

    def serve(self):
        self.counts.append(0)
        self.waited.append(None)
        self._link.receive({self._link.stream}, 1.0, attentive=True)


@pytest.mark.parametrize(
    "message",
    [EMPTY_ACK, ControlMessage(MessageType.HOLD), ControlMessage(MessageType.PING)],
    ids=lambda message: message.type.name,
)
def test_messages_without_end_are_taken_in_turns_and_none_is_lost(link, message, monkeypatch):
    worker, peer = link
    recorded = Recorder(worker, monkeypatch)
    peer.sendall(message.encode() * 9362)
    peer.shutdown(socket.SHUT_WR)
    while worker.stream.closed is None:
        recorded.serve()
        assert worker.connection.lost is None
    assert sum(recorded.counts) == 9362
    most = 2048 // len(message.encode())
    assert max(recorded.counts) <= most + 1
    # What follows a full turn has lain unread while others had theirs.
    assert recorded.waited[0] is False
    full = [
        now
        for before, now in zip(recorded.counts, recorded.waited[1:], strict=False)
        if before > most - 1
    ]
    assert len(full) > 20
    assert False not in full


def test_a_long_message_is_taken_in_one_turn(link, monkeypatch):
    worker, peer = link
    recorded = Recorder(worker, monkeypatch)
    peer.sendall(ControlMessage(MessageType.PING).encode() * 2)
    recorded.serve()
    stop = ControlMessage(MessageType.STOP, 0, bytes(5000)).encode()
    peer.sendall(stop[:100])
    recorded.serve()
    peer.sendall(stop[100:] + ControlMessage(MessageType.PING).encode())
    recorded.serve()
    assert recorded.counts == [2, 0, 1]
    recorded.serve()
    assert recorded.counts[-1] == 1


def test_a_batch_that_names_many_transfers_costs_no_more_than_one_with_a_few(monkeypatch):
    two = Two()
    two.receive(0)
    handled = []
    data = Incoming._data

    def noted(incoming, transfer, *rest):
        handled.append(transfer)
        return data(incoming, transfer, *rest)

    monkeypatch.setattr(Incoming, "_data", noted)
    frames = new_frames(600, two.layout.chunk_bytes)
    records = fields(frames, two.layout.chunk_bytes)
    records["session"], records["length"] = SESSION, two.layout.chunk_bytes
    records["transfer"] = np.random.default_rng(0).permutation(600)
    records["session"][records["transfer"] == 1] = SESSION + 1
    connection = two.server.connection
    connection.on_datagrams(frames, 1.0)
    assert handled == [0, 2, 3, 4, 5]  # as many wait for their turn as may be in flight
    assert connection.counters == {"wrong-session": 1, "early-transfer": 594}
    for transfer in (2, 3, 4, 5):
        assert connection.incoming._early[transfer].received_count == 1


def test_datagrams_that_are_dropped_count_towards_what_had_come_before_a_message():
    class Forged(FakeSocket):
        """Every batch is dropped, and the next one is there already."""

        def receive(self):
            self.frames.append(None)
            self.taken_bytes = 1000
            return np.empty((0, 20), dtype=np.uint8), False

    udp = Forged([])
    udp.backlog = 4000
    data_of(udp).read_backlog(OneSender(0.0), 1.0, waited=False)
    assert len(udp.frames) == 4


def test_announcements_that_are_taken_make_room_for_others():
    place = site()
    with joined(place) as (worker, server):
        for _ in range(150):  # together more than may wait
            server.announce(bytes(1 << 16))
            assert len(worker.await_announcement()) == 1 << 16
