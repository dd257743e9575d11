"""Records chosen hosts' links during a run with tcpdump, into files of bounded size."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
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


@dataclass(kw_only=True)
class Recording:
    """A recording, for the manifest; the recorder fills it in.

    Attributes:
        host, file: whose link, and the file's name in `pcap/`.
        packets, file_bytes: what is in the file.
        bound_reached: recording ended early because the file might have passed `bound_bytes`.
        packets_dropped: packets that came faster than they could be recorded.
        failure: why recording ended early, if it failed (the disk is full); else empty.
    """

    host: str
    file: str
    packets: int = 0
    file_bytes: int = 0
    bound_bytes: int
    bound_reached: bool = False
    packets_dropped: int = 0
    snapshot_bytes: int = SNAPSHOT_BYTES
    failure: str = ""


def require() -> None:
    """Raise InputError where there is no tcpdump."""
    if shutil.which("tcpdump") is None:
        raise InputError("--pcap: there is no tcpdump; valid: apt-get install tcpdump")


class Recorder:
    """Records one host's link from `start` until `stop`."""

    def __init__(self, host: HostInfo, path: Path, *, bound_bytes: int) -> None:
        self._host, self._path = host, path
        self._recording = Recording(host=host.name, file=path.name, bound_bytes=bound_bytes)

    def start(self) -> None:
        """Begin to record; ProgramError or OSError where the link cannot be recorded."""
        most = (self._recording.bound_bytes - _HEADER_BYTES) // (_RECORD_BYTES + SNAPSHOT_BYTES)
        options = f"-n -p -i {self._host.interface} -s {SNAPSHOT_BYTES} -c {most} -B 8192 -w -"
        with self._path.open("xb") as file:
            self._process = host_program.start(
                self._host,
                [sys.executable, "-I", str(_PROGRAM), *options.split(), "--nano"],
                stdin=subprocess.PIPE,
                stdout=file.fileno(),
                stderr=subprocess.PIPE,
            )
        assert self._process.stdin is not None and self._process.stderr is not None
        with suppress(BrokenPipeError):  # it has ended
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        line = self._process.stderr.readline().decode()
        if "listening on" not in line:
            self._process.kill()
            self._process.wait()
            raise OSError(f"{self._host.name}: {line.strip() or 'tcpdump says nothing'}")

    def stop(self) -> Recording:
        """End the recording, `_BLOCK_S` after the last packet that counts."""
        recording = self._recording
        recording.bound_reached = self._process.poll() == 0
        self._process.terminate()
        try:
            _, errors = self._process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, errors = self._process.communicate()
        text = errors.decode()
        counts = {what: int(count) for count, what in re.findall(r"(\d+) packets? (\w+)", text)}
        recording.packets = counts.get("captured", 0)
        recording.packets_dropped = counts.get("dropped", 0)
        recording.failure = "; ".join(re.findall(r"tcpdump: (.*)", text))
        recording.file_bytes = self._path.stat().st_size
        return recording


@contextmanager
def recording(
    hosts: Mapping[str, HostInfo], names: Sequence[str], folder: Path
) -> Iterator[list[dict[str, Any]]]:
    """Record the links of `names` into `folder` while the body runs; OSError if it fails."""
    described: list[dict[str, Any]] = []  # for the manifest, filled at the end
    recorders: list[Recorder] = []
    if names:
        folder.mkdir()
    try:
        for name in names:
            path = folder / f"{name}.pcap"
            recorder = Recorder(hosts[name], path, bound_bytes=RUN_BYTES // len(names))
            recorder.start()
            recorders.append(recorder)
        yield described
    finally:
        if recorders:
            time.sleep(_BLOCK_S)
        described += [asdict(recorder.stop()) for recorder in recorders]
