"""What one transfer with one peer was like."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class TransferReport:
    """The account of one side; the peer has its own.

    Attributes:
        transfer: the transfer's number.
        peer: the other side's name.
        role: what this side did.
        chunk_count: chunks of the payload.
        chunks_received: how many arrived before the receiver stopped; at the sender None if it was
            only told that they were enough, which takes another implementation than ours.
        received: which chunks arrived, shape (chunk_count,), or None like chunks_received. The
            sender has it from STOP, which carries a bit per chunk: less than 0.01 % of the data.
        passes: sweeps over what was missing, None where the protocol has no passes. A receiver
            sees a pass end by its probe.
        chunks_sent: datagrams handed to the network, repetitions included; 0 for a receiver.
        bytes_sent, bytes_received: data on the wire, with the headers of all layers.
        control_bytes: wire bytes of the control messages that this side sent, and for kernel TCP
            of its pure acknowledgements.
        duplicates: valid datagrams whose chunk was here already.
        retransmitted_bytes: the part of bytes_sent that had been sent before.
        began_s: at the sender, when it was told to send; at the receiver, when the first
            datagram arrived. Seconds of time.monotonic().
        ended_s: when the receiver had enough, or the sender heard of it.
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
        """From the beginning to the end, as this side saw them."""
        return self.ended_s - self.began_s
