"""The forms of payloads, datagrams and errors."""

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport import PayloadLayout
from testbed.transport.errors import PeerLost, ProtocolError
from testbed.transport.layout import MAX_CHUNKS
from testbed.transport.wire import fields, new_frames

layouts = st.builds(
    PayloadLayout,
    st.lists(
        st.tuples(st.text(max_size=12).filter(lambda text: text.isprintable()), st.integers(1, 50)),
        min_size=1,
        max_size=6,
        unique_by=lambda entry: entry[0],
    ),
    st.sampled_from([4, 8, 12, 64]),
)


@given(layouts)
def test_floats_and_rows_share_the_buffer(layout):
    buffer = layout.new_buffer()
    values = np.arange(1, layout.element_count + 1, dtype=np.float32)
    layout.floats(buffer)[:] = values
    rows = layout.rows(buffer)
    assert rows.shape == (layout.chunk_count, layout.chunk_bytes)
    assert rows.tobytes()[: layout.payload_bytes] == values.tobytes()
    assert not any(rows.tobytes()[layout.payload_bytes :])
    assert int(layout.chunk_lengths.sum()) == layout.payload_bytes
    assert 0 < layout.chunk_lengths[-1] <= layout.chunk_bytes


@given(layouts, st.data())
def test_element_mask_covers_exactly_the_elements_of_the_chunks(layout, data):
    chunks = np.array(
        data.draw(st.lists(st.booleans(), min_size=layout.chunk_count, max_size=layout.chunk_count))
    )
    buffer = layout.new_buffer()
    layout.rows(buffer)[chunks] = 0xFF
    touched = layout.floats(buffer).view(np.uint32) == 0xFFFFFFFF
    assert np.array_equal(layout.element_mask(chunks), touched)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any), st.sampled_from([4, 8, 64])
)
def test_pieces_tell_chunk_and_tensor_of_every_element(counts, chunk_bytes):
    layout = PayloadLayout([(str(i), count) for i, count in enumerate(counts)], chunk_bytes)
    pieces = layout.pieces
    assert (pieces.elements > 0).all()
    by_element = np.arange(layout.element_count) // layout.elements_per_chunk
    assert np.array_equal(np.repeat(pieces.chunk, pieces.elements), by_element)
    tensors = np.repeat(np.arange(len(counts)), counts)
    assert np.array_equal(np.repeat(pieces.tensor, pieces.elements), tensors)


@given(layouts)
def test_the_binary_form_survives_the_way(layout):
    assert PayloadLayout.decode(layout.encode()) == layout


@given(st.binary(max_size=60))
def test_random_bytes_are_a_layout_or_a_protocol_error(body):
    with contextlib.suppress(ProtocolError):
        assert PayloadLayout.decode(body).encode() == body


def test_a_cut_binary_form_is_refused_wherever_it_is_cut():
    body = PayloadLayout([("a", 3), ("b", 4)], 8).encode()
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            PayloadLayout.decode(body[:end])
    with pytest.raises(ProtocolError, match="too many"):
        PayloadLayout.decode(body + b"\0")


@pytest.mark.parametrize(
    ("tensors", "chunk_bytes", "difference"),
    [
        ([("a", 3), ("b", 4)], 8, None),
        ([("a", 3), ("b", 4)], 12, "chunk_bytes is 8 at the server and 12 at worker-2"),
        ([("a", 3)], 8, "2 tensors at the server and 1 at worker-2"),
        (
            [("a", 3), ("b", 5)],
            8,
            "tensor 1 is 'b' with 4 elements at the server and 'b' with 5 at worker-2",
        ),
    ],
)
def test_the_difference_says_what_differs(tensors, chunk_bytes, difference):
    layout = PayloadLayout([("a", 3), ("b", 4)], 8)
    other = PayloadLayout(tensors, chunk_bytes)
    assert layout.difference(other, ("the server", "worker-2")) == difference


@pytest.mark.parametrize(
    ("tensors", "chunk_bytes", "named"),
    [
        ([], 8, "empty"),
        ([("a", 0)], 8, "empty"),
        ([("a", -1)], 8, "-1"),
        ([("a", 1), ("a", 1)], 8, "same name"),
        ([("a", 1)], 7, "chunk_bytes"),
        ([("ä" * 0x8000, 1)], 8, "longer than 65535 bytes"),
        ([("a", MAX_CHUNKS + 1)], 4, "makes 64000001 chunks; valid: at most 64000000"),
    ],
)
def test_impossible_layouts_are_refused(tensors, chunk_bytes, named):
    with pytest.raises(ValueError, match=named):
        PayloadLayout(tensors, chunk_bytes)


def test_the_longest_name_and_the_most_chunks_are_taken():
    layout = PayloadLayout([("a" * 0xFFFF, MAX_CHUNKS), ("b", 0)], 4)
    assert layout.chunk_count == MAX_CHUNKS
    assert PayloadLayout.decode(layout.encode()) == layout


@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros(15, dtype=np.uint8),
        np.zeros(16, dtype=np.float32),
        np.zeros(32, dtype=np.uint8)[::2],
    ],
)
def test_foreign_buffers_are_refused(buffer):
    with pytest.raises(ValueError, match="valid: 16 contiguous uint8"):
        PayloadLayout([("a", 3)], 16).rows(buffer)


# Datagrams.


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


@pytest.mark.parametrize("size", [0, -4, 2, 1457, 65496])
def test_chunk_sizes_that_cut_floats_or_do_not_fit_are_refused(size):
    with pytest.raises(ValueError, match=f"chunk_bytes is {size}; .* of 4 from 4 to 65488$"):
        PayloadLayout([("a", 1)], size)


# Errors.


def test_a_lost_peer_and_the_reason_survive_the_way_between_processes():
    for error in (
        lost := PeerLost("worker-1", "silent for 30 s"),
        pickle.loads(pickle.dumps(lost)),
    ):
        assert (error.peer, error.reason) == ("worker-1", "silent for 30 s")
        assert str(error) == "lost worker-1: silent for 30 s"
