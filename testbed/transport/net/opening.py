"""Opens the endpoint for a protocol's carrier: our own datagrams, or kernel TCP."""

from testbed.transport.net.endpoint import Endpoint, EndpointConfig
from testbed.transport.net.tcp_endpoint import TcpEndpoint
from testbed.transport.net.udp_endpoint import UdpEndpoint


def open_endpoint(config: EndpointConfig) -> Endpoint:
    """Opens an endpoint: returns it joined with its peers and ready to transfer."""
    kind = TcpEndpoint if config.protocol.carrier == "tcp" else UdpEndpoint
    endpoint = kind(config)
    endpoint.open()
    return endpoint
