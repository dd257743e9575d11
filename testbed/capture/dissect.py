"""`./lab dissect`: reads a capture and tells its transfers' story, as text or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from testbed.capture import frames
from testbed.capture.frames import Segment
from testbed.capture.pcap import CaptureError, PcapReader
from testbed.capture.story import CONTROL_PORT, Story, most_frequent_session
from testbed.lab.kernel.packet_filter import DATA_PORTS
from testbed.shared.yaml_input import InputError

# How far to look for the session of a capture that has no WELCOME.
_SAMPLE_PACKETS = 20_000


@dataclass(frozen=True, kw_only=True)
class Dissection:
    """A story and, if the capture could not be read to its end, why not."""

    path: Path
    story: Story
    problem: str | None

    def require(self, number: int) -> None:
        """Raises InputError unless the capture has a transfer of this number."""
        numbers = {each.number for each in self.story.transfers}
        if number not in numbers:
            valid = f"{min(numbers)} to {max(numbers)}" if numbers else "none, it has no transfers"
            raise InputError(f"{self.path}: transfer {number} is not in it; valid: {valid}")


def dissect(path: Path) -> Dissection:
    """Reads a capture in one sweep, after a short look at its beginning.

    Raises:
        InputError: it cannot be read, is no capture, or has no packet of ours.
    """
    try:
        with path.open("rb") as file:
            session = most_frequent_session(islice(_segments(file), _SAMPLE_PACKETS))
            file.seek(0)
            story = Story(session)
            problem = _read(file, story)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except CaptureError as error:
        raise InputError(f"{path}: {error}") from None
    if problem is not None and not story.packets:
        raise InputError(f"{path}: {problem}")
    if story.foreign == story.packets:
        low, high = DATA_PORTS
        raise InputError(
            f"{path}: none of its {story.packets} packets is ours "
            f"(TCP port {CONTROL_PORT}, TCP and UDP ports {low} to {high})"
        )
    return Dissection(path=path, story=story, problem=problem)


def _read(file: BinaryIO, story: Story) -> str | None:
    """Tells the packets to the story; returns why it had to end early."""
    reader = PcapReader(file)
    find_ip = frames.link(reader.link_type)
    try:
        for time_ns, data, _ in reader:
            story.on_packet(time_ns, frames.segment(data, find_ip(data)))
    except CaptureError as error:
        return str(error)
    return None


def _segments(file: BinaryIO) -> Iterator[Segment | None]:
    """The beginning of a capture; a defect in it is for the real reading to report."""
    reader = PcapReader(file)
    find_ip = frames.link(reader.link_type)
    try:
        for _, data, _ in reader:
            yield frames.segment(data, find_ip(data))
    except CaptureError:
        return
