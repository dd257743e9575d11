"""`./lab capture --read` prints a capture, and refuses what is none."""

import pytest
from scapy.layers.inet import IP, TCP, UDP

from testbed.capture import reading
from testbed.shared.input_error import InputError
from testbed.transport.messages import ControlMessage, Hello, MessageType
from tests.capture.craft import SERVER, SESSION, WORKER, Conversation


@pytest.fixture
def rows(tmp_path, capsys):
    def read(conversation, **options):
        reading.show(conversation.write(tmp_path / "x.pcap"), **options)
        return [" ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()]

    return read


def test_a_transfer_is_told_pass_by_pass(rows, tmp_path, capsys):
    conversation = Conversation()
    conversation.join()
    conversation.gather(0, lost={1, 7})
    conversation.gather(28, lost=set())
    output = rows(conversation)
    assert output[1:5] == [
        "worker-1 > server HELLO, 39 bytes, codec float32",
        "server > worker-1 WELCOME, 7 bytes",
        "worker-1 > server 0 10 datagrams in 9.000 ms, chunks 0 to 9",
        "worker-1 > server 0 PROBE, 5 bytes",
    ]
    assert output[6:9] == [
        "worker-1 > server 0 2 datagrams in 1.000 ms, chunks 1 to 7",
        "worker-1 > server 0 PROBE, 5 bytes",
        "server > worker-1 0 STOP",
    ]
    title, _, first, *_ = rows(conversation, transfer=28)
    assert title == "28: round 14, gather"
    assert first == "worker-1 > server 28 10 datagrams in 9.000 ms, chunks 0 to 9"
    with pytest.raises(InputError, match="transfer 5 is not in it; valid: 0 to 28"):
        rows(conversation, transfer=5)


def test_kernel_tcp_datagrams_of_control_and_pieces_of_messages_are_named(rows):
    conversation = Conversation()
    for number in range(3):
        tcp = TCP(sport=47000, dport=47001, seq=number)
        conversation.add(IP(src=WORKER, dst=SERVER) / tcp / bytes(100))
    stop, ping = ControlMessage(MessageType.STOP, 5), ControlMessage(MessageType.PING)
    udp = IP(src=WORKER, dst=SERVER) / UDP(sport=46999, dport=46999)
    for piece in (b"", stop.encode(), b"rest of a message"):
        conversation.add(udp / (bytes(36) + piece + bytes(16)))
    conversation.message(SERVER, stop, ping)
    conversation.add(conversation.segment(SERVER, b"\x63" * 20))
    assert rows(conversation)[1:] == [
        f"{WORKER} > {SERVER} 3 segments in 2.000 ms",
        f"{WORKER} > {SERVER} control without a message's beginning",
        f"{WORKER} > {SERVER} 5 STOP",
        f"{WORKER} > {SERVER} control without a message's beginning",
        f"{SERVER} > {WORKER} 5 STOP",
        f"{SERVER} > {WORKER} PING",
        f"{SERVER} > {WORKER} 20 bytes within a message",
    ]


def test_a_hostile_name_does_not_reach_the_terminal(rows):
    conversation = Conversation()
    hello = Hello(session=SESSION, name="\x1b[2Jx\n", layout=conversation.layout.encode())
    conversation.message(WORKER, hello.message())
    conversation.datagram(0, 0)
    assert rows(conversation)[2].startswith("?[2Jx? > server 0 1 datagrams")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no capture: "),
        (b"hello, this is no capture at all\n", "no capture: "),
        (None, "no packet is ours (TCP and UDP ports 46999, 47000 to 47999)"),
    ],
    ids=["empty", "text", "foreign"],
)
def test_a_foreign_file_is_one_line_and_exit_status_2(tmp_path, in_process, content, says):
    path = tmp_path / "x.pcap"
    conversation = Conversation()
    conversation.add(IP(src=WORKER, dst=SERVER) / UDP(sport=1, dport=2) / bytes(30))
    conversation.write(path)
    if content is not None:
        path.write_bytes(content)
    status, _, err = in_process("capture", "--read", path)
    assert status == 2
    (line,) = err.splitlines()
    assert line.startswith(f"lab: {path}: {says}")
