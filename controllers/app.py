"""The Ryu application: proactive forwarding, then impairments on the training's schedule.

It reads one JSON file (`--lab-file`): the network's description, the impairments, the socket to
listen on and the file to log to.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from controllers.forwarding import next_hops
from controllers.framework import (
    CONFIG_DISPATCHER,
    MAIN_DISPATCHER,
    Datapath,
    Options,
    RyuApp,
    eventlet,
    hub,
    ofp_event,
    ofproto_v1_3,
    set_ev_cls,
    string_option,
)
from controllers.impairments import KINDS, Effect, Impairment, ImpairmentParameters
from controllers.messages import LINE_LIMIT_BYTES, parse_request
from controllers.timeline import Timeline
from testbed.jsonl import JsonLinesWriter
from testbed.lab.network import hosts_from_json

_TICK_S = 0.001
_REPLY_TIMEOUT_S = 5.0

string_option("lab-file", "JSON description of the network and its impairments")


class LabController(RyuApp):
    """One instance per lab."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]  # noqa: RUF012 (Ryu's own convention)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        document = json.loads(Path(Options.lab_file).read_text())
        self._network = document["network"]
        self._names = {dpid: name for name, dpid in self._network["switches"].items()}
        self._routes = next_hops(self._network)
        self._log = JsonLinesWriter(Path(document["log"]))
        self._datapaths: dict[str, Datapath] = {}
        self._waiting: dict[tuple[str, int], hub.Event] = {}
        self._ready = hub.Event()
        self._timeline = Timeline([self._impairment(each) for each in document["impairments"]])
        listener = eventlet.listen(document["socket"], family=socket.AF_UNIX)
        hub.spawn(self._accept, listener)

    # Forwarding

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def _switch_connected(self, event: Any) -> None:
        datapath = event.msg.datapath
        name = self._names.get(datapath.id)
        if name is None:
            self.logger.warning("a switch that is not of this lab connected: %s", datapath.id)
            return
        self._datapaths[name] = datapath
        parser, protocol = datapath.ofproto_parser, datapath.ofproto
        for mac, port in self._routes[name]:
            action = parser.OFPActionOutput(port)
            datapath.send_msg(
                parser.OFPFlowMod(
                    datapath=datapath,
                    priority=10,
                    match=parser.OFPMatch(eth_dst=mac),
                    instructions=[
                        parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, [action])
                    ],
                )
            )
        hub.spawn(self._confirm_forwarding, name)

    def _confirm_forwarding(self, name: str) -> None:
        self.barrier(name)
        if set(self._datapaths) == set(self._network["switches"]):
            self._ready.set()

    # What impairments ask for (the `Switches` protocol)

    def packet_out(self, switch: str, port: int, frame: bytes, copies: int) -> None:
        """Emit `frame` `copies` times at `port` with one message."""
        datapath = self._datapaths[switch]
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

    def barrier(self, switch: str) -> None:
        """Return when the switch has processed everything sent before."""
        datapath = self._datapaths[switch]
        request = datapath.ofproto_parser.OFPBarrierRequest(datapath)
        datapath.set_xid(request)
        key = (switch, request.xid)
        answered = self._waiting[key] = hub.Event()
        datapath.send_msg(request)
        try:
            if not answered.wait(_REPLY_TIMEOUT_S):
                raise TimeoutError(f"{switch} did not answer within {_REPLY_TIMEOUT_S:g} s")
        finally:
            del self._waiting[key]

    def sleep(self, duration_s: float) -> None:
        """Let other green threads run meanwhile."""
        hub.sleep(duration_s)

    @set_ev_cls(ofp_event.EventOFPBarrierReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def _barrier_reply(self, event: Any) -> None:
        key = (self._names.get(event.msg.datapath.id, ""), event.msg.xid)
        if key in self._waiting:
            self._waiting[key].set()

    # Impairments

    def _impairment(self, document: dict[str, Any]) -> Impairment[ImpairmentParameters]:
        model, implementation = KINDS[document["kind"]]
        parameters = model.model_validate(document)
        victim = hosts_from_json(self._network)[parameters.host]
        return implementation(parameters, victim, self)

    def _begin(self, round_number: int, leg: str) -> None:
        planned_s = time.monotonic()
        for impairment in self._timeline.starting(round_number, leg):
            sent_s = time.monotonic()
            impairment.begin()
            begun_s = time.monotonic()
            times_s = (planned_s, sent_s, begun_s)
            self._record(impairment, "begin", round_number, leg, times_s, Effect())
            hub.spawn(self._keep_going, impairment, round_number, leg, begun_s)

    def _keep_going(
        self, impairment: Impairment[Any], round_number: int, leg: str, began_s: float
    ) -> None:
        ends_s = began_s + impairment.duration_s()
        while (now_s := time.monotonic()) < ends_s:
            if impairment.parameters.label not in self._timeline.active:
                return
            impairment.tick(now_s - began_s)
            hub.sleep(_TICK_S)
        self._end(impairment, round_number, leg, ends_s)

    def _end(
        self, impairment: Impairment[Any], round_number: int, leg: str, planned_s: float
    ) -> None:
        if not self._timeline.ended(impairment):
            return
        sent_s = time.monotonic()
        impairment.end()
        times_s = (planned_s, sent_s, time.monotonic())
        self._record(impairment, "end", round_number, leg, times_s, impairment.effect())

    def _record(
        self,
        impairment: Impairment[Any],
        action: str,
        round_number: int,
        leg: str,
        times_s: tuple[float, float, float],
        effect: Effect,
    ) -> None:
        planned_s, sent_s, acknowledged_s = times_s
        self._log.write(
            {
                "name": impairment.parameters.label,
                "kind": impairment.parameters.kind,
                "host": impairment.parameters.host,
                "action": action,
                "round": round_number,
                "leg": leg,
                "planned_s": planned_s,
                "sent_s": sent_s,
                "acknowledged_s": acknowledged_s,
                **vars(effect),
            }
        )

    # The UNIX socket

    def _accept(self, listener: Any) -> None:
        while True:
            connection, _ = listener.accept()
            hub.spawn(self._serve, connection)

    def _serve(self, connection: Any) -> None:
        stream = connection.makefile("rwb")
        while line := stream.readline(LINE_LIMIT_BYTES):
            try:
                reply: dict[str, Any] = {"active": self._obey(parse_request(line))}
            except ValueError as error:
                reply = {"error": str(error)}
            except Exception as error:
                # The training must not go on as if the impairment were in force.
                self.logger.exception("request %r failed", line)
                reply = {"error": f"{type(error).__name__}: {error}"}
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()

    def _obey(self, request: dict[str, Any]) -> list[str]:
        if request["do"] == "wait-ready":
            self._ready.wait()
        elif request["do"] == "begin":
            self._begin(request["round"], request["leg"])
        else:
            planned_s = time.monotonic()
            for impairment in self._timeline.ending_with_leg():
                self._end(impairment, request["round"], request["leg"], planned_s)
        return self._timeline.active
