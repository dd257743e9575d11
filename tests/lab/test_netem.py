"""Netem's overflow is told from its losses, in a network namespace of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.lab

SCENE = """
import json, socket, sys
from testbed.lab.delay import DelaySettings, Middle, netem
from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent

with Rtnetlink() as kernel:
    for pair in (("near", "mida"), ("midb", "far")):
        kernel.send([rtnetlink.veth(*pair)])
for each in ("near", "mida", "midb", "far"):
    bring_up_silent(each)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("near", 0))

def send(count):
    frame = bytes.fromhex("ff" * 6 + "020000000001" + "88b5") + bytes(1000)
    for _ in range(count):
        wire.send(frame)
"""


def inside(script: str) -> Any:
    """What a script prints as JSON that goes on from the scene."""
    argv = ["unshare", "-n", sys.executable, "-c", SCENE + script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_redirection_counts_the_frames_that_the_next_queue_refuses():
    """On every kernel, with a token bucket in place of netem: the count that netem's relies on."""
    script = """
run("tc qdisc add dev midb root handle 1: tbf rate 1mbit burst 3000 limit 20000".split())
for line in netem.redirection("mida", "midb"):
    run(["tc", *line.split()])
send(500)
(queue,) = json.loads(run("tc -s -j qdisc show dev midb".split()))
parts = json.loads(run("tc -s -j actions list action mirred".split()))
(action,) = [each for part in parts for each in part.get("actions", ())]
print(json.dumps([action["to_dev"], action["stats"], queue]))
"""
    device, action, queue = inside(script)
    assert device == "midb"
    assert action["packets"] == 500
    assert action["overlimits"] == queue["drops"] > 400
    assert queue["packets"] + queue["qlen"] == 500 - queue["drops"]


def test_netem_s_overflow_and_its_losses_are_two_numbers():
    script = """
reason = netem.missing("mida", "midb")
if reason:
    print(json.dumps([reason, None]))
    sys.exit()
settings = DelaySettings(delay_s=5.0, loss=0.25)
middle = Middle(
    link="a--b", nodes=("a", "b"), interfaces=("mida", "midb"), rate_bps=None, settings=settings)
netem.setup([middle])
send(middle.slots)
before = [vars(each) for each in netem.counters([middle])]
send(2 * middle.slots)
print(json.dumps(["", middle.slots, before, [vars(each) for each in netem.counters([middle])]]))
"""
    reason, slots, *found = inside(script)
    if reason:
        pytest.skip(f"this kernel delays no frames by itself: {reason}")
    first, later = (each[0] for each in found)
    assert first["frames_in"] == slots
    assert first["dropped"] == 0
    assert abs(first["lost"] - slots / 4) < 6 * (slots * 3 / 16) ** 0.5
    # Five seconds hold none back that soon: what was not lost fills the room, the rest is refused.
    assert later["frames_in"] == 3 * slots
    assert later["dropped"] == 3 * slots - later["lost"] - slots
    assert abs(later["lost"] - 3 * slots / 4) < 6 * (3 * slots * 3 / 16) ** 0.5
