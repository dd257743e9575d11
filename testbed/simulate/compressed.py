"""Compression over kernel TCP, in virtual time.

What goes over the wire is that of `testbed.transport.net.tcp`: a frame's head, and the block
that a compression makes of a payload. The model of kernel TCP carries it as a payload of its own,
segment by segment, so all of it takes its time on the links. Who sends and who receives sees the
chunks of the layout, as with a real connection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.events import TransferReport
from testbed.transport.core.layout import ELEMENT_BYTES, PayloadLayout
from testbed.transport.net.tcp import HEAD_BYTES, Compression

Buffer = NDArray[np.uint8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Compressed:
    """The stream of one transfer: what travels of a payload of `whole` is `compression`'s."""

    compression: Compression
    whole: PayloadLayout

    @property
    def _block(self) -> slice:
        """Where it is in the stream."""
        return slice(HEAD_BYTES, HEAD_BYTES + self.compression.size(self.whole))

    @cached_property
    def layout(self) -> PayloadLayout:
        """The stream's, in segments of a chunk."""
        elements = -(-self._block.stop // ELEMENT_BYTES)
        return PayloadLayout([("stream", elements)], self.whole.chunk_bytes)

    def pack(self, payloads: Mapping[str, Buffer]) -> tuple[dict[str, Mask], dict[str, Buffer]]:
        """By peer: which chunks go, and the stream. One payload for several has one stream."""
        made: dict[int, tuple[Mask, Buffer]] = {}
        for payload in payloads.values():
            if id(payload) not in made:
                chosen, block = self.compression.pack(self.whole, payload)
                stream = self.layout.new_buffer()
                stream[self._block] = np.frombuffer(block, np.uint8)
                made[id(payload)] = chosen, stream
        found = {peer: made[id(payload)] for peer, payload in payloads.items()}
        return (
            {peer: chosen for peer, (chosen, _) in found.items()},
            {peer: stream for peer, (_, stream) in found.items()},
        )

    def unpack(self, stream: Buffer, into: Buffer) -> Mask:
        """Puts the chunks of a stream in their places; returns which they are."""
        return self.compression.unpack(self.whole, stream[self._block], self.whole.rows(into))

    def told(self, report: TransferReport, chosen: Mask) -> TransferReport:
        """The report of a stream, as one of chunks: `chunks_sent` stays that of its segments."""
        count = self.compression.count(self.whole)
        return replace(
            report, chunk_count=self.whole.chunk_count, chunks_received=count, received=chosen
        )
