"""Builds the lab of a script, and carries out what the script asks for."""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import subprocess
import time
import traceback
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from controllers.controller_socket import ControllerClient
from testbed.lab import host_program, leftovers
from testbed.lab.kernel import process_sockets, process_status, socket_defaults
from testbed.lab.kernel.commands import CommandError
from testbed.lab.network import HostInfo, LabInfo
from testbed.run import by_hand
from testbed.run.assembly import Lab
from testbed.run.by_hand import ManualImpairment, made
from testbed.run.inside import EXPECTED, Inside
from testbed.run.observed_lab import ObservedLab
from testbed.run.processes import ProcessError
from testbed.scripting.channel import Channel, ChannelError
from testbed.shared import failure, jsonl, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of
from testbed.transport.net.tcp import available_congestion_controls
from testbed.verdict import calibration, link_changes, sampling
from testbed.verdict.gate import reasons

_KILL_S = 1.0  # what the kernel itself is stuck in takes longer
SAMPLES = ("queues", "flows", "processes")
Answer = tuple[dict[str, Any], list[int]]


class Steward:
    """A lab that is built and watched, and the programs that the script has started in it."""

    def __init__(self, order: dict[str, Any], inside: Inside, channel: Channel) -> None:
        self._channel = channel
        self._began_at, self._began_s = run_directory.now(), time.monotonic()
        self._config: dict[str, Any] = order["config"]
        self._directory, self._processes = inside.directory, inside.processes
        self._impairments = by_hand.impairments(self._config["impairments"])
        self._config["impairments"] = [each.document for each in self._impairments.values()]
        self._watched = ExitStack()
        self._observed: ObservedLab | None = None
        if order["calibrated"]:
            self._lab = self._calibrated(inside)
        else:
            self._lab = self._unjudged(inside)
        self._info = self._lab.network.info
        self._controller = ControllerClient(self._lab.controller_socket)
        self._changes = link_changes.Log(self._directory, self._info)
        self._begun: Counter[str] = Counter()
        self._verdict: dict[str, Any] | None = None
        self._numbers = itertools.count()
        # By number: those that run, their pidfds and where to tell their status; all sessions.
        self._programs: dict[int, tuple[subprocess.Popen[bytes], int, int]] = {}
        self._sessions: dict[int, int] = {}
        # Of the running programs that asked for one: their host and its congestion control.
        self._controls: dict[int, tuple[HostInfo, str]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def _calibrated(self, inside: Inside) -> Lab:
        """A lab as of a run: all that its verdict takes is measured."""
        self._observed = ObservedLab(self._config, inside, data_ports=None)
        self._observed.calibrate()
        watched = self._observed.watched(_flows(self._observed.info))
        self._sampler = self._watched.enter_context(watched)
        return self._observed.lab

    def _unjudged(self, inside: Inside) -> Lab:
        """A lab that is there at once; sampling begins half a second later."""
        lab = Lab(self._config, inside)
        info = lab.network.info
        calibration.warm_up(info)
        lab.switch.deepen_buffers()
        order = sampling.order_of(
            info, flows=_flows(info), processes=self._processes.pids(), config=self._config
        )
        watched = sampling.sampled(self._directory, order, from_begin=False)
        self._sampler = self._watched.enter_context(watched)
        return lab

    def description(self) -> dict[str, Any]:
        """What the script knows of the lab."""
        return {
            "hosts": {name: host.address for name, host in self._info.hosts.items()},
            "links": [(each.name, each.first.node, each.second.node) for each in self._info.links],
            "impairments": list(self._impairments),
        }

    def serve(self) -> None:
        """Answer requests, and tell how programs end, until the script has gone."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._ended(key.data)
                    continue
                try:
                    request, files = self._channel.receive()
                    answer, ours = self._answered(request, files)
                    self._channel.send(answer, ours)
                except ChannelError:
                    return
                for file in (*files, *ours):
                    os.close(file)

    def _answered(self, request: dict[str, Any], files: list[int]) -> Answer:
        """The answer to a request; what cannot be done is answered with the reason."""
        try:
            obey = getattr(self, f"do_{request.get('do')}", None)
            if obey is None:
                raise InputError(f"there is no request {request.get('do')!r}")
            if broken := self._processes.first_ended():
                raise ProcessError(broken)
            answer: Answer = obey(request, files)
        except Exception as error:
            if not isinstance(error, EXPECTED):
                traceback.print_exc()
            return {"error": failure.in_words(error), "bad": isinstance(error, InputError)}, []
        return answer

    def do_start(self, request: dict[str, Any], files: list[int]) -> Answer:
        """Start a program: its stdin, stdout, stderr, and where to tell its status, are `files`."""
        host = self._info.hosts.get(request["host"])
        if host is None:
            raise InputError(f"{request['host']}: {one_of(request['host'], self._info.hosts)}")
        stdin, stdout, stderr, tell = files
        owner, number = leftovers.OWNER_VARIABLE, next(self._numbers)
        if request["congestion_control"] is not None:
            self._set_control(number, host, str(request["congestion_control"]))
        try:
            program = host_program.start(
                host,
                request["argv"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=request["env"] | {owner: os.environ[owner]},
                cwd=Path(request["cwd"]),
            )
        except BaseException:
            self._release_control(number)
            raise
        ended = os.pidfd_open(program.pid)
        self._programs[number] = program, ended, os.dup(tell)
        # A session whose number is given anew has nobody left.
        self._sessions = {k: each for k, each in self._sessions.items() if each != program.pid}
        self._sessions[number] = program.pid
        return {"number": number}, [os.dup(ended)]

    def do_watch(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """Tell a program's status when it has ended: its process id is known, and may vanish."""
        _, ended, _ = self._programs[request["number"]]
        self._selector.register(ended, selectors.EVENT_READ, request["number"])
        return {}, []

    def do_signal(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """Send a signal to what is left of a program's session; SIGKILL leaves nothing of it."""
        session, sig = self._sessions.get(request["number"], -1), request["signal"]
        until_s = time.monotonic() + (_KILL_S if sig == signal.SIGKILL else 0.0)
        while members := list(process_status.session(session)):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, sig)
            if time.monotonic() > until_s:
                break
        return {}, []

    def do_listens(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """Whether a program runs and listens."""
        found = self._programs.get(request["number"])
        return {"listens": found is not None and process_sockets.listens(found[0].pid)}, []

    def do_link(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """Change a direction of a link, or nothing of it, and say what it is set to."""
        sender, receiver = request["way"]
        done = made(self._controller, (sender, receiver), request["changes"])
        if request["changes"]:
            self._changes.add(sender, receiver, request["changes"], done)
        return {"now": done["now"]}, []

    def do_begin(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """Begin an impairment."""
        impairment = self._impairment(request["name"])
        if impairment.name in self._controller.active():
            raise ProcessError(f"impairment {impairment.name} is in force already")
        active = self._controller.begin(impairment.round_number, "round")
        if impairment.name not in active and not impairment.ends_by_itself:
            raise ProcessError(f"impairment {impairment.name} did not begin")
        self._begun[impairment.name] += 1
        return {}, []

    def do_end(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """End an impairment; one that ends by itself may still be `active` afterwards."""
        impairment = self._impairment(request["name"])
        if not impairment.ends_by_itself:
            self._controller.end(impairment.round_number, "round")
        ends = [
            each
            for each in jsonl.read(self._lab.impairment_log)
            if (each["name"], each["action"]) == (impairment.name, "end")
        ]
        # Its record follows its end, once what it did is measured.
        active = len(ends) < self._begun[impairment.name]
        known = ("met", "dropped", "frames_sent")
        effect = {key: ends[-1].get(key) for key in known} | ends[-1]["details"] if ends else {}
        return {"active": active, "effect": effect}, []

    def do_samples(self, _request: dict[str, Any], _files: list[int]) -> Answer:
        """Hand over the files of all samples so far."""
        if self._verdict is None:
            self._sampler.write()
        folder = self._directory / "samples"
        return {}, [os.open(folder / f"{name}.parquet", os.O_RDONLY) for name in SAMPLES]

    def do_verdict(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """End sampling and judge the lab: once, further requests get the same."""
        if self._observed is None:
            raise InputError("calibrated=False: there is nothing to judge this lab by")
        if self._verdict is None:
            self._controller.finish()
            self._watched.close()
            begun = {each["name"] for each in jsonl.read(self._lab.impairment_log)}
            # The others were there for the taking: that they did not begin is no fault.
            self._config["impairments"][:] = [
                each.document for each in self._impairments.values() if each.name in begun
            ]
            found = self._observed.judge(others=request["others"])
            status: run_directory.Verdict = "invalid" if any(g.stops for g in found) else "ok"
            run_directory.write_status(
                self._directory,
                status,
                "; ".join(filter(None, (reasons(found), self._observed.remark()))),
                began_at=self._began_at,
                wall_s=time.monotonic() - self._began_s,
                gates=[gate.as_json() for gate in found],
            )
            self._verdict = {"status": status, "gates": [gate.as_json() for gate in found]}
        return self._verdict, []

    def _set_control(self, number: int, host: HostInfo, wanted: str) -> None:
        """Set a host's congestion control until a program ends."""
        said = f"{host.name}: congestion_control: {wanted!r}"
        for place, used in self._controls.values():
            if place is host and used != wanted:
                raise InputError(f"{said}: a program that runs there has {used!r}; valid: this one")
        try:
            socket_defaults.set_congestion_control(host.pid, wanted)
        except CommandError:
            valid = available_congestion_controls()
            if not any(place is host for place, _ in self._controls.values()):
                socket_defaults.set_congestion_control(
                    host.pid, None
                )  # some of the routes may have it
            if wanted in valid:
                raise
            raise InputError(f"{said}: the kernel refuses it; valid: {', '.join(valid)}") from None
        self._controls[number] = host, wanted

    def _release_control(self, number: int) -> None:
        """A program has ended: its host has the kernel's default again, unless others need more."""
        host, _ = self._controls.pop(number, (None, ""))
        if host is not None and not any(place is host for place, _ in self._controls.values()):
            socket_defaults.set_congestion_control(host.pid, None)

    def _impairment(self, name: str) -> ManualImpairment:
        if name not in self._impairments:
            raise InputError(f"impairment {name!r}: {one_of(name, self._impairments)}")
        return self._impairments[name]

    def _ended(self, number: int) -> None:
        """Tell the status of a program that has ended."""
        program, ended, tell = self._programs.pop(number)
        self._selector.unregister(ended)
        try:
            self._release_control(number)
        except CommandError:
            traceback.print_exc()
        with suppress(BrokenPipeError):  # the script has dropped it
            os.write(tell, str(program.wait()).encode())
        for file in (ended, tell):
            os.close(file)


def _flows(network: LabInfo) -> dict[str, Any]:
    """Any host may open TCP connections to any other."""
    return {"hosts": list(network.hosts), "ports": (1, 65535), "centre": None}
