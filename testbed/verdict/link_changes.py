"""Changes of links that the lab's user made on purpose while it ran: kept, and excused by name."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.network import LabInfo, LinkEnds
from testbed.shared import jsonl
from testbed.shared.jsonl import JsonLinesWriter

# A record says which settings were set, and all that the direction has from then on; the others may
# be an impairment's. A rate under load is judged by the rate in force. Losses and waits are not
# compared with a configuration that held for a part of the time only.
FILE = "link_changes.jsonl"
Way = tuple[str, str]  # a link's name and the end that sends
Change = tuple[float, float, float]  # when it was ordered, when it was done, the new value


class Log:
    def __init__(self, directory: Path, network: LabInfo) -> None:
        self._path = directory / "events" / FILE
        self._links = {
            frozenset((link.first.node, link.second.node)): link for link in network.links
        }
        self._writer: JsonLinesWriter | None = None

    def add(self, sender: str, receiver: str, keys: Iterable[str], done: Mapping[str, Any]) -> None:
        """Note that the controller has set some settings: `done` is its reply."""
        self._writer = self._writer or JsonLinesWriter(self._path)
        link = self._links[frozenset((sender, receiver))]
        times = {key: done[key] for key in ("sent_s", "acknowledged_s")}
        what = {"link": link.name, "from": sender, "set": sorted(keys)}
        self._writer.write({**what, **done["now"], **times})


class LinkChanges:
    def __init__(self, records: Sequence[Mapping[str, Any]] = ()) -> None:
        self._records = list(records)

    @classmethod
    def read(cls, directory: Path) -> LinkChanges:
        return cls(jsonl.read(directory / "events" / FILE))

    def of(self, network: LabInfo, *keys: str) -> dict[Way, dict[str, Any]]:
        """The directions that ever had another value of a key than the configured one."""
        links = {link.name: link for link in network.links}
        ever = {
            (record["link"], record["from"])
            for record in self._records
            if any(
                key in record["set"] and record[key] != getattr(links[record["link"]], key)
                for key in keys
            )
        }
        return {way: self._last(way, keys) for way in ever}

    def shape(self, link: LinkEnds, sender: str, until_s: float = math.inf) -> LinkShape:
        """Rate and queue of a direction after all changes, or after those before a time."""
        last = self._last((link.name, sender), ("rate_bps", "queue_bytes"), until_s)
        return replace(link.shape, **{key: int(value) for key, value in last.items()})

    def spans(self, way: Way) -> list[tuple[float, float]]:
        return [(record["sent_s"], record["acknowledged_s"]) for record in self._of_way(way)]

    def rates(self, way: Way) -> list[Change]:
        return [
            (record["sent_s"], record["acknowledged_s"], record["rate_bps"])
            for record in self._of_way(way)
            if "rate_bps" in record["set"]
        ]

    @property
    def longest_s(self) -> float:
        return max(
            (record["delay_s"] + record["jitter_s"] for record in self._records), default=0.0
        )

    def _last(self, way: Way, keys: Collection[str], until_s: float = math.inf) -> dict[str, Any]:
        return {
            key: record[key]
            for record in self._of_way(way)
            for key in keys
            if key in record["set"] and record["acknowledged_s"] <= until_s
        }

    def _of_way(self, way: Way) -> list[Mapping[str, Any]]:
        return [record for record in self._records if (record["link"], record["from"]) == way]
