"""What Dask calls on a worker's machine: a block of runs as a process, its results as bytes.

The process is killed with the thread that waits for it, so a worker that is killed takes its lab
with it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from testbed.cluster import archive
from testbed.shared import python_module

_FOLDER = "lab-block-"  # of a block, with its worker's process id
_going_on: dict[str, subprocess.Popen[str]] = {}  # by the sweep that they are of
_stopped: set[str] = set()  # sweeps that nobody wants any more


def execute(sweep: str, task: str) -> dict[str, Any]:
    """Execute a task of `block`.

    Args:
        sweep: names the command that wants it, so that it can be stopped.
        task: what `block.task` gave.

    Returns:
        `packed`, the runs' folders, or `refused`, one line that says why this machine cannot; and
        this machine's `host` name.
    """
    host = {"host": socket.gethostname()}
    _forget_dead(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-") as folder:
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),
                *python_module.command("testbed.cluster.block", folder),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_as_the_entry_script_has_it(),
            text=True,
        )
        _going_on[sweep] = process
        if sweep in _stopped:  # while the process was being made
            process.kill()
        try:
            _, said = process.communicate(task)
        finally:
            process.kill()
            _going_on.pop(sweep, None)
        if process.returncode == 0:
            return {**host, "packed": archive.pack(Path(folder))}
        lines = said.strip().splitlines()
        return {**host, "refused": lines[-1] if lines else f"ended by {process.returncode}"}


def _forget_dead(place: Path) -> None:
    """Remove the folders of workers that were killed."""
    for folder in place.glob(f"{_FOLDER}*-*"):
        pid = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _as_the_entry_script_has_it() -> dict[str, str]:
    """The environment, in which an ordinary user of Debian finds tc and ovsdb-server, too."""
    places = [os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
    return {**os.environ, "PATH": os.pathsep.join(places), "PYTHONUTF8": "1"}


def stop(sweep: str) -> None:
    """End what goes on of a sweep; its lab is taken down with it."""
    _stopped.add(sweep)
    if (process := _going_on.get(sweep)) is not None:
        process.kill()
