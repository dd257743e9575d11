"""Writes `delay.json` of a run directory: counters of delayed links, and how late the relay was."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from testbed.lab.delay import netem
from testbed.lab.delay.delay_settings import Middle, directed
from testbed.lab.delay.relay_client import RelayClient
from testbed.shared.unlinked import open_file

SCHEMA = 1


@contextmanager
def recorded(network: Mapping[str, Any], path: Path) -> Iterator[None]:
    """Write the record of a lab's delayed links while the body ran; nothing if it has none."""
    if network["delayed_by"] == "relay":
        with closing(RelayClient(network["relay_socket"])) as client:
            client.begin()
    yield
    if network["delayed_by"] is not None:
        with open_file(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(document(network), indent=1) + "\n")


def document(network: Mapping[str, Any]) -> dict[str, Any]:
    """The record so far: what delays (`by`), whether frames stay `in_order`, report, counters."""
    common = {"schema": SCHEMA, "by": network["delayed_by"], "in_order": network["in_order"]}
    common["at_s"] = time.monotonic()
    if network["delayed_by"] == "netem":
        middles = [Middle.of_link(link) for link in network["links"] if link["middle"] is not None]
        delays, directions = netem.report(middles)
        return common | {
            "delays": [directed(each) for each in delays],
            "directions": [directed(each) for each in directions],
        }
    with closing(RelayClient(network["relay_socket"])) as client:
        return common | client.report()
