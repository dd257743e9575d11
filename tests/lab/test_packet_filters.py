"""The two packet filters count and drop on a veth pair in a network namespace of its own."""

import os

import pytest

from tests.own_network import printed

pytestmark = pytest.mark.beside

# `send` puts IPv4 frames on the wire whose far end is filtered. `passed` counts, behind the filter,
# what was not dropped: tables of one priority come in no order that anybody promises.
SCENE = """
import json, os, socket, subprocess, sys, threading, time
from testbed.lab.kernel.packet_filter import FilterCounters, PacketFilter
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.xdp_filter import XdpFilter
from testbed.lab.loss_table import LossModel, drawn
from tests import own_network

PORTS = (47000, 47999)
own_network.join(("near", "far"))
wire = own_network.wire("near")

def frame(*, source=1, target=47000, size=200, protocol=17, kind=0x0800):
    ports = source.to_bytes(2, "big") + target.to_bytes(2, "big")
    head = bytes([0x45, 0]) + size.to_bytes(2, "big") + bytes(5) + bytes([protocol]) + bytes(10)
    return bytes.fromhex("ff" * 6 + "020000000001") + kind.to_bytes(2, "big") + (
        head + ports + bytes(size - len(head) - len(ports)))

def send(count=1, **fields):
    one = frame(**fields)
    for _ in range(count):
        wire.send(one)

def share(q, seed="any"):
    return drawn(LossModel(loss_good=q), seed)

def make(how, table):
    if how == "nftables":
        return PacketFilter(os.getpid(), "far", table)
    return XdpFilter("far", table)

subprocess.run(["nft", "-f", "-"], text=True, check=True, input='''
table netdev behind {
  counter passed { }
  chain behind {
    type filter hook ingress device "far" priority 9; policy accept
    meta protocol ip counter name passed
  }
}''')

def passed():
    listed = subprocess.run(["nft", "-j", "list", "counter", "netdev", "behind", "passed"],
                            capture_output=True, text=True, check=True)
    return json.loads(listed.stdout)["nftables"][1]["counter"]["packets"]

how = sys.argv[1]
"""


@pytest.fixture(params=["nftables", "XDP"])
def how(request: pytest.FixtureRequest) -> str:
    if request.param == "XDP" and os.geteuid() != 0:
        pytest.skip("loading an XDP program needs real root")
    return str(request.param)


def test_only_what_could_be_lost_is_met(how):
    script = """
found = {}
filtered = make(how, share(1))
for name, ports in (("data", PORTS), ("all", None)):
    filtered.lose(data_ports=ports)
    for case, fields in (
        ("to the first port", {"target": 47000}),
        ("to the last port", {"target": 47999}),
        ("from a data port", {"source": 47500, "target": 9}),
        ("by TCP", {"protocol": 6}),
        ("to the port before", {"target": 46999}),
        ("to the port behind", {"target": 48000}),
        ("of another protocol", {"protocol": 1}),
        ("short", {"size": 100}),
        ("not IPv4", {"kind": 0x88b5}),
    ):
        send(**fields)
        found[f"{name}: {case}"] = filtered.take()
    filtered.clear()
send()
found["after"] = filtered.take()
print(json.dumps(found))
"""
    result = printed(SCENE + script, how)
    hit = {case for case, counts in result.items() if counts == [1, 1]}
    assert all(counts == [0, 0] for case, counts in result.items() if case not in hit)
    data = {"to the first port", "to the last port", "from a data port", "by TCP"}
    other = {"to the port before", "to the port behind", "of another protocol", "short"}
    assert hit == {f"data: {case}" for case in data} | {f"all: {case}" for case in data | other}


def test_what_a_switch_sends_is_met_like_all_else_and_its_link_stays_adjustable(how):
    """A switch's packets are redirected at its port, which a filter may pass over."""
    script = """
from testbed.lab import datapath
filtered = make(how, share(0.5))
assert datapath.keep_whole([wire], ["near"])
filtered.lose(data_ports=PORTS)
send(1000)
with Rtnetlink() as kernel:
    for end in ("near", "far"):
        kernel.disable_offloads(end)
print(json.dumps([filtered.take(), passed()]))
"""
    (met, dropped), left = printed(SCENE + script, how)
    assert met == 1000 == dropped + left
    assert 350 < dropped < 650


