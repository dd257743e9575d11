"""One peer's connection with its channels: control stream, data, and what hedges the stream."""

import contextlib
import hmac
import math
import socket
from collections import Counter
from collections.abc import Collection
from typing import Any

from testbed.transport.connection import Connection, ConnectionState
from testbed.transport.events import OBSERVATION_INTERVAL_S, Observer
from testbed.transport.hedging import Hedge
from testbed.transport.native.hot_path import Arriving, Departing
from testbed.transport.net.sealing import TAG_BYTES, Keyed
from testbed.transport.net.stream import Stream
from testbed.transport.routine import COALESCED_S

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
        self._hedge = Hedge(session, counters, said=stream.written_bytes, heard=stream.read_bytes)
        self._stream = stream
        # Also without a key: UDP's own 16 bits miss some accidents, and one breaks the stream.
        self._keyed = Keyed(key, _SIDES, is_server=is_server)
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
            piece, tag = datagram[:-TAG_BYTES], datagram[-TAG_BYTES:]
            if hmac.compare_digest(tag, self._keyed.tag(piece, sent=False)):
                new += self._hedge.from_datagram(piece, now_s)
            else:
                self._counters["hedge-forged"] += 1
        return new

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
                self._socket.send(hedge + self._keyed.tag(hedge, sent=True))

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


# What is read of a peer's control messages at a time, unless one alone is longer: the shortest that
# need work, empty ACKs, then take some milliseconds, and others have their turn in between.
_CONTROL_BYTES = 1 << 11


class DataChannel:
    """What carries the data between this side and one peer; this one carries nothing."""

    # What is sent, and what is taken, during a wait without a wake-up: see `routine`.
    going: Departing | None = None
    coming: Arriving | None = None
    # Until when arrivals may gather before they are `read`; -math.inf for not at all.
    unread_until_s = -math.inf
    blocked = False  # whether `write` waits until there is room in the socket

    def fileno(self) -> int:
        """For a selector."""
        return -1

    def read(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        """Hands over what has arrived, up to a limit."""

    def read_backlog(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        """Hands over all that arrived before now."""

    def write(self, connection: Connection, now_s: float) -> None:
        """Sends what the connection offers, up to a limit."""

    def due_s(self, connection_due_s: float) -> float:
        """When `write` is due, given when the connection wants it; math.inf while blocked."""
        return connection_due_s

    @property
    def reading(self) -> bool:
        """Whether arrivals are wanted now."""
        return True

    def begin_routine(self, connection: Connection, now_s: float) -> bool:
        """Whether anything may be done during a wait: sets `going` and `coming`."""
        return False

    @property
    def worked(self) -> bool:
        """Whether anything was done, or has to be decided: then the routine must be ended."""
        going, coming = self.going, self.coming
        return (going is not None and going.worked) or (coming is not None and coming.worked)

    def end_routine(self, connection: Connection, now_s: float) -> None:
        """A wait is over, in which some of the routine was done."""

    def wake(self) -> None:
        """Arrivals gather no longer."""
        self.unread_until_s = -math.inf


NO_DATA = DataChannel()


class Link:
    """One peer's connection with its two channels."""

    routine = False  # whether `data` has one, which the driver does while it waits
    hedges: HedgeChannel | None = None  # what hurries the stream on; None for nothing

    def __init__(
        self,
        connection: Connection,
        stream: Stream,
        data: DataChannel = NO_DATA,
        observer: Observer | None = None,
        whole_by_s: float = math.inf,
    ) -> None:
        """Where it has no data by `whole_by_s` the connection ends."""
        self.connection = connection
        self.stream = stream
        self.data = data
        self.due_s = -math.inf  # when `work` wants to be called at the latest
        self._deadline_s = -math.inf
        self._observer = observer
        self._observe_s = -math.inf
        self._whole_by_s = whole_by_s

    @property
    def has_data(self) -> bool:
        """Whether the peer has joined on both channels."""
        return self.data is not NO_DATA

    @property
    def present(self) -> bool:
        """Whether transfers can be posted."""
        return self.has_data and self.connection.state is ConnectionState.OPEN

    def take(self, ready: Collection[Any], now_s: float, *, attentive: bool) -> None:
        """Hands over what has arrived on the channels that are ready."""
        data, connection = self.data, self.connection
        if self.stream in ready:
            waited = not attentive or not self.stream.drained  # the rest of the last turn
            received = self.stream.read(max(_CONTROL_BYTES, connection.awaited_bytes))
            if self.hedges is not None:
                received = self.hedges.new(received)
            # What was sent before must not be reported as missing, and may still wait.
            data.read_backlog(connection, now_s, waited=not attentive)
            if received:
                connection.on_control(received, now_s, waited=waited)
        elif data in ready:
            data.read(connection, now_s, waited=not attentive)
        hedges = self.hedges
        if hedges is not None and hedges in ready and (received := hedges.read(now_s)):
            data.read_backlog(connection, now_s, waited=not attentive)
            connection.on_control(received, now_s, waited=True)

    def work(self, now_s: float, *, looked: bool = True) -> None:
        """Does what is due: deadlines, datagrams, control messages."""
        connection, data, self.routine = self.connection, self.data, False
        if -math.inf < data.unread_until_s <= now_s + COALESCED_S:
            data.read(connection, now_s, waited=True)
        if looked and now_s >= self._deadline_s:
            connection.on_deadline(now_s)
        if self._observer is not None and now_s >= self._observe_s:
            sender = next(iter(connection.outgoing.senders.values()), None)
            if sender is not None:
                self._observe_s = now_s + OBSERVATION_INTERVAL_S
                self._observer(sender.observe(connection.peer, now_s))
        self._write_control(now_s)  # what data are worth goes before them
        data.write(connection, now_s)
        self._write_control(now_s)
        if self.hedges is not None:
            self.hedges.work(connection, now_s, looked=looked)
        if looked:
            self.stream.expire(now_s)
        if self.stream.closed is not None:
            connection.on_control_closed(self.stream.closed)
        whole_by_s = math.inf if self.has_data else self._whole_by_s
        if looked and now_s >= whole_by_s:
            connection.on_control_closed("it opened no connection for its data")
        if looked:
            self.routine = data.begin_routine(connection, now_s)
        going = self.routine and data.going is not None
        coming = self.routine and data.coming is not None
        deadline_s = connection.next_deadline_s(now_s, departing=going)
        self._deadline_s = math.inf if deadline_s is None else deadline_s
        self.due_s = data.due_s(self._deadline_s)
        if data.unread_until_s > -math.inf and not coming:
            self.due_s = min(self.due_s, data.unread_until_s)
        if going and self._observer is not None:
            self.due_s = min(self.due_s, self._observe_s)
        if connection.lost is None:
            self.due_s = min(self.due_s, self.stream.until_s, whole_by_s)
            if self.hedges is not None:
                self.due_s = min(self.due_s, self.hedges.due_s(connection))

    def _write_control(self, now_s: float) -> None:
        if not (messages := self.connection.control()):
            return
        if self.hedges is None:
            self.stream.write(messages)
        else:
            self.hedges.write(messages, now_s)

    def end_routine(self, now_s: float) -> None:
        """What was done of it counts from now on."""
        self.routine = False
        self.data.end_routine(self.connection, now_s)
