"""A server that goes on without the workers that it lost."""

import threading

import pytest

from testbed.transport import PeerLost, open_endpoint
from tests.transport.loopback import both, in_thread, run_all, site
from tests.transport.virtual import random_payload


@both
def test_the_others_transfers_are_whole_and_the_lost_one_is_named(protocol):
    place = site(protocol, workers=3, survive_peers=True)
    payloads = {
        name: random_payload(place.layout, seed) for seed, name in enumerate(place.addresses)
    }
    away = threading.Event()

    def server(endpoint):
        buffers = {name: place.layout.new_buffer() for name in place.addresses}
        assert endpoint.receive(0, 0, buffers).keys() == buffers.keys()
        assert endpoint.lost == {}
        away.wait(5)
        second = endpoint.receive(2, 0, buffers)
        endpoint.announce(b"go on")
        third = endpoint.send(3, payloads)
        fourth = endpoint.receive(4, 0, buffers)
        for reports in (second, third, fourth):
            assert reports.keys() == {"worker-1", "worker-3"}
        for name in ("worker-1", "worker-3"):
            assert (buffers[name] == payloads[name]).all()
        return endpoint.lost

    def worker(endpoint, index):
        mine = payloads[f"worker-{index}"]
        endpoint.send(0, {"server": mine})
        if index == 2:
            endpoint.close()
            away.set()
            return
        endpoint.send(2, {"server": mine})
        assert endpoint.await_announcement() == b"go on"
        buffer = place.layout.new_buffer()
        endpoint.receive(3, 0, {"server": buffer})
        assert (buffer == mine).all()
        endpoint.send(4, {"server": mine})

    lost, _ = run_all(place, server, worker)
    assert list(lost) == ["worker-2"]
    assert "closed" in lost["worker-2"] or "reset" in lost["worker-2"]


@both
def test_a_silent_worker_is_given_up_and_the_others_wait_no_longer(protocol):
    place = site(protocol, workers=2, survive_peers=True, peer_timeout_s=0.4)
    done = threading.Event()

    def server(endpoint):
        buffers = {name: place.layout.new_buffer() for name in place.addresses}
        reports = endpoint.receive(0, 0, buffers)
        done.set()
        return reports.keys(), endpoint.lost

    def worker(endpoint, index):
        if index == 1:
            endpoint.send(0, {"server": random_payload(place.layout)})
        done.wait(30)

    (received, lost), _ = run_all(place, server, worker)
    assert received == {"worker-1"}
    assert "silent" in lost["worker-2"]


def test_when_the_last_one_is_lost_there_is_nothing_to_go_on_with():
    place = site(survive_peers=True)
    left = in_thread(lambda: open_endpoint(place.worker()).close())
    with open_endpoint(place.server()) as endpoint:
        left.result(timeout=30)
        with pytest.raises(PeerLost, match="worker-1"):
            endpoint.receive(0, 0, {"worker-1": place.layout.new_buffer()})
