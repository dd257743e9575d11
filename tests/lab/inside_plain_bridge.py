"""The first process of a test's sandbox: one plain bridge, two hosts, the controller by hand.

`python -m tests.lab.inside_plain_bridge LAB_FILE LOGS`: when the switch has its rules,
`network.json` stands in LOGS.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from testbed.lab import sandbox
from testbed.lab.kernel import shaping
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.openvswitch import OpenVSwitch

PORT = 6653


def main() -> None:
    """Build, report, and wait for the end of the sandbox."""
    sandbox.end_with_lifeline()
    lab_file, logs = sys.argv[1], Path(sys.argv[2])
    switch = OpenVSwitch(sandbox.prepare(), logs)
    switch.start()
    run(["ovs-vsctl", "add-br", "br0", "--", *["set", "bridge", "br0", "datapath_type=netdev"]])
    run(["ovs-vsctl", *["set", "bridge", "br0", "protocols=OpenFlow13", "fail_mode=secure"]])
    run(["ovs-vsctl", *["set", "bridge", "br0", "other-config:datapath-id=0000000000000001"]])
    hosts = {name: _host(name, number) for number, name in enumerate("ab", start=1)}
    with (logs / "controller.log").open("wb") as log:
        subprocess.Popen(
            [
                *(sys.executable, "-m", "controllers", "--lab-file", lab_file),
                f"--ofp-tcp-listen-port={PORT}",
            ],
            stdout=log,
            stderr=log,
        )
    run(["ovs-vsctl", "set-controller", "br0", f"tcp:127.0.0.1:{PORT}"])
    run(["ovs-vsctl", "set", "controller", "br0", "max_backoff=1000"])
    for host in hosts.values():  # rules for both hosts
        while host["mac"] not in run(["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", "br0"]):
            time.sleep(0.02)
    switch.deepen_buffers()  # or a busy machine loses packets in front of the switch
    unfinished = logs / "network.unfinished"
    unfinished.write_text(json.dumps({"hosts": hosts, "switches": {"s1": 1}, "links": []}))
    unfinished.rename(logs / "network.json")
    signal.pause()


def _host(name: str, number: int) -> dict[str, Any]:
    """A namespace with one interface, at the bridge's port of this number."""
    pid = subprocess.Popen(["unshare", "--net", "sleep", "infinity"]).pid
    own_space = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == own_space:
        time.sleep(0.005)
    mac, address = f"00:00:00:00:00:0{number}", f"10.0.0.{number}"
    port = f"port{number}"
    run(["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid)])
    run(["ip", "link", "set", port, "up"])
    other = 3 - number
    for words in (
        f"link set eth0 address {mac}",
        f"address add {address}/24 dev eth0",
        "link set eth0 up",
        f"neighbour add 10.0.0.{other} lladdr 00:00:00:00:00:0{other} dev eth0",
    ):
        run([*shaping.inside(pid), "ip", *words.split()])
    for interface, place in ((port, None), ("eth0", pid)):
        with Rtnetlink(place) as kernel:
            kernel.disable_offloads(interface)
    run(["ovs-vsctl", "add-port", "br0", port])
    run(["ovs-vsctl", "set", "interface", port, f"ofport_request={number}"])
    return {"pid": pid, "address": address, "mac": mac}


if __name__ == "__main__":
    main()
