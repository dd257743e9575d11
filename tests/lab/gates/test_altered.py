"""Labs whose own code is wrong from the start, each in a way that a gate sees."""

import json
import os

import pytest

from tests.lab.conftest import FEW_PATHS
from tests.lab.gates.harness import WrongLab, assert_invalid, delayed

pytestmark = pytest.mark.lab

# From the begin of the training on, two processes of the lab take three quarters of each processor,
# 9 ms at a time. They end with the lab.
SPINNING = '''
_SPIN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
while True:
    until_s = time.monotonic() + 0.009
    while time.monotonic() < until_s:
        pass
    time.sleep(0.003)
"""
_right_begin = RunObserver.begin

def _begin(self):
    import os, subprocess, sys
    _right_begin(self)
    for processor in os.sched_getaffinity(0):
        subprocess.Popen([sys.executable, "-c", _SPIN, str(processor)])

RunObserver.begin = _begin
'''


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give real-time priority")
def test_a_starved_switch_is_found(wrong_lab: WrongLab):
    results = wrong_lab.run(altered_by={"testbed.verdict.run_observer": SPINNING}, rounds=10)
    assert_invalid(results, "cpu_wait_s", where="ovs-vswitchd")


# Every filter loses half of the packets that its table says.
HALF = """
import dataclasses

_right_init = {filter}.__init__

def _init(self, *arguments):
    *first, losses = arguments
    _right_init(self, *first, dataclasses.replace(losses, lost=losses.lost[::2]))

{filter}.__init__ = _init
"""
EVERY_ROUND = {"kind": "loss", "name": "tenth", "rounds": {"every": 1, "from": 0}, "q": 0.1}


TWO_FRAMES = """
def _grow(opened, option, size):
    size = 4608 if option == socket.SO_SNDBUF else 8 << 20
    opened.setsockopt(socket.SOL_SOCKET, option, size)
    return opened.getsockopt(socket.SOL_SOCKET, option)
"""


@pytest.mark.parametrize(
    ("module", "name", "target"),
    [
        ("packet_filter", "PacketFilter", {"host": "server"}),
        pytest.param(
            "xdp_filter", "XdpFilter", {"link": ["worker-1", "s1"]}, marks=pytest.mark.long
        ),
    ],
)
def test_other_losses_than_those_of_the_table_and_a_socket_buffer_of_two_frames_are_found(
    wrong_lab: WrongLab, module: str, name: str, target: dict[str, object]
):
    if name == "XdpFilter" and os.geteuid() != 0:
        pytest.skip("loading an XDP program needs real root")
    results = wrong_lab.run(
        altered_by={
            f"testbed.lab.kernel.{module}": HALF.format(filter=name),
            "testbed.lab.openvswitch": TWO_FRAMES,
        },
        rounds=10,
        impairments=[EVERY_ROUND | target],
    )
    gate = assert_invalid(results, "loss_error", where="tenth")
    assert 0.02 < gate["value"] < 0.1
    assert assert_invalid(results, "socket_buffer_bytes")["value"] > 100_000


# The kernel's TCP may build packets of 64 kB again, and nobody is told.
KERNEL = """
def single_segments(interface):
    body = _link_header(interface.number) + attribute(_GSO_MAX_SEGMENTS, struct.pack("=I", 65535))
    return Message(_SET_LINK, 0, body, f"segments of {interface.name}")

Rtnetlink.most_segments = lambda self, interface: 1
"""


# While paths are measured, the switch's port to the server gets a new rate every 5 ms, by a normal
# distribution whose standard deviation is a fifth of the configured rate. (Behind a link that
# scatters, one of the same rate would smooth the flow. In front of it, that one holds back what is
# faster: of a scatter of a tenth, up to 7 % of such calibrations see less than the limit.)
SCATTERING = """
_right_calibrate = calibrate

def calibrate(network, **options):
    import random
    import threading
    from testbed.lab.kernel.rtnetlink import Rtnetlink
    from testbed.lab.kernel.shaping import LinkShape, rate_message

    random.seed(1)
    over = threading.Event()
    link = next(each for each in network.links if each.name == "server--s1")

    def scatter():
        with Rtnetlink() as kernel:
            interface = kernel.interface("s1-eth1")
            while not over.wait(0.005):
                rate_bps = int(link.rate_bps * max(0.2, random.gauss(1, 0.2)))
                shape = LinkShape(rate_bps=rate_bps, queue_bytes=link.queue_bytes)
                kernel.send([rate_message(interface, shape)])

    thread = threading.Thread(target=scatter)
    thread.start()
    try:
        return _right_calibrate(network, **options)
    finally:
        over.set()
        thread.join()
"""


