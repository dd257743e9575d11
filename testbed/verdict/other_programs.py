"""Samples, from outside the sandbox, which programs use the processors that the lab wants.

A sandbox sees only its own processes. Arguments may hold secrets, so names alone are kept.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.lab.kernel import process_status
from testbed.lab.kernel.process_status import PARENT, START_TICKS, SYSTEM_TICKS, USER_TICKS
from testbed.shared import run_directory

FILE = "programs.json"
INTERVAL_S = 1.0
_SHOWN = 10
_LEAST = 0.005  # a share that is not 0.00 when it is printed
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class OtherPrograms:
    """Counts processor time by program from `begin` on, all but that of one sandbox."""

    def __init__(self, directory: Path | None, sandbox: int) -> None:
        self._path = None if directory is None else directory / FILE
        self._sandbox = sandbox
        self._used: Counter[str] = Counter()
        # Of each process, known by id and start: the kernel gives ids again.
        self._ticks: dict[tuple[int, int], int] = {}
        self._programs: list[dict[str, Any]] = []
        self._samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="other-programs", daemon=True)

    def begin(self) -> None:
        """Sample from now on; does nothing when called again."""
        if self._thread.ident is None:
            self._began_s = time.monotonic()
            self._thread.start()

    def end(self) -> None:
        self._stop.set()
        # A finalizer may call this in any thread, even in the one that samples.
        if self._thread.ident not in (None, threading.get_ident()):
            self._thread.join()

    def largest(self) -> str:
        """As the function `largest`, of what was sampled so far."""
        return _in_words(self._programs)

    def _run(self) -> None:
        try:
            while True:
                self._sample()
                if self._stop.wait(INTERVAL_S):
                    return
        except OSError:
            return  # /proc cannot be read, the disk is full: the reason then names no program

    def _sample(self) -> None:
        ticks, names, parents = {}, {}, {}
        present = map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208 - fast
        for pid in present:
            if (read := _read(pid)) is not None:
                names[pid], parents[pid], start, used = read
                ticks[pid, start] = used
        lab = _descendants(self._sandbox, parents)
        if self._samples:
            for (pid, start), used in ticks.items():
                if pid not in lab:
                    # A process that is new since the last sample has used all its time since then.
                    self._used[names[pid]] += used - self._ticks.get((pid, start), 0)
        self._ticks = ticks
        self._samples += 1
        if self._samples > 1:
            self._note()

    def _note(self) -> None:
        elapsed_s = time.monotonic() - self._began_s
        whole = elapsed_s * _TICKS_PER_S * (os.cpu_count() or 1)
        self._programs = [
            {"name": name, "share": used / whole}
            for name, used in self._used.most_common(_SHOWN)
            if used > 0
        ]
        if self._path is None:
            return
        run_directory.write_json(
            self._path,
            {
                "schema": run_directory.SCHEMA,
                "began_s": self._began_s,
                "ended_s": self._began_s + elapsed_s,
                "samples": self._samples,
                "programs": self._programs,
            },
        )


def largest(directory: Path, count: int = 3) -> str:
    """The programs outside the lab that used most, each with its share; empty when unknown."""
    return _in_words(run_directory.read_or_empty(directory / FILE).get("programs", []), count)


def _in_words(programs: Sequence[Mapping[str, Any]], count: int = 3) -> str:
    seen = [each for each in programs[:count] if each["share"] >= _LEAST]
    return ", ".join(f"{each['name']} {each['share']:.2f}" for each in seen)


def _read(pid: int) -> tuple[str, int, int, int] | None:
    """Name, parent, start and processor time in ticks; None for a process that is gone."""
    try:
        name, fields = process_status.read(pid)
    except OSError:
        return None
    used = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
    return name.decode(errors="replace"), int(fields[PARENT]), int(fields[START_TICKS]), used


def _descendants(pid: int, parents: dict[int, int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found, left = {pid}, [pid]
    while left:
        for child in children.get(left.pop(), ()):
            if child not in found:
                found.add(child)
                left.append(child)
    return found
