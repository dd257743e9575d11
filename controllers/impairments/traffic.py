"""Long TCP flows from host to host, by iperf3, with a chosen congestion control: `background`."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import struct
import time
from collections.abc import Collection
from typing import Any, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from controllers.impairments.base import (
    Effect,
    Impairment,
    ImpairmentParameters,
    LabAccess,
    RateBps,
)
from controllers.impairments.host import start_helper
from testbed.lab.helpers.process import HelperError, HelperProcess, run_at_once
from testbed.lab.kernel.namespaces import socket_in
from testbed.lab.kernel.process_status import sockets_of
from testbed.shared import python_module
from testbed.shared.problems import form
from testbed.transport.net.tcp import (
    available_congestion_controls,
    get_congestion_control,
    tcp_counts,
)

_ANSWER_TIMEOUT_S = 2.0
_LISTENING_TIMEOUT_S = 2.0
_LOOK_EVERY_S = 0.002
_END_TIMEOUT_S = 0.5
_PREPARE_AFTER_S = 0.05
# SO_LINGER with time 0: closing drops unsent data and resets the connection.
_DISCARD = struct.pack("ii", 1, 0)
# Paced flows write this much at once; iperf3's 128 kB would make 10 ms bursts at 100 Mbit/s.
_PACED_WRITE_BYTES = 8192
# Where struct tcp_info of the kernel's uapi/linux/tcp.h has the bytes acknowledged.
_BYTES_ACKED_AT = 120
_TCP_INFO_BYTES = 256


class BackgroundParameters(ImpairmentParameters):
    """Long TCP flows between two hosts, by iperf3, with a chosen congestion control."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
    allowed_targets = ("host",)
    exclusive = False

    from_: str = Field(alias="from", description="the host that sends, such as traffic-1")
    congestion_control: str = form(
        r"^[a-z0-9_]{1,15}$",
        "the kernel's name of an algorithm, such as cubic",
        default="cubic",
        description="a name that kernel TCP knows",
    )
    streams: int = Field(default=1, ge=1, le=64, description="parallel connections")
    bitrate_bps: RateBps | None = Field(
        default=None,
        description="limit of all streams together, in bits of payload a second; none: no limit",
    )

    @model_validator(mode="after")
    def _has_two_hosts(self) -> BackgroundParameters:
        if self.from_ == self.host:
            raise ValueError(f"from: {self.from_!r} is the victim itself; valid: another host")
        return self

    @property
    def hosts_named(self) -> dict[str, str]:
        return {"host": self.host, "from": self.from_}

    def lacking(self, hosts: Collection[str]) -> str | None:
        if shutil.which("iperf3") is None:
            return "background traffic needs iperf3, which is not installed"
        listed = available_congestion_controls()
        if self.congestion_control not in listed:
            return (
                f"this kernel has no TCP congestion control {self.congestion_control!r} for "
                f"{self.label}; it has {', '.join(listed)}"
            )
        return None


class _Pair(NamedTuple):
    server: HelperProcess
    client: HelperProcess


class Background(Impairment[BackgroundParameters]):
    """A new iperf3 server waits beforehand; the client starts and ends with the impairment."""

    changes_rates = "no"

    def __init__(self, parameters: BackgroundParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._receiver, self._sender = lab.hosts[parameters.host], lab.hosts[parameters.from_]
        self._prepared: _Pair | None = None

    def prepare(self) -> None:
        self._prepared = self._started_pair()

    def begin(self) -> None:
        pair = self._prepared or self._started_pair()
        self._prepared = None
        self._await(pair.server)
        pair.client.send(do="begin")
        pair.client.receive(_ANSWER_TIMEOUT_S)
        self._pair = pair
        self.lab.spawn(self._prepare_next)

    def end(self) -> None:
        client = self._pair.client
        if client.ended:
            why = _report(client).get("error", "it says nothing")
            raise HelperError(f"{self.parameters.label}: iperf3 ended early: {why}")
        self._segments: list[int] = []  # of each connection, as the kernel counts
        self._acknowledged_bytes = 0
        self._controls: set[str] = set()
        for number, stream in enumerate(sockets_of(client.pid, socket.AF_INET)):
            with stream:  # a duplicate of iperf3's socket
                self._segments.append(tcp_counts(stream).segments_sent)
                if number:  # the first is iperf3's control connection
                    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                    self._acknowledged_bytes += struct.unpack_from("=Q", info, _BYTES_ACKED_AT)[0]
                    self._controls.add(get_congestion_control(stream))
                    # Data that waits in the socket would otherwise be sent after the end.
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
        run_at_once(client.pid)  # it must stop now, not when training leaves it a processor
        client.process.send_signal(signal.SIGINT)
        self._report = _report(client)

    def effect(self) -> Effect:
        self._pair.server.close()
        self._pair.client.close()
        details: dict[str, float | int | str] = {
            "from": self.parameters.from_,
            "streams": len(self._segments[1:]),
            "congestion_control": ",".join(sorted(self._controls)),
            "acknowledged_bytes": self._acknowledged_bytes,
        }
        sent = self._report.get("end", {}).get("sum_sent", {})
        if sent:  # without a report it is left out, and what depends on it
            flowed_s = float(sent["seconds"])
            details["flowed_s"] = flowed_s
            bits = self._acknowledged_bytes * 8
            details["goodput_bps"] = bits / flowed_s if flowed_s > 0 else 0.0
        return Effect(met=sum(self._segments[1:]), frames_sent=sum(self._segments), details=details)

    def _started_pair(self) -> _Pair:
        """Start a server for one test on a free port, and a client that waits for its begin."""
        with socket_in(self._receiver.pid, socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((self._receiver.address, 0))
            port = str(probe.getsockname()[1])
        parameters, target = self.parameters, self._receiver.address
        serve = ("iperf3", "-s", "-1", "-J", "-i", "0", "-B", target, "-p", port)
        send = [
            *python_module.command("testbed.lab.helpers.process"),
            *("iperf3", "-c", target, "-p", port, "-B", self._sender.address, "-J"),
            # No time limit, because iperf3 takes whole seconds only; the impairment's end stops it.
            *("-t", "0", "-i", "0"),
            *("-C", parameters.congestion_control, "-P", str(parameters.streams)),
        ]
        if parameters.bitrate_bps is not None:
            # iperf3's limit applies to each stream.
            send += ["-b", str(max(1, parameters.bitrate_bps // parameters.streams))]
            send += ["-l", str(_PACED_WRITE_BYTES)]
        return _Pair(
            server=start_helper(serve, pid=self._receiver.pid, lab=self.lab, ordinary=True),
            client=start_helper(send, pid=self._sender.pid, lab=self.lab),
        )

    def _prepare_next(self) -> None:
        self.lab.sleep(_PREPARE_AFTER_S)  # other impairments that begin now go first
        if self._prepared is None:
            self._prepared = self._started_pair()

    def _await(self, server: HelperProcess) -> None:
        deadline_s = time.monotonic() + _LISTENING_TIMEOUT_S
        while not _listens(server.pid):
            if server.ended or time.monotonic() > deadline_s:
                raise HelperError(f"{self.parameters.label}: iperf3's server does not listen")
            self.lab.sleep(_LOOK_EVERY_S)


def _listens(pid: int) -> bool:
    listening = False
    for opened in sockets_of(pid, socket.AF_INET):
        with opened:
            listening |= bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return listening


def _report(client: HelperProcess) -> dict[str, Any]:
    """Read the JSON object that iperf3 printed; empty where it printed none."""
    try:
        report = json.loads(client.read_to_end(_END_TIMEOUT_S))
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}
