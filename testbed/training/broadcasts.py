"""What goes with the server's broadcasts: the phase before, what all workers have received after.

The phase says how much of the broadcast workers may give up; the paper does not say how its workers
learn it. With a `common` filling, workers apply only what all have received, so that replicas stay
the same, bit for bit: the server has one memory for all, and announces a bit for each chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from testbed.training.filling import Buffer, Filling, Mask, SenderMemory, payload_of
from testbed.transport import Endpoint, PayloadLayout, TransferReport
from testbed.transport.messages import MAX_ANNOUNCEMENT_BYTES, pack_bitmap, unpack_bitmap


class BroadcastMemory:
    """The server's memory of what its broadcasts did not deliver."""

    def __init__(self, filling: Filling, layout: PayloadLayout, workers: Sequence[str]) -> None:
        self._filling, self._layout = filling, layout
        first = self._new()
        shared = filling.common or first.shared
        self._memories = {name: first if shared else self._new() for name in workers}

    def _new(self) -> SenderMemory:
        return self._filling.sender_memory(self._layout)

    def payloads(self, mean: Buffer, present: Sequence[str]) -> dict[str, Buffer]:
        """What to send to each worker; called once a round, since it adds the mean."""
        made: dict[int, Buffer] = {}
        for name in present:
            memory = self._memories[name]
            if id(memory) not in made:
                made[id(memory)] = payload_of(memory, mean)
        return {name: made[id(self._memories[name])] for name in present}

    def common(self, sent: Mapping[str, TransferReport]) -> Mask | None:
        """Which chunks all have received, shape (chunk_count,); None: it is not announced."""
        if not self._filling.common:
            return None
        common = np.ones(self._layout.chunk_count, dtype=np.bool_)
        for report in sent.values():  # kernel TCP's says nothing: it has delivered all
            common &= True if report.received is None else report.received
        return common

    def settle(self, sent: Mapping[str, TransferReport], common: Mask | None) -> None:
        """The broadcast has ended; `common` is what was announced of it."""
        for name, report in sent.items():
            if common is not None:
                count = int(np.count_nonzero(common))
                report = replace(report, received=common, chunks_received=count)
            self._memories[name].settle(report)
            if common is not None:
                return  # the memory is everyone's


def encode_phase(critical: bool) -> bytes:
    """The body of an announcement of the phase."""
    return b"\x01" if critical else b"\x00"


def decode_phase(body: bytes) -> bool:
    """Whether the announced phase is critical; ValueError when the body is not one byte, 0 or 1."""
    if body not in (b"\x00", b"\x01"):
        raise ValueError(f"not a phase announcement: {body[:8]!r}")
    return body == b"\x01"


def announce_common(endpoint: Endpoint, common: Mask) -> None:
    """The server: tells all workers what they have in common."""
    bits = pack_bitmap(common)
    for begin in range(0, len(bits), MAX_ANNOUNCEMENT_BYTES):
        endpoint.announce(bits[begin : begin + MAX_ANNOUNCEMENT_BYTES])


def await_common(endpoint: Endpoint, layout: PayloadLayout) -> Mask:
    """A worker: waits for what `announce_common` says, shape (chunk_count,)."""
    size, bits = -(-layout.chunk_count // 8), b""
    while len(bits) < size:
        bits += endpoint.await_announcement()
    return unpack_bitmap(bits, layout.chunk_count)
