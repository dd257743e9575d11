"""Inside a sandbox: builds the lab of a run, trains in it, and writes the run's verdict."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.lab import sandbox
from testbed.lab.kernel import privileges
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.shaping import MissingCapabilityError
from testbed.run.processes import ProcessError
from testbed.run.session import LabSession, topology_of
from testbed.shared import failure, python_module, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.messages import Messages, ProgressWriter

if TYPE_CHECKING:
    from testbed.verdict.gates import Gate


class UnsupportedError(RuntimeError):
    """This machine lacks what the run needs."""


def execute(directory: Path, progress: ProgressWriter, *, last: bool) -> tuple[list[Gate], str]:
    """Build the lab, calibrate it, run the workload in it; return the gates and a remark."""
    config = run_directory.read_json(directory / "config.json")
    lab = LabSession(config, directory)
    lab.begin()
    if trains := "workload" not in config:
        # It loads model and data until it receives the hosts.
        descriptor = progress.messages.fileno()
        lab.processes.spawn(
            "training",
            python_module.command("testbed.run.training_launcher", str(lab.directory)),
            receives=True,
            pass_fds=(descriptor,),
        )
    # Imported here, beside what has been started.
    from testbed.run import requirements
    from testbed.run.workloads import ProgramWorkload, TrainingWorkload
    from testbed.verdict.gates import of_calibration

    names = topology_of(config).all_host_names()
    if lacking := requirements.lacking(config, config["impairments"], names):
        raise UnsupportedError(lacking)
    progress.stage("building the network")
    workload = (TrainingWorkload if trains else ProgramWorkload)(lab, progress)
    lab.build(data_ports=workload.data_ports)
    lab.observe()
    workload.wait_until_loaded()
    progress.stage("calibrating")
    gates = of_calibration(config, lab.calibrate())
    if not last and any(gate.stops for gate in gates):  # the last one goes on, to be looked at
        return gates, "the workload did not begin: this was not the last attempt"
    with lab.watched(workload.flows):
        progress.stage(workload.stage)
        workload.run()
    workload.check()
    return lab.judge(), workload.remark()


def in_sandbox(request: Mapping[str, Any], messages: Messages) -> None:
    """Execute the run of a directory; the verdict goes into its `status.json`."""
    directory = Path(request["directory"])
    began_at, began_s = run_directory.now(), time.monotonic()
    gates: list[Gate] = []
    verdict: run_directory.Verdict = "ok"
    reason = ""
    try:
        gates, remark = execute(directory, ProgressWriter(messages), last=request["last"])
        from testbed.verdict.gates import reasons  # imported long since; see `execute`

        reason = "; ".join(filter(None, (reasons(gates), remark)))
        if any(gate.stops for gate in gates):
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
    if privileges.caller() is not None:
        privileges.drop()  # where links lead no further than the caller may go
    run_directory.write_status(
        directory,
        verdict,
        reason.replace(str(sandbox.PINNED), str(directory)),
        began_at=began_at,
        wall_s=time.monotonic() - began_s,
        gates=[gate.as_json() for gate in gates],
    )
