"""What one of the training's hosts does, in a process or thread of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from testbed.lab.kernel import namespaces, privileges
from testbed.transport.net.data_sockets import DataSockets


@dataclass(frozen=True, kw_only=True)
class HostTask:
    """The task of a host.

    Attributes:
        host_pid: a process or thread in the host's network namespace.
        open_sockets: opens what needs root's powers, and runs nothing of the user's own.
        run: is given these sockets, and runs without root's powers.
    """

    host_pid: int
    open_sockets: Callable[[], DataSockets]
    run: Callable[[DataSockets], None]

    def prepare(self) -> Callable[[], None]:
        """Settle the calling thread in the host, without root's powers; returns what is to run."""
        namespaces.enter(self.host_pid)
        sockets = self.open_sockets()
        privileges.give_up()
        return functools.partial(self.run, sockets)
