"""Models of random packet loss, and which packets count as data: for all that drops packets."""

from __future__ import annotations

from dataclasses import dataclass

# The transport's fixed data ports (its control port lies outside), and the smallest IP packet
# that carries data: a TCP acknowledgement without payload is shorter and is not dropped.
DATA_PORTS = (47000, 47999)
SMALLEST_DATA_PACKET_BYTES = 100


@dataclass(frozen=True, kw_only=True)
class LossModel:
    """A channel of two states that changes, if at all, after each packet (Gilbert-Elliott).

    E. N. Gilbert, "Capacity of a burst-noise channel", BSTJ 39, 1960; E. O. Elliott, "Estimates
    of error rates for codes on burst-noise channels", BSTJ 42, 1963. It begins in the good state;
    with both transition probabilities 0 it is Bernoulli loss of `loss_good`.
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

    @property
    def mean_burst_packets(self) -> float:
        """The mean number of packets lost in a row.

        Every run of losses begins with a lost packet after one that was not lost. So the mean is
        the share of lost packets divided by the share of packets that begin a run.
        """
        bad, good = self.share_bad, 1 - self.share_bad
        # A packet that is not lost, in either state; then the state changes; then one is lost.
        after_good = self.p_good_to_bad * self.loss_bad + (1 - self.p_good_to_bad) * self.loss_good
        after_bad = self.p_bad_to_good * self.loss_good + (1 - self.p_bad_to_good) * self.loss_bad
        begun = good * (1 - self.loss_good) * after_good + bad * (1 - self.loss_bad) * after_bad
        return self.mean_loss / begun if begun else float("inf") if self.mean_loss else 0.0
