"""Packet conservation: the equations on counters made by hand, and when counters are read."""

import functools
import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.lab.kernel.link_counters import InterfaceCounters, NamespaceCounters, Queue
from testbed.lab.network import LabInfo, Port
from testbed.lab.openflow_statistics import Flow
from testbed.verdict import conservation
from testbed.verdict import counters as counting
from testbed.verdict.counters import CounterReader, Counters, SwitchCounters
from tests.verdict.evidence_of_gates import LINK, gate_of, host

HOSTS = {"a": 11, "b": 12}
NETWORK = LabInfo(
    hosts={name: host(name, pid, number) for number, (name, pid) in enumerate(HOSTS.items(), 1)},
    switches={"s1": 1},
    links=[
        replace(
            LINK,
            name=f"{name}--s1",
            first=Port(node=name, interface=f"{name}-eth0", number=0, pid=pid),
            second=Port(node="s1", interface=f"s1-eth{number}", number=number, pid=None),
        )
        for number, (name, pid) in enumerate(HOSTS.items(), 1)
    ],
)


interface = functools.partial(InterfaceCounters, received=0, receive_drops=0, sent=0, send_drops=0)


def queues(name, *, sent=0, drops=0, root_drops=None):
    common = {"interface": name, "sent_bytes": 0, "backlog_packets": 0, "backlog_bytes": 0}
    total = drops if root_drops is None else root_drops
    return [
        Queue(kind="htb", is_root=True, sent_packets=sent, drops=total, **common),
        Queue(kind="bfifo", is_root=False, sent_packets=sent, drops=drops, **common),
    ]


def counters(
    *,
    packets: int = 0,
    at_b: int | None = None,
    drops: int = 0,
    given_up: int = 0,
    filtered: int = 0,
    offered: int | None = None,
    injected: int = 0,
    lookups: int | None = None,
    misses: int = 0,
    socket_drops: int = 0,
    refused_by_b: int = 0,
    delay_drops: int = 0,
    idle: bool = True,
    made_at_s: float = 0.0,
    drops_began_at: int = 0,
    lost_upcalls: int = 0,
    inside: int = 0,
    **errors: int,
) -> Counters:
    """Host a sends `packets` through s1 to b, where `at_b` of them arrive.

    Its kernel does not deliver `inside` of these, and counts `errors`.
    """
    of_ip = {f"Ip.{key}": count for key, count in errors.items()}
    matched = packets - socket_drops if offered is None else offered
    left = (packets - socket_drops) - drops - given_up
    arrived = left - refused_by_b - delay_drops if at_b is None else at_b
    namespaces: dict[int | None, NamespaceCounters] = {
        11: NamespaceCounters(
            interfaces={"lo": interface(), "a-eth0": interface(sent=packets)},
            queues={"a-eth0": queues("a-eth0", sent=packets, root_drops=filtered)},
        ),
        12: NamespaceCounters(
            interfaces={"lo": interface(), "b-eth0": interface(receive_drops=refused_by_b)},
            queues={"b-eth0": queues("b-eth0")},
            protocols={"Ip.InReceives": arrived, "Ip.InDelivers": arrived - inside, **of_ip},
        ),
        None: NamespaceCounters(
            interfaces={
                "s1-eth1": interface(received=packets),
                "s1-eth2": interface(sent=left, send_drops=refused_by_b),
            },
            queues={
                "s1-eth1": queues("s1-eth1"),
                "s1-eth2": queues("s1-eth2", sent=left, drops=(drops_began_at + drops) % (1 << 32)),
            },
        ),
    }
    flows = [
        Flow(identity=b"to a", ports=(1,), packets=0),
        Flow(identity=b"to b", ports=(2,), packets=matched, since_s=(made_at_s, made_at_s + 0.1)),
    ]
    entered = packets - socket_drops if lookups is None else lookups
    switch = SwitchCounters(
        entered=entered,
        lookups=entered,
        matched=min(entered, packets - socket_drops) - misses,
        flows=flows,
        bucket_ports={},
        bucket_packets={},
    )
    return Counters(
        at_s=float(packets),
        idle=idle,
        namespaces=namespaces,
        sockets={"s1-eth1": (packets, socket_drops), "s1-eth2": (0, 0)},
        switches={"s1": switch},
        filter_drops={"a": 0, "b": injected},
        delayed={("b--s1", "s1"): (delay_drops, 0)},
        lost_upcalls=lost_upcalls,
    )


