"""A lab of one run: its links are calibrated, its use is watched, and its gates are judged.

What runs in its hosts is a workload's matter. The built-in training is one; it and all others get
the same lab, the same samples and the same gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from controllers import framework_choice
from testbed.capture import recorder
from testbed.lab.delay import link_report
from testbed.lab.network import LabInfo
from testbed.run import manifest
from testbed.run.assembly import Lab
from testbed.run.inside import Inside
from testbed.shared import run_directory
from testbed.verdict import calibration, other_programs, sampling, standstill
from testbed.verdict.gate import Gate
from testbed.verdict.run_observer import Observation


class ObservedLab:
    """A lab that is built, and whose observation has begun."""

    def __init__(
        self,
        config: dict[str, Any],
        inside: Inside,
        *,
        data_ports: tuple[int, int] | None,
    ) -> None:
        self.config = config
        self.directory = inside.directory
        self.private = inside.private
        self.processes = inside.processes
        self.lab = Lab(config, inside, data_ports=data_ports)
        self._facts = manifest.of_machine()
        pids = self.processes.pids()
        self._observation = Observation(self.directory, config, self.info, pids)

    @property
    def info(self) -> LabInfo:
        """The network as plain data."""
        return self.lab.network.info

    def warm_up(self) -> None:
        """Send a packet over every path, which sets up the switch, and write the manifest."""
        calibration.warm_up(self.info)
        self._buffers = self.lab.switch.deepen_buffers()
        self._write_manifest()

    def calibrate(self) -> None:
        """Warm up, then measure every link, before anything else uses it."""
        self.warm_up()
        self._calibrated = calibration.calibrate(self.info)
        run_directory.write_json(
            self.directory / "calibration.json",
            {"schema": run_directory.SCHEMA, **self._calibrated.as_json()},
        )

    def _write_manifest(self) -> None:
        framework = framework_choice.describe(self.config["controller"])
        run_directory.write_json(
            self.directory / "manifest.json",
            self._facts
            | manifest.of_lab(self.info, self._buffers)
            | {"seed": self.config["seed"], "controller": framework}
            | {"code": self.config.get("code", {})},
        )

    @contextmanager
    def watched(self, flows: Mapping[str, Any]) -> Iterator[sampling.RunningSampler]:
        """Sample, record and count while the body runs the workload."""
        order = sampling.order_of(
            self.info,
            flows=flows,
            processes=self.processes.pids(),
            config=self.config,
        )
        with (
            sampling.sampled(self.directory, order, first=self._observation.begin) as sampler,
            link_report.recorded(self.info.as_json(), self.directory / "delay.json"),
            self._captured(self.config["capture"]),
            self._observation.attended(sampler.pid),
        ):
            yield sampler

    def judge(self, *, others: str | None = None) -> list[Gate]:
        """Compare what was measured, before and while the workload ran, with the run's limits."""
        return self._observation.judge(
            self._calibrated,
            switch_holds_bytes=self._buffers.queue_bytes,
            other_programs=other_programs.largest(self.directory) if others is None else others,
        )

    def remark(self) -> str:
        """What a reader must know of a run that counts: programs of hosts that stood still."""
        return standstill.of_hosts(self.directory)

    @contextmanager
    def _captured(self, names: Sequence[str]) -> Iterator[None]:
        """Record the links of some hosts; what was recorded is added to the manifest."""
        recordings: list[dict[str, Any]] = []
        try:
            with recorder.recording(self.info.hosts, names, self.directory / "pcap") as recordings:
                yield
        finally:
            facts = run_directory.read_json(self.directory / "manifest.json")
            run_directory.write_json(
                self.directory / "manifest.json", facts | {"captures": recordings}
            )
