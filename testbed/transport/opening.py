"""Opens the endpoint that carries a protocol: datagrams of ours, or a kernel TCP connection."""

from testbed.transport.endpoint import Endpoint, EndpointConfig
from testbed.transport.tcp_endpoint import TcpEndpoint
from testbed.transport.udp_endpoint import UdpEndpoint


def open_endpoint(config: EndpointConfig) -> Endpoint:
    """The endpoint for a configuration, opened: joined with its peers and ready to transfer."""
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
