"""Opens the sockets for data: one per peer, before anything else of an endpoint.

Their large buffers need a power (CAP_NET_ADMIN) that a process may lay aside before it runs a
user's own code; so this needs no more than numbers.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from testbed.transport.core.wire import HEADER_BYTES
from testbed.transport.net.addresses import Host
from testbed.transport.net.doors import listen
from testbed.transport.net.path_mtu import check_chunk_fits
from testbed.transport.net.sealing import TRAILER_BYTES
from testbed.transport.net.tcp_socket import set_congestion_control
from testbed.transport.net.udp_socket import UdpSocket


@dataclass(frozen=True, kw_only=True)
class DataSockets:
    """One of the two kinds, by peer."""

    udp: Mapping[str, UdpSocket]  # our own datagrams
    tcp: Mapping[str, socket.socket]

    def close(self) -> None:
        for udp in self.udp.values():
            udp.close()
        for tcp in self.tcp.values():
            tcp.close()


def open_data_sockets(
    *,
    carrier: Literal["udp", "tcp"],
    local: Host,
    peers: Mapping[str, Host],
    ports: Mapping[str, int],
    is_server: bool,
    chunk_bytes: int,
    appended: str = "none",
    segmentation: bool = True,
    congestion_control: str = "",
) -> DataSockets:
    """Binds a socket per peer; `ports` are this side's."""
    udp: dict[str, UdpSocket] = {}
    tcp: dict[str, socket.socket] = {}
    opened = DataSockets(udp=udp, tcp=tcp)
    trailer_bytes = TRAILER_BYTES[appended]
    try:
        for peer, host in peers.items():
            if carrier == "tcp":
                tcp[peer] = _tcp(local, ports[peer], congestion_control, is_server)
                continue
            check_chunk_fits(chunk_bytes, local=local, peer=host, trailer_bytes=trailer_bytes)
            udp[peer] = UdpSocket(
                local=local.at(ports[peer]),
                datagram_bytes=HEADER_BYTES + chunk_bytes + trailer_bytes,
                segmentation=segmentation,
            )
    except BaseException:
        opened.close()
        raise
    return opened


def _tcp(local: Host, port: int, congestion_control: str, is_server: bool) -> socket.socket:
    if is_server:
        return listen(local.at(port), lambda each: set_congestion_control(each, congestion_control))
    connection = socket.socket(local.family, socket.SOCK_STREAM)
    try:
        set_congestion_control(connection, congestion_control)
    except BaseException:
        connection.close()
        raise
    return connection
