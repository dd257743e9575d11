"""Samples the output queues of both ends of every link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from testbed.lab.paths import SERVER
from testbed.sampling.queue_reader import BACKLOG_BYTES, COLUMNS, HostQueues, QueueDump
from testbed.sampling.store import ChunkedTable, index_names

if TYPE_CHECKING:
    import polars as pl

# One request reads all switches' ends; each host's end takes a request of its own. The server's
# end, the broadcast's bottleneck, is read at every tick. The other hosts take turns: so many per
# tick, or more if a host's turn would otherwise come after more than _MOST_TURNS ticks.
OTHERS_PER_TICK = 4
_MOST_TURNS = 4
_CHUNK_S = 10
_TYPES = {
    "backlog_bytes": "u4",
    "backlog_packets": "u4",
    "sent_bytes": "i8",
    "sent_packets": "i8",
    "drops": "u4",
}
_DTYPE = [("t_s", "f8"), ("end", "u4"), *_TYPES.items()]


class QueueSampler:
    """Samples all ends. Rows of `latest` are the switches' ends first, then the hosts'."""

    def __init__(self, folder: Path, links: Sequence[dict[str, Any]], rate_hz: float) -> None:
        """Raises OSError when an interface does not exist."""
        described = [(link, end) for link in links for end in link["ends"]]
        switch = [each for each in described if each[1]["pid"] is None]
        hosts = [each for each in described if each[1]["pid"] is not None]
        hosts.sort(key=lambda each: each[1]["from"] != SERVER)
        always = [row for row, (_, end) in enumerate(hosts) if end["from"] == SERVER]
        others = range(len(always), len(hosts))
        ordered = [*switch, *hosts]
        self.ends = [(link["link"], end["from"]) for link, end in ordered]
        self.queue_bytes = [link["queue_bytes"] for link, _ in ordered]
        self.rates_bps = [link["rate_bps"] for link, _ in ordered]
        self.latest = np.zeros((len(ordered), len(COLUMNS)), dtype=np.int64)
        self.highest_bytes = np.zeros(len(ordered), dtype=np.int64)
        self._switch = QueueDump([end["interface"] for _, end in switch]) if switch else None
        self._hosts = HostQueues([(end["pid"], end["interface"]) for _, end in hosts])
        self._switch_count = len(switch)
        self.turns = min(_MOST_TURNS, max(1, math.ceil(len(others) / OTHERS_PER_TICK)))
        self._asked = [[*always, *others[turn :: self.turns]] for turn in range(self.turns)]
        self._numbers = np.arange(len(ordered), dtype=np.uint32)
        rows = int(_CHUNK_S * rate_hz * (len(switch) + len(self._asked[0])))
        self.table = ChunkedTable(folder, "queues", _DTYPE, chunk_rows=max(rows, 1000))

    def sample(self, tick: int) -> None:
        """Read the switches' ends and the ends of hosts in turn; OSError if one is gone."""
        if self._hosts.full or (self._switch is not None and self._switch.full):
            self.decode()
        try:
            if self._switch is not None:
                self._switch.capture()
        finally:
            self._hosts.capture(self._asked[tick % self.turns])

    def decode(self) -> None:
        """Bring table, `latest` and `highest_bytes` up to date."""
        if self._switch is not None:
            times_s, values = self._switch.decode()
            count = values.shape[1]
            numbers = np.tile(self._numbers[:count], len(times_s))
            self._keep(np.repeat(times_s, count), numbers, values.reshape(-1, len(COLUMNS)))
        rows, times_s, values = self._hosts.decode()
        self._keep(times_s, rows + self._switch_count, values)

    def _keep(
        self, times_s: NDArray[np.float64], numbers: NDArray[Any], values: NDArray[np.int64]
    ) -> None:
        rows = self.table.take(len(times_s))
        rows["t_s"] = times_s
        rows["end"] = numbers
        for column, name in enumerate(COLUMNS):
            rows[name] = values[:, column]
        self.latest[numbers] = values  # the last one of each stays
        np.maximum.at(self.highest_bytes, numbers, values[:, BACKLOG_BYTES])

    @property
    def left_out(self) -> int:
        """Answers of the kernel that gave no sample: an interface was not in them."""
        return self._hosts.left_out + (self._switch.left_out if self._switch is not None else 0)

    @property
    def strangers(self) -> int:
        """Answers that came too late and were dropped."""
        return self._hosts.strangers + (self._switch.strangers if self._switch is not None else 0)

    def take_highest(self) -> NDArray[np.int64]:
        """The longest backlogs since the last call, in bytes."""
        highest = self.highest_bytes.copy()
        self.highest_bytes[:] = 0
        return highest

    def write(self, path: Path, *, last: bool) -> None:
        """Write the samples so far to a parquet file; after the `last` time there are no more."""
        self.decode()
        links = [link for link, _ in self.ends]
        senders = [sender for _, sender in self.ends]

        def decode(frame: pl.DataFrame) -> pl.DataFrame:
            import polars as pl

            return frame.select(
                "t_s",
                index_names("end", links).alias("link"),
                index_names("end", senders).alias("from"),
                pl.col(*_TYPES).cast(pl.Int64),
            )

        self.table.write(path, decode, last=last)