def test_both_filters_of_two_processes_work_and_one_cannot_stop_the_other():
    script = """
mine = make(how, share(0.5))
mine.lose(data_ports=None)
other = '''
import os, sys
from testbed.lab.kernel.packet_filter import PacketFilter
from testbed.lab.loss_table import LossModel, drawn
table = drawn(LossModel(loss_good=0.5), "another seed")
filtered = PacketFilter(os.getpid(), "far", table)
filtered.lose(data_ports=None)
print(flush=True)
sys.stdin.read()
filtered.clear()
print(*filtered.take())
'''
second = subprocess.Popen(
    [sys.executable, "-c", other], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
second.stdout.readline()
send(1000)
theirs = second.communicate()[0].split()
both = mine.take()
send(1000)
print(json.dumps([both, mine.take(), [int(each) for each in theirs],
                  FilterCounters(os.getpid()).dropped()]))
"""
    mine, (met_alone, dropped_alone), theirs, total = printed(SCENE + script, "nftables")
    (met_first, dropped_first), (met_then, dropped_then) = sorted((mine, theirs), reverse=True)
    assert met_first == met_alone == 1000
    assert met_then == 1000 - dropped_first
    # Six standard deviations of 500 of 1000, and of 250 of 500.
    assert abs(dropped_first - 500) < 95
    assert abs(dropped_alone - 500) < 95
    assert abs(dropped_then - met_then / 2) < 67
    assert total == dropped_first + dropped_then + dropped_alone


def test_no_count_is_lost_while_thresholds_change(how):
    script = """
filtered = make(how, share(0.9))
sent, over = 0, threading.Event()

def go_on():
    global sent
    one = frame()
    while not over.is_set():
        wire.send(one)
        sent += 1

sender = threading.Thread(target=go_on)
sender.start()
met = dropped = changes = 0
began_s = time.monotonic()
# A filter is in force for a part of the time only: how many packets meet it depends on the machine.
while time.monotonic() < began_s + (1.5 if met > 100 else 20):
    filtered.lose(data_ports=PORTS, occurrence=changes)
    filtered.clear()
    changes += 1
    if changes % 10 == 0:
        more = filtered.take()
        met, dropped = met + more.met, dropped + more.dropped
over.set()
sender.join()
more = filtered.take()
print(json.dumps([sent, met + more.met, dropped + more.dropped, passed(), changes]))
"""
    sent, met, dropped, passed, changes = printed(SCENE + script, how)
    assert changes > 50
    assert met > 100
    assert dropped == sent - passed
    assert abs(dropped - 0.9 * met) < 6 * (0.09 * met) ** 0.5


def test_a_switch_s_interface_refuses_a_second_loss_at_the_same_time():
    if os.geteuid() != 0:
        pytest.skip("loading an XDP program needs real root")
    script = """
from testbed.lab.kernel.commands import CommandError
filtered = make(how, share(1))
filtered.lose(data_ports=None)
try:
    make(how, share(0.1)).lose(data_ports=None)
    said = ""
except CommandError as error:
    said = str(error)
send(100)
print(json.dumps([said, filtered.take()]))
"""
    text, counts = printed(SCENE + script, "XDP")
    assert "far: another impairment" in text
    assert counts == [100, 100]


def test_exactly_the_packets_of_the_table_are_missing_in_each_occurrence(how):
    """It holds for a mask and a drawn table, beyond the end of both; and by the seed alone."""
    script = """
import dataclasses
from testbed.lab.kernel.packet_filter import FilterCounters
counters = FilterCounters(None)
arrived = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
arrived.bind(("far", 0x0800))
arrived.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
arrived.setblocking(False)

def lost(filtered, packets, occurrence):
    if how == "nftables":  # whose packets a packet socket sees before they are dropped
        before = counters.packets("passed")
        found = []
        filtered.lose(data_ports=PORTS, occurrence=occurrence)
        for number in range(packets):
            send()
            now = counters.packets("passed")
            found += [number] if now == before else []
            before = now
        filtered.clear()
        return found
    filtered.lose(data_ports=PORTS, occurrence=occurrence)
    for number in range(packets):
        wire.send(frame(source=number + 1, target=47000))
    filtered.clear()
    seen = set()
    while True:
        try:
            seen.add(int.from_bytes(arrived.recv(100)[34:36], "big") - 1)
        except BlockingIOError:
            return sorted(set(range(packets)) - seen)

packets = 1000
short = dataclasses.replace(share(0.3), size=37)  # begins again within the occurrence
found = []
for table in (short, share(0.2, "one"), share(0.2, "two")):
    filtered = make(how, table)
    for occurrence in (0, 1, 2):
        hit = lost(filtered, packets, occurrence)
        found.append([hit, table.losses(occurrence, packets).tolist(), *filtered.take()])
print(json.dumps([packets, found]))
"""
    packets, result = printed(SCENE + script, how)
    for lost, planned, met, dropped in result:
        assert lost == planned
        assert (met, dropped) == (packets, len(planned))
    assert result[3][0] != result[6][0]
