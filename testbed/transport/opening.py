"""Opens the endpoint for a protocol's carrier: our own datagrams, or kernel TCP."""

from testbed.transport.endpoint import Endpoint, EndpointConfig
from testbed.transport.tcp_endpoint import TcpEndpoint
from testbed.transport.udp_endpoint import UdpEndpoint


def open_endpoint(config: EndpointConfig) -> Endpoint:
    """Opens an endpoint: returns it joined with its peers and ready to transfer."""
    kind = TcpEndpoint if config.protocol.carrier == "tcp" else UdpEndpoint
    endpoint = kind(config)
    endpoint.open()
    return endpoint
