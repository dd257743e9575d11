"""The compiled code does exactly what the numpy reference does, and only its own is loaded."""

import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.transport import codec, compiled
from testbed.transport.fast_path import ASK_FIRST, ASK_LAST, NUMPY, window_of
from testbed.transport.layout import PayloadLayout
from testbed.transport.native.fast_path import FAST_PATH, LIBRARY, WHY_NONE
from testbed.transport.net.udp import BatchSender
from testbed.transport.wire import (
    CHUNK_BITS,
    NUMBER_MODULUS,
    SEND_INDEX_MODULUS,
    U32_MAX,
    fields,
    new_frames,
    numbers_of,
    stamps_of,
)

needs_compiled = pytest.mark.skipif(not FAST_PATH.compiled, reason=f"no C: {WHY_NONE}")
BOTH = [
    pytest.param(NUMPY, id="numpy"),
    pytest.param(FAST_PATH, id="compiled", marks=needs_compiled),
]
SESSION, TRANSFER = 77, 5


@pytest.fixture(params=BOTH)
def fast_path(request):
    return request.param


def layout_of(elements, chunk_bytes=16):
    return PayloadLayout([("p", elements)], chunk_bytes)


def payload_of(layout):
    return layout.rows(
        np.random.default_rng(1).integers(1, 256, layout.new_buffer().size, dtype=np.uint8)
    )


def composer(fast_path, layout, frames, rows, session=SESSION, transfer=TRANSFER):
    return fast_path.composer(
        session=session, transfer=transfer, layout=layout, rows=rows, frames=frames
    )


def placement(fast_path, layout, session=SESSION, transfer=TRANSFER):
    rows = layout.rows(np.full_like(layout.new_buffer(), 0xEE))
    return fast_path.placement(session=session, transfer=transfer, layout=layout, rows=rows)


def batch(layout, entries):
    """Datagrams of (session, sequence, transfer, length, stamp), with chunks that all differ."""
    frames = new_frames(len(entries), layout.chunk_bytes)
    rng = np.random.default_rng(len(entries))
    frames[:] = rng.integers(0, 256, frames.shape, dtype=np.uint8)
    records = fields(frames, layout.chunk_bytes)
    for name, values in zip(
        ("session", "sequence", "transfer", "length", "stamp"),
        zip(*entries, strict=True),
        strict=True,
    ):
        records[name] = values
    return frames


def good(layout, chunk, stamp=0):
    return SESSION, chunk, TRANSFER, int(layout.chunk_lengths[chunk]), stamp


def test_a_composed_batch_holds_header_and_chunk_of_each(fast_path):
    layout = layout_of(15)
    rows, frames = payload_of(layout), new_frames(4, 16)
    it = composer(fast_path, layout, frames, rows)
    assert it.compose(np.array([3, 0, 2]), 9, ask=ASK_LAST)
    records = fields(frames, 16)[:3]
    assert records["session"].tolist() == [SESSION] * 3
    assert records["transfer"].tolist() == [TRANSFER] * 3
    assert records["sequence"].tolist() == [3, 0, 2]
    assert records["length"].tolist() == [12, 16, 16]
    assert records["stamp"].tolist() == [9, 10, 11 | 1 << 15]
    assert np.array_equal(records["chunk"], rows[[3, 0, 2]])
    assert not frames[3].any()
    assert it.compose(np.array([3, 0, 2]), 9, ask=ASK_FIRST)
    assert records["stamp"].tolist() == [9 | 1 << 15, 10, 11]


@pytest.mark.parametrize("wrong", [-1, 4, 2**32, -(2**63)])
def test_a_chunk_that_there_is_not_is_refused(fast_path, wrong):
    layout = layout_of(16)
    frames = new_frames(3, 16)
    assert not composer(fast_path, layout, frames, payload_of(layout)).compose(
        np.array([0, wrong, 1]), 0, ask=0
    )


def test_numbers_of_any_size_name_chunks(fast_path):
    layout = layout_of(16)
    frames = new_frames(2, 16)
    for kind in ("u1", "i2", ">i4", "u8"):
        chunks = np.array([9, 2, 9, 1], dtype=kind)[1::2]
        assert composer(fast_path, layout, frames, payload_of(layout)).compose(chunks, 0, ask=0)
        assert fields(frames, 16)["sequence"].tolist() == [2, 1]


