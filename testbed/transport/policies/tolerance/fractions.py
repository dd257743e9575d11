"""Tolerances that are fractions: of the chunks, for the run or a phase; or of each tensor."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.tolerance import (
    Progress,
    StopRule,
    StopRuleFactory,
    TolerancePolicy,
    check_tolerance,
)
from testbed.transport.policies.tensor_names import check_glob, layer_of, matching


@dataclass(frozen=True, init=False)
class Fixed(TolerancePolicy):
    """One tolerance for the whole run: MLT's rule in software, the baseline of DBLP's evaluation.

    It gives up the same fraction in every phase; 0 makes the transfer reliable.

    Args:
        tolerance: the fraction of chunks that may be missing.
    """

    # `tolerance` is the method's name; the user's option keeps that word.
    fraction: float

    def __init__(self, tolerance: float) -> None:
        check_tolerance(tolerance)
        object.__setattr__(self, "fraction", float(tolerance))

    def tolerance(self, critical: bool) -> float:
        return self.fraction

    def as_text(self) -> str:
        return f"fixed:tolerance={self.fraction!r}"


@dataclass(frozen=True, kw_only=True)
class Phased(TolerancePolicy):
    """Two tolerances: a low one in critical learning regimes, a high one outside (DBLP).

    It is the schedule of arXiv 2605.01989: P_low while critical, P_low + k otherwise.

    Args:
        low: the tolerance in critical regimes.
        high: the tolerance elsewhere; at least `low`.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_tolerance(self.low, "low")
        check_tolerance(self.high, "high")
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above high, which is {self.high}")

    def tolerance(self, critical: bool) -> float:
        return self.low if critical else self.high

    def as_text(self) -> str:
        return f"phased:low={self.low!r},high={self.high!r}"


@dataclass(frozen=True, init=False)
class PerLayer(TolerancePolicy):
    """Each tensor has a bound on the share of its elements that may be missing: "PLOT-style".

    PLOT's bounds and formulas (IEEE TNSM 2024) are not known to us, so they are options: assumed
    ones, or such as a profile measures. With one bound for all it is MLT's rule (NSDI 2024). A
    chunk of several tensors may be given up only if each of them can spare its part, so the
    strictest bound decides. A chunk that holds all of a small tensor is always delivered.

    Args:
        default: the bound of every tensor without an exception.
        first, last: the bound of the first and of the last layer's tensors (a layer is the part
            of a name before its last dot); None for no exception.
        tensors: bounds by name, `*.bias@0;head.*@0.1` or a mapping of globs to bounds. Where
            several exceptions name a tensor, the strictest applies.
    """

    default: float
    first: float | None
    last: float | None
    tensors: tuple[tuple[str, float], ...]

    def __init__(
        self,
        default: float,
        first: float | None = None,
        last: float | None = None,
        tensors: str | Mapping[str, float] = "",
    ) -> None:
        check_tolerance(default, "default")
        object.__setattr__(self, "default", float(default))
        for option, bound in (("first", first), ("last", last)):
            if bound is not None:
                check_tolerance(bound, option)
            object.__setattr__(self, option, None if bound is None else float(bound))
        object.__setattr__(self, "tensors", _parse_tensors(tensors))

    def tolerance(self, critical: bool) -> float:
        """The largest of the bounds, which is the most that a transfer gives up."""
        exceptions = [bound for bound in (self.first, self.last) if bound is not None]
        return max(self.default, *exceptions, *(bound for _, bound in self.tensors), 0.0)

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: TensorBounds(layout=layout, bounds=self.bounds(layout))

    def bounds(self, layout: PayloadLayout) -> list[float]:
        """The bound of each tensor; ValueError when an exception matches none of them."""
        exceptions: list[list[float]] = [[] for _ in layout.tensors]
        for glob, bound in self.tensors:
            for index in matching(layout, glob, "tensors"):
                exceptions[index].append(bound)
        layers = [layer_of(name) for name, _ in layout.tensors]
        for extreme, limit in ((layers[0], self.first), (layers[-1], self.last)):
            if limit is not None:
                for index, layer in enumerate(layers):
                    exceptions[index] += [limit] if layer == extreme else []
        return [min(several, default=self.default) for several in exceptions]

    def as_text(self) -> str:
        text = f"per-layer:default={self.default!r}"
        for option, bound in (("first", self.first), ("last", self.last)):
            text += "" if bound is None else f",{option}={bound!r}"
        named = ";".join(f"{glob}@{bound!r}" for glob, bound in self.tensors)
        return text + (f",tensors={named}" if named else "")


class TensorBounds(StopRule):
    """Stops once no tensor lacks more elements than its bound allows."""

    def __init__(self, *, layout: PayloadLayout, bounds: list[float]) -> None:
        """`bounds` has one tolerance per tensor of the layout."""
        self._pieces = layout.pieces
        self._elements_per_chunk = layout.elements_per_chunk
        self._allowed: NDArray[np.int64] = np.array(
            [
                int(Fraction(bound).limit_denominator(10**9) * count)
                for (_, count), bound in zip(layout.tensors, bounds, strict=True)
            ]
        )
        # All chunks but the last are full, so at most this many can be spared. Counting per
        # tensor starts only when no more are missing.
        spared = int(self._allowed.sum()) // layout.elements_per_chunk + 1
        self._at_least = max(1, layout.chunk_count - spared)  # chunks before it may be satisfied
        # Of the chunks that were wanted at the latest look, so many had to arrive.
        self._wanted = np.empty(0, dtype=np.int64)
        self._needed = 0

    def satisfied(self, progress: Progress) -> bool:
        if progress.received_count < self._at_least:
            return False
        came = int(np.count_nonzero(progress.received[self._wanted]))
        if came >= self._needed:
            came, self._needed = 0, self._look(progress)
        self._at_least = progress.received_count + self._needed - came
        return not self._needed

    def missing(self, progress: Progress) -> int:
        return self._at_least - progress.received_count

    def _look(self, progress: Progress) -> int:
        """How many of the chunks that are wanted from now on must arrive, at the least."""
        pieces = self._pieces
        lost = ~progress.received[pieces.chunk]
        missing = np.bincount(
            pieces.tensor, weights=pieces.elements * lost, minlength=len(self._allowed)
        )
        excess = np.maximum(missing - self._allowed, 0)
        self._wanted = np.unique(pieces.chunk[lost & (excess > 0)[pieces.tensor]])
        return -(-int(excess.sum()) // self._elements_per_chunk)


def _parse_tensors(tensors: str | Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    if isinstance(tensors, Mapping):
        pairs = list(tensors.items())
    elif isinstance(tensors, str):
        pairs = [_parse_bound(part) for part in tensors.split(";") if part]
    else:
        raise ValueError(f"tensors is {tensors!r}; valid: GLOB@TOLERANCE, joined by ;")
    for glob, bound in pairs:
        check_tolerance(bound, f"tensors: {glob}")
    return tuple((check_glob(glob, "tensors"), float(bound)) for glob, bound in pairs)


def _parse_bound(text: str) -> tuple[str, float]:
    glob, at, bound = text.rpartition("@")
    try:
        return glob, float(bound if at else "no number")
    except ValueError:
        raise ValueError(f"tensors: {text!r} is not of the form GLOB@TOLERANCE") from None
