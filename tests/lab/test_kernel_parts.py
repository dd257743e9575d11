"""Netem's two counts and paced frames, in network namespaces of their own."""

import pytest

from testbed.lab.kernel.socket_defaults import LEAST_TIMEOUT
from tests.own_network import printed

pytestmark = pytest.mark.lab

SCENE = """
import json, sys
from testbed.lab.delay import DelaySettings, Middle, netem
from testbed.lab.kernel.commands import run
from tests import own_network

own_network.join(("near", "mida"), ("midb", "far"))
wire = own_network.wire("near")

def send(count):
    frame = bytes.fromhex("ff" * 6 + "020000000001" + "88b5") + bytes(1000)
    for _ in range(count):
        wire.send(frame)
"""


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
    device, action, queue = printed(SCENE + script)
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
before = netem.report([middle])["directions"]
send(2 * middle.slots)
print(json.dumps(["", middle.slots, before, netem.report([middle])["directions"]]))
"""
    reason, slots, *result = printed(SCENE + script)
    if reason:
        pytest.skip(f"this kernel delays no frames by itself: {reason}")
    first, later = (entry[0] for entry in result)
    assert first["frames_in"] == slots
    assert first["dropped"] == 0
    assert abs(first["lost"] - slots / 4) < 6 * (slots * 3 / 16) ** 0.5
    # Five seconds hold none back that soon: what was not lost fills the room, the rest is refused.
    assert later["frames_in"] == 3 * slots
    assert later["dropped"] == 3 * slots - later["lost"] - slots
    assert abs(later["lost"] - 3 * slots / 4) < 6 * (3 * slots * 3 / 16) ** 0.5


# In a network namespace of its own: a veth pair stands for the link.
INSIDE = """
import json, time
from pathlib import Path
from testbed.lab.paced_frames import PacedFrames
from tests import own_network

def counted(interface, what):
    return int(Path(f"/sys/class/net/{interface}/statistics/{what}_packets").read_text())

own_network.join(("near", "far"))
paced = PacedFrames("near", bytes(100), rate_bps=3e6, link_rate_bps=1e6)
time.sleep(1.5)  # IPv6 would have spoken by now
unasked = counted("paced0a", "tx") + counted("paced0b", "tx") + counted("far", "rx")
waiting = paced.send(203)
time.sleep(0.5)
print(json.dumps([paced.copies, unasked, waiting, counted("far", "rx")]))
"""


def test_what_was_sent_arrives_and_nothing_comes_of_its_own_accord():
    # sysfs shows the interfaces of the namespace that it was mounted in.
    mounted = 'mount -t sysfs sysfs /sys && exec "$@"'
    before = ["unshare", "-r", "-n", "-m", "sh", "-c", mounted, "-"]
    copies, unasked, waiting, arrived = printed(INSIDE, before=before)
    assert (copies, unasked) == (4, 0)
    assert waiting == arrived == 200  # in whole clumps


@pytest.mark.skipif(not LEAST_TIMEOUT.exists(), reason="Linux before 6.11: no tcp_rto_min_us")
def test_the_least_timeout_of_a_namespace_is_that_of_its_connections():
    script = """
import socket, struct, time
from testbed.lab.kernel import socket_defaults
from testbed.lab.kernel.commands import run
from tests import own_network

own_network.join(("near", "far"))
run("ip link set lo up".split())

def timeout_ms():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as near:
            far, _ = listener.accept()
            with far:
                for _ in range(20):
                    near.sendall(b"x")
                    far.recv(1)
                    far.sendall(b"x")
                    near.recv(1)
                info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return struct.unpack_from("=I", info, 8)[0] / 1e3  # tcpi_rto

before = timeout_ms()
socket_defaults.set_least_timeout(os.getpid(), 0.005)
print(json.dumps([before, timeout_ms()]))
"""
    before_ms, after_ms = printed("import json, os\n" + script)
    assert 200 <= before_ms < 300
    assert 5 <= after_ms < 25  # in ticks of up to 10 ms
