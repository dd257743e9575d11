"""Counters that lie in different places are read at a moment at which none of them moves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.lab.kernel.link_counters import Interface, NamespaceCounters
from testbed.verdict import counters
from testbed.verdict.counters import CounterReader


class Scripted(CounterReader):
    """Sees one interface, which has sent so many packets at each look."""

    def __init__(self, sent: Iterable[int], *links: Any) -> None:
        self._network: Any = SimpleNamespace(links=links)
        self._sent = iter(sent)
        self.readings = 0

    def _namespaces(self) -> dict[int | None, NamespaceCounters]:
        zeros = dict.fromkeys(Interface.__dataclass_fields__, 0)
        interface = Interface(**zeros | {"sent": next(self._sent)})
        return {None: NamespaceCounters(interfaces={"s1-eth1": interface})}

    def _all(
        self, namespaces: dict[int | None, NamespaceCounters], quiet: bool, *, last: bool
    ) -> Any:
        self.readings += 1
        sent = namespaces[None].interfaces["s1-eth1"].sent
        return SimpleNamespace(sent=sent, quiet=quiet)


def test_what_moves_while_counters_are_read_is_read_again():
    # Two looks until it is quiet, one after the reading: a packet came, so all begins anew.
    reader = Scripted([5, 5, 6, 6, 6, 6])
    found: Any = reader.read()
    assert (found.sent, found.quiet) == (6, True)
    assert reader.readings == 2


def test_what_never_rests_is_said_to_be_moving(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counters, "_PATIENCE_S", 0.1)
    reader = Scripted(itertools.count())
    assert not reader.read().quiet
    assert reader.readings == 1
    pairs = itertools.chain.from_iterable(zip(itertools.count(), itertools.count(), strict=True))
    reader = Scripted(pairs)  # it rests at each two looks, and never while all is read
    assert not reader.read().quiet


@pytest.mark.parametrize("slow_by", ["configuration", "impairment", "hand"])
def test_frames_in_flight_are_waited_for_whoever_delays_them(slow_by):
    """A frame arrives 0.3 s after the first look."""
    delays = {"delay_s": 0.0, "jitter_s": 0.0, "most_delay_s": None}
    if slow_by == "configuration":
        delays |= {"delay_s": 0.2, "jitter_s": 0.1}
    if slow_by == "impairment":
        delays["most_delay_s"] = 0.3
    began_s = time.monotonic()

    def sent():
        while True:
            yield 5 if time.monotonic() - began_s < 0.3 else 6

    reader = Scripted(sent(), SimpleNamespace(**delays))
    found: Any = reader.read(0.3 if slow_by == "hand" else 0.0)
    assert (found.sent, found.quiet) == (6, True)
