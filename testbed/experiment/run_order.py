"""Orders the runs of an experiment: paired by seed, arms interleaved, drawn from the seed.

A machine changes with time: it warms up, and others use it. Runs that are compared with each
other, which are all arms of one point and seed, therefore follow one another directly. Their order
differs from block to block, so that no arm always comes first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from testbed.experiment.run import Run

ORDER_RULE = (
    "seeds as given; for each seed the points of the factors, and for each of these the arms, by "
    "the SHA-256 of the experiment's name, the seed, the point and the arm"
)


def ordered(runs: Sequence[Run]) -> list[Run]:
    """The runs in the order of their execution.

    The draw is a hash, so leaving out arms, points or seeds changes nothing about the order of
    the rest, and neither does resuming.
    """
    seeds = list(dict.fromkeys(run.seed for run in runs))
    return sorted(
        runs,
        key=lambda run: (
            seeds.index(run.seed),
            _draw(run.experiment.name, run.seed, run.factors),
            _draw(run.experiment.name, run.seed, run.factors, run.arm),
        ),
    )


def _draw(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
