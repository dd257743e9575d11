"""Samples the congestion state of the workload's data flows."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.sampling import tcp_reader
from testbed.sampling.store import ChunkedTable, index_names
from testbed.sampling.tcp_reader import STATE, TcpReader

_AT_ONCE_BYTES = 1 << 16


class Tail:
    """Follows one file that may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._rest = b""

    def lines(self) -> list[bytes]:
        """The whole lines that are new, at most 64 KiB of them."""
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            except OSError:
                return []
        data = os.read(self._descriptor, _AT_ONCE_BYTES)
        if not data:
            return []
        *whole, self._rest = (self._rest + data).split(b"\n")
        return whole

    def records(self) -> Iterator[dict[str, Any]]:
        """The new lines that hold a JSON object."""
        for line in self.lines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


if TYPE_CHECKING:
    import polars as pl

# The flows sampled at each tick; more if a flow would wait for more than _MOST_TURNS ticks.
FLOWS_PER_TICK = 6
_MOST_TURNS = 4
# A search walks the kernel's whole table of sockets, so it is rare once all flows are found.
_SEEK_S, _SEEK_AGAIN_S = 0.25, 5.0
_CHUNK_ROWS = 20_000
# How many hosts a search asks.
_HOSTS_PER_SEARCH = 4
_MOST_ANSWERS = 500
COLUMNS = ("t_s", "host", "peer", "leg", "kind", "port", "peer_port", *STATE)
_TEXTS = ("host", "peer", "leg", "kind")
_DTYPE = [("t_s", "f8"), ("flow", "u4"), *((name, "f8") for name in STATE)]
_LEGS = ("gather", "broadcast")


class Flow(NamedTuple):
    """What one host sends to another; of TCP, through one connection."""

    host: str
    peer: str
    port: int = 0
    peer_port: int = 0


class FlowSampler:
    """Samples both directions of the traffic between the hosts of a lab."""

    def __init__(
        self,
        folder: Path,
        hosts: Mapping[str, Mapping[str, Any]],
        flows: Mapping[str, Any],
        events: Path,
    ) -> None:
        self.table = ChunkedTable(folder, "flows", _DTYPE, chunk_rows=_CHUNK_ROWS)
        self.latest: dict[Flow, dict[str, Any]] = {}  # for the live view
        self._events = events
        self._hosts = hosts
        self._names = {host["address"]: name for name, host in hosts.items()}
        # `hosts` between which it flows, `ports` of TCP (null: another transport, whose endpoints
        # write logs), `centre`, a host that all of it begins or ends at (null: none).
        self._ports = flows["ports"]
        self._centre = flows["centre"]
        self._among = list(flows["hosts"])
        self._to_ask = deque([self._centre] if self._centre else self._among)
        self._readers: dict[str, TcpReader] = {}
        self._tails: dict[str, Tail] = {}
        if self._ports is None:
            self._tails = {each: Tail(events / f"congestion-{each}.jsonl") for each in self._among}
        self._flows: dict[Flow, bytes] = {}
        self._order: list[Flow] = []
        self._numbers: dict[Flow, int] = {}
        self._used: set[tuple[str, str, str]] = set()  # host, peer, congestion control
        self._answers: list[tuple[float, Flow, bytes]] = []
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
        if self._ports is None:
            return
        now_s = time.monotonic()
        if now_s >= self._seek_s:
            self._seek(now_s)
        count, turn, turns = len(self._order), tick % self.turns, self.turns
        for flow in self._order[count * turn // turns : count * (turn + 1) // turns]:
            now_s = time.monotonic()
            answer = self._reader(flow.host).ask(self._flows[flow])
            self._answers.append((now_s, flow, answer))
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
            for index in set(range(len(answers))) - set(which.tolist()):
                self._flows.pop(answers[index][1], None)
                self.latest.pop(answers[index][1], None)
            self._order = sorted(self._flows)
        rows = self.table.take(len(which))
        rows["t_s"] = [answers[index][0] for index in which]
        flows = [answers[index][1] for index in which]
        rows["flow"] = [self._numbers.setdefault(flow, len(self._numbers)) for flow in flows]
        for name, column in zip(STATE, states.T, strict=True):
            rows[name] = column
        for flow, state in dict(zip(flows, states.tolist(), strict=True)).items():
            self.latest[flow] = dict(zip(STATE, state, strict=True))

    def _seek(self, now_s: float) -> None:
        for _ in range(min(_HOSTS_PER_SEARCH, len(self._to_ask))):
            host = self._to_ask[0]
            self._to_ask.rotate(-1)
            for each in self._reader(host).connections(*self._ports):
                peer = self._names.get(each.peer_address)
                if peer is None or peer == host:
                    continue
                flow = Flow(host, peer, each.port, each.peer_port)
                self._flows[flow] = each.lookup()
                back = Flow(peer, host, each.peer_port, each.port)
                self._flows[back] = each.reversed.lookup()
                self._used.add((host, peer, each.congestion_control))
        self._order = sorted(self._flows)
        # Others may open connections at any time.
        complete = self._centre and len(self._order) >= 2 * (len(self._among) - 1)
        self._seek_s = now_s + (_SEEK_AGAIN_S if complete else _SEEK_S)

    def _reader(self, host: str) -> TcpReader:
        if host not in self._readers:
            self._readers[host] = TcpReader(self._hosts[host]["pid"])
        return self._readers[host]

    def congestion_controls(self) -> list[dict[str, str]]:
        """What the connections of each host towards each other used, as far as they were seen."""
        keys = ("host", "peer", "congestion_control")
        return [dict(zip(keys, each, strict=True)) for each in sorted(self._used)]

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
                    self.latest[Flow(name, peer)] = {each: record.get(each) for each in STATE}

    def write(self, path: Path, *, last: bool) -> None:
        """Write the parquet file from the samples so far and the endpoints' logs."""
        import polars as pl

        self._decode()
        schema: dict[str, Any] = {
            name: pl.String if name in _TEXTS else pl.Float64 for name in COLUMNS
        }
        logs = sorted(self._events.glob("congestion-*.jsonl"))
        further = [
            pl.scan_ndjson(log, schema=schema, ignore_errors=True).select(COLUMNS)
            for log in logs
            if log.stat().st_size
        ]
        known = list(self._numbers)
        hosts, peers = [each.host for each in known], [each.peer for each in known]
        # The leg in which a host sends.
        legs = [_LEGS[each == self._centre] if self._centre else "" for each in hosts]

        def decode(frame: pl.DataFrame) -> pl.DataFrame:
            return frame.with_columns(
                index_names("flow", hosts).alias("host"),
                index_names("flow", peers).alias("peer"),
                index_names("flow", legs).alias("leg"),
                pl.lit("tcp").alias("kind"),
                _numbers("port", [each.port for each in known]),
                _numbers("peer_port", [each.peer_port for each in known]),
            ).select(COLUMNS)

        self.table.write(path, decode, further=further, last=last)


def _numbers(name: str, of_flows: list[int]) -> pl.Expr:
    """A column of numbers, by the number of each row's flow."""
    import polars as pl

    flows = list(range(len(of_flows)))
    return pl.col("flow").replace_strict(flows, of_flows, return_dtype=pl.Float64).alias(name)
