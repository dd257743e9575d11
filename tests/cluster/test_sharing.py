"""Who gets which block, and what is tried again where."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster.sharing import share_out
from testbed.run.runner import Outcome
from testbed.shared.input_error import InputError


@dataclass(frozen=True)
class Run:
    """As much of a run as the loop looks at."""

    key: str

    @property
    def label(self) -> str:
        return self.key


class Machines:
    """Workers that end at once, in the order in which they were given something.

    `does` says what becomes of a run on a worker: a verdict, or what is no result of it.
    """

    def __init__(self, there: Sequence[str], does: Mapping[tuple[str, str], Any]) -> None:
        self.names, self.does = set(there), dict(does)
        self.given: list[tuple[str, tuple[str, ...]]] = []
        self.forgotten: list[str] = []
        self._busy: deque[tuple[str, Sequence[Run]]] = deque()

    def there(self) -> set[str]:
        return set(self.names)

    def give(self, worker: str, runs: Sequence[Any]) -> None:
        assert worker not in [name for name, _ in self._busy]  # one lab at a time
        self.given.append((worker, tuple(run.key for run in runs)))
        self._busy.append((worker, runs))

    def take(self, timeout_s: float) -> tuple[str, Mapping[str, Any]] | None:
        if not self._busy:
            return None
        worker, runs = self._busy.popleft()
        found = {run.key: self.does.get((worker, run.key), "ok") for run in runs}
        if "dies" in found.values():
            self.names.discard(worker)
            return None
        refused = [each for each in found.values() if each.startswith("lacks")]
        if refused:
            return worker, {"refused": refused[0]}
        return worker, {"host": worker, "verdicts": found}

    def forget(self, worker: str) -> None:
        self.forgotten.append(worker)


class Late(Machines):
    """Has its first worker only when it was asked for results."""

    def take(self, timeout_s: float) -> tuple[str, Mapping[str, Any]] | None:
        self.names.add("A")
        return super().take(timeout_s)


def shared(machines: Machines, *blocks: str, retries: int = 2) -> tuple[Any, ...]:
    """Share out blocks, each a text of runs' names; what ended how, what was given up and said."""
    done: dict[str, str] = {}
    said: list[str] = []

    def accept(runs: Sequence[Any], result: Mapping[str, Any]) -> list[Outcome]:
        if "nonsense" in result["verdicts"].values():
            raise ValueError("a folder is missing")
        return [
            Outcome(
                run,
                Path(),
                result["verdicts"][run.key],
                "",
                executed=True,
                may_differ=result["verdicts"][run.key] == "invalid",
            )
            for run in runs
        ]

    def end(outcome: Any) -> None:
        assert outcome.run.key not in done  # none twice
        done[outcome.run.key] = outcome.verdict

    runs: list[Any] = [[Run(key) for key in block] for block in blocks]
    left = share_out(runs, machines, retries=retries, accept=accept, end=end, say=said.append)
    return done, [run.key for run in left], said


def test_blocks_stay_together_and_all_workers_have_some():
    machines = Machines("AB", {})
    done, left, said = shared(machines, "ab", "cd", "ef")
    assert done == dict.fromkeys("abcdef", "ok")
    assert (left, said) == ([], [])
    assert machines.given[:2] == [("A", ("a", "b")), ("B", ("c", "d"))]
    assert machines.given[2][1] == ("e", "f")


def test_the_block_of_a_lost_worker_is_tried_elsewhere_as_a_whole():
    machines = Machines("AB", {("A", "b"): "dies"})
    done, _, said = shared(machines, "ab", "cd")
    assert done == dict.fromkeys("abcd", "ok")
    assert machines.forgotten == ["A"]
    assert ("B", ("a", "b")) in machines.given
    assert said == ["worker A was lost; its block is tried elsewhere"]


def test_a_block_that_costs_workers_is_given_up_and_the_others_are_done():
    deadly = {(name, "b"): "dies" for name in "ABCD"}
    done, left, _ = shared(Machines("ABCD", deadly), "ab", "cd")
    assert left == ["a", "b"]
    assert done == {"c": "ok", "d": "ok"}


def test_an_invalid_run_takes_its_block_to_another_worker():
    machines = Machines("AB", {("A", "b"): "invalid"})
    done, _, said = shared(machines, "ab")
    assert machines.given == [("A", ("a", "b")), ("B", ("a", "b"))]
    assert done == {"a": "ok", "b": "ok"}
    assert said == ["b on A: invalid: ; retry 1 of 2"]


def test_where_there_is_one_worker_only_what_is_invalid_is_repeated():
    machines = Machines("A", {("A", "b"): "invalid"})
    done, _, _ = shared(machines, "ab", "cd")
    assert machines.given.count(("A", ("b",))) == 2
    assert machines.given.count(("A", ("a", "b"))) == 1
    assert done == {"a": "ok", "b": "invalid", "c": "ok", "d": "ok"}


def test_retries_are_as_many_as_asked_for():
    machines = Machines("A", {("A", "a"): "invalid"})
    shared(machines, "a", retries=0)
    assert len(machines.given) == 1


def test_a_worker_that_lacks_something_is_left_out_and_said_once():
    machines = Machines("AB", {("A", key): "lacks torch" for key in "abcd"})
    done, _, said = shared(machines, "a", "b", "c", "d")
    assert done == dict.fromkeys("abcd", "ok")
    assert [name for name, _ in machines.given].count("A") == 1
    assert said == ["worker A is left out: lacks torch"]


def test_a_worker_that_sends_something_else_is_left_out():
    machines = Machines("AB", {("A", "a"): "nonsense"})
    done, _, said = shared(machines, "a", "b")
    assert done == dict.fromkeys("ab", "ok")
    assert said == ["worker A is left out: sent other results than asked for: a folder is missing"]


def test_where_all_workers_refuse_it_is_one_line():
    machines = Machines("AB", {(name, key): "lacks torch" for name in "AB" for key in "ab"})
    with pytest.raises(InputError, match=r"no worker can execute this sweep: lacks torch"):
        shared(machines, "a", "b")


def test_without_a_worker_one_is_waited_for():
    machines = Late("", {})
    done, _, said = shared(machines, "a", "b")
    assert done == dict.fromkeys("ab", "ok")
    assert said == ["waiting for a worker that was started with --resources lab=1"]
