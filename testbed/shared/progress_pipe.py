"""Sends progress from inside a sandbox to the command, as short JSON lines on a pipe."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

# The stage that is measured, by workload.
TRAINING, PROGRAMS = MEASURED = ("training", "programs")


class ProgressWriter:
    """Writes to a pipe that several processes share; a line is shorter than PIPE_BUF, so whole."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_blocking(descriptor, False)

    def stage(self, name: str) -> None:
        """A new stage of the run began."""
        self.record({"stage": name})

    def round(self, number: int, total: int) -> None:
        """`number` of `total` rounds are done."""
        self.record({"round": number, "rounds": total})

    def record(self, record: dict[str, Any]) -> None:
        """Any of these."""
        # Progress is for the eye; a run never waits or fails for it.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.descriptor, json.dumps(record).encode() + b"\n")
