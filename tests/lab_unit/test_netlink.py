from __future__ import annotations

import errno
import os
import socket
import struct

import pytest

from testbed.lab.kernel import netlink
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.netlink import NetlinkError
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.sampling.tcp_reader import TcpReader


def test_what_is_packed_is_found_again_whatever_its_length():
    values = [b"", b"a", b"abcd", b"abcde"]
    content = b"".join(netlink.attribute(kind, value) for kind, value in enumerate(values, 1))
    data = memoryview(netlink.pack(20, netlink.ACK, content) + netlink.pack(21, 0, b"xyz", 7))
    (first, begin, end), (second, *place) = netlink.messages(data, 0, len(data))
    assert (first, second, bytes(data[slice(*place)])) == (20, 21, b"xyz")
    found = netlink.attributes(data, begin, end)
    assert [(kind, bytes(data[at:to])) for kind, at, to in found] == [*enumerate(values, 1)]
    assert bytes(data[:begin])[4:8] == struct.pack("=HH", 20, netlink.REQUEST | netlink.ACK)


@pytest.mark.parametrize("length", [3, 9])
def test_an_attribute_that_is_longer_than_its_message_is_an_error(length):
    data = memoryview(struct.pack("=HHI", length, 1, 0))
    with pytest.raises(NetlinkError, match="attribute"):
        list(netlink.attributes(data, 0, len(data)))


def test_a_message_that_is_cut_off_is_an_error():
    data = memoryview(netlink.pack(20, 0, bytes(8)))
    with pytest.raises(NetlinkError, match="cut off"):
        list(netlink.messages(data, 0, len(data) - 4))


def test_a_dump_that_the_kernel_refuses_says_why():
    with netlink.connect(netlink.SOCK_DIAG) as opened, pytest.raises(NetlinkError) as refused:
        list(netlink.dump(opened, netlink.pack(20, netlink.DUMP, bytes([250]) + bytes(63))))
    assert refused.value.errno in (errno.ENOENT, errno.EINVAL)


def test_an_unknown_interface_is_named():
    with Rtnetlink() as kernel, pytest.raises(CommandError, match="interface nothing7: No such"):
        kernel.index("nothing7")


def test_a_long_dump_holds_every_connection_of_a_range_of_ports():
    """Several hundred connections come in several datagrams."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        port = server.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        own_ports = {client.getsockname()[1] for client in clients}
        reader = TcpReader(os.getpid())
        found = reader.connections(port, port)
        reader.close()
        for client in clients:
            client.close()
    assert {each.port for each in found} == own_ports | {port}
    assert len(found) == 2 * len(clients)
