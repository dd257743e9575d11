"""The kernel's datapath: labs in it where there is one, its refusal elsewhere, and free senders."""

import json

import pytest

from tests.own_network import printed

pytestmark = pytest.mark.lab

# Redirection keeps a packet with its sender, as Open vSwitch's module does.
SCENE = """
import json, socket
from testbed.lab import datapath
from testbed.lab.kernel import link_counters, shaping
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.shaping import LinkShape
from tests import own_network

FRAMES = 400
# Silent: what IPv6 asks and reports as an interface comes up would be counted with ours.
own_network.join(("near", "in"), ("out", "far"))
run("ip address add 10.9.0.1/24 dev near".split())
run("ip neighbour add 10.9.0.2 lladdr 02:00:00:00:00:09 dev near".split())
run("tc qdisc add dev in ingress".split())
onward = "u32 match u32 0 0 action mirred egress redirect dev out"
run(f"tc filter add dev in parent ffff: protocol all {onward}".split())
shaping.shape("out", LinkShape(rate_bps=1_000_000, queue_bytes=150_000))

def sent_at_once():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
        for sent in range(FRAMES):
            try:
                sender.sendto(bytes(1400), ("10.9.0.2", 9))
            except BlockingIOError:
                return sent
    return FRAMES

bound = sent_at_once()
waiting = link_counters.queues()["out"][0].backlog_packets
datapath.free_senders(["in", "out"])
free = sent_at_once()
sent, refused = link_counters.offered("out", None)
backlog = max(each.backlog_packets for each in link_counters.queues()["out"])
interface = link_counters.read(None).interfaces["out"]
print(json.dumps(dict(
    bound=bound, waiting=waiting, free=free, refused=refused, sent=sent, backlog=backlog,
    send_drops=interface.send_drops)))
"""


def test_a_switch_s_queue_is_felt_by_no_sender_and_overflows():
    result = printed(SCENE)
    assert result["bound"] < 100, "the kernel frees senders by itself: is this still needed?"
    assert result["waiting"] > 0.8 * result["bound"], result  # in the queue two links away
    assert result["free"] == 400
    total = result["bound"] + result["free"]
    assert result["refused"] > total - 150, result
    assert result["sent"] + result["backlog"] + result["refused"] == total
    assert result["send_drops"] == 0  # no packet is counted twice


def test_a_run_that_asks_for_the_kernel_s_gets_it_or_is_unsupported(run_small, found_capabilities):
    results = run_small(datapath="kernel", rounds=3)
    if not found_capabilities["switch-kernel"].available:
        assert results.verdict()["verdict"] == "unsupported"
        assert results.verdict()["reason"].startswith("datapath kernel: the kernel has no openvsw")
        return
    results.assert_trained()
    manifest = json.loads((results.run() / "manifest.json").read_text())
    assert manifest["datapath"] == "kernel"
    assert manifest["switch_sockets"]["send_bytes"] is None
    proof = json.loads((results.run() / "conservation.json").read_text())
    assert proof["lost_upcalls"] == 0
    assert {link["unexplained"] for link in proof["links"] + proof["switches"]} == {0}


@pytest.mark.long
def test_losses_and_bursts_are_accounted_for_in_the_kernel_s(run_small, found_capabilities):
    if not found_capabilities["switch-kernel"].available:
        pytest.skip(f"needs capability switch-kernel: {found_capabilities['switch-kernel'].reason}")
    common = {"rounds": [1, 3], "at_most_s": 1.0}
    results = run_small(
        datapath="kernel",
        impairments=[
            {"kind": "loss", "host": "server", "leg": "gather", "q": 0.3, **common},
            {"kind": "loss", "link": ["worker-1", "s1"], "leg": "gather", "q": 0.3, **common},
            {"kind": "burst", "host": "server", "rounds": [2], "rate_factor": 3.0},
        ],
    )
    results.assert_trained()
    ended = [event for event in results.events("impairments") if event["action"] == "end"]
    assert {end["kind"] for end in ended} == {"loss", "burst"}
    assert all(end["met"] for end in ended), ended
