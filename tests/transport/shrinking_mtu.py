"""Run as root of a network namespace of its own: the path's MTU shrinks between two rounds.

    shrinking_mtu.py KIND

`interface`: the worker's interface has a smaller one, so it refuses what it sends, and drops what
comes. `hole`: the network drops larger packets silently, both ways. `loss`: it drops nine of ten
datagrams of any size. Prints for each side how its transfers went, and what it warned of.
"""

import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np

from testbed.transport import EndpointConfig, PayloadLayout, PeerLost, open_endpoint, preset
from tests.transport.own_namespace import neighbour
from tests.transport.virtual import random_payload

# Many enough that the bitmap of a STOP fills more than one segment of TCP.
LAYOUT = PayloadLayout([("w", 364 * 12_500)])
ADDRESSES = {"server": "10.9.0.1", "worker-1": "10.9.0.2"}
ROUNDS = 4
SHRINKS_IN = 2
TABLE = """add table inet hole
add chain inet hole input { type filter hook input priority 0; }
"""
RULES = {
    "hole": TABLE + "add rule inet hole input meta length > 1300 drop\n",
    "loss": TABLE + "add rule inet hole input udp length > 8 numgen random mod 10 < 9 drop",
}


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def shrink(kind: str, pid: str) -> None:
    inside = ("nsenter", f"--net=/proc/{pid}/ns/net")
    if kind == "interface":
        run(*inside, "ip", "link", "set", "far", "mtu", "1300")
        return
    for begin in ((), inside):
        subprocess.run([*begin, "nft", "-f", "-"], input=RULES[kind], text=True, check=True)


def config(name: str) -> EndpointConfig:
    peer = "worker-1" if name == "server" else "server"
    return EndpointConfig(
        session=5,
        name=name,
        bind_address=ADDRESSES[name],
        peers={peer: ADDRESSES[peer]},
        is_server=name == "server",
        protocol=preset("fixed-low", tolerance=0),
        layout=LAYOUT,
        rate_bps=200e6,
        control_port=21800,
        data_port=21810,
        peer_timeout_s=8,
        insecure=True,
    )


def side(name: str, kind: str, pid: str) -> None:
    peer = "worker-1" if name == "server" else "server"
    sent, buffer = random_payload(LAYOUT), LAYOUT.new_buffer()
    with warnings.catch_warnings(record=True) as caught, open_endpoint(config(name)) as endpoint:
        warnings.simplefilter("always")
        try:
            for number in range(ROUNDS):
                if number == SHRINKS_IN and name == "server":
                    shrink(kind, pid)
                buffer[:] = 0
                began_s = time.monotonic()
                way: dict[str, Any] = {peer: sent}
                for leg in (0, 1):
                    if (leg == 0) == (name == "worker-1"):
                        endpoint.send(2 * number + leg, way)
                    else:
                        endpoint.receive(2 * number + leg, 0, {peer: buffer})
                whole = np.array_equal(buffer, sent)
                print(f"{name}: round {number} whole {whole} {time.monotonic() - began_s:.1f} s")
        except PeerLost as lost:
            print(f"{name}: lost: {lost}")
        print(f"{name}: {endpoint.counters()}")
    for each in caught:
        print(f"{name}: warned: {each.message}", flush=True)


def main(kind: str) -> None:
    with neighbour(*ADDRESSES.values()) as pid:
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        for begin, name in (([], "near"), (inside, "far")):
            # A real network has no packets that are cut later.
            run(*begin, *f"ip link set {name} gso_max_segs 1".split())
            run(*begin, "ip", "link", "set", "lo", "up")
        command = [*inside, sys.executable, "-m", "tests.transport.shrinking_mtu", kind, str(pid)]
        with subprocess.Popen(command) as worker:
            side("server", kind, str(pid))
        assert not worker.returncode


if __name__ == "__main__":
    if len(sys.argv) == 3:
        side("worker-1", sys.argv[1], sys.argv[2])
    else:
        main(sys.argv[1])
