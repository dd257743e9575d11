"""Transfers of one tensor each: their sizes differ, and several are under way at once."""

import threading
import time

import numpy as np
import pytest

from testbed.transport import Leg, PayloadLayout, preset
from tests.transport.loopback import run_all, site

LAYOUT = PayloadLayout([("small", 7), ("large", 90_001), ("middle", 4000)])


def filled(index, round_index):
    layout = LAYOUT.of_tensors[index]
    buffer = layout.new_buffer()
    values = np.random.default_rng([index, round_index]).normal(size=layout.element_count)
    layout.floats(buffer)[:] = values
    return buffer


def exchange(protocol, rounds, *, pause_s):
    """The buffers that the server got, by round."""
    place = site(protocol, layout=LAYOUT, tensor_by_tensor=True)
    got = {number: LAYOUT.of_tensors[number % 3].new_buffer() for number in range(rounds)}

    def three_at_a_time(post):
        for first in range(0, rounds, 3):
            for handle in [post(number) for number in range(first, first + 3)]:
                handle.wait()

    def serve(endpoint):
        endpoint.poll(pause_s)  # what comes meanwhile has not been asked for
        three_at_a_time(
            lambda number: endpoint.post_receive(
                Leg.GATHER.transfer(number), 0.0, {"worker-1": got[number]}
            )
        )

    def work(endpoint, _):
        three_at_a_time(
            lambda number: endpoint.post_send(
                Leg.GATHER.transfer(number), {"server": filled(number % 3, number)}
            )
        )

    run_all(place, serve, work)
    return got


# With a pause, what comes early finds room whatever its size.
@pytest.mark.parametrize(
    ("protocol", "pause_s"),
    [
        (preset("none"), 0.0),
        (preset("none"), 0.3),
        (preset("dblp-stream", gather=0), 0.0),
        (preset("tcp"), 0.0),
    ],
)
def test_each_transfer_carries_its_tensor_alone(protocol, pause_s):
    got = exchange(protocol, 9, pause_s=pause_s)
    for number, buffer in got.items():
        assert np.array_equal(buffer, filled(number % 3, number))


def test_a_buffer_of_another_tensor_is_refused():
    place = site(layout=LAYOUT, tensor_by_tensor=True)

    def serve(endpoint):
        with pytest.raises(ValueError, match=r"not a buffer of this layout: 132496 .*valid: 1456"):
            big = {"worker-1": LAYOUT.new_buffer()[: 91 * 1456]}
            endpoint.post_receive(Leg.GATHER.transfer(0), 0.0, big)

    run_all(place, serve, lambda endpoint, _: None)


def test_a_tensor_without_elements_is_refused():
    empty = PayloadLayout([("full", 3), ("empty", 0)])
    with pytest.raises(ValueError, match="the tensor 'empty' has no elements; valid: 1 or more"):
        site(layout=empty).server(tensor_by_tensor=True)


def test_another_thread_ends_a_wait():
    place = site(layout=LAYOUT)

    def serve(endpoint):
        began_s = time.monotonic()
        threading.Timer(0.2, endpoint.wake).start()
        assert endpoint.poll(60.0) == []
        waited_s = time.monotonic() - began_s
        endpoint.wake()  # before anybody waits
        endpoint.poll(60.0)
        assert endpoint.poll(0.05) == []  # it was heard once
        return waited_s, time.monotonic() - began_s

    def work(endpoint, _):
        endpoint.poll(1.0)

    (waited_s, all_s), _ = run_all(place, serve, work)
    assert 0.15 < waited_s < 30.0
    assert 0.2 < all_s < 30.0
