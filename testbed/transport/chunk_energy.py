"""The energy of chunks, as a level of one byte each, and the tolerance that bounds its loss.

`MUST`, the highest bit, marks a chunk that must arrive in any case. The rest is the energy, the sum
of squares, in sixths of a power of two below the payload's largest, which is 127; 1 is all that is
less, 0 nothing. So sums are known between bounds that are at most a factor of 1.13 apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.errors import ProtocolError, check_number
from testbed.transport.layout import PayloadLayout
from testbed.transport.tolerance import (
    ALIKE,
    CALM,
    NamedPolicy,
    Progress,
    StopRule,
    StopRuleFactory,
)

MUST = 128
_LARGEST = MUST - 1
_STEPS = 6  # to a power of two
_ROUNDING = 1e-5  # of sums in single precision
_BLOCK = 1 << 18  # elements that are squared at a time: they stay in a cache
# Below, squares in single precision lose digits.
_LEAST = 1e-30


def _bounds() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    most = 2.0 ** ((np.arange(MUST) - _LARGEST) / _STEPS)
    least = np.roll(most, 1) * (1 - _ROUNDING)
    most[0] = least[0] = least[1] = 0.0
    return np.tile(least, 2), np.tile(most, 2)


# By byte: the energy in parts of the payload's largest, at the least and at the most.
LEAST, MOST = _bounds()


def energies(rows: NDArray[np.uint8], layout: PayloadLayout) -> NDArray[np.float64]:
    """Returns the energy of each chunk, shape (chunk_count,); NaN where an element is NaN."""
    energy = np.empty(len(rows), dtype=np.float64)
    step = max(1, _BLOCK // layout.elements_per_chunk)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for first in range(0, len(rows), step):
            part = layout.chunk_values(rows, slice(first, first + step))
            np.einsum("ij,ij->i", part, part, out=energy[first : first + step], casting="safe")
        unsure = np.flatnonzero(~((energy > _LEAST) & (energy < np.inf)))
        exact = layout.chunk_values(rows, unsure).astype(np.float64)
        energy[unsure] = np.einsum("ij,ij->i", exact, exact)
    return energy


@dataclass(frozen=True)
class Selection:
    """The part `keep` of a payload's chunks, at least one: those with the most energy."""

    keep: float

    def count(self, layout: PayloadLayout) -> int:
        return max(1, math.ceil(self.keep * layout.chunk_count))

    def chosen(
        self,
        layout: PayloadLayout,
        rows: NDArray[np.uint8],
        energy: NDArray[np.float64] | None = None,
    ) -> NDArray[np.bool_]:
        """Returns which chunks, shape (chunk_count,): what is no number first, then by energy.

        `energy`: the result of `energies`, where it is there.
        """
        if self.keep == 1:
            return np.ones(layout.chunk_count, dtype=np.bool_)
        energy = energies(rows, layout) if energy is None else energy
        energy = np.where(np.isfinite(energy), energy, np.inf)
        chosen = np.zeros(layout.chunk_count, dtype=np.bool_)
        chosen[np.argsort(-energy, kind="stable")[: self.count(layout)]] = True
        return chosen


def by_tensor(
    energy: NDArray[np.float64], rows: NDArray[np.uint8], layout: PayloadLayout
) -> NDArray[np.float64]:
    """Returns the energy of each chunk in parts of its tensors' mean energy per element."""
    pieces = layout.pieces
    first = np.flatnonzero(np.diff(pieces.chunk, prepend=-1))
    several = np.diff(first, append=len(pieces.chunk))[pieces.chunk] > 1
    sums = energy[pieces.chunk]
    mixed = pieces.chunk[several]
    if len(mixed):
        chunks, place = np.unique(mixed, return_inverse=True)
        squares = np.square(layout.chunk_values(rows, chunks), dtype=np.float64)
        ends = np.cumsum(pieces.elements)
        starts = (ends - pieces.elements)[several] - mixed * layout.elements_per_chunk
        sums[several] = np.add.reduceat(squares.reshape(-1), place * squares.shape[1] + starts)
    sound = np.where(np.isfinite(sums), sums, 0.0)
    mean = np.bincount(pieces.tensor, sound) / np.maximum(
        np.bincount(pieces.tensor, pieces.elements), 1
    )
    mean[mean == 0] = 1.0
    parts: NDArray[np.float64] = sums / mean[pieces.tensor]
    return np.bincount(pieces.chunk, parts, minlength=len(energy)).astype(np.float64)


