"""The first process of a test's sandbox: plain bridges, their hosts, and the controller by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from testbed.lab import sandbox
from testbed.lab.kernel import namespaces, shaping
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.openflow_statistics import Statistics
from testbed.lab.openvswitch import OpenVSwitch
from testbed.shared.messages import Messages

PORT = 6653


def in_sandbox(request: dict[str, Any], messages: Messages) -> None:
    """Build, report, and start again what ends."""
    lab_file, logs = request["lab_file"], Path(request["logs"])
    description = yaml.safe_load(Path(lab_file).read_text())
    switch = OpenVSwitch(sandbox.prepare(), logs)
    switch.start()
    for name, number in description["switches"].items():
        run(["ovs-vsctl", "add-br", name, "--", "set", "bridge", name, "datapath_type=netdev"])
        run(["ovs-vsctl", "set", "bridge", name, "protocols=OpenFlow13", "fail_mode=secure"])
        run(["ovs-vsctl", "set", "bridge", name, f"other-config:datapath-id={number:016x}"])
    addresses = {name: f"10.0.0.{each}" for each, name in enumerate(description["hosts"], start=1)}
    hosts = {name: _host(name, addresses, description["hosts"]) for name in addresses}
    for number, link in enumerate(description.get("links", [])):
        ends = [f"link{number}{end}" for end in "ab"]
        run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]])
        for interface, at in zip(ends, (link["first"], link["second"]), strict=True):
            _port(interface, at["switch"], at["port"])

    def controller() -> subprocess.Popen[bytes]:
        options = ["--lab-file", lab_file, f"--ofp-tcp-listen-port={PORT}"]
        with (logs / "controller.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "controllers", *options], stdout=log, stderr=log
            )

    daemon, running = switch.processes["ovs-vswitchd"], controller()
    for name in description["switches"]:
        run(["ovs-vsctl", "set-controller", name, f"tcp:127.0.0.1:{PORT}"])
        run(["ovs-vsctl", "set", "controller", name, "max_backoff=1000"])
    for name in description["switches"]:
        while not _has_rules(name, len(hosts)):
            time.sleep(0.02)
    switch.deepen_buffers()  # or a busy machine loses packets in front of the switch
    messages.answer(request, {"hosts": hosts, "switches": {"s1": 1}, "links": []})
    while True:
        ended, _ = os.wait()
        if ended == running.pid:
            running = controller()
        elif ended == daemon.pid:
            daemon = subprocess.Popen(daemon.args, stdout=subprocess.DEVNULL)


def _has_rules(bridge: str, hosts: int) -> bool:
    """Whether there are rules beyond the two that lead to the forwarding table."""
    with Statistics(bridge) as statistics:
        return len(statistics.flows()) >= 2 + hosts


def _port(interface: str, bridge: str, number: int) -> None:
    run(["ip", "link", "set", interface, "up"])
    with Rtnetlink() as kernel:
        kernel.disable_offloads(interface)
    wanted = ["set", "interface", interface, f"ofport_request={number}"]
    run(["ovs-vsctl", "add-port", bridge, interface, "--", *wanted])


def _host(name: str, addresses: dict[str, str], described: dict[str, Any]) -> dict[str, Any]:
    """A namespace with one interface, at the host's port of its bridge."""
    pid = namespaces.hold(name)
    host, port = described[name], f"port-{name}"
    run(["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid)])
    for words in (
        f"link set eth0 address {host['mac']}",
        f"address add {addresses[name]}/24 dev eth0",
        "link set eth0 up",
        *(
            f"neighbour add {addresses[other]} lladdr {described[other]['mac']} dev eth0"
            for other in addresses
            if other != name
        ),
    ):
        run([*shaping.inside(pid), "ip", *words.split()])
    _port(port, host["switch"], host["port"])
    with Rtnetlink(pid) as kernel:
        kernel.disable_offloads("eth0")
    return {"pid": pid, "address": addresses[name], "mac": host["mac"]}
