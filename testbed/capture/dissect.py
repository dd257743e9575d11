"""Reads a capture file for `./lab dissect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from testbed.capture import frames
from testbed.capture.contents import CONTROL_PORT, Contents, most_frequent_session
from testbed.capture.frames import Segment
from testbed.capture.pcap import CaptureError, PcapReader
from testbed.shared.yaml_input import InputError
from testbed.transport.core.wire import DATA_PORTS

# How far to look for the session of a capture that has no WELCOME.
_SAMPLE_PACKETS = 20_000


@dataclass(frozen=True, kw_only=True)
class Dissection:
    """What a capture holds and, if it could not be read to its end, why not."""

    path: Path
    contents: Contents
    problem: str | None

    def require(self, number: int) -> None:
        """Raise InputError unless the capture has a transfer of this number."""
        numbers = {each.number for each in self.contents.transfers}
        if number not in numbers:
            valid = f"{min(numbers)} to {max(numbers)}" if numbers else "none, it has no transfers"
            raise InputError(f"{self.path}: transfer {number} is not in it; valid: {valid}")


def dissect(path: Path) -> Dissection:
    """Read a capture in one sweep, after a short look at its beginning.

    Raises:
        InputError: it cannot be read, is no capture, or has no packet of ours.
    """
    problems: list[str] = []
    try:
        with path.open("rb") as file:
            sample = islice(_packets(file, []), _SAMPLE_PACKETS)
            contents = Contents(most_frequent_session(segment for _, segment in sample))
            file.seek(0)
            for time_ns, segment in _packets(file, problems):
                contents.on_packet(time_ns, segment)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    problem = problems[0] if problems else None
    if problem is not None and not contents.packets:
        raise InputError(f"{path}: {problem}")
    if contents.foreign == contents.packets:
        low, high = DATA_PORTS
        raise InputError(
            f"{path}: none of its {contents.packets} packets is ours "
            f"(TCP and UDP port {CONTROL_PORT}, TCP and UDP ports {low} to {high})"
        )
    return Dissection(path=path, contents=contents, problem=problem)


def _packets(file: BinaryIO, problems: list[str]) -> Iterator[tuple[int, Segment | None]]:
    """Each packet's time in ns and its segment, up to a defect, which is added to `problems`."""
    try:
        reader = PcapReader(file)
        find_ip = frames.link(reader.link_type)
        for time_ns, data, _ in reader:
            yield time_ns, frames.segment(data, find_ip(data))
    except CaptureError as error:
        problems.append(str(error))
