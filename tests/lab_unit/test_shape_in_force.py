"""The kernel says of a shaped interface what was asked of it, and what was changed since shows."""

import errno
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from testbed.lab.kernel import link_counters, netlink, rtnetlink
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import entered, socket_in
from testbed.lab.kernel.netlink import attribute, text
from testbed.lab.kernel.rtnetlink import GET_QDISC, ROOT, TCMSG, Rtnetlink
from testbed.lab.kernel.shaping import (
    OWN_ETHERTYPE,
    LinkShape,
    changed_settings,
    in_force,
    queue_of,
    rate_message,
    shape_all,
)
from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.shared import dscp
from testbed.verdict.gates import Gate
from testbed.verdict.link_changes import LinkChanges
from testbed.verdict.link_settings import SettingsReader, differing
from tests.lab_unit.test_netlink import elsewhere
from tests.own_network import queue_statistics
from tests.verdict.evidence_of_gates import gate_of

__all__ = ["elsewhere"]
SHAPES = [
    LinkShape(rate_bps=1_000_000, queue_bytes=3_000),
    LinkShape(rate_bps=100_000_000, queue_bytes=150_000),
    LinkShape(rate_bps=99_999_999, queue_bytes=1),
    LinkShape(rate_bps=40_000_000_000, queue_bytes=6_000_000),
    LinkShape(rate_bps=200_000_000, queue_bytes=45_000, priority_queue_bytes=30_000),
]
TWO = SHAPES[-1]


@pytest.fixture
def shaped(elsewhere: int) -> Iterator[Rtnetlink]:
    """A namespace with the interfaces `a` and `b`; `a` is a link's end."""
    with Rtnetlink(elsewhere) as kernel:
        kernel.send([rtnetlink.veth("a", "b")])
        yield kernel


def shape(pid: int, link: LinkShape) -> None:
    shape_all([("a", pid, link)])


RATE = {"rate_bps", "ceiling_bps", "burst_bytes"}


@pytest.mark.parametrize(
    ("link", "changes", "settings"),
    [
        *((link, {}, set()) for link in SHAPES),
        (SHAPES[1], {"rate_bps": 99_000_000}, RATE),
        (SHAPES[1], {"queue_bytes": 149_999}, {"queue_bytes"}),
        (TWO, {"queue_bytes": 44_999}, {"queue_bytes"}),
        (TWO, {"priority_queue_bytes": 30_001}, {"priority_queue_bytes"}),
        (TWO, {"priority_queue_bytes": None}, {"priority_queue_bytes"}),
        (TWO, {"rate_bps": 198_000_000}, RATE),
    ],
)
def test_a_shaped_interface_reads_as_it_was_shaped(elsewhere, shaped, link, changes, settings):
    shape(elsewhere, replace(link, **changes))
    result = differing(link, in_force(shaped, "a"))
    assert {setting for setting, *_ in result} == settings


MACS = bytes.fromhex("02000000ca1b 02000000ca1c")  # of no host


def ip(version: int, mark: int, ecn: int = 0) -> bytes:
    byte = mark << 2 | ecn
    head = 4 << 28 | 5 << 24 | byte << 16 if version == 4 else 6 << 28 | byte << 20
    return struct.pack("!I", head)


