"""Models of random packet loss, and what all that drops packets at random has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
        """The long-run share of packets that meet the bad state."""
        total = self.p_good_to_bad + self.p_bad_to_good
        return self.p_good_to_bad / total if total else 0.0

    @property
    def mean_loss(self) -> float:
        """The long-run share of packets that are lost."""
        return self.share_bad * self.loss_bad + (1 - self.share_bad) * self.loss_good

    def expected_losses(self, packets: int) -> float:
        """The mean number of losses among the first packets, which begin in the good state."""
        total = self.p_good_to_bad + self.p_bad_to_good
        missing = self.share_bad * (1 - (1 - total) ** packets) / total if total else 0.0
        return packets * self.mean_loss - missing * (self.loss_bad - self.loss_good)
