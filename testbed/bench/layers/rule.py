"""The rule by which a tensor bears a loss: not worse than without it by more than a margin.

Differences are paired: a training with loss and the one without it have the same seed, so the same
weights, batches and validation part. They bear it if the lower end of a one-sided 95 % interval of
their mean (Student's t over the seeds) is not below minus the margin. So noise counts against a
bound: what few seeds cannot show to be harmless is not allowed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

LADDER = (0.1, 0.2, 0.4, 0.6, 0.8)
FEWEST_SEEDS = 2  # of one there is no interval
_CONFIDENCE = 0.95

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What trainings with one loss came to, beside those without.

    Attributes:
        share: that may be lost.
        lost: the share that was lost, whole chunks.
        differences: of each seed, in the seeds' order: of accuracies, or of perplexities the
            logarithm of the ratio, below 0 where loss makes it worse; None where it diverged.
        low: the lower end of the interval of their mean; None where one diverged.
        holds: whether that is not below minus the margin.
    """

    share: float
    lost: float
    differences: tuple[float | None, ...]
    low: float | None
    holds: bool

    @property
    def mean(self) -> float | None:
        """Of the differences; None where one diverged."""
        known = [each for each in self.differences if each is not None]
        return statistics.fmean(known) if len(known) == len(self.differences) else None


def finding(
    share: float, with_loss: Sequence[Record], without: Sequence[Record], *, margin: float
) -> Finding:
    """Compare trainings with one loss, and those without, of the same seeds."""
    reference = {each["seed"]: each for each in without}
    pairs = [(each, reference[each["seed"]]) for each in sorted(with_loss, key=_seed)]
    differences = tuple(_difference(lossy, whole) for lossy, whole in pairs)
    known = [each for each in differences if each is not None]
    low = _low(known) if len(known) == len(differences) else None
    return Finding(
        share=share,
        lost=statistics.fmean(each["lost"] for each in with_loss),
        differences=differences,
        low=low,
        holds=low is not None and low >= -margin,
    )


def bound(climbed: Sequence[Finding]) -> float:
    """The last rung before the first that does not hold, of those that lost something; else 0."""
    found = 0.0
    for each in climbed:
        if not each.holds:
            break
        # Of a tensor that is a few chunks, a small share is less than a chunk: nothing was tried.
        if each.lost:
            found = each.share
    return found


def is_ladder_end(bound_of_a_group: float) -> bool:
    """Whether a bound is the ladder's last rung: more was not tried, so it is a least one."""
    return bound_of_a_group == LADDER[-1]


def _seed(record: Record) -> int:
    return int(record["seed"])


def _difference(lossy: Record, whole: Record) -> float | None:
    value, reference = lossy["value"], whole["value"]
    if value is None or reference is None:
        return None
    if lossy["metric"] == "accuracy":
        return float(value - reference)
    return -math.log(value / reference)


def _low(differences: Sequence[float]) -> float:
    count = len(differences)
    error = statistics.stdev(differences) / math.sqrt(count)
    return statistics.fmean(differences) - float(stdtrit(count - 1, _CONFIDENCE)) * error
