"""Inside a sandbox: the server of a script's lab, which carries out the script's requests."""

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
from testbed.lab.kernel import process_status
from testbed.run.processes import ProcessError
from testbed.run.session import LabSession
from testbed.scripting import by_hand
from testbed.scripting.by_hand import ManualImpairment
from testbed.shared import failure, jsonl, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.messages import Messages
from testbed.shared.registry import one_of
from testbed.verdict import link_changes
from testbed.verdict.gates import reasons

_KILL_S = 1.0  # what the kernel itself is stuck in takes longer
SAMPLES = ("queues", "flows", "processes")
Answer = tuple[dict[str, Any], list[int]]


class LabServer:
    """Builds a lab, calibrates it if it is to be judged, samples it, and answers requests."""

    def __init__(self, lab: LabSession, messages: Messages, *, calibrated: bool) -> None:
        self._messages, self._numbers = messages, itertools.count()
        self._began_at, self._began_s = run_directory.now(), time.monotonic()
        self._lab, self._calibrated = lab, calibrated
        self._impairments = by_hand.take_over_impairments(lab.config)
        self._sampling = ExitStack()
        lab.build()
        # Any host may open TCP connections to any other.
        flows = {"hosts": list(lab.info.hosts), "ports": (1, 65535), "centre": None}
        if self._calibrated:
            lab.observe()
            lab.calibrate()
        else:
            lab.warm_up()
        sampled = lab.watched(flows) if self._calibrated else lab.sampled(flows)
        self._sampler = self._sampling.enter_context(sampled)
        self._controller = ControllerClient(lab.controller_socket)
        self._changes = link_changes.Log(lab.directory, lab.info)
        self._begun: Counter[str] = Counter()
        self._verdict: dict[str, Any] | None = None
        # By number: programs that run, their pidfds and where to write their status; all sessions.
        self._programs: dict[int, tuple[subprocess.Popen[bytes], int, int]] = {}
        self._sessions: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._messages, selectors.EVENT_READ)

    def description(self) -> dict[str, Any]:
        return {
            "hosts": {name: host.address for name, host in self._lab.info.hosts.items()},
            "links": [
                (link.name, link.first.node, link.second.node) for link in self._lab.info.links
            ],
            "impairments": list(self._impairments),
        }

    def serve(self) -> None:
        """Answer requests and report ended programs; MessageError when the script has gone."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._report_end(key.data)
                    continue
                request, files = self._messages.receive()
                answer, ours = self._answer(request, files)
                self._messages.answer(request, answer, ours)
                for file in (*files, *ours):
                    os.close(file)

    def _answer(self, request: dict[str, Any], files: list[int]) -> Answer:
        """Answer a request; what cannot be done is answered with the reason."""
        try:
            if broken := self._lab.processes.first_ended():
                raise ProcessError(broken)
            answer: Answer = getattr(self, f"do_{request['do']}")(request, files)
        except Exception as error:
            if not failure.is_expected(error):
                traceback.print_exc()
            return {"error": failure.in_words(error), "bad": isinstance(error, InputError)}, []
        return answer

    def do_start(self, request: dict[str, Any], files: list[int]) -> Answer:
        """Start a program; `files` are its stdin, stdout, stderr, and where its status goes."""
        hosts = self._lab.info.hosts
        if request["host"] not in hosts:
            raise InputError(f"{request['host']}: {one_of(request['host'], hosts)}")
        stdin, stdout, stderr, status = files
        owner, number = leftovers.OWNER_VARIABLE, next(self._numbers)
        program = host_program.start(
            hosts[request["host"]],
            request["argv"],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=request["env"] | {owner: os.environ[owner]},
            cwd=Path(request["cwd"]),
        )
        pidfd = os.pidfd_open(program.pid)
        self._programs[number] = program, pidfd, os.dup(status)
        # A process id that is used again names a new session.
        self._sessions = {k: pid for k, pid in self._sessions.items() if pid != program.pid}
        self._sessions[number] = program.pid
        self._selector.register(pidfd, selectors.EVENT_READ, number)
        return {"number": number}, [os.dup(pidfd)]

    def do_signal(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """Send a signal to what is left of a program's session; SIGKILL leaves nothing of it."""
        session, sig = self._sessions[request["number"]], request["signal"]
        until_s = time.monotonic() + (_KILL_S if sig == signal.SIGKILL else 0.0)
        while members := list(process_status.session(session)):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, sig)
            if time.monotonic() > until_s:
                break
        return {}, []

    def do_listens(self, request: dict[str, Any], _files: list[int]) -> Answer:
        running = request["number"] in self._programs
        pid = self._sessions[request["number"]]
        return {"listens": running and process_status.listens(pid)}, []

    def do_link(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """Change a direction of a link, or nothing of it, and return its settings."""
        sender, receiver = request["way"]
        done = by_hand.change(self._controller, (sender, receiver), request["changes"])
        if request["changes"]:
            self._changes.add(sender, receiver, request["changes"], done)
        return {"now": done["now"]}, []

    def do_begin(self, request: dict[str, Any], _files: list[int]) -> Answer:
        impairment = self._impairment(request["name"])
        if impairment.name in self._controller.wait_ready():
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
        if self._verdict is None:
            self._sampler.write()
        folder = self._lab.directory / "samples"
        return {}, [os.open(folder / f"{name}.parquet", os.O_RDONLY) for name in SAMPLES]

    def do_verdict(self, request: dict[str, Any], _files: list[int]) -> Answer:
        """End sampling and judge the lab: once, further requests get the same."""
        if not self._calibrated:
            raise InputError("calibrated=False: there is nothing to judge this lab by")
        if self._verdict is None:
            self._controller.finish()
            self._sampling.close()
            begun = {record["name"] for record in jsonl.read(self._lab.impairment_log)}
            # That the script did not begin the others is no fault.
            self._lab.config["impairments"][:] = [
                self._impairments[name].document for name in self._impairments if name in begun
            ]
            gates = self._lab.judge()
            status: run_directory.Verdict = "invalid" if any(g.stops for g in gates) else "ok"
            self._verdict = {"status": status, "gates": [gate.as_json() for gate in gates]}
            run_directory.write_status(
                self._lab.directory,
                status,
                reasons(gates),
                began_at=self._began_at,
                wall_s=time.monotonic() - self._began_s,
                gates=self._verdict["gates"],
            )
        return self._verdict, []

    def _impairment(self, name: str) -> ManualImpairment:
        if name not in self._impairments:
            raise InputError(f"impairment {name!r}: {one_of(name, self._impairments)}")
        return self._impairments[name]

    def _report_end(self, number: int) -> None:
        """Write the exit status of a program that has ended."""
        program, pidfd, status = self._programs.pop(number)
        self._selector.unregister(pidfd)
        with suppress(BrokenPipeError):  # the script has dropped it
            os.write(status, str(program.wait()).encode())
        for file in (pidfd, status):
            os.close(file)
