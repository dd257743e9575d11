"""One direction between two parties: the links that datagrams pass, and control messages."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link, Spray

Frame = NDArray[np.uint8]  # one datagram, shape (datagram bytes,)


@dataclass
class Way:
    """One direction between two parties; losses do not slow down control messages."""

    links: Sequence[Link]  # what datagrams pass, one after the other; control messages in any case
    control_delay_s: float | None = None  # None: what the links need
    fate: Callable[[Frame], Frame | None] | None = None  # what comes of one, behind the links
    on_change: list[Callable[[], None]] = field(default_factory=list, init=False)  # of links
    paths: Sequence[Sequence[Link]] = ()  # where datagrams are sprayed: all, taken in turn
    sprayed: int = field(default=0, init=False)
    _last_control_s: float = field(default=-math.inf, init=False)

    def spray(self, count: int) -> Spray | None:
        """The paths of the next `count` datagrams, round robin; None where there is only one."""
        if len(self.paths) < 2:
            return None
        takes = (self.sprayed + np.arange(count)) % len(self.paths)
        self.sprayed += count
        common = 0
        while len({id(links[common]) for links in self.paths}) == 1:
            common += 1
        return Spray(paths=self.paths, common=common, takes=takes)

    def say(self, simulation: Simulation, arrive: Callable[[], None]) -> None:
        """Sends a control message now; `arrive` is called when it is there."""
        links = () if self.control_delay_s is not None else tuple(self.links)
        self._pass(simulation, links, arrive)

    def _pass(
        self, simulation: Simulation, links: Sequence[Link], arrive: Callable[[], None]
    ) -> None:
        """It comes to the first of these links now."""
        if len(links) > 1:
            further = functools.partial(self._pass, simulation, links[1:], arrive)
            simulation.at(links[0].out_s(), further)
            return
        out_s = links[0].out_s() if links else simulation.now_s + (self.control_delay_s or 0.0)
        self._last_control_s = max(self._last_control_s, out_s)
        simulation.at(self._last_control_s, arrive)
