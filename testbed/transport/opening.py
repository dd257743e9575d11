"""Opens the endpoint for a protocol's carrier: our own datagrams, or kernel TCP."""

import socket

from testbed.transport import tcp_socket, udp_socket
from testbed.transport.endpoint import Endpoint, EndpointConfig
from testbed.transport.tcp_endpoint import TcpEndpoint
from testbed.transport.udp_endpoint import UdpEndpoint


def open_endpoint(config: EndpointConfig) -> Endpoint:
    """Opens an endpoint: returns it joined with its peers and ready to transfer."""
    kind = TcpEndpoint if config.protocol.carrier == "tcp" else UdpEndpoint
    endpoint = kind(config)
    endpoint.open()
    return endpoint


def open_sockets(carrier: str, congestion_control: str, *, peers: int) -> list[socket.socket]:
    """Opens the sockets of an endpoint that may need CAP_NET_ADMIN, one per peer.

    UDP sockets get large buffers, TCP sockets their congestion control. No part of the protocol is
    made, so nothing of a user's own runs. Raises ValueError for a congestion control that the
    kernel does not have.
    """
    if carrier == "tcp":
        return [tcp_socket.new_socket(congestion_control) for _ in range(peers)]
    return [udp_socket.new_socket() for _ in range(peers)]