@pytest.mark.parametrize(
    ("ethertype", "packet", "first"),
    [
        (0x0800, ip(4, dscp.PROTECTED), True),
        (0x0800, ip(4, dscp.PROTECTED, ecn=3), True),
        (0x86DD, ip(6, dscp.PROTECTED), True),
        (0x0800, ip(4, dscp.DROPPED_FIRST), False),
        (0x86DD, ip(6, dscp.DROPPED_FIRST), False),
        (0x0800, ip(4, 0), False),
        (OWN_ETHERTYPE, bytes(4), False),
        (0x0806, bytes.fromhex("00010800"), False),
    ],
)
def test_packets_wait_in_the_queue_of_their_class(elsewhere, shaped, ethertype, packet, first):
    shape(elsewhere, replace(TWO, rate_bps=8_000))
    with entered(elsewhere):
        for name in ("a", "b"):
            rtnetlink.bring_up_silent(name)
    frame = MACS + ethertype.to_bytes(2) + packet.ljust(1_500, b"\0")
    with socket_in(elsewhere, socket.AF_PACKET, socket.SOCK_RAW) as opened, entered(elsewhere):
        opened.bind(("a", 0))
        while not any(link_counters.offered("a", elsewhere)):  # until the kernel finds it is up
            time.sleep(0.01)
            opened.send(frame)
        with pytest.raises(OSError, match="No buffer space") as full:
            for _ in range(40):
                opened.send(frame)
        assert full.value.errno == errno.ENOBUFS
        queues = {
            queue_statistic["handle"]: queue_statistic for queue_statistic in queue_statistics("a")
        }
        waiting, kind = link_counters.waiting("a")
    used, other = ("11:", "12:") if first else ("12:", "11:")
    limit = TWO.priority_queue_bytes if first else TWO.queue_bytes
    assert limit is not None
    backlog = queues[used]["backlog"]
    assert limit - len(frame) < backlog <= limit
    assert (queues[other]["backlog"], queues[other]["drops"]) == (0, 0)
    assert (waiting, kind) == (backlog, "bfifo")
    assert link_counters.offered("a", elsewhere) == (queues["1:"]["packets"], 1)


MARKING = LinkShape(rate_bps=100_000_000, queue_bytes=150_000, ecn_threshold_bytes=30_000)
ECN, HARDDROP, NODROP = 1, 2, 8  # TC_RED_*, linux/pkt_sched.h


def red(flags: int, *, limit: int = 150_000, least: int = 30_000) -> bytes:
    """Write RED as a kernel does: old flags beside the thresholds, all in an attribute."""
    about = struct.pack("=IIIBBBB", limit, least, least + 1514, 1, 0, 9, flags & (ECN | HARDDROP))
    bits = struct.pack("=II", flags, ECN | HARDDROP | NODROP)
    options = attribute(1, about) + attribute(3, bytes(4)) + attribute(4, bits)
    return rtnetlink.TCMSG.pack(0, 3, 0x100000, 0x10010, 2) + text(1, "red") + attribute(2, options)


def bfifo(limit: int) -> bytes:
    options = attribute(2, struct.pack("=I", limit))
    return rtnetlink.TCMSG.pack(0, 3, 0x100000, 0x10010, 2) + text(1, "bfifo") + options


@pytest.mark.parametrize(
    ("link", "queue", "settings"),
    [
        (MARKING, red(ECN | NODROP), {}),
        (MARKING, red(ECN | NODROP, least=90_000), {"ecn_threshold_bytes": 90_000}),
        (MARKING, red(ECN | NODROP, limit=9_000), {"queue_bytes": 9_000}),
        (MARKING, red(NODROP), {"ecn_threshold_bytes": None}),
        (MARKING, red(ECN), {"ecn_threshold_bytes": None}),  # it drops what cannot be marked
        (MARKING, bfifo(150_000), {"ecn_threshold_bytes": 0}),
        (SHAPES[1], bfifo(150_000), {}),
        (SHAPES[1], red(0), {"ecn_threshold_bytes": None}),
        (SHAPES[1], red(ECN | NODROP), {"ecn_threshold_bytes": 30_000}),
    ],
)
def test_a_queue_that_marks_otherwise_than_configured_differs(link, queue, settings):
    queue_bytes, ecn_threshold_bytes = queue_of(memoryview(queue))
    result = {"queue_bytes": queue_bytes, "ecn_threshold_bytes": ecn_threshold_bytes}
    assert {name: value for name, _, value in differing(link, result)} == settings


def test_an_interface_that_nothing_shapes_is_told(shaped):
    with pytest.raises(CommandError, match="b: nothing limits its rate"):
        in_force(shaped, "b")


