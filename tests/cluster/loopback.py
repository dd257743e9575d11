"""A real Dask scheduler and its workers, as processes on this machine's loopback interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEADLINE_S = 100.0  # tells a wait from one that never ends
_QUIET = {"DASK_LOGGING__DISTRIBUTED": "error"}


def until(true: Callable[[], Any]) -> Any:
    """What `true` gives as soon as it is something."""
    ends = time.monotonic() + DEADLINE_S
    while not (found := true()):
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.05)
    return found


class Loopback:
    """A scheduler; workers are added one by one."""

    def __init__(self, folder: Path, tls: dict[str, str] | None = None) -> None:
        self._folder, self._tls = folder, tls or {}
        self._file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start("scheduler", *(("--protocol", "tls") if tls else ()), "--port", "0")
        until(self._file.exists)
        self.address: str = until(self._read)["address"]

    def _read(self) -> Any:
        try:
            return json.loads(self._file.read_text())
        except ValueError:
            return None  # half written

    def _start(
        self, what: str, *options: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        own = self._folder / f"{what}-{len(self.processes)}"
        own.mkdir()
        log = (own / "log").open("wb")
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "dask", what),
                *("--scheduler-file", str(self._file), "--host", "127.0.0.1", "--no-dashboard"),
                *options,
            ],
            env={**os.environ, **_QUIET, **self._tls, **(environment or {})},
            cwd=own,
            stdout=log,
            stderr=log,
        )
        log.close()
        self.processes.append(process)
        return process

    def worker(
        self, *options: str, environment: dict[str, str] | None = None, resources: str = "lab=1"
    ) -> subprocess.Popen[bytes]:
        """Start a worker, which joins when it is ready."""
        words = ("--no-nanny", "--nthreads", "1", "--resources", resources)
        return self._start("worker", *words, *options, environment=environment)

    def end(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGKILL)
            process.wait()


@contextmanager
def loopback(folder: Path, tls: dict[str, str] | None = None) -> Iterator[Loopback]:
    folder.mkdir()
    found = Loopback(folder, tls)
    try:
        yield found
    finally:
        found.end()
