"""Changes of links: what is refused, and a middle that a relay takes over."""

import os
from pathlib import Path
from typing import Any

import pytest

from testbed.lab.kernel.commands import CommandError
from testbed.lab.link_control import LinkControl
from tests.own_network import printed


def network(*, middle: list[str] | None = None) -> dict[str, Any]:
    port = {"interface": "nowhere", "number": 1, "pid": None}
    link = {
        "name": "a--s1",
        "first": {"node": "a", **port},
        "second": {"node": "s1", **port},
        "rate_bps": 10_000_000,
        "queue_bytes": 150_000,
        "ecn_threshold_bytes": None,
        "delay_s": 0.005 if middle else 0.0,
        "jitter_s": 0.0,
        "loss": 0.0,
        "middle": middle,
    }
    return {"links": [link], "delayed_by": "relay" if middle else None, "relay_socket": None}


def test_a_direction_is_known_from_both_ends_and_what_is_not_there_is_named():
    links = LinkControl(network())
    assert links.shape("a", "s1") == links.shape("s1", "a")
    assert links.shape("a", "s1").rate_bps == 10_000_000
    with pytest.raises(CommandError, match="no link from 'a' to 'b'"):
        links.change("a", "b", {"rate_bps": 1_000_000})
    with pytest.raises(CommandError, match="no link from 'b' to 'a'"):
        links.change("b", "a", {"queue_bytes": 3_028})
    with pytest.raises(CommandError, match="link a--s1 was made without delay"):
        links.change("a", "s1", {"delay_s": 0.01})
    with pytest.raises(CommandError, match="interface nowhere: No such device"):
        links.change("a", "s1", {"rate_bps": 1_000_000})


def test_a_delay_out_of_range_is_refused_and_nothing_remembered():
    links = LinkControl(network(middle=["x", "y"]))
    with pytest.raises(CommandError, match=r"link a--s1: delay_s -1; valid: 0 to 10"):
        links.change("a", "s1", {"delay_s": -1})
    with pytest.raises(CommandError, match="no relay"):
        links.change("a", "s1", {"delay_s": 0.01})
    assert links.now("a", "s1")["delay_s"] == 0.005


# In a network namespace of its own: one link, whose relay takes over a direction late.
SCENE = """
import json, os, socket, sys, tempfile, time
from dataclasses import replace
from pathlib import Path
from testbed.lab import link_control
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

def tc(words, *, late):
    if late and words[:3] == ["tc", "filter", "add"]:
        run(words)
    if words[:3] == ["tc", "filter", "add"]:
        raise CommandError("tc: no answer")
    return run(words)

run, seen = link_control.run, {"at first": one_way_s()}
for late in (False, True):
    link_control.run = lambda words, late=late: tc(words, late=late)
    seen[f"{late}: error"] = change(0.05)
    seen[f"{late}: still"] = one_way_s()
    seen[f"{late}: lines"] = len(RelayClient(path).report()["directions"])
link_control.run = run
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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_take_over_that_fails_leaves_nothing_behind_and_can_be_tried_again(tmp_path: Path):
    seen = printed(SCENE, str(tmp_path / "delay.sock"))
    for late in (False, True):  # whether the kernel did as it was told all the same
        assert seen[f"{late}: error"] == "tc: no answer"
        assert seen[f"{late}: still"] < 0.04
        assert seen[f"{late}: lines"] == 0
    assert seen["no source"].startswith("delay relay: [Errno 19]")
    *refusals, granted = seen["handed"]  # a file, a socket of another kind, a ring among others
    assert refusals[0] == "the file for frames is not a socket"
    assert all(refusals) and granted is None
    assert seen["left open"] == 0
    assert "a delay of 0.05 s at 10000 Mbit/s does not fit" in seen["fast"]
    assert seen["then"] is None
    assert seen["delayed"] >= 0.05
    assert seen["frames"] == 1
