"""The pace of iterations: the time that this machine needs, or a time that the experiment gives.

A laptop and its emulated links are slower than the paper's. Only the ratio of computing to
communicating carries over, which `paced` sets.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from testbed.shared.section import Section


class RealPace(Section):
    """Iterations take what the machine needs."""

    kind: Literal["real"] = "real"


class _Varying(Section):
    """Iterations whose times differ, from worker to worker and round to round."""

    spread: float = Field(
        default=0.0,
        ge=0,
        le=3,
        description="standard deviation of the logarithm of each iteration's time, whose median is "
        "compute_s; drawn by the seed",
    )


class PacedIterations(_Varying):
    """Every iteration computes for `compute_s`; a slower machine overruns, which is reported."""

    kind: Literal["paced"]
    compute_s: float = Field(gt=0, le=3600, description="computing time of each iteration")


class PayloadOnly(_Varying):
    """Nothing is computed: payloads have the model's exact size and layers, and random content.

    Every iteration lasts `compute_s` all the same. For latencies with models that are too large to
    train here; there is no accuracy.
    """

    kind: Literal["payload-only"]
    compute_s: float = Field(
        default=0.0, ge=0, le=3600, description="pause of each iteration in place of computing"
    )
    scale: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="each layer's size is multiplied with it: less than 1 suits slow links",
    )
    workers_per_process: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="how many workers share a process, each in its own host's network; unless "
        "given, up to 16 workers have a process each, and more share them, 32 in each",
    )


def scaled(
    layers: Sequence[tuple[str, tuple[int, ...]]], scale: float
) -> list[tuple[str, tuple[int, ...]]]:
    """Scale a layer map: the same number of layers and names, each `scale` times the elements."""
    if scale == 1:
        return list(layers)
    return [(name, (max(1, round(scale * math.prod(shape))),)) for name, shape in layers]


PACES: Registry[Section] = Registry(
    "pace", {"real": RealPace, "paced": PacedIterations, "payload-only": PayloadOnly}
)
AnyPace = Annotated[
    RealPace | PacedIterations | PayloadOnly,
    OneOf(PACES, key="kind", base=Section, by_name=True),
]


def computing_s(pace: dict[str, Any], *, seed: int, rank: int, round_number: int) -> float:
    """How long a worker's iteration is to take."""
    median_s, spread = float(pace.get("compute_s", 0.0)), float(pace.get("spread", 0.0))
    if not spread:
        return median_s
    draw = np.random.default_rng([seed, 8, rank, round_number]).standard_normal()
    return median_s * math.exp(spread * draw)


def wait_until_computed(
    pace: dict[str, Any],
    began_s: float,
    lasts_s: float,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Sleep until an iteration has taken its time; returns by how many seconds it took longer."""
    late_s = now_s() - (began_s + lasts_s)
    if pace["kind"] == "real":
        return 0.0
    if late_s < 0:
        sleep(-late_s)
    return max(0.0, late_s)
