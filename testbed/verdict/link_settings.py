"""Checks that the kernel shapes every link as configured: before, during and after the training."""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from testbed.lab.kernel import netlink, shaping
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.shared import run_directory
from testbed.verdict.gates import Finding
from testbed.verdict.link_changes import LinkChanges
from testbed.verdict.links_under_load import spans_of_changes
from testbed.verdict.processor_headroom import Rounds, in_round, prefer

FILE = "link_settings.json"
# The kernel keeps rates in whole bytes, and buckets in units of 64 ns.
_ROUNDING = 0.001


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting of one direction of a link that is not the configured one.

    Attributes:
        when: `before`, `during` or `after` the training.
        link, sender: the direction.
        setting: its name, such as `queue_bytes`.
        configured, found: the values; None: there is none.
        at_s: of one during the training, when the kernel told of it (CLOCK_MONOTONIC).
    """

    when: str
    link: str
    sender: str
    setting: str
    configured: int
    found: int | None
    at_s: float | None = None

    @property
    def value(self) -> tuple[object, ...]:
        return self.link, self.sender, self.setting, self.found

    def place(self, rounds: Rounds) -> str:
        when = "" if self.at_s is None else in_round(self.at_s, rounds)
        return (
            f"{self.link} from {self.sender}: {self.setting} {self.found} in place of "
            f"{self.configured}{when or f' {self.when} the training'}"
        )


class SettingsReader:
    """Reads all links' settings, some 50 microseconds for each direction."""

    def __init__(self, network: LabInfo) -> None:
        self._network = network
        self.read = 0
        self.differences: list[Difference] = []
        self.failures: list[str] = []
        self._listener: _Listener | None = None

    @property
    def due(self) -> int:
        return 4 * len(self._network.links)

    def compare(self, when: str, changes: LinkChanges | None = None) -> None:
        """Compare the kernel's settings with the configured ones, `before` or `after`."""
        for pid, members in _by_namespace(self._network).items():
            try:
                with Rtnetlink(pid) as kernel:
                    for link, end in members:
                        shape = link.shape if changes is None else changes.shape(link, end.node)
                        in_force = shaping.in_force(kernel, end.interface)
                        self.read += 1
                        self.differences += _differences(when, link, end, shape, in_force)
            except (OSError, CommandError) as error:
                self.failures.append(f"{when} the training: {error}")

    def listen(self) -> None:
        try:
            self._listener = _Listener(self._network)
        except (OSError, CommandError) as error:
            self.failures.append(f"during the training: {error}")

    def judge_passing(self, events: Sequence[Mapping[str, Any]], changes: LinkChanges) -> None:
        """Add what differed during the training, unless an impairment or the user changed it."""
        if self._listener is None:
            return
        reported, failures = self._listener.finish()
        self.failures += failures
        listed = {difference.value for difference in self.differences}
        for at_s, link, end, settings in reported:
            spans = spans_of_changes(events, {link.first.node, link.second.node}, ("no",))
            spans += changes.spans((link.name, end.node))
            if any(began_s <= at_s <= ended_s for began_s, ended_s in spans):
                continue
            shape = changes.shape(link, end.node, at_s)
            for difference in _differences("during", link, end, shape, settings, at_s):
                if difference.value not in listed:
                    listed.add(difference.value)
                    self.differences.append(difference)

    def store(self, directory: Path) -> None:
        document = {
            "schema": run_directory.SCHEMA,
            "read": self.read,
            "differences": [asdict(difference) for difference in self.differences],
            "failures": self.failures,
        }
        run_directory.write_json(directory / FILE, document)


_Change = tuple[float, LinkEnds, Port, dict[str, int | None]]  # when, where, new settings


class _Listener:
    def __init__(self, network: LabInfo) -> None:
        self._changes: list[_Change] = []
        self._failures: list[str] = []
        self._sockets: dict[int, tuple[netlink.Socket, int | None]] = {}
        self._ends: dict[tuple[int | None, int], tuple[LinkEnds, Port]] = {}
        self._poll = select.poll()
        for pid, members in _by_namespace(network).items():
            opened = netlink.listen(pid)
            self._sockets[opened.fileno()] = opened, pid
            self._poll.register(opened, select.POLLIN)
            with Rtnetlink(pid) as kernel:
                for link, end in members:
                    self._ends[pid, kernel.interface(end.interface).number] = link, end
        self._stop = os.eventfd(0)
        self._poll.register(self._stop, select.POLLIN)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def finish(self) -> tuple[list[_Change], list[str]]:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        for opened, _ in self._sockets.values():
            opened.close()
        os.close(self._stop)
        return self._changes, self._failures

    def _listen(self) -> None:
        prefer(threading.get_native_id())  # it must not keep Python's lock from those that watch
        ready: list[int] = []
        while self._stop not in ready:
            ready = [descriptor for descriptor, _ in self._poll.poll()]
            for descriptor in ready:
                if descriptor in self._sockets:
                    self._read(*self._sockets[descriptor])

    def _read(self, opened: netlink.Socket, pid: int | None) -> None:
        now_s = time.monotonic()
        try:
            for kind, content in netlink.changes(opened):
                interface, settings = shaping.changed_settings(kind, content)
                place = self._ends.get((pid, interface))
                if place is not None and settings:
                    self._changes.append((now_s, *place, settings))
        except (OSError, CommandError, KeyError, struct.error) as error:
            self._failures.append(f"during the training: changes were not read: {error}")


def _by_namespace(network: LabInfo) -> dict[int | None, list[tuple[LinkEnds, Port]]]:
    members: dict[int | None, list[tuple[LinkEnds, Port]]] = {}
    for link in network.links:
        for end in (link.first, link.second):
            members.setdefault(end.pid, []).append((link, end))
    return members


def _differences(
    when: str,
    link: LinkEnds,
    end: Port,
    shape: LinkShape,
    in_force: Mapping[str, int | None],
    at_s: float | None = None,
) -> Iterator[Difference]:
    place = partial(Difference, when=when, link=link.name, sender=end.node, at_s=at_s)
    for setting, configured, value in differing(shape, in_force):
        yield place(setting=setting, configured=configured, found=value)


def differing(
    shape: LinkShape, in_force: Mapping[str, int | None]
) -> Iterator[tuple[str, int, int | None]]:
    """Yield the settings that are not as configured: name, configured value, that in force."""
    configured = {
        "rate_bps": shape.rate_bps,
        "ceiling_bps": shape.rate_bps,
        "burst_bytes": shape.burst_bytes,
        "queue_bytes": shape.queue_bytes,
        "ecn_threshold_bytes": shape.ecn_threshold_bytes or 0,
        "priority_queue_bytes": shape.priority_queue_bytes or 0,
        "most_segments": 1,
    }
    for setting, value in in_force.items():
        expected = configured[setting]
        exact = setting not in ("rate_bps", "ceiling_bps", "burst_bytes")
        if value is None or abs(value - expected) > (0 if exact else max(8, _ROUNDING * expected)):
            yield setting, expected, value


def differing_settings(settings: SettingsReader, rounds: Rounds = ()) -> Finding:
    differences, missing = settings.differences, "; ".join(settings.failures)
    if not missing and settings.read < settings.due:
        missing = f"{settings.read} of {settings.due} directions were read"
    return Finding(
        value=len(differences),
        where=differences[0].place(rounds) if differences else "",
        note=f"{len(differences) - 1} more in {FILE}" if differences[1:] else "",
        missing=missing,
    )
