"""How often a measurement is repeated: until the median's interval is narrow, within bounds.

The interval of 95 % is that of a median of values whose logarithms are normal: Student's t, times
sqrt(pi / 2), by which a median is less certain than a mean. It is symmetric about the median, in
ratios. Where the repetitions end by themselves (`NARROW`), 93 to 97 % of the intervals hold the
true median for spreads of 1 to 20 % (`tests/bench/test_repetition.py` simulates that).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

NARROW = 0.1  # the ends of a narrow interval are at most this far from the median, as a share
MOST = 12
TIME_S = 3.0
_FEWEST = 2


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the values' median; None for fewer than two, or where not all are > 0."""
    n = len(values)
    if n < _FEWEST or min(values) <= 0:
        return None
    from scipy.special import stdtrit

    spread = statistics.stdev(math.log(value) for value in values)
    share = math.sqrt(math.pi / 2) * float(stdtrit(n - 1, 0.975)) * spread / math.sqrt(n)
    middle = statistics.median(values)
    if share > math.log(1e6):  # the values differ by orders of magnitude: it says nothing
        return None
    return middle * math.exp(-share), middle * math.exp(share)


def is_narrow(values: Sequence[float]) -> bool:
    """Whether the median is known well enough."""
    found = interval(values)
    return found is not None and found[1] <= (1 + NARROW) * statistics.median(values)


def enough(series: Iterable[Sequence[float]], *, fewest: int, most: int, spent_s: float) -> bool:
    """Whether no further repetition is due."""
    each = list(series)
    n = len(each[0])
    if n < fewest:
        return False
    # As long as those before, the next one would end after the time.
    over = n >= most or spent_s * (n + 1) / n > TIME_S
    return over or all(is_narrow(values) for values in each)
