"""One end's part of one bucket, in one step: its two legs, and what became of the ranks in it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.ddp.lateness import Patient
from testbed.transport import Handle, TransferReport
from testbed.transport.core.tolerance import StopRuleFactory


@dataclass
class Posted:
    """One leg: a transfer with each of several peers."""

    awaited: list[Handle]  # those that the part needs
    behind: list[Handle] = field(default_factory=list)  # to late peers: it does not wait for them

    @property
    def done(self) -> bool:
        """Whether the part may go on."""
        return all(each.done for each in self.awaited)

    @property
    def over(self) -> bool:
        """Whether all have ended, so that the memory is free."""
        return self.done and all(each.done for each in self.behind)

    @property
    def reports(self) -> dict[str, TransferReport]:
        """By peer, of those that have ended well."""
        all_ = (*self.awaited, *self.behind)
        return {peer: report for each in all_ for peer, report in each.reports.items()}

    @property
    def failed(self) -> dict[str, str]:
        """Peers that were lost, each with the reason."""
        all_ = (*self.awaited, *self.behind)
        return {peer: why for each in all_ for peer, why in each.failed.items()}


@dataclass
class Given:
    """What the training gives to a part; the callbacks run in the end's thread."""

    values: NDArray[np.float32]  # this rank's gradient, and then the mean
    payload: NDArray[np.uint8]  # the same in the part's layout: their memory or, padded, another
    turned: Callable[[], None]  # the first leg is over
    done: Callable[["Part"], None]  # the mean stands in its place
    at_s: float = field(default_factory=time.monotonic)


@dataclass
class Part:
    """One end's part of one bucket, in one step; what only the owner knows begins with `rules`."""

    number: int  # counts the parts of this end; so the rounds of its endpoint
    owner: int  # the rank that averages it
    tolerance: float | StopRuleFactory  # of the first leg, where this side receives it
    given: Given | None = None  # None as long as this rank is late, where others have begun
    legs: list[Posted] = field(default_factory=list)  # the gradients, the mean
    turned_s: float = -math.inf  # when the first leg was over
    rules: dict[int, Patient] = field(default_factory=dict)  # by rank, for the first leg
    began_s: float | None = None  # the first gradient was there: lateness counts from here
    own_until_s: float = math.inf  # until then it waits for its own gradient
    mean: NDArray[np.uint8] | None = None  # where it did not wait for its own gradient
    late: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    waited_s: dict[int, float] = field(default_factory=dict)  # by rank, after the first gradient
