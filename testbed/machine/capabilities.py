"""`./lab check`: tries what this kernel and user can do, inside a throw-away sandbox."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from controllers import framework_choice
from testbed.lab import datapath, loss_table, sandbox
from testbed.lab.delay import netem
from testbed.lab.kernel import shaping
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.packet_filter import PacketFilter
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.loss_table import LossModel
from testbed.lab.openvswitch import OpenVSwitch, vsctl
from testbed.lab.paced_frames import PacedFrames
from testbed.shared.yaml_input import InputError
from testbed.transport.core.wire import DATA_PORTS
from testbed.transport.native import WHY_NONE

TCP_CONGESTION_CONTROLS = ("cubic", "reno", "bbr", "dctcp", "vegas", "htcp", "westwood")
# Without these no run is possible.
REQUIRED = ("sandbox", "tun-device", "hosts", "shaping", "packet-filter", "switch")
# What `./lab run quick` needs beyond: its controller, and kernel TCP's algorithm for its third arm.
QUICK = (*REQUIRED, framework_choice.preferred(), "tcp-cubic")
_STOCK = "else a stock Debian kernel, also in a virtual machine"


@dataclass(frozen=True, kw_only=True)
class Capability:
    """One thing that the machine can or cannot do, what for, and how to get it."""

    available: bool
    reason: str
    enables: str
    how: str

    def as_json(self) -> dict[str, object]:
        """The record in `check --json`."""
        return asdict(self)


def probe(wanted: Sequence[str] = ()) -> dict[str, Capability]:
    """Try the wanted capabilities, or all; the machine is as before afterwards."""
    try:
        output, error = sandbox.output_of(__spec__.name, *wanted)
    except FileNotFoundError as absent:
        return {"sandbox": _sandbox(available=False, reason=f"{absent.filename}: not installed")}
    try:
        found = json.loads(output)
    except ValueError:
        words = "".join(error.splitlines()[-1:])
        refused = words.startswith(("unshare:", "setpriv:"))
        reason = f"cannot make namespaces: {words}" if refused else f"the probe failed: {words}"
        return {"sandbox": _sandbox(available=False, reason=reason)}
    kind = "as root" if sandbox.is_root() else "in a user namespace"
    return {"sandbox": _sandbox(available=True, reason=kind)} | {
        name: Capability(**fields) for name, fields in found.items()
    }


def missing(found: Mapping[str, Capability], wanted: Sequence[str] = REQUIRED) -> list[str]:
    """One line for each of the wanted capabilities that is not available."""
    absent = [name for name in wanted if name in found and not found[name].available]
    return [f"{name}: {found[name].reason} ({found[name].how})" for name in absent]


def require() -> None:
    """Try everything that each run needs."""
    absent = missing(probe(REQUIRED[1:]))  # the first is the sandbox, in which the others are tried
    if absent:
        raise InputError(f"this machine or user cannot run a lab: {'; '.join(absent)}")


def _table(found: Mapping[str, Capability]) -> Table:
    """A table that fits 80 columns; the last has the version, or how to get what is missing."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    shown.add_column("capability", no_wrap=True)
    shown.add_column("here", no_wrap=True)
    shown.add_column("what it enables", ratio=2)
    shown.add_column("version, or how to get it", ratio=3)
    for name, each in found.items():
        if each.available:
            shown.add_row(name, "[green]yes[/]", each.enables, f"[dim]{each.reason}[/]")
        else:
            colour = "red" if name in QUICK else "yellow"
            how = f"{each.reason}: {each.how}" if each.reason else each.how
            shown.add_row(name, f"[{colour}]no[/]", each.enables, how)
    return shown


def show(found: Mapping[str, Capability], console: Console) -> None:
    """Print the table and whether the quick experiment could run."""
    console.print(_table(found))
    absent = missing(found, QUICK)
    if absent:
        console.print("\n./lab run quick cannot work here:", style="bold red")
        for line in absent:
            console.print(f"  {line}", markup=False)
    else:
        console.print("\n./lab run quick can work here.", style="bold green")


def _sandbox(*, available: bool, reason: str) -> Capability:
    return Capability(
        available=available,
        reason=reason,
        enables="every run: a private network",
        how="apt-get install util-linux; sudo, or sysctl kernel.unprivileged_userns_clone=1 "
        "(Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0)",
    )


# The inside


# What tries a capability, what it enables, and how to get it.
_Trial = tuple[Callable[[], str | None], str, str]


def _attempt(trial: Callable[[], str | None], enables: str, how: str) -> Capability:
    try:
        available, reason = True, trial() or ""
    except (OSError, CommandError, ImportError) as error:
        available, reason = False, " ".join(str(error).split())
    return Capability(available=available, reason=reason, enables=enables, how=how)


