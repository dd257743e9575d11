"""Executes blocks on a worker's machine; it goes there by value, so one without a lab says so."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "lab-block-"  # of a block's results, with its worker's process id


def execute(task: str, sweep: str) -> dict[str, Any]:
    """Execute a task of `block` until the event `sweep`; return runs' folders, or a refusal."""
    from distributed import Event, get_worker

    reply: dict[str, Any] = {"worker": get_worker().address}
    # An ordinary user of Debian finds tc and ovsdb-server there.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin:/usr/sbin:/sbin"])
    place = tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-")
    with place as folder, tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as errors:
        request.write(task.encode())
        request.seek(0)
        process = subprocess.Popen(
            [
                # It dies with the thread that waits for it.
                *("setpriv", "--pdeathsig", "KILL", sys.executable, "-P"),
                *("-m", "testbed.cluster.block", folder),
            ],
            stdin=request,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "PATH": path, "PYTHONUTF8": "1"},
        )
        try:
            ended = Event(sweep)
            while process.poll() is None and not ended.wait(0.5):
                pass
        finally:
            process.kill()
            process.wait()
        if process.returncode == 0:
            return {**reply, "packed": pack(Path(folder))}
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        return {**reply, "refused": lines[-1] if lines else f"ended by {process.returncode}"}


def pack(folder: Path) -> bytes:
    """Pack all regular files below a folder, and no links, sockets or pipes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.add(path, arcname=path.relative_to(folder).as_posix(), recursive=False)
    return packed.getvalue()


@contextmanager
def exclusive_lab(place: str = "/") -> Iterator[None]:
    """Lock this machine's labs; a process that dies unlocks them."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(place: Path) -> None:
    """Remove the folders of workers that were killed."""
    for folder in place.glob(f"{FOLDER}*-*"):
        pid = folder.name.removeprefix(FOLDER).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
