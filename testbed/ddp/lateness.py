"""How late a rank's gradient may be, which follows from recent rounds: nobody can guess a timeout.

Lateness counts from the first gradient that the owner of a part has. One that takes much longer
than most recent ones of the same part is left out, and what has not come is owed. That happens to
each rank in a bounded share of its parts.
"""

import math
import statistics
from collections import defaultdict, deque

from testbed.transport import PayloadLayout
from testbed.transport.tolerance import Fixed, Progress, StopRule, StopRuleFactory

# Parts that are remembered, and the fewest before one can be late. The share counts in the first.
WINDOW = 100
_LEAST = 10
# Late is what takes so many times as long as nine of ten did, and so long at least: a scheduler's
# moment is no lateness.
_FACTOR = 2.0
_SHORTEST_S = 0.05


class Lateness:
    """What is known of the ranks' lateness at one owner."""

    def __init__(self, share: float) -> None:
        """`share`: in how many of its parts a rank may be left out; 0 for never."""
        self._most = round(share * WINDOW)
        self._recent: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._left_out: dict[int, deque[bool]] = defaultdict(lambda: deque(maxlen=WINDOW))
        # Parts under way that may yet be left out.
        self._at_risk: dict[int, set[int]] = defaultdict(set)

    @property
    def allowed(self) -> bool:
        """Whether any rank may ever be left out."""
        return self._most > 0

    def patience_s(self, rank: int, index: int) -> float:
        """For how long the rank's gradient of the part `index`, which begins, is waited for."""
        recent, at_risk = self._recent[index], self._at_risk[rank]
        if len(recent) < _LEAST or sum(self._left_out[rank]) + len(at_risk) >= self._most:
            return math.inf
        at_risk.add(index)
        return max(_SHORTEST_S, _FACTOR * statistics.quantiles(recent, n=10)[-1])

    def note(self, rank: int, index: int, took_s: float, *, late: bool) -> None:
        """A rank's gradient has come within this time, or was left out after it."""
        if took_s > 0:  # the first one tells nothing
            self._recent[index].append(took_s)
        self._left_out[rank].append(late)
        self._at_risk[rank].discard(index)


class Patient(StopRule):
    """Another rule, until a rank is late."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self._until_s = math.inf
        self.late = False

    def wait_until(self, until_s: float) -> None:
        """For so long it is waited for, on the monotonic clock. At first it is without end."""
        self._until_s = until_s

    def satisfied(self, progress: Progress) -> bool:
        enough = self._rule.satisfied(progress)
        self.late = not enough and progress.now_s >= self._until_s
        return enough or self.late

    def deadline_s(self, progress: Progress) -> float | None:
        asked_s = self._rule.deadline_s(progress)
        if math.isinf(self._until_s):
            return asked_s
        return self._until_s if asked_s is None else min(asked_s, self._until_s)

    def missing(self, progress: Progress) -> int | None:
        return self._rule.missing(progress)


def patient(tolerance: float | StopRuleFactory, layout: PayloadLayout) -> Patient:
    """The rule for one transfer."""
    if callable(tolerance):
        return Patient(tolerance(layout))
    return Patient(Fixed(tolerance).stop_rule(critical=False)(layout))
