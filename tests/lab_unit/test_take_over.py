"""A middle that a relay takes over, and what happens when that fails on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.own_network import printed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# In a network namespace of its own: one link, whose relay takes over a direction late.
SCENE = """
import json, os, socket, sys, tempfile, time
from dataclasses import replace
from pathlib import Path
from testbed.lab.delay import Middle, Relay, RelayClient, netem
from testbed.lab.delay.relayed_direction import opened_ring
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.link_control import LinkControl
from testbed.shared import messages
from tests import own_network

own_network.join(("mid-a", "out-a"), ("mid-b", "out-b"))
link = {
    "name": "a--b",
    "first": {"node": "a", "interface": "out-a", "pid": None},
    "second": {"node": "b", "interface": "out-b", "pid": None},
    "rate_bps": 10_000_000, "queue_bytes": 150_000, "ecn_threshold_bytes": None,
    "delay_s": 0.0, "jitter_s": 0.0, "loss": 0.0, "most_delay_s": None,
    "middle": ("mid-a", "mid-b"),
}
middle = Middle.of_link(link)
netem.join([middle])
path = Path(sys.argv[1])
relay = Relay([middle], path, seed=1).start()
relay.wait_until_ready()
links = LinkControl({"delayed_by": "relay", "relay_socket": str(path), "links": [link]})
sender, receiver = own_network.wire("out-a"), own_network.wire("out-b")
receiver.bind(("out-b", 3))
receiver.settimeout(2)

def one_way_s():
    began_s = time.monotonic()
    sender.send(bytes([2]) * 6 + bytes([4]) * 6 + bytes([0x88, 0xB5]) + bytes(60))
    receiver.recv(2000)
    return time.monotonic() - began_s

def change(delay_s):
    try:
        links.change("a", "b", {"delay_s": delay_s})
    except CommandError as error:
        return str(error)

seen = {"at first": one_way_s()}
try:
    RelayClient(path).change("a--b", "b", source="no-such", delay_s=0.01)
except CommandError as error:
    seen["no source"] = str(error)
wrong = messages.connect(path)
wrong.ask({"do": "begin"})
before = len(os.listdir(f"/proc/{relay.process.pid}/fd"))
order = {"do": "change", "link": "a--b", "from": "b", "source": "mid-b", "delay_s": 0.01}
slots = replace(middle, most_delay_s=0.01).slots
with tempfile.TemporaryFile() as file, opened_ring(slots, "a--b") as ring, socket.socket() as other:
    file.truncate(slots * 2048)
    for handed in ([file], [other], [ring, file, other]):
        if ring in handed:
            wrong.ask({"do": "begin"}, [file.fileno()] * 8)
            seen["left open"] = len(os.listdir(f"/proc/{relay.process.pid}/fd")) - before
        answer, _ = wrong.ask(order, [each.fileno() for each in handed])
        seen.setdefault("handed", []).append(answer.get("error"))
wrong.close()
slow, links._shapes["a", "b"] = links._shapes["a", "b"], LinkShape(
    rate_bps=10_000_000_000, queue_bytes=150_000, ecn_threshold_bytes=None
)
seen["fast"] = change(0.05)
links._shapes["a", "b"] = slow
seen["then"] = change(0.05)
seen["delayed"] = one_way_s()
seen["frames"] = RelayClient(path).report()["directions"][-1]["frames_in"]
relay.close()
print(json.dumps(seen))
"""


def test_a_take_over_that_fails_leaves_nothing_behind_and_can_be_tried_again(tmp_path: Path):
    seen = printed(SCENE, str(tmp_path / "delay.sock"))
    assert seen["no source"].startswith("delay relay: [Errno 19]")
    *refusals, granted = seen["handed"]  # a file, a socket of another kind, a ring among others
    assert refusals[0] == "the file for frames is not a socket"
    assert all(refusals) and granted is None
    assert seen["left open"] == 0
    assert "a delay of 0.05 s at 10000 Mbit/s does not fit" in seen["fast"]
    assert seen["then"] is None
    assert seen["delayed"] >= 0.05
    assert seen["frames"] == 1
