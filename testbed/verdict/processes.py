"""Samples processor time and memory of every process of the lab, by name."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.lab.kernel import process_status
from testbed.lab.kernel.process_status import PARENT, RESIDENT_PAGES, SYSTEM_TICKS, USER_TICKS
from testbed.verdict.store import ChunkedTable

# Processor time is counted in ticks of 10 ms, so more often would show no more.
INTERVAL_S = 0.1
_SCAN_S = 0.25
# A forked worker enters its namespace a moment later: a name is final after so many scans.
_SCANS_UNTIL_FINAL = 4
_CHUNK_ROWS = 5_000
_DTYPE = [("t_s", "f8"), ("number", "u4"), ("pid", "i4"), ("cpu_s", "f8"), ("rss_bytes", "i8")]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class _Process:
    descriptor: int
    name: str
    scans: int = 1
    # Of a process that workers share the workers' threads are followed, and not itself.
    threads: set[int] = field(default_factory=set)
    sharers: int = 1  # of the memory


class ProcessSampler:
    """Follows all processes of the sandbox except shells and processes seen only once."""

    # Where workers share a process, each has its own thread's time and an equal share of memory.

    def __init__(
        self, folder: Path, hosts: Mapping[str, Mapping[str, Any]], named: Mapping[str, int]
    ) -> None:
        self.table = ChunkedTable(folder, "processes", _DTYPE, chunk_rows=_CHUNK_ROWS)
        self.latest: dict[str, tuple[float, float, int]] = {}  # name -> time, processor s, bytes
        self._hosts = {_namespace(host["pid"]): name for name, host in hosts.items()}
        self._ignored = {int(host["pid"]) for host in hosts.values()}
        self._named = {pid: name for name, pid in named.items()}
        self._named.update({1: "supervisor", os.getpid(): "sampler"})
        self._launcher = named.get("training", -1)
        self._followed: dict[int, _Process] = {}
        self._numbers: dict[str, int] = {}
        self._hosts_of: dict[str, str] = {}  # a process's name -> its host
        self._scan_s = 0.0
        self._next_s = 0.0

    def sample(self, tick: int = 0) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = max(self._next_s + INTERVAL_S, now_s)
        if now_s >= self._scan_s:
            self._scan()
            self._scan_s = now_s + _SCAN_S
        latest = {}
        for pid, process in list(self._followed.items()):
            if process.scans < 2 or process.threads:
                continue
            read_s = time.monotonic()
            fields = _fields(process.descriptor)
            if fields is None:
                self._drop(pid)
                continue
            cpu_s = (int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])) / _TICKS_PER_S
            resident_bytes = int(fields[RESIDENT_PAGES]) * _PAGE_BYTES // process.sharers
            number = self._numbers.setdefault(process.name, len(self._numbers))
            self.table.take(1)[0] = (read_s, number, pid, cpu_s, resident_bytes)
            latest[process.name] = (read_s, cpu_s, resident_bytes)
        self.latest = latest

    def _scan(self) -> None:
        present = {int(name) for name in os.listdir("/proc") if name.isdigit()} - self._ignored  # noqa: PTH208 - four times as fast
        for process in list(self._followed.values()):
            present |= process.threads
        for pid in set(self._followed) - present:
            self._drop(pid)
        for pid in present:
            if pid not in self._followed:
                self._follow(pid)
            elif (process := self._followed[pid]).scans < _SCANS_UNTIL_FINAL:
                process.scans += 1
                process.name = self._name(pid, process.descriptor) or process.name
                self._follow_threads(pid, process)

    def _follow(self, pid: int) -> None:
        try:
            descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        except OSError:
            return
        name = self._name(pid, descriptor)
        if name is None:  # a shell may become another program
            os.close(descriptor)
        else:
            self._followed[pid] = _Process(descriptor, name)

    def _follow_threads(self, pid: int, process: _Process) -> None:
        """Follow the threads of a process of training that live in hosts, when it does not."""
        fields = _fields(process.descriptor)
        try:
            if fields is None or int(fields[PARENT]) != self._launcher or self._host_of(pid):
                return
            tasks = map(int, os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
            process.threads = {task for task in tasks if self._host_of(task)}
            for thread in process.threads - self._followed.keys():
                descriptor = os.open(f"/proc/{pid}/task/{thread}/stat", os.O_RDONLY)
                name = self._host_of(thread) or ""
                self._hosts_of[name] = name
                self._followed[thread] = _Process(descriptor, name, _SCANS_UNTIL_FINAL)
            for thread in process.threads:
                self._followed[thread].sharers = len(process.threads)
        except OSError:  # it has ended
            return

    def _host_of(self, number: int) -> str | None:
        """Find the host in whose network a process or thread is; OSError when that has ended."""
        return self._hosts.get(_namespace(number))

    def _drop(self, pid: int) -> None:
        os.close(self._followed.pop(pid).descriptor)

    def _name(self, pid: int, descriptor: int) -> str | None:
        """Name a process; None for a shell, or one that is gone."""
        if pid in self._named:
            return self._named[pid]
        fields = _fields(descriptor)
        program = _program(pid)
        if fields is None or program in ("bash", "sh", ""):
            return None
        try:
            host = self._host_of(pid)
        except OSError:
            return None
        if host is None:
            return program
        name = host if int(fields[PARENT]) == self._launcher else f"{host}:{program}"
        used = {process.name for other, process in self._followed.items() if other != pid}
        name = name if name not in used else f"{name}.{pid}"
        self._hosts_of[name] = host
        return name

    def write(self, path: Path, *, last: bool) -> None:
        import polars as pl

        schema = {"t_s": pl.Float64, "name": pl.String, "pid": pl.Int32, "cpu_s": pl.Float64}
        schema |= {"rss_bytes": pl.Int64, "host": pl.String}
        names = [{"name": name, "host": self._hosts_of.get(name)} for name in self._numbers]
        self.table.write(path, "number", names, schema, last=last)


def _namespace(pid: int) -> int:
    """Read the inode of a process's network namespace; OSError when it is gone."""
    return os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116 - a Path would cost as much again


def _program(pid: int) -> str:
    """Read the program's name; of Python, the module that it runs."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    program = words[0].rpartition(b"/")[2].decode(errors="replace")
    if program.startswith("python") and b"-m" in words[:-1]:
        module = words[words.index(b"-m") + 1]
        return module.rpartition(b".")[2].decode(errors="replace")
    return program


def _fields(descriptor: int) -> list[bytes] | None:
    try:
        _, fields = process_status.read_again(descriptor)
    except OSError:
        return None
    return None if process_status.has_ended(fields) else fields
