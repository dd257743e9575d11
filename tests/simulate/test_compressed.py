"""Compression over kernel TCP in virtual time: the same chunks as on a real connection."""

import numpy as np
import pytest

from testbed.training.filling import ErrorFeedback
from testbed.transport import preset
from tests.simulate.rounds import CHUNK_BYTES, Star
from tests.transport.loopback import run_all, site

CHUNKS = 300
CHUNK_BITS_BYTES = 8 + -(-CHUNK_BYTES // 32)  # two values, and a bit for each element


def payload(layout):
    """Of chunks of all sizes, some of equal energy, one with a NaN."""
    random, buffer = np.random.default_rng(5), layout.new_buffer()
    size = np.repeat(random.integers(1, 12, layout.chunk_count), layout.elements_per_chunk)
    layout.floats(buffer)[:] = size[: layout.element_count]
    layout.floats(buffer)[200 * layout.elements_per_chunk] = np.nan
    return buffer


def star_of(protocol, contents):
    """A lossy star with one worker, whose payloads all have these contents; the last chunk is a
    half."""
    net = Star(workers=1, chunks=CHUNKS - 0.5, protocol=protocol, loss=0.02, contents=True)
    sent = contents(net.layout)
    net.payload = lambda number: sent  # type: ignore[method-assign]
    return net, sent


@pytest.mark.parametrize("keep", [0.1, 0.33])
def test_a_simulated_and_a_real_connection_choose_deliver_and_owe_the_same(keep):
    protocol = preset("top-k", keep=keep)
    net, sent = star_of(protocol, payload)
    (simulated,) = net.run(1)
    layout = net.layout
    place = site(protocol, layout=layout)

    def server(endpoint):
        gathered = endpoint.receive(0, 0, {"worker-1": layout.new_buffer()})["worker-1"]
        return gathered, endpoint.send(1, {"worker-1": sent})["worker-1"]

    def worker(endpoint, index):
        endpoint.send(0, {"server": sent})
        buffer = layout.new_buffer()
        endpoint.receive(1, 0, {"server": buffer})
        return buffer

    (gathered, broadcast), [delivered] = run_all(place, server, worker)
    assert np.array_equal(net.buffers["worker-1"], delivered)
    assert delivered.any()
    count = -(-int(keep * 1000) * CHUNKS // 1000)
    pairs = [(simulated.gathered, gathered), (simulated.broadcast, broadcast)]
    for ours, theirs in ((mine["worker-1"], real) for mine, real in pairs):
        assert ours.received is not None and theirs.received is not None
        assert np.array_equal(ours.received, theirs.received)
        assert ours.chunks_received == theirs.chunks_received == count
        assert ours.chunk_count == theirs.chunk_count == CHUNKS
        owed = []
        for report in (ours, theirs):
            memory = ErrorFeedback().sender_memory(layout)
            memory.payload(sent)
            memory.settle(report)
            owed.append(memory.owed)
        assert np.array_equal(owed[0], owed[1])
        # Owed is what was not delivered, and nothing else.
        assert np.array_equal(owed[0] + delivered, sent)


def two_valued(layout):
    """One value above 0 and one below in each chunk; in one of them a NaN, in one zeros alone."""
    random, buffer = np.random.default_rng(6), layout.new_buffer()
    rows = layout.rows(buffer).view("<f4")
    values = random.standard_normal((2, layout.chunk_count, 1)).astype(np.float32)
    rows[:] = np.where(random.random(rows.shape) < 0.5, *values)
    rows[7, 1:] = np.nan
    rows[8] = 0
    layout.rows(buffer).reshape(-1)[layout.payload_bytes :] = 0
    return buffer


def test_a_bit_for_each_element_arrives_as_on_a_real_connection():
    net, sent = star_of(preset("one-bit"), two_valued)
    (simulated,) = net.run(1)
    place = site(preset("one-bit"), layout=net.layout)

    def server(endpoint):
        return endpoint.receive(0, 0, {"worker-1": net.layout.new_buffer()})["worker-1"]

    def worker(endpoint, index):
        return endpoint.send(0, {"server": sent})["server"]

    gathered, [delivered] = run_all(place, server, worker)
    assert net.buffers["worker-1"].tobytes() == sent.tobytes()
    for report in (gathered, delivered, simulated.gathered["worker-1"]):
        assert report.received is not None and report.received.all()
        assert report.chunks_received == report.chunk_count == CHUNKS
    stream_bytes = 16 + CHUNKS * CHUNK_BITS_BYTES
    assert stream_bytes <= gathered.bytes_received < 1.2 * stream_bytes


@pytest.mark.parametrize(
    ("protocol", "contents_bytes", "segments"),
    [
        (preset("one-bit"), 16 + CHUNKS * CHUNK_BITS_BYTES, 12),
        # A ninth of the chunks: 54 bytes more than they hold, so one segment more.
        (preset("top-k", keep=0.112), 16 + -(-CHUNKS // 8) + 34 * CHUNK_BYTES, 35),
    ],
)
def test_head_bitmap_and_bits_take_their_segments_on_the_link(protocol, contents_bytes, segments):
    assert segments == -(-contents_bytes // CHUNK_BYTES)
    net = Star(workers=2, chunks=CHUNKS, protocol=protocol, contents=True)
    net.payload = lambda number: two_valued(net.layout)  # type: ignore[method-assign]
    (only,) = net.run(1)
    for report in (*only.gathered.values(), *only.broadcast.values()):
        assert report.chunks_received == (CHUNKS if segments == 12 else 34)
    for report in only.gathered.values():
        assert report.bytes_received == segments * (CHUNK_BYTES + 66)
    for name in net.names:
        net.links[name, "switch"].serve()
        assert net.links[name, "switch"].sent == segments
