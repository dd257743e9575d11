"""What tests of the compiled routine share: sockets, parties, and a driver that waits."""

import contextlib
import math
from typing import Any

import pytest

from testbed.transport.native import HOT_PATH, LIBRARY, WHY_NONE
from testbed.transport.net.sealing import TRAILER_BYTES, seal
from testbed.transport.net.udp_data import UdpData
from testbed.transport.net.udp_socket import UdpSocket
from tests.transport.two_parties import Two
from tests.transport.virtual import random_payload

NEEDS_C = pytest.mark.skipif(LIBRARY is None, reason=f"the routine is C: {WHY_NONE}")
CHUNK_BYTES = 16


@contextlib.contextmanager
def pair(*, authenticated=False):
    """Two sockets that know each other: a server's and a worker's."""
    size = 32 + TRAILER_BYTES["mac" if authenticated else "none"]
    sockets = [UdpSocket(local=("127.0.0.1", 0), datagram_bytes=size) for _ in range(2)]
    for each, other in (sockets, sockets[::-1]):
        each.set_peer(("127.0.0.1", other.port))
        if authenticated:
            each.seal = seal("mac", bytes(32), is_server=each is sockets[0])
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def two(chunks=3000, *, repair="passes", rate_bps=10e6, **settings):
    """A worker that has begun to send, and a server that has not received anything."""
    parties = Two(chunks=chunks, repair=repair, rate_bps=rate_bps, hot_path=HOT_PATH, **settings)
    parties.sent[0] = random_payload(parties.layout)
    parties.worker.connection.post_send(0, parties.sent[0], 0.0)
    parties.receive(0)
    return parties


def data_of(udp, **changes):
    unused: Any = None  # whose chunks go in one datagram each
    settings = {"gather_s": math.inf, "measured": False, "leave_out": None, "sizes": unused}
    return UdpData(udp, **{**settings, **changes})


def depart(departing, now_s):
    """The driver waits, and it is so late now."""
    assert LIBRARY is not None
    LIBRARY.depart(departing.address, now_s)


def arrive(arriving, now_s):
    """The driver waits, and it is so late now."""
    assert LIBRARY is not None
    LIBRARY.arrive(arriving.address, now_s)
