"""A private Open vSwitch: its own database server and switch daemon, in the sandbox's folder."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from testbed.lab.datapath import Datapath, keep_whole
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.process_status import sockets_of
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
SEND_BUFFER_BYTES = 32 << 20
RECEIVE_BUFFER_BYTES = 8 << 20
# What the kernel charges for a full frame: 92 of them exhaust its default buffer of 212,992 bytes.
FRAME_MEMORY_BYTES = 2304

FLOWS_KEPT_MS = 24 * 3600 * 1000  # in the datapath, since they were last used

_FORCE = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}  # SO_SNDBUFFORCE, SO_RCVBUFFORCE
_GENERIC_NETLINK = 16


@dataclass(frozen=True, kw_only=True)
class SocketBuffers:
    """The buffers that the kernel granted to the switch's sockets."""

    # `send_bytes` is None in the kernel's datapath. `whole_batches`: a full queue refuses single
    # packets, and not the rest of their batch.

    sockets: int
    send_bytes: int | None
    receive_bytes: int
    whole_batches: bool = False

    @property
    def queue_bytes(self) -> int | None:
        """Return the bytes of full frames that may wait at all ports together; None: any."""
        if self.send_bytes is None:
            return None
        return self.send_bytes // FRAME_MEMORY_BYTES * ETHERNET_FRAME_BYTES


@dataclass(eq=False)
class OpenVSwitch:
    """ovsdb-server and ovs-vswitchd, both children of this process."""

    directory: Path
    logs: Path
    datapath: Datapath = field(default="userspace", init=False)
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)

    def start(self, *, timeout_s: float = 10.0) -> None:
        """Start both programs and return when ovs-vsctl works."""
        for name in ("OVS_RUNDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"):
            os.environ[name] = str(self.directory)
        os.environ["OVS_LOGDIR"] = str(self.logs)
        database = self.directory / "conf.db"
        run(["ovsdb-tool", "create", str(database), str(SCHEMA)])
        remote = self.directory / "db.sock"
        self._spawn("ovsdb-server", f"--remote=punix:{remote}", "--pidfile", str(database))
        self._await(remote, timeout_s)
        # Else whatever paused for ten seconds would pay for its first packet again.
        kept = f"other_config:max-idle={FLOWS_KEPT_MS}"
        # The server makes its socket a moment before it listens.
        patient = ["--no-wait", "--retry", f"--timeout={timeout_s:.0f}"]
        run(["ovs-vsctl", *patient, "init", "--", "set", "Open_vSwitch", ".", kept])
        self._spawn("ovs-vswitchd", "--pidfile", f"unix:{remote}")
        self._await(self.directory / "ovs-vswitchd.pid", timeout_s)

    @property
    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        return {Path(str(child.args[0])).name: child for child in self._children}  # type: ignore[index]

    def deepen_buffers(self) -> SocketBuffers:
        """Give the switch's sockets buffers that no queue limit, and no burst, can exhaust."""
        # All ports send through one AF_PACKET socket whose buffer holds the packets that wait in
        # *every* port's queue: at the kernel's default, 92 packets at one congested port starve all
        # others. The first packet that is forwarded makes that socket. In the kernel's datapath the
        # sockets ask the daemon about first packets of flows. Forcing a buffer needs real root; an
        # ordinary user gets what `net.core.{w,r}mem_max` allow, and the result says so.
        pid = self._children[-1].pid
        if self.datapath == "kernel":
            return _deepen_upcalls(pid)
        with ExitStack() as opened:
            sockets = [opened.enter_context(it) for it in sockets_of(pid, socket.AF_PACKET)]
            if not sockets:
                raise CommandError("ovs-vswitchd has no packet socket: is there no port?")
            send = min(_grow(it, socket.SO_SNDBUF, SEND_BUFFER_BYTES) for it in sockets)
            receive = min(_grow(it, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES) for it in sockets)
            ports = {it: it.getsockname()[0] for it in sockets}
            senders = [sender for sender, interface in ports.items() if not interface]
            whole = keep_whole(senders, sorted(set(filter(None, ports.values()))))
        return SocketBuffers(
            sockets=len(sockets), send_bytes=send, receive_bytes=receive, whole_batches=whole
        )

    def _spawn(self, program: str, *arguments: str) -> None:
        argv = [program, "-vconsole:off", "--no-chdir", "--log-file"]
        self._children.append(
            subprocess.Popen(
                [*argv, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the prompt of a shell is not for the switch
            )
        )

    def _await(self, file: Path, timeout_s: float) -> None:
        program, child = list(self.processes.items())[-1]
        deadline_s = time.monotonic() + timeout_s
        while not file.exists():
            status = child.poll()
            if status is None and time.monotonic() < deadline_s:
                time.sleep(0.005)
                continue
            what = f"did not start within {timeout_s:g} s" if status is None else "ended at once"
            raise CommandError(f"{program} {what}{_last_words(program)}")


def vsctl(words: Sequence[str], *, timeout_s: float = 20.0) -> str:
    """Run ovs-vsctl, which waits until the daemon has done it; return its standard output."""
    argv = ["ovs-vsctl", *words]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        why = _last_words("ovs-vswitchd")  # the daemon may have ended
        raise CommandError(f"ovs-vsctl: no answer within {timeout_s:g} s{why}") from None
    if done.returncode != 0:
        raise CommandError(f"ovs-vsctl: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _last_words(program: str) -> str:
    log = Path(os.environ["OVS_LOGDIR"]) / f"{program}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return f": {lines[-1]}" if lines else ""


def _deepen_upcalls(pid: int) -> SocketBuffers:
    with ExitStack() as opened:
        sockets = [opened.enter_context(it) for it in sockets_of(pid, socket.AF_NETLINK)]
        upcalls = [it for it in sockets if it.proto == _GENERIC_NETLINK]
        granted = [_grow(upcall, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES) for upcall in upcalls]
    return SocketBuffers(
        sockets=len(granted),
        send_bytes=None,
        receive_bytes=min(granted, default=0),
        whole_batches=True,
    )


def _grow(opened: socket.socket, option: int, size: int) -> int:
    """Give a socket a buffer as large as it may be; return the size that the kernel granted."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, _FORCE[option], size)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, option, size)
    return opened.getsockopt(socket.SOL_SOCKET, option)
