"""The lab of a run, of a script and of the prompt, built in this process's sandbox.

The processes of the controller and of training import for longest, so they are started first, and
this module imports little: the rest is imported, and the network built, beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.lab import sandbox
from testbed.lab.kernel.commands import CommandError
from testbed.run.processes import Processes
from testbed.shared import own_code, python_module, run_directory

if TYPE_CHECKING:
    from testbed.lab.network import LabInfo
    from testbed.verdict import sampler as sampling
    from testbed.verdict.calibration import Calibration
    from testbed.verdict.gates import Gate
    from topologies import TopologyParameters

_START_TIMEOUT_S = 90.0  # an emulated processor imports for long; a process that ends is noticed


def topology_of(config: Mapping[str, Any]) -> TopologyParameters:
    import topologies

    try:
        return topologies.parse(config["topology"])
    except ValueError as error:
        raise CommandError(" ".join(str(error).split())) from None


class LabSession:
    """A lab: `begin`, `build`, `warm_up` or `calibrate`; if calibrated, `watched` and `judge`."""

    def __init__(self, config: dict[str, Any], directory: Path | None = None) -> None:
        self.config = config
        self._run_directory = directory

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def info(self) -> LabInfo:
        return self.network.info

    def begin(self) -> None:
        """Make the sandbox ready, and start the controller; it waits for its description."""
        own_code.expect(self.config.get("code", {}))
        self.private = sandbox.prepare()
        if self._run_directory is not None:
            self.directory = sandbox.pinned(self._run_directory)
        else:  # it goes with the sandbox
            self.directory = self.private / "run"
            for name in ("events", "logs"):
                (self.directory / name).mkdir(parents=True)
        self.impairment_log = self.directory / "events" / "impairments.jsonl"
        self.controller_socket = self.private / "controller.sock"
        self._description = self.private / "lab.json"
        self.processes = Processes(self.logs)
        address, port = sandbox.CONTROLLER_ADDRESS
        self.processes.spawn(
            "controller",
            [
                *python_module.command("controllers"),
                f"--lab-file={self._description}",
                *(f"--ofp-listen-host={address}", f"--ofp-tcp-listen-port={port}"),
            ],
            receives=True,
        )

    def build(self, *, data_ports: tuple[int, int] | None = None) -> None:
        """Start Open vSwitch, build the network, shape its links, let the controller drive it."""
        import topologies
        from controllers import impairments
        from controllers.controller_socket import ControllerClient
        from controllers.impairment_plan import Places
        from testbed.lab import datapath
        from testbed.lab.network import Network
        from testbed.lab.openvswitch import OpenVSwitch

        self.switch = OpenVSwitch(self.private, self.logs)
        self.switch.start()
        self.processes.adopt(self.switch.processes)
        # Earlier versions stored configurations without it.
        self.switch.datapath = datapath.choose(self.config.get("datapath", "auto"))
        parameters = topology_of(self.config)
        topology = topologies.build(parameters)
        places = Places.of(topology, topology.hosts())
        entries = list(map(impairments.read, self.config["impairments"]))
        settings = self.config.get("workload") or self.config.get("transport", {})
        for ends, delay_s in places.delays(entries).items():
            topology.linkInfo(*ends)["most_delay_s"] = delay_s
        self.network = Network(
            topology=topology,
            private=self.private,
            logs=self.logs,
            delayed_by=parameters.delayed_by,
            datapath=self.switch.datapath,
            data_ports=data_ports,
            tcp_rto_min_s=settings.get("tcp_rto_min_s"),
            seed=self.config["seed"],
            adjustable=self.config.get("adjustable", False),
        )
        self.network.build()
        hosts = self.info.hosts.values()
        sandbox.tell_hosts(self.private, ((host.name, host.address) for host in hosts))
        if self.network.relay is not None:
            self.processes.adopt({"delay-relay": self.network.relay.process})
        document = {
            "network": self.info.as_json(),
            "impairments": self.config["impairments"],
            "code": self.config.get("code", {}),
            "socket": str(self.controller_socket),
            "log": str(self.impairment_log),
        }
        self._description.write_text(json.dumps(document))
        self.processes.send("controller", {"do": "read"})
        self.processes.wait_for(self.controller_socket, "controller", _START_TIMEOUT_S)
        self.network.start()
        client = ControllerClient(self.controller_socket, timeout_s=_START_TIMEOUT_S)
        client.wait_ready()
        client.close()
        # Closed to whatever has abandoned root's privileges, also as user 0: who may send there can
        # change links and switches and end impairments. No program of the workload runs yet.
        for path in self.private.iterdir():
            if path.is_socket():
                path.chmod(0)

    def warm_up(self) -> None:
        """Send a packet over every path, which sets up the switch."""
        from testbed.verdict import calibration

        calibration.warm_up(self.info)
        self._buffers = self.switch.deepen_buffers()

    def observe(self) -> None:
        from testbed.run import manifest
        from testbed.verdict.run_observer import RunObserver

        self._facts = manifest.of_machine()
        pids = self.processes.pids()
        self._observer = RunObserver(self.directory, self.config, self.info, pids)

    def calibrate(self) -> Calibration:
        """Warm up, then measure every link, before anything else uses it."""
        from testbed.verdict import calibration

        self.warm_up()
        self._write_manifest()
        self._calibrated = calibration.calibrate(self.info)
        run_directory.write_json(
            self.directory / "calibration.json",
            {"schema": run_directory.SCHEMA, **self._calibrated.as_json()},
        )
        return self._calibrated

    def _write_manifest(self) -> None:
        from testbed.run import manifest

        framework = {"framework": "ryu", "version": self._facts["packages"]["ryu"]}
        run_directory.write_json(
            self.directory / "manifest.json",
            self._facts
            | manifest.of_lab(self.info, self._buffers)
            | {"seed": self.config["seed"], "controller": framework}
            | {"code": self.config.get("code", {})},
        )

    def _sampler_order(self, flows: Mapping[str, Any]) -> dict[str, Any]:
        names = ("key", "arm", "seed", "rounds", "experiment")
        run = {name: self.config.get(name) for name in names}
        facts = {"processes": self.processes.pids(), "flows": dict(flows), "run": run}
        return self.info.as_json() | facts

    @contextmanager
    def sampled(self, flows: Mapping[str, Any]) -> Iterator[sampling.RunningSampler]:
        """Sample alone, from a moment later on, while the body uses the lab."""
        from testbed.verdict import sampler as sampling

        order = self._sampler_order(flows)
        with sampling.sampled(self.directory, order, from_begin=False) as sampler:
            yield sampler

    @contextmanager
    def watched(self, flows: Mapping[str, Any]) -> Iterator[sampling.RunningSampler]:
        """Sample, record and count while the body runs the workload."""
        from testbed.lab.delay import relay_client
        from testbed.verdict import sampler as sampling

        order = self._sampler_order(flows)
        with (
            sampling.sampled(self.directory, order, first=self._observer.begin) as sampler,
            relay_client.recorded(self.info.as_json(), self.directory / "delay.json"),
            self._captured(self.config["capture"]),
            self._observer.attended(sampler.pid),
        ):
            yield sampler

    def judge(self) -> list[Gate]:
        return self._observer.judge(self._calibrated, self._buffers)

    @contextmanager
    def _captured(self, names: Sequence[str]) -> Iterator[None]:
        """Record the links of some hosts; what was recorded is added to the manifest."""
        from testbed.capture import recorder

        recordings: list[dict[str, Any]] = []
        try:
            with recorder.recording(self.info.hosts, names, self.directory / "pcap") as recordings:
                yield
        finally:
            path = self.directory / "manifest.json"
            facts = run_directory.read_json(path) | {"captures": recordings}
            run_directory.write_json(path, facts)
