"""Implements `LabAccess`, the interface that impairments use, for the controller."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from controllers.framework import eventlet, hub
from controllers.openflow_messages import FORWARDING
from controllers.switches import Switches, SwitchRequests
from testbed.lab.kernel.commands import run
from testbed.lab.link_control import LinkControl
from testbed.lab.network import HostInfo, hosts_from_json

T = TypeVar("T")


class ControllerLabAccess(SwitchRequests):
    """Access to the switches, the lab's description, and ways to wait without blocking."""

    def __init__(
        self, network: Mapping[str, Any], switches: Switches, records: Path, shared: Path
    ) -> None:
        super().__init__(switches, FORWARDING)
        self.network = network
        self.records = records
        self.shared = shared
        self.hosts: Mapping[str, HostInfo] = hosts_from_json(dict(network))
        self.processes: dict[str, int] = {}  # training processes, once the launcher has named them
        self._numbers = itertools.count(1)
        self._links: list[LinkControl] = []  # made on first use, one for all impairments

    def of(self, owner: str) -> ControllerLabAccess:
        """The same access for one impairment, by whose name a switch's refusals are told."""
        own = copy.copy(self)
        own.owner = owner
        return own

    @property
    def links(self) -> LinkControl:
        if not self._links:
            self._links.append(LinkControl(self.network))
        return self._links[0]

    def unique(self) -> int:
        return next(self._numbers)

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        hub.sleep(duration_s)

    def readable(self, descriptor: int, timeout_s: float | None) -> bool:
        try:
            eventlet.hubs.trampoline(
                descriptor, read=True, timeout=timeout_s, timeout_exc=TimeoutError
            )
        except TimeoutError:
            return False
        return True

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        hub.spawn(function, *arguments)

    def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return cast(T, eventlet.tpool.execute(function, *arguments))

    def run(self, argv: Sequence[str], *, timeout_s: float = 20.0) -> str:
        return str(eventlet.tpool.execute(run, argv, timeout_s=timeout_s))
