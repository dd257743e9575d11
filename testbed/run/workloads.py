"""What runs in a lab, as the supervisor sees it: training, or programs of a user's own."""

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
from testbed.lab.kernel import process_sockets, socket_defaults
from testbed.lab.network import HostInfo
from testbed.run.processes import ProcessError, end_of, killed_by
from testbed.run.session import LabSession, topology_of
from testbed.shared import run_directory
from testbed.shared.jsonl import JsonLinesWriter
from testbed.shared.messages import PROGRAMS, TRAINING, ProgressWriter
from testbed.shared.run_directory import LOADED, LOST_WORKERS
from testbed.shared.unlinked import open_file
from testbed.transport.wire import DATA_PORTS
from testbed.verdict import congestion_read_back
from testbed.workload import commands, markers
from testbed.workload.markers import MarkerSocket, Rounds

_LOAD_TIMEOUT_S = 300.0  # of model and data
FILE = "workload.json"
OUTPUT = "output"  # folder of what programs printed
_LOOK_S = 0.02  # from one look for a listening socket to the next
_SERVICE_PATIENCE_S = 2.0


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
        """Train to the end."""
        lab, names = self._lab, self._hosts
        order = {
            "hosts": {name: vars(lab.info.hosts[name]) for name in names},
            "fair_shares_bps": paths.fair_shares_bps(lab.info.as_json(), names[1:]),
            "fair_queues_bytes": paths.fair_queues_bytes(lab.info.as_json(), names[1:]),
            "controller_socket": str(lab.controller_socket),
            "coordination_socket": str(lab.private / "coordination.sock"),
            "progress_descriptor": self._progress.messages.fileno(),
        }
        lab.processes.tell(TRAINING, order)
        lab.processes.wait_until_done(TRAINING, lab.config["limits"]["run_timeout_s"])

    def check(self) -> None:
        """Make sure that what ran is what was configured."""
        configured = self._lab.config["protocol"]["congestion_control"]
        if different := congestion_read_back.difference(self._lab.directory, configured):
            raise ProcessError(different)

    def remark(self) -> str:
        """The workers that training lost, with the reasons; empty for none."""
        words = self._lab.logs / LOST_WORKERS
        if not words.exists():
            return ""
        return f"went on without {'; '.join(words.read_text(encoding='utf-8').splitlines())}"


