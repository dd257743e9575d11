"""The layout of a datagram."""

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
