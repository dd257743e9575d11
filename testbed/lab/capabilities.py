"""What this kernel and user can do, found by trying each thing inside a throw-away sandbox.

Run as a module it is the inside: it tries everything and prints JSON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.lab import sandbox, shaping
from testbed.lab.commands import CommandError, run
from testbed.lab.openvswitch import OpenVSwitch
from testbed.lab.packet_filter import PacketFilter
from testbed.lab.shaping import LinkShape

TCP_CONGESTION_CONTROLS = ("cubic", "reno", "bbr", "dctcp", "vegas", "htcp", "westwood")
# Without these no run is possible.
REQUIRED = ("sandbox", "tun-device", "shaping", "packet-filter", "switch")
_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Capability:
    """One thing that the machine can or cannot do, and what for."""

    available: bool
    reason: str
    enables: str

    def as_json(self) -> dict[str, object]:
        """The record in `check --json`."""
        return asdict(self)


def probe() -> dict[str, Capability]:
    """Try everything; the machine is as before afterwards."""
    enables = "every run: a private network"
    process = sandbox.start(__spec__.name, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        # The sandbox ends when its standard input closes, so it stays open until all is read.
        assert process.stdout is not None
        assert process.stderr is not None
        output = process.stdout.read()
        error = process.stderr.read()
    finally:
        sandbox.stop(process)
    try:
        found = json.loads(output)
    except ValueError:
        last_words = error.decode(errors="replace").strip().splitlines()[-1:]
        reason = f"cannot make namespaces: {''.join(last_words)}"
        return {"sandbox": Capability(available=False, reason=reason, enables=enables)}
    kind = "as root" if sandbox.is_root() else "in a user namespace"
    first = Capability(available=True, reason=kind, enables=enables)
    return {"sandbox": first} | {name: Capability(**fields) for name, fields in found.items()}


def missing(found: dict[str, Capability]) -> list[str]:
    """One line for each required capability that is not available."""
    absent = [name for name in REQUIRED if name in found and not found[name].available]
    return [f"{name}: {found[name].reason}" for name in absent]


# The inside


def _attempt(trial: Callable[[], str | None], enables: str) -> Capability:
    try:
        note = trial()
    except (OSError, CommandError, ImportError) as error:
        reason = " ".join(str(error).split())
        return Capability(available=False, reason=reason, enables=enables)
    return Capability(available=True, reason=note or "", enables=enables)


def _inside() -> dict[str, Capability]:
    private = sandbox.prepare()
    run(["ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"])
    for name in ("probe0", "probe1"):
        run(["ip", "link", "set", name, "up"])
    switch = OpenVSwitch(private, private)
    return {
        "tun-device": _attempt(_tun_device, "every run: Open vSwitch"),
        "shaping": _attempt(_shaping, "every run: rates and queues (HTB, bfifo)"),
        "packet-filter": _attempt(_packet_filter, "every run: impairments (nftables)"),
        "switch": _attempt(lambda: _switch(switch), "every run: userspace datapath"),
        "switch-kernel": _attempt(_kernel_datapath, "faster links: kernel datapath"),
        "deep-switch-buffers": _attempt(_deep_buffers, "queues beyond net.core.wmem_max"),
        "netem": _attempt(lambda: _qdisc("netem delay 1ms"), "delay and jitter in the kernel"),
        "ecn-marking": _attempt(
            lambda: _qdisc("red limit 100000 min 10000 max 30000 avpkt 1000 burst 20 ecn"),
            "ECN marks, DCTCP",
        ),
        "udp-segmentation": _attempt(_udp_segmentation, "UDP batches of up to 64 datagrams"),
        **{
            f"tcp-{name}": _attempt(
                lambda name=name: _congestion_control(name),  # type: ignore[misc]
                f"kernel TCP with {name}",
            )
            for name in TCP_CONGESTION_CONTROLS
        },
    }


def _tun_device() -> None:
    os.close(os.open("/dev/net/tun", os.O_RDWR))


def _shaping() -> None:
    shaping.shape("probe0", LinkShape(rate_bps=10_000_000, queue_bytes=15_000))
    run(["tc", "qdisc", "del", "dev", "probe0", "root"])


def _packet_filter() -> None:
    PacketFilter(os.getpid(), "probe1").drop_data(0.5)


def _switch(switch: OpenVSwitch) -> str:
    switch.start()
    run(["ovs-vsctl", "add-br", "probe", "--", "set", "bridge", "probe", "datapath_type=netdev"])
    run(["ovs-vsctl", "add-port", "probe", "probe0"])
    return run(["ovs-vswitchd", "--version"]).split("\n")[0]


def _kernel_datapath() -> None:
    run(["ovs-vsctl", "add-br", "kernel", "--", "set", "bridge", "kernel", "datapath_type=system"])
    if "system@" not in run(["ovs-appctl", "dpctl/dump-dps"]):
        raise CommandError("the kernel has no openvswitch module")


def _deep_buffers() -> None:
    with socket.socket(socket.AF_UNIX) as probe_socket:
        try:
            probe_socket.setsockopt(socket.SOL_SOCKET, 32, 1 << 20)  # SO_SNDBUFFORCE
        except PermissionError:
            limit = Path("/proc/sys/net/core/wmem_max").read_text().strip()
            raise OSError(f"needs real root; net.core.wmem_max is {limit}") from None


def _qdisc(description: str) -> None:
    kind, *options = description.split()
    try:
        run(["tc", "qdisc", "add", "dev", "probe1", "root", kind, *options])
    except CommandError as error:
        unknown = "qdisc kind is unknown" in str(error)
        raise CommandError(f"the kernel has no {kind}" if unknown else str(error)) from None
    run(["tc", "qdisc", "del", "dev", "probe1", "root"])


def _udp_segmentation() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        probe_socket.setsockopt(socket.IPPROTO_UDP, 103, 1400)


def _congestion_control(name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe_socket:
        try:
            probe_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            path = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
            raise OSError(f"not in this kernel, which has {path.read_text().strip()}") from error


if __name__ == "__main__":
    sandbox.end_with_lifeline()
    print(json.dumps({name: each.as_json() for name, each in _inside().items()}), flush=True)
    os._exit(0)
