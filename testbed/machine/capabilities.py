"""`./lab check`: tries what this kernel and user can do, inside a throw-away sandbox."""

from __future__ import annotations

import csv
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from testbed.lab import datapath, loss_table, sandbox
from testbed.lab.delay import netem
from testbed.lab.kernel import privileges, shaping
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.packet_filter import PacketFilter
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.loss_table import LossModel
from testbed.lab.openvswitch import OpenVSwitch, vsctl
from testbed.lab.paced_frames import PacedFrames
from testbed.lab.sandbox import SandboxError
from testbed.shared.messages import Messages
from testbed.shared.yaml_input import InputError
from testbed.transport.native.fast_path import WHY_NONE
from testbed.transport.wire import DATA_PORTS

TCP_CONGESTION_CONTROLS = ("cubic", "reno", "bbr", "dctcp", "vegas", "htcp", "westwood")
# Without these no run is possible.
REQUIRED = ("sandbox", "tun-device", "hosts", "shaping", "packet-filter", "switch")
# What `./lab run quick` needs beyond: its controller, and kernel TCP's algorithm for its third arm.
QUICK = (*REQUIRED, "ryu", "tcp-cubic")
with Path(__file__).with_suffix(".csv").open(encoding="utf-8") as _file:
    # What each capability enables, and how to get it.
    _ABOUT: dict[str, dict[str, Any]] = {row.pop("name"): row for row in csv.DictReader(_file)}


@dataclass(frozen=True, kw_only=True)
class Capability:
    """One thing that the machine can or cannot do, what for, and how to get it."""

    available: bool
    reason: str
    enables: str
    how: str


def probe(names: Sequence[str] = ()) -> dict[str, Capability]:
    """Try some capabilities, or all; the machine is as before afterwards."""
    probed: dict[str, Any] = {}
    refused = ""
    try:
        probed = sandbox.result_of(__name__, {"names": list(names)})
    except FileNotFoundError as absent:
        refused = f"{absent.filename}: not installed"
    except (SandboxError, InputError) as error:
        makes_none = str(error).startswith(("unshare:", "setpriv:"))
        refused = f"{'cannot make namespaces' if makes_none else 'the probe failed'}: {error}"
    reason = refused or ("as root" if privileges.may_be_root() else "in a user namespace")
    probed = {"sandbox": {"available": not refused, "reason": reason}, **probed}
    return {name: Capability(**result, **_ABOUT[name]) for name, result in probed.items()}


def missing(probed: Mapping[str, Capability], names: Sequence[str] = REQUIRED) -> list[str]:
    """Return one line for each of the capabilities that is not available."""
    absent = [name for name in names if name in probed and not probed[name].available]
    return [f"{name}: {probed[name].reason} ({probed[name].how})" for name in absent]


def require() -> None:
    """Try everything that each run needs."""
    absent = missing(probe(REQUIRED[1:]))  # the first is the sandbox, in which the others are tried
    if absent:
        raise InputError(f"this machine or user cannot run a lab: {'; '.join(absent)}")


