"""The layout of a datagram."""

import numpy as np
import pytest

from testbed.transport.core.wire import (
    DEFAULT_CHUNK_BYTES,
    HEADER_BYTES,
    check_chunk_bytes,
    datagram_dtype,
    fields,
    new_frames,
    wire_bytes,
)
from tests.transport.transfer_parts import new_sender
from tests.transport.virtual import SESSION, layout_of, random_payload


def test_header_is_sixteen_bytes_in_network_order():
    frames = new_frames(1, 8)
    record = fields(frames, 8)
    record["session"] = 0x01020304
    record["sequence"] = 0x05060708
    record["transfer"] = 0x090A0B0C
    record["length"] = 0x0D0E
    record["stamp"] = 0x0F10
    record["chunk"] = 0xFF
    assert frames.tobytes() == bytes(range(1, 17)) + b"\xff" * 8


def test_default_datagram_fills_an_mtu_of_1500():
    assert HEADER_BYTES + DEFAULT_CHUNK_BYTES + 8 + 20 == 1500
    assert datagram_dtype(DEFAULT_CHUNK_BYTES).itemsize == 1472
    assert wire_bytes(2, DEFAULT_CHUNK_BYTES) == 2 * 1514


@pytest.mark.parametrize("size", [0, -4, 2, 1457, 65496])
def test_chunk_sizes_that_cut_floats_or_do_not_fit_are_refused(size):
    with pytest.raises(ValueError, match=f"chunk_bytes is {size}; .* of 4 from 4 to 65488$"):
        check_chunk_bytes(size)


def test_all_datagrams_have_one_size_and_say_how_much_is_payload():
    layout = layout_of(3, chunk_bytes=16, last_elements=1)
    frames = new_sender(layout, rate_bps=1e12, number=9).offer(0.0)
    assert frames.shape == (3, 32)
    batch = fields(frames, 16)
    assert batch["session"].tolist() == [SESSION] * 3
    assert batch["sequence"].tolist() == [0, 1, 2]
    assert batch["transfer"].tolist() == [9] * 3
    assert batch["length"].tolist() == [16, 16, 4]
    assert batch["stamp"].tolist() == [0, 1, 2]
    assert batch["chunk"].tobytes() == random_payload(layout).tobytes()
    assert not np.any(batch["chunk"][2, 4:])
