#!/usr/bin/env python3
"""Measures whether this machine's kernel has what the lab uses of a stock Debian kernel.

Run it as root in the project's folder: `sudo .venv/bin/python vagrant/smoke.py`. It prints one line
per step, then PASS. It stops at the first failure, with exit status 1.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent))

import yaml  # noqa: E402

from testbed.lab import sandbox  # noqa: E402
from testbed.lab.kernel import shaping  # noqa: E402
from testbed.lab.kernel.commands import run  # noqa: E402
from testbed.lab.kernel.namespaces import socket_in  # noqa: E402
from testbed.lab.kernel.shaping import inside  # noqa: E402
from testbed.lab.network import Network  # noqa: E402
from testbed.lab.openvswitch import OpenVSwitch  # noqa: E402
from testbed.machine import capabilities  # noqa: E402
from testbed.shared import jsonl  # noqa: E402

_STOCK_CAPABILITIES = (
    *capabilities.QUICK,
    *("os-ken", "iperf3", "switch-kernel", "netem", "ecn-marking", "even-bursts"),
    *(f"tcp-{name}" for name in capabilities.TCP_CONGESTION_CONTROLS),
)
# Low, so that an emulated processor's lateness is short compared with the marking queue (48 ms).
_DCTCP_RATE_BPS = 5_000_000
_OPTION_ECN = 8  # TCPI_OPT_ECN, in tcpi_options
_DELIVERED_CE_AT = 196  # tcpi_delivered_ce in struct tcp_info of Linux 4.18 and newer

# Small enough for an emulated processor, whose lateness says nothing about the kernel's features.
_TRAINING: dict[str, Any] = {
    "name": "smoke",
    "rounds": 3,
    "seeds": [1],
    "topology": {
        "name": "star",
        "workers": 2,
        "rate_bps": 2e7,
        "queue_bytes": 6e4,
        "delay_s": 0.005,
    },
    "training": {"model": "small-cnn", "dataset": "digits", "batch_size": 8, "evaluate_every": 3},
    "transport": {"peer_timeout_s": 60},
    "arms": {"dblp": {"protocol": "dblp"}},
    "impairments": [
        {"kind": "burst", "host": "server", "rounds": [1], "rate_factor": 4.0, "duration_s": 0.1}
    ],
    "limits": {
        "rate_error": 0.5,
        "rtt_error_s": 0.2,
        "idle_loss": 0.5,
        "impairment_late_s": 30,
        "cpu_wait_s": 10,
        "cpu_others": 100,
        "clock_stall_s": 30,
        "standstill_s": 30,
        "run_timeout_s": 500,
    },
}


class SmokeError(Exception):
    """A check failed; the message is one line."""


def expect(condition: object, message: str) -> None:
    if not condition:
        raise SmokeError(message)


# The steps. Each returns its findings in a few words.


def checked() -> str:
    """Check that `./lab check` finds everything that a stock kernel has."""
    missing = capabilities.missing(capabilities.probe(), _STOCK_CAPABILITIES)
    expect(not missing, "; ".join(missing))
    return f"{len(_STOCK_CAPABILITIES)} capabilities"


def dctcp() -> str:
    """Check that DCTCP reacts to marks and keeps the link busy while the queue drops nothing."""
    os.chdir(_HERE.parent)  # from where `-m` finds this file
    printed, error = sandbox.output_of("vagrant.smoke", "--inside")
    expect(printed, " ".join(error.split())[-400:])
    found = json.loads(printed)
    expect(found["algorithm"] == "dctcp", f"the kernel chose {found['algorithm']}")
    expect(found["ecn"], "the two ends did not agree on ECN")
    expect(found["marked"] > 0, "the queue marked nothing")
    expect(found["delivered_ce"] > 0, "no mark came back to the sender")
    expect(found["drops"] == 0, f"{found['drops']} drops")
    share = found["goodput_bps"] / _DCTCP_RATE_BPS
    expect(share > 0.7, f"goodput {share:.0%} of the rate")
    return (
        f"{found['marked']} packets marked, {found['delivered_ce']} reported to the sender, "
        f"no drops, goodput {share:.0%} of the rate"
    )


def training() -> str:
    """Train three rounds over netem links, with a burst by the controller in one of them."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return "left out: set up without torch (LAB_TORCH=0)"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "smoke.yaml")
        path.write_text(yaml.safe_dump(_TRAINING))
        done = subprocess.run(
            [sys.executable, "-m", "testbed", "run", str(path), "--out", folder],
            cwd=_HERE.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        printed = " ".join((done.stdout + done.stderr).split())
        found = list(Path(folder).rglob("status.json"))
        expect(found, f"./lab run: exit status {done.returncode}: {printed[-400:]}")
        status, directory = json.loads(found[0].read_text()), found[0].parent
        expect(status["verdict"] == "ok", f"{status['verdict']}: {status['reason']}")
        rounds = jsonl.read(directory / "events" / "rounds.jsonl")
        bursts = jsonl.read(directory / "events" / "impairments.jsonl")
        manifest = json.loads((directory / "manifest.json").read_text())
    numbers = {each["round"] for each in rounds}
    expect(len(numbers) == 3, f"rounds {sorted(numbers)}")
    for key, wanted in (("delayed_by", "netem"), ("datapath", "kernel")):
        expect(manifest[key] == wanted, f"{key}: {manifest[key]}, not {wanted}")
    ended = [each for each in bursts if each["action"] == "end"]
    expect(len(ended) == 1 and ended[0]["frames_sent"] > 0, f"the burst: {bursts}")
    return (
        f"3 rounds over netem links and the kernel's datapath, a burst of "
        f"{ended[0]['frames_sent']} frames by the controller, {ended[0]['dropped']} of them "
        "dropped by the full queue"
    )


# Inside a sandbox.


def _dctcp() -> dict[str, Any]:
    """A flow from one host to another, over a switch that forwards like an ordinary one."""
    from mininet.topo import Topo

    topology = Topo()
    topology.addSwitch("s1")
    common = {"rate_bps": 100_000_000, "queue_bytes": 150_000}
    slow = {"rate_bps": _DCTCP_RATE_BPS, "delay_s": 0.002, "ecn_threshold_bytes": 30_000}
    for host, options in (("near", {}), ("far", slow)):
        topology.addLink(topology.addHost(host), "s1", **(common | options))
    private = sandbox.prepare()
    OpenVSwitch(private, private).start()
    network = Network(topology, private=private, logs=private)
    network.start()
    run(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", "s1", "actions=NORMAL"])
    near, far = network.info.hosts["near"], network.info.hosts["far"]
    run([*inside(near.pid), "ping", "-c", "3", "-i", "0.3", far.address])  # teaches the switch
    listener, source = (
        socket_in(host.pid, socket.AF_INET, socket.SOCK_STREAM) for host in (far, near)
    )
    for each in (listener, source):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"dctcp")
    listener.bind((far.address, 5000))
    listener.listen()
    source.connect(listener.getsockname())
    sink, _ = listener.accept()
    arrived: list[tuple[float, int]] = []

    def drain() -> None:
        while data := sink.recv(1 << 16):
            arrived.append((time.monotonic(), len(data)))

    thread = threading.Thread(target=drain)
    thread.start()
    began_s = time.monotonic()
    while time.monotonic() < began_s + 6:
        source.send(bytes(1 << 14))
    information = source.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    algorithm = source.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    source.close()
    thread.join()
    steady = [size for at_s, size in arrived if began_s + 1 <= at_s < began_s + 6]
    (queue,) = (
        each for each in shaping.queue_statistics(far.switch_interface) if each["kind"] == "red"
    )
    return {
        "algorithm": algorithm.rstrip(b"\0").decode(),
        "ecn": bool(information[5] & _OPTION_ECN),
        "delivered_ce": struct.unpack_from("=I", information, _DELIVERED_CE_AT)[0],
        "marked": queue["marked"],
        "drops": queue["drops"],
        "goodput_bps": sum(steady) * 8 / 5,
    }


def main() -> int:
    """Run the steps in order; exit status 0, 1 after a failure, 2 without root."""
    if not sandbox.is_root():
        print("smoke: needs root: sudo .venv/bin/python vagrant/smoke.py", file=sys.stderr)
        return 2
    for step in (checked, dctcp, training):
        began_s = time.monotonic()
        try:
            told = step()
        except (SmokeError, OSError) as error:
            print(f"FAIL {step.__name__}: {error}", flush=True)
            return 1
        print(f"ok   {step.__name__}: {told} ({time.monotonic() - began_s:.1f} s)", flush=True)
    print("PASS")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sandbox.end_with_lifeline()
        print(json.dumps(_dctcp()), flush=True)
        os._exit(0)
    sys.exit(main())
