"""Sends OpenFlow 1.3 requests to the connected switches and waits for their answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from controllers.framework import Datapath, hub
from controllers.impairments.base import MeterCounts
from controllers.routing import ARRIVING_TABLE, FORWARDING_TABLE, LEAVING_TABLE

_HELD_PRIORITY = 100
_REPLY_TIMEOUT_S = 5.0
# The cookie of an impairment's flow entry: this base and the impairment's number.
_COOKIE_BASE = 0x1A8 << 32
_WHOLE_COOKIE = 0xFFFFFFFFFFFFFFFF


class Switches:
    """Sends requests to switches by name. Answers arrive through `answered` and `refused`."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """`names` gives the switch of each datapath id."""
        self.names = names
        self._datapaths: dict[str, Datapath] = {}
        self._waiting: dict[tuple[str, int], tuple[hub.Event, list[Any]]] = {}
        self._refusals: dict[str, str] = {}
        self._addresses: dict[tuple[str, int], str] = {}  # of the ports
        self._log = logging.getLogger("controllers.switches")

    def name(self, datapath: Datapath) -> str | None:
        """The switch's name; None for an unknown switch."""
        return self.names.get(datapath.id)

    def connected(self, name: str, datapath: Datapath) -> None:
        """Make a connected switch's tables pass packets on to the forwarding table."""
        self._datapaths[name] = datapath
        parser = datapath.ofproto_parser
        for table in range(FORWARDING_TABLE):
            self._change_flow(
                name,
                table=table,
                priority=0,
                match=parser.OFPMatch(),
                instructions=[parser.OFPInstructionGotoTable(table + 1)],
            )

    def disconnected(self, datapath: Datapath) -> str | None:
        """Forget a connection; return the switch's name if it was its current one."""
        name = self.names.get(datapath.id)
        if name is None or self._datapaths.get(name) is not datapath:
            return None
        del self._datapaths[name]
        return name

    def datapath(self, switch: str) -> Datapath:
        """The connection of a switch.

        Raises:
            ConnectionError: it is not connected.
        """
        try:
            return self._datapaths[switch]
        except KeyError:
            raise ConnectionError(f"switch {switch} is not connected") from None

    # Answers

    def answered(self, message: Any) -> None:
        """Take a reply: to a barrier, or a part of statistics."""
        key = (self.names.get(message.datapath.id, ""), message.xid)
        if key not in self._waiting:
            return
        event, parts = self._waiting[key]
        parts.extend(getattr(message, "body", None) or [])
        if not getattr(message, "flags", 0) & message.datapath.ofproto.OFPMPF_REPLY_MORE:
            event.set()

    def refused(self, message: Any) -> None:
        """Take a switch's error message, which the next barrier raises."""
        name = self.names.get(message.datapath.id, "")
        text = f"{name} refused a message: OpenFlow error type {message.type} code {message.code}"
        self._log.error("%s", text)
        self._refusals[name] = text

    def ask(self, switch: str, request: Any) -> list[Any]:
        """Send a request and return the body of its answer, all parts.

        Raises:
            TimeoutError, ConnectionError: no answer, or the switch is gone.
        """
        datapath = self.datapath(switch)
        datapath.set_xid(request)
        key = (switch, request.xid)
        event, parts = self._waiting[key] = (hub.Event(), [])
        datapath.send_msg(request)
        try:
            if not event.wait(_REPLY_TIMEOUT_S):
                raise TimeoutError(f"{switch} did not answer within {_REPLY_TIMEOUT_S:g} s")
        finally:
            del self._waiting[key]
        return parts

    def barrier(self, switch: str) -> None:
        """Return when the switch has processed everything sent before.

        Raises:
            ConnectionError: it refused one of the messages.
        """
        datapath = self.datapath(switch)
        self.ask(switch, datapath.ofproto_parser.OFPBarrierRequest(datapath))
        refusal = self._refusals.pop(switch, None)
        if refusal is not None:
            raise ConnectionError(refusal)

    # Requests of impairments (see `LabAccess`)

    def packet_out(self, switch: str, port: int, frame: bytes, copies: int) -> None:
        datapath = self.datapath(switch)
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        datapath.send_msg(
            parser.OFPPacketOut(
                datapath=datapath,
                buffer_id=protocol.OFP_NO_BUFFER,
                in_port=protocol.OFPP_CONTROLLER,
                actions=[parser.OFPActionOutput(port)] * copies,
                data=frame,
            )
        )

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
        datapath = self.datapath(switch)
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        instructions = []
        if meter is not None:
            instructions.append(parser.OFPInstructionMeter(meter, protocol.OFPIT_METER))
        if not drop:
            instructions.append(parser.OFPInstructionGotoTable(table + 1))
        self._change_flow(
            switch,
            table=table,
            priority=_HELD_PRIORITY + above,
            match=parser.OFPMatch(**match),
            instructions=instructions,
            cookie=_COOKIE_BASE + cookie,
        )

    def release_flows(self, switch: str, cookie: int) -> None:
        datapath = self.datapath(switch)
        protocol = datapath.ofproto
        datapath.send_msg(
            datapath.ofproto_parser.OFPFlowMod(
                datapath=datapath,
                table_id=protocol.OFPTT_ALL,
                command=protocol.OFPFC_DELETE,
                cookie=_COOKIE_BASE + cookie,
                cookie_mask=_WHOLE_COOKIE,
                out_port=protocol.OFPP_ANY,
                out_group=protocol.OFPG_ANY,
            )
        )

    def set_meter(self, switch: str, meter: int, *, rate_kbps: int, burst_kb: int) -> None:
        """Add a meter with one drop band; `burst_kb` in thousands of bits, as OpenFlow has it."""
        datapath = self.datapath(switch)
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        flags = protocol.OFPMF_KBPS | protocol.OFPMF_BURST | protocol.OFPMF_STATS
        band = parser.OFPMeterBandDrop(rate=rate_kbps, burst_size=burst_kb)
        datapath.send_msg(parser.OFPMeterMod(datapath, protocol.OFPMC_ADD, flags, meter, [band]))

    def remove_meter(self, switch: str, meter: int) -> None:
        datapath = self.datapath(switch)
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        datapath.send_msg(parser.OFPMeterMod(datapath, protocol.OFPMC_DELETE, 0, meter, []))

    def meter_counts(self, switch: str, meter: int) -> MeterCounts:
        datapath = self.datapath(switch)
        request = datapath.ofproto_parser.OFPMeterStatsRequest(datapath, 0, meter)
        body = self.ask(switch, request)
        return MeterCounts(
            packets=sum(each.packet_in_count for each in body),
            size_bytes=sum(each.byte_in_count for each in body),
            dropped=sum(band.packet_band_count for each in body for band in each.band_stats),
        )

    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        datapath = self.datapath(switch)
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        if (switch, port) not in self._addresses:
            raise ConnectionError(f"switch {switch} has no port {port}")
        address, down = self._addresses[switch, port], protocol.OFPPC_PORT_DOWN
        datapath.send_msg(parser.OFPPortMod(datapath, port, address, 0 if up else down, down, 0))

    def learn_ports(self, switch: str) -> None:
        """Learn the hardware addresses of a switch's ports, which changes to a port must name."""
        datapath = self.datapath(switch)
        request = datapath.ofproto_parser.OFPPortDescStatsRequest(datapath, 0)
        for each in self.ask(switch, request):
            self._addresses[switch, each.port_no] = each.hw_addr

    def _change_flow(
        self,
        switch: str,
        *,
        table: int,
        priority: int,
        match: Any,
        instructions: list[Any],
        cookie: int = 0,
    ) -> None:
        datapath = self._datapaths[switch]
        datapath.send_msg(
            datapath.ofproto_parser.OFPFlowMod(
                datapath=datapath,
                table_id=table,
                priority=priority,
                match=match,
                instructions=instructions,
                cookie=cookie,
            )
        )
