"""Repairs losses that are found quickly and gives up others within a bound: "APNet'19-style".

Xia et al. (APNet 2019) retransmit losses that duplicate acknowledgements reveal at once. Within the
bound they give up losses that only a long wait would reveal. Here there are two signs of a wait:
the sender has nothing else to send and asks, or no new chunk has come for a while. Their bounds per
task are not known to us; the abstract calls 10 to 35 % harmless.
"""

from dataclasses import dataclass

from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.tolerance import (
    Progress,
    StopRule,
    StopRuleFactory,
    check_seconds,
    required_chunks,
)
from testbed.transport.policies.tolerance.fixed import Fixed


@dataclass(frozen=True, init=False)
class QuickLossOnly(Fixed):
    """Within the bound, stops as soon as the receiver would have to wait for the rest.

    Args:
        tolerance: the bound, as the fraction of chunks that may be missing.
        quiet_s: seconds without a new chunk after which the rest counts as slow. It must be longer
            than a round trip with full queues, or it cuts off quick repairs.
    """

    quiet_s: float

    def __init__(self, tolerance: float, quiet_s: float) -> None:
        super().__init__(tolerance)
        check_seconds(quiet_s, "quiet_s")
        object.__setattr__(self, "quiet_s", float(quiet_s))

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: QuickLossRule(layout=layout, policy=self)

    def as_text(self) -> str:
        return f"quick-loss-only:tolerance={self.fraction!r},quiet_s={self.quiet_s!r}"


class QuickLossRule(StopRule):
    """Stops when the bound is kept and, since the last chunk, the sender asked or was quiet."""

    def __init__(self, *, layout: PayloadLayout, policy: QuickLossOnly) -> None:
        self._required = required_chunks(layout.chunk_count, policy.fraction)
        self._quiet_s = policy.quiet_s
        self._count = 0
        self._probes = 0  # the number of PROBEs when the last new chunk came

    def satisfied(self, progress: Progress) -> bool:
        if progress.received_count != self._count:
            self._count, self._probes = progress.received_count, progress.probes
        if self._count < self._required:
            return False
        quiet_s = self._quiet_until_s(progress)
        asked = progress.probes > self._probes
        return asked or (quiet_s is not None and progress.now_s >= quiet_s)

    def deadline_s(self, progress: Progress) -> float | None:
        return self._quiet_until_s(progress) if self._count >= self._required else None

    def _quiet_until_s(self, progress: Progress) -> float | None:
        last_s = progress.last_arrival_s
        return None if last_s is None else last_s + self._quiet_s
