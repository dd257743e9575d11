"""Samples the output queues of both ends of every link, by netlink: `tc` takes milliseconds a call.

Formats: linux/rtnetlink.h, gen_stats.h.
"""

from __future__ import annotations

import errno
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.lab.kernel import netlink
from testbed.lab.kernel.link_counters import STATS2, STATS_BASIC, STATS_QUEUE
from testbed.lab.kernel.netlink import HEADER, NetlinkError
from testbed.lab.kernel.rtnetlink import GET_QDISC, NEW_QDISC, ROOT, TCMSG, interface_index
from testbed.lab.paths import SERVER
from testbed.verdict.store import ChunkedTable

# Columns of a reading.
SENT_BYTES, SENT_PACKETS, BACKLOG_BYTES, BACKLOG_PACKETS, DROPS = range(5)
COLUMNS = ("sent_bytes", "sent_packets", "backlog_bytes", "backlog_packets", "drops")
# The 32-bit words behind them: low and high half of the bytes, and the other four.
_WORDS = 6
_DATAGRAM_BYTES = 1 << 15
_DONE_BYTES = 20
_KEPT = 32  # answers, until they are decoded
# The server's end, the broadcast's bottleneck, and the switches', by one request, are read at every
# tick. Of the other hosts so many are read per tick, more if a cycle would be longer than this.
OTHERS_PER_TICK = 4
_LONGEST_CYCLE = 4
_CHUNK_S = 10
_TYPES = {
    "backlog_bytes": "u4",
    "backlog_packets": "u4",
    "sent_bytes": "i8",
    "sent_packets": "i8",
    "drops": "u4",
}
_DTYPE = [("t_s", "f8"), ("end", "u4"), *_TYPES.items()]


