"""No repair while a stop rule will end the transfer by itself (OptiReduce, NSDI 2025).

The sender sends each chunk once, then a PROBE, which waits for as long as the stop rule has a time
at which it looks again. What a rule still wants then is repaired in passes: warm-up transfers, say.
"""

from dataclasses import dataclass

from testbed.transport.core.messages import PASS, ControlMessage
from testbed.transport.core.path_estimates import PathEstimates
from testbed.transport.core.repair import Arrange, Repair
from testbed.transport.core.routine import Quiet
from testbed.transport.policies.repair.passes import PassesReceiver, PassesSender
from testbed.transport.policies.tolerance import Progress


class OnceReceiver(PassesReceiver):
    """Answers the PROBE at the end of a pass only when no time is left to end the transfer."""

    def __init__(self, *, transfer: int) -> None:
        super().__init__(transfer=transfer)
        self._waiting: tuple[ControlMessage, float] | None = None  # until when

    @property
    def quiet(self) -> Quiet:
        return super().quiet

    def on_probe(
        self, message: ControlMessage, progress: Progress, attentive: bool
    ) -> list[ControlMessage]:
        _, ends = PASS.unpack(message.body)
        if not ends or progress.ends_s is None:
            return super().on_probe(message, progress, attentive)
        self._waiting = message, progress.ends_s
        return []

    def deadline_s(self, progress: Progress) -> float | None:
        return None if self._waiting is None else self._waiting[1]

    def on_deadline(self, progress: Progress) -> list[ControlMessage]:
        if self._waiting is None or progress.now_s < self._waiting[1]:
            return []
        (message, _), self._waiting = self._waiting, None
        return super().on_probe(message, progress, attentive=False)


@dataclass(frozen=True, kw_only=True)
class Once(Repair):
    """Each chunk goes once while the stop rule has a time to end the transfer; without options."""

    def sender(
        self, *, transfer: int, chunk_count: int, arrange: Arrange, estimates: PathEstimates
    ) -> PassesSender:
        return PassesSender(transfer=transfer, chunk_count=chunk_count, arrange=arrange)

    def receiver(self, *, transfer: int, datagram_wire_bytes: int) -> OnceReceiver:
        return OnceReceiver(transfer=transfer)
