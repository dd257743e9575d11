"""How many of the 95 % intervals hold the truth, in simulation.

    python -m tests.benchmarks.coverage

Means of normal and log-normal values, and ratios of pairs that share a seed's effect; one line for
each number of seeds and spread (sigma: of a mean 1, or of the logarithms). Takes about a minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from analysis.statistics.intervals import Estimate, mean_interval, ratio_interval

DRAWS = 20_000
SEEDS = (5, 10)
SIGMAS = (0.05, 0.1, 0.2, 0.3)
_OF_SEEDS = 0.5  # the spread of the logarithms that both arms of a pair share


def normal_mean(rng: np.random.Generator, n: int, sigma: float) -> tuple[Estimate, float]:
    """An interval of a mean, and the true mean."""
    return mean_interval(rng.normal(1, sigma, n)), 1.0


def log_normal_mean(rng: np.random.Generator, n: int, sigma: float) -> tuple[Estimate, float]:
    """The same of values whose logarithms are normal."""
    return mean_interval(rng.lognormal(0, sigma, n)), math.exp(sigma**2 / 2)


def log_normal_ratio(rng: np.random.Generator, n: int, sigma: float) -> tuple[Estimate, float]:
    """An interval of a paired ratio whose logarithm has this spread, and the true ratio, 1.5."""
    bottom = rng.lognormal(0, _OF_SEEDS, n)
    return ratio_interval(1.5 * bottom * rng.lognormal(0, sigma, n), bottom), 1.5


def normal_ratio(rng: np.random.Generator, n: int, sigma: float) -> tuple[Estimate, float]:
    """The same of times that are normal, each of spread sigma / sqrt 2; the ratio is of medians.

    Times that are not above 0 are drawn again: at 0.3 that is one of a million.
    """
    values = np.zeros((2, n))
    while (values <= 0).any():
        values = rng.normal(1, sigma / math.sqrt(2), (2, n))
    return ratio_interval(1.5 * values[0], values[1]), 1.5


SHAPES: dict[str, Callable[[np.random.Generator, int, float], tuple[Estimate, float]]] = {
    "mean, normal": normal_mean,
    "mean, log-normal": log_normal_mean,
    "ratio, normal": normal_ratio,
    "ratio, log-normal": log_normal_ratio,
}


def coverage(shape: str, n: int, sigma: float, draws: int, seed: int = 1) -> float:
    """The share of `draws` intervals that hold the truth."""
    rng = np.random.default_rng(seed)
    held = 0
    for _ in range(draws):
        found, truth = SHAPES[shape](rng, n, sigma)
        assert found.low is not None and found.high is not None
        held += found.low <= truth <= found.high
    return held / draws


def main() -> None:
    """Print the table."""
    print(f"coverage of 95 % intervals, {DRAWS} draws each (standard error 0.15 points)")
    print(f"{'':20}{'n':>4}" + "".join(f"{sigma:>9g}" for sigma in SIGMAS))
    for shape in SHAPES:
        for n in SEEDS:
            found = (coverage(shape, n, sigma, DRAWS) for sigma in SIGMAS)
            print(f"{shape:20}{n:>4}" + "".join(f"{each * 100:8.1f}%" for each in found))


if __name__ == "__main__":
    main()