class QueueReader:
    """Keeps dumps of a namespace's queues, and takes the numbers out of many at once.

    It parses one to learn where the numbers are (`decode`); all others must look the same.
    """

    def __init__(self, interfaces: Sequence[str], pid: int | None = None) -> None:
        self._socket = netlink.connect(netlink.ROUTE, pid)
        self._interfaces = [interface_index(self._socket, name) for name in interfaces]
        request = netlink.pack(GET_QDISC, netlink.DUMP, TCMSG.pack(0, 0, 0, 0, 0))
        self._request = bytearray(request)
        self._answers: list[tuple[float, bytes]] = []
        self.left_out = 0
        self._length = 0  # of an answer, in words
        self._fixed = np.empty(0, dtype=np.intp)  # words that must not change, and their values
        self._fixed_values = np.empty(0, dtype=np.uint32)
        self._counters = np.empty(0, dtype=np.intp)
        self.capture()
        self._learn(self._answers.pop()[1])

    @property
    def stale_answers(self) -> int:
        return self._socket.stale_answers

    def capture(self) -> None:
        """Keep one answer of the kernel; OSError when it gives none."""
        number = netlink.number(self._request, self._socket)
        at_s = time.monotonic()
        self._socket.send(self._request)
        parts = []
        while True:
            part = self._socket.recv(_DATAGRAM_BYTES)
            if netlink.number_of(part) != number:
                self._socket.stale_answers += 1  # of a request that had timed out
                continue
            parts.append(part)
            # The DONE message stands at the very end of the last part.
            length, kind, *_ = HEADER.unpack_from(part, len(part) - _DONE_BYTES)
            if kind == netlink.DONE and length == _DONE_BYTES:
                break
            if HEADER.unpack_from(part)[1] == netlink.ERROR:
                raise netlink.refusal(memoryview(part), HEADER.size)
        self._answers.append((at_s, b"".join(parts)))

    def decode(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Decode what was captured: times of shape (k,), counters of shape (k, interfaces, 5)."""
        answers, self._answers = self._answers, []
        times_s: list[float] = []
        values = [np.empty((0, len(self._interfaces), len(COLUMNS)), dtype=np.int64)]
        while answers:  # runs of answers that look alike: nearly always one
            length = len(answers[0][1])
            alike = list(itertools.takewhile(lambda answer: len(answer[1]) == length, answers))  # noqa: B023
            words = np.frombuffer(b"".join(answer for _, answer in alike), dtype=np.uint32)
            words = words.reshape(len(alike), -1)
            is_known = words.shape[1] == self._length
            if not (is_known and (words[:, self._fixed] == self._fixed_values).all()):
                alike, words = alike[:1], words[:1]
                try:
                    self._learn(alike[0][1])
                except NetlinkError:
                    self.left_out += 1
                    answers = answers[1:]
                    continue
            times_s += [at_s for at_s, _ in alike]
            values.append(_columns(words[:, self._counters].reshape(len(alike), -1, _WORDS)))
            answers = answers[len(alike) :]
        return np.array(times_s), np.concatenate(values)

    def _learn(self, answer: bytes) -> None:
        view = memoryview(answer)
        counters: dict[int, list[int]] = {}
        fixed: list[int] = []
        for kind, first, last in netlink.messages(view, 0, len(view)):
            if kind != NEW_QDISC:
                continue
            header = (first - HEADER.size) // 4
            # length and type; interface, handle and parent
            fixed += [header, header + 1, *range(first // 4 + 1, first // 4 + 4)]
            root = _root_words(view, first, last)
            if root is not None:
                counters[root[0]] = root[1]
        missing = [index for index in self._interfaces if index not in counters]
        if missing:
            raise NetlinkError(errno.ENODEV, f"no queue at interfaces {missing}")
        self._length = len(answer) // 4
        self._fixed = np.array(fixed, dtype=np.intp)
        self._fixed_values = np.frombuffer(answer, dtype=np.uint32)[self._fixed]
        words = [counters[index] for index in self._interfaces]
        self._counters = np.array(words, dtype=np.intp).ravel()


def _root_words(data: memoryview, begin: int, end: int) -> tuple[int, list[int]] | None:
    """Find the interface of an RTM_NEWQDISC, and the 32-bit words that hold its counters."""
    _, interface, _, parent, _ = TCMSG.unpack_from(data, begin)
    if parent != ROOT:
        return None
    places: dict[int, int] = {}
    for kind, first, last in netlink.attributes(data, begin + TCMSG.size, end):
        if kind == STATS2:
            places = {name: place for name, place, _ in netlink.attributes(data, first, last)}
    if STATS_BASIC not in places or STATS_QUEUE not in places:
        return None
    basic, queue = places[STATS_BASIC], places[STATS_QUEUE]
    # gnet_stats_basic: u64 bytes, u32 packets; gnet_stats_queue: u32 qlen, backlog, drops, ...
    offsets = [basic, basic + 4, basic + 8, queue + 4, queue, queue + 8]
    return interface, [offset // 4 for offset in offsets]


def _columns(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Turn words of shape (..., 6) into columns of shape (..., 5)."""
    out = words[..., 1:].astype(np.int64)
    out[..., 0] <<= 32
    out[..., 0] += words[..., 0]
    return out


class QueueSampler:
    """Samples all ends. Rows of `latest` are the switches' ends first, then the hosts'."""

    def __init__(self, folder: Path, links: Sequence[dict[str, Any]], rate_hz: float) -> None:
        described = [(link, link[end]) for link in links for end in ("first", "second")]
        # The switches' first, then the server's.
        described.sort(key=lambda pair: (pair[1]["pid"] is not None, pair[1]["node"] != SERVER))
        self.ends = [
            {"link": link["name"], "from": end["node"]}
            | {key: link[key] for key in ("queue_bytes", "rate_bps")}
            for link, end in described
        ]
        self.latest = np.zeros((len(described), len(COLUMNS)), dtype=np.int64)
        self.highest_bytes = np.zeros(len(described), dtype=np.int64)
        switch = [end["interface"] for _, end in described if end["pid"] is None]
        # Each reader with the rows that it reads.
        self._readers = [(QueueReader(switch), range(len(switch)))] if switch else []
        always = list(self._readers)
        others: list[tuple[QueueReader, range]] = []
        for row, (_, end) in enumerate(described):
            if end["pid"] is not None:
                one = QueueReader([end["interface"]], end["pid"]), range(row, row + 1)
                self._readers.append(one)
                (always if end["node"] == SERVER else others).append(one)
        cycle = min(_LONGEST_CYCLE, max(1, math.ceil(len(others) / OTHERS_PER_TICK)))
        self._asked = [[*always, *others[tick::cycle]] for tick in range(cycle)]
        rows = int(_CHUNK_S * rate_hz * sum(len(numbers) for _, numbers in self._asked[0]))
        self.table = ChunkedTable(folder, "queues", _DTYPE, chunk_rows=max(rows, 1000))

    def sample(self, tick: int) -> None:
        """Read the switches' ends and the ends of hosts in turn; OSError if one is gone."""
        if tick % _KEPT == 0:
            self.decode()
        failure: OSError | None = None
        for reader, _ in self._asked[tick % len(self._asked)]:
            try:
                reader.capture()
            except OSError as error:  # the others will still answer
                failure = error
        if failure is not None:
            raise failure

    def decode(self) -> None:
        for reader, ends in self._readers:
            times_s, values = reader.decode()
            numbers, flat = np.tile(ends, len(times_s)), values.reshape(-1, len(COLUMNS))
            rows = self.table.take(len(numbers))
            rows["t_s"] = np.repeat(times_s, len(ends))
            rows["end"] = numbers
            for column, name in enumerate(COLUMNS):
                rows[name] = flat[:, column]
            self.latest[numbers] = flat  # the last one of each stays
            np.maximum.at(self.highest_bytes, numbers, flat[:, BACKLOG_BYTES])

    @property
    def left_out(self) -> int:
        return sum(reader.left_out for reader, _ in self._readers)

    @property
    def stale_answers(self) -> int:
        return sum(reader.stale_answers for reader, _ in self._readers)

    def take_highest(self) -> NDArray[np.int64]:
        highest = self.highest_bytes.copy()
        self.highest_bytes[:] = 0
        return highest

    def write(self, path: Path, *, last: bool) -> None:
        self.decode()
        import polars as pl

        schema = {"t_s": pl.Float64, "link": pl.String, "from": pl.String}
        schema |= dict.fromkeys(_TYPES, pl.Int64)
        names = [{key: end[key] for key in ("link", "from")} for end in self.ends]
        self.table.write(path, "end", names, schema, last=last)