def closed(events=(), *, whole=True, before=None, network=NETWORK, **after):
    first, second = counters(**(before or {})), counters(**after)
    return conservation.close(network, first, second, list(events), whole_batches=whole)


def link(closed, name, sender):
    return next(way for way in closed.links if (way.link, way.sender) == (name, sender))


def gate(closed, key):
    return gate_of(key, ledgers=closed, unreadable="no ovs")


@pytest.mark.parametrize("drops", [{}, {"drops": 40, "injected": 960, "at_b": 4000}])
def test_counted_drops_are_explained(drops):
    ledgers = closed(packets=5000, **drops)
    assert ledgers.worst()[0] == 0
    to_b = link(ledgers, "b--s1", "s1")
    assert to_b.offered == 5000 == to_b.queue_drops + to_b.injected + to_b.received
    assert (to_b.queue_drops, to_b.injected) == ((40, 960) if drops else (0, 0))
    for key in ("conservation", "emulator_losses"):
        assert gate(ledgers, key).outcome == "passed"


def test_of_two_queues_below_a_second_shaper_no_drop_counts_twice():
    before, after = counters(), counters(packets=5000, drops=40)
    for reading in (before, after):
        root, low = reading.namespaces[None].queues["s1-eth2"]
        inner, high = replace(root, is_root=False), replace(low, drops=0)
        reading.namespaces[None].queues["s1-eth2"] = [root, inner, high, low]
    ledgers = conservation.close(NETWORK, before, after, [], whole_batches=True)
    to_b = link(ledgers, "b--s1", "s1")
    assert (to_b.queue_drops, to_b.sent) == (40, 4960)
    assert ledgers.worst()[0] == 0


@pytest.mark.parametrize(
    ("after", "where", "unexplained"),
    [
        ({"at_b": 4990}, "b--s1 from s1", 10),  # vanished on the last link
        ({"filtered": 10}, "a--s1 from a", 10),  # something above the queue drops
        ({"offered": 5010}, "b--s1 from s1", 10),  # the switch meant to send more than left
        # One does not make up for the other.
        ({"offered": 5010, "at_b": 5010}, "b--s1 from s1", 20),
        # Lost before the tables.
        ({"lookups": 4990, "offered": 4990, "given_up": 10}, "switch s1", 10),
    ],
)
def test_a_leak_shows_where_it_is(after, where, unexplained):
    ledgers = closed(packets=5000, **after)
    shares = {f"{ledger.link} from {ledger.sender}": ledger.share for ledger in ledgers.links}
    shares |= {f"switch {switch.switch}": switch.share for switch in ledgers.switches}
    assert shares[where] == ledgers.worst()[0] == pytest.approx(unexplained / 5000, rel=0.01)


@pytest.mark.parametrize(
    ("after", "part", "lost"),
    [
        ({"socket_drops": 2500}, "a--s1 from a: the socket of the switch's port", 2500),
        # Such a packet counts as dropped at both ends of the link.
        ({"refused_by_b": 1}, "b--s1 from s1: an interface on the way", 1),
        ({"delay_drops": 7}, "b--s1 from s1: the middle of the delayed link", 7),
    ],
)
def test_what_the_emulator_lost_is_explained_and_stops_the_run(after, part, lost):
    ledgers = closed(packets=5000, **after)
    assert gate(ledgers, "conservation").outcome == "passed"
    refused = gate(ledgers, "emulator_losses")
    assert (refused.outcome, refused.value, refused.where) == ("failed", lost, part)


def test_a_refusal_explains_itself_alone():
    ledgers = closed(packets=5000, drops=1000, given_up=1)
    assert link(ledgers, "b--s1", "s1").missing_before == 1
    assert ledgers.switches[0].missing_after == 1
    assert gate(ledgers, "conservation").note == ""


def test_where_a_refusal_stands_for_a_batch_there_are_no_accounts_once_a_queue_refused_a_packet():
    assert gate(closed(packets=5000, whole=False), "conservation").outcome == "passed"
    with pytest.raises(ValueError, match=r"refused 3 packets .* batches uncounted; .* Linux 5\.16"):
        closed(packets=5000, drops=3, whole=False)


