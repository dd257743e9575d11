"""`crash`: kills a process of the workload."""

from __future__ import annotations

import os
import signal
from typing import Literal

from pydantic import Field

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters
from controllers.impairments.helper import process_of_workload


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
        """Do nothing: the process stays dead."""

    def effect(self) -> Effect:
        return Effect(details={"pid": self._pid, "signal": "SIGKILL"})
