"""One end's part of one bucket, in one step: its two legs, and what became of the ranks in it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.ddp.lateness import Patient
from testbed.transport import Handle, TransferReport
from testbed.transport.policies.tolerance import StopRuleFactory


@dataclass
class Posted:
    """One leg: a transfer with each of several peers.

    Attributes:
        awaited: those that the part needs.
        behind: those to peers that are late, which it does not wait for.
    """

    awaited: list[Handle]
    behind: list[Handle] = field(default_factory=list)

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
class Part:
    """One end's part of one bucket, in one step.

    Attributes:
        number: counts the parts of this end; so the rounds of its endpoint.
        owner: the rank that averages it.
        payload: this rank's gradient, a buffer of the part's layout.
        tolerance: of the first leg, where this side receives it.
        turned: called in the end's thread when the first leg is over.
        done: called in the end's thread once the mean stands in its place.
        rules: by rank, for the first leg at its receiver.
        legs: those that have begun: the gradients, the mean.
        late, lost: ranks of which not enough came in time, and ranks that are gone, as the owner
            knows them.
    """

    number: int
    owner: int
    payload: NDArray[np.uint8]
    tolerance: float | StopRuleFactory
    turned: Callable[[], None]
    done: Callable[["Part"], None]
    rules: dict[int, Patient] = field(default_factory=dict)
    legs: list[Posted] = field(default_factory=list)
    late: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
