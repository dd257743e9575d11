"""Tolerances that hold only after a wait, and those of time alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed.shared.input_error import shown
from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.tolerance import (
    ALIKE,
    MOST_EARLIEST,
    RECENT,
    Progress,
    StopRule,
    StopRuleFactory,
    TolerancePolicy,
    check_seconds,
    required_chunks,
)
from testbed.transport.policies.tensor_names import matching, parse_globs
from testbed.transport.policies.tolerance.fractions import Fixed

# A quarter of the latest transfers were as fast: the pace of calm ones.
_CALM = 0.25
# A transfer that takes exactly the bound has come in time, whatever the rounding.
_ROUNDING_S = 1e-9


@dataclass(frozen=True, init=False)
class EarlyClose(Fixed):
    """A fraction and a deadline: "LTP-style" Early Close.

    Until the deadline LTP's receiver (arXiv 2305.04279) waits for everything, afterwards for a
    fraction; some data must arrive in any case. LTP's defaults, which packets are critical and how
    it adapts the limits are not known to us. Here they are options; or with `patience` the limits
    follow what was measured of each peer in the epoch before, by a rule of ours:

    * The cut-off time is `patience` times what all chunks need at a calm pace, the one that a
      quarter of the epoch's transfers had or exceeded, and a round trip for one more repair.
    * The fraction is what transfers of that epoch would have lacked then in the mean, had their
      chunks come evenly, and never more than `tolerance`. So after a calm epoch all is waited for.

    Only transfers that ended with half to twice as many chunks count; the constant limits hold
    while there is none.

    Args:
        tolerance: the fraction of chunks that may be missing after the deadline.
        deadline_s: the cut-off time, in seconds since the transfer's first chunk arrived.
        must: tensors that must arrive completely, such as `*.bias;head.*`; none when empty.
        patience: both limits adapt, with this factor; at least 1. None: they are constant.
        epoch_rounds: the epoch before a transfer is so many of the peer's latest; 1 to 16.
    """

    deadline_s: float
    must: tuple[str, ...]
    patience: float | None
    epoch_rounds: int

    def __init__(
        self,
        tolerance: float,
        deadline_s: float,
        must: str | Sequence[str] = "",
        patience: float | None = None,
        epoch_rounds: int = RECENT,
    ) -> None:
        super().__init__(tolerance)
        check_seconds(deadline_s, "deadline_s")
        number = isinstance(patience, int | float) and not isinstance(patience, bool)
        if patience is not None and not (number and 1 <= patience < math.inf):
            raise ValueError(f"patience is {shown(patience)}; valid: 1 or more, finite")
        if not (type(epoch_rounds) is int and 1 <= epoch_rounds <= RECENT):
            valid = f"a whole number, 1 to {RECENT}"
            raise ValueError(f"epoch_rounds is {shown(epoch_rounds)}; valid: {valid}")
        object.__setattr__(self, "deadline_s", float(deadline_s))
        object.__setattr__(self, "must", parse_globs(must, "must"))
        object.__setattr__(self, "patience", None if patience is None else float(patience))
        object.__setattr__(self, "epoch_rounds", epoch_rounds)

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: EarlyCloseRule(layout=layout, policy=self)

    def as_text(self) -> str:
        must = f",must={';'.join(self.must)}" if self.must else ""
        patience = "" if self.patience is None else f",patience={self.patience!r}"
        epoch = "" if self.epoch_rounds == RECENT else f",epoch_rounds={self.epoch_rounds}"
        limits = f"tolerance={self.fraction!r},deadline_s={self.deadline_s!r}"
        return f"early-close:{limits}{must}{patience}{epoch}"


class EarlyCloseRule(StopRule):
    """Stops when the deadline has passed, the fraction has arrived, and `must` is complete."""

    def __init__(self, *, layout: PayloadLayout, policy: EarlyClose) -> None:
        self._chunk_count = layout.chunk_count
        self._policy = policy
        self._limits: tuple[float, int] | None = None  # the deadline, and the chunks it asks for
        named = [i for glob in policy.must for i in matching(layout, glob, "must")]
        pieces = layout.pieces
        self._must = np.unique(pieces.chunk[np.isin(pieces.tensor, named)])

    def satisfied(self, progress: Progress) -> bool:
        limits = self._limits_of(progress)
        return (
            limits is not None
            and progress.now_s >= limits[0]
            and progress.received_count >= limits[1]
            and bool(progress.received[self._must].all())
        )

    def deadline_s(self, progress: Progress) -> float | None:
        limits = self._limits_of(progress)
        # After the deadline only a new chunk can change the answer.
        return None if limits is None or progress.now_s >= limits[0] else limits[0]

    def _limits_of(self, progress: Progress) -> tuple[float, int] | None:
        """None before the first chunk; afterwards they stay."""
        if self._limits is None and progress.first_arrival_s is not None:
            cut_off_s, tolerance = self._measured(progress)
            required = required_chunks(self._chunk_count, tolerance)
            self._limits = progress.first_arrival_s + cut_off_s, required
        return self._limits

    def _measured(self, progress: Progress) -> tuple[float, float]:
        """How long after its first chunk this transfer is cut off, and what it may lack then."""
        policy, chunk_count = self._policy, self._chunk_count
        alike_s = [
            took_s * chunk_count / count
            for took_s, count in progress.recent
            # What came in one batch took no time that could be told.
            if took_s > 0 and chunk_count <= ALIKE * count and count <= ALIKE * chunk_count
        ]
        whole_s = sorted(alike_s[-policy.epoch_rounds :])
        if policy.patience is None or not whole_s:
            return policy.deadline_s, policy.fraction
        calm_s = whole_s[int(len(whole_s) * _CALM)]
        cut_off_s = policy.patience * calm_s + (progress.round_trip_s or 0.0)
        lacking = sum(max(0.0, 1 - cut_off_s / each_s) for each_s in whole_s) / len(whole_s)
        return cut_off_s, min(policy.fraction, lacking)


@dataclass(frozen=True, init=False)
class QuickLossOnly(Fixed):
    """Repairs losses that are found quickly, gives up others within a bound: "APNet'19-style".

    Xia et al. (APNet 2019) give up, within a bound, losses that only a long wait would reveal. Here
    there are two signs of one: the sender has nothing else to send and asks, or no new chunk has
    come for a while. Their bounds are not known to us; the abstract calls 10 to 35 % harmless.

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


