"""`host-burst`: a host sends UDP at a high rate to another, through all queues between them."""

from __future__ import annotations

import socket

from pydantic import Field, model_validator

from controllers.impairments.base import Effect, Impairment, LabAccess
from controllers.impairments.common_settings import HostToHostParameters
from controllers.impairments.helper import start_helper
from testbed.lab import paths
from testbed.lab.helpers.traffic import SMALLEST_FRAME_BYTES
from testbed.lab.kernel.namespaces import socket_in
from testbed.lab.kernel.packet_filter import ArrivalCounter
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES
from testbed.shared import python_module

_ANSWER_TIMEOUT_S = 2.0
_DRAIN_SLACK_S = 0.02
_DRAIN_STEP_S = 0.02
_MOST_DRAIN_STEPS = 100


class HostBurstParameters(HostToHostParameters):
    """Datagrams from host `from` to `host` at a rate, which counts Ethernet frames.

    Either `rate_bps`, or `rate_factor` times that of the narrowest link between the two. The
    sender's own link is the limit: what exceeds it is not sent.
    """

    rate_bps: int | None = Field(
        default=None, ge=10_000, le=100_000_000_000, description="bits of Ethernet frames a second"
    )
    rate_factor: float | None = Field(
        default=None,
        ge=0.01,
        le=100,
        allow_inf_nan=False,
        description="in place of rate_bps: multiples of the narrowest link's rate on the path",
    )
    duration_s: float = Field(
        default=0.05, gt=0, le=3600, allow_inf_nan=False, description="how long it lasts"
    )
    frame_bytes: int = Field(
        default=ETHERNET_FRAME_BYTES,
        ge=SMALLEST_FRAME_BYTES,
        le=ETHERNET_FRAME_BYTES,
        description="size of each of its Ethernet frames",
    )

    @model_validator(mode="after")
    def _has_one_rate(self) -> HostBurstParameters:
        if (self.rate_bps is None) == (self.rate_factor is None):
            raise ValueError("needs one rate: either rate_bps or rate_factor")
        return self


class HostBurst(Impairment[HostBurstParameters]):
    """Runs the UDP sender in its host, and counts what arrives at the victim."""

    changes_rates = "no"

    def __init__(self, parameters: HostBurstParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self.victim, sender = lab.hosts[parameters.host], lab.hosts[parameters.from_]
        # This socket is never read. It keeps the victim's kernel from answering each datagram, and
        # overflowing it costs nothing. Arrivals are counted before it.
        self._sink = socket_in(self.victim.pid, socket.AF_INET, socket.SOCK_DGRAM)
        self._sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        self._sink.bind((self.victim.address, 0))
        port = self._sink.getsockname()[1]
        match = f"ip saddr {sender.address} udp dport {port}"
        self._arrived = ArrivalCounter(self.victim.pid, self.victim.interface, match)
        self.rate_bps = parameters.rate_bps or paths.path_rate_bps(
            lab.network, parameters.from_, parameters.host
        ) * (parameters.rate_factor or 0)
        arguments = (
            *(self.victim.address, port, "--from", sender.address),
            *("--rate-bps", self.rate_bps, "--frame-bytes", parameters.frame_bytes),
        )
        self._blaster = start_helper(
            python_module.command("testbed.lab.helpers.traffic", *map(str, arguments)),
            pid=sender.pid,
            lab=lab,
        )
        self._began_s = 0.0
        self._sent: dict[str, float] = {}

    def begin(self) -> None:
        self._arrived.take()
        self._blaster.tell(do="go", duration_s=self.parameters.duration_s)
        self._began_s = self._blaster.hear(_ANSWER_TIMEOUT_S)["began_s"]

    def end(self) -> None:
        self._blaster.tell(do="stop")
        self._sent = self._blaster.hear(_ANSWER_TIMEOUT_S)

    def effect(self) -> Effect:
        arrived = self._drained()
        frames, frame_bytes = int(self._sent["frames"]), self.parameters.frame_bytes
        lasted_s = self._sent["ended_s"] - self._began_s
        return Effect(
            met=frames,
            dropped=frames - arrived,
            frames_sent=frames,
            details={
                "from": self.parameters.from_,
                "frames_received": arrived,
                "bytes_sent": frames * frame_bytes,
                "bytes_received": arrived * frame_bytes,
                "wanted_rate_bps": self.rate_bps,
                "sent_rate_bps": frames * frame_bytes * 8 / lasted_s if lasted_s > 0 else 0.0,
                "frames_behind": int(self._sent["behind"]),
                "sender_cpu_s": self._sent["cpu_s"],
            },
        )

    def _drained(self) -> int:
        """The frames that have arrived once the queues between the hosts are empty of them."""
        self.lab.sleep(self.victim.queue_bytes * 8 / self.victim.rate_bps + _DRAIN_SLACK_S)
        arrived = self._arrived.take()
        for _ in range(_MOST_DRAIN_STEPS):
            self.lab.sleep(_DRAIN_STEP_S)
            more = self._arrived.take()
            if not more:
                break
            arrived += more
        return arrived
