"""A payload through a queue with two classes, in a network namespace of its own.

A worker in a second namespace sends to the server in this one over a veth pair, faster than its end
of the link lets out. What is counted is the beginning of the payload, which the first pass reaches
before the receiver has enough.
"""

import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import numpy as np

from testbed.lab.kernel import shaping
from testbed.lab.kernel.namespaces import entered
from testbed.lab.kernel.shaping import LinkShape, Output
from testbed.transport import PayloadLayout, ProtocolConfig, open_endpoint
from testbed.transport.net.udp_socket import SO_RCVBUFFORCE
from tests.transport.loopback import site
from tests.transport.own_namespace import neighbour

CHUNKS, CHUNK_BYTES = 2_000, 1456
RATE_BPS = 40_000_000
SHAPE = LinkShape(rate_bps=RATE_BPS, queue_bytes=45_000, priority_queue_bytes=300_000)
LAYOUT = PayloadLayout([("weights", CHUNKS * CHUNK_BYTES // 4)])
SERVER, WORKER = "10.77.0.1", "10.77.0.2"
_DATA_PORT = 31_100
# A third of the first three quarters has large values, and the default marks protect just these
# chunks and the last quarter.
FRONT = 1_500
LARGE = np.random.default_rng(1).permutation(FRONT)[:500]
_TOO_FAST = 1.6  # so five of eight datagrams find room, and the large ones alone fit the link
# The receiver has enough before the first pass ends, and after it has come past the counted part.
_TOLERANCE = 0.45
COUNTED = 1_280  # chunks: blocks of the sending order


def payload() -> np.ndarray:
    """Small values, but for the large chunks."""
    size = CHUNK_BYTES // 4
    values = np.full((CHUNKS, size), 1e-3, dtype=np.float32)
    values[LARGE] = 1.0
    return values.ravel()


def sniff(received: Counter[int], over: Event) -> None:
    """Counts the datagrams that reach the server by the byte of their header that has the DSCP."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    with suppress(PermissionError):
        opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    opened.settimeout(0.1)
    while True:
        try:
            packet = opened.recv(64)
        except TimeoutError:
            if over.is_set():
                return
            continue
        if packet[9] == socket.IPPROTO_UDP and packet[22:24] == _DATA_PORT.to_bytes(2):
            received[packet[1]] += 1


def trial(marks: str) -> dict[str, Any]:
    """What became of it."""
    pid = neighbour(SERVER, WORKER)
    shaping.shape_all([Output(interface="far", pid=pid, shape=SHAPE)])
    protocol = ProtocolConfig(name="marked", marks=marks)
    place = site(protocol, layout=LAYOUT, rate_bps=RATE_BPS, insecure=True, data_port=_DATA_PORT)

    def worker() -> Any:
        with (
            entered(pid),
            open_endpoint(
                place.worker(
                    bind_address=WORKER,
                    peers={"server": SERVER},
                    rate_bps=_TOO_FAST * RATE_BPS,
                    segmentation=False,
                )
            ) as endpoint,
        ):
            buffer = LAYOUT.new_buffer()
            LAYOUT.floats(buffer)[:] = payload()
            return endpoint.send(6, {"server": buffer})["server"]

    seen, over = Counter[int](), Event()
    with ThreadPoolExecutor() as pool:
        sniffed = pool.submit(sniff, seen, over)
        sent = pool.submit(worker)
        config = place.server(bind_address=SERVER, peers={"worker-1": WORKER})
        with open_endpoint(config) as endpoint:
            into = LAYOUT.new_buffer()
            report = endpoint.receive(6, _TOLERANCE, {"worker-1": into})["worker-1"]
            left = sent.result()
        over.set()
        sniffed.result()
    large = np.zeros(CHUNKS, dtype=np.bool_)
    large[LARGE] = True
    assert report.received is not None
    lost = ~report.received[:COUNTED]
    queues = shaping.queue_statistics("far", pid=pid)
    return {
        "passes": left.passes,
        "lost_large": float(lost[large[:COUNTED]].mean()),
        "lost_small": float(lost[~large[:COUNTED]].mean()),
        "seen": seen,
        "drops": {each["handle"]: each["drops"] for each in queues},
    }
