"""OpenFlow: what a switch holds, the messages that write it, and a connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controllers.framework import Datapath, hub
from controllers.framework import ofproto_v1_3 as protocol
from controllers.framework import ofproto_v1_3_parser as parser

REPLY_TIMEOUT_S = 2.0
_TRIES = 3
_PAUSE_S = 0.1
_log = logging.getLogger("controllers.switches")

# A packet passes these tables in this order: impairments of packets that arrive at a port,
# impairments of packets that leave for a host, forwarding.
ARRIVING_TABLE, LEAVING_TABLE, FORWARDING_TABLE = 0, 1, 2

FORWARDING = "the forwarding rules"  # whose a message is, where it is no impairment's
_WHOLE_COOKIE = (1 << 64) - 1

Match = tuple[tuple[str, Any], ...]
Place = tuple[int, int, Match]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A flow entry. It meters, then goes on to a table or a port; else it drops."""

    # Of several `ports` a SELECT group chooses. `number` is the impairment's, and the cookie, by
    # which the entry is removed; 0: a forwarding rule.

    table: int
    priority: int
    match: Match = ()
    meter: int | None = None
    goto: int | None = None
    ports: tuple[int, ...] = ()
    number: int = 0
    owner: str = FORWARDING

    @property
    def place(self) -> Place:
        """Where it stands: a switch has one entry there at most."""
        return self.table, self.priority, self.match


@dataclass(frozen=True, kw_only=True)
class Meter:
    """A meter with one drop band; `burst_kb` in thousands of bits, as OpenFlow has it."""

    rate_kbps: int
    burst_kb: int
    owner: str


@dataclass(frozen=True)
class Order:
    """A message to any switch, and what it writes for whom, to name it if the switch refuses."""

    message: Any
    what: str
    owner: str = FORWARDING


def add_flow(flow: Flow, group: int | None) -> Order:
    """Replaces any entry in the same place. `group` chooses where it has several ports."""
    instructions: list[Any] = []
    if flow.meter is not None:
        instructions.append(parser.OFPInstructionMeter(flow.meter, protocol.OFPIT_METER))
    if flow.ports:
        output = parser.OFPActionOutput(flow.ports[0])
        action = output if group is None else parser.OFPActionGroup(group)
        instructions.append(parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, [action]))
    if flow.goto is not None:
        instructions.append(parser.OFPInstructionGotoTable(flow.goto))
    message = parser.OFPFlowMod(
        None,
        cookie=flow.number,
        table_id=flow.table,
        priority=flow.priority,
        match=parser.OFPMatch(**dict(flow.match)),
        instructions=instructions,
    )
    return Order(message, "flow", flow.owner)


def remove_flow(flow: Flow) -> Order:
    """Removes the entry in a flow's place."""
    return _remove(
        flow.owner,
        table_id=flow.table,
        command=protocol.OFPFC_DELETE_STRICT,
        priority=flow.priority,
        match=parser.OFPMatch(**dict(flow.match)),
    )


def remove_numbered_flows(number: int, owner: str) -> Order:
    """Removes all entries of an impairment."""
    return _remove(owner, cookie=number, cookie_mask=_WHOLE_COOKIE)


def remove_everything() -> list[Order]:
    """Removes all flows, groups and meters."""
    return [
        _remove(FORWARDING),
        barrier(),
        remove_group(protocol.OFPG_ALL),
        remove_meter(protocol.OFPM_ALL),
        barrier(),
    ]


def _remove(owner: str, **which: Any) -> Order:
    scope = {"table_id": protocol.OFPTT_ALL, "command": protocol.OFPFC_DELETE} | which
    anywhere = {"out_port": protocol.OFPP_ANY, "out_group": protocol.OFPG_ANY}
    return Order(parser.OFPFlowMod(None, **scope, **anywhere), "removal of flows", owner)


def add_group(number: int, ports: tuple[int, ...]) -> Order:
    """A SELECT group of which each bucket leads to a port."""
    anything = {"watch_port": protocol.OFPP_ANY, "watch_group": protocol.OFPG_ANY}
    buckets = [
        parser.OFPBucket(weight=1, actions=[parser.OFPActionOutput(port)], **anything)
        for port in ports
    ]
    how = (protocol.OFPGC_ADD, protocol.OFPGT_SELECT, number, buckets)
    return Order(parser.OFPGroupMod(None, *how), "group")


def remove_group(number: int) -> Order:
    """Removes a group, and with it all flows that use it."""
    how: tuple[Any, ...] = (protocol.OFPGC_DELETE, protocol.OFPGT_SELECT, number, [])
    return Order(parser.OFPGroupMod(None, *how), "removal of a group")


def add_meter(number: int, meter: Meter) -> Order:
    """A meter that counts."""
    flags = protocol.OFPMF_KBPS | protocol.OFPMF_BURST | protocol.OFPMF_STATS
    band = parser.OFPMeterBandDrop(rate=meter.rate_kbps, burst_size=meter.burst_kb)
    message = parser.OFPMeterMod(None, protocol.OFPMC_ADD, flags, number, [band])
    return Order(message, "meter", meter.owner)


def remove_meter(number: int, owner: str = FORWARDING) -> Order:
    """Removes a meter, and with it all flows that use it."""
    message = parser.OFPMeterMod(None, protocol.OFPMC_DELETE, 0, number, [])
    return Order(message, "removal of a meter", owner)


