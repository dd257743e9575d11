"""Several transfers at once, early data, and numbers that do not agree, through real sockets."""

import math
import threading
import time

import numpy as np

from testbed.transport import PayloadLayout, open_endpoint
from tests.transport.loopback import CARRIERS, both, in_thread, run_all, site
from tests.transport.virtual import random_payload


@both
def test_four_transfers_each_way_overlap_and_deliver_every_byte(protocol):
    place = site(protocol, layout=PayloadLayout([("w", 50_000)]))
    ups = [random_payload(place.layout, seed) for seed in range(4)]
    downs = [random_payload(place.layout, seed) for seed in range(4, 8)]

    def exchange(endpoint, peer, sent):
        into, handles = [place.layout.new_buffer() for _ in sent], []
        for number, (payload, buffer) in enumerate(zip(sent, into, strict=True)):
            handles.append(endpoint.post_send(number, {peer: payload}))
            handles.append(endpoint.post_receive(number, 0, {peer: buffer}))
        assert not any(handle.done for handle in handles)
        for handle in handles:
            handle.wait()
        assert all(handle.done for handle in handles)
        assert [handle.reports[peer].transfer for handle in handles] == [0, 0, 1, 1, 2, 2, 3, 3]
        return into

    at_server, [at_worker] = run_all(
        place,
        lambda endpoint: exchange(endpoint, "worker-1", downs),
        lambda endpoint, _: exchange(endpoint, "server", ups),
    )
    assert all(np.array_equal(*pair) for pair in zip(at_server, ups, strict=True))
    assert all(np.array_equal(*pair) for pair in zip(at_worker, downs, strict=True))


@both
def test_poll_returns_each_handle_once_as_it_ends(protocol):
    place = site(protocol)
    payload = random_payload(place.layout)

    def server(endpoint):
        handles = [
            endpoint.post_receive(number, 0, {"worker-1": place.layout.new_buffer()})
            for number in range(3)
        ]
        ended: list[object] = []
        while len(ended) < 3:
            ended += endpoint.poll(5.0)
        assert endpoint.poll(0.01) == []
        assert {handle.wait()["worker-1"].transfer for handle in handles} == {0, 1, 2}
        return ended == handles

    def worker(endpoint, _):
        for number in range(3):
            endpoint.send(number, {"server": payload})

    in_order, _ = run_all(place, server, worker)
    assert in_order


# Workers that leave and come again.


def rejoined(place, server):
    """A worker that has joined while the server goes on."""
    joining = in_thread(lambda: open_endpoint(place.worker()))
    while not joining.done():
        server.poll(0.01)
    return joining.result()


def test_what_a_former_self_has_sent_is_not_taken_for_the_new_ones():
    place = site(survive_peers=True, rate_bps=math.inf)
    wrong, right = (random_payload(place.layout, seed) for seed in (1, 2))
    opened = in_thread(lambda: open_endpoint(place.server()))
    former = open_endpoint(place.worker())
    with opened.result(timeout=30) as server:
        former.post_send(0, {"server": wrong})
        former.poll(0.2)
        former.close()
        with rejoined(place, server) as again:
            into = place.layout.new_buffer()
            sending = in_thread(again.send, 0, {"server": right})
            server.receive(0, 0, {"worker-1": into})
            sending.result(timeout=30)
    assert (into == right).all()


def test_poll_ends_when_a_peer_begins_with_what_is_not_posted_yet():
    place = site(CARRIERS[0])
    payload = random_payload(place.layout)
    may_send = threading.Event()

    def send(endpoint, _):
        assert may_send.wait(10)
        endpoint.send(0, {"server": payload})

    def receive(endpoint):
        assert endpoint.here == {"worker-1"}
        endpoint.poll(0.05, unless_begun=0)
        assert not endpoint.begun(0)
        may_send.set()
        began_s = time.monotonic()
        endpoint.poll(20.0, unless_begun=0)
        assert time.monotonic() - began_s < 10
        assert (endpoint.begun(0), endpoint.begun(2)) == (True, False)
        into = place.layout.new_buffer()
        endpoint.receive(0, 0, {"worker-1": into})
        assert not endpoint.begun(0)
        return into

    into, _ = run_all(place, receive, send)
    assert np.array_equal(into, payload)
