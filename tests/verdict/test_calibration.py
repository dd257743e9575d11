"""Calibration: what a batch of probes that other work delays does to a path's round trip."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.verdict import calibration

BATCH = 20


@pytest.fixture
def trips(monkeypatch) -> Callable[[Iterator[float | None]], list[float | None]]:
    """The round trips of one path through one switch, whose probes take these times."""
    path = SimpleNamespace(rtt_s=0.0, hops=2, probe_loss=0.0, sender=None, receiver=None)
    monkeypatch.setattr(calibration, "_udp", lambda *_: open("/dev/null"))  # noqa: SIM115, PTH123
    monkeypatch.setattr(calibration, "_BETWEEN_BATCHES_S", 0.0)

    def of(times: Iterator[float | None]) -> list[float | None]:
        monkeypatch.setattr(calibration, "_round_trip", lambda *_: next(times))
        chosen: Any = [path]
        return calibration._all_round_trips(chosen)[0]

    return of


def test_a_path_that_answers_in_time_is_asked_once(trips):
    assert trips(itertools.repeat(0.0001)) == [0.0001] * BATCH


def test_a_batch_that_other_work_delayed_does_not_decide(trips):
    found = trips(itertools.chain([0.0006] * BATCH, itertools.repeat(0.0001)))
    assert sorted(found)[len(found) // 2] == 0.0001
    assert found.count(0.0006) == BATCH  # and is not left out


def test_a_path_that_is_slow_stays_slow(trips):
    assert trips(itertools.repeat(0.0006)) == [0.0006] * 4 * BATCH


def test_probes_that_get_lost_are_no_reason_to_ask_again(trips):
    lost = itertools.chain([None] * 5, itertools.repeat(0.0001))
    assert trips(lost).count(None) == 5
