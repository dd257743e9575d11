"""Shares out blocks of runs among workers until each has its results.

A block is on one worker at a time. Of a worker that is lost the block goes to another one. A worker
that refuses, since its machine lacks something, is left out. A block with an invalid run is tried
again: as a whole on another worker where there is one, since its arms are compared with each other,
else only what was invalid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from testbed.experiment import Run
from testbed.run.runner import Outcome
from testbed.shared.input_error import InputError

_POLL_S = 0.5
_MOST_LOSSES = 3  # workers that a block may cost


class Workers(Protocol):
    """Machines that execute blocks, each by an address."""

    def there(self) -> set[str]:
        """The workers that there are now."""

    def give(self, worker: str, runs: Sequence[Run]) -> None:
        """Have a free worker execute runs."""

    def take(self, timeout_s: float) -> tuple[str, Mapping[str, Any]] | None:
        """A worker that has ended, and what `worker.execute` returned; None: none has yet."""

    def forget(self, worker: str) -> None:
        """What this worker was given is of no interest any more."""


@dataclass(eq=False)
class _Block:
    """Runs that stay together.

    Attributes:
        left: which of them are to be executed, as long as the block stays on `worker`.
        worker: the one that had it last.
        tried: all that have had it.
        tries: how often an invalid run was tried again.
        losses: how many workers were lost while they had it.
        outcomes: how its runs ended, by their keys.
    """

    runs: list[Run]
    left: list[Run]
    worker: str | None = None
    tried: set[str] = field(default_factory=set)
    tries: int = 0
    losses: int = 0
    outcomes: dict[str, Outcome] = field(default_factory=dict)


def share_out(
    blocks: Sequence[Sequence[Run]],
    workers: Workers,
    *,
    retries: int,
    accept: Callable[[Sequence[Run], Mapping[str, Any]], Sequence[Outcome]],
    end: Callable[[Outcome], None],
    say: Callable[[str], None],
) -> list[Run]:
    """Have workers execute all blocks.

    Args:
        blocks: runs that stay together.
        workers: who executes them; some may come later, and go.
        retries: how often a block with an invalid run is tried again.
        accept: stores the results of some runs, and returns how they ended. Raises ValueError for
            results that cannot be theirs.
        end: is told how a run ended that is not tried again.
        say: tells the user.

    Returns:
        Runs without results, since several workers were lost with them.

    Raises:
        InputError: all workers refuse.
    """
    waiting = deque(_Block(list(each), list(each)) for each in blocks)
    busy: dict[str, _Block] = {}
    refused: dict[str, str] = {}
    given_up: list[Run] = []
    said_so = False

    def lose(worker: str) -> None:
        block = busy.pop(worker)
        workers.forget(worker)
        block.losses += 1
        say(f"worker {worker} was lost; its block is tried elsewhere")
        if block.losses < _MOST_LOSSES:
            waiting.appendleft(block)
        else:
            given_up.extend(block.left)

    def refuse(worker: str, why: str) -> None:
        refused[worker] = why
        say(f"worker {worker} is left out: {why}")

    while waiting or busy:
        there = workers.there()
        for worker in busy.keys() - there:
            lose(worker)
        fit = there - refused.keys()
        if there and not fit and not busy:
            raise InputError(f"no worker can execute this sweep: {next(iter(refused.values()))}")
        if not there and not said_so:
            say("waiting for a worker that was started with --resources lab=1")
        said_so = not there
        for worker in sorted(fit - busy.keys()):
            if (block := _next(waiting, worker, fit)) is None:
                continue
            waiting.remove(block)
            if block.worker not in (None, worker):
                block.left = block.runs
            block.worker = worker
            block.tried.add(worker)
            busy[worker] = block
            workers.give(worker, block.left)
        if (ended := workers.take(_POLL_S)) is None:
            continue
        worker, result = ended
        if (block := busy.pop(worker, None)) is None:
            continue
        if "refused" in result:
            refuse(worker, result["refused"])
            waiting.appendleft(block)
            continue
        try:
            found = accept(block.left, result)
        except ValueError as error:
            refuse(worker, f"sent other results than asked for: {error}")
            waiting.appendleft(block)
            continue
        block.outcomes |= {each.run.key: each for each in found}
        again = [each for each in block.outcomes.values() if each.may_differ]
        if again and block.tries < retries:
            block.tries += 1
            block.left = [each.run for each in again]
            waiting.append(block)
            for each in again:
                retry = f"retry {block.tries} of {retries}"
                say(f"{each.run.label} on {result['host']}: {each.verdict}: {each.reason}; {retry}")
            continue
        for each in block.outcomes.values():
            end(each)
    return given_up


def _next(waiting: Sequence[_Block] | deque[_Block], worker: str, fit: set[str]) -> _Block | None:
    """The first block that this worker has not tried, or that no other one is left for."""
    for block in waiting:
        if worker not in block.tried or fit <= block.tried:
            return block
    return None
