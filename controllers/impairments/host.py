"""Acts on a host: `straggler` slows its processor or its link, `crash` kills a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from pydantic import Field

from controllers.impairments.base import (
    ChangesRates,
    Effect,
    Impairment,
    ImpairmentParameters,
    LabAccess,
)
from controllers.impairments.link import TemporarySettings
from testbed.lab.helpers.process import HelperError, HelperProcess
from testbed.lab.kernel import process_status
from testbed.lab.kernel.shaping import inside
from testbed.lab.paths import directions
from testbed.shared import python_module

_ANSWER_TIMEOUT_S = 2.0
_LOWEST_RATE_BPS = 10_000


def start_helper(
    argv: Sequence[str], *, pid: int | None, lab: LabAccess, ordinary: bool = False
) -> HelperProcess:
    """Start a helper in a host's network namespace; the controller goes on while it waits."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    priority = ["nice", "-n", str(-niceness)] if ordinary and niceness < 0 else []
    return HelperProcess(
        [*priority, *inside(pid), *argv],
        name=argv[argv.index("-m") + 1] if "-m" in argv else argv[0],
        readable=lab.readable,
    ).start()


def process_of_workload(lab: LabAccess, parameters: ImpairmentParameters) -> int:
    """Find the process of an impairment's host: that which trains, or its first program."""
    pid = lab.processes.get(parameters.host)
    place = f"{parameters.label}: the workload's process on {parameters.host!r}"
    if pid is None:
        raise HelperError(f"{place} is not known; there are: {', '.join(lab.processes) or 'none'}")
    if not process_status.lives(pid):
        raise HelperError(f"{place} has already ended")
    return pid


class StragglerParameters(ImpairmentParameters):
    """Slows a worker's processor or both directions of its link, `factor` times."""

    allowed_targets = ("host",)
    acts_on_process = True

    host: str = Field(description="the slow worker")
    leg: Literal["gather", "broadcast", "both", "round"] = Field(
        default="round", description="the part of a round that it begins with"
    )
    resource: Literal["cpu", "link"] = Field(default="cpu", description="what is slower")
    factor: float = Field(ge=1.1, le=50, description="how many times slower")

    @property
    def sets_rate(self) -> Literal["one way", "both ways", ""]:
        return "both ways" if self.resource == "link" else ""


class Straggler(Impairment[StragglerParameters]):
    changes_rates: ChangesRates = "target"

    def __init__(self, parameters: StragglerParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        if parameters.resource == "cpu":
            self.changes_rates = "no"
        slow = _SlowProcess if parameters.resource == "cpu" else _SlowLink
        self._slow: _SlowProcess | _SlowLink = slow(parameters, lab)

    def prepare(self) -> None:
        if isinstance(self._slow, _SlowProcess):
            self._slow.prepare()

    def begin(self) -> None:
        self._slow.begin()

    def end(self) -> None:
        self._slow.end()

    def effect(self) -> Effect:
        return self._slow.effect()


class _SlowProcess:
    def __init__(self, parameters: StragglerParameters, lab: LabAccess) -> None:
        self._parameters = parameters
        self._lab = lab
        self._pid = 0
        self._slowed: dict[str, float] = {}

    def prepare(self) -> None:
        argv = python_module.command("testbed.lab.helpers.slowdown")
        self._helper = start_helper(argv, pid=None, lab=self._lab)

    def begin(self) -> None:
        self._pid = process_of_workload(self._lab, self._parameters)
        self._helper.send(do="slow", pid=self._pid, factor=self._parameters.factor)
        self._helper.receive(_ANSWER_TIMEOUT_S)

    def end(self) -> None:
        try:
            self._helper.send(do="release")
            self._slowed = self._helper.receive(_ANSWER_TIMEOUT_S)
        except HelperError:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)
            raise

    def effect(self) -> Effect:
        # Less than its time in force when the process ended meanwhile, for example in a crash.
        slowed_s = self._slowed["ended_s"] - self._slowed["began_s"]
        details: dict[str, float | int | str] = {
            "resource": "cpu",
            "slowed_s": slowed_s,
            "stopped_share": self._slowed["stopped_s"] / slowed_s if slowed_s > 0 else 0.0,
        }
        return Effect(met=int(self._slowed["cycles"]), details=details)


class _SlowLink:
    """Slows both directions of all links of the host, as a slow network card does."""

    def __init__(self, parameters: StragglerParameters, lab: LabAccess) -> None:
        self._links = lab.links
        self._factor = parameters.factor
        self._slowest_bps = 0
        ends = ((own["node"], other["node"]) for _, own, other in directions(lab.network))
        self._slowed = {
            way: TemporarySettings(lab.links, *way) for way in ends if parameters.host in way
        }

    def begin(self) -> None:
        rates = {way: self._links.shape(*way).rate_bps / self._factor for way in self._slowed}
        reduced = {way: max(_LOWEST_RATE_BPS, round(rate)) for way, rate in rates.items()}
        for way, link in self._slowed.items():
            link.set({"rate_bps": reduced[way]})
        self._slowest_bps = min(reduced.values())

    def end(self) -> None:
        for link in self._slowed.values():
            link.undo()

    def effect(self) -> Effect:
        met = sum(link.sent + link.dropped for link in self._slowed.values())
        return Effect(met=met, details={"resource": "link", "rate_bps": self._slowest_bps})


class CrashParameters(ImpairmentParameters):
    """Kills the training process on `host` by SIGKILL; beside programs, the host's first one."""

    allowed_targets = ("host",)
    lasts = False
    acts_on_process = True

    host: str = Field(
        description="whose training process is killed, a worker or server; or whose first program"
    )
    leg: Literal["gather", "broadcast", "both", "round"] = Field(
        default="round", description="the part of a round that it begins with"
    )


class Crash(Impairment[CrashParameters]):
    """One SIGKILL."""

    counts_as = "crash"
    changes_rates = "no"

    def begin(self) -> None:
        # Looked up now, because the processes exist only once training has begun.
        self._pid = process_of_workload(self.lab, self.parameters)
        os.kill(self._pid, signal.SIGKILL)

    def end(self) -> None:
        """Leave the process dead."""

    def effect(self) -> Effect:
        return Effect(details={"pid": self._pid, "signal": "SIGKILL"})