@dataclass(frozen=True, kw_only=True)
class TimeBound(TolerancePolicy):
    """Stops at a time that warm-up transfers have set, or soon after all has been sent.

    "OptiReduce-style" (Warraich et al., NSDI 2025, arXiv 2310.06993): the hard bound, t_B, is the
    95th percentile of 20 runs at start-up, which are reliable. Once the senders' last packets have
    come, the receiver waits only for a fraction of t_C, a moving average. Assumptions of ours: the
    fraction is a constant, and t_C the mean of the latest 16 transfers; the first transfers from
    each peer take the place of the runs at start-up; both count from the first sign of a transfer;
    a PROBE says that all have been sent.

    Args:
        warm_up: so many transfers from each peer are complete; their times set the bound.
        quantile: the bound is this quantile of them, by nearest rank; above 0, up to 1.
        wait: once all has been sent, the receiver waits for this part of the time that recent
            transfers took in the mean; above 0, up to 1.
    """

    warm_up: int = 20
    quantile: float = 0.95
    wait: float = 0.1

    def __post_init__(self) -> None:
        count = self.warm_up
        if not (type(count) is int and 1 <= count <= MOST_EARLIEST):
            raise ValueError(f"warm_up is {count!r}; valid: a whole number, 1 to {MOST_EARLIEST}")
        for name in ("quantile", "wait"):
            value = getattr(self, name)
            if not (type(value) in (int, float) and 0 < value <= 1):
                raise ValueError(f"{name} is {value!r}; valid: above 0, up to 1")

    def tolerance(self, critical: bool) -> float:
        """0, what it gives up of a transfer in time. Nothing bounds what one that is late loses."""
        return 0.0

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: TimeBoundRule(layout=layout, policy=self)

    def as_text(self) -> str:
        return f"time-bound:warm_up={self.warm_up},quantile={self.quantile!r},wait={self.wait!r}"


class TimeBoundRule(StopRule):
    """Stops at the earlier of the two times; in a warm-up transfer, at neither."""

    def __init__(self, *, layout: PayloadLayout, policy: TimeBound) -> None:
        self._policy = policy
        self._chunk_count = layout.chunk_count
        self._ended_s: float | None = None  # when the sender had sent all

    def satisfied(self, progress: Progress) -> bool:
        until_s = self._until_s(progress)
        return until_s is not None and progress.now_s >= until_s

    def deadline_s(self, progress: Progress) -> float | None:
        return self._until_s(progress)

    def missing(self, progress: Progress) -> int | None:
        # The first chunk starts the clock, so it must be noticed at once.
        if progress.first_arrival_s is None:
            return None
        return self._chunk_count - progress.received_count

    def _until_s(self, progress: Progress) -> float | None:
        if self._ended_s is None and progress.probes:
            self._ended_s = progress.now_s
        first_s = self._ended_s if progress.first_sign_s is None else progress.first_sign_s
        warm_up = self._policy.warm_up
        if first_s is None or len(progress.earliest) < warm_up:
            return None
        taken_s = [each_s for each_s, _ in progress.earliest[:warm_up]]
        bound_s = first_s + _quantile(taken_s, self._policy.quantile) + _ROUNDING_S
        if self._ended_s is None:
            return bound_s
        mean_s = sum(each_s for each_s, _ in progress.recent) / len(progress.recent)
        return min(bound_s, self._ended_s + self._policy.wait * mean_s)


def _quantile(values: Sequence[float], quantile: float) -> float:
    """By nearest rank, without rounding errors: 0.95 of 20 is the 19th."""
    return sorted(values)[math.ceil(round(quantile * len(values), 9)) - 1]
