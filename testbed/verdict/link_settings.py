"""Whether the kernel shapes every link as configured, before the training and after it.

Measurements of a path see its narrowest link only, and those under load see links that were loaded.
The kernel's own settings tell of every link, of its queue and of the size of its packets. What is
changed and set back while the run trains shows in the measurements alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.lab.kernel import shape_in_force
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shape_in_force import ShapeInForce
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.shared import run_directory
from testbed.verdict.gate import Gate, compared
from testbed.verdict.link_changes import LinkChanges

FILE = "link_settings.json"
KEY = "link_settings"
# The kernel keeps rates in whole bytes, and buckets in units of 64 ns.
_ROUNDING = 0.001


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting of one direction of a link that is not the configured one.

    Attributes:
        when: `before` or `after` the training.
        link, sender: the direction.
        setting: its name in `ShapeInForce`.
        configured, found: the values; None: there is none.
    """

    when: str
    link: str
    sender: str
    setting: str
    configured: int
    found: int | None

    @property
    def place(self) -> str:
        return (
            f"{self.link} from {self.sender}: {self.setting} {self.found} in place of "
            f"{self.configured} {self.when} the training"
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

    @property
    def wanted(self) -> int:
        """How many directions are to be read, before and after the training together."""
        return 4 * len(self._network.links)

    def look(self, when: str, changes: LinkChanges | None = None) -> None:
        """Compare the kernel's settings with the configured ones, `before` or `after`.

        Args:
            changes: what was configured meanwhile.
        """
        by_namespace: dict[int | None, list[tuple[LinkEnds, Port]]] = {}
        for link in self._network.links:
            for end in (link.first, link.second):
                by_namespace.setdefault(end.pid, []).append((link, end))
        for pid, members in by_namespace.items():
            try:
                with Rtnetlink(pid) as kernel:
                    for link, end in members:
                        shape = link.shape if changes is None else changes.shape(link, end.node)
                        self._compare(when, link.name, end, shape, kernel)
            except (OSError, CommandError) as error:
                self.failures.append(f"{when} the training: {error}")

    def _compare(
        self, when: str, link: str, end: Port, shape: LinkShape, kernel: Rtnetlink
    ) -> None:
        found = shape_in_force.read(kernel, end.interface)
        self.read += 1
        for setting, configured, value in differing(shape, found):
            self.differences.append(
                Difference(
                    when=when,
                    link=link,
                    sender=end.node,
                    setting=setting,
                    configured=configured,
                    found=value,
                )
            )

    def store(self, directory: Path) -> None:
        """Write the evidence into a run's directory."""
        document = {
            "schema": run_directory.SCHEMA,
            "read": self.read,
            "differences": [asdict(each) for each in self.differences],
            "failures": self.failures,
        }
        run_directory.write_json(directory / FILE, document)


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


def gates(settings: SettingsReader, limits: Mapping[str, Any]) -> list[Gate]:
    """How many settings of links were not the configured ones."""
    found, missing = settings.differences, "; ".join(settings.failures)
    if not missing and settings.read < settings.wanted:
        missing = f"{settings.read} of {settings.wanted} directions were read"
    return [
        compared(
            "settings of links that are not as configured",
            KEY,
            len(found),
            limits[KEY],
            where=found[0].place if found else "",
            note=f"{len(found) - 1} more in {FILE}" if len(found) > 1 else "",
            missing=missing,
        )
    ]
