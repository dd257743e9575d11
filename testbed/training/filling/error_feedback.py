"""Error feedback: the sender adds what was not delivered to its next payload.

This is the memory of gradient compression (Seide et al., Interspeech 2014; Karimireddy et al., ICML
2019), with the receiver's final bitmap in place of the compressor. Over any number of rounds, the
applied updates plus the residual equal the sum of all gradients. The receiver fills with zeros.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.training.filling.base import Buffer, SenderMemory
from testbed.training.filling.zero import Zero
from testbed.transport import PayloadLayout, TransferReport


class Residual(SenderMemory):
    """Holds the residual for a peer; during a transfer, the payload that is being sent."""

    def __init__(self, layout: PayloadLayout) -> None:
        self.owed = layout.new_buffer()
        self._layout = layout

    def payload(self, gradient: Buffer) -> Buffer:
        owed = self._layout.floats(self.owed)
        owed += self._layout.floats(gradient)
        return self.owed

    def settle(self, report: TransferReport) -> None:
        if report.received is not None:
            self._layout.rows(self.owed)[report.received] = 0
        elif report.chunks_received == report.chunk_count:
            self.owed[:] = 0  # a reliable transport reports no bitmap
        else:
            raise ValueError(
                f"filling error-feedback: the transfer to {report.peer} does not say what arrived"
            )

    def state(self) -> dict[str, Buffer]:
        return {"owed": self.owed}

    def restore(self, state: Mapping[str, Buffer]) -> None:
        self.owed[:] = state["owed"]


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Zero):
    """Fills with zeros at the receiver, and keeps a residual at the sender."""

    def sender_memory(self, layout: PayloadLayout) -> Residual:
        return Residual(layout)
