"""The switches by name: whose connection is which, and what impairments ask of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controllers.framework import Datapath
from controllers.impairments.base import MeterCounts
from controllers.openflow_connection import Connection
from controllers.openflow_messages import ARRIVING_TABLE, LEAVING_TABLE, METERS, Flow, Meter
from controllers.switch_plan import Switch

_HELD_PRIORITY = 100


class Switches(Mapping[str, Switch]):
    """All switches of the network. Messages from them arrive here."""

    def __init__(self, datapath_ids: Mapping[str, int]) -> None:
        self._by_name = {name: Switch(name) for name in datapath_ids}
        self._names = {number: name for name, number in datapath_ids.items()}
        self._connections: dict[Datapath, Connection] = {}

    def __getitem__(self, name: str) -> Switch:
        return self._by_name[name]

    def __iter__(self) -> Any:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def name(self, datapath: Datapath) -> str | None:
        """The switch's name; None for an unknown switch."""
        return self._names.get(datapath.id)

    def opened(self, name: str, datapath: Datapath) -> Connection:
        """A new connection, which nothing uses yet."""
        connection = self._connections[datapath] = self[name].open(datapath)
        return connection

    def closed(self, datapath: Datapath) -> str | None:
        """Forget a connection; return the switch's name if it was its present one."""
        connection = self._connections.pop(datapath, None)
        if connection is None or not self[connection.switch].closed(connection):
            return None
        return connection.switch

    def answered(self, message: Any) -> None:
        """Take a reply: to a barrier, or a part of statistics."""
        if connection := self._connections.get(message.datapath):
            connection.answered(message)

    def failed(self, message: Any) -> None:
        """Take a switch's error message."""
        if connection := self._connections.get(message.datapath):
            connection.failed(message)


class SwitchRequests:
    """What one impairment asks of switches (see `LabAccess`)."""

    def __init__(self, switches: Switches, owner: str) -> None:
        self.switches = switches
        self.owner = owner

    def barrier(self, switch: str) -> None:
        self.switches[switch].confirm(self.owner)

    def packet_out(self, switch: str, port: int, frame: bytes, copies: int) -> bool:
        return self.switches[switch].packet_out(port, frame, copies, self.owner)

    def intercept_flow(
        self,
        switch: str,
        match: Mapping[str, Any],
        *,
        cookie: int,
        meter: int | None = None,
        drop: bool = False,
        above: int = 0,
    ) -> None:
        table = ARRIVING_TABLE if "in_port" in match else LEAVING_TABLE
        self.switches[switch].put(
            Flow(
                table=table,
                priority=_HELD_PRIORITY + above,
                match=tuple(match.items()),
                meter=None if meter is None else METERS.start + meter,
                goto=None if drop else table + 1,
                number=cookie + 1,  # 0 is that of the forwarding rules
                owner=self.owner,
            )
        )

    def release_flows(self, switch: str, cookie: int) -> None:
        self.switches[switch].drop_numbered(cookie + 1, self.owner)

    def set_meter(self, switch: str, meter: int, *, rate_kbps: int, burst_kb: int) -> None:
        wanted = Meter(rate_kbps=rate_kbps, burst_kb=burst_kb, owner=self.owner)
        self.switches[switch].put_meter(METERS.start + meter, wanted)

    def remove_meter(self, switch: str, meter: int) -> None:
        self.switches[switch].drop_meter(METERS.start + meter, self.owner)

    def meter_counts(self, switch: str, meter: int) -> MeterCounts:
        return self.switches[switch].meter_counts(METERS.start + meter)

    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        self.switches[switch].set_port(port, self.owner, up=up)
