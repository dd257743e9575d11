"""Peers of an endpoint that die, fall silent or break the protocol; servers that go on without."""

import os
import threading
import time

import numpy as np
import pytest

from testbed.transport import PeerLost, TransportError, open_endpoint
from testbed.transport.net.endpoint import Handle
from tests.transport.loopback import both, carry, in_thread, joined, run_all, site
from tests.transport.virtual import random_payload


@both
def test_a_server_that_goes_away_is_named_by_everything_that_needs_it(protocol):
    place = site(protocol)
    left = in_thread(lambda: open_endpoint(place.server()).close())
    with open_endpoint(place.worker()) as endpoint:
        left.result(timeout=30)
        buffer = place.layout.new_buffer()
        for act in (
            lambda: endpoint.send(0, {"server": buffer}),
            lambda: endpoint.receive(1, 0, {"server": buffer}),
            endpoint.await_announcement,
        ):
            with pytest.raises(PeerLost, match="server") as caught:
                act()
            assert caught.value.peer == "server"


@both
@pytest.mark.parametrize("act", ["receives", "sends", "awaits an announcement"])
def test_a_silent_peer_that_owes_something_is_given_up(protocol, act):
    place = site(protocol, peer_timeout_s=0.3)
    with joined(place) as (endpoint, server):
        buffer = place.layout.new_buffer()
        began_s = time.monotonic()
        with pytest.raises(PeerLost, match=r"silent.* for 0\.3 s"):
            if act == "receives":
                server.receive(0, 0, {"worker-1": buffer})
            elif act == "sends":
                endpoint.send(0, {"server": buffer})
            else:
                endpoint.await_announcement()
        assert time.monotonic() - began_s > 0.25


def test_a_peer_may_leave_once_it_owes_nothing():
    place = site(workers=2, rate_bps=20e6)
    payload = random_payload(place.layout)
    buffers = {name: place.layout.new_buffer() for name in place.addresses}

    def worker(endpoint, index):
        time.sleep(0.3 * (index - 1))
        endpoint.send(0, {"server": payload})  # and closes

    run_all(place, lambda endpoint: endpoint.receive(0, 0, buffers), worker)
    assert all(np.array_equal(buffer, payload) for buffer in buffers.values())


@both
def test_what_is_posted_just_after_a_peer_was_lost_fails_with_the_reason(protocol):
    place = site(protocol)
    with joined(place) as (_, server):
        server._driver.links["worker-1"].connection.end("nobody was told yet")
        handle = server.post_receive(0, 0, {"worker-1": place.layout.new_buffer()})
        with pytest.raises(PeerLost, match="worker-1: nobody was told yet"):
            handle.wait()


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


@pytest.mark.parametrize("survive_peers", [True, False])
@both
def test_one_that_is_lost_while_transfers_are_polled_is_named_at_their_end(protocol, survive_peers):
    place = site(protocol, workers=2, survive_peers=survive_peers)
    posted, over = threading.Event(), threading.Event()

    def server(endpoint):
        ended: list[Handle] = []
        for name in place.addresses:
            endpoint.post_receive(0, 0, {name: place.layout.new_buffer()})
        posted.set()
        while len(ended) < 2:
            ended += endpoint.poll(10.0)
        with pytest.raises(PeerLost, match=r"worker-2: .*(closed|reset)"):
            for handle in ended:
                handle.wait()
        assert {peer for handle in ended for peer in handle.reports} == {"worker-1"}
        assert {peer for handle in ended for peer in handle.failed} == {"worker-2"}
        over.set()
        return endpoint.lost.keys()

    def worker(endpoint, index):
        posted.wait(30)
        if index == 1:
            endpoint.send(0, {"server": random_payload(place.layout)})
            over.wait(30)

    lost, _ = run_all(place, server, worker)
    assert lost == {"worker-2"}


class Child:
    """Does something in a process of its own, and then lives until the context ends."""

    def __init__(self, work):
        self._work = work

    def __enter__(self):
        done, report = os.pipe()
        until, self._end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._end)
                os.write(report, b"done" if self._work() else b"not")
                os.read(until, 1)
            finally:
                os._exit(0)
        os.close(report)
        os.close(until)
        with os.fdopen(done, "rb") as reading:
            assert reading.read(4) == b"done"

    def __exit__(self, *_):
        os.close(self._end)
        os.waitpid(self._pid, 0)


@both
def test_a_peer_that_dies_is_missed_at_once_although_a_child_of_it_lives(protocol):
    place = site(protocol)
    opened = in_thread(lambda: open_endpoint(place.server()))
    worker = open_endpoint(place.worker())
    with opened.result(timeout=30) as server, Child(lambda: True):
        worker.abandon()  # the kernel closes them without a word, as those of who is killed
        with pytest.raises(PeerLost, match=r"worker-1: .*(closed|reset)"):
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})


@both
def test_a_child_that_closes_the_endpoint_leaves_its_parents_as_it_is(protocol):
    place = site(protocol)
    with joined(place) as (worker, server):

        def close():
            for endpoint in (worker, server):
                with pytest.raises(TransportError, match="not open"):
                    endpoint.poll()
                endpoint.wake()
                endpoint.close()
            return True

        with Child(close):
            assert server.poll() == []
            carry(worker, server)
