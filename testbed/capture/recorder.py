"""Records chosen hosts' links during a run with tcpdump, into files of bounded size."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from testbed.lab import host_program
from testbed.lab.network import HostInfo
from testbed.shared.input_error import InputError

RUN_BYTES = 48_000_000  # all files of a run together
SNAPSHOT_BYTES = 128  # all headers, and most control messages
_HEADER_BYTES, _RECORD_BYTES = 24, 16  # of the file; before each packet
_PROGRAM = Path(__file__).with_name("tcpdump_in_host.py")
# The kernel hands packets over in blocks, a block that is not full after a second.
_BLOCK_S = 1.1
_STOP_TIMEOUT_S = 10.0


def require() -> None:
    """Raise InputError where there is no tcpdump."""
    if shutil.which("tcpdump") is None:
        raise InputError("--pcap: there is no tcpdump; valid: apt-get install tcpdump")


@contextmanager
def recording(
    hosts: Mapping[str, HostInfo], names: Sequence[str], folder: Path
) -> Iterator[list[dict[str, Any]]]:
    """Record the links of `names` into `folder` while the body runs; OSError if it fails."""
    described: list[dict[str, Any]] = []  # for the manifest, filled at the end
    started: dict[Path, subprocess.Popen[bytes]] = {}
    if names:
        folder.mkdir()
    try:
        for name in names:
            path = folder / f"{name}.pcap"
            started[path] = _start(hosts[name], path, RUN_BYTES // len(names))
        yield described
    finally:
        if started:
            time.sleep(_BLOCK_S)
        for path, process in started.items():
            described.append(_stop(process, path, RUN_BYTES // len(names)))


def _start(host: HostInfo, path: Path, bound_bytes: int) -> subprocess.Popen[bytes]:
    """Begin to record; ProgramError or OSError where the link cannot be recorded."""
    most = (bound_bytes - _HEADER_BYTES) // (_RECORD_BYTES + SNAPSHOT_BYTES)
    options = f"-n -p -i {host.interface} -s {SNAPSHOT_BYTES} -c {most} -B 8192 -w -"
    with path.open("xb") as file:
        process = host_program.start(
            host,
            [sys.executable, "-I", str(_PROGRAM), *options.split(), "--nano"],
            stdin=subprocess.PIPE,
            stdout=file.fileno(),
            stderr=subprocess.PIPE,
        )
    assert process.stdin is not None and process.stderr is not None
    with suppress(BrokenPipeError):  # it has ended
        process.stdin.write(b"\n")
        process.stdin.flush()
    line = process.stderr.readline().decode()
    if "listening on" not in line:
        process.kill()
        process.wait()
        raise OSError(f"{host.name}: {line.strip() or 'tcpdump says nothing'}")
    return process


def _stop(process: subprocess.Popen[bytes], path: Path, bound_bytes: int) -> dict[str, Any]:
    """End a recording; return what the manifest says of it."""
    bound_reached = process.poll() == 0
    process.terminate()
    try:
        _, errors = process.communicate(timeout=_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
    text = errors.decode()
    counts = {what: int(count) for count, what in re.findall(r"(\d+) packets? (\w+)", text)}
    return {
        "host": path.stem,
        "file": path.name,
        "packets": counts.get("captured", 0),
        "file_bytes": path.stat().st_size,
        "bound_bytes": bound_bytes,
        "bound_reached": bound_reached,
        "packets_dropped": counts.get("dropped", 0),
        "snapshot_bytes": SNAPSHOT_BYTES,
        "failure": "; ".join(re.findall(r"tcpdump: (.*)", text)),
    }
