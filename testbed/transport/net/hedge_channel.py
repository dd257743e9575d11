"""The datagrams that hedge one connection's control stream.

They go between the two ports of its TCP connection, so neither side has to tell a port, and packet
filters can tell them from data.
"""

import contextlib
import hashlib
import hmac
import math
import socket
import zlib
from collections import Counter

from testbed.transport.core.connection import Connection
from testbed.transport.core.hedging import Hedge
from testbed.transport.net.stream import Stream

_READS_PER_TURN = 64
_BYTES_PER_TURN = 1 << 11  # and what had come ahead of them
_LONGEST_BYTES = 1 << 11  # above the longest hedge: a longer datagram is none, cut or not
_SIDES = (b"server's hedge", b"worker's hedge")


class HedgeChannel:
    """A connection's hedges, and their socket."""

    def __init__(
        self,
        stream: Stream,
        *,
        session: int,
        counters: Counter[str],
        key: bytes = b"",
        is_server: bool = False,
    ) -> None:
        """Counts in `counters` what is no hedge. With a `key` hedges are authenticated."""
        self._hedge = Hedge(session, counters, said=stream.said_bytes, heard=stream.heard_bytes)
        self._stream = stream
        # Keyed BLAKE2b, as of the data: this side's, and the other's.
        sides = [hashlib.blake2b(key=key, digest_size=16, person=person) for person in _SIDES]
        self._keyed = (sides if is_server else sides[::-1]) if key else None
        self._doubted_s = -math.inf  # see `Connection.doubt`, of the latest
        self._counters = counters
        local, peer = stream.ends
        family = socket.AF_INET if len(local) == 2 else socket.AF_INET6
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            if is_server:  # its sockets have one port, and a worker each
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(local)
            self._socket.connect(peer)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self, data: bytes, now_s: float) -> None:
        """Writes to the stream, and notes what."""
        self._look()
        self._stream.write(data)
        self._hedge.said(data, now_s, taken_bytes=self._stream.taken_bytes)

    def new(self, data: bytes) -> bytes:
        """What is new of what was read from the stream."""
        return self._hedge.from_stream(data)

    def read(self, now_s: float) -> bytes:
        """What hedges bring that is new, up to a limit."""
        new = b""
        for _ in range(_READS_PER_TURN):
            if len(new) >= _BYTES_PER_TURN:
                break
            try:
                datagram = self._socket.recv(_LONGEST_BYTES)
            except ConnectionRefusedError:
                continue  # a former hedge found no socket there
            except OSError:
                break
            size = len(datagram) - (4 if self._keyed is None else 16)
            if size < 0 or not hmac.compare_digest(
                datagram[size:], self._trailer(datagram[:size], sent=False)
            ):
                self._counters["hedge-corrupt" if self._keyed is None else "hedge-forged"] += 1
                continue
            new += self._hedge.from_datagram(datagram[:size], now_s)
        return new

    def _trailer(self, datagram: bytes, *, sent: bool) -> bytes:
        """What follows a hedge of this side, or of the other, by which it is intact, or genuine."""
        if self._keyed is None:  # UDP's own 16 bits miss some accidents, and one breaks the stream
            return zlib.crc32(datagram).to_bytes(4)
        state = self._keyed[0 if sent else 1].copy()
        state.update(datagram)
        return state.digest()

    def due_s(self, connection: Connection) -> float:
        """When `work` is due; math.inf for never."""
        return min(self._hedge.due_s, connection.doubt(self._doubted_s)[0])

    def work(self, connection: Connection, now_s: float, *, looked: bool = True) -> None:
        """Sends what is due. What is waited for is late only once this side has `looked`."""
        due_s, since_s = connection.doubt(self._doubted_s)
        if looked and due_s <= now_s:
            self._doubted_s = since_s
            self._hedge.doubt(now_s)
        if self._hedge.due_s > now_s:
            return
        self._hedge.round_trip_s = self._stream.round_trip_s
        self._look()
        for hedge in self._hedge.datagrams(now_s):
            # What the network does not take is lost, as it may be later on its way.
            with contextlib.suppress(OSError):
                self._socket.send(hedge + self._trailer(hedge, sent=True))

    def _look(self) -> None:
        """Asks the kernel what has become of the stream."""
        with contextlib.suppress(OSError):  # it has ended
            self._hedge.acknowledged(self._stream.acknowledged_bytes)

    @property
    def facts(self) -> dict[str, int]:
        """How many were sent, and how many brought something before TCP did."""
        return {"hedges_sent": self._hedge.sent, "hedges_gained": self._hedge.gained}

    def close(self) -> None:
        self._socket.close()