def _inside(wanted: Sequence[str]) -> dict[str, Capability]:
    private = sandbox.prepare()
    run(["ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"])
    for name in ("probe0", "probe1"):
        run(["ip", "link", "set", name, "up"])
    switch = OpenVSwitch(private, private)
    found: dict[str, Capability] = {}
    trials: dict[str, _Trial] = {
        "tun-device": (
            _tun_device,
            "every run: Open vSwitch",
            "modprobe tun; for ordinary users: sudo chmod 0666 /dev/net/tun",
        ),
        "hosts": (
            _host,
            "every run: its hosts",
            "apt-get install mininet; in a container: options of docs/how-to/container.md",
        ),
        "shaping": (
            _shaping,
            "every run: rates and queues (HTB, bfifo)",
            "apt-get install iproute2; modprobe sch_htb",
        ),
        "packet-filter": (
            _packet_filter,
            "every run: impairments (nftables)",
            "apt-get install nftables python3-nftables; modprobe nf_tables",
        ),
        "switch": (
            lambda: _switch(switch),
            "every run: userspace datapath",
            "apt-get install openvswitch-switch",
        ),
        "ryu": (
            lambda: _framework("ryu"),
            "every run: the controller, where it is installed",
            "os-ken runs instead; to try again: rm .venv/ready, ./lab check",
        ),
        "os-ken": (
            lambda: _framework("os-ken"),
            "the controller without Ryu, or with --controller os-ken",
            "./lab installs it into .venv",
        ),
        "iperf3": (
            lambda: run(["iperf3", "--version"]).split(" (")[0],
            "impairment background: TCP flows; measuring in the shell",
            "apt-get install iperf3",
        ),
        "switch-kernel": (
            lambda: _unless(
                datapath.missing() if found["switch"].available else "Open vSwitch does not run"
            ),
            "datapath: kernel, which auto takes (else userspace)",
            f"modprobe openvswitch nft_dup_netdev; {_STOCK}",
        ),
        "deep-switch-buffers": (
            _deep_buffers,
            "queues beyond net.core.wmem_max",
            "sudo, or raise sysctl net.core.wmem_max",
        ),
        "netem": (
            lambda: _unless(netem.missing("probe0", "probe1")),
            "delay, jitter in the kernel (else by a relay)",
            f"modprobe sch_netem; {_STOCK}",
        ),
        "even-bursts": (
            _even_bursts,
            "impairment burst: frames paced into a port's queue",
            f"modprobe sch_ingress cls_u32 act_mirred; {_STOCK}",
        ),
        "ecn-marking": (
            lambda: _qdisc("red limit 100000 min 10000 max 30000 avpkt 1000 burst 20 ecn nodrop"),
            "ECN marks, DCTCP",
            f"modprobe sch_red; {_STOCK}",
        ),
        "udp-segmentation": (
            _udp_segmentation,
            "UDP batches of up to 64 datagrams",
            "Linux 4.18 or newer",
        ),
        "compiled-hot-path": (
            lambda: _unless(WHY_NONE),
            "datagrams by C code, in less processor time than by numpy",
            "apt-get install gcc libc6-dev; rm .venv/ready; ./lab check",
        ),
        **{
            f"tcp-{name}": (
                lambda name=name: _congestion_control(name),  # type: ignore[misc]
                f"kernel TCP with {name}",
                f"modprobe tcp_{name}; {_STOCK}",
            )
            for name in TCP_CONGESTION_CONTROLS
        },
    }
    for name in wanted or trials:
        found[name] = _attempt(*trials[name])
    return found


def _tun_device() -> None:
    os.close(os.open("/dev/net/tun", os.O_RDWR))


def _host() -> str:
    """Make a host as a run does: network and mount namespaces, with its own `/sys`."""
    for program in ("mnexec", "ifconfig"):  # without them Mininet would end this process
        if shutil.which(program) is None:
            raise CommandError(f"{program}: not installed")
    import mininet.net

    from testbed.lab.mininet_parts import LabHost

    LabHost("a-host")
    return f"Mininet {mininet.net.VERSION}"


def _shaping() -> None:
    shaping.shape("probe0", LinkShape(rate_bps=10_000_000, queue_bytes=15_000))
    run(["tc", "qdisc", "del", "dev", "probe0", "root"])


def _packet_filter() -> None:
    table = loss_table.drawn(LossModel(loss_good=0.5), "probe")
    PacketFilter(os.getpid(), "probe1", table).lose(data_ports=DATA_PORTS)


def _switch(switch: OpenVSwitch) -> str:
    switch.start()
    vsctl(["add-br", "probe", "--", "set", "bridge", "probe", "datapath_type=netdev"])
    vsctl(["add-port", "probe", "probe0"])
    return run(["ovs-vswitchd", "--version"]).split("\n")[0]


def _framework(name: str) -> str:
    """Import it the way the controller does, in a process of its own; return its version."""
    if not framework_choice.is_installed(name):
        raise ImportError(framework_choice.why_missing(name))
    code = "import controllers.framework"
    environment = os.environ | {framework_choice.ENVIRONMENT_VARIABLE: name}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ImportError(done.stderr.strip().splitlines()[-1])
    version = framework_choice.describe(name)["version"] or "no version"
    return f"{version}, runs by default" if name == framework_choice.preferred() else version


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
            raise OSError(f"not among {path.read_text().strip()}") from error


if __name__ == "__main__":
    sandbox.end_with_lifeline()
    print(
        json.dumps({name: each.as_json() for name, each in _inside(sys.argv[1:]).items()}),
        flush=True,
    )
    os._exit(0)
