"""A switch is brought back to its plan, and what it refuses or forgets is told."""

import random
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controllers import switches as switching
from controllers.framework import hub, ofproto_v1_3
from controllers.impairment_runner import ControllerLabAccess
from controllers.routing import Routing
from controllers.switches import (
    ClosedError,
    Connection,
    Flow,
    LateError,
    RefusedError,
    Switch,
    parser,
)

_PORT_MOD, _GROUP_MOD, _MULTIPART, _BARRIER, _FLOW_MOD = 16, 15, 18, 20, 14
FLOW_FAILED, GROUP_FAILED = 5, 6


class FakeSwitch:
    """It keeps what a switch holds; each connection of it is a `FakeDatapath`."""

    def __init__(self) -> None:
        # By priority and match: instructions, in Ryu's words.
        self.flows: dict[tuple[int, str], str] = {}
        self.groups: dict[int, bytes] = {}  # by number: what was added
        self.down: set[int] = set()  # ports that were taken down
        self.dead: set[int] = set()  # ports without a carrier
        # By a message's type and body: the error's type and code where it is refused.
        self.refuse: Callable[[int, bytes], tuple[int, int] | None] = lambda *_: None
        self.mute = 0  # so many requests for ports are not answered

    def connect(self, switch: Switch) -> Connection:
        connection = FakeDatapath(self).connection_of(switch)
        switch.bring_back(connection, connection.ports())
        return connection

    def take(self, kind: int, body: bytes, whole: bytes) -> Any:
        if error := self.refuse(kind, body):
            return error
        if kind == _FLOW_MOD:
            return self._flow(whole)
        if kind == _GROUP_MOD:
            command, number = struct.unpack_from("!H2xI", body)
            return self._group(command, number, body)
        if kind == _PORT_MOD:
            port, config = struct.unpack_from("!I12xI", body)
            (self.down.add if config & 1 else self.down.discard)(port)
        if kind == _MULTIPART:
            self.mute -= 1
            return None if self.mute >= 0 else self._ports()
        return [] if kind == _BARRIER else None

    def _flow(self, whole: bytes) -> tuple[int, int] | None:
        message = parser.OFPFlowMod.parser(DATAPATH, 4, _FLOW_MOD, len(whole), 0, whole)
        place = (message.priority, str(message.match))
        if message.command == ofproto_v1_3.OFPFC_ADD:
            text = str([instruction.to_jsondict() for instruction in message.instructions])
            for instruction in message.instructions:
                for action in getattr(instruction, "actions", []):
                    if getattr(action, "group_id", None) not in (None, *self.groups):
                        return FLOW_FAILED, 0  # it has no such group
            self.flows[place] = text
            return None
        if message.command == ofproto_v1_3.OFPFC_DELETE_STRICT:
            self.flows.pop(place, None)
        else:
            self.flows.clear()
        return None

    def _group(self, command: int, number: int, body: bytes) -> tuple[int, int] | None:
        if command == 0 and number in self.groups:
            return GROUP_FAILED, 0
        if command == 0:
            self.groups[number] = body
        elif number == ofproto_v1_3.OFPG_ALL:
            self.groups.clear()
        else:
            self.groups.pop(number, None)
        return None

    def _ports(self) -> list[Any]:
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
        for place, text in self.flows.items():
            for number, body in groups.items():
                text = text.replace(f"'group_id': {number}", body.hex())
            flows[place] = text
        return flows, sorted(groups.values()), set(self.down)


class FakeDatapath:
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


MACS = {"a": "00:00:00:00:00:01", "b": "00:00:00:00:00:02"}


def diamond() -> dict[str, Any]:
    """s1 and s4, two ways between them; host a at s1, host b at s4; port 1 leads to the host."""

    def end(node: str, number: int) -> dict[str, Any]:
        return {"node": node, "number": number}

    ways = [("s1", 2, "s2", 1), ("s1", 3, "s3", 1), ("s2", 2, "s4", 2), ("s3", 2, "s4", 3)]
    links = [{"first": end(a, i), "second": end(b, j)} for a, i, b, j in ways]
    links += [
        {"first": end(host, 0), "second": end(at, 1)} for host, at in (("a", "s1"), ("b", "s4"))
    ]
    hosts = {name: {"mac": mac} for name, mac in MACS.items()}
    return {
        "switches": {f"s{index}": index for index in range(1, 5)},
        "hosts": hosts,
        "links": links,
    }


class Fabric:
    def __init__(self) -> None:
        network = diamond()
        self.switches = {name: Switch(name) for name in network["switches"]}
        self.routing = Routing(network, self.switches, lambda _: None)
        self.fakes = {name: FakeSwitch() for name in self.switches}
        nothing: dict[str, Any] = {"hosts": {}, "links": []}
        self.lab = ControllerLabAccess(nothing, self.switches, Path(), Path())

    def connect(self, name: str) -> None:
        connection = FakeDatapath(self.fakes[name]).connection_of(self.switches[name])
        self.routing.bring_back(name, connection)

    def connect_all(self) -> None:
        for name in self.switches:
            self.connect(name)

    def ports_towards(self, switch: str, host: str) -> str:
        """It returns the instructions of the plain entry for a host, in Ryu's words."""
        for (priority, match), text in self.fakes[switch].flows.items():
            if priority == 10 and MACS[host] in match:
                return text
        return ""


