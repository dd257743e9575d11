"""Opens the endpoint that carries a protocol: datagrams of ours, or a kernel TCP connection."""

from testbed.transport.datagram_endpoint import DatagramEndpoint
from testbed.transport.endpoint import Endpoint, EndpointConfig
from testbed.transport.tcp_endpoint import TcpEndpoint


def open_endpoint(config: EndpointConfig) -> Endpoint:
    """The endpoint for a configuration, opened: joined with its peers and ready to transfer."""
    carriers: dict[str, type[DatagramEndpoint] | type[TcpEndpoint]] = {
        "udp": DatagramEndpoint,
        "tcp": TcpEndpoint,
    }
    endpoint = carriers[config.protocol.carrier](config)
    try:
        endpoint.open()
    except BaseException:
        endpoint.close()
        raise
    return endpoint
