"""DBLP's rule: critical where the gradient's norm changes strongly."""

from typing import Annotated, Literal

from pydantic import Field

from testbed.training.detector import ETA, EVERY_ROUNDS, Detector, GradientNorm
from testbed.training.phases.base import DetectorParameters


class GradientNormPhases(DetectorParameters):
    """Critical where the norm changes by `eta` or more.

    DBLP, arXiv 2605.01989, takes eta = 0.5 from Accordion. Its text evaluates the rule once per
    epoch, its authors' code every ten rounds: `cadence` is `epoch` or a number of rounds.

    A third party reads the archived code of the evaluation so: it looks every 93 rounds, which is
    an epoch there, and by an off-by-one the first round of each epoch runs at P_high, where all of
    its bursts fall. That is `cadence: 93, first_round_high: true`.
    """

    detector: str = "gradient-norm"
    eta: float = Field(default=ETA, gt=0, description="relative change that is critical")
    cadence: Literal["epoch"] | Annotated[int, Field(ge=1)] = Field(
        default=EVERY_ROUNDS, description="rounds between two looks, or `epoch`"
    )
    first_round_high: bool = Field(
        default=False,
        description="the round of a look, but for round 0, is not critical, whatever was seen "
        "before",
    )

    def create(self, rounds_per_epoch: int) -> Detector:
        every = rounds_per_epoch if self.cadence == "epoch" else self.cadence
        return GradientNorm(
            eta=self.eta, every_rounds=every, first_round_high=self.first_round_high
        )
