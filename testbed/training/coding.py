"""Values become what travels and back: the one place of each side where the codec works.

Learners and fillings see float32 alone, in buffers of `layout.plain`. With the codec `float32`
these are what travels, and nothing is copied.
"""

from testbed.training.filling import Buffer, Mask, SenderMemory, payload_of
from testbed.transport import PayloadLayout, TransferReport


class Outgoing:
    """Makes the payloads of one sender's half, which owes what the codec loses, if it can."""

    def __init__(
        self,
        memory: SenderMemory,
        layout: PayloadLayout,
        *,
        seed: int = 0,
        unread: Buffer | None = None,
    ) -> None:
        """`unread` travels in place of all payloads, with which then nobody computes."""
        self.memory = memory
        self._layout, self._seed, self._unread = layout, seed, unread
        self._codes = layout is not layout.plain and unread is None
        if self._codes:
            self._buffer = layout.new_buffer()
            if memory.keeps_rounding:
                memory.rounded = layout.plain.new_buffer()

    def payload(self, gradient: Buffer, transfer: int) -> Buffer:
        """Returns what is to travel for a gradient; neither may change before the transfer ends."""
        if self._unread is not None:
            return self._unread
        values = payload_of(self.memory, gradient)
        if not self._codes:
            return values
        plain, rounded = self._layout.plain, self.memory.rounded
        self._layout.write(
            plain.floats(values),
            self._buffer,
            seed=self._seed,
            transfer=transfer,
            residual=None if rounded is None else plain.floats(rounded),
        )
        return self._buffer

    def settle(self, report: TransferReport) -> None:
        self.memory.settle(report)


class Incoming:
    """A buffer for one sender's payloads, and what they mean."""

    def __init__(self, layout: PayloadLayout, buffer: Buffer, values: Buffer) -> None:
        self.buffer = buffer  # of the layout
        self.values = values  # of `layout.plain`; `buffer` itself with the codec float32
        self._layout = layout

    def read(self, received: Mask) -> Buffer:
        """Reads the chunks that arrived, and returns the values; those of the others stay."""
        if self.values is not self.buffer:
            self._layout.read(
                self.buffer, self._layout.plain.floats(self.values), received=received
            )
        return self.values
