"""Payloads that go to several peers at once: the order of each is computed once."""

import numpy as np
import pytest

from testbed.transport import open_endpoint, preset
from testbed.transport.order import LargestMagnitudeFirst
from tests.transport.loopback import in_thread, site
from tests.transport.virtual import random_payload

ORDER = "largest-magnitude-first"


@pytest.fixture
def peers(monkeypatch):
    """A server with two workers, and the transfers of which an order was computed."""
    computed = []
    permutation = LargestMagnitudeFirst.permutation

    def noted(self, context):
        computed.append(context.transfer)
        return permutation(self, context)

    monkeypatch.setattr(LargestMagnitudeFirst, "permutation", noted)
    place = site(preset("dblp-stream", order=ORDER), workers=2)
    opened = in_thread(lambda: open_endpoint(place.server()))
    workers = [in_thread(lambda i=i: open_endpoint(place.worker(i))) for i in (1, 2)]
    with (
        opened.result(timeout=30) as server,
        workers[0].result(timeout=30) as one,
        workers[1].result(timeout=30) as two,
    ):
        yield place.layout, server, {"worker-1": one, "worker-2": two}, computed


def receive(handle, workers, layout, payloads, transfer):
    """Ends a transfer; each worker has got its payload."""
    into = {name: layout.new_buffer() for name in workers}
    receiving = [
        in_thread(worker.receive, transfer, 0, {"server": into[name]})
        for name, worker in workers.items()
    ]
    handle.wait()
    for received in receiving:
        received.result(timeout=30)
    assert all(np.array_equal(into[name], payloads[name]) for name in workers)


def test_a_payload_that_all_get_is_arranged_once_and_payloads_that_differ_each(peers):
    layout, server, workers, computed = peers
    payload = random_payload(layout)
    once = dict.fromkeys(workers, payload)
    several = {name: random_payload(layout, seed) for seed, name in enumerate(workers)}
    for transfer, payloads, expected in ((1, once, [1]), (3, once, [3]), (5, several, [5, 5])):
        computed.clear()
        handle = server.post_send(transfer, payloads)
        assert computed == expected
        receive(handle, workers, layout, payloads, transfer)
        payload[: 4 * layout.element_count] = random_payload(layout, 7)[: 4 * layout.element_count]
