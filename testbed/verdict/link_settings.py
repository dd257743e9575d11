"""Whether the kernel shapes every link as configured: before, during and after the training.

Measurements of a path see its narrowest link only, and those under load see links that were loaded.
The kernel's own settings tell of every link, of its queue and of the size of its packets. They are
read before and after the training, and whenever the kernel tells of a change meanwhile.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.lab.kernel import netlink, shape_in_force
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shape_in_force import ShapeInForce
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.shared import run_directory
from testbed.verdict.gate import Gate, compared
from testbed.verdict.link_changes import LinkChanges
from testbed.verdict.links_under_load import spans_of_changes
from testbed.verdict.standstill import Rounds, in_round

FILE = "link_settings.json"
KEY = "link_settings"
# The kernel keeps rates in whole bytes, and buckets in units of 64 ns.
_ROUNDING = 0.001


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting of one direction of a link that is not the configured one.

    Attributes:
        when: `before`, `during` or `after` the training.
        link, sender: the direction.
        setting: its name in `ShapeInForce`.
        configured, found: the values; None: there is none.
        at_s: of one during the training, when it was read (CLOCK_MONOTONIC).
    """

    when: str
    link: str
    sender: str
    setting: str
    configured: int
    found: int | None
    at_s: float | None = None

    def place(self, rounds: Rounds) -> str:
        when = "" if self.at_s is None else in_round(self.at_s, rounds)
        return (
            f"{self.link} from {self.sender}: {self.setting} {self.found} in place of "
            f"{self.configured}{when or f' {self.when} the training'}"
        )


class SettingsReader:
    """Reads all links' settings, some 50 microseconds for each direction.

    Attributes:
        read: how many directions were read, before and after the training together.
        differences: those that were found.
        failures: what could not be read, with the reason.
    """

    def __init__(self, network: LabInfo) -> None:
        self._network = network
        self.read = 0
        self.differences: list[Difference] = []
        self.failures: list[str] = []
        self._listener: _Listener | None = None

    @property
    def wanted(self) -> int:
        """How many directions are to be read, before and after the training together."""
        return 4 * len(self._network.links)

    def look(self, when: str, changes: LinkChanges | None = None) -> None:
        """Compare the kernel's settings with the configured ones, `before` or `after`.

        Args:
            changes: what was configured meanwhile.
        """
        for pid, members in _by_namespace(self._network).items():
            try:
                with Rtnetlink(pid) as kernel:
                    for link, end in members:
                        shape = link.shape if changes is None else changes.shape(link, end.node)
                        found = shape_in_force.read(kernel, end.interface)
                        self.read += 1
                        self.differences += _differences(when, link.name, end.node, shape, found)
            except (OSError, CommandError) as error:
                self.failures.append(f"{when} the training: {error}")

    def listen(self) -> None:
        """From now on, read the settings of each direction whose change the kernel tells of."""
        try:
            self._listener = _Listener(self._network)
        except (OSError, CommandError) as error:
            self.failures.append(f"during the training: {error}")

    def judge_passing(self, events: Sequence[Mapping[str, Any]], changes: LinkChanges) -> None:
        """Add what differed during the training, unless an impairment or the user changed it.

        Args:
            events: the records of `events/impairments.jsonl`.
            changes: of links, by hand.
        """
        if self._listener is None:
            return
        heard, failures = self._listener.finish()
        self.failures += failures
        known = {(each.link, each.sender, each.setting, each.found) for each in self.differences}
        for at_s, link, end, found in heard:
            spans = spans_of_changes(events, {link.first.node, link.second.node}, ("no",))
            spans += changes.spans((link.name, end.node))
            if any(began_s <= at_s <= ended_s for began_s, ended_s in spans):
                continue
            shape = changes.shape(link, end.node, at_s)
            for each in _differences("during", link.name, end.node, shape, found, at_s):
                value = (each.link, each.sender, each.setting, each.found)
                if value not in known:
                    known.add(value)
                    self.differences.append(each)

    def store(self, directory: Path) -> None:
        """Write the evidence into a run's directory."""
        document = {
            "schema": run_directory.SCHEMA,
            "read": self.read,
            "differences": [asdict(each) for each in self.differences],
            "failures": self.failures,
        }
        run_directory.write_json(directory / FILE, document)


