"""The switches by name: what each should hold, the OpenFlow messages that write it, connections."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controllers.framework import Datapath, hub
from controllers.framework import ofproto_v1_3 as protocol
from controllers.framework import ofproto_v1_3_parser as parser

REPLY_TIMEOUT_S = 2.0
_WARN_AFTER_S = 5.0
_log = logging.getLogger("controllers.switches")

Match = tuple[tuple[str, Any], ...]
Place = tuple[int, Match]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A flow entry, which forwards to a port; of several a SELECT group chooses."""

    priority: int
    match: Match = ()
    ports: tuple[int, ...]

    @property
    def place(self) -> Place:
        return self.priority, self.match


@dataclass(frozen=True, kw_only=True)
class PortState:
    """A port's hardware address; whether it was taken down, and whether it has a carrier."""

    address: str
    is_down: bool
    is_live: bool

    @staticmethod
    def of(description: Any) -> PortState:
        is_down = bool(description.config & protocol.OFPPC_PORT_DOWN)
        no_carrier = bool(description.state & protocol.OFPPS_LINK_DOWN)
        return PortState(
            address=description.hw_addr, is_down=is_down, is_live=not (is_down or no_carrier)
        )


# Messages


@dataclass(frozen=True)
class Message:
    """A message to a switch, and what it is, to name it if the switch refuses."""

    content: Any
    what: str
    of_port: bool = False  # an impairment's; the others are of forwarding


def _barrier() -> Message:
    """Have everything before it processed before everything after it."""
    return Message(parser.OFPBarrierRequest(None), "barrier")


def _add_flow(flow: Flow, group: int | None) -> Message:
    """Replace any entry in the same place. `group` chooses where it has several ports."""
    output = parser.OFPActionOutput(flow.ports[0])
    action = output if group is None else parser.OFPActionGroup(group)
    content = parser.OFPFlowMod(
        None,
        priority=flow.priority,
        match=parser.OFPMatch(**dict(flow.match)),
        instructions=[parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, [action])],
    )
    return Message(content, f"flow {dict(flow.match)}")


def _remove_flow(flow: Flow) -> Message:
    match = parser.OFPMatch(**dict(flow.match))
    which = {"command": protocol.OFPFC_DELETE_STRICT, "priority": flow.priority, "match": match}
    return _remove_flows(**which)


def _remove_flows(**which: Any) -> Message:
    scope = {"table_id": protocol.OFPTT_ALL, "command": protocol.OFPFC_DELETE} | which
    anywhere = {"out_port": protocol.OFPP_ANY, "out_group": protocol.OFPG_ANY}
    return Message(parser.OFPFlowMod(None, **scope, **anywhere), "removal of flows")


def _add_group(number: int, ports: tuple[int, ...]) -> Message:
    anything = {"watch_port": protocol.OFPP_ANY, "watch_group": protocol.OFPG_ANY}
    buckets = [
        parser.OFPBucket(weight=1, actions=[parser.OFPActionOutput(port)], **anything)
        for port in ports
    ]
    how = (protocol.OFPGC_ADD, protocol.OFPGT_SELECT, number, buckets)
    return Message(parser.OFPGroupMod(None, *how), "group")


def _remove_group(number: int) -> Message:
    """Remove a group, and with it all flows that use it."""
    how: tuple[Any, ...] = (protocol.OFPGC_DELETE, protocol.OFPGT_SELECT, number, [])
    return Message(parser.OFPGroupMod(None, *how), "removal of a group")


def _set_port(port: int, address: str, *, up: bool) -> Message:
    """Take a port down or up; `address` is its hardware address, which the message must name."""
    down = protocol.OFPPC_PORT_DOWN
    content = parser.OFPPortMod(None, port, address, 0 if up else down, down, 0)
    return Message(content, f"change of port {port}", of_port=True)


# Connections


class SwitchError(ConnectionError):
    """A switch refused something, is late, or is gone; the message is one line."""


class RefusedError(SwitchError):
    """A switch answered with an error."""


class LateError(SwitchError):
    """A switch has not answered in time."""


class ClosedError(SwitchError):
    """The connection has ended."""


class _PendingReply:
    def __init__(self) -> None:
        self.done = hub.Event()
        self.parts: list[Any] = []
        self.refusal = ""


Refusals = dict[bool, list[str]]  # sentences, by whether they are of ports