@pytest.mark.long
def test_a_rate_that_scatters_by_a_fifth_is_found(wrong_lab: WrongLab):
    altered = {"testbed.verdict.calibration": SCATTERING}
    results = wrong_lab.run(altered_by=altered, every_path=True, rounds=3)
    gate = assert_invalid(results, "rate_spread", where="to server")
    assert gate["value"] < 0.5  # it is of the size that was made


FIVE_PERCENT_SLOW = """
_right_rate_message = rate_message

def rate_message(interface, link):
    from dataclasses import replace
    if interface.name == "s1-eth1":  # the last hop towards the server
        link = replace(link, rate_bps=link.rate_bps * 95 // 100)
    return _right_rate_message(interface, link)
"""
CHANGED_LIMIT = """
_right_bfifo = bfifo

def bfifo(interface, *, limit_bytes, **others):
    if interface.name == "worker-1-eth0":
        limit_bytes = limit_bytes * {percent} // 100
    return _right_bfifo(interface, limit_bytes=limit_bytes, **others)
"""
# Before the calibration: one probe of ten that arrives at the server is dropped, and nothing else.
DROPPING = """
_right_warm_up = warm_up

def warm_up(network):
    import subprocess
    from testbed.lab.kernel.shaping import inside
    _right_warm_up(network)
    rules = (
        'add table netdev hole; add chain netdev hole drops '
        '{ type filter hook ingress device "server-eth0" priority 5; }; '
        'add rule netdev hole drops udp length 13 numgen inc mod 10 0 drop'
    )
    subprocess.run([*inside(network.hosts["server"].pid), "nft", rules], check=True)
"""


@pytest.mark.parametrize("percent", [80, pytest.param(120, marks=pytest.mark.long)])
def test_a_slow_link_an_odd_queue_lost_probes_and_clumps_are_found(
    wrong_lab: WrongLab, percent: int
):
    results = wrong_lab.run(
        altered_by={
            "testbed.lab.kernel.shaping": FIVE_PERCENT_SLOW,
            "testbed.lab.kernel.rtnetlink": KERNEL + CHANGED_LIMIT.format(percent=percent),
            # A lost probe is waited for, and the slow rate measured four times: on each path.
            "testbed.verdict.calibration": FEW_PATHS["testbed.verdict.calibration"] + DROPPING,
        },
        retries=1,
        arms={"tcp": {"protocol": "tcp"}},
        rounds=20,
    )
    # The first attempt does not train in vain, and the last one does, to be looked at.
    (first,) = results.folder.glob("*/tcp-*.attempt1")
    reason = json.loads((first / "status.json").read_text())["reason"]
    assert "rate_error" in reason and "the workload did not begin" in reason
    assert not (first / "events" / "rounds.jsonl").exists()
    slow = assert_invalid(results, "rate_error", where="to server", arm="tcp")
    assert 0.045 < slow["value"] < 0.055
    odd = assert_invalid(results, "queue_error", where="worker-1--s1 from worker-1", arm="tcp")
    assert 0.1 < odd["value"] <= 0.21
    lost = assert_invalid(results, "idle_loss", where="server", arm="tcp")
    assert 0.05 <= lost["value"] <= 0.2
    clumps = assert_invalid(results, "packet_bytes", where="--s1 from ", arm="tcp")
    assert clumps["value"] > 8_000
    assert not clumps["where"].endswith(" s1")  # they are a host's


@pytest.mark.long
def test_links_that_are_a_fifth_too_long_from_the_start_are_found(wrong_lab: WrongLab):
    longer = """
_right_set = DelayLine.set

def _set(self, settings):
    from dataclasses import replace
    _right_set(self, replace(settings, delay_s=1.2 * settings.delay_s))

DelayLine.set = _set
"""
    results = wrong_lab.run(
        altered_by={"testbed.lab.delay.relayed_direction": longer},
        **delayed(wrong_lab.rate_bps, rounds=6),
    )
    # Two links there and two back.
    assert assert_invalid(results, "rtt_error")["value"] > 0.0039
    assert assert_invalid(results, "delay_error_s")["value"] > 0.0009