def encode(energy: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Returns the levels of energies; only those that are no finite numbers are MUST."""
    levels = np.zeros(len(energy), dtype=np.uint8)
    some = np.isfinite(energy) & (energy > 0)
    if some.any():
        parts = np.maximum(energy[some] / energy[some].max(), 1e-300)
        # A little more than nothing: rounding must not put one above its bound.
        steps = np.ceil(_LARGEST + _STEPS * np.log2(parts) - 1e-9)
        levels[some] = np.clip(steps, 1, _LARGEST)
    levels[~np.isfinite(energy)] = MUST
    return levels


def decode(body: bytes, *, chunk_count: int, repeated: bool) -> NDArray[np.uint8]:
    """Returns the levels of an ENERGY message, shape (chunk_count,); a transfer has only one."""
    if repeated or len(body) != chunk_count:
        raise ProtocolError(
            f"ENERGY with a body of {len(body)} bytes; valid: {chunk_count}, once a transfer"
        )
    return np.frombuffer(body, dtype=np.uint8)


def by_level(levels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Returns the chunks' numbers: what must arrive, then the most energy, equal ones ascending."""
    return np.argsort(~levels, kind="stable")


def needed_chunks(
    levels: NDArray[np.uint8], share: float, at_most: float = 1.0, *, sent: int | None = None
) -> tuple[int, float]:
    """Returns how many chunks, in the order `by_level`, suffice, and the share that they hold.

    `sent` of them are sent at all, and `at_most` is of these; None: all.
    """
    first = by_level(levels)
    got = np.cumsum(LEAST[levels][first])
    lost = np.append(MOST[levels][first][::-1].cumsum()[::-1][1:], 0.0)
    fewest = int(np.argmax(lost * share <= got * (1 - share))) + 1
    must = int(np.count_nonzero(levels >= MUST))
    most = max(must, math.ceil(at_most * (len(levels) if sent is None else sent)))
    if fewest <= most:
        return max(fewest, must), share
    held, missing = got[most - 1], lost[most - 1]
    # A little less: whoever sums in another order must find that they hold it.
    return most, float(held / (held + missing)) * (1 - _ROUNDING)


@dataclass(frozen=True, kw_only=True)
class BoundedEnergy(NamedPolicy):
    """A bound on the energy, the sum of squares, that may be missing: ours.

    It stops at a share of the energy or a part of the chunks; when late at less, above a floor.
    With error feedback, SGD with any contraction of the payload converges at the rate of SGD
    without loss (Stich, Cordonnier and Jaggi, NeurIPS 2018; Karimireddy et al., ICML 2019). It
    needs an order that sends the energy of chunks and which must arrive, such as `by-energy`.

    Args:
        share: the share of the energy at which a transfer ends that is not late; above 0.
        patience: a transfer is late after so many times what calm ones took recently from the
            slowest peer, counted from its first sign; at least 1.
        at_most: the share of the chunks that suffices where they are the most energetic ones or
            hold as much; above 0, up to 1.
        floor: the share of the energy with which a late transfer ends, where what must arrive
            without energy is there; above 0, up to 1. None: with what must arrive.
    """

    name = "bounded-energy"
    newer = ("at_most",)
    share: float = 0.95
    patience: float = 1.2
    at_most: float = 1.0
    floor: float | None = None
    needs_energy = True

    def __post_init__(self) -> None:
        for option in ("share", "at_most", "floor"):
            if option != "floor" or self.floor is not None:
                check_number(option, getattr(self, option), above=0, most=1)
        check_number("patience", self.patience, least=1)

    def tolerance(self, critical: bool) -> float:
        """Returns the part of the energy that may be missing; of the chunks it may be more."""
        return 1 - self.share

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: EnergyRule(policy=self)


class EnergyRule(StopRule):
    """Stops once all that must arrive is there, with the share; a late transfer needs less."""

    needs_slowest = True

    def __init__(self, *, policy: BoundedEnergy) -> None:
        self._policy = policy
        self._late_s = math.inf
        self._has_read = False

    def satisfied(self, progress: Progress) -> bool:
        if not self._has_levels(progress) or self.missing(progress) > 0:
            return False
        return self._is_late(progress) or self._holds(progress, self._share)

    def deadline_s(self, progress: Progress) -> float | None:
        late_s = self._late_from(progress)
        # Afterwards only a new chunk can change the answer.
        return late_s if progress.now_s < late_s < math.inf else None

    def missing(self, progress: Progress) -> int:
        if not self._has_levels(progress):
            return progress.expected_count - progress.received_count
        if not self._is_late(progress):
            lacking = self._lacking(progress, self._needed)
            return max(lacking, self._fewest - progress.received_count)
        if (floor := self._policy.floor) is None:
            return self._lacking(progress, self._needed)
        return self._lacking(progress, self._in_any_case) or int(not self._holds(progress, floor))

    def _is_late(self, progress: Progress) -> bool:
        return progress.now_s >= self._late_from(progress)

    def _late_from(self, progress: Progress) -> float:
        """Returns from when on the transfer is late; math.inf while that is unknown."""
        first_s = progress.first_sign_s
        if self._late_s == math.inf and first_s is not None and self._has_levels(progress):
            calm_s = self._calm_time_s(progress.slowest)
            self._late_s = first_s + self._policy.patience * calm_s
        return self._late_s

    def _calm_time_s(self, slowest: Sequence[tuple[float, int]]) -> float:
        """Returns the time of calm transfers that needed about as many chunks."""
        fewest = self._fewest
        alike_s = sorted(
            took_s * max(1.0, fewest / count)
            for took_s, count in slowest
            if fewest <= ALIKE * count and count <= ALIKE * fewest
        )
        return alike_s[int(len(alike_s) * CALM)] if alike_s else math.inf

    def _lacking(self, progress: Progress, chunks: NDArray[np.int64]) -> int:
        return len(chunks) - int(np.count_nonzero(progress.received[chunks]))

    def _holds(self, progress: Progress, share: float) -> bool:
        got = float(np.add.reduce(self._least, where=progress.received))
        lost = float(np.add.reduce(self._most, where=~progress.received))
        return lost * share <= got * (1 - share)

    def _has_levels(self, progress: Progress) -> bool:
        """Returns whether the sender has sent the energy levels; reads them once."""
        if self._has_read or progress.energy_levels is None:
            return self._has_read
        levels, policy = progress.energy_levels, self._policy
        self._least, self._most = LEAST[levels], MOST[levels]
        self._needed = np.flatnonzero(levels & MUST)  # what must arrive
        self._in_any_case = np.flatnonzero(levels == MUST)  # of a late transfer, too
        # The chunks that can hold the share, which is less where fewer chunks suffice.
        self._fewest, self._share = needed_chunks(
            levels, policy.share, policy.at_most, sent=progress.expected_count
        )
        self._has_read = True
        return True
