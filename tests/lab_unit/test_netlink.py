import errno
import os
import socket
import struct

import pytest

from testbed.lab.kernel import namespaces, netlink, rtnetlink
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.netlink import NetlinkError
from testbed.lab.kernel.rtnetlink import ROOT, TCMSG, Interface, Message, Rtnetlink
from testbed.verdict.flows import TcpReader

_GET_LINK = 18
_ALL_LINKS = bytes(16)  # ifinfomsg


@pytest.fixture
def elsewhere() -> int:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    return namespaces.hold("elsewhere")


def test_what_is_packed_is_found_again_whatever_its_length():
    values = [b"", b"a", b"abcd", b"abcde"]
    content = b"".join(netlink.attribute(kind, value) for kind, value in enumerate(values, 1))
    data = memoryview(netlink.pack(20, netlink.ACK, content) + netlink.pack(21, 0, b"xyz", 7))
    (first, begin, end), (second, *place) = netlink.messages(data, 0, len(data))
    assert (first, second, bytes(data[slice(*place)])) == (20, 21, b"xyz")
    result = netlink.attributes(data, begin, end)
    assert [(kind, bytes(data[at:to])) for kind, at, to in result] == [*enumerate(values, 1)]
    assert bytes(data[:begin])[4:8] == struct.pack("=HH", 20, netlink.REQUEST | netlink.ACK)


def test_what_is_cut_off_is_an_error():
    for length in (3, 9):
        data = memoryview(struct.pack("=HHI", length, 1, 0))
        with pytest.raises(NetlinkError, match="attribute"):
            list(netlink.attributes(data, 0, len(data)))
    data = memoryview(netlink.pack(20, 0, bytes(8)))
    with pytest.raises(NetlinkError, match="cut off"):
        list(netlink.messages(data, 0, len(data) - 4))


def test_a_dump_that_the_kernel_refuses_says_why():
    with netlink.connect(netlink.SOCK_DIAG) as opened, pytest.raises(NetlinkError) as refused:
        netlink.dump(opened, 20, bytes([250]) + bytes(63))
    assert refused.value.errno in (errno.ENOENT, errno.EINVAL)


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next_ones():
    refused = rtnetlink.bfifo(Interface(999_999, "second"), limit_bytes=1)
    with netlink.connect(netlink.ROUTE) as opened:
        opened.send(netlink.pack(refused.kind, refused.flags | netlink.ACK, refused.body, 0))
        asked = (_GET_LINK, 0, struct.pack("=BxHiII", 0, 0, 1, 0, 0))  # loopback, which exists
        wrong = (refused.kind, refused.flags, refused.body)
        first, second = netlink.request(opened, [asked, wrong])
        assert first is None
        assert second is not None
        assert opened.stale_answers == 2  # the late refusal, and what the kernel knows of loopback
        assert netlink.request(opened, [asked]) == [None]


def test_an_answer_that_is_missing_is_told_and_not_waited_for_for_ever():
    with netlink.connect(netlink.ROUTE) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
        opened.sequence += 7
        with pytest.raises(NetlinkError, match="the kernel's answer is missing"):
            netlink._dumped(opened)


def test_a_refusal_names_its_message_and_says_what_the_kernel_says(elsewhere):
    with Rtnetlink(elsewhere) as kernel:
        interface = kernel.interface("lo")
        body = TCMSG.pack(0, interface.number, 1 << 16, ROOT, 0) + netlink.text(1, "nonesuch")
        unknown = Message(rtnetlink.NEW_QDISC, 0x600, body, "a queue of lo")
        with pytest.raises(CommandError, match=r"a queue of lo: .*Specified qdisc kind is unknown"):
            kernel.send([rtnetlink.up(interface), unknown, rtnetlink.up(interface)])


def test_more_messages_than_one_answer_holds_are_all_answered(elsewhere):
    with Rtnetlink(elsewhere) as kernel:
        kernel.send([rtnetlink.veth(f"a{number}", f"b{number}") for number in range(150)])
        with pytest.raises(CommandError, match="veth pair a149, b149: File exists"):
            kernel.send([rtnetlink.veth(f"a{number}", f"b{number}") for number in range(149, 300)])
        kernel.interface("b212")  # those that were sent together with it were carried out
        with pytest.raises(CommandError, match="interface b213: No such device"):
            kernel.interface("b213")


def test_a_table_that_changes_while_it_is_read_is_read_again(elsewhere, monkeypatch):
    """The kernel marks such an answer (NLM_F_DUMP_INTR); it may lack what was there throughout."""
    with Rtnetlink(elsewhere) as kernel, netlink.connect(netlink.ROUTE, elsewhere) as opened:
        kernel.send([rtnetlink.veth(f"a{number}", f"b{number}") for number in range(64)])
        pairs, receive = iter(range(1000)), netlink._receive
        meddled, parts = 2, 0

        def receive_and_meddle(which: netlink.Socket) -> bytes:
            nonlocal parts
            data = receive(which)
            if which is opened:
                parts += 1
                if which.sequence <= meddled:
                    number = next(pairs)
                    kernel.send([rtnetlink.veth(f"c{number}", f"d{number}")])
            return data

        monkeypatch.setattr(netlink, "_receive", receive_and_meddle)
        result = netlink.dump(opened, _GET_LINK, _ALL_LINKS)
        assert opened.sequence == meddled + 1
        assert len(result) == 1 + 2 * (64 + next(pairs))
        assert parts > 3 * 2

        meddled = 1_000_000
        with pytest.raises(NetlinkError, match="the table changed during each of 10 dumps"):
            netlink.dump(opened, _GET_LINK, _ALL_LINKS)


def test_offloads_that_stay_on_although_the_kernel_does_not_refuse_are_told(elsewhere, monkeypatch):
    with Rtnetlink(elsewhere) as kernel:
        kernel.send([rtnetlink.veth("a", "b")])
        asks, _ = rtnetlink._OFFLOADS["rx"]
        monkeypatch.setitem(rtnetlink._OFFLOADS, "rx", (asks, asks))  # nothing is set
        with pytest.raises(CommandError, match="offloads of a: these stay on: rx"):
            kernel.disable_offloads("a")
        monkeypatch.undo()
        kernel.disable_offloads("a")
        assert kernel.offloads("a") == []
        assert "rx" in kernel.offloads("b")
        with pytest.raises(CommandError, match="offloads of lo: Operation not supported"):
            kernel.disable_offloads("lo")


def test_a_long_dump_holds_every_connection_of_a_range_of_ports():
    """Several hundred connections come in several datagrams."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        port = server.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        own_ports = {client.getsockname()[1] for client in clients}
        reader = TcpReader(os.getpid())
        result = reader.connections(port, port)
        reader.close()
        for client in clients:
            client.close()
    assert {entry.port for entry in result} == own_ports | {port}
    assert len(result) == 2 * len(clients)
