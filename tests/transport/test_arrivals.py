"""What BITMAPs carry, how it is read, and how little of the traffic it is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport import ProtocolError, SendingPath
from testbed.transport.core.messages import MessageType, body_limits, pack_arrivals, unpack_arrivals
from testbed.transport.core.wire import wire_bytes
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import InOrder, Shuffled
from testbed.transport.policies.repair import Passes
from tests.transport.control_share import LARGE_BUFFER, SMALL_BUFFER, control_share
from tests.transport.virtual import Network, bernoulli, layout_of, random_payload, transfer


def numbers(*chunks):
    return np.array(chunks, dtype=np.int64)


@given(st.integers(1, 400), st.data())
def test_arrivals_survive_the_way_within_the_limit_of_their_size(chunk_count, data):
    chunks = sorted(data.draw(st.sets(st.integers(0, chunk_count - 1))))
    body = pack_arrivals(numbers(*chunks))
    assert unpack_arrivals(body, chunk_count).tolist() == chunks
    smallest, largest = body_limits(chunk_count)[MessageType.BITMAP]
    assert smallest <= len(body) <= largest
    assert len(body) <= 1 + 4 * len(chunks)


def test_neighbours_are_a_range_and_scattered_chunks_a_list():
    assert pack_arrivals(numbers(300, 301, 303, 308)) == bytes([0, 0, 0, 1, 44, 0b1011, 1])
    assert pack_arrivals(numbers(3, 300)) == bytes([1, 0, 0, 0, 3, 0, 0, 1, 44])
    assert pack_arrivals(numbers(2**32 - 2)) == b"\1\xff\xff\xff\xfe"
    assert pack_arrivals(numbers()) == b"\1"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "form None in 0 bytes"),
        (b"\2", "form 2"),
        (b"\0\0\0\0\0", "form 0 in 5 bytes"),
        (b"\1\0\0\0", "form 1 in 4 bytes"),
        (b"\0\0\0\0\0\2", "longer than what arrived"),
        (b"\0\0\0\0\0\0", "longer than what arrived"),
        (b"\1\0\0\0\3\0\0\0\3", "does not ascend"),
        (b"\1\0\0\0\n", "chunk 10, beyond the last of 10"),
        (b"\0\0\0\0\2\1\1", "chunk 10, beyond the last of 10"),
        (b"\0\xff\xff\xff\xff\3", "beyond the last"),
    ],
)
def test_anything_else_is_a_protocol_error(body, named):
    with pytest.raises(ProtocolError, match=named):
        unpack_arrivals(body, 10)


@given(st.binary(max_size=60), st.integers(1, 200))
def test_random_bodies_are_read_or_refused(body, chunk_count):
    try:
        chunks = unpack_arrivals(body, chunk_count)
    except ProtocolError:
        return
    assert (np.diff(chunks) > 0).all()
    assert not len(chunks) or 0 <= chunks[0] <= chunks[-1] < chunk_count


@pytest.mark.parametrize(
    ("buffer_bytes", "payload_bytes", "loss", "order"),
    [
        *(
            pytest.param(SMALL_BUFFER, 50_000_000, loss, order, id=f"{loss}-{type(order).__name__}")
            for loss in (0.0, 0.1, 0.5)
            for order in (InOrder(), Shuffled())
        ),
        pytest.param(LARGE_BUFFER, 400_000_000, 0.1, InOrder(), id="large buffer"),
    ],
)
def test_control_is_below_a_hundredth_of_the_data_and_grows_as_the_payload(
    buffer_bytes, payload_bytes, loss, order
):
    (one_bytes, one_share), (two_bytes, _) = (
        control_share(
            times * payload_bytes, Passes(), buffer_bytes=buffer_bytes, loss=loss, order=order
        )
        for times in (1, 2)
    )
    assert 0 < one_share < 0.01
    assert two_bytes / one_bytes == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("window", [2, 5, math.inf])
@pytest.mark.parametrize("loss", [0.0, 0.3, 0.8])
def test_both_sides_count_the_same_passes_whatever_the_window(window, loss):
    layout = layout_of(200)
    outcome = transfer(
        random_payload(layout),
        layout,
        network=Network(survives=bernoulli(loss, 1), rate_bps=1e8),
        path=SendingPath(
            congestion=FixedRate(rate_bps=math.inf),
            chunk_bytes=layout.chunk_bytes,
            receive_buffer_bytes=window * wire_bytes(1, layout.chunk_bytes),
        ),
    )
    sent, got = outcome.sender.report("receiver"), outcome.receiver.report("sender")
    assert sent.passes == got.passes
    assert loss or sent.passes == 1
