"""The first process of a sandbox: builds the lab, trains in it, and writes the run's verdict."""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from controllers import framework_choice
from testbed import sampling
from testbed.capture import recorder
from testbed.lab import paths as lab_paths
from testbed.lab import sandbox
from testbed.lab.delay import link_report
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.shaping import MissingCapabilityError
from testbed.lab.network import HostInfo
from testbed.run import manifest, requirements
from testbed.run.assembly import Lab, topology_of
from testbed.run.processes import ProcessError, Processes
from testbed.sampling import other_programs
from testbed.shared import failure, own_code, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.progress_pipe import TRAINING, ProgressWriter
from testbed.shared.run_directory import LOADED, LOST_WORKERS
from testbed.transport.wire import DATA_PORTS
from testbed.verdict import calibration, congestion_read_back, gates
from testbed.verdict.gate import Gate
from testbed.verdict.run_observer import Observation

_LOAD_TIMEOUT_S = 300.0


class UnsupportedError(RuntimeError):
    """This machine lacks what the run needs."""


def execute(directory: Path, progress: ProgressWriter) -> list[Gate]:
    """Build the lab, calibrate it, train in it; return the gates' findings.

    Raises:
        UnsupportedError, ProcessError, CommandError, OSError: with a one-line reason.
        InputError: own code that has changed, or does not fit.
    """
    config = run_directory.read_json(directory / "config.json")
    own_code.expect(config.get("code", {}))
    names = topology_of(config).all_host_names()
    if lacking := requirements.lacking(config["protocol"], config["impairments"], names):
        raise UnsupportedError(lacking)
    private = sandbox.prepare()
    processes = Processes(directory / "logs")
    progress.stage("building the network")
    # Importing torch takes longest, so it begins first and goes on while the network is built.
    training = processes.spawn(
        "training",
        [sys.executable, "-m", "testbed.run.training_launcher", str(directory)],
        stdin=subprocess.PIPE,
        pass_fds=(progress.descriptor,),
    )
    lab = Lab(
        config,
        private=private,
        logs=directory / "logs",
        impairment_log=directory / "events" / "impairments.jsonl",
        processes=processes,
        data_ports=DATA_PORTS,
    )
    facts = manifest.of_machine()
    observation = Observation(directory, config, lab.network.info, processes.pids())
    # What is measured next must not share the processors with imports and the reading of data.
    processes.wait_for(directory / "logs" / LOADED, "training", _LOAD_TIMEOUT_S)
    progress.stage("calibrating")
    hosts = lab.network.info.hosts
    calibration.warm_up(lab.network.info)
    buffers = lab.switch.deepen_buffers()
    calibrated = calibration.calibrate(lab.network.info)
    run_directory.write_json(
        directory / "calibration.json", {"schema": run_directory.SCHEMA, **calibrated.as_json()}
    )
    run_directory.write_json(
        directory / "manifest.json",
        facts
        | manifest.of_lab(lab.network.info, buffers)
        | {"seed": config["seed"], "controller": framework_choice.describe(config["controller"])}
        | {"code": config.get("code", {})},
    )

    order = {
        "hosts": {name: vars(hosts[name]) for name in lab.training_hosts},
        "fair_shares_bps": lab_paths.fair_shares_bps(
            lab.network.info.as_json(), lab.training_hosts[1:]
        ),
        "controller_socket": str(lab.controller_socket),
        "coordination_socket": str(private / "coordination.sock"),
        "progress_descriptor": progress.descriptor,
    }
    sampler_order = sampling.order_of(
        lab.network.info,
        training_hosts=lab.training_hosts,
        processes=processes.pids(),
        config=config,
    )
    observation.begin()
    with (
        link_report.recorded(lab.network.info.as_json(), directory / "delay.json"),
        sampling.sampled(directory, sampler_order),
        _captured(directory, config["capture"], hosts),
    ):
        progress.stage(TRAINING)
        assert training.stdin is not None
        training.stdin.write(json.dumps(order).encode() + b"\n")
        training.stdin.close()
        processes.wait_until_done("training", config["limits"]["run_timeout_s"])
    if different := congestion_read_back.difference(
        directory, config["protocol"]["congestion_control"]
    ):
        raise ProcessError(different)
    return observation.judge(
        calibrated,
        switch_holds_bytes=buffers.queue_bytes,
        other_programs=other_programs.largest(directory),
    )


@contextmanager
def _captured(
    directory: Path, names: Sequence[str], hosts: Mapping[str, HostInfo]
) -> Iterator[None]:
    """Record the links of some hosts; what was recorded is added to the manifest."""
    recordings: list[dict[str, Any]] = []
    try:
        with recorder.recording(hosts, names, directory / "pcap") as recordings:
            yield
    finally:
        facts = run_directory.read_json(directory / "manifest.json")
        run_directory.write_json(directory / "manifest.json", facts | {"captures": recordings})


def _lost(directory: Path) -> str:
    """The workers that training lost and went on without, with the reasons."""
    words = directory / "logs" / LOST_WORKERS
    if not words.exists():
        return ""
    return f"went on without {'; '.join(words.read_text(encoding='utf-8').splitlines())}"


def main() -> None:
    """Execute the run of a directory; the verdict goes into its `status.json`."""
    parser = argparse.ArgumentParser(prog="testbed.run.supervisor")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--progress-descriptor", type=int, required=True)
    arguments = parser.parse_args()
    sandbox.end_with_lifeline()
    began_at, began_s = run_directory.now(), time.monotonic()
    findings: list[Gate] = []
    verdict: run_directory.Verdict = "ok"
    reason = ""
    try:
        findings = execute(arguments.directory, ProgressWriter(arguments.progress_descriptor))
        reason = "; ".join(filter(None, (gates.reasons(findings), _lost(arguments.directory))))
        if any(gate.stops for gate in findings):
            verdict = "invalid"
    except (UnsupportedError, MissingCapabilityError) as error:
        verdict, reason = "unsupported", str(error)
    except BaseException as error:  # nothing may end a run without a word
        verdict, reason = "failed", failure.in_words(error)
        if not isinstance(error, (ProcessError, CommandError, InputError)):
            with suppress(OSError):  # a full disk has no room for it
                traceback.print_exc()
                sys.stderr.flush()
            reason += "; see logs/supervisor.log"
    run_directory.write_status(
        arguments.directory,
        verdict,
        reason,
        began_at=began_at,
        wall_s=time.monotonic() - began_s,
        gates=[gate.as_json() for gate in findings],
    )
    # The first process does not unwind: its end is the end of the lab.
    os._exit(0)


if __name__ == "__main__":
    main()
