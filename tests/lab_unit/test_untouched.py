"""A middle that a relay takes over, and what happens when that fails on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.own_network import printed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# In a network namespace of its own: one link, whose relay takes over a direction late.
SCENE = """
import json, socket, subprocess, sys, time
from pathlib import Path
from testbed.lab.delay import Middle, Relay, RelayClient, untouched
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.link_control import LinkControl

def ip(words):
    subprocess.run(["ip", *words.split()], check=True)

for end in "ab":
    ip(f"link add mid-{end} type veth peer name out-{end}")
    for each in (f"mid-{end}", f"out-{end}"):
        Path(f"/proc/sys/net/ipv6/conf/{each}/disable_ipv6").write_text("1")
        ip(f"link set {each} arp off up")
link = {
    "name": "a--b",
    "first": {"node": "a", "interface": "out-a", "pid": None},
    "second": {"node": "b", "interface": "out-b", "pid": None},
    "rate_bps": 10_000_000, "queue_bytes": 150_000, "ecn_threshold_bytes": None,
    "delay_s": 0.0, "jitter_s": 0.0, "loss": 0.0, "most_delay_s": None,
    "middle": ("mid-a", "mid-b"),
}
middle = Middle.of_link(link)
untouched.join([middle])
path = Path(sys.argv[1])
relay = Relay([middle], path, seed=1).start()
relay.wait_until_ready()
links = LinkControl({"delayed_by": "relay", "relay_socket": str(path), "links": [link]})
sender, receiver = (socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) for _ in range(2))
sender.bind(("out-a", 0))
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

def tc(words, *, late):
    if late and words[:3] == ["tc", "filter", "add"]:
        run(words)
    if words[:3] == ["tc", "filter", "add"]:
        raise CommandError("tc: no answer")
    return run(words)

run, seen = untouched.run, {"at first": one_way_s()}
for late in (False, True):
    untouched.run = lambda words, late=late: tc(words, late=late)
    seen[f"{late}: error"] = change(0.05)
    seen[f"{late}: still"] = one_way_s()
    seen[f"{late}: lines"] = len(RelayClient(path).report().directions)
untouched.run = run
try:
    RelayClient(path).change("a--b", "b", source="no-such", delay_s=0.01)
except CommandError as error:
    seen["no source"] = str(error)
slow, links._shapes["a", "b"] = links._shapes["a", "b"], LinkShape(
    rate_bps=10_000_000_000, queue_bytes=150_000, ecn_threshold_bytes=None
)
seen["fast"] = change(0.05)
links._shapes["a", "b"] = slow
seen["then"] = change(0.05)
seen["delayed"] = one_way_s()
seen["frames"] = RelayClient(path).report().directions[0].frames_in
relay.close()
print(json.dumps(seen))
"""


def test_a_take_over_that_fails_leaves_nothing_behind_and_can_be_tried_again(tmp_path: Path):
    seen = printed(SCENE, str(tmp_path / "delay.sock"))
    for late in (False, True):  # whether the kernel did as it was told all the same
        assert seen[f"{late}: error"] == "tc: no answer"
        assert seen[f"{late}: still"] < 0.04
        assert seen[f"{late}: lines"] == 0
    assert seen["no source"].startswith("delay relay: [Errno 19]")
    assert "a delay of 0.05 s at 10000 Mbit/s does not fit" in seen["fast"]
    assert seen["then"] is None
    assert seen["delayed"] >= 0.05
    assert seen["frames"] == 1
