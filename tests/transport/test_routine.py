"""How a driver waits while compiled code sends and takes: what ends the wait, and how often."""

import signal
import socket
import time
from typing import Any

import numpy as np
import pytest

from testbed.transport import PayloadLayout, preset
from testbed.transport.net.driver import Driver, Waiter
from testbed.transport.net.sealing import seal
from tests.transport.loopback import run_all, site
from tests.transport.routine_parts import NEEDS_C, data_of, pair, two
from tests.transport.virtual import random_payload

pytestmark = NEEDS_C


def test_the_wait_ends_with_what_can_be_read_or_written():
    waiter = Waiter()
    one, other = socket.socketpair()
    with one, other:
        waiter.want(one, reading=True, writing=False)
        waiter.want(other, reading=False, writing=True)
        assert waiter.wait_working(time.monotonic() + 30, [], []) == ([], [other])
        other.send(b"x")
        assert waiter.wait_working(time.monotonic() + 30, [], []) == ([one], [other])
        waiter.want(other, reading=False, writing=False)
        assert waiter.wait_working(time.monotonic() + 30, [], []) == ([one], [])
        one.recv(1)
        began_s = time.monotonic()
        assert waiter.wait_working(began_s + 0.02, [], []) == ([], [])
        assert 0.02 <= time.monotonic() - began_s < 10


def test_a_signal_ends_the_wait():
    ticks = []
    before = signal.signal(signal.SIGALRM, lambda *_: ticks.append(time.monotonic()))
    try:
        began_s = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        Waiter().wait_working(began_s + 60, [], [])
        assert ticks and time.monotonic() - began_s < 30
    finally:
        signal.signal(signal.SIGALRM, before)


def waits(monkeypatch):
    counted: list[Any] = []
    wait = Driver._wait

    def count(self, until_s):
        counted.append(self)
        wait(self, until_s)

    monkeypatch.setattr(Driver, "_wait", count)
    return counted


@pytest.mark.parametrize(("repair", "most"), [("passes", 20), ("streaming", 40)])
def test_a_paced_megabyte_wakes_each_side_a_few_times_and_arrives_whole(monkeypatch, repair, most):
    protocol = preset("fixed-low", tolerance=0, repair=repair)
    layout = PayloadLayout([("w", 250_000)])
    place = site(protocol, layout=layout, rate_bps=100e6, queue_bytes=1e6)
    payload, buffer = random_payload(layout), layout.new_buffer()
    counted = waits(monkeypatch)
    per_round = []

    def worker(endpoint, index):
        for number in range(3):
            counted.clear()
            report = endpoint.send(number, {"server": payload})["server"]
            per_round.append(len(counted))
        return report

    def server(endpoint):
        for number in range(3):
            buffer[:] = 0
            endpoint.receive(number, 0, {"worker-1": buffer})
            assert np.array_equal(buffer, payload)

    _, [sent] = run_all(place, server, worker)
    assert sent.chunks_sent >= layout.chunk_count
    assert min(per_round) < most  # both sides together; each batch alone would be 60


def test_what_was_done_counts_although_a_signals_handler_raises(monkeypatch):
    class TickError(Exception):
        pass

    wait_working = Waiter.wait_working
    ticks: list[Waiter] = []

    def interrupted(self, until_s, going, coming):
        ended = wait_working(self, until_s, going, coming)
        if any(routine.worked for routine in (*going, *coming)) and ticks.count(self) < 3:
            ticks.append(self)
            raise TickError
        return ended

    monkeypatch.setattr(Waiter, "wait_working", interrupted)

    def ended(handle):
        while True:
            try:
                return next(iter(handle.wait().values()))
            except TickError:
                continue

    layout = PayloadLayout([("w", 100_000)])
    place = site(layout=layout, rate_bps=20e6, queue_bytes=1e6)
    payload, buffer = random_payload(layout), layout.new_buffer()
    got, [sent] = run_all(
        place,
        lambda endpoint: ended(endpoint.post_receive(0, 0, {"worker-1": buffer})),
        lambda endpoint, index: ended(endpoint.post_send(0, {"server": payload})),
    )
    assert len(set(ticks)) == 2  # both sides
    assert np.array_equal(buffer, payload)
    assert got.chunks_received == layout.chunk_count
    assert got.duplicates == sent.chunks_sent - layout.chunk_count


def test_a_socket_with_a_checksum_has_no_routine():
    with pair() as (udp, _):
        assert udp.has_routine
        udp.seal = seal("crc", b"", is_server=True)
        assert not udp.has_routine
        parties = two()
        assert data_of(udp).begin_routine(parties.worker.connection, 0.0) is False