class _Listener:
    """Hears from the kernel of changes, and reads at once what is in force then."""

    def __init__(self, network: LabInfo) -> None:
        """Raises OSError or CommandError when an interface is missing."""
        self._heard: list[tuple[float, LinkEnds, Port, ShapeInForce | None]] = []
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
                    self._ends[pid, kernel.index(end.interface)] = link, end
        self._stop = os.eventfd(0)
        self._poll.register(self._stop, select.POLLIN)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def finish(
        self,
    ) -> tuple[list[tuple[float, LinkEnds, Port, ShapeInForce | None]], list[str]]:
        """What was in force when, of each direction that changed; and what could not be heard."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        for opened, _ in self._sockets.values():
            opened.close()
        os.close(self._stop)
        return self._heard, self._failures

    def _listen(self) -> None:
        while True:
            ready = [descriptor for descriptor, _ in self._poll.poll()]
            for descriptor in ready:
                if descriptor in self._sockets:
                    self._hear(*self._sockets[descriptor])
            if self._stop in ready:
                return

    def _hear(self, opened: netlink.Socket, pid: int | None) -> None:
        try:
            changed = netlink.changed_interfaces(opened)
        except OSError as error:
            self._failures.append(f"during the training: changes were not heard: {error}")
            return
        for index in changed:
            if (pid, index) in self._ends:
                link, end = self._ends[pid, index]
                self._heard.append((time.monotonic(), link, end, _in_force(pid, end.interface)))


def _in_force(pid: int | None, interface: str) -> ShapeInForce | None:
    """How an interface is shaped now; None: it is not, or it is gone."""
    try:
        with Rtnetlink(pid) as kernel:
            return shape_in_force.read(kernel, interface)
    except (OSError, CommandError):
        return None


def _by_namespace(network: LabInfo) -> dict[int | None, list[tuple[LinkEnds, Port]]]:
    """The directions of all links, by the namespace of the end that sends."""
    found: dict[int | None, list[tuple[LinkEnds, Port]]] = {}
    for link in network.links:
        for end in (link.first, link.second):
            found.setdefault(end.pid, []).append((link, end))
    return found


def _differences(
    when: str,
    link: str,
    sender: str,
    shape: LinkShape,
    found: ShapeInForce | None,
    at_s: float | None = None,
) -> list[Difference]:
    settings = [("rate_bps", shape.rate_bps, None)] if found is None else differing(shape, found)
    return [
        Difference(
            when=when,
            link=link,
            sender=sender,
            setting=setting,
            configured=configured,
            found=value,
            at_s=at_s,
        )
        for setting, configured, value in settings
    ]


def differing(shape: LinkShape, found: ShapeInForce) -> Iterator[tuple[str, int, int | None]]:
    """The settings that are not as configured: name, configured and found value."""
    configured = {
        "rate_bps": shape.rate_bps,
        "ceiling_bps": shape.rate_bps,
        "burst_bytes": shape.burst_bytes,
        "queue_bytes": shape.queue_bytes,
        "ecn_threshold_bytes": shape.ecn_threshold_bytes or 0,
        "priority_queue_bytes": shape.priority_queue_bytes or 0,
        "most_segments": 1,
    }
    for setting, wanted in configured.items():
        value = getattr(found, setting)
        exact = setting not in ("rate_bps", "ceiling_bps", "burst_bytes")
        if value is None or abs(value - wanted) > (0 if exact else max(8, _ROUNDING * wanted)):
            yield setting, wanted, value


def gates(settings: SettingsReader, limits: Mapping[str, Any], rounds: Rounds = ()) -> list[Gate]:
    """How many settings of links were not the configured ones.

    Args:
        rounds: the records of `events/rounds.jsonl`.
    """
    found, missing = settings.differences, "; ".join(settings.failures)
    if not missing and settings.read < settings.wanted:
        missing = f"{settings.read} of {settings.wanted} directions were read"
    return [
        compared(
            "settings of links that are not as configured",
            KEY,
            len(found),
            limits[KEY],
            where=found[0].place(rounds) if found else "",
            note=f"{len(found) - 1} more in {FILE}" if len(found) > 1 else "",
            missing=missing,
        )
    ]
