"""Starts the helper processes that carry out impairments on hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from controllers.impairments.base import LabAccess
from controllers.impairments.common_settings import ImpairmentParameters
from testbed.lab.helpers.process import HelperError, HelperProcess
from testbed.lab.kernel import process_status
from testbed.lab.kernel.shaping import inside


def start_helper(
    argv: Sequence[str], *, pid: int | None, lab: LabAccess, ordinary: bool = False
) -> HelperProcess:
    """Start a helper in a host's network namespace. Waiting for it lets the controller go on."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    priority = ["nice", "-n", str(-niceness)] if ordinary and niceness < 0 else []
    return HelperProcess(
        [*priority, *inside(pid), *argv],
        name=argv[argv.index("-m") + 1] if "-m" in argv else argv[0],
        readable=lab.readable,
    )


def process_of_workload(lab: LabAccess, parameters: ImpairmentParameters) -> int:
    """The process of an impairment's host: that which trains, or the first of its programs."""
    pid = lab.processes.get(parameters.host)
    place = f"{parameters.label}: the workload's process on {parameters.host!r}"
    if pid is None:
        known = ", ".join(lab.processes) or "none yet"
        raise HelperError(f"{place} is not known; there are: {known}")
    if not process_status.lives(pid):
        raise HelperError(f"{place} has already ended")
    return pid
