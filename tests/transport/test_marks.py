"""Marks: which chunks are protected, that batches are of one class, and what switches see of it."""

import socket
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.shared import dscp
from testbed.transport import Marks, OrderContext, preset
from testbed.transport.net.udp import UdpSocket
from testbed.transport.order import InOrder, LayerAndMagnitude, MarkedOrder, Shuffled, sending_order
from testbed.transport.wire import fields
from tests.transport.test_plans import CHUNK_BYTES, NEEDS_C, data_of, pair, send_planned, two
from tests.transport.virtual import layout_of

BLOCK = 64


def context_of(values):
    """A payload whose n-th chunk has the n-th value four times."""
    layout = layout_of(len(values))
    payload = layout.new_buffer()
    layout.floats(payload)[:] = np.repeat(values, 4)
    return OrderContext(transfer=0, layout=layout, rows=layout.rows(payload))


def test_back_chunks_and_the_largest_of_the_others_are_protected():
    context = context_of([0.1, -9, 0.2, 3, 0.3, -0.4, 2, 50])
    protected = LayerAndMagnitude(back=0.25, large=0.25).protected(context)
    assert np.flatnonzero(protected).tolist() == [1, 3, 6, 7]
    assert not LayerAndMagnitude(back=0, large=0).protected(context).any()
    assert LayerAndMagnitude(back=0.5, large=0.5).protected(context).all()
    values = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    assert LayerAndMagnitude().protected(context_of(values)).sum() == 500
    # A NaN counts as the largest.
    protected = LayerAndMagnitude(back=0, large=0.25).protected(context_of([1, np.nan, 3, 2]))
    assert protected.tolist() == [False, True, False, False]


@dataclass(frozen=True)
class Given(Marks):
    which: tuple[bool, ...]

    def protected(self, context):
        return np.array(self.which)


@given(st.lists(st.booleans(), min_size=1, max_size=3 * BLOCK), st.integers(0, 99))
def test_protected_chunks_come_first_in_each_block_of_the_order_and_keep_it(which, seed):
    count = len(which)
    context = context_of(np.ones(count, np.float32))
    marked = MarkedOrder(Shuffled(seed=seed), Given(tuple(which)))
    plain = Shuffled(seed=seed).permutation(context)
    arrange = marked.arranger(context)
    assert arrange.protected is not None
    assert arrange.protected.tolist() == which
    arranged = arrange(np.arange(count))
    for first in range(0, count, BLOCK):
        block = plain[first : first + BLOCK].tolist()
        kept = [chunk for chunk in block if which[chunk]]
        expected = kept + [chunk for chunk in block if not which[chunk]]
        assert arranged[first : first + BLOCK].tolist() == expected
    some = np.arange(0, count, 3)
    assert arrange(some).tolist() == [chunk for chunk in arranged.tolist() if chunk % 3 == 0]


WHICH = tuple(bool(bit) for bit in np.random.default_rng(5).integers(0, 2, 3000))


def sending(repair="passes", **settings):
    return two(order=MarkedOrder(InOrder(), Given(WHICH)), repair=repair, **settings)


def batches_of(connection):
    """The class and the chunks of each batch of one pass, and when the last one went."""
    batches: list[tuple[bool | None, list[int]]] = []
    now_s = 0.0
    while sum(len(chunks) for _, chunks in batches) < 3000:
        now_s = max(now_s, connection.next_deadline_s(now_s))
        frames = connection.offer(now_s)
        if len(frames):
            chunks = fields(frames, CHUNK_BYTES)["sequence"].tolist()
            batches.append((connection.outgoing.protected, chunks))
            connection.outgoing.sent(len(frames), now_s)
    return batches, now_s


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
def test_all_that_is_offered_at_a_time_is_of_the_class_that_the_connection_names(repair):
    marked, ended_s = batches_of(sending(repair).worker.connection)
    for protected, chunks in marked:
        assert {WHICH[chunk] for chunk in chunks} == {protected}
    assert sorted(chunk for _, chunks in marked for chunk in chunks) == list(range(3000))
    plain, plainly_ended_s = batches_of(two(repair=repair).worker.connection)
    assert {protected for protected, _ in plain} == {None}
    assert ended_s == pytest.approx(plainly_ended_s, abs=2e-4)  # as fast: 3 datagrams' time


@NEEDS_C
def test_what_goes_without_an_offer_is_of_one_class_too():
    parties = sending()
    connection = parties.worker.connection
    plan = connection.send_plan()
    assert plan is not None
    protected_first = sum(WHICH[:BLOCK])
    assert len(plan.chunks) == protected_first
    assert plan.beyond == 3000 - protected_first
    assert connection.outgoing.protected is True


def marks_in(control, level, kind):
    """The DSCPs in what the kernel tells of a datagram."""
    return [value[0] >> 2 for at, what, value in control if (at, what) == (level, kind)]


@NEEDS_C
def test_what_the_routine_sends_carries_its_class():
    parties = sending()
    with pair() as (udp, other):
        other._socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        data = data_of(udp)
        assert data.begin_plans(parties.worker.connection, 0.0)
        send_planned(data.sending, 1.0)
        assert data.worked
        _, control, _, _ = other._socket.recvmsg(1 << 16, 256)
    assert marks_in(control, socket.IPPROTO_IP, socket.IP_TOS) == [dscp.PROTECTED]


@pytest.mark.parametrize(
    ("address", "level", "asked", "kind"),
    [
        ("127.0.0.1", socket.IPPROTO_IP, socket.IP_RECVTOS, socket.IP_TOS),
        ("::1", socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, socket.IPV6_TCLASS),
    ],
)
def test_datagrams_carry_their_class_in_the_ip_header(address, level, asked, kind):
    local = (address, 0) if "." in address else (address, 0, 0, 0)
    try:
        udp = UdpSocket(local=local, datagram_bytes=32)
    except OSError:
        pytest.skip(f"no {address} here")
    family = socket.AF_INET if "." in address else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as other:
        other.bind(local)
        other.settimeout(5)
        other.setsockopt(level, asked, 1)
        udp.set_peer((address, other.getsockname()[1], *local[2:]))
        seen = []
        for protected in (None, True, True, False, True):
            udp.mark(protected)
            assert udp.send(np.zeros((1, 32), np.uint8)) == 1
            _, control, _, _ = other.recvmsg(64, 64)
            seen += marks_in(control, level, kind)
            assert udp._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 0
    udp.close()
    assert seen == [0, 34, 34, 38, 34]


def test_marks_are_a_setting_of_protocols_that_others_need_not_have():
    marked = preset("dblp", marks={"name": "layer-and-magnitude", "back": 0.5})
    assert marked.describe()["marks"] == "layer-and-magnitude:back=0.5"
    assert preset("none", **marked.describe()) == marked
    assert "marks" not in preset("mlt").describe()
    described = preset("mlt-marked").describe()
    assert described.pop("marks") == "layer-and-magnitude"
    assert described == preset("mlt", name="mlt-marked").describe()
    assert isinstance(sending_order("in-order", "none", 1.0, seed=0), InOrder)
