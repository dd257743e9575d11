"""Tables of lost packets, drawn with a seed.

The kernel's own random numbers have no seed, so it looks each packet up by its index, counted from
0 since the loss began: two labs with the same seed lose packets of the same indices.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

# Half a megabyte of bits.
MOST_PACKETS = 1 << 22
# The elements of a set that nftables loads in some 0.15 s.
_MOST_LOST = 1 << 16
_GOLDEN = (math.sqrt(5) - 1) / 2
# IP packets up to this size carry no data, such as a TCP acknowledgement without payload. They are
# spared where only data is to be lost.
LARGEST_CONTROL_PACKET_BYTES = 100


class Losses(NamedTuple):
    """Packets that random loss could have hit, and those of them that it took."""

    met: int
    dropped: int


@dataclass(frozen=True, kw_only=True)
class LossModel:
    """A channel of two states that changes, if at all, after each packet (Gilbert-Elliott).

    It begins in the good state. E. N. Gilbert, "Capacity of a burst-noise channel", BSTJ 39, 1960;
    E. O. Elliott, "Estimates of error rates for codes on burst-noise channels", BSTJ 42, 1963.
    """

    loss_good: float = 0.0
    loss_bad: float = 1.0
    p_good_to_bad: float = 0.0
    p_bad_to_good: float = 0.0

    @property
    def share_bad(self) -> float:
        total = self.p_good_to_bad + self.p_bad_to_good
        return self.p_good_to_bad / total if total else 0.0

    @property
    def mean_loss(self) -> float:
        return self.share_bad * self.loss_bad + (1 - self.share_bad) * self.loss_good

    def expected_losses(self, packets: int) -> float:
        """Return the mean number of losses among the first packets of a loss."""
        total = self.p_good_to_bad + self.p_bad_to_good
        missing = self.share_bad * (1 - (1 - total) ** packets) / total if total else 0.0
        return packets * self.mean_loss - missing * (self.loss_bad - self.loss_good)


@dataclass(frozen=True, kw_only=True)
class LossTable:
    """The places of the lost packets, ascending; each occurrence begins at one of its own."""

    lost: Indices
    size: int

    def span(self, occurrence: int) -> tuple[int, int]:
        """Return an occurrence's first place, and after how many packets it begins there again."""
        # Steps of the golden ratio, whatever their number, lie apart as far as they can.
        share = occurrence * _GOLDEN % 1 / 2
        first = int(share * self.size)
        return first, self.size - first

    def losses(self, occurrence: int, packets: int) -> Indices:
        """Return the indices of those that are lost among the first packets of an occurrence."""
        first, period = self.span(occurrence)
        low, high = np.searchsorted(self.lost, (first, first + period))
        once = self.lost[low:high] - first
        begins = period * np.arange(-(-packets // period))
        indices: Indices = (begins[:, None] + once).ravel()
        return indices[: np.searchsorted(indices, packets)]

    def bits(self, occurrence: int) -> tuple[bytes, int]:
        """Return one bit for each packet of an occurrence, lowest first, and their number."""
        _, period = self.span(occurrence)
        which = np.zeros(period, dtype=np.bool_)
        which[self.losses(occurrence, period)] = True
        return np.packbits(which, bitorder="little").tobytes(), period


def drawn(model: LossModel, seed: str) -> LossTable:
    """Draw the table of a random loss; the same text as `seed` gives the same table."""
    # The channel goes through it once: an occurrence begins in the state that it has at its place.
    rarest = max(model.mean_loss, 1 / MOST_PACKETS)
    size = min(MOST_PACKETS, int(_MOST_LOST / rarest))
    random = np.random.default_rng(list(hashlib.sha256(seed.encode()).digest()))
    bad = np.zeros(size, dtype=np.bool_)
    place, is_bad = 0, False
    while place < size and model.p_good_to_bad:
        leaves = model.p_bad_to_good if is_bad else model.p_good_to_bad
        stay = int(min(size, random.geometric(leaves))) if leaves else size
        bad[place : place + stay] = is_bad
        place, is_bad = place + stay, not is_bad
    lost = random.random(size) < np.where(bad, model.loss_bad, model.loss_good)
    return LossTable(lost=np.flatnonzero(lost), size=size)
