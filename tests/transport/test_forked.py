"""Processes that are forked from one that has an endpoint, as a data loader's workers are."""

import os

import pytest

from testbed.transport import PeerLost, TransportError, open_endpoint
from tests.transport.loopback import both, carry, in_thread, joined, site


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
