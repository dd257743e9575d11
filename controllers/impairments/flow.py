"""`police` and `blackout`: a flow entry meters the packets of one direction, or drops them all.

Open vSwitch forwards by its cache for up to 3 ms after it has confirmed an entry.
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar, TypeVar

from pydantic import Field

from controllers.impairments.base import (
    Effect,
    Impairment,
    ImpairmentParameters,
    LabAccess,
    Metering,
    RateBps,
)
from controllers.impairments.link import direction
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES, OWN_ETHERTYPE
from testbed.transport.net.config import EndpointConfig

_BURST_TIME_S = 0.05
_ANY_BPS = 1_000_000_000_000
_IPV4 = 0x0800
# The control connection, and the datagrams that hedge it.
_CONTROL = tuple(product((("tcp", 6), ("udp", 17)), ("src", "dst")))
# Longer than the gaps between the packets of a busy link.
_CACHED_S = 0.01
_MOST_READINGS = 50


class BlackoutParameters(ImpairmentParameters):
    """Drops every frame of one direction for a while."""

    spare_control: bool = Field(
        default=False, description="let the transport's control messages pass"
    )

    @property
    def bucket(self) -> tuple[int, int]:
        """The rate that the meter lets pass, in bits a second, and what at once, in bytes."""
        return _ANY_BPS, _ANY_BPS // 8  # it only counts what is then dropped


class PoliceParameters(BlackoutParameters):
    """A token bucket of `burst_bytes` that fills at `rate_bps` (bits of Ethernet frames)."""

    rate_bps: RateBps = Field(description="what passes, in bits of Ethernet frames a second")
    burst_bytes: int | None = Field(
        default=None,
        ge=2 * ETHERNET_FRAME_BYTES,
        le=1 << 30,
        description="passes at once; default: 50 ms of the rate",
    )

    @property
    def bucket(self) -> tuple[int, int]:
        of_rate = max(2 * ETHERNET_FRAME_BYTES, int(self.rate_bps * _BURST_TIME_S / 8))
        return self.rate_bps, self.burst_bytes or of_rate


ParametersT = TypeVar("ParametersT", bound=BlackoutParameters)


class Metered(Impairment[ParametersT]):
    """Intercepts packets before the forwarding rules, and counts them by a meter."""

    drops: ClassVar[bool]  # whether what has passed the meter is dropped
    above: ClassVar[int]
    changes_rates = "no"

    def __init__(self, parameters: ParametersT, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        if at.receiver.is_switch:
            self._switch, match = at.receiver.node, {"in_port": at.receiver.number}
        else:
            mac = lab.network["hosts"][at.receiver.node]["mac"]
            self._switch, match = at.sender.node, {"eth_dst": mac}
        self._number = lab.prepare_meter(self._switch, match)
        # Frames of a burst end at this switch, where some would be counted as table misses.
        spared = [{"eth_type": OWN_ETHERTYPE}] if at.receiver.is_switch else []
        if parameters.spare_control:
            spared += [
                {
                    "eth_type": _IPV4,
                    "ip_proto": number,
                    f"{name}_{side}": EndpointConfig.control_port,
                }
                for (name, number), side in _CONTROL
            ]
        rate_bps, burst_bytes = parameters.bucket
        self._metering = Metering(
            switch=self._switch,
            match=match,
            number=self._number,
            rate_bps=rate_bps,
            burst_bytes=burst_bytes,
            drop=self.drops,
            above=self.above,
            spared=spared,
        )

    def begin(self) -> None:
        self.lab.meter_flow(self._metering)
        self.lab.barrier(self._switch)

    def end(self) -> None:
        self.lab.end_metering(self._switch, self._number)
        self.lab.barrier(self._switch)

    def effect(self) -> Effect:
        """Count the packets since the begin, once the cache sends no more; remove the meter."""
        try:
            counts = self.lab.meter_counts(self._switch, self._number)
            for _ in range(_MOST_READINGS):
                self.lab.sleep(_CACHED_S)
                before, counts = counts, self.lab.meter_counts(self._switch, self._number)
                if counts == before:
                    break
        finally:
            self.lab.remove_meter(self._switch, self._number)
            self.lab.barrier(self._switch)
        return Effect(
            met=counts.packets,
            dropped=counts.packets if self.drops else counts.dropped,
            details={"offered_bytes": counts.size_bytes, "switch": self._switch},
        )


class Police(Metered[PoliceParameters]):
    """Drops what exceeds a rate."""

    counts_as = "police"
    drops, above = False, 0


class Blackout(Metered[BlackoutParameters]):
    """Drops every packet; routing does not react to it (unlike link-down)."""

    counts_as = "blackout"
    drops, above = True, 10  # above a police
