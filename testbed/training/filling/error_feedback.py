"""Error feedback: the sender adds what was not delivered to its next payload.

This is the memory of gradient compression (Seide et al., Interspeech 2014; Karimireddy et al., ICML
2019), with the receiver's final bitmap in place of the compressor. Over any number of rounds, the
applied updates plus the residual equal the sum of all gradients, since the receiver fills with
zeros.
"""

from dataclasses import dataclass

from testbed.training.filling.base import Buffer, Mask, SenderMemory
from testbed.training.filling.plain_means import Zero
from testbed.training.vectors import drop_nonfinite
from testbed.transport import PayloadLayout, TransferReport


class Residual(SenderMemory):
    """Holds the residual for a peer; during a transfer, the payload that is being sent.

    While nothing is owed that is the gradient itself, so a path without loss costs no work.
    """

    def __init__(self, layout: PayloadLayout) -> None:
        self.owed = layout.new_buffer()
        self._layout = layout
        self._sent = self.owed
        self._owes = False

    def payload(self, gradient: Buffer) -> Buffer:
        if self._owes:
            owed = self._layout.floats(self.owed)
            owed += self._layout.floats(gradient)
        self._sent = self.owed if self._owes else gradient
        return self._sent

    def settle(self, report: TransferReport) -> None:
        if report.received is None and report.chunks_received != report.chunk_count:
            raise ValueError(
                f"filling error-feedback: the transfer to {report.peer} does not say what arrived"
            )
        self.note(report.received)  # a reliable transport reports no bitmap

    def note(self, received: Mask | None) -> None:
        """These chunks of the payload have arrived; None: all."""
        if received is None or received.all():
            if self._owes:
                self.owed[:] = 0
            self._owes = False
            return
        rows = self._layout.rows(self.owed)
        if not self._owes:
            missing = ~received
            rows[missing] = self._layout.rows(self._sent)[missing]
        else:
            rows[received] = 0
        self._owes = True
        drop_nonfinite(self._layout.floats(self.owed))  # else it would be owed for ever


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Zero):
    """Keeps a residual at the sender."""

    def sender_memory(self, layout: PayloadLayout) -> Residual:
        return Residual(layout)


@dataclass(frozen=True, kw_only=True)
class CommonFeedback(ErrorFeedback):
    """Error feedback for what not all workers have got: the server keeps one residual for all.

    So replicas stay the same, bit for bit, whatever is lost. On the gather it is `error-feedback`.
    """

    common = True
