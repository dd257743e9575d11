"""A chunk has to fit the path, or the network would cut it into fragments."""

import math

import pytest

from testbed.transport import EndpointConfig, PayloadLayout, open_endpoint, preset
from testbed.transport.core.wire import DEFAULT_CHUNK_BYTES
from testbed.transport.net.path_mtu import check_chunk_fits, largest_chunk_bytes, path_mtu_bytes


def test_the_default_chunk_fills_an_ethernet_frame():
    assert largest_chunk_bytes(1500) == DEFAULT_CHUNK_BYTES


def test_the_kernel_knows_the_path():
    mtu_bytes = path_mtu_bytes("127.0.0.1", "127.0.0.2")
    assert mtu_bytes is not None and mtu_bytes >= 65535
    assert path_mtu_bytes("192.0.2.1", "127.0.0.1") is None  # an address that nobody has


def test_a_chunk_that_would_be_fragmented_is_refused(monkeypatch):
    monkeypatch.setattr("testbed.transport.net.path_mtu.path_mtu_bytes", lambda local, peer: 1500)
    check_chunk_fits(1456, local="a", peer="b")
    with pytest.raises(ValueError, match=r"1460, too large for the path to b .* 1500 .* to 1456"):
        check_chunk_fits(1460, local="a", peer="b")
    config = EndpointConfig(
        session=1,
        name="server",
        bind_address="127.0.0.1",
        peers={"worker-1": "127.0.0.2"},
        is_server=True,
        protocol=preset("dblp"),
        layout=PayloadLayout([("w", 10_000)], 8192),
        rate_bps=math.inf,
        control_port=46321,
    )
    with pytest.raises(ValueError, match="chunk_bytes is 8192, too large for the path"):
        open_endpoint(config)
