"""Where training happens: its clock, its endpoints, and how workers reach the server's barriers."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from testbed.training import coordination
from testbed.transport import Endpoint, EndpointConfig, open_endpoint
from testbed.transport.net.data_sockets import DataSockets


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """A clock and what is joined through it; `THIS_MACHINE` or a simulation's.

    Attributes:
        now_s: the time, in seconds of a clock that only goes forward.
        sleep: waits for so many seconds.
        open_endpoint: joins the peers.
        connect: makes a worker's connection to the barriers.
        contents: whether anybody computes with what payloads hold. Otherwise nobody does, and all
            buffers may be the same one.
        learner: of a worker, for the function that makes it.
    """

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    open_endpoint: Callable[[EndpointConfig, DataSockets | None], Endpoint] = open_endpoint
    connect: coordination.Connect = coordination.connect
    contents: bool = True
    learner: Callable[[Callable[[], Any]], Any] = lambda make: make()


THIS_MACHINE = Surroundings()