class _Program:
    """One program of the workload: its settings, and what became of it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.name = str(settings["name"])
        self.is_service = bool(settings["service"])
        self.process: subprocess.Popen[bytes] | None = None
        self.began_s: float | None = None
        self.ended_s: float | None = None
        self.listened_s: float | None = None

    @property
    def runs(self) -> bool:
        return self.process is not None and self.ended_s is None

    @property
    def ended_well(self) -> bool:
        return self.ended_s is not None and self.process is not None and not self.process.poll()

    def listens(self) -> bool:
        """Whether it waits for others; looked up until it does."""
        if self.listened_s is None and self.runs:
            assert self.process is not None
            if process_sockets.listens(self.process.pid):
                self.listened_s = time.monotonic()
        return self.listened_s is not None

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
        ports = section["data_ports"]
        self.data_ports: tuple[int, int] | None = (ports[0], ports[1]) if ports else None
        self.flows = {
            "hosts": list(dict.fromkeys(each["host"] for each in section["programs"])),
            "ports": self.data_ports or (1, 65535),
            "centre": None,
        }
        self._directory = lab.directory
        self._processes = lab.processes
        self._progress = progress
        self._programs = {each["name"]: _Program(each) for each in section["programs"]}
        self._folder = Path(config["folder"] or Path.cwd())
        self._rounds = config.get("rounds")
        self._limit_s = float(config["limits"]["run_timeout_s"])
        self._log: JsonLinesWriter | None = None
        self._remarks: list[str] = []

    def wait_until_loaded(self) -> None:
        """Nothing is loaded: programs begin when the network is calibrated."""

    def run(self) -> None:
        """Run the programs to their end."""
        lab = self._lab
        self._controller = ControllerClient(lab.controller_socket)
        # The path must be short (107 bytes), and programs of other users have to reach it.
        lab.private.chmod(0o711)
        place = lab.private / "markers.sock"
        rounds = Rounds(self._controller, self._write_round)
        socket = MarkerSocket(place, rounds)
        # Open vSwitch is no affair of the programs, and would refuse them.
        outside = {key: each for key, each in os.environ.items() if not key.startswith("OVS_")}
        # The hook for DistributedDataParallel writes there what its steps have lost.
        events = {"LAB_EVENTS": str((self._directory / "events").resolve())}
        self._environment = outside | {markers.ENVIRONMENT: str(place)} | events
        began_s = time.monotonic()
        try:
            self._controller.start()
            while any(not each.is_service and not each.ended_s for each in self._all()):
                waits = self._start_what_may()
                self._wait(socket, began_s, waits=waits)
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
            for each in self._all():  # and what they have left behind
                if each.process is not None:
                    with contextlib.suppress(OSError):
                        os.killpg(each.process.pid, signal.SIGKILL)

    def check(self) -> None:
        """Make sure that hosts used the congestion control that was configured."""
        configured = {
            str(each.settings["host"]): str(each.settings["congestion_control"])
            for each in self._all()
            if each.settings["congestion_control"]
        }
        if different := congestion_read_back.difference_of_hosts(self._directory, configured):
            raise ProcessError(different)

    def remark(self) -> str:
        """Which programs were killed, and which lines of markers refused; empty for none."""
        return "; ".join(self._remarks)

    def _all(self) -> list[_Program]:
        return list(self._programs.values())

    # Starts

    def _start_what_may(self) -> bool:
        """Start each program whose turn it is; returns whether others still wait."""
        waits = False
        for each in self._all():
            if each.process is not None:
                continue
            first = self._programs.get(each.settings["after"] or "")
            if first is None or first.ended_well or first.listens():
                self._start(each)
                continue
            waits = True
            patience_s = each.settings["after_timeout_s"]
            if first.began_s and time.monotonic() - first.began_s > patience_s:
                raise ProcessError(
                    f"{each.name}: waited for {first.name}, which neither listened nor ended "
                    f"within {patience_s:g} s (after_timeout_s); {self._last_words(first)}"
                )
        return waits

    def _start(self, program: _Program) -> None:
        settings = program.settings
        host = self._lab.info.hosts[settings["host"]]
        if settings["congestion_control"]:
            socket_defaults.set_congestion_control(host.pid, settings["congestion_control"])
        log = open_file(self._lab.logs / f"{program.name}.log", "ab")
        output = log
        if settings["output"]:
            (self._directory / OUTPUT).mkdir(exist_ok=True)
            output = open_file(self._output_of(program), "wb")
        with log, output:
            program.began_s = time.monotonic()
            program.process = host_program.start(
                host,
                commands.resolved(settings["run"]),
                stdout=output.fileno(),
                stderr=log.fileno(),
                env=self._environment_of(program, host),
                cwd=self._folder,
            )
        self._processes.adopt({program.name: program.process})
        if self._is_acted_on(program):
            self._controller.processes({host.name: program.process.pid})

    def _environment_of(self, program: _Program, host: HostInfo) -> dict[str, str]:
        """Of a program; Gloo would ask the machine's name for its host's interface."""
        own = {"GLOO_SOCKET_IFNAME": host.interface, "LAB_PROGRAM": program.name}
        return self._environment | own | program.settings.get("environment", {})

    def _is_acted_on(self, program: _Program) -> bool:
        """Whether an impairment of its host's process acts on it: on the first that is listed."""
        host = program.settings["host"]
        return program is next(each for each in self._all() if each.settings["host"] == host)

    # Waiting

    def _wait(self, socket: MarkerSocket, began_s: float, *, waits: bool) -> None:
        """Serve markers until a process ends, or something else is due."""
        while True:
            now_s = time.monotonic()
            due_s, why = self._next_limit(began_s)
            if now_s >= due_s:
                raise ProcessError(why)
            timeout_s = min(due_s - now_s, _LOOK_S) if waits else due_s - now_s
            ended, readable = self._processes.wait(timeout_s, socket.descriptors())
            for descriptor in readable:
                socket.serve(descriptor)
            if ended:
                self._take_note(ended)
            if ended or waits:
                return

    def _next_limit(self, began_s: float) -> tuple[float, str]:
        """When the next limit is reached, and what is wrong then."""
        words = f"not finished after {self._limit_s:g} s (limits.run_timeout_s)"
        left = [each for each in self._all() if not each.is_service and not each.ended_s]
        found = [(began_s + self._limit_s, f"{', '.join(each.name for each in left)}: {words}")]
        for each in left:
            limit_s = each.settings["time_limit_s"]
            if each.began_s is not None and limit_s:
                said = f"{each.name}: not finished after {limit_s:g} s (time_limit_s); "
                found.append((each.began_s + limit_s, said + self._last_words(each)))
        return min(found)

    def _take_note(self, ended: list[str]) -> None:
        """Note which programs have ended; refuse what was not to end, or ended badly."""
        now_s = time.monotonic()
        programs = [self._programs[name] for name in ended if name in self._programs]
        for program in programs:
            program.ended_s = now_s
        for name in ended:
            if name not in self._programs:  # a part of the lab
                raise ProcessError(self._processes.reason(name))
        statuses = {program.name: program.process.wait() for program in programs if program.process}
        # One that was killed takes others with it.
        for each in sorted(
            programs, key=lambda each: (statuses[each.name] >= 0, not each.is_service)
        ):
            status = statuses[each.name]
            if status or each.is_service:
                early = f"{each.name}: ended before the others, as no service does; "
                said = self._processes.how_ended(each.name)
                if status == -signal.SIGKILL and self._is_acted_on(each):
                    by = killed_by(str(each.settings["host"]), self._directory)
                    if by and each.settings.get("may_be_killed"):
                        self._remarks.append(f"went on without {each.name}: {said}{by}")
                        continue
                    said += by
                said = f"{each.name}: {said}; " if status else early
                raise ProcessError(said + self._last_words(each))

    def _last_words(self, program: _Program) -> str:
        log = self._lab.logs / f"{program.name}.log"
        output = program.settings["output"]
        if output and not (log.exists() and log.stat().st_size):
            return end_of(self._output_of(program), f"{OUTPUT}/{output}")
        return self._processes.end_of_log(program.name)

    # The end

    def _end_services(self) -> None:
        """Ask all services to end, and insist after a while."""
        services = [each for each in self._all() if each.runs and each.process is not None]
        for service in services:
            with contextlib.suppress(OSError):
                os.killpg(service.process.pid, signal.SIGTERM)  # type: ignore[union-attr]
        deadline_s = time.monotonic() + _SERVICE_PATIENCE_S
        for service in services:
            assert service.process is not None
            try:
                service.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(service.process.pid, signal.SIGKILL)
                service.process.wait()
            service.ended_s = time.monotonic()

    def _output_of(self, program: _Program) -> Path:
        return self._directory / OUTPUT / str(program.settings["output"])

    def _write_round(self, record: dict[str, Any]) -> None:
        if self._log is None:
            self._log = JsonLinesWriter(self._directory / "events" / "rounds.jsonl")
        self._log.write(record)
        if self._rounds:
            self._progress.round(record["round"] + 1, self._rounds)

    def _store(self, socket: MarkerSocket) -> None:
        run_directory.write_json(
            self._directory / FILE,
            {
                "schema": run_directory.SCHEMA,
                "programs": [each.as_json() for each in self._all()],
                "markers": {
                    "accepted": socket.accepted,
                    "refused": socket.refused,
                    "first_refused": socket.first_refused or None,
                },
            },
        )
