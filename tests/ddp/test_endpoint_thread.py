"""An end of the exchange by itself, with transfers that end when the test says so."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from testbed.ddp import endpoint_thread
from testbed.ddp.endpoint_thread import SERVER, Part, WorkerThread, name_of
from testbed.ddp.exchange import Bucket, Exchange, shard
from testbed.ddp.owner import OwnerThread
from testbed.ddp.settings import Settings
from testbed.transport import EndpointConfig, Handle, PayloadLayout, PeerLost, preset

ELEMENTS = 10
LAYOUT = PayloadLayout([("bucket-0", ELEMENTS)], 4 * ELEMENTS)


class Report:
    """The part of a gather's report that an owner reads: nothing is missing."""

    received = np.ones(1, dtype=np.bool_)
    ended_s = 0.0
    chunk_count = chunks_received = 1


class Endpoint:
    """Takes transfers, which end when they are told to; those of `lost` peers fail at once."""

    def __init__(self, _):
        self.sent, self.received, self.lost = [], [], {}
        self.begun_by_others = set()

    def _handle(self, transfer, peers, sending):
        handle = Handle(transfer, sending, peers, lambda _: None)
        for peer in self.lost.keys() & peers:
            handle.end(peer, self.lost[peer])
        return handle

    def post_send(self, transfer, payloads):
        handle = self._handle(transfer, payloads, True)
        self.sent.append((handle, payloads))
        return handle

    def post_receive(self, transfer, _, into):
        handle = self._handle(transfer, into, False)
        self.received.append((handle, into))
        return handle

    def begun(self, transfer):
        return transfer in self.begun_by_others

    def wake(self):
        pass


@pytest.fixture(autouse=True)
def endpoints(monkeypatch):
    monkeypatch.setattr(endpoint_thread, "Endpoint", Endpoint)


def an_end(kind, name, peers, late_share=0.0):
    config = EndpointConfig(
        session=1, name=name, bind_address="127.0.0.1", peers=dict.fromkeys(peers, "127.0.0.1"),
        is_server=name == SERVER, protocol=preset("none"), layout=LAYOUT, tensor_by_tensor=True,
        rate_bps=1e9, queue_bytes=1e6, control_port=1, data_port=2,
    )  # fmt: skip
    settings = Settings("none", rate_bps=1e9, late_share=late_share)
    functions = {"on_gathered": lambda: None, "on_failure": pytest.fail}
    return kind(config, settings, owner=0, at_once=4, **functions)


def post(end, value, done):
    """Gives the next part; returns where its mean will stand."""
    values = np.full(ELEMENTS, value, dtype=np.float32)
    end.post(values, np.zeros_like(values), 0.0, done.append)
    end._advance()
    return values


def end_transfers(posted):
    for handle, peers in posted:
        for peer in peers:
            handle.end(peer, Report())


def end_all(end, posted):
    end_transfers(posted)
    end._advance()


def an_owner(late_share=0.0):
    others = [name_of(1), name_of(2)]
    return an_end(OwnerThread, SERVER, others, late_share)


def test_a_mean_stays_until_a_late_rank_has_it():
    done: list[Part] = []
    owner = an_owner()
    network = owner._endpoint
    post(owner, 3.0, done)
    end_transfers(network.received)
    owner._rules[owner._under_way[0].number, 2].late = True
    owner._advance()
    (in_time, behind), network.received = network.sent, []
    assert [list(peers) for _, peers in network.sent] == [[name_of(1)], [name_of(2)]]
    end_all(owner, [in_time])
    assert len(done) == 1  # nobody waits for rank 2

    mean = post(owner, 6.0, done)
    end_all(owner, network.received)
    assert mean[0] == 2.0
    (late,) = behind[1].values()
    assert LAYOUT.floats(late)[0] == 1.0


def test_as_many_means_wait_for_a_late_rank_as_the_endpoint_can_hold():
    done: list[Part] = []
    owner = an_owner()
    network = owner._endpoint
    for step in range(6):
        post(owner, 3.0, done)
        end_transfers(network.received)
        owner._rules[owner._under_way[0].number, 2].late = True
        owner._advance()
        end_all(owner, [posted for posted in network.sent if name_of(1) in posted[1]])
        assert len(done) == min(step + 1, owner._most_broadcasts)
    assert owner._most_broadcasts == 4
    end_all(owner, [posted for posted in network.sent if name_of(2) in posted[1]][:1])
    end_all(owner, network.sent[-2:])
    assert len(done) == 5


def test_an_owner_waits_for_its_own_until_it_is_late(monkeypatch):
    done: list[Part] = []
    owner = an_owner(late_share=0.5)
    network = owner._endpoint
    post(owner, 3.0, done)
    end_all(owner, network.received)
    end_all(owner, network.sent)
    assert len(done) == 1  # all others' gradients have been in time so far
    network.sent, network.received = [], []
    monkeypatch.setattr(owner._lateness, "timeout_s", lambda rank, index: np.inf)
    owner._advance()
    assert network.received == []  # nobody else has begun either
    network.begun_by_others.add(2)
    owner._advance()
    end_all(owner, network.received)
    assert network.sent == []
    post(owner, 3.0, done)
    assert len(network.sent) == 1
    assert owner._under_way[0].late == set()
    assert not owner._under_way[0].lossy


def test_a_mean_that_never_came_is_not_the_one_of_the_step_before():
    done: list[Part] = []
    worker = an_end(WorkerThread, name_of(1), [SERVER])
    network = worker._endpoint
    post(worker, 3.0, done)
    network.lost[SERVER] = "the connection was closed"  # between its STOP and its mean
    with pytest.raises(PeerLost, match="lost server: the connection was closed"):
        end_all(worker, network.sent)
    assert not done


@pytest.mark.parametrize("elements", [1, 99, 100, 101, 1000, 12_345])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_cover_a_bucket_and_only_the_last_is_not_of_whole_chunks(elements, count):
    parts = [shard(elements, place, count, per_chunk=100) for place in range(count)]
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(elements))
    there = [part for part in parts if part.stop > part.start]
    assert all((part.stop - part.start) % 100 == 0 for part in there[:-1])
    assert max(part.stop - part.start for part in parts) < elements / count + 2 * 100


def test_a_small_bucket_has_one_owner_and_they_take_turns():
    exchange = object.__new__(Exchange)
    exchange._codec, exchange._owners = "int4", [0, 1, 2]
    exchange._opening = cast("Any", SimpleNamespace(chunk_bytes=1428))
    exchange.plan = tuple(Bucket(count, "float32", ()) for count in (270_000, 23_000, 23_000))
    spans = [[exchange._span(index, place) for place in range(3)] for index in range(3)]
    assert [[span.stop - span.start for span in of_one] for of_one in spans] == [
        [88_288, 91_136, 90_576],
        [0, 23_000, 0],
        [0, 0, 23_000],
    ]
