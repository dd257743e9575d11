"""Payloads that go to several peers at once: the order of each is computed once."""

import numpy as np

from testbed.transport import preset
from testbed.transport.order import LargestMagnitudeFirst
from tests.transport.loopback import run_all, site
from tests.transport.virtual import random_payload


def test_a_payload_that_all_get_is_arranged_once_and_payloads_that_differ_each(monkeypatch):
    computed = []  # the transfers of which an order was computed
    permutation = LargestMagnitudeFirst.permutation

    def noted(self, context):
        computed.append(context.transfer)
        return permutation(self, context)

    monkeypatch.setattr(LargestMagnitudeFirst, "permutation", noted)
    place = site(preset("dblp-stream", order="largest-magnitude-first"), workers=2)
    payload = random_payload(place.layout)
    changed = random_payload(place.layout, 7)
    several = {name: random_payload(place.layout, n) for n, name in enumerate(place.addresses)}
    once = dict.fromkeys(place.addresses, payload)

    def server(endpoint):
        endpoint.send(1, once)
        payload[:] = changed
        endpoint.send(3, once)
        endpoint.send(5, several)

    def worker(endpoint, index):
        buffers = {number: place.layout.new_buffer() for number in (1, 3, 5)}
        for number, buffer in buffers.items():
            endpoint.receive(number, 0, {"server": buffer})
        return buffers

    _, received = run_all(place, server, worker)
    assert computed == [1, 3, 5, 5]
    for buffers, own in zip(received, several.values(), strict=True):
        assert np.array_equal(buffers[1], random_payload(place.layout))
        assert np.array_equal(buffers[3], changed)
        assert np.array_equal(buffers[5], own)
