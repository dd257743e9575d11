"""Reads all counters of a lab at one moment: hosts, queues, sockets, flows, filters, delays."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.lab import datapath
from testbed.lab.delay import link_report
from testbed.lab.kernel import link_counters
from testbed.lab.kernel.link_counters import NamespaceCounters
from testbed.lab.kernel.namespaces import entered
from testbed.lab.kernel.packet_filter import DropCounter
from testbed.lab.network import LabInfo, LinkEnds
from testbed.verdict import switch_counters
from testbed.verdict.switch_counters import PortSockets, SwitchCounters

_QUIET_S = 0.02
_PATIENCE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Counters:
    """One reading. Namespaces by process id (None: the switches'), sockets by interface.

    The kernel's datapath has no sockets at its ports; `lost_upcalls` are packets that it could not
    hand to the daemon, which the userspace one does not do.
    `filter_drops` are packets dropped on purpose at hosts' interfaces, by host. `delayed` has, for
    each direction (link, sender) that something delays in the middle, what it dropped and lost.
    `whole_batches`: a full queue refuses single packets of Open vSwitch, not the rest of a batch.
    """

    at_s: float
    quiet: bool
    namespaces: dict[int | None, NamespaceCounters]
    sockets: dict[str, tuple[int, int]]
    switches: dict[str, SwitchCounters]
    filter_drops: dict[str, int]
    delayed: dict[tuple[str, str], tuple[int, int]]
    whole_batches: bool
    lost_upcalls: int = 0


class CounterReader:
    """Reads the counters of one lab.

    Args:
        network: the lab.
        switch_pid: of ovs-vswitchd, whose sockets are asked for their drops.
    """

    def __init__(self, network: LabInfo, switch_pid: int) -> None:
        self._network = network
        self._pids: list[int | None] = [None, *(host.pid for host in network.hosts.values())]
        self._filters = {name: DropCounter(host.pid) for name, host in network.hosts.items()}
        for pid in self._pids:
            _silence_ipv6(pid)
        in_kernel = network.datapath == "kernel"
        self._sockets = None if in_kernel else PortSockets(switch_pid)

    def read(self, changed_s: float = 0.0, *, last: bool = False) -> Counters:
        """Wait until no packet moves, for some seconds at most, then read all counters.

        They lie in different places and are read one after another. If a packet moved meanwhile,
        some have it and others have not, so all are read again.

        Args:
            changed_s: how long a frame is on its way at most since links were changed by hand.
            last: nothing is to be forwarded fast any more, so that this need not take its time.

        Raises:
            CommandError: a program that is asked does not answer.
            OSError: a namespace is gone.
        """
        # Frames in flight on a delayed link are in no counter until they arrive.
        longest_s = max(changed_s, *map(_longest_s, self._network.links), 0.0)
        deadline_s = time.monotonic() + _PATIENCE_S + 4 * longest_s
        while True:
            namespaces, quiet = self._when_quiet(deadline_s, _QUIET_S + 2 * longest_s)
            found = self._all(namespaces, quiet, last=last)
            if not quiet or _moved(namespaces) == _moved(self._namespaces()):
                return found

    def _all(
        self, namespaces: dict[int | None, NamespaceCounters], quiet: bool, *, last: bool
    ) -> Counters:
        return Counters(
            at_s=time.monotonic(),
            quiet=quiet,
            namespaces=namespaces,
            sockets=self._sockets.read() if self._sockets else {},
            switches=switch_counters.read(self._network.switches, last=last),
            filter_drops={name: each.total() for name, each in self._filters.items()},
            delayed=self._delayed(),
            whole_batches=self._sockets.whole_batches() if self._sockets else True,
            lost_upcalls=0 if self._sockets else datapath.lost_upcalls(),
        )

    def _delayed(self) -> dict[tuple[str, str], tuple[int, int]]:
        if self._network.delayed_by is None:
            return {}
        directions = link_report.document(self._network.as_json())["directions"]
        return {
            (each["link"], each["from"]): (each["dropped"], each["lost"]) for each in directions
        }

    def _when_quiet(
        self, deadline_s: float, quiet_s: float
    ) -> tuple[dict[int | None, NamespaceCounters], bool]:
        """The kernel's counters when they stand still so long, and no queue holds a packet."""
        before = self._namespaces()
        while time.monotonic() < deadline_s:
            time.sleep(quiet_s)
            now = self._namespaces()
            if _moved(before) == _moved(now) and not _waiting(now):
                return now, True
            before = now
        return before, False

    def _namespaces(self) -> dict[int | None, NamespaceCounters]:
        return {pid: link_counters.read(pid) for pid in self._pids}


def _longest_s(link: LinkEnds) -> float:
    """How long a frame is on its way over a link at most, also while an impairment delays it."""
    return max(link.delay_s + link.jitter_s, link.most_delay_s or 0.0)


def _silence_ipv6(pid: int | None) -> None:
    """Switch IPv6 off: nothing here needs it, and its announcements would add packets."""
    with entered(pid):
        for name in ("all", "default"):
            with suppress(OSError):  # a kernel without IPv6
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")


def _moved(namespaces: Mapping[int | None, NamespaceCounters]) -> dict[Any, int]:
    return {
        (pid, name): interface.sent + interface.send_drops
        for pid, counters in namespaces.items()
        for name, interface in counters.interfaces.items()
        if name != "lo"
    }


def _waiting(namespaces: Mapping[int | None, NamespaceCounters]) -> bool:
    return any(
        queue.backlog_packets
        for counters in namespaces.values()
        for queues in counters.queues.values()
        for queue in queues
    )
