"""A bound on the energy, the sum of squares, that may be missing: ours.

With error feedback, SGD with any contraction of the payload converges at the rate of SGD without
loss (Stich, Cordonnier and Jaggi, NeurIPS 2018; Karimireddy et al., ICML 2019), however the chunks
were chosen. So the floor holds in all rounds; what comes above it is what the time allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.tolerance import (
    ALIKE,
    Progress,
    StopRule,
    StopRuleFactory,
    TolerancePolicy,
)
from testbed.transport.core.worth import LEAST, MOST, MUST, enough

# The time of calm transfers: in a quarter of the latest rounds all peers were faster. It stays that
# of calm ones while up to three quarters are hit, and follows a path that becomes slower for good.
_CALM = 0.25


@dataclass(frozen=True, kw_only=True)
class BoundedEnergy(TolerancePolicy):
    """Stops at a share of the energy or a part of the chunks; when late at less, above a floor.

    It needs an order that tells what chunks are worth, such as `by-energy`, and which must arrive.
    A transfer waits for all of those; a late one with a `floor` for any chunks that hold it, and
    those that must arrive without energy.

    Args:
        share: the share of the energy at which a transfer ends that is not late; above 0.
        patience: a transfer is late after so many times what calm ones took recently from the
            slowest peer, counted from its first sign; at least 1.
        at_most: the share of the chunks that is enough however little they hold, where they are the
            most energetic ones or hold as much; above 0, up to 1.
        floor: the share of the energy with which a late transfer ends; above 0, up to 1. None: with
            what must arrive.
    """

    share: float = 0.95
    patience: float = 1.2
    at_most: float = 1.0
    floor: float | None = None
    needs_worth = True

    def __post_init__(self) -> None:
        given = ("share", "patience", "at_most")
        for name in given if self.floor is None else (*given, "floor"):
            if not isinstance(getattr(self, name), int | float):
                raise ValueError(f"{name} is {getattr(self, name)!r}; valid: a number")
            if name != "patience" and not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; valid: above 0, up to 1")
        if not 1 <= self.patience < np.inf:
            raise ValueError(f"patience is {self.patience}; valid: 1 or more, finite")

    def tolerance(self, critical: bool) -> float:
        """What it gives up of the energy when it is not late; of the chunks it is often more."""
        return 1 - self.share

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: EnergyRule(layout=layout, policy=self)

    def as_text(self) -> str:
        text = f"bounded-energy:share={self.share!r},patience={self.patience!r}"
        if self.at_most != 1:
            text += f",at_most={self.at_most!r}"
        return text if self.floor is None else f"{text},floor={self.floor!r}"


class EnergyRule(StopRule):
    """Stops once what must arrive is there, with the share; of a late transfer less is enough."""

    looks_back = True

    def __init__(self, *, layout: PayloadLayout, policy: BoundedEnergy) -> None:
        self._policy = policy
        self._chunk_count = layout.chunk_count
        self._needed: NDArray[np.int64] | None = None  # what must arrive
        self._in_any_case: NDArray[np.int64] | None = None  # of a late transfer, too
        self._fewest = layout.chunk_count  # chunks that can hold the share
        self._share = policy.share  # less where fewer chunks are enough
        self._late_s: float | None = None

    def satisfied(self, progress: Progress) -> bool:
        if not self._knows(progress):
            return False
        if self._is_late(progress):
            return not self._lacking_late(progress)
        return (
            progress.received_count >= self._fewest
            and not self._lacking(progress, self._needed)
            and self._holds(progress, self._share)
        )

    def deadline_s(self, progress: Progress) -> float | None:
        late_s = self._late_from(progress)
        # Afterwards only a new chunk can change the answer.
        return None if late_s is None or progress.now_s >= late_s else late_s

    def missing(self, progress: Progress) -> int | None:
        if not self._knows(progress):
            return self._chunk_count - progress.received_count
        if self._is_late(progress):
            return self._lacking_late(progress)
        lacking = self._lacking(progress, self._needed)
        return max(lacking, self._fewest - progress.received_count)

    def _is_late(self, progress: Progress) -> bool:
        late_s = self._late_from(progress)
        return late_s is not None and progress.now_s >= late_s

    def _late_from(self, progress: Progress) -> float | None:
        """From when on the transfer is late; None while that is unknown."""
        first_s = progress.first_sign_s
        if self._late_s is None and first_s is not None and self._knows(progress):
            calm_s = self._calm_s(progress.slowest)
            self._late_s = None if calm_s is None else first_s + self._policy.patience * calm_s
        return self._late_s

    def _calm_s(self, slowest: Sequence[tuple[float, int]]) -> float | None:
        """What calm transfers take that need as many chunks as this one; None for unknown."""
        fewest = self._fewest
        alike_s = sorted(
            took_s * max(1.0, fewest / count)
            for took_s, count in slowest
            if fewest <= ALIKE * count and count <= ALIKE * fewest
        )
        return alike_s[int(len(alike_s) * _CALM)] if alike_s else None

    def _lacking_late(self, progress: Progress) -> int:
        """How many chunks a late transfer lacks, at the least."""
        floor = self._policy.floor
        if floor is None:
            return self._lacking(progress, self._needed)
        return self._lacking(progress, self._in_any_case) or int(not self._holds(progress, floor))

    def _lacking(self, progress: Progress, chunks: NDArray[np.int64] | None) -> int:
        assert chunks is not None
        return len(chunks) - int(np.count_nonzero(progress.received[chunks]))

    def _holds(self, progress: Progress, share: float) -> bool:
        got = float(np.add.reduce(self._least, where=progress.received))
        lost = float(np.add.reduce(self._most, where=~progress.received))
        return lost * share <= got * (1 - share)

    def _knows(self, progress: Progress) -> bool:
        """Whether the sender has said what its chunks are worth; reads it when it has."""
        if self._needed is not None or progress.worth is None:
            return self._needed is not None
        worth = progress.worth
        self._least, self._most = LEAST[worth], MOST[worth]
        self._needed = np.flatnonzero(worth & MUST)
        self._in_any_case = np.flatnonzero(worth == MUST)
        self._fewest, self._share = enough(worth, self._policy.share, self._policy.at_most)
        return True
