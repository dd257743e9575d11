"""Records chosen hosts' links during a run, into files of bounded size.

Each link has a thread. A recorder records from its construction on; `stop` returns when every
packet that passed before is in the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.capture.packet_ring import WHOLE_BYTES, PacketRing
from testbed.capture.pcap import RECORD_BYTES, PcapWriter, pack_record
from testbed.lab.network import HostInfo
from testbed.transport.net.config import EndpointConfig

# All files of a run together.
RUN_BYTES = 48_000_000
# Every header of ours with those below it: Ethernet, IPv4, TCP with options, our 16 bytes.
SNAPSHOT_BYTES = 96
_CONTROL_PORT = EndpointConfig.control_port
_PATIENCE_S = 0.2


@dataclass(kw_only=True)
class Recording:
    """What a recording holds, for the manifest; the recorder fills it in.

    Attributes:
        host, file: whose link, and the file's name in `pcap/`.
        packets, file_bytes: what is in the file.
        bound_reached: recording ended early because the file had reached `bound_bytes`.
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


class Recorder:
    """Records one host's link until `stop`."""

    def __init__(self, host: HostInfo, path: Path, *, bound_bytes: int = RUN_BYTES) -> None:
        """Raises OSError when the interface or the file cannot be used."""
        self._path = path
        self._found = Recording(host=host.name, file=path.name, bound_bytes=bound_bytes)
        self._stop_s: float | None = None
        self._ring = PacketRing(
            host.pid, host.interface, whole_tcp_port=_CONTROL_PORT, snapshot_bytes=SNAPSHOT_BYTES
        )
        try:
            self._writer = PcapWriter(path, snapshot_bytes=WHOLE_BYTES)
        except OSError:
            self._ring.close()
            raise
        self._thread = threading.Thread(target=self._record, name=f"pcap {host.name}", daemon=True)
        self._thread.start()

    def _record(self) -> None:
        try:
            while not self._found.bound_reached:
                # Asked before the ring is read: what comes after the last look is not wanted.
                over = self._stop_s is not None and time.monotonic() >= self._stop_s
                self._take(0.0 if over else _PATIENCE_S if self._stop_s is None else 0.01)
                if over:
                    break
        except OSError as error:  # a run does not fail because its capture does
            self._found.failure = str(error.strerror)
        self._found.packets_dropped = self._ring.take_dropped()
        self._ring.close()
        self._writer.close()

    def _take(self, timeout_s: float) -> None:
        records, found = bytearray(), self._found
        room = found.bound_bytes - found.file_bytes
        for seconds, nanoseconds, length, data in self._ring.take(timeout_s):
            if len(records) + RECORD_BYTES + len(data) > room:
                found.bound_reached = True
                break
            records += pack_record(seconds, nanoseconds, len(data), length) + data
            found.packets += 1
        if records:
            self._writer.write(records)
            found.file_bytes += len(records)

    def stop(self) -> Recording:
        """End the recording; return when every packet that passed until now is in the file."""
        self._stop_s = time.monotonic() + self._ring.settle_s
        self._thread.join()
        self._found.file_bytes = self._path.stat().st_size
        return self._found


@contextmanager
def recording(
    hosts: Mapping[str, HostInfo], names: Sequence[str], folder: Path
) -> Iterator[list[dict[str, Any]]]:
    """Record the links of `names` into `folder` for the duration of the body.

    The list is filled at the end: one description per link, for the manifest.

    Raises:
        OSError: a link cannot be recorded.
    """
    described: list[dict[str, Any]] = []
    recorders: list[Recorder] = []
    if names:
        folder.mkdir()
    try:
        for name in names:
            path = folder / f"{name}.pcap"
            recorders.append(Recorder(hosts[name], path, bound_bytes=RUN_BYTES // len(names)))
        yield described
    finally:
        described += [asdict(recorder.stop()) for recorder in recorders]
