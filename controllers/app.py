"""The controller application: installs forwarding rules, then runs impairments on schedule.

It reads one file (`--lab-file`), which gives the network, the impairments, the socket to listen on
and the file to log to. The lab writes this file, or a person does (see `lab_file.py`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from controllers import impairments, lab_file
from controllers.controller_socket import LINE_LIMIT_BYTES, parse_request
from controllers.framework import (
    CONFIG_DISPATCHER,
    DEAD_DISPATCHER,
    MAIN_DISPATCHER,
    Application,
    Options,
    eventlet,
    hub,
    ofp_event,
    ofproto_v1_3,
    set_ev_cls,
    string_option,
)
from controllers.impairment_plan import contradict, places_of
from controllers.impairment_runner import ImpairmentRunner
from controllers.lab_access import ControllerLabAccess
from controllers.routing import Routing
from controllers.timeline import Timeline
from testbed.lab.kernel.commands import CommandError
from testbed.shared import failure
from testbed.shared.jsonl import JsonLinesWriter

# Higher than the training processes, because an impairment that waits for a processor is late.
_NICENESS = -10

string_option("lab-file", "JSON description of the network and its impairments")


class LabController(Application):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]  # noqa: RUF012 (the framework's own convention)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        with contextlib.suppress(OSError):  # without privileges the priority stays as it is
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
        document = lab_file.read(Path(Options.lab_file))
        self._network = document["network"]
        self._lab = ControllerLabAccess(self._network, Path(document["log"]).parent)
        self._routing = Routing(self._network, self._lab, self.logger.info)
        places = places_of(self._network)
        self._ready = hub.Event()
        self._confirmed: set[str] = set()  # switches whose forwarding rules are installed
        self._runner = ImpairmentRunner(
            Timeline(
                [impairments.make(each, self._lab) for each in document["impairments"]],
                lambda first, second: contradict(first, second, places),
            ),
            JsonLinesWriter(Path(document["log"])),
        )
        self._lab.in_thread(time.monotonic)  # starts the threads before an impairment is due
        gc.freeze()
        if "socket" in document:
            listener = eventlet.listen(document["socket"], family=socket.AF_UNIX)
            hub.spawn(self._accept, listener)
        else:  # by hand: no one announces rounds, so time counts from here
            hub.spawn(self._start_when_ready)

    def _start_when_ready(self) -> None:
        self._ready.wait()
        self._runner.start(time.monotonic())

    # Forwarding

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def _switch_connected(self, event: Any) -> None:
        datapath = event.msg.datapath
        name = self._lab.name(datapath)
        if name is None:
            self.logger.warning(
                "a switch connected that does not belong to this lab: %s", datapath.id
            )
            return
        self._lab.connected(name, datapath)
        hub.spawn(self._forward, name, datapath)

    def _forward(self, name: str, datapath: Any) -> None:
        self._lab.learn_ports(name)
        self._routing.connect(name, datapath)
        self._lab.barrier(name)
        self._confirmed.add(name)
        if self._confirmed == set(self._network["switches"]):
            self._ready.set()

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def _port_changed(self, event: Any) -> None:
        name = self._lab.name(event.msg.datapath)
        if name is not None:
            port, protocol = event.msg.desc, event.msg.datapath.ofproto
            is_dead = bool(
                port.config & protocol.OFPPC_PORT_DOWN or port.state & protocol.OFPPS_LINK_DOWN
            )
            hub.spawn(lambda: self._routing.port_state(name, port.port_no, up=not is_dead))

    # Messages from switches

    @set_ev_cls(
        [
            ofp_event.EventOFPBarrierReply,
            ofp_event.EventOFPDescStatsReply,
            ofp_event.EventOFPFlowStatsReply,
            ofp_event.EventOFPMeterStatsReply,
            ofp_event.EventOFPPortDescStatsReply,
        ],
        [CONFIG_DISPATCHER, MAIN_DISPATCHER],
    )
    def _answered(self, event: Any) -> None:
        self._lab.answered(event.msg)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def _refused(self, event: Any) -> None:
        self._lab.refused(event.msg)

    @set_ev_cls(ofp_event.EventOFPStateChange, DEAD_DISPATCHER)
    def _disconnected(self, event: Any) -> None:
        name = self._lab.disconnected(event.datapath)
        if name is not None:
            self._routing.disconnect(name)
            self.logger.warning("switch %s disconnected", name)

    # The UNIX socket

    def _accept(self, listener: Any) -> None:
        while True:
            connection, _ = listener.accept()
            hub.spawn(self._serve_until_gone, connection)

    def _serve_until_gone(self, connection: Any) -> None:
        # A client killed with unread replies must not end the controller.
        with contextlib.suppress(ConnectionError):
            self._serve(connection)

    def _serve(self, connection: Any) -> None:
        stream = connection.makefile("rwb")
        while line := stream.readline(LINE_LIMIT_BYTES):
            try:
                request = parse_request(line)
                changed = self._link(request) if request["do"] == "link" else {}
                reply = {"active": self._obey(request), **changed}
            except (ValueError, CommandError) as error:
                reply = {"error": str(error)}
            except Exception as error:
                # The error must reach training, which must not go on without the impairment.
                self.logger.exception("request %r failed", line)
                reply = {"error": failure.in_words(error)}
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()

    def _link(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change a direction of a link, if anything of it is to be set; tell what it is now."""
        way = request["from"], request["to"]
        sent_s = time.monotonic()
        self._lab.links.change(*way, request["set"])
        times = {"sent_s": sent_s, "acknowledged_s": time.monotonic()}
        return {"now": self._lab.links.now(*way), **times}

    def _obey(self, request: dict[str, Any]) -> list[str]:
        # Both use this machine's clock, so the time in the socket counts as lateness too.
        at_s = request.get("at_s") or time.monotonic()
        if request["do"] == "wait-ready":
            self._ready.wait()
        elif request["do"] == "link":
            return self._runner.active
        elif request["do"] == "processes":
            self._lab.processes.update(request["pids"])
        elif request["do"] == "start":
            self._runner.start(at_s)
        elif request["do"] == "begin":
            return self._runner.leg_begins(request["round"], request["leg"], at_s)
        elif request["do"] == "end":
            return self._runner.leg_ends(request["round"], request["leg"], at_s)
        else:
            self._runner.finish(at_s)
        return self._runner.active
