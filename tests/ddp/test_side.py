"""An end of the exchange by itself, with transfers that end when the test says so."""

import numpy as np
import pytest

from testbed.ddp import side as side_module
from testbed.ddp.part import Part
from testbed.ddp.side import SERVER, OwnerSide, WorkerSide, name_of
from testbed.training.filling import FILLINGS
from testbed.transport import EndpointConfig, Handle, PayloadLayout, PeerLost, preset

ELEMENTS = 10
LAYOUT = PayloadLayout([("bucket-0", ELEMENTS)], 4 * ELEMENTS)


class Report:
    """What an owner reads of a first leg's report: nothing is missing."""

    received = np.ones(1, dtype=np.bool_)
    ended_s = 0.0


class Endpoint:
    """Takes transfers, which end when they are told to; those of `lost` peers fail at once."""

    def __init__(self, _):
        self.sent, self.received, self.lost = [], [], {}

    def _handle(self, transfer, peers, sending):
        handle = Handle(transfer, sending, lambda _: None)
        for peer in peers:
            handle.await_peer(peer)
            if peer in self.lost:
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

    def wake(self):
        pass


@pytest.fixture(autouse=True)
def endpoints(monkeypatch):
    monkeypatch.setattr(side_module, "Endpoint", Endpoint)


def an_end(kind, name, peers, mean, **more):
    config = EndpointConfig(
        session=1, name=name, bind_address="127.0.0.1", peers=dict.fromkeys(peers, "127.0.0.1"),
        is_server=name == SERVER, protocol=preset("none"), layout=LAYOUT, tensor_by_tensor=True,
        rate_bps=1e9, queue_bytes=1e6, control_port=1, data_port=2,
    )  # fmt: skip
    filling = FILLINGS.create("error-feedback")
    return kind(config, filling, owner=0, means=[mean], on_failure=pytest.fail, **more)


def post(end, value, done):
    values = np.full(ELEMENTS, value, dtype=np.float32)
    end.post(values, 0.0, done.append, turned=lambda: None)
    end._advance()


def end_all(posted):
    for handle, peers in posted:
        for peer in peers:
            handle.end(peer, Report())


def test_a_mean_stays_until_a_late_rank_has_it():
    done: list[Part] = []
    mean = LAYOUT.new_buffer()
    others = [name_of(1), name_of(2)]
    owner = an_end(OwnerSide, SERVER, others, mean, world=3, late_share=0.0, min_ranks=3)
    network = owner._endpoint
    post(owner, 3.0, done)
    end_all(network.received)
    owner._under_way[0].rules[2].late = True
    owner._advance()
    (in_time, behind), network.received = network.sent, []
    assert [list(peers) for _, peers in network.sent] == [[name_of(1)], [name_of(2)]]
    end_all([in_time])
    owner._advance()
    assert len(done) == 1  # nobody waits for rank 2

    first = mean.copy()
    assert LAYOUT.floats(first)[0] == 1.0
    post(owner, 6.0, done)
    end_all(network.received)
    owner._advance()
    assert np.array_equal(mean, first)
    assert len(network.sent) == 2
    end_all([behind])
    owner._advance()
    assert LAYOUT.floats(mean)[0] == 2.0
    assert len(network.sent) == 3


def test_a_mean_that_never_came_is_not_the_one_of_the_step_before():
    done: list[Part] = []
    mean = LAYOUT.new_buffer()
    worker = an_end(WorkerSide, name_of(1), [SERVER], mean)
    network = worker._endpoint
    post(worker, 3.0, done)
    network.lost[SERVER] = "the connection was closed"  # between its STOP and its mean
    end_all(network.sent)
    with pytest.raises(PeerLost, match="lost server: the connection was closed"):
        worker._advance()
    assert not done
