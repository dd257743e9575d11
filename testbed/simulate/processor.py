"""A host's processor in virtual time: what its connections do takes time, one after another."""

from collections.abc import Callable
from dataclasses import dataclass

from testbed.simulate.engine import Simulation


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a host needs, in seconds of its processor."""

    sent_s: float = 0.0  # for each datagram
    received_s: float = 0.0
    batch_s: float = 0.0  # for each batch that is sent or received, beside what its datagrams cost


class Processor:
    """One processor, for all connections of a host."""

    def __init__(self, simulation: Simulation, costs: Costs) -> None:
        self.costs = costs
        self.free_s = simulation.now_s  # when all is done that has been asked for
        self._simulation = simulation
        self._waiting: list[Callable[[], None]] = []
        self._worked_s = -1.0  # the latest time at which anything was asked for

    def spend(self, *, sent: int = 0, received: int = 0) -> None:
        """Works on a batch, once all else is done."""
        costs, now_s = self.costs, self._simulation.now_s
        duration_s = costs.batch_s + sent * costs.sent_s + received * costs.received_s
        if self.free_s <= now_s:
            self._simulation.at(now_s, self._next)
        self.free_s = max(self.free_s, now_s) + duration_s
        self._worked_s = now_s

    def keeps_waiting(self, wake: Callable[[], None]) -> bool:
        """Whether whoever asks has to wait; it is woken then, after those who came before it."""
        # What is asked for at the same time belongs together: to look, to answer and to send.
        if self.free_s <= self._simulation.now_s or self._worked_s == self._simulation.now_s:
            return False
        if wake not in self._waiting:
            self._waiting.append(wake)
        return True

    def _next(self) -> None:
        now_s = self._simulation.now_s
        while self._waiting and self.free_s <= now_s:
            self._waiting.pop(0)()
        if self.free_s > now_s:
            self._simulation.at(self.free_s, self._next)
