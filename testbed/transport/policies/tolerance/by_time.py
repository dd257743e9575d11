"""A tolerance that holds only after a wait: for a deadline, or for what can be repaired quickly."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed.shared.input_error import shown
from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.lookback import ALIKE
from testbed.transport.core.tolerance import (
    Progress,
    StopRule,
    StopRuleFactory,
    check_seconds,
    required_chunks,
)
from testbed.transport.policies.tensor_names import matching, parse_globs
from testbed.transport.policies.tolerance.by_phase import Fixed

# A quarter of the latest transfers were as fast: the pace of calm ones.
_CALM = 0.25


@dataclass(frozen=True, init=False)
class EarlyClose(Fixed):
    """A fraction and a deadline: "LTP-style" Early Close.

    LTP (arXiv 2305.04279, IWQoS 2023) gives its receiver two limits: an acceptable fraction of the
    data, which protects the quality, and a cut-off time, which removes the tail. Until the deadline
    it waits for everything, afterwards only for the fraction. Some data must arrive in any case.
    Not known to us are LTP's defaults, how it adapts the limits to the network, and which packets
    are critical. So the fraction and what must arrive are constant options here, and the cut-off
    time is constant, or follows what was measured of each peer, by a rule of ours.

    Args:
        tolerance: the fraction of chunks that may be missing after the deadline.
        deadline_s: the cut-off time, in seconds since the transfer's first chunk arrived.
        must: tensors that must arrive completely, such as `*.bias;head.*`; none when empty.
        patience: once transfers from this peer have ended, the cut-off time is so many times what
            all chunks need at the pace that a quarter of its latest 16 had or exceeded; at least 1.
            Transfers of half to twice as many chunks count. None: `deadline_s` stays.
    """

    deadline_s: float
    must: tuple[str, ...]
    patience: float | None

    def __init__(
        self,
        tolerance: float,
        deadline_s: float,
        must: str | Sequence[str] = "",
        patience: float | None = None,
    ) -> None:
        super().__init__(tolerance)
        check_seconds(deadline_s, "deadline_s")
        number = isinstance(patience, int | float) and not isinstance(patience, bool)
        if patience is not None and not (number and 1 <= patience < math.inf):
            raise ValueError(f"patience is {shown(patience)}; valid: 1 or more, finite")
        object.__setattr__(self, "deadline_s", float(deadline_s))
        object.__setattr__(self, "must", parse_globs(must, "must"))
        object.__setattr__(self, "patience", None if patience is None else float(patience))

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: EarlyCloseRule(layout=layout, policy=self)

    def as_text(self) -> str:
        must = f",must={';'.join(self.must)}" if self.must else ""
        patience = "" if self.patience is None else f",patience={self.patience!r}"
        limits = f"tolerance={self.fraction!r},deadline_s={self.deadline_s!r}"
        return f"early-close:{limits}{must}{patience}"


class EarlyCloseRule(StopRule):
    """Stops when the deadline has passed, the fraction has arrived, and `must` is complete."""

    def __init__(self, *, layout: PayloadLayout, policy: EarlyClose) -> None:
        self._required = required_chunks(layout.chunk_count, policy.fraction)
        self._chunk_count = layout.chunk_count
        self._policy = policy
        self._patience_s: float | None = None
        named = [i for glob in policy.must for i in matching(layout, glob, "must")]
        pieces = layout.pieces
        self._must = np.unique(pieces.chunk[np.isin(pieces.tensor, named)])

    def satisfied(self, progress: Progress) -> bool:
        cut_off_s = self._cut_off_s(progress)
        return (
            cut_off_s is not None
            and progress.now_s >= cut_off_s
            and progress.received_count >= self._required
            and bool(progress.received[self._must].all())
        )

    def deadline_s(self, progress: Progress) -> float | None:
        cut_off_s = self._cut_off_s(progress)
        # After the deadline only a new chunk can change the answer.
        return None if cut_off_s is None or progress.now_s >= cut_off_s else cut_off_s

    def _cut_off_s(self, progress: Progress) -> float | None:
        first_s = progress.first_arrival_s
        if first_s is None:
            return None
        if self._patience_s is None:
            self._patience_s = self._measured_s(progress)
        return first_s + self._patience_s

    def _measured_s(self, progress: Progress) -> float:
        """How long after its first chunk this transfer is cut off."""
        patience, chunk_count = self._policy.patience, self._chunk_count
        paces = sorted(
            took_s / count
            for took_s, count in progress.recent
            # What came in one batch took no time that could be told.
            if took_s > 0 and chunk_count <= ALIKE * count and count <= ALIKE * chunk_count
        )
        if patience is None or not paces:
            return self._policy.deadline_s
        return patience * chunk_count * paces[int(len(paces) * _CALM)]


@dataclass(frozen=True, init=False)
class QuickLossOnly(Fixed):
    """Repairs losses that are found quickly, gives up others within a bound: "APNet'19-style".

    Xia et al. (APNet 2019) retransmit losses that duplicate acknowledgements reveal at once. Within
    the bound they give up losses that only a long wait would reveal. Here there are two signs of a
    wait: the sender has nothing else to send and asks, or no new chunk has come for a while. Their
    bounds per task are not known to us; the abstract calls 10 to 35 % harmless.

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