class Connection:
    """One connection of a switch; a refused message leaves a sentence in `refusals`."""

    @staticmethod
    def of(datapath: Datapath) -> Connection | None:
        """The connection that was made of it; None: of a switch that is not ours."""
        return getattr(datapath, "connection", None)

    def __init__(self, switch: str, datapath: Datapath, refusals: Refusals) -> None:
        self.switch = switch
        self.datapath = datapath
        self._refusals = refusals
        self._is_open = True
        self._pending: dict[int, _PendingReply] = {}
        self._unconfirmed: dict[int, Message] = {}
        datapath.connection = self  # for `of`

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages in one piece, in order, if the connection has not ended."""
        if not self._is_open or not messages:
            return
        pieces = []
        for message in messages:
            content = message.content
            content.datapath = self.datapath
            self.datapath.set_xid(content)
            content.serialize()
            self._unconfirmed[content.xid] = message
            pieces.append(bytes(content.buf))
        self.datapath.send(b"".join(pieces))

    def barrier(self) -> None:
        """Return when the switch has processed everything sent before, however long it takes."""
        before = list(self._unconfirmed)
        pending, xid = self._begin(parser.OFPBarrierRequest(self.datapath))
        while not pending.done.wait(REPLY_TIMEOUT_S):
            _log.warning("%s confirms nothing for %g s", self.switch, REPLY_TIMEOUT_S)
        self._end(pending, xid, "a barrier")
        for confirmed_xid in before:
            self._unconfirmed.pop(confirmed_xid, None)

    def ports(self) -> dict[int, PortState]:
        """Ask for the switch's ports; SwitchError: it does not name them."""
        pending, xid = self._begin(parser.OFPPortDescStatsRequest(self.datapath))
        if not pending.done.wait(REPLY_TIMEOUT_S):
            raise LateError(f"{self.switch} did not name its ports within {REPLY_TIMEOUT_S:g} s")
        parts = self._end(pending, xid, "a request for its ports")
        return {port.port_no: PortState.of(port) for port in parts}

    def _begin(self, request: Any) -> tuple[_PendingReply, int]:
        if not self._is_open:
            raise ClosedError(f"switch {self.switch} is not connected")
        xid = self.datapath.set_xid(request)
        pending = self._pending[xid] = _PendingReply()
        self.datapath.send_msg(request)
        return pending, xid

    def _end(self, pending: _PendingReply, xid: int, what: str) -> list[Any]:
        self._pending.pop(xid, None)
        if pending.refusal:
            raise RefusedError(f"{self.switch} refused {what}: {pending.refusal}")
        if not self._is_open:
            raise ClosedError(f"switch {self.switch} disconnected before it answered {what}")
        return pending.parts

    def answered(self, message: Any) -> None:
        """Take a reply: to a barrier, or a part of statistics. One that nobody awaits is late."""
        if (pending := self._pending.get(message.xid)) is None:
            return
        pending.parts.extend(getattr(message, "body", None) or [])
        if not getattr(message, "flags", 0) & protocol.OFPMPF_REPLY_MORE:
            pending.done.set()

    def failed(self, message: Any) -> None:
        """Take an error message, whose transaction id is that of what was refused."""
        # The error's name in the specification, such as OFPFMFC_TABLE_FULL, else its numbers.
        why = str(protocol.ofp_error_code_to_str(message.type, message.code)).partition("(")[0]
        if why.startswith("Unknown"):
            why = f"OpenFlow error type {message.type} code {message.code}"
        if (pending := self._pending.get(message.xid)) is not None:
            pending.refusal = why
            pending.done.set()
        elif (refused := self._unconfirmed.pop(message.xid, None)) is not None:
            sentence = f"{self.switch} refused {refused.what}: {why}"
            self._refusals[refused.of_port].append(sentence)
            _log.error("%s", sentence)
        else:
            _log.warning("%s reports an error about nothing sent from here: %s", self.switch, why)

    def closed(self) -> None:
        self._is_open = False
        for pending in self._pending.values():
            pending.done.set()