IN_KERNEL = replace(NETWORK, datapath="kernel")
LOST_INTO_SWITCH = {"counts_as": "loss", "action": "end", "target": "a->s1", "dropped": 50}


def test_in_the_kernel_an_impairment_s_drops_come_after_the_port_s_count():
    ledgers = closed(
        [LOST_INTO_SWITCH], packets=5000, lookups=4950, offered=4950, given_up=50, network=IN_KERNEL
    )
    assert ledgers.worst() == (0, "")
    to_switch, switch = link(ledgers, "a--s1", "a"), ledgers.switches[0]
    assert (to_switch.injected, to_switch.received, switch.arrived) == (50, 4950, 4950)
    for vanished in (10, -10):  # between port and tables
        left = {"lookups": 5000 - vanished, "offered": 5000 - vanished, "given_up": vanished}
        ledgers = closed(packets=5000, **left, network=IN_KERNEL)
        assert ledgers.switches[0].missing_before == vanished
        assert gate(ledgers, "conservation").outcome == "failed"


def test_first_packets_that_the_daemon_was_too_late_for_stop_the_run():
    ledgers = closed(packets=5000, lost_upcalls=3, network=IN_KERNEL)
    refused = gate(ledgers, "emulator_losses")
    assert (refused.outcome, refused.value) == ("failed", 3)
    assert refused.where == "the kernel's datapath: first packets of flows"
    assert ledgers.as_json()["lost_upcalls"] == 3


def down(target):
    return {"counts_as": "link-down", "action": "begin", "target": target}


def test_a_link_that_goes_down_excuses_itself_and_no_other():
    lost = {"packets": 5000, "given_up": 50}
    for target in ("b", "b->s1", "s1->b"):
        ledgers = closed([down(target)], **lost)
        to_b, switch = link(ledgers, "b--s1", "s1"), ledgers.switches[0]
        assert (to_b.hidden, to_b.unexplained) == (50, 0)
        assert (switch.hidden, switch.unexplained) == (50, 0)
        note = gate(ledgers, "conservation").note
        assert "up to 50 packets (1.01% of the traffic)" in note
    elsewhere = closed([down("a")], **lost)
    assert link(elsewhere, "b--s1", "s1").missing_before == 50
    assert elsewhere.switches[0].unexplained == 50
    # A packet too many is none that a link took with it.
    assert link(closed([down("b")], packets=5000, at_b=5010), "b--s1", "s1").missing_after == -10
    assert gate(closed([down("b")], packets=5000, refused_by_b=9), "emulator_losses").value == 0
    full = gate(closed([down("a")], packets=5000, socket_drops=2500), "emulator_losses")
    assert full.value == 2500  # a link that is down fills no socket


def test_what_came_by_a_link_that_went_down_may_miss_the_tables_or_their_entries():
    lost = {"packets": 5000, "lookups": 4990, "offered": 4990, "given_up": 10}
    switch = closed([down("a")], **lost).switches[0]
    assert (switch.hidden, switch.unexplained) == (10, 0)
    assert closed([down("b")], **lost).switches[0].missing_before == 10  # nothing came by that
    # A changed route counts misses, which may have been forwarded; no more than those.
    missed = {"packets": 5000, "misses": 30}
    for target in ("a", "b"):
        switch = closed([down(target)], **missed).switches[0]
        assert (switch.table_misses, switch.unexplained, switch.hidden) == (30, 0, 30)
    assert closed(**missed).switches[0].missing_after == -30
    assert closed([down("a")], **missed, given_up=-7).switches[0].missing_after == -7


def test_entries_that_were_made_anew_count_for_nothing():
    ledgers = closed(packets=5000, given_up=50, made_at_s=3.0)  # and removed before
    to_b = link(ledgers, "b--s1", "s1")
    assert (to_b.offered, to_b.missing_before) == (None, 0)
    assert ledgers.switches[0].missing_after == 50  # the switch's own equation needs no entries


