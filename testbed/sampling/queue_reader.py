"""Reads the counters of links' output queues fast and often.

`tc` takes milliseconds a call. Formats: linux/rtnetlink.h, gen_stats.h.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.lab.kernel import netlink
from testbed.lab.kernel.link_counters import STATS2, STATS_BASIC, STATS_QUEUE
from testbed.lab.kernel.netlink import HEADER, NetlinkError
from testbed.lab.kernel.rtnetlink import GET_QDISC, NEW_QDISC, ROOT, TCMSG, interface_index

# Columns of a reading.
SENT_BYTES, SENT_PACKETS, BACKLOG_BYTES, BACKLOG_PACKETS, DROPS = range(5)
COLUMNS = ("sent_bytes", "sent_packets", "backlog_bytes", "backlog_packets", "drops")
# The 32-bit words behind them: low and high half of the bytes, and the other four.
_WORDS = 6

# The first answer decides how much room there is; it takes about 380 bytes for each interface.
_DUMP_BYTES, _MOST_DUMP_BYTES = 1 << 18, 1 << 24
_DATAGRAM_BYTES = 1 << 15
_DONE_BYTES = 20
_HOST_ANSWER_BYTES = 1024
# Answers kept until they are decoded.
KEPT = 32
_TIMEOUT_S = 1  # no answer of the kernel takes so long


def _root_words(data: memoryview, begin: int, end: int) -> tuple[int, list[int]] | None:
    """The interface of an RTM_NEWQDISC, and the 32-bit words that hold its counters."""
    _, interface, _, parent, _ = TCMSG.unpack_from(data, begin)
    if parent != ROOT:
        return None
    places: dict[int, int] = {}
    for kind, first, last in netlink.attributes(data, begin + TCMSG.size, end):
        if kind == STATS2:
            places = {each: place for each, place, _ in netlink.attributes(data, first, last)}
    if STATS_BASIC not in places or STATS_QUEUE not in places:
        return None
    basic, queue = places[STATS_BASIC], places[STATS_QUEUE]
    # gnet_stats_basic: u64 bytes, u32 packets; gnet_stats_queue: u32 qlen, backlog, drops, ...
    offsets = [basic, basic + 4, basic + 8, queue + 4, queue, queue + 8]
    return interface, [offset // 4 for offset in offsets]


def _columns(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Words of shape (..., 6) as columns of shape (..., 5)."""
    out = np.empty((*words.shape[:-1], len(COLUMNS)), dtype=np.int64)
    out[..., 0] = words[..., 1]
    out[..., 0] <<= 32
    out[..., 0] += words[..., 0]
    out[..., 1:] = words[..., 2:]
    return out


# A reader only keeps the kernel's answers (`capture`), and takes the few numbers that are wanted
# out of many at once (`decode`). It parses one answer to learn where they are, and checks all
# others.


