"""Gathers the system facts of a run while it runs: versions, kernel, settings, commit."""

import hashlib
import os
import platform
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.network import LabInfo
from testbed.lab.openvswitch import SocketBuffers
from testbed.shared.version import version

_PACKAGES = (
    *("torch", "numpy", "ryu", "eventlet", "scapy"),
    *("scikit-learn", "polars", "pydantic"),
)
_SYSCTLS = (
    *("net/core/rmem_default", "net/core/rmem_max", "net/core/wmem_default", "net/core/wmem_max"),
    *("net/ipv4/tcp_congestion_control", "net/ipv4/tcp_available_congestion_control"),
    *("net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"),
)
_MACHINE_ID = Path("/etc/machine-id")
_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = ("testbed", "controllers", "topologies")  # what of this tree a run executes
# What of it no run imports: the contract "Rooms import downwards only" says so.
_ABOVE_RUNS = {"__main__.py", "bench", "cli", "cluster", "documentation", "machine", "watch"}


def of_machine() -> dict[str, Any]:
    """Gather the facts that no lab changes: versions, kernel, processors, commit."""
    import mininet.net

    code = commit()
    uid_map = Path("/proc/self/uid_map").read_text().split()
    return {
        "schema": 1,
        "version": version(),
        "commit": code,
        "sources": None if code is None or "+" in code else sources(),
        "code_sha256": code_sha256(),
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in _PACKAGES},
        "mininet": mininet.net.VERSION,
        "openvswitch": _openvswitch(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "machine_id": _machine_id(),
        "distribution": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        # Root in here may be an ordinary user outside.
        "user_namespace": uid_map != ["0", "0", "4294967295"],
        "sysctls": {name.replace("/", "."): _text(Path("/proc/sys", name)) for name in _SYSCTLS},
    }


def _machine_id() -> str | None:
    """Return a hash that tells machines of one kind apart; the id itself stays private."""
    if (identity := _text(_MACHINE_ID)) is None:
        return None
    return hashlib.sha256(f"bounded-loss-testbed {identity}".encode()).hexdigest()[:12]


def of_lab(lab: LabInfo, buffers: SocketBuffers) -> dict[str, Any]:
    """Gather the facts of this lab, from inside it: load, socket buffers, what is unseeded."""
    return {
        "load_average": os.getloadavg(),
        "switch_sockets": {
            "count": buffers.sockets,
            "send_bytes": buffers.send_bytes,
            "receive_bytes": buffers.receive_bytes,
            "whole_batches": buffers.whole_batches,
        },
        "datapath": lab.datapath,
        "in_order": lab.in_order,
        "delayed_by": lab.delayed_by,
        "unseeded": unseeded(lab),
    }


def unseeded(lab: LabInfo) -> list[str]:
    """Name the random draws of the kernel, which the run's seed does not decide."""
    draws = []
    if lab.delayed_by == "netem":
        draws.append("jitter and loss of links (netem)")
    if any(link.ecn_threshold_bytes is not None for link in lab.links):
        draws.append("ECN marks within a packet of the threshold (red)")
    return draws


def commit() -> str | None:
    """Return the commit of the lab's code, with `+changes` where the code differs from it."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("diff", "--name-only", "HEAD", "--", *_SOURCES)
        new = _git("ls-files", "--others", "-z", "--", *_SOURCES).split("\0")
    except CommandError:
        return None  # an unpacked archive, or somebody else's checkout
    return head + ("+changes" if changed or {_ROOT / name for name in new} & {*_code()} else "")


def sources() -> dict[str, str] | None:
    """Return git's trees of the folders that runs execute: other commits may have the same."""
    try:
        trees = _git("rev-parse", *(f"HEAD:{folder}" for folder in _SOURCES)).split()
    except CommandError:
        return None
    return dict(zip(_SOURCES, trees, strict=True))


def code_sha256() -> str:
    """Hash the code that runs import, whether it is committed or not, with its packages."""
    code = hashlib.sha256()
    for package in _PACKAGES:
        code.update(f"{package}=={_version(package)}\n".encode())
    for path in _code():
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        code.update(f"{path.relative_to(_ROOT)} {sha256}\n".encode())
    return code.hexdigest()


def _code() -> list[Path]:
    return [
        path
        for folder in _SOURCES
        for path in sorted((_ROOT / folder).rglob("*.*"))
        if path.suffix in (".py", ".c", ".h")
        and path.is_file()  # an editor's lock is a link to nothing
        and not (folder == "testbed" and path.relative_to(_ROOT).parts[1] in _ABOVE_RUNS)
    ]


def _git(*arguments: str) -> str:
    return run(["git", "-C", str(_ROOT), *arguments]).strip()


def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _openvswitch() -> str | None:
    with suppress(CommandError):
        return run(["ovs-vswitchd", "--version"]).partition("\n")[0]
    return None


def cpu_model() -> str | None:
    """Return the processors' name; None where the kernel tells none."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return model.group(1) if model else None


def _text(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text().strip()
    return None
