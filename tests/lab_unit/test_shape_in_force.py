"""The kernel says of a shaped interface what was asked of it, and what was changed since shows."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from testbed.lab.kernel import rtnetlink, shape_in_force
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import entered
from testbed.lab.kernel.netlink import attribute, text
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shape_in_force import ShapeInForce
from testbed.lab.kernel.shaping import LinkShape, Output, rate_message, shape_all
from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.verdict import link_settings
from testbed.verdict.link_settings import SettingsReader, differing
from tests.lab_unit.test_netlink import elsewhere

__all__ = ["elsewhere"]
SHAPES = [
    LinkShape(rate_bps=1_000_000, queue_bytes=3_000),
    LinkShape(rate_bps=100_000_000, queue_bytes=150_000),
    LinkShape(rate_bps=99_999_999, queue_bytes=1),
    LinkShape(rate_bps=40_000_000_000, queue_bytes=6_000_000),
]


@pytest.fixture
def shaped(elsewhere: int) -> Iterator[Rtnetlink]:
    """A namespace with the interfaces `a` and `b`; `a` is a link's end."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with Rtnetlink(elsewhere) as kernel:
        kernel.send([rtnetlink.veth("a", "b")])
        yield kernel


def shape(pid: int, link: LinkShape) -> None:
    shape_all([Output(interface="a", pid=pid, shape=link)])


@pytest.mark.parametrize("link", SHAPES, ids=lambda link: f"{link.rate_bps} bit/s")
def test_a_shaped_interface_reads_as_it_was_shaped(elsewhere, shaped, link):
    shape(elsewhere, link)
    found = shape_in_force.read(shaped, "a")
    assert found.queue_bytes == link.queue_bytes
    assert found.most_segments == 1
    assert list(differing(link, found)) == []


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"rate_bps": 99_000_000}, {"rate_bps", "ceiling_bps", "burst_bytes"}),
        ({"queue_bytes": 149_999}, {"queue_bytes"}),
    ],
)
def test_what_is_shaped_otherwise_differs(elsewhere, shaped, changes, settings):
    wanted = SHAPES[1]
    shape(elsewhere, replace(wanted, **changes))
    found = differing(wanted, shape_in_force.read(shaped, "a"))
    assert {setting for setting, *_ in found} == settings


MARKING = LinkShape(rate_bps=100_000_000, queue_bytes=150_000, ecn_threshold_bytes=30_000)
ECN, HARDDROP, NODROP = 1, 2, 8  # TC_RED_*, linux/pkt_sched.h


def red(flags: int, *, limit: int = 150_000, least: int = 30_000) -> bytes:
    """What a kernel says of RED: old flags beside the thresholds, all of them in an attribute."""
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
    queue_bytes, ecn_threshold_bytes = shape_in_force.queue_of(memoryview(queue))
    found = ShapeInForce(
        rate_bps=link.rate_bps,
        ceiling_bps=link.rate_bps,
        burst_bytes=link.burst_bytes,
        queue_bytes=queue_bytes,
        ecn_threshold_bytes=ecn_threshold_bytes,
        most_segments=1,
    )
    assert {name: value for name, _, value in differing(link, found)} == settings


def test_an_interface_that_nothing_shapes_is_told(shaped):
    with pytest.raises(CommandError, match="b: nothing limits its rate"):
        shape_in_force.read(shaped, "b")


def link_of(pid: int) -> LabInfo:
    first, second = (Port(node=each, interface=each, number=1, pid=pid) for each in ("a", "b"))
    link = LinkEnds(
        name="a--b",
        first=first,
        second=second,
        rate_bps=SHAPES[1].rate_bps,
        queue_bytes=SHAPES[1].queue_bytes,
    )
    return LabInfo(hosts={}, switches={}, links=[link])


def both_shaped(pid: int) -> None:
    shape_all([Output(interface=each, pid=pid, shape=SHAPES[1]) for each in ("a", "b")])


LIMITS = {"link_settings": 0}


def test_a_lab_as_configured_passes(elsewhere, shaped):
    both_shaped(elsewhere)
    settings = SettingsReader(link_of(elsewhere))
    settings.look("before")
    settings.look("after")
    (gate,) = link_settings.gates(settings, LIMITS)
    assert (gate.outcome, gate.value) == ("passed", 0)


def test_one_link_that_was_changed_is_named(elsewhere, shaped):
    both_shaped(elsewhere)
    settings = SettingsReader(link_of(elsewhere))
    settings.look("before")
    slow = rate_message(shaped.index("b"), replace(SHAPES[1], rate_bps=70_000_000), "b")
    shaped.send([slow])
    settings.look("after")
    (gate,) = link_settings.gates(settings, LIMITS)
    assert gate.outcome == "failed"
    assert "a--b from b: rate_bps 70000000 in place of 100000000 after" in gate.where


def test_what_was_not_read_is_not_measured(elsewhere, shaped):
    both_shaped(elsewhere)
    settings = SettingsReader(link_of(elsewhere))
    settings.look("before")
    (gate,) = link_settings.gates(settings, LIMITS)
    assert gate.outcome == "not measured"
    with entered(elsewhere):
        subprocess.run(["ip", "link", "del", "dev", "a"], check=True)
    settings.look("after")
    (gate,) = link_settings.gates(settings, LIMITS)
    assert gate.outcome == "not measured"
    assert "after the training: interface a" in gate.note
