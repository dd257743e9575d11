"""A switch that takes OpenFlow 1.3 messages as bytes, holds what they write, and answers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from controllers.framework import ofproto_v1_3
from controllers.switches import Connection, Switch, parser

_PORT_MOD, _GROUP_MOD, _MULTIPART, _BARRIER, _METER_MOD, _FLOW_MOD = 16, 15, 18, 20, 29, 14
FLOW_FAILED, GROUP_FAILED, METER_FAILED = 5, 6, 12


class FakeSwitch:
    """What a switch holds; each connection of it is a `FakeDatapath`.

    Attributes:
        flows: (table, priority, match) -> (cookie, instructions), both in Ryu's words.
        groups, meters: number -> what was added.
        down: ports that were taken down; `dead`: those without a carrier.
        refuse: decides by a message's type and body whether it is refused: error type and code.
        mute: a reply to such a request is not sent, so many times.
    """

    def __init__(self) -> None:
        self.flows: dict[tuple[int, int, str], tuple[int, str]] = {}
        self.groups: dict[int, bytes] = {}
        self.meters: dict[int, bytes] = {}
        self.down: set[int] = set()
        self.dead: set[int] = set()
        self.refuse: Callable[[int, bytes], tuple[int, int] | None] = lambda *_: None
        self.mute: dict[int, int] = {}
        self.counted = 0

    def connect(self, switch: Switch) -> Connection:
        """A new connection, by which the switch is brought back to its plan."""
        connection = FakeDatapath(self).connection_of(switch)
        switch.bring_back(connection, connection.ports())
        return connection

    def take(self, kind: int, body: bytes, whole: bytes) -> Any:
        """Carry out one message; returns an error, the body of a reply, or None."""
        if error := self.refuse(kind, body):
            return error
        if kind == _FLOW_MOD:
            return self._flow(whole)
        if kind == _GROUP_MOD:
            command, number = struct.unpack_from("!H2xI", body)
            return self._numbered(self.groups, command, number, body, (GROUP_FAILED, 0))
        if kind == _METER_MOD:
            command, number = struct.unpack_from("!H2xI", body)
            return self._numbered(self.meters, command, number, body, (METER_FAILED, 1))
        if kind == _PORT_MOD:
            port, config = struct.unpack_from("!I12xI", body)
            (self.down.add if config & 1 else self.down.discard)(port)
        if kind == _MULTIPART:
            return self._statistics(*struct.unpack_from("!H", body))
        return [] if kind == _BARRIER else None

    def _flow(self, whole: bytes) -> tuple[int, int] | None:
        message = parser.OFPFlowMod.parser(DATAPATH, 4, _FLOW_MOD, len(whole), 0, whole)
        place = (message.table_id, message.priority, str(message.match))
        if message.command == ofproto_v1_3.OFPFC_ADD:
            text = str([instruction.to_jsondict() for instruction in message.instructions])
            for instruction in message.instructions:
                for action in getattr(instruction, "actions", []):
                    if getattr(action, "group_id", None) not in (None, *self.groups):
                        return FLOW_FAILED, 0  # it has no such group
            self.flows[place] = message.cookie, text
            return None
        strict = message.command == ofproto_v1_3.OFPFC_DELETE_STRICT
        for each, (cookie, _) in list(self.flows.items()):
            by_cookie = cookie & message.cookie_mask == message.cookie & message.cookie_mask
            if by_cookie and (not strict or each == place):
                del self.flows[each]
        return None

    @staticmethod
    def _numbered(
        held: dict[int, bytes], command: int, number: int, body: bytes, exists: tuple[int, int]
    ) -> tuple[int, int] | None:
        if command == 0 and number in held:
            return exists
        if command == 0:
            held[number] = body
        elif number in (ofproto_v1_3.OFPG_ALL, ofproto_v1_3.OFPM_ALL):
            held.clear()
        else:
            held.pop(number, None)
        return None

    def _statistics(self, kind: int) -> list[Any] | None:
        if self.mute.get(kind, 0):
            self.mute[kind] -= 1
            return None
        if kind == ofproto_v1_3.OFPMP_METER:
            counts = {"packet_in_count": self.counted, "byte_in_count": 0, "band_stats": []}
            return [SimpleNamespace(**counts)]
        return [
            SimpleNamespace(
                port_no=number,
                hw_addr=f"00:00:00:00:01:{number:02x}",
                config=ofproto_v1_3.OFPPC_PORT_DOWN if number in self.down else 0,
                state=ofproto_v1_3.OFPPS_LINK_DOWN if number in self.dead else 0,
            )
            for number in range(1, 5)
        ]

    def contents(self) -> tuple[Any, ...]:
        """All that it holds, where the numbers of groups and their order do not matter."""
        groups = {number: body[8:] for number, body in self.groups.items()}
        flows = {}
        for place, (cookie, text) in self.flows.items():
            for number, body in groups.items():
                text = text.replace(f"'group_id': {number}", body.hex())
            flows[place] = cookie, text
        meters = {number: body[2:] for number, body in self.meters.items()}
        return flows, sorted(groups.values()), meters, set(self.down)


class FakeDatapath:
    """One connection of a fake switch, with the parts of the framework's that are used."""

    ofproto, ofproto_parser = ofproto_v1_3, parser

    def __init__(self, switch: FakeSwitch) -> None:
        self._switch = switch
        self._xid = 0
        self._connection: Connection | None = None

    def connection_of(self, switch: Switch) -> Connection:
        self._connection = switch.open(self)
        return self._connection

    def set_xid(self, message: Any) -> int:
        self._xid += 1
        message.set_xid(self._xid)
        return self._xid

    def send_msg(self, message: Any) -> bool:
        message.serialize()
        return self.send(bytes(message.buf))

    def send(self, pieces: bytes) -> bool:
        """Take messages; those that are answered are answered before it returns."""
        assert self._connection is not None
        while pieces:
            _, kind, length, xid = struct.unpack_from("!BBHI", pieces)
            answer = self._switch.take(kind, pieces[8:length], pieces[:length])
            facts = {"datapath": self, "xid": xid}
            if isinstance(answer, tuple):
                error = SimpleNamespace(**facts, type=answer[0], code=answer[1])
                self._connection.failed(error)
            elif answer is not None:
                self._connection.answered(SimpleNamespace(**facts, body=answer, flags=0))
            pieces = pieces[length:]
        return True


DATAPATH = FakeDatapath(FakeSwitch())