class QueueDump:
    """Reads the output queues of many interfaces of the present namespace, by one dump."""

    def __init__(self, interfaces: Sequence[str]) -> None:
        """Raises OSError when there is no such interface, or no queue at one."""
        self._socket = netlink.connect(netlink.ROUTE, timeout_s=_TIMEOUT_S)
        self._wanted = [interface_index(self._socket, name) for name in interfaces]
        request = netlink.pack(GET_QDISC, netlink.DUMP, TCMSG.pack(0, 0, 0, 0, 0))
        self._request = bytearray(request)
        self.left_out = 0
        self._times_s = np.zeros(KEPT)
        self._sizes: list[tuple[int, ...]] = []  # of the parts of each answer that is kept
        self._learnt: tuple[int, ...] = ()
        self._fixed = np.empty(0, dtype=np.intp)  # words that must not change, and their values
        self._fixed_values = np.empty(0, dtype=np.uint32)
        self._counters = np.empty(0, dtype=np.intp)
        self._capture_first()
        self._learn(0, self._sizes[0])
        # Twice the answer and one part more: interfaces may be added while it runs.
        self._allot(2 * sum(self._sizes[0]) + 2 * _DATAGRAM_BYTES)
        self._sizes.clear()

    def _capture_first(self) -> None:
        answer_bytes = _DUMP_BYTES
        while True:
            self._allot(answer_bytes)
            try:
                return self.capture()
            except NetlinkError as error:
                if error.errno != errno.EMSGSIZE or answer_bytes >= _MOST_DUMP_BYTES:
                    raise
            answer_bytes *= 2

    def _allot(self, answer_bytes: int) -> None:
        self._answer_bytes = (answer_bytes + 3) & ~3
        self._view = memoryview(bytearray(KEPT * self._answer_bytes))
        self._words = np.frombuffer(self._view, dtype=np.uint32).reshape(KEPT, -1)

    @property
    def full(self) -> bool:
        """Whether `decode` must come before the next `capture`."""
        return len(self._sizes) == KEPT

    @property
    def strangers(self) -> int:
        """Answers to requests that had been given up; they were dropped."""
        return self._socket.strangers

    def capture(self) -> None:
        """Keep one answer of the kernel; OSError when it gives none."""
        slot = len(self._sizes)
        wanted = netlink.number(self._request, self._socket)
        self._times_s[slot] = time.monotonic()
        self._socket.send(self._request)
        begin = filled = slot * self._answer_bytes
        end = begin + self._answer_bytes
        parts = []
        while filled + _DATAGRAM_BYTES <= end:
            size = self._socket.recv_into(self._view[filled : filled + _DATAGRAM_BYTES])
            if netlink.number_of(self._view, filled) != wanted:
                self._socket.strangers += 1  # of an answer that was given up
                continue
            parts.append(size)
            # The DONE message stands at the very end of the last part.
            length, kind, *_ = HEADER.unpack_from(self._view, filled + size - _DONE_BYTES)
            if kind == netlink.DONE and length == _DONE_BYTES:
                self._sizes.append(tuple(parts))
                return
            if HEADER.unpack_from(self._view, filled)[1] == netlink.ERROR:
                raise netlink.refusal(self._view, filled + HEADER.size)
            filled += (size + 3) & ~3
        self._discard()
        raise NetlinkError(errno.EMSGSIZE, "the kernel's answer is too long")

    def _discard(self) -> None:
        """Read what is left of an answer, so that the next one begins at its beginning."""
        with contextlib.suppress(OSError):
            while self._socket.recv(_DATAGRAM_BYTES, socket.MSG_DONTWAIT):
                pass

    def decode(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The captured answers: times of shape (k,), counters of shape (k, interfaces, 5)."""
        sizes, self._sizes = self._sizes, []
        times_s, values = [], []
        begin = 0
        while begin < len(sizes):  # runs of answers that look alike: nearly always one
            end = begin + 1
            while end < len(sizes) and sizes[end] == sizes[begin]:
                end += 1
            alike = sizes[begin] == self._learnt and bool(
                (self._words[begin:end, self._fixed] == self._fixed_values).all()
            )
            if not alike:
                end = begin + 1
                try:
                    self._learn(begin, sizes[begin])
                except NetlinkError:
                    self.left_out += 1
                    begin = end
                    continue
            words = self._words[begin:end, self._counters]
            values.append(_columns(words.reshape(end - begin, -1, _WORDS)))
            times_s.append(self._times_s[begin:end])
            begin = end
        if not values:
            return np.empty(0), np.empty((0, len(self._wanted), len(COLUMNS)), dtype=np.int64)
        return np.concatenate(times_s), np.concatenate(values)

    def _learn(self, number: int, sizes: tuple[int, ...]) -> None:
        view = self._view[number * self._answer_bytes :][: self._answer_bytes]
        found: dict[int, list[int]] = {}
        fixed: list[int] = []
        begin = 0
        for size in sizes:
            for kind, first, last in netlink.messages(view, begin, begin + size):
                if kind != NEW_QDISC:
                    continue
                header = (first - HEADER.size) // 4
                # length and type; interface, handle and parent
                fixed += [header, header + 1, *range(first // 4 + 1, first // 4 + 4)]
                root = _root_words(view, first, last)
                if root is not None:
                    found[root[0]] = root[1]
            begin += (size + 3) & ~3
        missing = [index for index in self._wanted if index not in found]
        if missing:
            raise NetlinkError(errno.ENODEV, f"no queue at interfaces {missing}")
        self._learnt = sizes
        self._fixed = np.array(fixed, dtype=np.intp)
        self._fixed_values = self._words[number, self._fixed]
        self._counters = np.array([found[each] for each in self._wanted], dtype=np.intp).ravel()


class HostQueues:
    """Reads the output queue of one interface in each of many namespaces."""

    def __init__(self, places: Sequence[tuple[int, str]]) -> None:
        """`places` are (process in the namespace, interface); OSError when one does not exist."""
        count, size = len(places), _HOST_ANSWER_BYTES
        whole = memoryview(bytearray(KEPT * count * size))
        self._words = np.frombuffer(whole, dtype=np.uint32).reshape(KEPT, count, size // 4)
        self._rooms = [
            [whole[(kept * count + row) * size :][:size] for row in range(count)]
            for kept in range(KEPT)
        ]
        self._times_s = np.zeros(KEPT)
        self._lengths = np.zeros((KEPT, count), dtype=np.int64)  # 0: not asked, or no answer
        self._kept = 0
        self.left_out = 0
        self._learnt = np.zeros(count, dtype=np.int64)  # the length of an answer like that
        self._counters = np.zeros((count, _WORDS), dtype=np.intp)
        self._sockets = []
        self._requests = []
        for pid, interface in places:
            opened = netlink.connect(netlink.ROUTE, pid, timeout_s=_TIMEOUT_S)
            self._sockets.append(opened)
            index = interface_index(opened, interface)
            # ECHO makes older kernels send the answer to us as well as to those who listen.
            content = TCMSG.pack(0, index, 0, ROOT, 0)
            self._requests.append(bytearray(netlink.pack(GET_QDISC, netlink.ECHO, content)))

    @property
    def full(self) -> bool:
        """Whether `decode` must come before the next `capture`."""
        return self._kept == KEPT

    @property
    def strangers(self) -> int:
        """Answers to requests that had been given up; they were dropped."""
        return sum(opened.strangers for opened in self._sockets)

    def capture(self, rows: Sequence[int]) -> None:
        """Keep the answers for some rows; OSError when one of them gives none."""
        kept, self._kept = self._kept, self._kept + 1
        rooms, sockets, lengths = self._rooms[kept], self._sockets, self._lengths[kept]
        lengths[:] = 0
        self._times_s[kept] = time.monotonic()
        failure: OSError | None = None
        for row in rows:
            opened, room = sockets[row], rooms[row]
            wanted = netlink.number(self._requests[row], opened)
            try:
                opened.send(self._requests[row])
                length = opened.recv_into(room)
                while netlink.number_of(room) != wanted:  # of an answer that was given up
                    opened.strangers += 1
                    length = opened.recv_into(room)
                lengths[row] = length
            except OSError as error:  # the others will still answer
                failure = error
        if failure is not None:
            raise failure

    def decode(self) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.int64]]:
        """The captured answers: rows and times of shape (k,), counters of shape (k, 5)."""
        kept, self._kept = self._kept, 0
        which, rows = np.nonzero(self._lengths[:kept])
        lengths = self._lengths[which, rows]
        strange = np.flatnonzero(lengths != self._learnt[rows])
        if len(strange):
            known = np.ones(len(rows), dtype=np.bool_)
            for index in strange:  # the first answers, and when a queue is changed
                known[index] = self._learn(int(which[index]), int(rows[index]))
            # Answers of another form than the row's newest are left out.
            known &= lengths == self._learnt[rows]
            self.left_out += int(len(rows) - np.count_nonzero(known))
            which, rows = which[known], rows[known]
        words = self._words[which[:, None], rows[:, None], self._counters[rows]]
        return rows, self._times_s[which], _columns(words)

    def _learn(self, kept: int, row: int) -> bool:
        """Find the counters in an answer; returns whether it has any."""
        length, room = int(self._lengths[kept, row]), self._rooms[kept][row]
        for kind, first, last in netlink.messages(room, 0, length):
            root = _root_words(room, first, last) if kind == NEW_QDISC else None
            if root is not None:
                self._counters[row], self._learnt[row] = root[1], length
                return True
        return False