def set_port(port: int, address: str, owner: str, *, up: bool) -> Order:
    """Takes a port down or up; `address` is its hardware address, which the message must name."""
    down = protocol.OFPPC_PORT_DOWN
    message = parser.OFPPortMod(None, port, address, 0 if up else down, down, 0)
    return Order(message, f"change of port {port}", owner)


def barrier() -> Order:
    """What follows is processed after what came before."""
    return Order(parser.OFPBarrierRequest(None), "barrier")


class SwitchError(ConnectionError):
    """A switch refused something, is late, or is gone; the message is one line."""


class RefusedError(SwitchError):
    """A switch answered with an error."""


class LateError(SwitchError):
    """A switch has not answered in time."""


class ClosedError(SwitchError):
    """The connection has ended."""


class _Waiting:
    def __init__(self) -> None:
        self.done = hub.Event()
        self.parts: list[Any] = []
        self.refusal = ""


class Connection:
    """One connection of a switch; `refused` gets a refused message's owner and a sentence."""

    @staticmethod
    def of(datapath: Datapath) -> Connection | None:
        """The connection that was made of it; None: of a switch that is not ours."""
        return getattr(datapath, "connection", None)

    def __init__(
        self, switch: str, datapath: Datapath, refused: Callable[[str, str], None]
    ) -> None:
        self.switch = switch
        self.datapath = datapath
        self._refused = refused
        self._is_open = True
        self._waiting: dict[int, _Waiting] = {}
        self._sent: dict[int, tuple[str, str]] = {}  # not yet confirmed: what, and whose
        datapath.connection = self  # for `of`

    def send(self, orders: Sequence[Order]) -> None:
        """Send messages in one piece, in order, if the connection has not ended."""
        if not self._is_open or not orders:
            return
        pieces = []
        for order in orders:
            order.message.datapath = self.datapath
            self.datapath.set_xid(order.message)
            order.message.serialize()
            self._sent[order.message.xid] = order.what, order.owner
            pieces.append(bytes(order.message.buf))
        self.datapath.send(b"".join(pieces))

    def barrier(self) -> None:
        """Return when the switch has processed everything sent before, however long it takes."""
        before = list(self._sent)
        waiting, xid = self._begin(parser.OFPBarrierRequest(self.datapath))
        while not waiting.done.wait(REPLY_TIMEOUT_S):
            _log.warning("%s confirms nothing for %g s", self.switch, REPLY_TIMEOUT_S)
        self._end(waiting, xid, "a barrier")
        for each in before:
            self._sent.pop(each, None)

    def ask(self, request: Callable[..., Any], what: str, *arguments: Any) -> list[Any]:
        """Send a request; return the body of its answer, all parts. Asks again in vain twice."""
        for _ in range(_TRIES - 1):
            try:
                return self._ask_once(request(self.datapath, *arguments), what)
            except (RefusedError, LateError) as error:
                _log.warning("%s; asked again", error)
                hub.sleep(_PAUSE_S)
        return self._ask_once(request(self.datapath, *arguments), what)

    def _ask_once(self, request: Any, what: str) -> list[Any]:
        waiting, xid = self._begin(request)
        if not waiting.done.wait(REPLY_TIMEOUT_S):
            del self._waiting[xid]
            raise LateError(
                f"{self.switch} did not answer a request for {what} within {REPLY_TIMEOUT_S:g} s"
            )
        return self._end(waiting, xid, f"a request for {what}")

    def _begin(self, message: Any) -> tuple[_Waiting, int]:
        if not self._is_open:
            raise ClosedError(f"switch {self.switch} is not connected")
        xid = self.datapath.set_xid(message)
        waiting = self._waiting[xid] = _Waiting()
        self.datapath.send_msg(message)
        return waiting, xid

    def _end(self, waiting: _Waiting, xid: int, what: str) -> list[Any]:
        self._waiting.pop(xid, None)
        if waiting.refusal:
            raise RefusedError(f"{self.switch} refused {what}: {waiting.refusal}")
        if not self._is_open:
            raise ClosedError(f"switch {self.switch} disconnected before it answered {what}")
        return waiting.parts

    # What the switch says

    def answered(self, message: Any) -> None:
        """Take a reply: to a barrier, or a part of statistics. One that nobody awaits is late."""
        if (waiting := self._waiting.get(message.xid)) is None:
            return
        waiting.parts.extend(getattr(message, "body", None) or [])
        if not getattr(message, "flags", 0) & protocol.OFPMPF_REPLY_MORE:
            waiting.done.set()

    def failed(self, message: Any) -> None:
        """Take an error message, whose transaction id is that of what was refused."""
        why = _in_words(message)
        if (waiting := self._waiting.get(message.xid)) is not None:
            waiting.refusal = why
            waiting.done.set()
        elif (sent := self._sent.pop(message.xid, None)) is not None:
            what, owner = sent
            text = f"{self.switch} refused {what} of {owner}: {why}"
            _log.error("%s", text)
            self._refused(owner, text)
        else:
            _log.warning("%s reports an error about nothing sent from here: %s", self.switch, why)

    def closed(self) -> None:
        """Note that the connection has ended; whoever waits for an answer is told so."""
        self._is_open = False
        for waiting in self._waiting.values():
            waiting.done.set()


def _in_words(message: Any) -> str:
    """The error's name in the specification, such as OFPFMFC_TABLE_FULL, else its numbers."""
    name = protocol.ofp_error_code_to_str(message.type, message.code)
    if name.startswith("Unknown"):
        return f"OpenFlow error type {message.type} code {message.code}"
    return str(name).partition("(")[0]
