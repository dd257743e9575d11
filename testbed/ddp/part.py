"""One end's part of one bucket, in one step: its two legs, and what became of the ranks in it."""

import math
import time
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
class Given:
    """What the training gives to a part.

    Attributes:
        values: this rank's gradient, and then the mean: shape (elements,).
        payload: the same as a buffer of the part's layout: their memory or, padded, another.
        turned: called in the end's thread when the first leg is over.
        done: called in the end's thread once the mean stands in its place.
        at_s: when it came to the end.
    """

    values: NDArray[np.float32]
    payload: NDArray[np.uint8]
    turned: Callable[[], None]
    done: Callable[["Part"], None]
    at_s: float = field(default_factory=time.monotonic)


@dataclass
class Part:
    """One end's part of one bucket, in one step.

    Attributes:
        number: counts the parts of this end; so the rounds of its endpoint.
        owner: the rank that averages it.
        tolerance: of the first leg, where this side receives it.
        given: what is this rank's own; None as long as it is late, where others have begun.
        rules: by rank, for the first leg at its receiver.
        began_s: when the owner had the first gradient, from which all others' lateness counts.
        own_until_s: until when it waits for its own.
        legs: those that have begun: the gradients, the mean.
        mean: as the owner has it that did not wait for its own gradient.
        late, lost: ranks of which not enough came in time, and ranks that are gone, as the owner
            knows them.
        waited_s: by rank, how much longer its gradient took than the first, at the owner.
        turned_s: when the first leg was over.
    """

    number: int
    owner: int
    tolerance: float | StopRuleFactory
    given: Given | None = None
    rules: dict[int, Patient] = field(default_factory=dict)
    began_s: float | None = None
    own_until_s: float = math.inf
    legs: list[Posted] = field(default_factory=list)
    mean: NDArray[np.uint8] | None = None
    late: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    waited_s: dict[int, float] = field(default_factory=dict)
    turned_s: float = -math.inf
