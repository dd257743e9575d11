"""How long a lab takes to its first packet: `python -m tests.benchmarks.lab_start [HOSTS] [TIMES]`.

Builds a lab of so many hosts (4: a star; more: a fat tree, of k = 8 above 16) and sends a packet
between two of them. Prints when each stage ended, counted from the start of the sandbox, the memory
of all processes in it and of the kernel, and what a host costs beside Mininet's own.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from testbed.lab import sandbox
from testbed.lab.kernel import shaping
from testbed.lab.network import LabInfo, Network
from testbed.lab.openvswitch import OpenVSwitch

_KERNEL = ("SUnreclaim", "Percpu", "KernelStack", "PageTables")
_NODES = 10


def main() -> None:
    if os.getpid() == 1:
        _inside(json.loads(sys.argv[1]), float(sys.argv[2]))
        return
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
        config = _config(hosts)
        began_s = time.monotonic()
        process = sandbox.start(
            "tests.benchmarks.lab_start", json.dumps(config), str(began_s), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        sandbox.stop(process)
        print(f"{hosts} hosts, load {os.getloadavg()[0]:.1f}")
        for stage, at_s in found["stages"]:
            print(f"{at_s:8.3f} s  {stage}")
        for name, size_mib in found["memory_mib"].items():
            print(f"{size_mib:8.1f} MiB  {name}")
        ours_s, theirs_s = found["node_s"]
        print(
            f"a host: {ours_s * 1e3:.2f} ms, Mininet's own {theirs_s * 1e3:.2f} ms "
            f"(ratio {theirs_s / ours_s:.0f})\n"
        )


def _config(hosts: int) -> dict[str, Any]:
    from testbed import experiment

    topology: dict[str, Any] = {"name": "star", "workers": hosts - 1}
    if hosts > 4:
        k = 4 if hosts <= 16 else 8
        topology = {"name": "fat-tree", "k": k, "workers": hosts - 1, "rate_bps": 10_000_000}
    document = {
        "name": "start",
        "rounds": 1,
        "seeds": [1],
        "topology": topology,
        "training": {"batch_size": 1},
        "arms": {"dblp": {"protocol": "dblp"}},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "start.yaml")
        path.write_text(yaml.safe_dump(document))
        return experiment.load(str(path))[0].config()


# The inside


def _inside(config: dict[str, Any], began_s: float) -> None:
    stages: list[tuple[str, float]] = []

    def note(stage: str) -> None:
        stages.append((stage, time.monotonic() - began_s))

    note("Python is up")
    before_mib = _kernel_mib()
    from testbed.run import inside

    place = inside.prepare(config)
    note("the sandbox is ready, the controller started")
    from controllers.controller_socket import ControllerClient
    from testbed.run.assembly import Lab
    from testbed.run.processes import Processes

    note("imports")
    for owner, name, words in (
        (OpenVSwitch, "start", "Open vSwitch runs"),
        (Network, "__init__", "hosts, interfaces and addresses"),
        (Processes, "wait_for", "the controller listens"),
        (shaping, "shape_all", "links are shaped"),
        (Network, "start", "switches and their ports are there"),
        (ControllerClient, "wait_ready", "the switches have their rules"),
    ):
        setattr(owner, name, _noted(getattr(owner, name), functools.partial(note, words)))
    lab = Lab(config, place)
    _first_packet(lab.network.info)
    note("the first packet has arrived")
    memory = _pss_mib() | {"the kernel's (whole machine, grown by)": _kernel_mib() - before_mib}
    print(json.dumps({"stages": stages, "memory_mib": memory, "node_s": _node_s()}), flush=True)
    os.read(0, 1)
    os._exit(0)


def _noted(function: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        note()
        return result

    return noted


def _first_packet(info: LabInfo) -> None:
    from testbed.verdict import calibration

    calibration.idle_round_trip_s(info)


def _pss_mib() -> dict[str, float]:
    """Memory of the sandbox's processes by program, what they share divided among them."""
    found: dict[str, float] = {}
    for entry in Path("/proc").glob("[1-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            (line,) = (
                each
                for each in (entry / "smaps_rollup").read_text().splitlines()
                if each.startswith("Pss:")
            )
        except (OSError, ValueError):
            continue
        name = words[2] if b"-m" in words[1:2] else Path(os.fsdecode(words[0])).name.encode()
        found[name.decode()] = found.get(name.decode(), 0.0) + int(line.split()[1]) / 1024
    return found | {"all processes": sum(found.values())}


def _kernel_mib() -> float:
    lines = (each.split(":") for each in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(value.split()[0]) for name, value in lines if name in _KERNEL) / 1024


def _node_s() -> tuple[float, float]:
    """What a host costs: the lab's, and Mininet's own."""
    from mininet.node import Host

    from testbed.lab.mininet_parts import LabHost

    took_s = []
    for kind in (LabHost, Host):
        began_s = time.monotonic()
        for number in range(_NODES):
            kind(f"{kind.__name__}-{number}")
        took_s.append((time.monotonic() - began_s) / _NODES)
    return took_s[0], took_s[1]


if __name__ == "__main__":
    main()
