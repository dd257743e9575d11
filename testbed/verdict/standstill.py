"""Whether a part of the emulator stood still while the workload ran."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from testbed.lab.kernel import process_status
from testbed.lab.kernel.process_sockets import sockets_of
from testbed.lab.kernel.process_status import STATE
from testbed.verdict.gate import Finding, worst
from testbed.verdict.processor_headroom import now_s, prefer

LOOK_EVERY_S = 0.01
ALL = "the supervisor or the whole sandbox"
SHARE_OF_ROUND = 4  # a pause of less than a quarter of a round hardly changes what is measured
# A part that has not run since the last look stands still if it is in one of these states. One that
# sleeps waits for work, unless frames wait in its packet sockets: then it is frozen. Looks that lie
# farther apart mean that the whole sandbox stood still, or the machine.
_STATES = {
    b"T": "stopped",
    b"t": "stopped by a debugger",
    b"D": "waited for a lock or a disk",
    b"R": "waited for a processor",
}
_FROZEN = "slept although frames waited"
_LONGEST_BYTES = 64
_SO_MEMINFO = 55  # its first word: bytes that wait to be read
Rounds = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """The longest time that one part stood still.

    Attributes:
        part: its name.
        longest_s: how long, within the 10 ms between two looks; None: it could not be watched.
        at_s: when it began (CLOCK_MONOTONIC).
        state: what it was in, in words.
    """

    part: str
    longest_s: float | None = 0.0
    at_s: float = 0.0
    state: str = ""


class _Part:
    """One process, as the looks see it."""

    def __init__(self, name: str, pid: int) -> None:
        self.longest = Standstill(part=name)
        self._ran = b""
        self._since: tuple[float, str] | None = None  # and the state that it was in then
        self._files: list[int] = []
        self._sockets: list[socket.socket] = []
        try:
            for file in ("schedstat", "stat"):
                self._files.append(os.open(f"/proc/{pid}/{file}", os.O_RDONLY))
        except OSError:
            self.longest = Standstill(part=name, longest_s=None)
            self.close()
        with suppress(OSError):  # this user may not look into it
            self._sockets += sockets_of(pid, socket.AF_PACKET)

    def look(self, now_s: float) -> None:
        """Judge the time since the look before; one that has ended stands still no more."""
        if not self._files:
            return
        try:
            ran = os.pread(self._files[0], _LONGEST_BYTES, 0)
            if ran != self._ran:
                self._ran, self._since = ran, None
                return
            state = self._state()
        except (OSError, IndexError):
            self.close()
            return
        if state is None:
            self._since = None
            return
        self._since = since_s, state = self._since or (now_s, state)
        if now_s - since_s > (self.longest.longest_s or 0.0):
            part, lasted_s = self.longest.part, now_s - since_s
            self.longest = Standstill(part=part, longest_s=lasted_s, at_s=since_s, state=state)

    def _state(self) -> str | None:
        """Why it does not run, in words; None: it has nothing to do, or has ended."""
        state = process_status.read_again(self._files[1])[1][STATE]
        if state == b"S" and any(map(_holds_frames, self._sockets)):
            return _FROZEN
        return _STATES.get(state)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())
        while self._sockets:
            self._sockets.pop().close()


def _holds_frames(opened: socket.socket) -> bool:
    return any(opened.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4))


class StandstillWatch:
    """Looks whether parts stand still, from `start` until `finish`."""

    def __init__(self, parts: Mapping[str, int]) -> None:
        self._processes = dict(parts)
        self._parts: list[_Part] = []
        self._all = Standstill(part=ALL)
        self._done = False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> StandstillWatch:
        self._thread.start()
        return self

    def finish(self) -> list[Standstill]:
        """Stop looking; returns the longest standstill of each part."""
        self._done = True
        self._thread.join()
        for part in self._parts:
            part.close()
        return [*(part.longest for part in self._parts), self._all]

    def _watch(self) -> None:
        prefer(threading.get_native_id())
        # Not by whoever made the watch: an ordinary thread that is kept from its processor while it
        # holds Python's lock would hold up this one, and those that look for stalls.
        self._parts = [_Part(name, pid) for name, pid in self._processes.items()]
        last_s = now_s()
        while not self._done:
            time.sleep(LOOK_EVERY_S)
            look_s, at_s = now_s(), time.monotonic()
            gap_s = look_s - last_s - LOOK_EVERY_S
            if gap_s > (self._all.longest_s or 0.0):
                self._all = Standstill(part=ALL, longest_s=gap_s, at_s=at_s - gap_s)
            last_s = look_s
            for part in self._parts:
                part.look(at_s)


def standstill(
    standstills: Sequence[Standstill], rounds: Rounds, limits: Mapping[str, Any]
) -> Finding:
    """The longest standstill; a quarter of the median round passes if that is more."""
    lengths_s = [one["ended_s"] - one["began_s"] for one in rounds if "began_s" in one]
    median_s = statistics.median(lengths_s) if lengths_s else 0.0
    limit_s = max(limits["standstill_s"], median_s / SHARE_OF_ROUND)
    lost = [one.part for one in standstills if one.longest_s is None]
    missing = f"no scheduling statistics of {', '.join(lost)}" if lost else ""
    known = [(it.longest_s, _place(it, rounds)) for it in standstills if it.longest_s is not None]
    if not known:
        return Finding(limit=limit_s, missing=missing or "no process was watched")
    value, where = worst(known)
    return Finding(value=value, limit=limit_s, where=where, missing=missing)


def _place(standstill: Standstill, rounds: Rounds) -> str:
    words = " ".join(filter(None, (standstill.part, standstill.state)))
    return words + in_round(standstill.at_s, rounds)


def in_round(at_s: float, rounds: Rounds) -> str:
    """The round that goes on at a time, or is the next, in words; empty where there is none."""
    found = next((each["round"] for each in rounds if each["ended_s"] > at_s), None)
    return "" if found is None else f" in round {found}"