class Switch:
    """A switch of the network, connected or not; whenever it connects, it gets its whole plan."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._connection: Connection | None = None
        self._connected = hub.Event()
        self._addresses: dict[int, str] = {}  # of the ports
        self._flows: dict[Place, Flow] = {}
        self._groups: dict[tuple[int, ...], int] = {}  # that the connection has made, by ports
        self._ports: dict[int, bool] = {}  # that an impairment sets: whether up
        self._refusals: Refusals = {True: [], False: []}

    # The plan

    def put(self, *flows: Flow) -> None:
        self._flows |= {flow.place: flow for flow in flows}
        self._send(self._installation(flows))

    def drop(self, *flows: Flow) -> None:
        for flow in flows:
            self._flows.pop(flow.place, None)
        self._send([_remove_flow(flow) for flow in flows])

    def drop_unused_groups(self) -> None:
        used = {flow.ports for flow in self._flows.values()}
        unused = [self._groups.pop(ports) for ports in set(self._groups) - used]
        self._send([_remove_group(number) for number in unused])

    def set_port(self, port: int, *, up: bool) -> None:
        """Take a port down or up, now or as soon as the switch connects."""
        self._ports[port] = up
        if self._connection is not None and port not in self._addresses:
            raise SwitchError(f"switch {self.name} has no port {port}")
        self._send([_set_port(port, self._addresses.get(port, ""), up=up)])

    # The connection

    def open(self, datapath: Datapath) -> Connection:
        """Make a new connection, which nothing uses before `bring_back`; an older one has ended."""
        if self._connection is not None:
            self.closed(self._connection)
        return Connection(self.name, datapath, self._refusals)

    def live_ports(self, ports: Mapping[int, PortState]) -> dict[int, bool]:
        """Tell of each port whether it will forward: none that an impairment holds down does."""
        return {
            number: port.is_live and self._ports.get(number, True) for number, port in ports.items()
        }

    def bring_back(self, connection: Connection, ports: Mapping[int, PortState]) -> None:
        """Use this connection from now on; return when the switch has confirmed the whole plan."""
        self._connection = connection
        self._addresses = {number: port.address for number, port in ports.items()}
        self._groups = {}
        # One piece, in which nothing else comes between: so the switch forwards nothing for a
        # moment alone, and no change of the plan is lost.
        connection.send(
            [
                _remove_flows(),
                _barrier(),
                _remove_group(protocol.OFPG_ALL),
                _barrier(),
                *self._installation(self._flows.values()),
                *self._port_changes(ports),
            ]
        )
        self._connected.set()
        connection.barrier()
        self._raise_refusals(of_ports=False)
        self._raise_refusals(of_ports=True)

    def closed(self, connection: Connection) -> bool:
        """Note that a connection has ended; return whether it was the present one."""
        connection.closed()
        if connection is not self._connection:
            return False
        self._connection = None
        self._connected.clear()
        return True

    def confirm(self) -> None:
        """Return when the switch has processed everything; wait until it connects.

        Raises:
            RefusedError: it refused a message of an impairment, whichever it is.
        """
        while not self._confirmed():
            while not self._connected.wait(_WARN_AFTER_S):
                _log.warning("switch %s is not connected: something waits for it", self.name)
        self._raise_refusals(of_ports=True)

    def confirm_forwarding(self) -> None:
        """Do the same for forwarding rules, if it is connected; else it gets them later."""
        self._confirmed()
        self._raise_refusals(of_ports=False)

    def _confirmed(self) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.barrier()
        except ClosedError:
            return False
        return True

    def _raise_refusals(self, *, of_ports: bool) -> None:
        if refusals := self._refusals[of_ports]:
            first, *others = refusals
            refusals.clear()
            raise RefusedError(f"{first} (and {len(others)} more)" if others else first)

    def _send(self, messages: list[Message]) -> None:
        if self._connection is not None:
            self._connection.send(messages)

    def _installation(self, flows: Iterable[Flow]) -> list[Message]:
        """Make the messages that add entries, after the new groups that they need."""
        groups, entries = [], []
        for flow in flows:
            if len(flow.ports) > 1 and flow.ports not in self._groups:
                used = set(self._groups.values())
                number = next(free for free in itertools.count(1) if free not in used)
                self._groups[flow.ports] = number
                groups.append(_add_group(number, flow.ports))
            entries.append(_add_flow(flow, self._groups.get(flow.ports)))
        # Without the barrier a switch may process an entry before its group.
        return [*groups, _barrier(), *entries] if groups else entries

    def _port_changes(self, ports: Mapping[int, PortState]) -> list[Message]:
        """Make the messages that take ports up or down which are not as impairments set them."""
        changes = []
        for number, up in self._ports.items():
            if number not in ports:
                _log.warning("switch %s has no port %d to set", self.name, number)
            elif ports[number].is_down == up:
                changes.append(_set_port(number, ports[number].address, up=up))
        return changes
