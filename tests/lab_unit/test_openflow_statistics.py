"""OpenFlow statistics: answers made by hand, of a switch that a thread plays."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.lab.openflow_statistics import Statistics, StatisticsError, Table

MORE = 1
BIG = (1 << 63) + 5  # more than a float holds exactly


def message(kind: int, xid: int, body: bytes) -> bytes:
    return struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body


def reply(xid: int, kind: int, body: bytes, *, more: bool = False) -> bytes:
    return message(19, xid, struct.pack("!HH4x", kind, MORE if more else 0) + body)


@contextmanager
def switch(folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: bytes) -> Iterator[Statistics]:
    """A switch that says hello, and gives these answers to the first request (2)."""
    monkeypatch.setenv("OVS_RUNDIR", str(folder))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "s1.mgmt"))
        listener.listen()

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(message(0, 7, b"") + message(2, 2 << 8, b"still there?"))
                came = b""
                while len(came) < 24:  # its hello, and a request
                    came += client.recv(1000)
                client.sendall(b"".join(answers))

        thread = threading.Thread(target=serve)
        thread.start()
        with Statistics("s1") as statistics:
            yield statistics
        thread.join()


def flow(packets: int, instructions: bytes, *, seconds: int = 5, match: bytes = b"") -> bytes:
    head = struct.pack("!HH", 1, 4 + len(match)) + match
    head += b"\0" * (-len(head) % 8)
    facts = (48 + len(head) + len(instructions), 2, seconds, 500_000_000, 10, 0, 0, 0)
    return struct.pack("!HBxIIHHHH4xQQQ", *facts, 0xC0, packets, 9) + head + instructions


def output(port: int) -> bytes:
    return struct.pack("!HHIH6x", 0, 16, port, 0)


def apply(*actions: bytes) -> bytes:
    body = b"".join(actions)
    return struct.pack("!HH4x", 4, 8 + len(body)) + body


METER = struct.pack("!HHI", 6, 8, 3)


def test_flows_of_several_parts_are_read_exactly(tmp_path, monkeypatch):
    group = struct.pack("!HHI", 22, 8, 77)
    one = flow(BIG, apply(output(1), output(2)), match=b"\x80\x00\x06\x06" + bytes(6))
    parts = [reply(2, 1, one, more=True), reply(2, 1, flow(3, METER + apply(group)) + flow(4, b""))]
    before_s = time.monotonic()
    with switch(tmp_path, monkeypatch, *parts) as statistics:
        first, second, third = statistics.flows()
    assert (first.packets, first.ports, first.drops) == (BIG, (1, 2), False)
    assert (second.packets, second.ports, second.drops) == (3, (), False)
    assert (third.packets, third.drops) == (4, True)
    earliest_s, latest_s = (entry + 5.5 for entry in first.since_s)  # its age
    assert before_s - 0.1 < earliest_s < latest_s < time.monotonic() + 0.1


def test_an_entry_is_recognised_again_and_another_is_not(tmp_path, monkeypatch):
    entries = [
        flow(1, apply(output(1)), seconds=1),
        flow(9, apply(output(1)), seconds=8),
        flow(1, apply(output(2)), seconds=1),
        flow(1, METER, seconds=1),
    ]
    with switch(tmp_path, monkeypatch, reply(2, 1, b"".join(entries))) as statistics:
        early, late, other, metered = statistics.flows()
    assert early.identity == late.identity
    assert len({early.identity, other.identity, metered.identity}) == 3
    assert not metered.drops


def test_tables_and_groups_are_read(tmp_path, monkeypatch):
    def answered(number: str, kind: int, body: bytes, ask: str) -> object:
        folder = tmp_path / number
        folder.mkdir()
        with switch(folder, monkeypatch, reply(2, kind, body)) as statistics:
            return getattr(statistics, ask)()

    tables = struct.pack("!B3xIQQ", 0, 4, 1249, 1242) + struct.pack("!B3xIQQ", 1, 1, 7, 5)
    read = [Table(lookups=1249, matched=1242), Table(lookups=7, matched=5)]
    assert answered("tables", 3, tables, "tables") == read
    buckets = b"".join(struct.pack("!HHII4x", 32, 1, 0, 0) + output(port) for port in (1, 2))
    description = struct.pack("!HBxI", 8 + len(buckets), 1, 3) + buckets
    assert answered("ports", 7, description, "bucket_ports") == {3: [(1,), (2,)]}
    counts = struct.pack("!QQQQ", 4, 4, BIG, 5)
    group = struct.pack("!H2xII4xQQII", 40 + len(counts), 3, 1, 9, 9, 0, 0) + counts
    assert answered("packets", 6, group, "bucket_packets") == {3: [4, BIG]}


@pytest.mark.parametrize(
    ("ask", "answers", "problem"),
    [
        ("tables", [message(1, 2, struct.pack("!HH", 1, 2))], "s1 refused statistics 3: error"),
        ("tables", [], "s1 closed its management socket"),
        ("tables", [reply(2, 3, b"")[:10]], "s1 closed its management socket"),
        ("flows", [reply(2, 1, bytes(48))], "an entry of 0 bytes"),
    ],
)
def test_a_switch_that_does_not_answer_in_order_is_told(
    tmp_path, monkeypatch, ask, answers, problem
):
    with (
        switch(tmp_path, monkeypatch, *answers) as statistics,
        pytest.raises(StatisticsError, match=problem),
    ):
        getattr(statistics, ask)()
