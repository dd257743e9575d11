"""`police`: an OpenFlow meter drops what exceeds a rate; `blackout`: a flow entry drops all."""

from __future__ import annotations

from itertools import product
from typing import Any

from pydantic import Field

from controllers.impairments.base import (
    Effect,
    Impairment,
    ImpairmentParameters,
    LabAccess,
    MeterCounts,
)
from controllers.impairments.link_directions import direction
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES, OWN_ETHERTYPE
from testbed.transport.net.config import EndpointConfig

_BURST_TIME_S = 0.05
_ANY_BPS = 1_000_000_000_000
_ABOVE_POLICE = 10
_IPV4 = 0x0800
# The control connection, and the datagrams that hedge it.
_CONTROL = tuple(product((("tcp", 6), ("udp", 17)), ("src", "dst")))
# Longer than the gaps between the packets of a busy link.
_CACHED_S = 0.01
_MOST_LOOKS = 50


class PoliceParameters(ImpairmentParameters):
    """A token bucket of `burst_bytes` that fills at `rate_bps` (bits of Ethernet frames)."""

    rate_bps: int = Field(
        ge=10_000,
        le=100_000_000_000,
        description="what passes, in bits of Ethernet frames a second",
    )
    burst_bytes: int | None = Field(
        default=None,
        ge=2 * ETHERNET_FRAME_BYTES,
        le=1 << 30,
        description="passes at once; default: 50 ms of the rate",
    )
    spare_control: bool = Field(
        default=False, description="let the transport's control messages pass unmetered"
    )

    @property
    def bucket_bytes(self) -> int:
        """What passes at once."""
        of_rate = int(self.rate_bps * _BURST_TIME_S / 8)
        return self.burst_bytes or max(2 * ETHERNET_FRAME_BYTES, of_rate)


class Police(Impairment[PoliceParameters]):
    """Meters packets before the forwarding rules."""

    counts_as = "police"
    changes_rates = "no"
    openflow_only = True

    def __init__(self, parameters: PoliceParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._flows = InterceptedFlows(parameters, lab, spare_control=parameters.spare_control)

    def begin(self) -> None:
        wanted = self.parameters
        self._flows.install(rate_bps=wanted.rate_bps, burst_bytes=wanted.bucket_bytes)

    def end(self) -> None:
        self._flows.remove()

    def effect(self) -> Effect:
        counts = self._flows.counts()
        return Effect(
            met=counts.packets,
            dropped=counts.dropped,
            details={
                "offered_packets": counts.packets,
                "offered_bytes": counts.size_bytes,
                "switch": self._flows.switch,
            },
        )


class BlackoutParameters(ImpairmentParameters):
    """Drops every frame of one direction for a while."""

    spare_control: bool = Field(
        default=False, description="let the transport's control messages pass"
    )


class Blackout(Impairment[BlackoutParameters]):
    """Drops every packet; routing does not react to it (unlike link-down)."""

    counts_as = "blackout"
    changes_rates = "no"
    openflow_only = True

    def __init__(self, parameters: BlackoutParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._flows = InterceptedFlows(
            parameters, lab, spare_control=parameters.spare_control, above=_ABOVE_POLICE
        )

    def begin(self) -> None:
        # The meter passes everything; it only counts what is then dropped.
        self._flows.install(rate_bps=_ANY_BPS, burst_bytes=_ANY_BPS // 8, drop=True)

    def end(self) -> None:
        self._flows.remove()

    def effect(self) -> Effect:
        counts = self._flows.counts()
        return Effect(
            met=counts.packets,
            dropped=counts.packets,
            details={"dropped_bytes": counts.size_bytes, "switch": self._flows.switch},
        )


class InterceptedFlows:
    """Flow entries at a switch that intercept the packets of one direction before forwarding."""

    # They match the input port or, on a host's own link, its address. Open vSwitch forwards by its
    # cache for up to 3 ms after it has confirmed an entry (8 to 50 packets). Frames of a burst are
    # left alone: they end at this switch, and some would be counted as table misses once the
    # entries are gone. Of several entries for a packet, that with the largest `above` wins.

    def __init__(
        self,
        parameters: ImpairmentParameters,
        lab: LabAccess,
        *,
        spare_control: bool,
        above: int = 0,
    ) -> None:
        self._above = above
        self._lab = lab
        self._spare_control = spare_control
        self.cookie = lab.unique()
        self._spared_cookie = self.cookie | 1 << 24
        at = direction(lab.network, parameters)
        if at.receiver.is_switch:
            self.switch, self._match = at.receiver.node, {"in_port": at.receiver.number}
        else:
            mac = lab.network["hosts"][at.receiver.node]["mac"]
            self.switch, self._match = at.sender.node, {"eth_dst": mac}

    def install(self, *, rate_bps: int, burst_bytes: int, drop: bool = False) -> None:
        """Meter the packets, or with `drop` count and drop them; the switch confirms it."""
        self._lab.set_meter(
            self.switch,
            self.cookie,
            rate_kbps=max(1, round(rate_bps / 1000)),
            burst_kb=max(1, round(burst_bytes * 8 / 1000)),
        )
        if "in_port" in self._match:
            self._pass({"eth_type": OWN_ETHERTYPE})
        if self._spare_control:
            for (name, number), side in _CONTROL:
                port = {f"{name}_{side}": EndpointConfig.control_port}
                self._pass({"eth_type": _IPV4, "ip_proto": number, **port})
        self._lab.intercept_flow(
            self.switch,
            self._match,
            cookie=self.cookie,
            meter=self.cookie,
            drop=drop,
            above=self._above,
        )
        self._lab.barrier(self.switch)

    def _pass(self, match: dict[str, Any]) -> None:
        """Let these of the direction's packets pass."""
        self._lab.intercept_flow(
            self.switch, {**self._match, **match}, cookie=self._spared_cookie, above=self._above + 1
        )

    def remove(self) -> None:
        """Remove the entries, but not the meter; returns when the switch has confirmed it."""
        for cookie in (self.cookie, self._spared_cookie):
            self._lab.release_flows(self.switch, cookie)
        self._lab.barrier(self.switch)

    def counts(self) -> MeterCounts:
        """The intercepted packets since `install`; removes the meter."""
        # What passes by the switch's cache still meets the meter: this returns once that has ended.
        try:
            counts = self._lab.meter_counts(self.switch, self.cookie)
            for _ in range(_MOST_LOOKS):
                self._lab.sleep(_CACHED_S)
                before, counts = counts, self._lab.meter_counts(self.switch, self.cookie)
                if counts == before:
                    break
            return counts
        finally:
            self._lab.remove_meter(self.switch, self.cookie)
            self._lab.barrier(self.switch)
