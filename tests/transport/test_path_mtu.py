"""A chunk has to fit the path, or the network would cut it into fragments."""

import errno
import math
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.transport import EndpointConfig, PayloadLayout, open_endpoint, preset
from testbed.transport.core.wire import DEFAULT_CHUNK_BYTES
from testbed.transport.net import path_mtu
from testbed.transport.net.addresses import resolve
from testbed.transport.net.path_mtu import check_chunk_fits, largest_chunk_bytes, path_mtu_bytes

LOCAL, OTHER, NOBODY = (
    resolve(address, what="host") for address in ("127.0.0.1", "127.0.0.2", "192.0.2.1")
)


def test_the_default_chunk_fills_an_ethernet_frame():
    assert largest_chunk_bytes(1500) == DEFAULT_CHUNK_BYTES
    assert largest_chunk_bytes(1500, socket.AF_INET6) == DEFAULT_CHUNK_BYTES - 20
    assert largest_chunk_bytes(1500, trailer_bytes=16) == DEFAULT_CHUNK_BYTES - 16


def test_the_kernel_knows_the_path():
    mtu_bytes = path_mtu_bytes(LOCAL, OTHER)
    assert mtu_bytes is not None and mtu_bytes >= 65535
    assert path_mtu_bytes(NOBODY, LOCAL) is None  # an address that nobody has


def test_a_chunk_that_would_be_fragmented_is_refused(monkeypatch):
    monkeypatch.setattr(path_mtu, "path_mtu_bytes", lambda local, peer: 1500)
    monkeypatch.setattr(path_mtu, "_fits_interface", lambda *_: False)
    check_chunk_fits(1456, local=LOCAL, peer=OTHER)
    with pytest.raises(ValueError, match=r"1460, too large for the path to 127.0.0.2 .* to 1456"):
        check_chunk_fits(1460, local=LOCAL, peer=OTHER)
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


@pytest.mark.parametrize(("version", "claimed", "chunk"), [("4", 600, 1456), ("6", 1280, 1436)])
def test_an_icmp_message_that_anyone_can_forge_ends_nothing(version, claimed, chunk):
    """One that claims a small MTU neither stops datagrams nor forbids a chunk size."""
    script = Path(__file__).with_name("forged_icmp.py")
    try:
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--net", sys.executable, str(script), version],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no program unshare")
    if done.stderr.startswith("unshare:"):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"like most programs: {errno.errorcode[errno.EMSGSIZE]}",
        "ours: 100 sent, 100 arrived, segmentation True, {}",
        f"the kernel believes in {claimed}; a chunk of {chunk} bytes: a warning",
        "a chunk of 65536 bytes: refused",
    ]
