"""Capture files: other programs', damaged and large ones, and the verb that reads them."""

import json
import socket
import struct
import time

import numpy as np
import pytest
from scapy.utils import wrpcap

from testbed.capture import frames
from testbed.capture.contents import Contents
from testbed.capture.dissect import dissect
from testbed.capture.pcap import CaptureError, PcapReader, PcapWriter, pack_record
from testbed.transport.core.messages import Hello
from tests.capture.craft import SESSION, WORKER, Conversation, joined, told
from tests.cli.test_verbs import lab

# Files.


def test_captures_of_other_byte_orders_and_programs_are_read(tmp_path):
    conversation = joined()
    conversation.gather(0, lost=set())
    expected = told(conversation, tmp_path)["transfers"][0]["datagrams"]
    for nano in (True, False):
        for endianness in ("<", ">"):
            path = tmp_path / f"{nano}{endianness}.pcap"
            packets = [data for _, data, _ in conversation.packets]
            wrpcap(str(path), packets, linktype=1, endianness=endianness, nano=nano)
            assert dissect(path).contents.transfers[0].datagrams == expected


def test_records_that_lie_across_the_borders_of_reads_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("testbed.capture.pcap._READ_BYTES", 37)
    conversation = joined()
    conversation.gather(0, lost={1})
    with conversation.write(tmp_path / "x.pcap").open("rb") as file:
        assert [tuple(each) for each in PcapReader(file)] == conversation.packets


def damaged(kind, path):
    conversation = joined()
    conversation.gather(0, lost={1})
    whole = conversation.write(path).read_bytes()
    writer = PcapWriter(path, snapshot_bytes=100)
    if kind == "foreign":
        writer.write(pack_record(1, 2, 60, 60) + bytes(60))
    writer.close()
    foreign = path.read_bytes()
    record_too_long = whole[:24] + struct.pack("<IIII", 1, 2, 1 << 30, 1 << 30)
    return {
        "truncated": whole[:-3],
        "header only": whole[:20],
        "empty": b"",
        "text": b"hello, this is no capture at all\n",
        "pcapng": b"\x0a\x0d\x0d\x0a" + bytes(40),
        "damaged": record_too_long,
        "no packets": foreign,
        "foreign": foreign,
        "link type": whole[:20] + struct.pack("<I", 147) + whole[24:],
    }[kind]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("truncated", "truncated: ends within packet 19; told is what comes before"),
        ("header only", "truncated: ends within the file's header"),
        ("empty", "empty, not a pcap file"),
        ("text", "not a pcap file"),
        ("pcapng", "a pcapng file, which this cannot read; 'tcpdump -r"),
        ("damaged", "damaged: packet 1 claims to have 1073741824 bytes"),
        ("no packets", "none of its 0 packets is ours"),
        ("foreign", "none of its 1 packets is ours (TCP and UDP port 46999,"),
        ("link type", "link type 147 is not supported; valid: 0, 1,"),
    ],
)
def test_a_damaged_or_foreign_capture_is_one_line_and_exit_status_2(kind, expected, tmp_path):
    path = tmp_path / "x.pcap"
    path.write_bytes(damaged(kind, path))
    done = lab("capture", "--read", str(path))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"lab: {path}: ")
    assert expected in line
    assert bool(done.stdout) == (kind == "truncated")


def test_the_verb_prints_the_contents_and_refuses_what_is_not_there(tmp_path):
    conversation = joined()
    for number in range(0, 80, 2):
        conversation.gather(number, lost={1, 2})
    path = str(conversation.write(tmp_path / "x.pcap"))
    done = lab("capture", "--read", path)
    assert done.returncode == 0, done.stderr
    assert "The slowest 24 of 40 transfers" in done.stdout
    assert len(done.stdout.splitlines()) < 45
    assert max(len(line.replace(path, "x.pcap")) for line in done.stdout.splitlines()) <= 132
    done = lab("capture", "--read", path, "--transfer", "4")
    assert "BITMAP  2 of 10 missing" in done.stdout
    done = lab("capture", "--read", path, "--json", "--transfer", "4")
    assert [each["transfer"] for each in json.loads(done.stdout)["transfers"]] == [4]
    (tmp_path / "empty").mkdir()
    for arguments, expected in (
        (
            ("capture", "--read", path, "--transfer", "99"),
            "transfer 99 is not in it; valid: 0 to 78",
        ),
        (("capture", "--read", "no-such.pcap"), "no-such.pcap: No such file"),
        (("capture", "--read", str(tmp_path / "empty")), "empty: holds no capture"),
    ):
        done = lab(*arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
        assert expected in done.stderr


def test_a_hostile_name_does_not_reach_the_terminal(tmp_path):
    conversation = Conversation()
    hello = Hello(session=SESSION, name="\x1b[2J[red]x\n", layout=conversation.layout.encode())
    conversation.message(WORKER, hello.message())
    conversation.datagram(0, 0)
    assert told(conversation, tmp_path)["peers"][WORKER] == "??2J?red?x?"


def test_a_hundred_thousand_packets_are_read_in_a_few_seconds(tmp_path):
    conversation = joined()
    conversation.gather(0, lost=set(range(10)))
    _, data, length = next(packet for packet in conversation.packets if packet[1][23] == frames.UDP)
    records = bytearray()
    for number in range(100_000):
        head = struct.pack("!III", SESSION, number % 10, number // 10)
        records += pack_record(1_800_000_001, number, len(data), length)
        records += data[:42] + head + data[54:]
    path = conversation.write(tmp_path / "x.pcap")
    with path.open("ab") as file:
        file.write(records)
    began_s = time.process_time()
    assert len(dissect(path).contents.transfers) == 10_000
    assert time.process_time() - began_s < 5


def test_addresses_are_printed_as_people_write_them():
    assert Contents().name_of(socket.inet_aton(WORKER)) == WORKER
    assert Contents().name_of(None) == "?"


def test_the_bitmap_of_a_capture_without_layout_is_counted_by_what_was_seen():
    contents = Contents(SESSION)
    conversation = Conversation(chunks=13)
    conversation.gather(0, lost={0, 12})
    for time_ns, data, _ in conversation.packets:
        contents.on_packet(time_ns, frames.segment(data, 14))
    assert contents.transfers[0].passes[0].missing == 2


def test_a_reader_stops_where_the_file_does(tmp_path):
    path = joined().write(tmp_path / "x.pcap")
    path.write_bytes(path.read_bytes()[:-1])
    with path.open("rb") as file:
        reader = PcapReader(file)
        with pytest.raises(CaptureError, match="packet 4"):
            list(reader)
        assert reader.packets == 3
    assert np.isclose(dissect(path).contents.ended_ns - dissect(path).contents.began_ns, 2e6)