@pytest.mark.parametrize("at", ["before", "after"])
def test_packets_that_moved_at_a_reading_leave_nothing_measured(at):
    ledgers = closed(**({"before": {"idle": False}} if at == "before" else {"idle": False}))
    for key in ("conservation", "emulator_losses"):
        assert gate(ledgers, key).outcome == "not measured"
        assert gate(None, key).outcome == "not measured"


def test_counters_of_32_bits_may_begin_again():
    assert conservation.grown((1 << 32) - 5, 3) == 8
    assert conservation.grown(1 << 33, (1 << 33) + 7) == 7
    assert conservation.grown(100, 40) == -60  # a queue that was replaced
    began = {"drops_began_at": (1 << 32) - 10}
    to_b = link(closed(before=began, packets=5000, drops=40, **began), "b--s1", "s1")
    assert (to_b.queue_drops, to_b.unexplained) == (40, 0)


@pytest.mark.parametrize(
    ("changes", "vanished"),
    [
        ({}, 0),
        ({"inside": 7}, 7),
        ({"inside": 7, "InHdrErrors": 3, "InDiscards": 4}, 0),
        ({"inside": 7, "InAddrErrors": 3}, 4),
        # Three packets of three fragments each, and one whose third fragment is missing.
        ({"inside": 8, "ReasmReqds": 11, "ReasmOKs": 3}, 0),
        ({"inside": 9, "ReasmReqds": 11, "ReasmOKs": 3}, 1),
    ],
)
def test_what_a_host_s_kernel_drops_uncounted_is_unexplained(changes, vanished):
    ledgers = closed(packets=100_000, **changes)
    assert {host.host: host.vanished for host in ledgers.hosts} == {"a": 0, "b": vanished}
    share = vanished / 100_000
    assert ledgers.worst() == ((share, "the kernel of b") if vanished else (0.0, ""))


class Scripted(CounterReader):
    """Sees one interface, which has sent so many packets at each look."""

    def __init__(self, sent: Iterable[int], *links: Any) -> None:
        self._network: Any = SimpleNamespace(links=links)
        self._sent = iter(sent)
        self.readings = 0

    def _namespaces(self) -> dict[int | None, NamespaceCounters]:
        zeros = dict.fromkeys(InterfaceCounters.__dataclass_fields__, 0)
        interface = InterfaceCounters(**zeros | {"sent": next(self._sent)})
        return {None: NamespaceCounters(interfaces={"s1-eth1": interface})}

    def _all(
        self, namespaces: dict[int | None, NamespaceCounters], idle: bool, *, last: bool
    ) -> Any:
        self.readings += 1
        sent = namespaces[None].interfaces["s1-eth1"].sent
        return SimpleNamespace(sent=sent, idle=idle)


def test_what_moves_while_counters_are_read_is_read_again():
    # Two looks until it is idle, one after the reading: a packet came, so all begins anew.
    reader = Scripted([5, 5, 6, 6, 6, 6])
    ledgers: Any = reader.read()
    assert (ledgers.sent, ledgers.idle) == (6, True)
    assert reader.readings == 2


def test_what_never_rests_is_said_to_be_moving(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counting, "_PATIENCE_S", 0.1)
    reader = Scripted(itertools.count())
    assert not reader.read().idle
    assert reader.readings == 1
    pairs = itertools.chain.from_iterable(zip(itertools.count(), itertools.count(), strict=True))
    reader = Scripted(pairs)  # it rests at each two looks, and never while all is read
    assert not reader.read().idle


@pytest.mark.parametrize("slow_by", ["configuration", "impairment", "hand"])
def test_frames_in_flight_are_waited_for_whoever_delays_them(slow_by):
    """A frame arrives 0.3 s after the first look."""
    delays = {"delay_s": 0.0, "jitter_s": 0.0, "most_delay_s": None}
    if slow_by == "configuration":
        delays |= {"delay_s": 0.2, "jitter_s": 0.1}
    if slow_by == "impairment":
        delays["most_delay_s"] = 0.3
    began_s = time.monotonic()

    def sent():
        while True:
            yield 5 if time.monotonic() - began_s < 0.3 else 6

    reader = Scripted(sent(), SimpleNamespace(**delays))
    ledgers: Any = reader.read(0.3 if slow_by == "hand" else 0.0)
    assert (ledgers.sent, ledgers.idle) == (6, True)
