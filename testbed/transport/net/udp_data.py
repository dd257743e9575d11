"""Datagrams between a connection and its UDP socket."""

import math
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.connection import Connection
from testbed.transport.core.connection_settings import LeaveOut
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.joining import SERVER
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.wire import HEADER_BYTES, wire_bytes
from testbed.transport.native import HOT_PATH
from testbed.transport.net.addresses import IP_HEADER_BYTES, Host, resolve
from testbed.transport.net.carriers import Carrier
from testbed.transport.net.config import EndpointConfig
from testbed.transport.net.link import DataChannel
from testbed.transport.net.path_mtu import Joiner, Sizes, cut, trial_of
from testbed.transport.net.routine import Routine
from testbed.transport.net.sealing import TRAILER_BYTES, Checksum, seal
from testbed.transport.net.udp_socket import UdpSocket
from testbed.transport.policies.congestion import CONGESTION_CONTROLS

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
_MAX_DRAINS = 256
_COUNTED_BYTES = IP_HEADER_BYTES[socket.AF_INET]  # in `wire_bytes`


class UdpData(DataChannel):
    """A connection's datagrams."""

    def __init__(
        self,
        udp: UdpSocket,
        *,
        gather_s: float,
        measured: bool = False,
        leave_out: LeaveOut | None = None,
        session: int = 0,
        sizes: Sizes | None = None,
    ) -> None:
        """For up to `gather_s`, arrivals may gather in the socket before they are read."""
        self._udp = udp
        self._session = session
        self._sizes = sizes
        self._going_in, self._coming_in = 1, 1  # pieces
        self._joiner: Joiner | None = None
        self._leave_out = leave_out
        self._gather_s = gather_s
        self._measured = measured
        self._resting = False
        self._unread_until_s = -math.inf
        self._drained = True
        self._blocked = False
        self._retry_s: float | None = None
        self._not_before_s = 0.0
        self._routine: Routine | None = None

    def fileno(self) -> int:
        return self._udp.fileno()

    def read(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        waited = waited or self._resting or not self._drained
        came = 0
        for _ in range(_RECEIVES_PER_TURN):
            came += self._take(connection, now_s, waited)
            if self._drained:
                break
        self._resting = False
        if came and self._drained:
            self._rest(connection, now_s)

    def _rest(self, connection: Connection, now_s: float) -> None:
        """Lets arrivals gather, if they may."""
        if gather_s := connection.gather_s(self._gather_s, measured=self._measured):
            self._resting, self._unread_until_s = True, now_s + gather_s

    def rouse(self) -> None:
        self._resting = False

    @property
    def unread_until_s(self) -> float:
        return self._unread_until_s if self._resting else -math.inf

    def _take(self, connection: Connection, now_s: float, waited: bool) -> int:
        if self._sizes is not None and self._coming_in != connection.incoming.pieces:
            self._coming_in = connection.incoming.pieces
            self._joiner = Joiner(self._session, self._coming_in, self._sizes.chunk_bytes)
            self._udp.cut(receiving=self._sizes.datagram_bytes(self._coming_in))
        frames, self._drained = self._udp.receive()
        size = frames.size
        for head in self._udp.others:
            if (number := trial_of(head, self._session)) is not None:
                connection.incoming.on_trial(number, now_s)
        if self._joiner is not None and size:
            frames = self._joiner.join(frames)
            if self._joiner.wrong_session:
                connection.counters["wrong-session"] += self._joiner.wrong_session
        if len(frames):
            connection.on_datagrams(frames, now_s, waited=waited)
        return size

    def read_backlog(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        # Only the present backlog is read, because an unpaced sender goes on sending.
        backlog_bytes = self._udp.backlog_bytes
        waited = waited or self._resting or not self._drained
        for _ in range(_MAX_DRAINS):
            if backlog_bytes <= 0:
                break
            self._take(connection, now_s, waited)
            backlog_bytes -= self._udp.taken_bytes
            if self._drained:
                break

    def write(self, connection: Connection, now_s: float) -> None:
        if self._retry_s is not None and now_s < self._retry_s:
            return
        self._send(connection, now_s)
        if self._sizes is not None:
            self._look_at_sizes(connection, self._sizes)

    def _look_at_sizes(self, connection: Connection, sizes: Sizes) -> None:
        """Cuts chunks, or tries to, where the path takes no datagrams of their size."""
        outgoing = connection.outgoing
        if self._udp.too_large:
            self._udp.too_large = False
            fitting = sizes.that_fit_the_interface()
            if fitting is not None and fitting > outgoing.pieces:
                outgoing.cut(fitting)
        for number, pieces in outgoing.trials():
            left_out = self._leave_out(1) if self._leave_out is not None else None
            if left_out is None or not left_out[0]:  # what loses all loses trials, too
                self._udp.try_size(sizes.trial(number, pieces))
        if outgoing.pieces != self._going_in:
            sizes.warn(self._going_in, outgoing.pieces)
            self._going_in = outgoing.pieces
            self._udp.cut(sending=sizes.datagram_bytes(outgoing.pieces))

    def _send(self, connection: Connection, now_s: float) -> None:
        self._retry_s, self._blocked, self._not_before_s = None, False, 0.0
        for _ in range(_BATCHES_PER_TURN):
            frames = connection.offer(now_s)
            if not len(frames):
                return
            self._udp.mark(connection.protected)
            left_out = self._leave_out(len(frames)) if self._leave_out is not None else None
            taken = self._pass_on(connection, frames, left_out, now_s)
            if taken < len(frames):
                self._blocked = self._udp.blocked
                if not self._blocked:
                    self._retry_s = now_s + _RETRY_S
                self._not_before_s = now_s + (_BLOCKED_S if self._blocked else _RETRY_S)
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
            taken = self._pass(frames)
            connection.sent(taken, now_s)
            return taken
        kept = np.flatnonzero(~left_out)
        sent = self._pass(frames[kept]) if len(kept) else 0
        taken = int(kept[sent]) if sent < len(kept) else len(frames)
        connection.sent(taken, now_s, left_out[:taken])
        return taken

    def _pass(self, frames: NDArray[np.uint8]) -> int:
        if self._going_in == 1:
            return self._udp.send(frames)
        return self._udp.send(cut(frames, self._going_in)) // self._going_in

    def begin_routine(self, connection: Connection, now_s: float) -> Routine | None:
        if not self._udp.has_routine:
            return None
        if self._routine is None:
            self._routine = Routine(self._udp)
        routine = self._routine
        routine.going = routine.coming = None
        if self._leave_out is None and not self._not_before_s:
            routine.begin_going(connection, now_s)
        if self._resting or self._drained:
            expected = connection.expected(self._gather_s, measured=self._measured)
            routine.begin_coming(expected, self._unread_until_s if self._resting else None)
        return routine if routine.active else None

    def end_routine(self, connection: Connection, now_s: float) -> None:
        took = None if self._routine is None else self._routine.end(connection)
        if took is None:
            return
        self._resting, self._drained = not (took.over or took.at_once), took.drained
        self._unread_until_s = took.due_s
        if took.unplaced:
            self._take(connection, now_s, waited=not took.at_once)
        elif took.over and took.drained and took.valid:
            self._rest(connection, now_s)

    def due_s(self, connection_due_s: float) -> float:
        return max(connection_due_s, self._not_before_s)

    @property
    def blocked(self) -> bool:
        return self._blocked


class UdpCarrier(Carrier):
    """Our own transport: a UDP socket per peer."""

    def __init__(
        self, config: EndpointConfig, sockets: Mapping[str, UdpSocket], hosts: Mapping[str, Host]
    ) -> None:
        """Makes what a user may have written: ValueError where it does not fit."""
        protocol = config.protocol
        super().__init__(config, repair=protocol.repair, order=protocol.order, marks=protocol.marks)
        self._sockets = sockets
        self._hosts = hosts
        wanted = HEADER_BYTES + config.layout.chunk_bytes + TRAILER_BYTES[config.appended]
        for udp in sockets.values():
            if udp.datagram_bytes != wanted:
                raise ValueError(
                    f"the data sockets were opened for datagrams of {udp.datagram_bytes} bytes; "
                    f"this configuration's have {wanted}"
                )
        self._measures = True
        self._paths = {peer: self._new_path(peer) for peer in sockets}
        if config.appended == "crc":
            Checksum()  # says that its package is missing before a peer can be blamed for it

    def _new_path(self, peer: str) -> SendingPath:
        config = self._config
        chunk_bytes = config.layout.chunk_bytes
        more_bytes = (
            TRAILER_BYTES[config.appended] + self._hosts[peer].ip_header_bytes - _COUNTED_BYTES
        )
        congestion = CONGESTION_CONTROLS.create(
            config.protocol.congestion_control,
            rate_bps=config.rate_bps,
            datagram_bytes=wire_bytes(1, chunk_bytes) + more_bytes,
        )
        self._measures = congestion.measures
        return SendingPath(
            congestion=congestion,
            chunk_bytes=chunk_bytes,
            trailer_bytes=more_bytes,
            # Assumes that the peer's buffer has the size of ours.
            receive_buffer_bytes=self._sockets[peer].buffer_bytes,
            quantum_s=config.quantum_s,
            queue_bytes=config.queue_bytes,
        )

    @property
    def data_port(self) -> int:
        return self._sockets[SERVER].port

    def _path(self, peer: str, *, fresh: bool) -> SendingPath:
        if not fresh:
            return self._paths[peer]
        return self._paths.pop(peer) if peer in self._paths else self._new_path(peer)

    def attach(self, connection: Connection, host: Host, port: int, key: bytes) -> UdpData:
        if not port:
            raise ProtocolError(f"{connection.peer} names no port for its data")
        udp = self._sockets[connection.peer]
        try:
            udp.seal = seal(self._config.appended, key, is_server=self._config.is_server)
        except ValueError as error:
            raise ProtocolError(f"{connection.peer} gave {error}") from None
        udp.restore()
        if self._config.is_server:
            self._forget(udp)
        udp.set_peer(host.at(port))
        sizes = self._sizes(host)
        connection.outgoing.sizes, connection.outgoing.likely = sizes.wire_bytes, sizes.likely
        return UdpData(
            udp,
            gather_s=self._room_s(udp),
            measured=self._measures,
            leave_out=self._config.leave_out,
            session=self._config.session,
            sizes=sizes,
        )

    def _sizes(self, peer: Host) -> Sizes:
        config = self._config
        each = config.layout.each if config.tensor_by_tensor else (config.layout,)
        return Sizes(
            config.session,
            max(each, key=lambda layout: layout.chunk_count),
            local=resolve(config.bind_address, peer.family, what="bind_address"),
            peer=peer,
            trailer_bytes=TRAILER_BYTES[config.appended],
        )

    def _room_s(self, udp: UdpSocket) -> float:
        """How long arrivals may gather: until half the buffer is full, at the rate of this side."""
        rate_bps = self._config.rate_bps
        return math.inf if math.isinf(rate_bps) else udp.buffer_bytes / 2 / (rate_bps / 8)

    def _forget(self, udp: UdpSocket) -> None:
        """Drops what a worker's former self has sent: it would pass for the new one's."""
        udp.seal, seal_ = None, udp.seal
        for _ in range(_MAX_DRAINS):
            if udp.receive()[1]:
                break
        udp.seal = seal_

    def facts(self) -> dict[str, Any]:
        used = {
            "congestion_control": self._config.protocol.congestion_control,
            "compiled": HOT_PATH.compiled,
        }
        return {peer: udp.facts() | used for peer, udp in self._sockets.items()}

    def counters(self) -> Counter[str]:
        return sum((udp.counters for udp in self._sockets.values()), Counter())
