"""The events of a `Connection` for its driver, and the records of a transfer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from testbed.transport.messages import Cipher


@dataclass(frozen=True, kw_only=True)
class TransferReport:
    """One side's view of a transfer.

    Attributes:
        transfer, peer: the transfer's number and the other side's name.
        chunks_received: how many arrived before the receiver stopped; None where STOP did not tell.
        received: which chunks arrived, shape (chunk_count,); None at a sender that was not told.
        passes: sweeps over the missing chunks; None where the protocol has no passes.
        chunks_sent: datagrams handed to the network, repetitions included; of TCP the chunks.
        chunks_left_out: datagrams that vanished on purpose; see `EndpointConfig.leave_out`.
        bytes_sent, bytes_received: data on the wire, with the headers of all layers.
        control_bytes: wire bytes of this side's control messages; of TCP also its pure ACKs.
        duplicates: valid datagrams whose chunk had arrived before.
        retransmitted_bytes: the part of bytes_sent that had been sent before; of TCP, no headers.
        began_s: when `send` was called, or the first datagram arrived, by time.monotonic().
        ended_s: at the receiver, when it had enough; at the sender, when STOP arrived.
        ignored: datagrams that were dropped during the transfer, by reason.
    """

    transfer: int
    peer: str
    role: Literal["sender", "receiver"]
    chunk_count: int
    chunks_received: int | None
    received: NDArray[np.bool_] | None = None
    passes: int | None = None
    chunks_sent: int = 0
    chunks_left_out: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    control_bytes: int = 0
    duplicates: int = 0
    retransmitted_bytes: int = 0
    began_s: float
    ended_s: float
    ignored: Mapping[str, int] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.began_s


# The shortest time between two records of one peer.
OBSERVATION_INTERVAL_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The sender's view of one path at one moment.

    Attributes:
        now_s: by time.monotonic().
        peer, transfer: the receiver and the transfer's number.
        rate_bps: the allowed pace in bits per second on the wire; math.inf for unpaced.
        window_bytes: the allowed wire bytes in flight; math.inf for unlimited.
        rtt_s: the latest sample of the round trip; None before the first.
        retransmits: datagrams of this transfer that were sent again so far.
    """

    now_s: float
    peer: str
    transfer: int
    rate_bps: float
    window_bytes: float
    rtt_s: float | None
    retransmits: int


# Called during a transfer. It must not wait; an exception that it raises ends the transfer.
Observer = Callable[[Observation], None]


@dataclass(frozen=True, slots=True)
class Joined:
    """Worker: the server let us in; its data port for us, and what seals the datagrams."""

    data_port: int
    key: bytes = field(repr=False)
    cipher: int = Cipher.BLAKE2B


@dataclass(frozen=True, slots=True)
class Started:
    """Worker: all have joined."""


@dataclass(frozen=True, slots=True)
class TransferDone:
    """One of ours has ended."""

    transfer: int
    sending: bool
    report: TransferReport


@dataclass(frozen=True, slots=True)
class Announced:
    """Worker: a message of the server's training."""

    body: bytes


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The connection has ended; what had not ended before never will."""

    reason: str


Event = Joined | Started | TransferDone | Announced | PeerGone
