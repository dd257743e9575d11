"""Inside a sandbox: builds the lab of a script, and carries out what the script asks for."""

from __future__ import annotations

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
from testbed.lab.kernel import process_sockets, process_status
from testbed.run.processes import ProcessError
from testbed.run.session import LabSession
from testbed.scripting import by_hand
from testbed.scripting.by_hand import ManualImpairment
from testbed.shared import failure, jsonl, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.messages import Messages
from testbed.shared.registry import one_of
from testbed.verdict import link_changes
from testbed.verdict.gate import reasons

_KILL_S = 1.0  # what the kernel itself is stuck in takes longer
SAMPLES = ("queues", "flows", "processes")
Answer = tuple[dict[str, Any], list[int]]


class Steward:
    """A lab that is built and watched, and the programs that the script has started in it."""

    def __init__(self, lab: LabSession, messages: Messages, *, calibrated: bool) -> None:
        self._messages = messages
        self._began_at, self._began_s = run_directory.now(), time.monotonic()
        self._lab, self._config, self._judged = lab, lab.config, calibrated
        self._directory, self._processes = lab.directory, lab.processes
        self._impairments = by_hand.impairments(self._config["impairments"])
        self._config["impairments"] = [
            impairment.document for impairment in self._impairments.values()
        ]
        self._watched = ExitStack()

    def begin(self) -> None:
        """Build the lab; all that its verdict takes is measured, or else it is there at once."""
        self._lab.build()
        self._info = self._lab.info
        # Any host may open TCP connections to any other.
        flows = {"hosts": list(self._info.hosts), "ports": (1, 65535), "centre": None}
        if self._judged:
            self._lab.observe()
            self._lab.calibrate()
            watched = self._lab.watched(flows)
        else:
            self._lab.warm_up()
            watched = self._lab.sampled(flows)
        self._sampler = self._watched.enter_context(watched)
        self._controller = ControllerClient(self._lab.controller_socket)
        self._changes = link_changes.Log(self._directory, self._info)
        self._begun: Counter[str] = Counter()
        self._verdict: dict[str, Any] | None = None
        # By the numbers that the script gives them: those that run, their pidfds and where to tell
        # their status; all sessions.
        self._programs: dict[int, tuple[subprocess.Popen[bytes], int, int]] = {}
        self._sessions: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._messages, selectors.EVENT_READ)

    def description(self) -> dict[str, Any]:
        """What the script knows of the lab."""
        return {
            "hosts": {name: host.address for name, host in self._info.hosts.items()},
            "links": [(link.name, link.first.node, link.second.node) for link in self._info.links],
            "impairments": list(self._impairments),
        }

    def serve(self) -> None:
        """Answer requests, and tell how programs end; MessageError when the script has gone."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._ended(key.data)
                    continue
                request, files = self._messages.receive()
                answer, ours = self._answered(request, files)
                self._messages.answer(request, answer, ours)
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
            if not failure.is_expected(error):
                traceback.print_exc()
            return {"error": failure.in_words(error), "bad": isinstance(error, InputError)}, []
        return answer

    def do_start(self, request: dict[str, Any], files: list[int]) -> Answer:
        """Start a program: its stdin, stdout, stderr, and where to tell its status, are `files`."""
        host = self._info.hosts.get(request["host"])
        if host is None:
            raise InputError(f"{request['host']}: {one_of(request['host'], self._info.hosts)}")
        stdin, stdout, stderr, tell = files
        owner, number = leftovers.OWNER_VARIABLE, request["number"]
        program = host_program.start(
            host,
            request["argv"],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=request["env"] | {owner: os.environ[owner]},
            cwd=Path(request["cwd"]),
        )
        ended = os.pidfd_open(program.pid)
        self._programs[number] = program, ended, os.dup(tell)
        # A session whose number is given anew has nobody left.
        self._sessions = {
            k: session for k, session in self._sessions.items() if session != program.pid
        }
        self._sessions[number] = program.pid
        return {}, [os.dup(ended)]

    def do_watch(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """Tell a program's status when it has ended: its process id is known, and may vanish."""
        _, ended, _ = self._programs[request["number"]]
        self._selector.register(ended, selectors.EVENT_READ, request["number"])
        return {}, []

    def do_take_back(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """End a program that the script was interrupted in starting, if it was started at all."""
        self.do_signal(request | {"signal": signal.SIGKILL}, [])
        with suppress(KeyError):  # there is none, or it is watched already
            self.do_watch(request, [])
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
        done = by_hand.made(self._controller, (sender, receiver), request["changes"])
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
        # Its record follows its end, once what it did is measured.
        ended = by_hand.effects(self._lab.impairment_log, impairment.name)
        active = len(ended) < self._begun[impairment.name]
        return {"active": active, "effect": ended[-1] if ended else {}}, []

    def do_samples(self, _request: dict[str, Any], _files: list[int]) -> Answer:
        """Hand over the files of all samples so far."""
        if self._verdict is None:
            self._sampler.write()
        folder = self._directory / "samples"
        return {}, [os.open(folder / f"{name}.parquet", os.O_RDONLY) for name in SAMPLES]

    def do_verdict(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """End sampling and judge the lab: once, further requests get the same."""
        if not self._judged:
            raise InputError("calibrated=False: there is nothing to judge this lab by")
        if self._verdict is None:
            self._controller.finish()
            self._watched.close()
            begun = {each["name"] for each in jsonl.read(self._lab.impairment_log)}
            # The others were there for the taking: that they did not begin is no fault.
            self._config["impairments"][:] = [
                impairment.document
                for impairment in self._impairments.values()
                if impairment.name in begun
            ]
            found = self._lab.judge()
            status: run_directory.Verdict = "invalid" if any(g.stops for g in found) else "ok"
            run_directory.write_status(
                self._directory,
                status,
                reasons(found),
                began_at=self._began_at,
                wall_s=time.monotonic() - self._began_s,
                gates=[gate.as_json() for gate in found],
            )
            self._verdict = {"status": status, "gates": [gate.as_json() for gate in found]}
        return self._verdict, []

    def _impairment(self, name: str) -> ManualImpairment:
        if name not in self._impairments:
            raise InputError(f"impairment {name!r}: {one_of(name, self._impairments)}")
        return self._impairments[name]

    def _ended(self, number: int) -> None:
        """Tell the status of a program that has ended."""
        program, ended, tell = self._programs.pop(number)
        self._selector.unregister(ended)
        with suppress(BrokenPipeError):  # the script has dropped it
            os.write(tell, str(program.wait()).encode())
        for file in (ended, tell):
            os.close(file)
