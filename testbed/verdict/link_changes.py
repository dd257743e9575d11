"""Changes of links that the lab's user made on purpose while it ran: kept, and excused by name.

Each record in `events/link_changes.jsonl` says which settings of a direction were set, and all that
it has from then on; those that were not set may be an impairment's. While it has another rate than
the configured one, its rate under load is not judged. At the end each setting must be as it was set
last. A loss or a delay that was changed is not compared with a configuration that held for a part
of the time only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.network import LabInfo, LinkEnds
from testbed.shared.jsonl import JsonLinesWriter

FILE = "link_changes.jsonl"
Way = tuple[str, str]  # a link's name and the end that sends


class Log:
    """Writes the records of a run.

    Args:
        directory: of the run.
        network: the lab.
    """

    def __init__(self, directory: Path, network: LabInfo) -> None:
        self._path = directory / "events" / FILE
        self._links = {
            frozenset((each.first.node, each.second.node)): each for each in network.links
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
    """What was changed, in order."""

    def __init__(self, records: Sequence[Mapping[str, Any]] = ()) -> None:
        self._records = list(records)

    @classmethod
    def read(cls, directory: Path) -> LinkChanges:
        """Those of a run; none where there is no such file."""
        path = directory / "events" / FILE
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return cls([json.loads(line) for line in lines if line.strip()])

    def of(self, network: LabInfo, *keys: str) -> set[Way]:
        """The directions that ever had another value of a key than the configured one."""
        links = {each.name: each for each in network.links}
        return {
            (each["link"], each["from"])
            for each in self._records
            if any(
                key in each["set"] and each[key] != getattr(links[each["link"]], key)
                for key in keys
            )
        }

    def shape(self, link: LinkEnds, sender: str) -> LinkShape:
        """Rate and queue of a direction after all changes."""
        last = {
            key: int(each[key])
            for each in self._records
            if (each["link"], each["from"]) == (link.name, sender)
            for key in ("rate_bps", "queue_bytes")
            if key in each["set"]
        }
        return replace(link.shape, **last)

    def as_events(self, network: LabInfo) -> Iterator[dict[str, Any]]:
        """When rates were others than configured, as impairments tell it (`changes_rates`)."""
        links = {each.name: each for each in network.links}
        changed: dict[Way, str] = {}
        for each in self._records:
            way, link = (each["link"], each["from"]), links[each["link"]]
            is_other = each["rate_bps"] != link.rate_bps
            if "rate_bps" not in each["set"] or is_other == (way in changed):
                continue
            ended = changed.pop(way, None)
            if ended is None:
                changed[way] = f"set {link.name} at {each['sent_s']}"
            yield {
                "name": ended or changed[way],
                "changes_rates": "target",
                "target": f"{link.first.node}->{link.second.node}",
                "action": "begin" if ended is None else "end",
                "sent_s": each["sent_s"],
                "acknowledged_s": each["acknowledged_s"],
            }
