"""What a `Connection` tells its driver, as small records."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.reports import TransferReport


@dataclass(frozen=True, slots=True)
class Joined:
    """Worker: the server let us in; the server's data port for us, and the datagrams' key."""

    data_port: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Started:
    """Worker: all have joined."""


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """New chunks are in their place: their numbers, shape (k,)."""

    transfer: int
    chunks: NDArray[np.int64]


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


Event = Joined | Started | ChunkBatch | TransferDone | Announced | PeerGone
