"""Peers of an endpoint that die, fall silent, come too early or break the protocol."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from testbed.transport import (
    PayloadLayout,
    PeerLost,
    open_endpoint,
    preset,
)
from testbed.transport.core.messages import ControlMessage, ControlParser, MessageType, body_limits
from tests.transport.loopback import in_thread, run_all, say, site, tcp_of, udp_of
from tests.transport.virtual import random_payload

CARRIERS = [preset("fixed-low", tolerance=0), preset("tcp")]
both = pytest.mark.parametrize("protocol", CARRIERS, ids=lambda protocol: protocol.carrier)


# Peers that die.


@both
def test_a_worker_that_is_killed_in_the_middle_of_a_transfer_is_named(protocol):
    layout = PayloadLayout([("w", 2_000_000)])
    place = site(protocol, workers=2, layout=layout, rate_bps=20e6, peer_timeout_s=60)
    child = os.fork()
    if child == 0:
        try:
            with open_endpoint(place.worker(2)) as endpoint:
                if protocol.carrier == "tcp":  # begins its payload and never ends it
                    tcp_of(endpoint).send(bytes(1))
                    time.sleep(60)
                endpoint.send(0, {"server": layout.new_buffer()})
        finally:
            os._exit(0)
    other = in_thread(lambda: open_endpoint(place.worker(1)))
    try:
        with open_endpoint(place.server()) as endpoint:
            healthy = other.result(timeout=30)
            began_s = time.monotonic()
            threading.Timer(0.2, os.kill, (child, signal.SIGKILL)).start()
            with pytest.raises(PeerLost, match="worker-2") as caught:
                endpoint.receive(0, 0, {name: layout.new_buffer() for name in place.addresses})
            assert 0.15 < time.monotonic() - began_s < 30
            assert caught.value.peer == "worker-2"
            healthy.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


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
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as endpoint, opened.result(timeout=30) as server:
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


@both
def test_an_announcement_may_come_late_from_a_server_that_lives(protocol):
    place = site(protocol, peer_timeout_s=0.4)

    def server(endpoint):
        endpoint.poll(1.2)
        endpoint.announce(b"late")

    _, told = run_all(place, server, lambda endpoint, index: endpoint.await_announcement())
    assert told == [b"late"]


def test_a_peer_that_goes_away_during_a_pass_is_noticed_before_its_end():
    place = site(rate_bps=0.05e6, peer_timeout_s=60)  # a pass of a minute
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as endpoint:
        threading.Timer(0.1, opened.result(timeout=30).close).start()
        began_s = time.monotonic()
        with pytest.raises(PeerLost, match="server"):
            endpoint.send(0, {"server": place.layout.new_buffer()})
        assert time.monotonic() - began_s < 30


def test_a_probe_that_comes_before_its_transfer_begins_is_kept():
    place = site(workers=2, peer_timeout_s=3)
    payload = random_payload(place.layout)
    buffers = {name: place.layout.new_buffer() for name in place.addresses}
    early = threading.Event()

    def server(endpoint):
        endpoint.send(1, dict.fromkeys(buffers, payload))
        assert early.is_set()
        endpoint.receive(2, 0, buffers)

    def worker(endpoint, index):
        if index == 1:  # the server is held up by this one
            assert early.wait(timeout=30)
            time.sleep(0.1)
        endpoint.receive(1, 0, {"server": place.layout.new_buffer()})
        udp = udp_of(endpoint)
        if index == 2:  # all of its first pass is lost, so that only its PROBE helps
            really_send, passing = udp.send, []

            def send(frames):
                passing.append(len(frames))
                if sum(passing) > place.layout.chunk_count:
                    return really_send(frames)
                if sum(passing) == place.layout.chunk_count:
                    threading.Timer(0.05, early.set).start()
                return len(frames)

            udp.send = send  # type: ignore[method-assign]
            udp.departing = lambda: None  # type: ignore[method-assign]
        return endpoint.send(2, {"server": payload})["server"].passes

    _, passes = run_all(place, server, worker)
    assert passes == [1, 2]
    assert all(np.array_equal(buffer, payload) for buffer in buffers.values())


def test_a_long_pass_is_no_silence():
    place = site(layout=PayloadLayout([("w", 25_000)]), rate_bps=1e6, peer_timeout_s=0.4)
    buffer = place.layout.new_buffer()
    _, [sent] = run_all(
        place,
        lambda endpoint: endpoint.receive(0, 0, {"worker-1": buffer}),
        lambda endpoint, index: endpoint.send(0, {"server": buffer})["server"],
    )
    assert sent.duration_s > 0.6


def test_a_peer_may_leave_once_it_owes_nothing():
    place = site(workers=2, rate_bps=20e6)
    payload = random_payload(place.layout)
    buffers = {name: place.layout.new_buffer() for name in place.addresses}

    def worker(endpoint, index):
        time.sleep(0.3 * (index - 1))
        endpoint.send(0, {"server": payload})  # and closes

    run_all(place, lambda endpoint: endpoint.receive(0, 0, buffers), worker)
    assert all(np.array_equal(buffer, payload) for buffer in buffers.values())


def test_a_peer_that_breaks_the_protocol_is_named():
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as endpoint, opened.result(timeout=30) as server:
        say(endpoint, [ControlMessage(MessageType.BITMAP, 0, bytes(35))])
        with pytest.raises(PeerLost, match="worker-1: it broke the protocol"):
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})


@both
def test_what_is_posted_just_after_a_peer_was_lost_fails_with_the_reason(protocol):
    place = site(protocol)
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()), opened.result(timeout=30) as server:
        server._driver.links["worker-1"].connection.on_control_closed("nobody was told yet")
        handle = server.post_receive(0, 0, {"worker-1": place.layout.new_buffer()})
        with pytest.raises(PeerLost, match="worker-1: nobody was told yet"):
            handle.wait()


def test_a_probe_for_a_finished_transfer_is_counted_and_not_answered():
    """Its STOP is on the way already, and the stream loses nothing."""
    place = site()
    payload = random_payload(place.layout)

    def server(endpoint):
        endpoint.receive(0, 0, {"worker-1": place.layout.new_buffer()})
        before = endpoint.counters().get("stale-control", 0)
        endpoint.send(1, {"worker-1": payload})
        return endpoint.counters()["stale-control"] - before

    def worker(endpoint, index):
        endpoint.send(0, {"server": payload})
        say(endpoint, [ControlMessage(MessageType.PROBE, 0, bytes(4))] * 3)
        heard = endpoint._driver.links["server"].connection.on_control
        said: list[bytes] = []

        def listen(data, *arguments, **options):
            said.append(data)
            heard(data, *arguments, **options)

        endpoint._driver.links["server"].connection.on_control = listen
        endpoint.receive(1, 0, {"server": place.layout.new_buffer()})
        messages = ControlParser(body_limits(place.layout.chunk_count)).feed(b"".join(said))
        return [message.type for message in messages if message.transfer == 0]

    counted, answers = run_all(place, server, worker)
    assert counted >= 3
    assert answers == [[]]
