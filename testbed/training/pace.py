"""The pace of iterations: the time that this machine needs, or a time that the experiment gives.

A laptop computes slower than the paper's GPUs, and its emulated links are slower than theirs. Only
the ratio of computing to communicating carries over. `paced` sets it: every worker waits until its
iteration has taken the given time.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.shared.named_sections import OneOf
from testbed.shared.registry import Registry
from testbed.shared.section import Section


class RealPace(Section):
    """Iterations take what the machine needs."""

    kind: Literal["real"] = "real"


class PacedIterations(Section):
    """Every iteration computes for `compute_s`; a slower machine overruns, which is reported."""

    kind: Literal["paced"]
    compute_s: float = Field(gt=0, le=3600, description="computing time of each iteration")


class PayloadOnly(Section):
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
        # Without it, runs have the keys that they had before there was this key.
        exclude_if=lambda value: value is None,
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
    "pace", {"real": RealPace, "paced": PacedIterations, "payload-only": PayloadOnly}, own=None
)
AnyPace = Annotated[
    RealPace | PacedIterations | PayloadOnly,
    OneOf(PACES, key="kind", base=Section, by_name=True),
]


def wait_until_computed(
    pace: dict[str, Any],
    began_s: float,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Sleep until the iteration that began at `began_s` has taken its time.

    Args:
        pace: the pace section as in `config.json`.
        began_s: on the clock that `now_s` reads.
        now_s, sleep: of this machine unless others are given.

    Returns:
        By how many seconds computing exceeded its time; 0 where no time is given.
    """
    ends_s = began_s + float(pace.get("compute_s", 0.0))
    late_s = now_s() - ends_s
    if pace["kind"] == "real":
        return 0.0
    if late_s < 0:
        sleep(-late_s)
    return max(0.0, late_s)
