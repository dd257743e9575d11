"""The optional CRC32C of datagrams."""

import numpy as np
import pytest

from testbed.transport import PayloadLayout, preset
from testbed.transport.net.checksum import ChecksummedUdpSocket
from testbed.transport.net.udp_socket import UdpSocket
from tests.transport.loopback import run_all, site
from tests.transport.test_udp_socket import collect

SIZE = 1468


@pytest.fixture
def pair():
    one = ChecksummedUdpSocket(address="127.0.0.1", port=0, datagram_bytes=SIZE)
    two = ChecksummedUdpSocket(address="127.0.0.1", port=0, datagram_bytes=SIZE)
    one.set_peer("127.0.0.1", two.port)
    two.set_peer("127.0.0.1", one.port)
    yield one, two
    one.close()
    two.close()


def batch(count):
    return np.random.default_rng(count).integers(0, 256, (count, SIZE), dtype=np.uint8)


@pytest.mark.parametrize("count", [1, 44, 200])
def test_intact_datagrams_arrive(pair, count):
    one, two = pair
    assert one.send(batch(count)) == count
    assert np.array_equal(collect(two, count), batch(count))
    assert not two.counters


def test_corrupt_datagrams_are_counted_and_dropped(pair, monkeypatch):
    one, two = pair
    plain = UdpSocket.send

    def corrupting(self, rows):
        rows[3, 700] ^= 1  # the chunk
        rows[5, 2] ^= 128  # the header
        rows[7, -1] ^= 1  # the checksum itself
        return plain(self, rows)

    monkeypatch.setattr(UdpSocket, "send", corrupting)
    one.send(batch(10))
    assert np.array_equal(collect(two, 7), np.delete(batch(10), [3, 5, 7], axis=0))
    assert two.counters == {"corrupt": 3}


def test_the_checksum_is_castagnoli_in_network_order(pair, monkeypatch):
    sent = []

    def keep(self, rows):
        sent.append(rows.copy())
        return len(rows)

    monkeypatch.setattr(UdpSocket, "send", keep)
    frame = np.zeros((1, SIZE), dtype=np.uint8)
    frame[0, :9] = np.frombuffer(b"123456789", dtype=np.uint8)
    pair[0].send(frame)
    register = 0xFFFFFFFF
    for byte in frame[0].tolist():
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    assert sent[0][0, -4:].tobytes() == (register ^ 0xFFFFFFFF).to_bytes(4, "big")


@pytest.mark.parametrize("count", [100_001, 5])
def test_a_transfer_with_checksums(count):
    layout = PayloadLayout([("weights", count)], chunk_bytes=1452)
    payload = layout.new_buffer()
    layout.floats(payload)[:] = np.arange(count)
    place = site(preset("fixed-low", tolerance=0), layout=layout, checksum=True)
    into = layout.new_buffer()
    run_all(
        place,
        lambda endpoint: endpoint.receive(0, 0.0, {"worker-1": into}),
        lambda endpoint, _: endpoint.send(0, {"server": payload}),
    )
    assert np.array_equal(into, payload)