def test_new_chunks_reach_their_places_and_nothing_else_is_touched(fast_path):
    layout = layout_of(31)
    it = placement(fast_path, layout)
    frames = batch(layout, [good(layout, 7, 1), good(layout, 2, 2), good(layout, 7, 3)])
    arrivals = it.take(frames)
    assert arrivals.new.tolist() == [7, 2]
    assert arrivals.stamps.tolist() == [1, 2, 3]
    assert np.array_equal(it.rows[[7, 2]], frames[:2, 16:])  # the first of two counts
    assert (np.delete(it.rows, [2, 7], axis=0) == 0xEE).all()
    assert np.flatnonzero(it.received).tolist() == [2, 7]
    assert it.received_count == 2
    assert it.ignored == {"duplicate": 1}
    fields(frames, 16)["stamp"] += 3
    assert not len(it.take(frames).new)
    assert it.ignored == {"duplicate": 4}
    again = batch(layout, [good(layout, chunk, 7 + n) for n, chunk in enumerate((4, 0, 4))])
    assert it.take(again).new.tolist() == [4, 0]
    assert np.array_equal(it.rows[[4, 0]], again[:2, 16:])
    assert (it.received_count, it.ignored) == (4, {"duplicate": 5})


def numbered(layout, numbers):
    frames = batch(layout, [good(layout, n % layout.chunk_count) for n in range(len(numbers))])
    records, wide = fields(frames, layout.chunk_bytes), np.array(numbers) % NUMBER_MODULUS
    records["sequence"] |= (wide // SEND_INDEX_MODULUS << CHUNK_BITS).astype(np.uint32)
    records["stamp"] = wide % SEND_INDEX_MODULUS
    return frames


def test_each_number_is_taken_once_however_old_its_copy_is(fast_path):
    layout = layout_of(4 * 16_000)
    it = placement(fast_path, layout)
    window = window_of(layout.chunk_count)
    assert window > 18_000
    sent = numbered(layout, np.arange(40_000))
    for first in range(0, 40_000, 400):
        assert len(it.take(sent[first : first + 400]).stamps) == 400
    for old in (0, 1, 17_999, 18_000, 32_768, window - 1):
        assert not len(it.take(sent[39_999 - old][np.newaxis]).stamps)
    ignored = {"replayed": 6}
    assert {name: it.ignored[name] for name in ignored} == ignored
    # What was late for the first time is taken, and once; what is later than the window is not.
    late = numbered(layout, [50_000, 49_990, 49_990, 50_000 - window + 1, 50_000 - window])
    arrivals = it.take(late)
    assert numbers_of(arrivals.stamps).tolist() == [50_000, 49_990]
    assert it.ignored["too-old"] == 1 and it.ignored["replayed"] == 8


def test_damaged_numbers_stop_nothing_and_a_long_silence_is_survived(fast_path):
    layout = layout_of(400)
    it = placement(fast_path, layout)
    for number in range(0, 60, 3):
        damaged = number + 1 + (1 << 19) if number % 2 else number + 1 | 1 << 16
        taken = it.take(numbered(layout, [number, damaged, number + 2]))
        assert numbers_of(taken.stamps).tolist() == [number, number + 2]
    assert it.ignored["far-ahead"] == 20
    later = [len(it.take(numbered(layout, [n, n + 1])).stamps) for n in (10**6, 10**6 + 2)]
    assert later == [2, 2]


def test_a_batch_of_which_any_part_was_lost_may_reach_far(fast_path):
    layout = layout_of(160_000)
    it = placement(fast_path, layout)
    came = np.flatnonzero(np.random.default_rng(3).random(40_000) < 0.4)
    assert len(it.take(numbered(layout, came)).stamps) == len(came)
    assert not it.ignored.keys() & {"far-ahead", "too-old", "replayed"}


def test_numbers_go_on_around_their_end_and_none_is_before_the_first(fast_path):
    layout = layout_of(16)
    it = placement(fast_path, layout)
    assert not len(it.take(numbered(layout, [-1, -5, -window_of(4) - 1])).stamps)
    assert it.ignored == {"replayed": 2, "too-old": 1}
    step = window_of(4) // 2
    for number in range(0, 2 * NUMBER_MODULUS, step):
        for copy in (True, False):
            arrivals = it.take(numbered(layout, [number]))
            assert numbers_of(arrivals.stamps).tolist() == [number % NUMBER_MODULUS] * copy
    frames = new_frames(4, 16)
    it = composer(fast_path, layout, frames, payload_of(layout))
    assert it.compose(np.arange(4), NUMBER_MODULUS - 2, ask=0)
    assert numbers_of(stamps_of(fields(frames, 16))).tolist() == [
        *(NUMBER_MODULUS - 2, NUMBER_MODULUS - 1, 0, 1)
    ]


def test_what_does_not_fit_is_counted_by_its_first_fault(fast_path):
    layout = layout_of(31)
    it = placement(fast_path, layout)
    frames = batch(
        layout,
        [
            (SESSION + 1, 99, TRANSFER, 3, 0),
            (SESSION, 99, TRANSFER - 1, 3, 0),
            (SESSION, 0, TRANSFER + 1, 16, 0),
            (SESSION, 8, TRANSFER, 16, 0),
            (SESSION, U32_MAX, TRANSFER, 16, 0),
            (SESSION, 7, TRANSFER, 16, 0),
            good(layout, 6, 8),
        ],
    )
    arrivals = it.take(frames)
    assert arrivals.new.tolist() == [6]
    assert arrivals.stamps.tolist() == [8]
    assert it.ignored == {
        "wrong-session": 1,
        "stale-transfer": 1,
        "early-transfer": 1,
        "out-of-range": 2,
        "wrong-length": 1,
    }


def test_what_came_early_moves_to_its_buffer_and_the_rest_follows_it(fast_path):
    layout = layout_of(31)
    it = placement(fast_path, layout)
    early = batch(layout, [good(layout, 1, 5)])
    it.take(early)
    earlier_rows, buffer = it.rows, layout.new_buffer()
    it.move(layout.rows(buffer))
    later = batch(layout, [good(layout, 3, 3), good(layout, 0, 6)])
    it.take(later)
    assert np.array_equal(layout.rows(buffer)[[1, 3, 0]], np.concatenate([early, later])[:, 16:])
    assert (np.delete(earlier_rows, 1, axis=0) == 0xEE).all()


@pytest.mark.parametrize("transfer", [0, 1 << 24, U32_MAX])
def test_a_batch_of_one_transfer_is_told_from_one_of_several(fast_path, transfer):
    layout = layout_of(31)
    frames = np.zeros((3, 40), dtype=np.uint8)[:, :32]  # a trailer lies between the rows
    frames[:] = batch(layout, [(index, index, transfer, index, index) for index in range(3)])
    assert fast_path.transfer_of(frames) == transfer
    assert fast_path.transfer_of(frames[:1]) == transfer
    frames[2, 11] ^= 1
    assert fast_path.transfer_of(frames) is None


numbers = st.integers(0, 40)
near = st.one_of(st.integers(0, 12), st.integers(0, U32_MAX))


@needs_compiled
@given(
    elements=numbers.filter(bool),
    chunk_bytes=st.sampled_from([4, 16, 60, 1456]),
    session=near,
    transfer=near,
    first=st.integers(0, 3 * SEND_INDEX_MODULUS),
    ask=st.integers(0, ASK_FIRST + ASK_LAST),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_both_compose_the_same_bytes(elements, chunk_bytes, session, transfer, first, ask, data):
    layout = layout_of(elements, chunk_bytes)
    chunk = st.integers(0, layout.chunk_count - 1)
    runs = st.builds(lambda a, b: list(range(min(a, b), max(a, b) + 1)), chunk, chunk)
    chunks = np.array(data.draw(st.one_of(runs, st.lists(chunk, min_size=1, max_size=60))))
    rows = payload_of(layout)
    composed = []
    for fast_path in (NUMPY, FAST_PATH):
        frames = new_frames(64, chunk_bytes)
        it = composer(fast_path, layout, frames, rows, session, transfer)
        assert it.compose(chunks, first, ask=ask)
        composed.append(frames)
    assert np.array_equal(composed[0], composed[1])


@needs_compiled
@given(
    elements=numbers.filter(bool),
    chunk_bytes=st.sampled_from([4, 16, 60]),
    trailer=st.sampled_from([0, 4, 16]),
    session=near,
    transfer=near,
    data=st.data(),
)
@settings(max_examples=75, deadline=None)
def test_both_place_the_same_chunks(elements, chunk_bytes, trailer, session, transfer, data):
    layout = layout_of(elements, chunk_bytes)
    lengths = layout.chunk_lengths
    valid = st.builds(
        lambda chunk, upper, stamp: (
            *(session, chunk | upper << CHUNK_BITS, transfer, int(lengths[chunk]), stamp),
        ),
        st.integers(0, layout.chunk_count - 1),
        st.sampled_from([0, 0, 1, 32, 63]),
        st.one_of(st.integers(0, 2**16 - 1), st.integers(0, 30)),
    )
    any_ = st.tuples(
        st.one_of(st.just(session), near),
        st.one_of(st.integers(0, layout.chunk_count), near),
        st.one_of(st.just(transfer), near),
        st.one_of(st.sampled_from(lengths.tolist()), st.integers(0, 2**16 - 1)),
        st.integers(0, 2**16 - 1),
    )
    entries = st.lists(st.one_of(valid, any_), min_size=1, max_size=30)
    runs = st.just([(session, c, transfer, int(lengths[c]), c) for c in range(len(lengths))])
    batches = data.draw(st.lists(st.one_of(entries, runs), max_size=5))
    reference, compiled = (
        placement(fast_path, layout, session, transfer) for fast_path in (NUMPY, FAST_PATH)
    )
    for entries in batches:
        frames = batch(layout, entries)
        # A seal's trailer lies between the rows.
        longer = np.full((len(frames), frames.shape[1] + trailer), 0xAA, dtype=np.uint8)
        longer[:, : frames.shape[1]] = frames
        frames = longer[:, : frames.shape[1]]
        one, two = (it.take(frames) for it in (reference, compiled))
        assert np.array_equal(one.stamps, two.stamps)
        assert np.array_equal(one.new, two.new)
        assert one.stamps.dtype == two.stamps.dtype and one.new.dtype == two.new.dtype
        assert np.array_equal(reference.rows, compiled.rows)
        assert np.array_equal(reference.received, compiled.received)
        assert reference.received_count == compiled.received_count
        assert reference.ignored == compiled.ignored


@pytest.fixture(params=["batches", "codec"])
def built(request, tmp_path):
    """Copies of a library and its source beside it, by the latter's path."""
    shutil.copy(compiled.SOURCES / f"{request.param}.c", tmp_path)
    library = {"batches": LIBRARY, "codec": codec.LIBRARY}[request.param]
    assert library is not None
    return Path(shutil.copy(library._name, tmp_path)), tmp_path / f"{request.param}.c"


@needs_compiled
def test_a_library_of_this_source_is_loaded(built):
    loaded, why = compiled.load(built[1], [])
    assert loaded is not None and not why


@needs_compiled
def test_a_library_of_another_source_is_not_used(built):
    library, source = built
    source.write_text("/* changed since */")
    assert compiled.load(source, []) == (None, f"{library.name} was compiled from another source")


@needs_compiled
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_library_that_is_cut_short_is_not_loaded(built, share):
    library, source = built
    data = library.read_bytes()
    library.write_bytes(data[: int(share * len(data))])
    assert compiled.load(source, []) == (None, f"{library.name} is cut short")


@needs_compiled
def test_what_a_full_queue_refused_does_not_count_as_sent():
    # A UNIX socket's queue is short and counts datagrams, so sendmmsg takes a part of a batch.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with ours, theirs:
        sender = BatchSender(100)
        frames = np.arange(2000, dtype=np.uint16).astype(np.uint8).repeat(100).reshape(-1, 100)
        taken = sender.send(ours, frames, segmented=False)
        assert 0 < taken < len(frames)
        arrived = [theirs.recv(200) for _ in range(taken)]
        with pytest.raises(BlockingIOError):
            theirs.recv(200)
    assert arrived == [row.tobytes() for row in frames[:taken]]
