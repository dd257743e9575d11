"""What `police` and `blackout` share: a flow entry that catches one direction of one link."""

from __future__ import annotations

from typing import Any

from controllers.impairments.base import LabAccess, MeterCounts
from controllers.impairments.link_directions import direction
from controllers.impairments.parameters import ImpairmentParameters
from testbed.transport.endpoint import EndpointConfig

_IPV4, _TCP = 0x0800, 6


class InterceptedFlows:
    """Packets of one direction, caught by a switch before it forwards them.

    At a link into a switch they are caught where they arrive; at a host's own link by the host's
    address, before the switch's output queue. Open vSwitch forwards what it has cached for up to
    about 3 ms more after it has confirmed an entry (measured: 8 to 50 packets).

    Args:
        spare_control: leave the transport's control connection (a TCP port) alone.
        above: where several hold the same packets, the one with the largest gets them.
    """

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
        at = direction(lab.network, parameters)
        if at.receiver.is_switch:
            self.switch, self._match = at.receiver.node, {"in_port": at.receiver.number}
        else:
            mac = lab.network["hosts"][at.receiver.node]["mac"]
            self.switch, self._match = at.sender.node, {"eth_dst": mac}

    def catch(self, *, rate_bps: int, burst_bytes: int, drop: bool = False) -> None:
        """Meter, and then drop if so wished; returns when the switch has confirmed it."""
        self._lab.set_meter(
            self.switch,
            self.cookie,
            rate_kbps=max(1, round(rate_bps / 1000)),
            burst_kb=max(1, round(burst_bytes * 8 / 1000)),
        )
        if self._spare_control:
            for key in ("tcp_src", "tcp_dst"):
                control: dict[str, Any] = {
                    **self._match,
                    "eth_type": _IPV4,
                    "ip_proto": _TCP,
                    key: EndpointConfig.control_port,
                }
                self._lab.intercept_flow(
                    self.switch, control, cookie=self._spared, above=self._above + 1
                )
        self._lab.intercept_flow(
            self.switch,
            self._match,
            cookie=self.cookie,
            meter=self.cookie,
            drop=drop,
            above=self._above,
        )
        self._lab.barrier(self.switch)

    def release(self) -> None:
        """Let packets pass; returns when the switch has confirmed it. The meter stays."""
        for cookie in (self.cookie, self._spared):
            self._lab.release_flows(self.switch, cookie)
        self._lab.barrier(self.switch)

    def caught(self) -> MeterCounts:
        """What was caught since `catch`; takes the meter away."""
        counts = self._lab.meter_counts(self.switch, self.cookie)
        self._lab.remove_meter(self.switch, self.cookie)
        self._lab.barrier(self.switch)
        return counts

    @property
    def _spared(self) -> int:
        return self.cookie | 1 << 24