@pytest.fixture
def fabric() -> Fabric:
    made = Fabric()
    made.connect_all()
    return made


ENTRY = Flow(priority=20, match=(("eth_dst", MACS["b"]),), ports=(1,))


@pytest.mark.parametrize("loses", ["everything", "nothing"])
def test_a_switch_that_returns_has_what_is_in_force_now(fabric, loses):
    lab = fabric.lab
    lab.set_port("s1", 2, up=False)
    fabric.routing.ports_are("s1", {2: False})
    planned = fabric.fakes["s1"].contents()
    assert planned[2] == {2}
    if loses == "everything":
        fabric.fakes["s1"] = FakeSwitch()
    fabric.connect("s1")
    assert fabric.fakes["s1"].contents() == planned
    lab.set_port("s1", 2, up=True)
    fabric.connect("s1")
    assert fabric.fakes["s1"].down == set()


def test_what_changes_while_a_switch_is_away_is_there_when_it_returns(fabric):
    before = fabric.ports_towards("s1", "b")
    assert "group_id" in before
    fabric.switches["s1"].closed(fabric.switches["s1"]._connection)
    fabric.routing.ports_are("s2", {2: False})
    assert fabric.ports_towards("s1", "b") == before
    fabric.connect("s1")
    assert "'port': 3" in fabric.ports_towards("s1", "b")
    assert fabric.fakes["s1"].groups == {}
    fabric.routing.ports_are("s2", {2: True})
    assert len(fabric.fakes["s1"].groups) == 2


def test_a_link_that_is_down_when_a_switch_connects_is_known():
    fabric = Fabric()
    fabric.fakes["s1"].dead = {3}
    fabric.connect_all()
    assert "'port': 2" in fabric.ports_towards("s1", "b")
    assert fabric.fakes["s1"].groups == {}
    assert fabric.routing.down == {frozenset(("s1", "s3"))}
    assert "'port': 1" in fabric.ports_towards("s4", "b")
    assert "'port': 2" in fabric.ports_towards("s4", "a")


def test_a_refusal_is_raised_once_in_the_words_of_the_specification(fabric):
    fabric.fakes["s1"].refuse = lambda kind, _: (FLOW_FAILED, 1) if kind == 14 else None
    switch = fabric.switches["s1"]
    switch.put(ENTRY)
    fabric.lab.barrier("s1")  # forwarding's refusals are no impairment's
    with pytest.raises(RefusedError, match=rf"^s1 refused flow .*{MACS['b']}.*: OFPFMFC_TABLE_F"):
        switch.confirm_forwarding()
    switch.confirm_forwarding()
    fabric.fakes["s1"].refuse = lambda kind, _: (77, 5) if kind == 16 else None
    fabric.lab.set_port("s1", 2, up=False)
    switch.confirm_forwarding()  # and the other way round
    with pytest.raises(RefusedError, match="change of port 2: OpenFlow error type 77 code 5"):
        fabric.lab.barrier("s1")
    # So it is with the plan of a switch that returns.
    fabric.fakes["s1"].refuse = lambda kind, _: (6, 3) if kind == 15 else None
    with pytest.raises(RefusedError, match=r"s1 refused .*group: OFPGMFC_OU"):
        fabric.connect("s1")


def test_who_confirms_waits_until_a_switch_that_is_gone_returns(fabric):
    switch = fabric.switches["s1"]
    old = switch._connection
    assert old is not None
    switch.closed(old)
    with pytest.raises(ClosedError, match="s1 is not connected"):
        old.ports()
    fabric.lab.set_port("s1", 2, up=False)
    done: list[str] = []

    def confirm() -> None:
        fabric.lab.barrier("s1")
        done.append("confirmed")

    hub.spawn(confirm)
    hub.sleep(0.01)
    assert done == []
    fabric.connect("s1")
    hub.sleep(0.01)
    assert done == ["confirmed"]
    assert fabric.fakes["s1"].down == {2}


def test_a_switch_that_does_not_name_its_ports_is_late_and_may_connect_again(fabric, monkeypatch):
    monkeypatch.setattr(switching, "REPLY_TIMEOUT_S", 0.01)
    fabric.fakes["s1"].mute = 1
    with pytest.raises(LateError, match="s1 did not name its ports within"):
        fabric.connect("s1")
    fabric.connect("s1")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happened_a_switch_holds_what_a_new_one_would_get(seed):
    draw = random.Random(seed)
    switch, fake = Switch("s1"), FakeSwitch()
    connection = None
    flows = [
        Flow(priority=10, match=(("eth_dst", f"00:00:00:00:00:0{mac}"),), ports=ports)
        for mac in range(1, 4)
        for ports in ((1,), (1, 2), (2, 1), (1, 2, 3))
    ]
    for _ in range(60):
        match draw.randrange(7):
            case 0 | 1 | 2:
                switch.put(*draw.sample(flows, 2))
            case 3:
                switch.drop(draw.choice(flows))
                switch.drop_unused_groups()
            case 4:
                switch.set_port(draw.randrange(1, 5), up=bool(draw.randrange(2)))
            case 5 if connection is not None:
                switch.closed(connection)
            case 6:
                connection = fake.connect(switch)
    fake.connect(switch)
    switch.drop_unused_groups()
    new = FakeSwitch()
    new.connect(switch)
    assert fake.contents() == new.contents()
