"""Opens the endpoint for a protocol's carrier: our own datagrams, or kernel TCP."""

from testbed.transport.endpoint import Endpoint, EndpointConfig
from testbed.transport.tcp_endpoint import TcpEndpoint
from testbed.transport.udp_endpoint import UdpEndpoint


def open_endpoint(config: EndpointConfig) -> Endpoint:
    """Opens an endpoint: returns it joined with its peers and ready to transfer."""
    carriers: dict[str, type[UdpEndpoint] | type[TcpEndpoint]] = {
        "udp": UdpEndpoint,
        "tcp": TcpEndpoint,
    }
    endpoint = carriers[config.protocol.carrier](config)
    try:
        endpoint.open()
    except BaseException:
        endpoint.close()
        raise
    return endpoint
