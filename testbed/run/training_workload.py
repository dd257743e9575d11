"""The built-in workload: training across the lab's hosts, as the supervisor sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.lab import paths as lab_paths
from testbed.run.processes import ProcessError, Processes
from testbed.run.session import LabSession, topology_of
from testbed.shared.messages import TRAINING, ProgressWriter
from testbed.shared.run_directory import LOADED, LOST_WORKERS
from testbed.transport.core.wire import DATA_PORTS
from testbed.verdict import congestion_read_back

_LOAD_TIMEOUT_S = 300.0
_NAME = "training"


class TrainingWorkload:
    """Trains in a lab, when it has loaded model and data; its process has been started before."""

    stage = TRAINING
    data_ports = DATA_PORTS

    def __init__(
        self,
        config: Mapping[str, Any],
        directory: Path,
        processes: Processes,
        progress: ProgressWriter,
    ) -> None:
        self._hosts = topology_of(config).host_names()
        ports = DATA_PORTS if config["protocol"]["carrier"] == "tcp" else None
        self.flows = {"hosts": self._hosts, "ports": ports, "centre": "server"}
        self._directory = directory
        self._processes = processes
        self._progress = progress

    def wait_until_loaded(self) -> None:
        """Return once it takes the processors no more: calibration must have them for itself."""
        self._processes.wait_for(self._directory / "logs" / LOADED, _NAME, _LOAD_TIMEOUT_S)

    def run(self, lab: LabSession) -> None:
        """Train to the end."""
        hosts, names = lab.info.hosts, self._hosts
        order = {
            "hosts": {name: vars(hosts[name]) for name in names},
            "fair_shares_bps": lab_paths.fair_shares_bps(lab.info.as_json(), names[1:]),
            "fair_queues_bytes": lab_paths.fair_queues_bytes(lab.info.as_json(), names[1:]),
            "controller_socket": str(lab.controller_socket),
            "coordination_socket": str(lab.private / "coordination.sock"),
            "progress_descriptor": self._progress.messages.fileno(),
        }
        self._processes.tell(_NAME, order)
        self._processes.wait_until_done(_NAME, lab.config["limits"]["run_timeout_s"])

    def check(self, lab: LabSession) -> None:
        """Make sure that what ran is what was configured."""
        wanted = lab.config["protocol"]["congestion_control"]
        if different := congestion_read_back.difference(self._directory, wanted):
            raise ProcessError(different)

    def remark(self) -> str:
        """The workers that training lost, with the reasons; empty for none."""
        words = self._directory / "logs" / LOST_WORKERS
        if not words.exists():
            return ""
        return f"went on without {'; '.join(words.read_text(encoding='utf-8').splitlines())}"
