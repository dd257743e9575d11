"""Runs the workload of a lab for the supervisor: training, or programs of a user's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controllers.controller_socket import ControllerClient
from testbed.lab import host_program, paths
from testbed.lab.kernel import process_status, socket_defaults
from testbed.run.processes import ProcessError, end_of, how_ended, killed_by
from testbed.run.session import LabSession, topology_of
from testbed.shared import run_directory
from testbed.shared.jsonl import JsonLinesWriter
from testbed.shared.messages import PROGRAMS, TRAINING, ProgressWriter
from testbed.shared.run_directory import LOADED, LOST_WORKERS, open_file
from testbed.transport.wire import DATA_PORTS
from testbed.verdict import flows
from testbed.workload import markers
from testbed.workload.markers import MarkerSocket, Rounds
from testbed.workload.settings import resolved

_LOAD_TIMEOUT_S = 300.0  # of model and data
FILE = "workload.json"
OUTPUT = "output"  # folder of what programs printed
_POLL_S = 0.02  # for a listening socket
_SERVICE_TIMEOUT_S = 2.0  # to end


class TrainingWorkload:
    """Trains in a lab, when it has loaded model and data; its process has been started before."""

    stage = TRAINING
    data_ports = DATA_PORTS

    def __init__(self, lab: LabSession, progress: ProgressWriter) -> None:
        self._lab = lab
        self._hosts = topology_of(lab.config).host_names()
        ports = DATA_PORTS if lab.config["protocol"]["carrier"] == "tcp" else None
        self.flows = {"hosts": self._hosts, "ports": ports, "centre": "server"}
        self._progress = progress

    def wait_until_loaded(self) -> None:
        """Return once it takes the processors no more: calibration must have them for itself."""
        self._lab.processes.wait_for(self._lab.logs / LOADED, TRAINING, _LOAD_TIMEOUT_S)

    def run(self) -> None:
        lab, names, network = self._lab, self._hosts, self._lab.info.as_json()
        order = {
            "hosts": {name: vars(lab.info.hosts[name]) for name in names},
            "fair_shares_bps": paths.fair_shares(network, names[1:], "rate_bps"),
            "fair_queues_bytes": paths.fair_shares(network, names[1:], "queue_bytes"),
            "controller_socket": str(lab.controller_socket),
            "coordination_socket": str(lab.private / "coordination.sock"),
            "progress_descriptor": self._progress.messages.fileno(),
        }
        lab.processes.send(TRAINING, order)
        lab.processes.wait_until_done(TRAINING, lab.config["limits"]["run_timeout_s"])

    def check(self) -> None:
        """Raise ProcessError where another congestion control ran than was configured."""
        configured = self._lab.config["protocol"]["congestion_control"]
        if different := flows.wrong_congestion_control(self._lab.directory, configured):
            raise ProcessError(different)

    def remark(self) -> str:
        lost = self._lab.logs / LOST_WORKERS
        if not lost.exists():
            return ""
        return f"went on without {'; '.join(lost.read_text(encoding='utf-8').splitlines())}"


class _Program:
    """One program of the workload: its settings, and what became of it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.name, self.host = str(settings["name"]), str(settings["host"])
        self.is_service = bool(settings["service"])
        self.process: subprocess.Popen[bytes] | None = None
        self.began_s: float | None = None
        self.ended_s: float | None = None
        self.listened_s: float | None = None

    @property
    def is_awaited(self) -> bool:
        """True while the workload cannot end without its end."""
        return not self.is_service and self.ended_s is None

    def is_ready(self) -> bool:
        """Tell whether those that come after it may start: it listens, or has ended well."""
        if self.process is None:
            return False
        if self.ended_s is not None:
            return self.listened_s is not None or not self.process.poll()
        if self.listened_s is None and process_status.listens(self.process.pid):
            self.listened_s = time.monotonic()
        return self.listened_s is not None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, number)

    def as_json(self) -> dict[str, Any]:
        keys = ("name", "host", "run", "service", "congestion_control", "output")
        times = {key: getattr(self, key) for key in ("began_s", "listened_s", "ended_s")}
        status = None if self.process is None else self.process.poll()
        return {key: self.settings[key] for key in keys} | times | {"exit_status": status}


