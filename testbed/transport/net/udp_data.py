"""Datagrams between a connection and its UDP socket."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from testbed.transport.connection import Connection
from testbed.transport.native.hot_path import Arriving, Departing
from testbed.transport.net.link import DataChannel
from testbed.transport.net.udp_socket import UdpSocket
from testbed.transport.settings import LeaveOut

# Full batches sent in a row before others get their turn; matters only when unpaced.
_BATCHES_PER_TURN = 4
_FULL_BATCH_BYTES = 1 << 16  # more than a paced batch ever has
# Receives in a row before other peers, messages and deadlines get their turn.
_RECEIVES_PER_TURN = 8
# The pause after an interface's queue was full: about one batch.
_RETRY_S = 1e-3
# While the socket is full, other deadlines are looked at so often.
_BLOCKED_S = 1e-2
# The most receives before a control message is handed over. A peer that has sent a PROBE sends
# nothing more, so only a flood of strangers' datagrams can reach this limit.
MAX_DRAINS = 256


class UdpData(DataChannel):
    """A connection's datagrams."""

    def __init__(
        self,
        udp: UdpSocket,
        *,
        gather_s: float,
        measured: bool,
        leave_out: LeaveOut | None,
        too_large: Callable[[], str],
    ) -> None:
        """For up to `gather_s`, arrivals may gather in the socket before they are read.

        `too_large` says why the interface refuses datagrams for their size.
        """
        self._udp = udp
        self._too_large = too_large
        self._leave_out = leave_out
        self._gather_s = gather_s
        self._measured = measured
        self._drained = True
        self._not_before_s = 0.0
        self._departing: Departing | None = None
        self._arriving: Arriving | None = None

    def fileno(self) -> int:
        return self._udp.fileno()

    def read(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        waited = waited or self._rests or not self._drained
        came = 0
        for _ in range(_RECEIVES_PER_TURN):
            came += self._take(connection, now_s, waited)
            if self._drained:
                break
        self.wake()
        if came and self._drained:
            self._rest(connection, now_s)

    def _rest(self, connection: Connection, now_s: float) -> None:
        """Lets arrivals gather, if they may."""
        if gather_s := connection.gather_s(self._gather_s, measured=self._measured):
            self.unread_until_s = now_s + gather_s

    @property
    def _rests(self) -> bool:
        return self.unread_until_s > -math.inf

    def _take(self, connection: Connection, now_s: float, waited: bool) -> int:
        frames, self._drained = self._udp.receive()
        if len(frames):
            connection.on_datagrams(frames, now_s, waited=waited)
        return frames.size

    def read_backlog(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        # Only the present backlog is read, because an unpaced sender goes on sending.
        backlog_bytes = self._udp.backlog_bytes
        waited = waited or self._rests or not self._drained
        for _ in range(MAX_DRAINS):
            if backlog_bytes <= 0:
                break
            self._take(connection, now_s, waited)
            backlog_bytes -= self._udp.taken_bytes
            if self._drained:
                break

    def write(self, connection: Connection, now_s: float) -> None:
        if not self.blocked and now_s < self._not_before_s:
            return
        self._send(connection, now_s)
        if self._udp.too_large:
            self._udp.too_large = False  # the peer may join again
            connection.give_up(self._too_large())

    def _send(self, connection: Connection, now_s: float) -> None:
        self.blocked, self._not_before_s = False, 0.0
        for _ in range(_BATCHES_PER_TURN):
            frames = connection.offer(now_s)
            if not len(frames):
                return
            self._udp.mark(connection.outgoing.protected)
            left_out = self._leave_out(len(frames)) if self._leave_out is not None else None
            taken = self._pass_on(connection, frames, left_out, now_s)
            if taken < len(frames):
                self.blocked = self._udp.blocked
                self._not_before_s = now_s + (_BLOCKED_S if self.blocked else _RETRY_S)
                return
            if frames.nbytes < _FULL_BATCH_BYTES and left_out is None:
                return  # no more may go now, or very little

    def _pass_on(
        self,
        connection: Connection,
        frames: NDArray[np.uint8],
        left_out: NDArray[np.bool_] | None,
        now_s: float,
    ) -> int:
        """Sends what is not left out; returns how many are dealt with."""
        if left_out is None:
            taken = self._udp.send(frames)
            connection.outgoing.sent(taken, now_s)
            return taken
        kept = np.flatnonzero(~left_out)
        sent = self._udp.send(frames[kept]) if len(kept) else 0
        taken = int(kept[sent]) if sent < len(kept) else len(frames)
        connection.outgoing.sent(taken, now_s, left_out[:taken])
        return taken

    def begin_routine(self, connection: Connection, now_s: float) -> bool:
        self.going = self.coming = None
        if not self._udp.has_routine:
            return False
        if self._leave_out is None and not self._not_before_s:
            self._begin_going(connection, now_s)
        if self._rests or self._drained:
            self._begin_coming(connection)
        return self.going is not None or self.coming is not None

    def _begin_going(self, connection: Connection, now_s: float) -> None:
        """Sends what may go."""
        departures = connection.departures()
        if departures is None:
            return
        self._departing = self._departing or self._udp.departing()
        self._udp.mark(connection.outgoing.protected)
        waiting = len(departures.chunks) + departures.beyond
        due_s = departures.pacer.next_s(now_s, waiting)
        if self._departing.begin(departures, due_s, segmented=self._udp.segmentation):
            self.going = self._departing

    def _begin_coming(self, connection: Connection) -> None:
        """Takes what is expected: what has gathered once that is over, or what comes at once."""
        expected = connection.expected(self._gather_s, measured=self._measured)
        if expected is None:
            return
        self._arriving = self._arriving or self._udp.arriving()
        due_s = self.unread_until_s if self._rests else None
        if self._arriving.begin(expected, due_s, self._udp.receiving):
            self.coming = self._arriving

    def end_routine(self, connection: Connection, now_s: float) -> None:
        going, coming, self.going, self.coming = self.going, self.coming, None, None
        if going is not None and going.worked:
            departures, batches = going.end()
            if batches:
                connection.outgoing.departed(departures, batches)
        if coming is None or not coming.worked:
            return
        arrivals, at_s = coming.end()
        it = coming.it
        if len(arrivals.stamps):
            connection.arrived(arrivals, at_s, waited=not it.at_once)
        self.unread_until_s = -math.inf if it.over or it.at_once else it.due_s
        self._drained = it.drained
        if it.unplaced:
            self._udp.leave(coming)
            self._take(connection, now_s, waited=not it.at_once)
        elif it.over and it.drained and it.valid:
            self._rest(connection, now_s)

    def due_s(self, connection_due_s: float) -> float:
        return max(connection_due_s, self._not_before_s)
