"""Kernel TCP that carries a bit for each element: what arrives, how many bytes, what is refused."""

import numpy as np
import pytest

from testbed.shared.input_error import InputError
from testbed.transport import PayloadLayout, preset
from testbed.transport.net.tcp import TwoValues
from tests.transport.loopback import run_all, site

LAYOUT = PayloadLayout([("w", 100_001)])  # the last chunk is shorter than others
# What is not equal to itself, or equal to another one: bits decide.
ODD = [
    (np.nan, 1.0),
    (np.inf, -np.inf),
    (0.0, -0.0),
    (np.nan, np.uint32(0x7FC00001).view(np.float32)),
    (5.0, 5.0),
    (1e-45, 0.0),
]


def payload_of(layout, pairs=ODD, seed=1):
    """Each chunk has the two values of a pair, the others two drawn ones."""
    random, buffer = np.random.default_rng(seed), layout.new_buffer()
    values = random.standard_normal((layout.chunk_count, 2)).astype(np.float32)
    values[: len(pairs)] = pairs
    bits = random.integers(0, 2, (layout.chunk_count, layout.elements_per_chunk))
    layout.rows(buffer).view("<f4")[:] = np.take_along_axis(values, bits, axis=1)
    buffer[layout.payload_bytes :] = 0
    return buffer


@pytest.mark.parametrize("elements", [1, 7, 364, 365, 10_000])
@pytest.mark.parametrize("chunk_bytes", [1456, 36])  # 9 elements are no whole byte of bits
def test_a_block_brings_every_bit_back_and_nothing_behind_the_end(elements, chunk_bytes):
    layout, coding = PayloadLayout([("w", elements)], chunk_bytes), TwoValues()
    sent = payload_of(layout, ODD[: layout.chunk_count])
    chosen, block = coding.pack(layout, sent)
    into = np.full_like(sent, 0xAB)
    received = coding.unpack(layout, np.frombuffer(block, np.uint8), layout.rows(into))
    assert into.tobytes() == sent.tobytes()
    assert chosen.all() and received.all() and len(received) == layout.chunk_count
    assert len(block) == coding.size(layout)
    assert coding.size(layout) == layout.chunk_count * (8 + -(-chunk_bytes // 32))


def test_both_legs_of_a_connection_carry_about_a_bit_for_each_element():
    place, sent = site(preset("one-bit"), layout=LAYOUT, workers=2), payload_of(LAYOUT)

    def server(endpoint):
        into = {f"worker-{index}": LAYOUT.new_buffer() for index in (1, 2)}
        gathered = endpoint.receive(0, 0, into)
        return into, gathered, endpoint.send(1, dict.fromkeys(into, sent))

    def worker(endpoint, index):
        went_up = endpoint.send(0, {"server": sent})["server"]
        buffer = LAYOUT.new_buffer()
        return went_up, endpoint.receive(1, 0, {"server": buffer})["server"], buffer

    (into, gathered, broadcast), workers = run_all(place, server, worker)
    for buffer in (*into.values(), *(buffer for _, _, buffer in workers)):
        assert buffer.tobytes() == sent.tobytes()
    came = [*gathered.values(), *(report for _, report, _ in workers)]
    went = [*broadcast.values(), *(report for report, _, _ in workers)]
    for report in (*came, *went):
        assert report.received is not None and report.received.all()
        assert report.chunks_received == report.chunk_count == LAYOUT.chunk_count
    # Of 32 bits one goes, and with it two values for 364 elements, headers, and a frame's head.
    assert all(LAYOUT.payload_bytes / 32 < report.bytes_received for report in came)
    assert all(report.bytes_received < LAYOUT.payload_bytes / 24 for report in came)
    assert all(report.bytes_sent < LAYOUT.payload_bytes / 24 for report in went)


def test_what_goes_to_several_is_coded_once_and_to_all_or_none(monkeypatch):
    place, sent = site(preset("one-bit"), layout=LAYOUT, workers=3), payload_of(LAYOUT)
    wrong = sent.copy()
    LAYOUT.rows(wrong).view("<u4")[9, -1] ^= 1  # a third value, by the last bit alone
    coded: list[object] = []
    pack = TwoValues.pack

    def noted(self, layout, payload):
        coded.append(payload)
        return pack(self, layout, payload)

    monkeypatch.setattr(TwoValues, "pack", noted)

    def server(endpoint):
        good = dict.fromkeys(place.addresses, sent)
        with pytest.raises(InputError, match="chunk 9 of a payload has more"):
            endpoint.send(1, {**good, "worker-3": wrong})
        links = endpoint._driver.links
        assert not any(links[name].connection.outgoing.senders for name in good)
        coded.clear()
        return endpoint.send(1, good).keys()

    def worker(endpoint, index):
        buffer = LAYOUT.new_buffer()
        endpoint.receive(1, 0, {"server": buffer})
        return buffer.tobytes()

    reached, received = run_all(place, server, worker)
    assert reached == place.addresses.keys()
    assert received == [sent.tobytes()] * 3
    assert len(coded) == 1
