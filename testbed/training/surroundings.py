"""Where training happens: its clock, its endpoints, and how workers reach the server's barriers."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from testbed.training import coordination
from testbed.transport import Endpoint, EndpointConfig, open_endpoint
from testbed.transport.net.carriers import DataSockets


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """A clock and what is joined through it; `THIS_MACHINE` or a simulation's."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    open_endpoint: Callable[[EndpointConfig, DataSockets | None], Endpoint] = open_endpoint
    connect: coordination.Connect = coordination.connect
    contents: bool = True  # whether payloads are computed with; else all buffers may be one
    learner: Callable[[Callable[[], Any]], Any] = lambda make: make()


THIS_MACHINE = Surroundings()
