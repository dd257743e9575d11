"""`burst`: a microburst of background frames into the egress queue of the victim's switch port.

One OpenFlow PacketOut whose action list names the same output port k times makes the switch emit
k frames back to back, so the controller reaches hundreds of thousands of frames per second and
real queues overflow.
"""

from __future__ import annotations

import struct
from typing import Literal

from pydantic import Field

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, Switches
from testbed.lab.network import HostInfo
from testbed.lab.packet_filter import ArrivalCounter
from testbed.lab.shaping import ETHERNET_FRAME_BYTES

# IEEE 802 local experimental EtherType: the victim's kernel ignores the frames without answering.
_ETHERTYPE = 0x88B5
_SOURCE_MAC = bytes.fromhex("02000000bb01")
_MOST_COPIES = 64
_DRAIN_SLACK_S = 0.02


class BurstParameters(ImpairmentParameters):
    """Background traffic at `rate_factor` times the link's rate for `duration_s`."""

    kind: Literal["burst"]
    rate_factor: float = Field(default=3.0, gt=0, le=100)
    duration_s: float = Field(default=0.05, gt=0, le=60)
    frame_bytes: int = Field(default=ETHERNET_FRAME_BYTES, ge=60, le=ETHERNET_FRAME_BYTES)


class Burst(Impairment[BurstParameters]):
    """Keeps the victim's egress queue overfull for a while."""

    ends_with_leg = False
    _frames_sent = 0

    def __init__(self, parameters: BurstParameters, victim: HostInfo, switches: Switches) -> None:
        super().__init__(parameters, victim, switches)
        # The switch gives up the rest of a batch when a queue is full and counts it nowhere, so
        # what arrives is counted instead.
        self._arrived = ArrivalCounter(victim.pid, victim.interface, _ETHERTYPE)

    def duration_s(self) -> float:
        return self.parameters.duration_s

    def begin(self) -> None:
        self._frames_sent = 0
        self._send(1)
        self.switches.barrier(self.victim.switch)

    def tick(self, elapsed_s: float) -> None:
        frame_bits = self.parameters.frame_bytes * 8
        frames_per_s = self.victim.rate_bps * self.parameters.rate_factor / frame_bits
        due = int(min(elapsed_s, self.parameters.duration_s) * frames_per_s)
        while self._frames_sent < due:
            self._send(min(due - self._frames_sent, _MOST_COPIES))

    def end(self) -> None:
        self.tick(self.parameters.duration_s)
        self.switches.barrier(self.victim.switch)

    def effect(self) -> Effect:
        drain_s = self.victim.queue_bytes * 8 / self.victim.rate_bps
        self.switches.sleep(drain_s + _DRAIN_SLACK_S)
        return Effect(
            dropped=self._frames_sent - self._arrived.take(), frames_sent=self._frames_sent
        )

    def _send(self, copies: int) -> None:
        self.switches.packet_out(self.victim.switch, self.victim.switch_port, self._frame(), copies)
        self._frames_sent += copies

    def _frame(self) -> bytes:
        destination = bytes.fromhex(self.victim.mac.replace(":", ""))
        header = destination + _SOURCE_MAC + struct.pack("!H", _ETHERTYPE)
        return header.ljust(self.parameters.frame_bytes, b"\0")
