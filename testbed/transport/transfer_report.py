"""The report on one transfer with one peer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class TransferReport:
    """One side's view of a transfer; the peer has its own.

    Attributes:
        transfer: the transfer's number.
        peer: the other side's name.
        role: whether this side sent or received.
        chunk_count: chunks of the payload.
        chunks_received: how many arrived before the receiver stopped. At the sender it is None if
            STOP carried no bitmap, which our receivers always send.
        received: which chunks arrived, shape (chunk_count,), or None like chunks_received. The
            sender has it from STOP, which carries a bit per chunk: less than 0.01 % of the data.
        passes: sweeps over the missing chunks; None where the protocol has no passes. For a
            receiver, a PROBE ends a pass.
        chunks_sent: datagrams handed to the network, repetitions included; 0 for a receiver.
        bytes_sent, bytes_received: data on the wire, with the headers of all layers.
        control_bytes: wire bytes of the control messages that this side sent; for kernel TCP also
            of its pure acknowledgements.
        duplicates: valid datagrams whose chunk had arrived before.
        retransmitted_bytes: the part of bytes_sent that had been sent before.
        began_s: at the sender, when `send` was called; at the receiver, when the first datagram
            arrived. Seconds of time.monotonic().
        ended_s: at the receiver, when it had enough; at the sender, when STOP arrived.
        ignored: datagrams that were dropped during the transfer, by reason.
    """

    transfer: int
    peer: str
    role: Literal["sender", "receiver"]
    chunk_count: int
    chunks_received: int | None
    received: NDArray[np.bool_] | None
    passes: int | None
    chunks_sent: int
    bytes_sent: int
    bytes_received: int
    control_bytes: int
    duplicates: int
    retransmitted_bytes: int
    began_s: float
    ended_s: float
    ignored: Mapping[str, int] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """Seconds from began_s to ended_s."""
        return self.ended_s - self.began_s
