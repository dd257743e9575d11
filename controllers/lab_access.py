"""What impairments may use of the lab: its switches, and ways to wait without blocking."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from controllers.framework import eventlet, hub
from controllers.impairments.base import ArrivalFilter, LabAccess, MeterCounts
from controllers.openflow import ARRIVING_TABLE, FORWARDING, LEAVING_TABLE, METERS, Flow, Meter
from controllers.switches import Switch
from testbed.lab import paths
from testbed.lab.kernel.packet_filter import PacketFilter
from testbed.lab.kernel.xdp_filter import XdpFilter
from testbed.lab.link_control import LinkControl
from testbed.lab.loss_table import LossTable

_HELD_PRIORITY = 100
T = TypeVar("T")


class ControllerLabAccess(LabAccess):
    """The lab's, through the controller."""

    owner = FORWARDING

    def __init__(
        self,
        network: Mapping[str, Any],
        switches: Mapping[str, Switch],
        records: Path,
        shared: Path,
    ) -> None:
        super().__init__(network, LinkControl(network), records=records, shared=shared)
        self.switches = switches

    def of(self, owner: str) -> ControllerLabAccess:
        """The same access for one impairment, by whose name a switch's refusals are told."""
        own = copy.copy(self)
        own.owner = owner
        return own

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        hub.sleep(duration_s)

    def readable(self, descriptor: int, timeout_s: float | None) -> bool:
        try:
            eventlet.hubs.trampoline(
                descriptor, read=True, timeout=timeout_s, timeout_exc=TimeoutError
            )
        except TimeoutError:
            return False
        return True

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        hub.spawn(function, *arguments)

    def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return cast(T, eventlet.tpool.execute(function, *arguments))

    def arrival_filter(self, sender: str, receiver: str, table: LossTable) -> ArrivalFilter:
        port = next(
            other
            for _, own, other in paths.directions(self.network)
            if (own["node"], other["node"]) == (sender, receiver)
        )
        if port["pid"] is None:
            return XdpFilter(port["interface"], table)
        return PacketFilter(port["pid"], port["interface"], table)

    # The switches

    def barrier(self, switch: str) -> None:
        self.switches[switch].confirm(self.owner)

    def prepare_meter(self, switch: str, match: Mapping[str, Any]) -> int:
        return self.unique()

    def packet_out(self, switch: str, port: int, frame: bytes, copies: int) -> bool:
        return self.switches[switch].packet_out(port, frame, copies, self.owner)

    def meter_flow(
        self,
        switch: str,
        match: Mapping[str, Any],
        *,
        number: int,
        rate_bps: int,
        burst_bytes: int,
        drop: bool = False,
        above: int = 0,
        spared: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        meter = Meter(
            rate_kbps=max(1, round(rate_bps / 1000)),
            burst_kb=max(1, round(burst_bytes * 8 / 1000)),
            owner=self.owner,
        )
        self.switches[switch].put_meter(METERS.start + number, meter)
        table = ARRIVING_TABLE if "in_port" in match else LEAVING_TABLE
        metered = Flow(
            table=table,
            priority=_HELD_PRIORITY + above,
            match=tuple(match.items()),
            meter=METERS.start + number,
            goto=None if drop else table + 1,
            number=number + 1,  # 0 is that of the forwarding rules
            owner=self.owner,
        )
        passing = replace(metered, priority=metered.priority + 1, meter=None, goto=table + 1)
        self.switches[switch].put(
            *(replace(passing, match=(*metered.match, *each.items())) for each in spared), metered
        )

    def end_metering(self, switch: str, number: int) -> None:
        self.switches[switch].drop_numbered(number + 1, self.owner)

    def meter_counts(self, switch: str, number: int) -> MeterCounts:
        return self.switches[switch].meter_counts(METERS.start + number)

    def remove_meter(self, switch: str, number: int) -> None:
        self.switches[switch].drop_meter(METERS.start + number, self.owner)

    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        self.switches[switch].set_port(port, self.owner, up=up)
