"""Kernel TCP that keeps only some chunks, in virtual time.

What goes over the wire is that of `testbed.transport.net.tcp_data`: a frame's head, the bitmap of
the chosen chunks, and those, each whole. The model of kernel TCP carries it as a payload of its
own, segment by segment, so head and bitmap take their time on the links. Who sends and who receives
sees the chunks of the layout, as with a real connection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.layout import ELEMENT_BYTES, PayloadLayout
from testbed.transport.core.reports import TransferReport
from testbed.transport.net.tcp_data import HEAD_BYTES
from testbed.transport.net.tcp_selection import Selection

Buffer = NDArray[np.uint8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class KeptChunks:
    """The stream of one transfer: which chunks of `whole` travel is `selection`'s."""

    selection: Selection
    whole: PayloadLayout

    @property
    def _bitmap(self) -> slice:
        """Where the bitmap is; the chosen chunks come next."""
        return slice(HEAD_BYTES, HEAD_BYTES + -(-self.whole.chunk_count // 8))

    @property
    def _body(self) -> slice:
        begin = self._bitmap.stop
        return slice(begin, begin + self.selection.count(self.whole) * self.whole.chunk_bytes)

    @cached_property
    def layout(self) -> PayloadLayout:
        """The stream's, in segments of a chunk."""
        elements = -(-self._body.stop // ELEMENT_BYTES)
        return PayloadLayout([("stream", elements)], self.whole.chunk_bytes)

    def pack(self, payloads: Mapping[str, Buffer]) -> tuple[dict[str, Mask], dict[str, Buffer]]:
        """By peer: which chunks go, and the stream. One payload for several has one stream."""
        made: dict[int, tuple[Mask, Buffer]] = {}
        for payload in payloads.values():
            if id(payload) not in made:
                chosen, bitmap, body = self.selection.choose(self.whole, payload)
                stream = self.layout.new_buffer()
                stream[self._bitmap] = np.frombuffer(bitmap, np.uint8)
                stream[self._body] = np.frombuffer(body, np.uint8)
                made[id(payload)] = chosen, stream
        found = {peer: made[id(payload)] for peer, payload in payloads.items()}
        return (
            {peer: chosen for peer, (chosen, _) in found.items()},
            {peer: stream for peer, (_, stream) in found.items()},
        )

    def unpack(self, stream: Buffer, into: Buffer) -> Mask:
        """Puts the chunks of a stream in their places; returns which they are."""
        chosen = self.selection.chosen(self.whole, stream[self._bitmap].tobytes())
        rows = self.whole.rows(into)
        rows[chosen] = stream[self._body].reshape(-1, self.whole.chunk_bytes)
        return chosen

    def told(self, report: TransferReport, chosen: Mask) -> TransferReport:
        """The report of a stream, as one of chunks: `chunks_sent` stays that of its segments."""
        count = self.selection.count(self.whole)
        return replace(
            report, chunk_count=self.whole.chunk_count, chunks_received=count, received=chosen
        )
