"""Samples the congestion state of the training's data flows.

For kernel TCP it asks for TCP_INFO of each connection at its sending end. The endpoints of our own
transport write congestion logs themselves (`training.events`); these are read at the end
for the table, and meanwhile for the live view.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.sampling import tcp_reader
from testbed.sampling.store import ChunkedTable, index_names
from testbed.sampling.tail import Tail
from testbed.sampling.tcp_reader import STATE, TcpReader
from testbed.transport.wire import DATA_PORTS

if TYPE_CHECKING:
    import polars as pl

# The flows sampled at each tick; more if a flow would wait for more than _MOST_TURNS ticks.
FLOWS_PER_TICK = 6
_MOST_TURNS = 4
# A search walks the kernel's whole table of sockets, so it is rare once all flows are found.
_SEEK_S, _SEEK_AGAIN_S = 0.25, 5.0
_CHUNK_ROWS = 20_000
_MOST_ANSWERS = 500
COLUMNS = ("t_s", "host", "peer", "leg", "kind", *STATE)
_DTYPE = [("t_s", "f8"), ("flow", "u4"), *((name, "f8") for name in STATE)]
_SERVER = "server"


class FlowSampler:
    """Samples both directions of each worker's traffic.

    Attributes:
        latest: (host, peer) -> its last values, for the live view.
    """

    def __init__(
        self, folder: Path, hosts: Mapping[str, Mapping[str, Any]], carrier: str, events: Path
    ) -> None:
        self.table = ChunkedTable(folder, "flows", _DTYPE, chunk_rows=_CHUNK_ROWS)
        self.latest: dict[tuple[str, str], dict[str, Any]] = {}
        self._events = events
        self._names = {host["address"]: name for name, host in hosts.items()}
        self._workers = len(hosts) - 1
        self._tcp = carrier == "tcp" and _SERVER in hosts
        self._readers: dict[str, TcpReader] = {}
        self._tails: dict[str, Tail] = {}
        for name, host in hosts.items():
            if self._tcp:
                self._readers[name] = TcpReader(host["pid"])
            else:
                self._tails[name] = Tail(events / f"congestion-{name}.jsonl")
        self._flows: dict[tuple[str, str], bytes] = {}
        self._order: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._answers: list[tuple[float, tuple[str, str], bytes]] = []
        self._seek_s = 0.0

    @property
    def turns(self) -> int:
        """The number of ticks in which each flow is sampled once."""
        return min(_MOST_TURNS, max(1, -(-len(self._order) // FLOWS_PER_TICK)))

    @property
    def strangers(self) -> int:
        """Answers that came too late and were dropped."""
        return sum(reader.strangers for reader in self._readers.values())

    def sample(self, tick: int) -> None:
        """Read the state of the connections whose turn it is; OSError if the kernel refuses."""
        if not self._tcp:
            return
        now_s = time.monotonic()
        if now_s >= self._seek_s:
            self._seek(now_s)
        count, turn, turns = len(self._order), tick % self.turns, self.turns
        for host, peer in self._order[count * turn // turns : count * (turn + 1) // turns]:
            now_s = time.monotonic()
            answer = self._readers[host].ask(self._flows[host, peer])
            self._answers.append((now_s, (host, peer), answer))
        if len(self._answers) > _MOST_ANSWERS:
            self._decode()

    def _decode(self) -> None:
        """Bring table and `latest` up to date with what the kernel has answered."""
        if not self._answers:
            return
        answers, self._answers = self._answers, []
        which, states = tcp_reader.decode([answer for *_, answer in answers])
        if len(which) < len(answers):  # a connection is gone: perhaps there is another
            self._seek_s = min(self._seek_s, time.monotonic() + _SEEK_S)
        rows = self.table.take(len(which))
        rows["t_s"] = [answers[index][0] for index in which]
        flows = [answers[index][1] for index in which]
        rows["flow"] = [self._numbers.setdefault(flow, len(self._numbers)) for flow in flows]
        for name, column in zip(STATE, states.T, strict=True):
            rows[name] = column
        for flow, state in dict(zip(flows, states.tolist(), strict=True)).items():
            self.latest[flow] = dict(zip(STATE, state, strict=True))

    def _seek(self, now_s: float) -> None:
        for connection in self._readers[_SERVER].connections(*DATA_PORTS):
            peer = self._names.get(connection.peer_address)
            if peer is None:
                continue
            self._flows[_SERVER, peer] = connection.lookup()
            self._flows[peer, _SERVER] = connection.reversed.lookup()
        self._order = sorted(self._flows)
        complete = len(self._order) >= 2 * self._workers
        self._seek_s = now_s + (_SEEK_AGAIN_S if complete else _SEEK_S)

    def look(self) -> None:
        self._decode()
        for name, tail in self._tails.items():
            newest: dict[str, bytes] = {}
            for line in tail.lines()[-64:]:
                # Parsing all of them would cost more than sampling: one per peer is enough.
                newest[line.partition(b'"peer": "')[2].partition(b'"')[0].decode()] = line
            for peer, line in newest.items():
                with suppress(ValueError):
                    record = json.loads(line)
                    self.latest[name, peer] = {each: record.get(each) for each in STATE}

    def write(self, path: Path, *, last: bool) -> None:
        """Write the parquet file from the samples so far and the endpoints' logs."""
        import polars as pl

        self._decode()
        schema: dict[str, Any] = {
            name: pl.String if name in ("host", "peer", "leg", "kind") else pl.Float64
            for name in COLUMNS
        }
        logs = sorted(self._events.glob("congestion-*.jsonl"))
        further = [
            pl.scan_ndjson(log, schema=schema, ignore_errors=True).select(COLUMNS)
            for log in logs
            if log.stat().st_size
        ]
        hosts = [host for host, _ in self._numbers]
        peers = [peer for _, peer in self._numbers]
        # The leg in which a host sends.
        legs = ["broadcast" if host == _SERVER else "gather" for host in hosts]

        def decode(frame: pl.DataFrame) -> pl.DataFrame:
            return frame.with_columns(
                index_names("flow", hosts).alias("host"),
                index_names("flow", peers).alias("peer"),
                index_names("flow", legs).alias("leg"),
                pl.lit("tcp").alias("kind"),
            ).select(COLUMNS)

        self.table.write(path, decode, further=further, last=last)
