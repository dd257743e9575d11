"""The congestion state of a host's sending paths, logged between the legs it was observed in."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from testbed.shared.jsonl import JsonLinesWriter
from testbed.transport import Leg, Observation


class CongestionLog:
    """`observe` is for `EndpointConfig.observer`: it only remembers; `flush` writes.

    Writes `events/congestion-<host>.jsonl`, and nothing if there is nothing to write. `round_of`
    tells the round that an exchange belongs to.
    """

    def __init__(self, directory: Path, host: str, round_of: Callable[[int], int]) -> None:
        self._path = directory / "events" / f"congestion-{host}.jsonl"
        self._host = host
        self._round_of = round_of
        self._writer: JsonLinesWriter | None = None
        self._observed: list[Observation] = []

    def observe(self, observation: Observation) -> None:
        """Remember one observation."""
        self._observed.append(observation)

    def flush(self) -> None:
        """Append what was observed to the log; to be called outside what is measured."""
        if not self._observed:
            return
        if self._writer is None:
            self._writer = JsonLinesWriter(self._path)
        for each in self._observed:
            self._writer.write(
                {
                    "t_s": each.now_s,
                    "host": self._host,
                    "peer": each.peer,
                    "leg": Leg(each.transfer % len(Leg)).name.lower(),
                    "kind": "udp",
                    "cwnd_bytes": each.window_bytes if math.isfinite(each.window_bytes) else None,
                    "rtt_s": each.rtt_s,
                    "rate_bps": each.rate_bps if math.isfinite(each.rate_bps) else None,
                    "retransmits": each.retransmits,
                    "round": self._round_of(Leg.round_of(each.transfer)),
                }
            )
        self._observed.clear()
