"""Compares what hosts with a share of the processors used with that share: a gate of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from testbed.lab.kernel import cgroups
from testbed.lab.network import HostInfo
from testbed.verdict.gate import Gate, compared, not_applicable, not_measured, worst


@dataclass(frozen=True, kw_only=True)
class ShareUse:
    """Processor time that a host used while the run trained.

    Attributes:
        cpu: the processors that it might use.
        used: those that it used, in the mean; None: its account could not be read.
        used_s: the processor time itself.
    """

    cpu: float
    used: float | None
    used_s: float | None

    def as_json(self) -> dict[str, float | None]:
        """An entry of `host_cpu` in `conservation.json`."""
        return asdict(self)


class ShareWatch:
    """Reads the accounts of hosts that have a share, now and at the end."""

    def __init__(self, hosts: Mapping[str, HostInfo]) -> None:
        self._hosts = {name: each for name, each in hosts.items() if each.cpu is not None}
        self._before, self._began_s = self._used_s(), time.monotonic()

    def finish(self) -> dict[str, ShareUse]:
        """Each limited host's use since the beginning."""
        after, lasted_s = self._used_s(), time.monotonic() - self._began_s
        found = {}
        for name, host in self._hosts.items():
            first_s, last_s = self._before[name], after[name]
            known = first_s is not None and last_s is not None
            used_s = last_s - first_s if known else None  # type: ignore[operator]
            used = None if used_s is None else used_s / lasted_s
            found[name] = ShareUse(cpu=host.cpu or 0.0, used=used, used_s=used_s)
        return found

    def _used_s(self) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for name, host in self._hosts.items():
            try:
                found[name] = cgroups.used_s(host.groups)
            except OSError:
                found[name] = None
        return found


def gates(uses: Mapping[str, ShareUse], limits: Mapping[str, Any]) -> list[Gate]:
    """The host that exceeded its share most."""
    name, key = "processor time of a host beyond its share", "host_cpu"
    if not uses:
        return [not_applicable(name, key, limits[key], "no host has a share of the processors")]
    unread = [host for host, use in uses.items() if use.used is None]
    if unread:
        return [not_measured(name, key, limits[key], f"no account of {', '.join(unread)}")]
    found = [
        (max(0.0, (use.used or 0.0) / use.cpu - 1), f"{host}: {use.used:.3f} of {use.cpu:g}")
        for host, use in uses.items()
    ]
    value, where = worst(found)
    return [compared(name, key, value, limits[key], where=where)]
