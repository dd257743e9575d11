"""Executes the study's trainings on all processors, and keeps those that are done.

The records of a study that is interrupted lie beside its file until it is whole.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.bench.tolerance.simulation import Case, run
from testbed.shared.jsonl import JsonLinesWriter

Record = dict[str, Any]


def measure(selected: list[Case]) -> Iterator[tuple[Case, Record]]:
    """Execute cases on all processors, and yield each with its record as it is done."""
    context = multiprocessing.get_context("spawn")  # torch must not have run before a fork
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        futures = {pool.submit(run, case): case for case in selected}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()


def partial_file(json_file: Path) -> Path:
    """The file of an unfinished study's records."""
    return json_file.with_suffix(".partial.jsonl")


def identity(case: Case) -> str:
    """Equal for cases that train the same; changes with any of their parameters."""
    text = json.dumps(asdict(case), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(path: Path, selected: Sequence[Case]) -> dict[str, Record]:
    """By name, the records of those cases that an earlier, interrupted study has finished.

    Lines of other cases are left alone, and so is a last line that was cut short.
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
    return {case.name: done[key] for case in selected if (key := identity(case)) in done}


class Keeper:
    """Appends records as they come; `drop` when the whole study is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = JsonLinesWriter(path)

    def keep(self, case: Case, record: Record) -> None:
        """Remember that this case is done."""
        self._lines.write({"case": identity(case), "record": record})

    def drop(self) -> None:
        """Forget all."""
        self._lines.close()
        self._path.unlink(missing_ok=True)
