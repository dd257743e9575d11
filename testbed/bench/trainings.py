"""Executes trainings in virtual time on all processors, and keeps those that are done.

"All" are those that this process may use: `taskset` limits them. The records of a study that is
interrupted lie beside its file until it is whole.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console
from rich.progress import track

from testbed.bench import record_file
from testbed.shared.jsonl import JsonLinesWriter

Record = dict[str, Any]
_SCHEMA = 1


class Training(Protocol):
    """A dataclass that says all of one training, and has a name."""

    @property
    def name(self) -> str: ...


AnyTraining = TypeVar("AnyTraining", bound=Training)


def train(
    selected: Sequence[AnyTraining],
    run: Callable[[AnyTraining], Record],
    *,
    json_file: Path | None,
    console: Console,
    order: Callable[[Record], Any],
) -> list[Record]:
    """Train what an interrupted study has not done before; return all records, sorted by `order`.

    With a file they are written there.
    """
    facts = record_file.machine()
    if json_file is None:
        return sorted(_shown(selected, run, console, None), key=order)
    partial = partial_file(json_file)
    done = read(partial, selected)
    if done:
        console.print(f"{len(done)} of {len(selected)} trainings were done before")
    left = [each for each in selected if each.name not in done]
    keeper = Keeper(partial)
    records = sorted([*done.values(), *_shown(left, run, console, keeper)], key=order)
    record_file.write(json_file, records, facts, schema=_SCHEMA)
    keeper.drop()
    console.print(f"records: {json_file}")
    return records


def _shown(
    selected: Sequence[AnyTraining],
    run: Callable[[AnyTraining], Record],
    console: Console,
    keeper: Keeper | None,
) -> Iterator[Record]:
    """The records in the order in which they are done, with a progress bar."""
    shown = track(
        measure(selected, run),
        description="training",
        total=len(selected),
        console=console,
        disable=not console.is_terminal,
    )
    for training, record in shown:
        if keeper is not None:
            keeper.keep(training, record)
        yield record


def measure(
    selected: Sequence[AnyTraining], run: Callable[[AnyTraining], Record]
) -> Iterator[tuple[AnyTraining, Record]]:
    """Execute trainings on all processors, and yield each with its record as it is done."""
    context = multiprocessing.get_context("spawn")  # torch must not have run before a fork
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        futures = {pool.submit(run, each): each for each in selected}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()


def partial_file(json_file: Path) -> Path:
    """The file of an unfinished study's records."""
    return json_file.with_suffix(".partial.jsonl")


def identity(training: Training) -> str:
    """Equal for trainings that are the same; changes with any of their parameters."""
    text = json.dumps(asdict(training), sort_keys=True)  # type: ignore[call-overload]
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(path: Path, selected: Sequence[Training]) -> dict[str, Record]:
    """By name, the records of those that an earlier, interrupted study has finished.

    Lines of other trainings are left alone, and so is a last line that was cut short.
    """
    if not path.exists():
        return {}
    done: dict[str, Record] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            done[entry["case"]] = entry["record"]
        except (ValueError, KeyError, TypeError):
            continue
    return {each.name: done[key] for each in selected if (key := identity(each)) in done}


class Keeper:
    """Appends records as they come; `drop` when the whole study is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = JsonLinesWriter(path)

    def keep(self, training: Training, record: Record) -> None:
        """Remember that this one is done."""
        self._lines.write({"case": identity(training), "record": record})

    def drop(self) -> None:
        """Forget all."""
        self._lines.close()
        self._path.unlink(missing_ok=True)
