"""Packet conservation: the equations on counters made by hand, and what ovs-ofctl prints."""

from __future__ import annotations

import pytest

from testbed.lab.kernel.link_counters import Interface, NamespaceCounters, Queue
from testbed.lab.network import HostInfo, LabInfo, LinkEnds, Port
from testbed.verdict import conservation, switch_counters
from testbed.verdict.counters import Counters
from testbed.verdict.switch_counters import Flow, SwitchCounters

HOSTS = {"a": 11, "b": 12}
NETWORK = LabInfo(
    hosts={
        name: HostInfo(
            name=name,
            address=f"10.0.0.{number}",
            mac=f"00:00:00:00:00:0{number}",
            pid=pid,
            interface=f"{name}-eth0",
            switch="s1",
            switch_port=number,
            switch_interface=f"s1-eth{number}",
            rate_bps=100_000_000,
            queue_bytes=150_000,
        )
        for number, (name, pid) in enumerate(HOSTS.items(), start=1)
    },
    switches={"s1": 1},
    links=[
        LinkEnds(
            name=f"{name}--s1",
            first=Port(node=name, interface=f"{name}-eth0", number=0, pid=pid),
            second=Port(node="s1", interface=f"s1-eth{number}", number=number, pid=None),
            rate_bps=100_000_000,
            queue_bytes=150_000,
        )
        for number, (name, pid) in enumerate(HOSTS.items(), start=1)
    ],
)


def interface(sent=0):
    return Interface(received=0, receive_drops=0, sent=sent, send_drops=0)


def queues(name, *, sent=0, drops=0, root_drops=None):
    common = {"interface": name, "sent_bytes": 0, "backlog_packets": 0, "backlog_bytes": 0}
    total = drops if root_drops is None else root_drops
    return [
        Queue(kind="htb", is_root=True, sent_packets=sent, drops=total, **common),
        Queue(kind="bfifo", is_root=False, sent_packets=sent, drops=drops, **common),
    ]


def counters(
    *, packets=0, at_b=None, drops=0, filtered=0, offered=None, injected=0, lookups=None
) -> Counters:
    """Host a sends `packets` through s1 to b, where `at_b` of them arrive."""
    left = packets - drops if offered is None else packets
    arrived = left if at_b is None else at_b
    offered = packets if offered is None else offered
    namespaces: dict[int | None, NamespaceCounters] = {
        11: NamespaceCounters(
            interfaces={"lo": interface(), "a-eth0": interface(packets)},
            queues={
                "a-eth0": queues("a-eth0", sent=packets, root_drops=filtered),
            },
        ),
        12: NamespaceCounters(
            interfaces={"lo": interface(), "b-eth0": interface()},
            queues={"b-eth0": queues("b-eth0")},
            protocols={"Ip.InReceives": arrived},
        ),
        None: NamespaceCounters(
            interfaces={"s1-eth1": interface(), "s1-eth2": interface(left)},
            queues={
                "s1-eth1": queues("s1-eth1"),
                "s1-eth2": queues("s1-eth2", sent=left, drops=drops),
            },
        ),
    }
    flows = [
        Flow(identity="to a", actions="output:1", packets=0),
        Flow(identity="to b", actions="output:2", packets=offered),
    ]
    switch = SwitchCounters(
        lookups=packets if lookups is None else lookups,
        matched=packets,
        flows=flows,
        bucket_ports={},
        bucket_packets={},
        meter_drops=0,
    )
    return Counters(
        at_s=float(packets),
        quiet=True,
        namespaces=namespaces,
        sockets={"s1-eth1": (packets, 0), "s1-eth2": (0, 0)},
        switches={"s1": switch},
        filter_drops={"a": 0, "b": injected},
        delayed={},
    )


def books(events=(), **after):
    return conservation.close(NETWORK, counters(), counters(**after), list(events))


def link(found, name, sender):
    return next(each for each in found.links if (each.link, each.sender) == (name, sender))


def test_without_a_leak_nothing_is_unexplained():
    found = books(packets=5000)
    assert found.worst()[0] == 0
    assert link(found, "b--s1", "s1").offered == 5000


def test_counted_drops_are_explained():
    found = books(packets=5000, drops=40, injected=960, at_b=4000)
    assert found.worst()[0] == 0
    to_b = link(found, "b--s1", "s1")
    assert (to_b.queue_drops, to_b.injected, to_b.received) == (40, 960, 4000)


@pytest.mark.parametrize(
    ("after", "where", "unexplained"),
    [
        ({"at_b": 4990}, "b--s1 from s1", 10),  # vanished on the last link
        ({"at_b": 5010}, "b--s1 from s1", -10),  # multiplied there
        ({"filtered": 10}, "a--s1 from a", 10),  # something above the queue drops
        ({"offered": 5010}, "b--s1 from s1", 10),  # the switch meant to send more than left
    ],
)
def test_a_leak_shows_where_it_is(after, where, unexplained):
    found = books(packets=5000, **after)
    share, place = found.worst()
    assert place == where
    assert share == pytest.approx(abs(unexplained) / 5000)


def test_a_refusal_explains_no_more_than_a_batch():
    assert conservation._beyond_refusals(32 * 3, 3) == 0
    assert conservation._beyond_refusals(32 * 3 + 1, 3) == 1
    assert conservation._beyond_refusals(-1, 3) == -1


def test_a_blackout_leaves_no_account_per_port_but_one_per_switch():
    event = {
        "kind": "./mine.py",
        "counts_as": "blackout",
        "action": "end",
        "target": "b",
        "dropped": 0,
    }
    found = books([event], packets=5000)
    assert link(found, "b--s1", "s1").offered is None
    assert found.switches[0].unexplained == 0
    assert books([event | {"dropped": 10}], packets=5000).switches[0].unexplained == -10


FLOWS = """OFPST_FLOW reply (OF1.3) (xid=0x2):
 cookie=0x0, duration=0.620s, table=0, n_packets=621, n_bytes=755352, priority=10,dl_dst=00:01 \
actions=output:1
 cookie=0x1, duration=9s, table=0, n_packets=7, n_bytes=1, priority=9 actions=meter:1,group:3
"""


def test_flow_entries_are_read_and_recognised_again():
    first, second = switch_counters.parse_flows(FLOWS)
    assert (first.packets, first.output_ports(), second.groups()) == (621, ["1"], [3])
    later = switch_counters.parse_flows(FLOWS.replace("0.620s", "8.1s").replace("621", "700"))[0]
    assert later.identity == first.identity
    assert later.packets == 700


def test_tables_groups_and_meters_are_read():
    tables = "  table 0:\n    active=4, lookup=1249, matched=1242\n\n  tables 2...253: ditto\n"
    assert switch_counters.parse_tables(tables) == (1249, 1242)
    groups = " group_id=3,type=select,bucket=actions=output:1,bucket=actions=output:2\n"
    assert switch_counters.parse_group_ports(groups) == {3: [["1"], ["2"]]}
    counted = (
        " group_id=3,duration=1s,ref_count=1,packet_count=9,byte_count=9,"
        "bucket0:packet_count=4,byte_count=4,bucket1:packet_count=5,byte_count=5\n"
    )
    assert switch_counters.parse_group_packets(counted) == {3: [4, 5]}
    meters = "meter:1 flow_count:1 packet_in_count:30 byte_in_count:9 bands:\n0: packet_count:12 byte_count:3\n"  # noqa: E501
    assert switch_counters.parse_meter_drops(meters) == 12
