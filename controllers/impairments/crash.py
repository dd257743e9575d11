"""`crash`: a worker or the server is killed in the middle of its work.

The run then ends as `failed`: the training has no recovery. Its reason names this impairment.
"""

from __future__ import annotations

import os
import signal
from typing import Literal

from pydantic import Field

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters
from controllers.impairments.helper import training_process


class CrashParameters(ImpairmentParameters):
    """Kills the training process on `host` by SIGKILL."""

    allowed_targets = ("host",)
    lasts = False
    needs_training_host = True

    kind: Literal["crash"]
    host: str = Field(description="whose training process is killed: a worker, or server")
    leg: Literal["gather", "broadcast", "both", "round"] = Field(
        default="round", description="the part of a round that it begins with"
    )


class Crash(Impairment[CrashParameters]):
    """One SIGKILL."""

    def begin(self) -> None:
        # Looked up here: the processes exist only once training has begun.
        self._pid = training_process(self.lab, self.parameters.host)
        os.kill(self._pid, signal.SIGKILL)

    def end(self) -> None:
        """Nothing: it stays dead."""

    def effect(self) -> Effect:
        return Effect(details={"pid": self._pid, "signal": "SIGKILL"})