def show(probed: Mapping[str, Capability], console: Console) -> None:
    """Print a table that fits 80 columns, and whether the quick experiment could run."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("capability", "here"):
        table.add_column(heading, no_wrap=True)
    for heading, ratio in (("what it enables", 2), ("version, or how to get it", 3)):
        table.add_column(heading, ratio=ratio)
    for name, it in probed.items():
        colour = "red" if name in QUICK else "yellow"
        how = f"{it.reason}: {it.how}" if it.reason else it.how
        here, detail = ("[green]yes[/]", f"[dim]{it.reason}[/]")
        if not it.available:
            here, detail = f"[{colour}]no[/]", how
        table.add_row(name, here, it.enables, detail)
    console.print(table)
    if not (absent := missing(probed, QUICK)):
        console.print("\n./lab run quick can work here.", style="bold green")
        return
    console.print("\n./lab run quick cannot work here:", style="bold red")
    for line in absent:
        console.print(f"  {line}", markup=False)


# The inside


def _attempt(trial: Callable[[], str | None]) -> dict[str, Any]:
    try:
        return {"available": True, "reason": trial() or ""}
    except (OSError, CommandError, ImportError) as error:
        return {"available": False, "reason": " ".join(str(error).split())}


def in_sandbox(request: Mapping[str, Any], _: Messages) -> dict[str, Any]:
    """Try the capabilities that the request names, or all."""
    private = sandbox.prepare()
    run(["ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"])
    for name in ("probe0", "probe1"):
        run(["ip", "link", "set", name, "up"])
    switch = OpenVSwitch(private, private)
    trials: dict[str, Callable[[], str | None]] = {
        "tun-device": lambda: os.close(os.open("/dev/net/tun", os.O_RDWR)),
        "hosts": _host,
        "shaping": _shaping,
        "packet-filter": _packet_filter,
        "switch": lambda: _switch(switch),
        "ryu": _ryu,
        "iperf3": lambda: run(["iperf3", "--version"]).split(" (")[0],
        "switch-kernel": lambda: _unless(
            datapath.missing() if probed["switch"]["available"] else "Open vSwitch does not run"
        ),
        "deep-switch-buffers": _deep_buffers,
        "netem": lambda: _unless(netem.missing("probe0", "probe1")),
        "even-bursts": _even_bursts,
        "ecn-marking": partial(_shaping, ecn_threshold_bytes=30_000),
        "compiled-hot-path": partial(_unless, WHY_NONE),
        **{f"tcp-{name}": partial(_congestion_control, name) for name in TCP_CONGESTION_CONTROLS},
    }
    probed: dict[str, Any] = {}
    for name in request["names"] or trials:
        probed[name] = _attempt(trials[name])
    return probed


def _host() -> str:
    """Make a host as a run does: network and mount namespaces, with its own `/sys`."""
    for program in ("mnexec", "ifconfig"):  # without them Mininet would end this process
        if shutil.which(program) is None:
            raise CommandError(f"{program}: not installed")
    import mininet.net

    from testbed.lab.mininet_parts import LabHost

    LabHost("a-host")
    return f"Mininet {mininet.net.VERSION}"


def _shaping(ecn_threshold_bytes: int | None = None) -> None:
    shape = LinkShape(
        rate_bps=10_000_000, queue_bytes=150_000, ecn_threshold_bytes=ecn_threshold_bytes
    )
    shaping.shape("probe0", shape)
    run(["tc", "qdisc", "del", "dev", "probe0", "root"])


def _packet_filter() -> None:
    table = loss_table.drawn(LossModel(loss_good=0.5), "probe")
    PacketFilter(os.getpid(), "probe1", table).lose(data_ports=DATA_PORTS)


def _switch(switch: OpenVSwitch) -> str:
    switch.start()
    vsctl(["add-br", "probe", "--", "set", "bridge", "probe", "datapath_type=netdev"])
    vsctl(["add-port", "probe", "probe0"])
    return run(["ovs-vswitchd", "--version"]).split("\n")[0]


def _ryu() -> str:
    """Import it the way the controller does, in a process of its own; return its version."""
    done = subprocess.run(
        [sys.executable, "-c", "import controllers.framework"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ImportError(done.stderr.strip().splitlines()[-1])
    return metadata.version("ryu")


def _unless(reason: str | None) -> None:
    if reason:
        raise CommandError(reason)


def _deep_buffers() -> None:
    with socket.socket(socket.AF_UNIX) as probe_socket:
        try:
            probe_socket.setsockopt(socket.SOL_SOCKET, 32, 1 << 20)  # SO_SNDBUFFORCE
        except PermissionError:
            limit = Path("/proc/sys/net/core/wmem_max").read_text().strip()
            raise OSError(f"needs real root; net.core.wmem_max is {limit}") from None


def _even_bursts() -> None:
    PacedFrames("probe0", bytes(60), rate_bps=3e6, link_rate_bps=1e6)


def _congestion_control(name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe_socket:
        try:
            probe_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            path = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
            raise OSError(f"not among {path.read_text().strip()}") from error
