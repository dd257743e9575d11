"""Measures of how flows share a link."""

from collections.abc import Sequence


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 for equal shares, 1/n when one has all (DEC-TR-301, 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