@pytest.fixture
def settings(elsewhere, shaped) -> SettingsReader:
    """It has read a link between `a` and `b`, both shaped, before the training."""
    shape_all([(name, elsewhere, SHAPES[1]) for name in ("a", "b")])
    first, second = (
        Port(node=name, interface=name, number=1, pid=elsewhere) for name in ("a", "b")
    )
    rate_bps, queue_bytes = SHAPES[1].rate_bps, SHAPES[1].queue_bytes
    link = LinkEnds(
        name="a--b", first=first, second=second, rate_bps=rate_bps, queue_bytes=queue_bytes
    )
    reader = SettingsReader(LabInfo(hosts={}, switches={}, links=[link]))
    reader.listen()
    reader.compare("before")
    return reader


def judged(settings: SettingsReader, rounds: Sequence[Mapping[str, Any]] = ()) -> Gate:
    return gate_of("link_settings", settings=settings, rounds=rounds)


def in_namespace(pid: int, *argv: str) -> None:
    with entered(pid):
        subprocess.run(argv, check=True)


def test_a_lab_as_configured_passes_and_one_link_that_was_changed_is_named(shaped, settings):
    settings.compare("after")
    assert (judged(settings).outcome, judged(settings).value) == ("passed", 0)
    slow = rate_message(shaped.interface("b"), replace(SHAPES[1], rate_bps=70_000_000))
    shaped.send([slow])
    settings.compare("after")
    assert judged(settings).outcome == "failed"
    assert "a--b from b: rate_bps 70000000 in place of 100000000 after" in judged(settings).where


def test_what_was_not_read_is_not_measured(elsewhere, settings):
    assert judged(settings).outcome == "not measured"
    in_namespace(elsewhere, "ip", "link", "del", "dev", "a")
    settings.compare("after")
    assert judged(settings).outcome == "not measured"
    assert "after the training: interface a" in judged(settings).note


@pytest.mark.parametrize(
    ("changes_rates", "target", "outcome"),
    [
        ("no", "b->a", "failed"),
        ("target", "b->a", "passed"),
        ("recorded", "b->a", "passed"),  # a trace
        ("recorded", "c->d", "failed"),
    ],
)
def test_a_queue_that_falls_and_comes_back_is_found_unless_an_impairment_did_it(
    shaped, settings, changes_rates, target, outcome
):
    began_s = time.monotonic()
    for limit in (20_000, SHAPES[1].queue_bytes):
        shaped.send([rtnetlink.bfifo(shaped.interface("b"), limit_bytes=limit, new=False)])
        time.sleep(0.05)
    settings.compare("after")
    event = {"name": "it", "changes_rates": changes_rates, "target": target}
    events = [
        {**event, "action": "begin", "sent_s": began_s},
        {**event, "action": "end", "acknowledged_s": time.monotonic()},
    ]
    settings.judge_passing(events, LinkChanges())
    gate = judged(settings, [{"round": 4, "ended_s": time.monotonic()}])
    assert gate.outcome == outcome
    if outcome == "failed":
        assert gate.value == 1
        limit = SHAPES[1].queue_bytes
        assert gate.where == f"a--b from b: queue_bytes 20000 in place of {limit} in round 4"


def test_who_listens_hears_of_changes_and_not_of_who_asks_for_a_root(elsewhere, shaped, settings):
    interface = shaped.interface("b")
    index = interface.number
    with netlink.listen(elsewhere) as opened:
        netlink.ask(shaped.socket, GET_QDISC, TCMSG.pack(0, index, 0, ROOT, 0))
        assert list(netlink.changes(opened)) == []
        slow = replace(SHAPES[1], rate_bps=70_000_000)
        shaped.send([rate_message(interface, slow)])
        (message,) = netlink.changes(opened)
        changed_index, changed = changed_settings(*message)
        assert (changed_index, changed["rate_bps"]) == (index, 70_000_000)
        # The root can be replaced, too.
        replaced = ("qdisc", "replace", "dev", "b", "root", "handle", "2:", "pfifo")
        in_namespace(elsewhere, "tc", *replaced)
        result = [changed_settings(*change) for change in netlink.changes(opened)]
        assert (index, {"rate_bps": None}) in result
