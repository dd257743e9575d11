"""The controller application: installs forwarding rules, then runs impairments on schedule."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controllers import framework, impairments
from controllers.controller_socket import LINE_LIMIT_BYTES, POWERFUL, parse_request
from controllers.impairment_plan import places_of
from controllers.impairment_runner import ControllerLabAccess, ImpairmentRunner
from controllers.routing import Routing
from controllers.switches import ClosedError, Connection, LateError, PortState, Switch
from controllers.timeline import Timeline
from testbed.lab.kernel.commands import CommandError
from testbed.shared import failure, own_code
from testbed.shared.jsonl import JsonLinesWriter

# Higher than the training processes, because an impairment that waits for a processor is late.
_NICENESS = -10
_POLL_S = 0.001
_PAUSE_S = 0.1

_CONNECTED = [framework.CONFIG_DISPATCHER, framework.MAIN_DISPATCHER]


class ControllerServer:
    """Serves each client in a green thread of its own; counts and refuses what is no request."""

    def __init__(
        self, answer: Callable[[dict[str, Any]], dict[str, Any]], log: logging.Logger
    ) -> None:
        self._answer = answer
        self._log = log
        self.refused = 0

    def serve(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)  # of a controller that was killed
        listener = framework.eventlet.listen(path, family=socket.AF_UNIX)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:  # too many open files, or a client that is gone already
                self._log.warning("no client accepted: %s", error)
                framework.hub.sleep(_PAUSE_S)
            else:
                framework.hub.spawn(self._serve_client, connection)

    def _serve_client(self, connection: Any) -> None:
        withheld: set[str] = set()  # requests that this connection may not make
        # A client killed with unread replies must not end the controller.
        with contextlib.closing(connection), contextlib.suppress(ConnectionError):
            stream = connection.makefile("rwb")
            while line := stream.readline(LINE_LIMIT_BYTES):
                reply = self._reply(line, withheld)
                stream.write(json.dumps(reply).encode() + b"\n")
                stream.flush()
                if not line.endswith(b"\n"):  # too long, or cut off: what follows means nothing
                    return

    def _reply(self, line: bytes, withheld: set[str]) -> dict[str, Any]:
        try:
            if not line.endswith(b"\n"):
                raise ValueError(f"no line of at most {LINE_LIMIT_BYTES} bytes")
            request = parse_request(line)
            if request["do"] in withheld:
                raise ValueError(f"{request['do']!r}: this connection may only announce")
        except ValueError as error:
            self.refused += 1
            self._log.warning("refused request %d: %s", self.refused, error)
            return {"error": str(error)}
        if request["do"] == "announce-only":
            withheld.update(POWERFUL)
            return {}
        try:
            return self._answer(request)
        except (ValueError, CommandError) as error:
            return {"error": str(error)}
        except Exception as error:
            # The error must reach training, which must not go on without the impairment.
            self._log.exception("request %r failed", line)
            return {"error": failure.in_words(error)}


class LabController(framework.Application):
    OFP_VERSIONS = [framework.ofproto_v1_3.OFP_VERSION]  # noqa: RUF012 (Ryu's convention)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        with contextlib.suppress(OSError):  # without privileges the priority stays as it is
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
        document = json.loads(Path(framework.Options.lab_file).read_text(encoding="utf-8"))
        own_code.expect(document["code"])
        network = document["network"]
        self._switches = {name: Switch(name) for name in network["switches"]}
        self._names = {number: name for name, number in network["switches"].items()}
        records = Path(document["log"]).parent
        shared = Path(document["socket"]).parent
        self._lab = ControllerLabAccess(network, self._switches, records, shared)
        self._routing = Routing(network, self._switches, self.logger.info)
        self._ready = framework.hub.Event()
        self._confirmed: set[str] = set()  # switches whose forwarding rules are installed
        made = [impairments.make(entry, self._lab) for entry in document["impairments"]]
        timeline = Timeline(made, places_of(network))
        self._runner = ImpairmentRunner(timeline, JsonLinesWriter(Path(document["log"])))
        self._lab.in_thread(time.monotonic)  # starts the threads before an impairment is due
        gc.freeze()
        server = ControllerServer(self._answer, self.logger)
        framework.hub.spawn(server.serve, document["socket"])

    # Switches

    @framework.set_ev_cls(framework.ofp_event.EventOFPSwitchFeatures, framework.CONFIG_DISPATCHER)
    def _switch_connected(self, event: Any) -> None:
        datapath = event.msg.datapath
        name = self._names.get(datapath.id)
        if name is None:
            self.logger.warning(
                "a switch connected that does not belong to this lab: %s", datapath.id
            )
            return
        framework.hub.spawn(self._bring_back, name, self._switches[name].open(datapath))

    def _bring_back(self, name: str, connection: Connection) -> None:
        try:
            self._routing.bring_back(name, connection)
        except ClosedError as error:
            self.logger.warning("%s", error)
            return
        except LateError as error:
            self.logger.warning("%s: it has to connect again", error)
            connection.datapath.close()
            return
        self._confirmed.add(name)
        if self._confirmed == set(self._switches):
            self._ready.set()

    @framework.set_ev_cls(framework.ofp_event.EventOFPPortStatus, framework.MAIN_DISPATCHER)
    def _port_changed(self, event: Any) -> None:
        message = event.msg
        name = self._names.get(message.datapath.id)
        if name is not None:
            exists = message.reason != framework.ofproto_v1_3.OFPPR_DELETE
            is_live = exists and PortState.of(message.desc).is_live
            framework.hub.spawn(self._routing.ports_are, name, {message.desc.port_no: is_live})

    @framework.set_ev_cls(
        [
            framework.ofp_event.EventOFPBarrierReply,
            framework.ofp_event.EventOFPPortDescStatsReply,
        ],
        _CONNECTED,
    )
    def _answered(self, event: Any) -> None:
        if connection := Connection.of(event.msg.datapath):
            connection.answered(event.msg)

    @framework.set_ev_cls(framework.ofp_event.EventOFPErrorMsg, _CONNECTED)
    def _failed(self, event: Any) -> None:
        if connection := Connection.of(event.msg.datapath):
            connection.failed(event.msg)

    @framework.set_ev_cls(framework.ofp_event.EventOFPStateChange, framework.DEAD_DISPATCHER)
    def _disconnected(self, event: Any) -> None:
        connection = Connection.of(event.datapath)
        if connection is not None and self._switches[connection.switch].closed(connection):
            self.logger.warning(
                "switch %s disconnected; it gets its rules again on return", connection.switch
            )

    # The UNIX socket

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        do, runner = request["do"], self._runner
        # Both use this machine's clock, so the time in the socket counts as lateness too.
        at_s = request.get("at_s") or time.monotonic()
        if do == "begin":
            return {"active": runner.leg_begins(request["round"], request["leg"], at_s)}
        if do == "end":
            return {"active": runner.leg_ends(request["round"], request["leg"], at_s)}
        changed: dict[str, Any] = {}
        if do == "wait-ready":
            self._ready.wait()
            while self._routing.is_busy:  # a port came up meanwhile
                framework.hub.sleep(_POLL_S)
        elif do == "link":
            way = request["from"], request["to"]
            sent_s = time.monotonic()
            self._lab.links.change(*way, request["set"])
            changed = {"sent_s": sent_s, "acknowledged_s": time.monotonic()}
            changed["now"] = self._lab.links.now(*way)
        elif do == "processes":
            self._lab.processes.update(request["pids"])
        elif do == "start":
            runner.start(at_s)
        else:
            runner.finish(at_s)
        return {"active": runner.active, **changed}
