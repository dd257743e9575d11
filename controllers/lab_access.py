"""What the controller offers to impairments: `LabAccess`, on the switches and this machine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from controllers.framework import eventlet, hub
from controllers.switches import Switches
from testbed.lab.kernel.commands import run
from testbed.lab.link_control import LinkControl
from testbed.lab.network import HostInfo, hosts_from_json

T = TypeVar("T")


class ControllerLabAccess(Switches):
    """The switches, with the lab's description and ways to wait without blocking."""

    def __init__(self, network: Mapping[str, Any]) -> None:
        super().__init__({dpid: name for name, dpid in network["switches"].items()})
        self.network = network
        self.hosts: Mapping[str, HostInfo] = hosts_from_json(dict(network))
        self.processes: dict[str, int] = {}  # training processes, once the launcher has said so
        self._numbers = itertools.count(1)

    @functools.cached_property
    def links(self) -> LinkControl:
        """Rates, queues and delays of links, which it changes while they work."""
        return LinkControl(self.network)

    def unique(self) -> int:
        """A small number that no other impairment of this controller has, from 1."""
        return next(self._numbers)

    def sleep(self, duration_s: float) -> None:
        """Let other green threads run meanwhile."""
        hub.sleep(duration_s)

    def readable(self, descriptor: int, timeout_s: float) -> bool:
        """Return once a file descriptor can be read; False when that takes too long."""
        try:
            eventlet.hubs.trampoline(
                descriptor, read=True, timeout=timeout_s, timeout_exc=TimeoutError
            )
        except TimeoutError:
            return False
        return True

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in a green thread; an exception there ends the controller."""
        hub.spawn(function, *arguments)

    def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that blocks in a thread of the operating system."""
        result: T = eventlet.tpool.execute(function, *arguments)
        return result

    def run(self, argv: Sequence[str], *, timeout_s: float = 20.0) -> str:
        """Run a program to its end in a thread; return its standard output."""
        return str(eventlet.tpool.execute(run, argv, timeout_s=timeout_s))