class ProgramWorkload:
    """Starts programs in their order, and waits until all but services have ended."""

    stage = PROGRAMS

    def __init__(self, lab: LabSession, progress: ProgressWriter) -> None:
        self._lab = lab
        config, section = lab.config, lab.config["workload"]
        self._programs = {program["name"]: _Program(program) for program in section["programs"]}
        ports = section["data_ports"]
        self.data_ports: tuple[int, int] | None = (ports[0], ports[1]) if ports else None
        self.flows = {
            "hosts": list(dict.fromkeys(program.host for program in self._programs.values())),
            "ports": self.data_ports or (1, 65535),
            "centre": None,
        }
        self._progress = progress
        self._folder = Path(config["folder"] or Path.cwd())
        self._rounds = config.get("rounds")
        self._limit_s = float(config["limits"]["run_timeout_s"])
        self._log: JsonLinesWriter | None = None
        self._remarks: list[str] = []

    def wait_until_loaded(self) -> None:
        """Return at once: programs begin when the network is calibrated."""

    def run(self) -> None:
        lab, programs = self._lab, self._programs.values()
        self._controller = ControllerClient(lab.controller_socket)
        # The path must be short (107 bytes), and programs of other users have to reach it.
        lab.private.chmod(0o711)
        place = lab.private / "markers.sock"
        rounds = Rounds(self._controller, self._write_round)
        socket = MarkerSocket(place, rounds)
        # Open vSwitch is no affair of the programs, and would refuse them.
        outside = {key: text for key, text in os.environ.items() if not key.startswith("OVS_")}
        # The hook for DistributedDataParallel writes there what its steps have lost.
        events = {"LAB_EVENTS": str((lab.directory / "events").resolve())}
        own = {markers.ENVIRONMENT: str(place), "LAB_SEED": str(lab.config["seed"])}
        self._environment = outside | own | events
        began_s = time.monotonic()
        try:
            self._controller.start()
            while any(program.is_awaited for program in programs):
                others_wait = self._start_ready()
                self._serve(socket, began_s, others_wait=others_wait)
            rounds.finish()
            self._controller.finish()
            self._end_services()
        finally:
            if socket.refused:
                self._remarks.append(
                    f"markers: {socket.refused} of {socket.refused + socket.accepted} lines were "
                    f"refused, first {socket.first_refused}"
                )
            socket.close()
            self._store(socket)
            self._controller.close()
            for program in programs:
                program.kill()

    def check(self) -> None:
        """Raise ProcessError where hosts used another congestion control than was configured."""
        configured = {
            program.host: str(program.settings["congestion_control"])
            for program in self._programs.values()
            if program.settings["congestion_control"]
        }
        if different := flows.wrong_congestion_control_of_hosts(self._lab.directory, configured):
            raise ProcessError(different)

    def remark(self) -> str:
        return "; ".join(self._remarks)

    # Starts

    def _start_ready(self) -> bool:
        """Start the programs whose predecessors are ready; return whether others still wait."""
        others_wait = False
        for program in self._programs.values():
            if program.process is not None:
                continue
            first = self._programs.get(program.settings["after"] or "")
            if first is None or first.is_ready():
                self._start(program)
                continue
            others_wait = True
            timeout_s = program.settings["after_timeout_s"]
            if first.began_s and time.monotonic() - first.began_s > timeout_s:
                raise ProcessError(
                    f"{program.name}: waited for {first.name}, which neither listened nor ended "
                    f"within {timeout_s:g} s (after_timeout_s); {self._last_output(first)}"
                )
        return others_wait

    def _start(self, program: _Program) -> None:
        settings, host = program.settings, self._lab.info.hosts[program.host]
        if settings["congestion_control"]:
            socket_defaults.set_congestion_control(host.pid, settings["congestion_control"])
        log = open_file(self._lab.logs / f"{program.name}.log", "ab")
        output = log
        if settings["output"]:
            (self._lab.directory / OUTPUT).mkdir(exist_ok=True)
            output = open_file(self._lab.directory / OUTPUT / settings["output"], "wb")
        # Gloo would ask the machine's name for its host's interface.
        own = {"GLOO_SOCKET_IFNAME": host.interface, "LAB_PROGRAM": program.name}
        with log, output:
            program.began_s = time.monotonic()
            program.process = host_program.start(
                host,
                resolved(settings["run"]),
                stdout=output.fileno(),
                stderr=log.fileno(),
                env=self._environment | own | settings.get("environment", {}),
                cwd=self._folder,
            )
        self._lab.processes.adopt({program.name: program.process})
        if self._is_first_of_host(program):
            self._controller.processes({host.name: program.process.pid})

    def _is_first_of_host(self, program: _Program) -> bool:
        """Tell whether impairments of its host's process act on it."""
        programs = self._programs.values()
        return program is next(other for other in programs if other.host == program.host)

    # Waiting

    def _serve(self, socket: MarkerSocket, began_s: float, *, others_wait: bool) -> None:
        """Serve markers until a process ends, or others may be ready to start."""
        while True:
            now_s = time.monotonic()
            deadline_s, reason = self._next_deadline(began_s)
            if now_s >= deadline_s:
                raise ProcessError(reason)
            timeout_s = min(deadline_s - now_s, _POLL_S) if others_wait else deadline_s - now_s
            ended, readable = self._lab.processes.wait(timeout_s, socket.descriptors())
            for descriptor in readable:
                socket.serve(descriptor)
            if ended:
                self._note_ended(ended)
            if ended or others_wait:
                return

    def _next_deadline(self, began_s: float) -> tuple[float, str]:
        """Return the next deadline, and what is wrong when it has passed."""
        left = [program for program in self._programs.values() if program.is_awaited]
        names = ", ".join(program.name for program in left)
        reason = f"{names}: not finished after {self._limit_s:g} s (limits.run_timeout_s)"
        deadlines = [(began_s + self._limit_s, reason)]
        for program in left:
            limit_s = program.settings["time_limit_s"]
            if program.began_s is not None and limit_s:
                reason = f"{program.name}: not finished after {limit_s:g} s (time_limit_s); "
                deadlines.append((program.began_s + limit_s, reason + self._last_output(program)))
        return min(deadlines)

    def _note_ended(self, names: list[str]) -> None:
        """Note which programs have ended; refuse what was not to end, or ended badly."""
        now_s = time.monotonic()
        programs = [self._programs[name] for name in names if name in self._programs]
        for program in programs:
            program.ended_s = now_s
        for name in names:
            if name not in self._programs:  # a part of the lab
                raise ProcessError(self._lab.processes.reason(name))
        statuses = {program.name: program.process.wait() for program in programs if program.process}
        # One that was killed takes others with it.
        programs.sort(key=lambda program: (statuses[program.name] >= 0, not program.is_service))
        for program in programs:
            status = statuses[program.name]
            if not status and not program.is_service:
                continue
            cause = "ended before the others, as no service does"
            if status:
                cause = how_ended(status)
            if status == -signal.SIGKILL and self._is_first_of_host(program):
                impairment = killed_by(program.host, self._lab.directory)
                cause += impairment
                if impairment and program.settings.get("may_be_killed"):
                    self._remarks.append(f"went on without {program.name}: {cause}")
                    continue
            raise ProcessError(f"{program.name}: {cause}; {self._last_output(program)}")

    def _last_output(self, program: _Program) -> str:
        log, output = self._lab.logs / f"{program.name}.log", program.settings["output"]
        if output and not (log.exists() and log.stat().st_size):
            return end_of(self._lab.directory / OUTPUT / output, f"{OUTPUT}/{output}")
        return self._lab.processes.end_of_log(program.name)

    # The end

    def _end_services(self) -> None:
        services = [program for program in self._programs.values() if program.ended_s is None]
        for service in services:
            service.kill(signal.SIGTERM)
        deadline_s = time.monotonic() + _SERVICE_TIMEOUT_S
        for service in services:
            if service.process is None:
                continue
            try:
                service.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                service.kill()
                service.process.wait()
            service.ended_s = time.monotonic()

    def _write_round(self, record: dict[str, Any]) -> None:
        if self._log is None:
            self._log = JsonLinesWriter(self._lab.directory / "events" / "rounds.jsonl")
        self._log.write(record)
        if self._rounds:
            self._progress.round(record["round"] + 1, self._rounds)

    def _store(self, socket: MarkerSocket) -> None:
        run_directory.write_json(
            self._lab.directory / FILE,
            {
                "schema": run_directory.SCHEMA,
                "programs": [program.as_json() for program in self._programs.values()],
                "markers": {
                    "accepted": socket.accepted,
                    "refused": socket.refused,
                    "first_refused": socket.first_refused or None,
                },
            },
        )
