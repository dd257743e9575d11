"""The process that delays the frames of all links of a lab, for kernels without netem.

A helper process in the namespace of the inner interfaces: its first request names the links. Since
several processes of a lab change delays, further requests come on a UNIX socket instead of standard
input, one JSON object per message, and are answered the same way:

    {"do": "change", "link": "a--b", "from": "a", "delay_s": 0.01}
    {"do": "report"}

It sleeps until the next frame is due, and looks for new frames when it is awake anyway: only a
direction in which nothing waits has to wake it up. In dense traffic it wakes up at most every
`GRAIN_S` and moves what has become due since, which bounds both its cost and its lateness.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.lab.delay.delay_settings import Middle, RelayReport
from testbed.lab.delay.relayed_direction import DelayLine
from testbed.lab.helpers.process import Requests, say

GRAIN_S = 0.0002
_GRAIN_NS = round(GRAIN_S * 1e9)
# Time from the timer's expiry until a frame has left: the timer is set so much earlier.
_WAKE_NS = 50_000
_LIBC = ctypes.CDLL(None, use_errno=True)
_MLOCKALL_FLAGS = 3
_ABSOLUTE = 1
_FIFO_PRIORITY = 1
_SHORTEST_SLICE_NS = 100_000
_LARGEST_REQUEST = 1 << 16
# The histogram of lateness.
_BIN_NS = 2_000
_BINS = 25_000  # up to 50 ms; beyond that the last one
_COLLECTED = 1 << 15


class _Timer:
    """A timer of the monotonic clock that an epoll can wait for (Python 3.13 has it built in)."""

    def __init__(self) -> None:
        self._descriptor = _LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._value = ctypes.create_string_buffer(32)

    def fileno(self) -> int:
        return int(self._descriptor)

    def set(self, at_ns: int) -> None:
        """Expire at `at_ns`, or at once when that time is past."""
        struct.pack_into("=qqqq", self._value, 0, 0, 0, *divmod(max(1, at_ns), 1_000_000_000))
        _LIBC.timerfd_settime(self._descriptor, _ABSOLUTE, self._value, None)


class Lateness:
    """A histogram with bins of 2 microseconds; values are collected and counted in batches."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(_BINS, dtype=np.int64)
        self._collected: NDArray[np.int64] = np.zeros(_COLLECTED, dtype=np.int64)
        self._used = 0
        self._max_ns = 0

    def add(self, late_ns: NDArray[np.int64]) -> None:
        """Add values in nanoseconds, in any order; negative ones count as 0."""
        while len(late_ns):
            fitting = late_ns[: _COLLECTED - self._used]
            self._collected[self._used : self._used + len(fitting)] = fitting
            self._used += len(fitting)
            late_ns = late_ns[len(fitting) :]
            if self._used == _COLLECTED:
                self._count()

    def _count(self) -> None:
        values = self._collected[: self._used]
        if len(values):
            self._max_ns = max(self._max_ns, int(values.max()))
            bins = np.clip(values // _BIN_NS, 0, _BINS - 1)
            self._counts += np.bincount(bins, minlength=_BINS)
        self._used = 0

    def summary_s(self) -> tuple[float, float, float]:
        """Median, 99th percentile and maximum in seconds; zeros when nothing was added."""
        self._count()
        total = int(self._counts.sum())
        if not total:
            return 0.0, 0.0, 0.0
        cumulated = np.cumsum(self._counts)
        p50, p99 = (
            min((int(np.searchsorted(cumulated, share * total)) + 1) * _BIN_NS, self._max_ns)
            for share in (0.5, 0.99)
        )
        return p50 / 1e9, p99 / 1e9, self._max_ns / 1e9


class _Relay:
    """All directions, and the loop that serves them."""

    def __init__(self, middles: list[Middle], control: socket.socket, seed: int | None) -> None:
        self._scheduling = _hurry()
        self._control = control
        self._began_ns = time.monotonic_ns()
        self._middles: dict[DelayLine, Middle] = {}
        self._late = Lateness()
        for middle in middles:
            for way, sender in enumerate(middle.nodes):
                line = DelayLine(
                    middle.link,
                    sender,
                    middle.interfaces[way],
                    middle.interfaces[1 - way],
                    slots=middle.slots,
                    settings=middle.settings,
                    random=np.random.default_rng(seed and [seed, len(self._middles)]),
                )
                self._middles[line] = middle

    def run(self) -> None:
        """Relays until standard input ends."""
        timer, poll = _Timer(), select.epoll()
        idle = {each.fileno(): each for each in self._middles}
        for descriptor in idle:
            poll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        # Edge-triggered, so that nobody has to read how often the timer expired.
        poll.register(timer, select.EPOLLIN | select.EPOLLET)
        poll.register(0, select.EPOLLIN)
        poll.register(self._control, select.EPOLLIN)
        clients: dict[int, socket.socket] = {}
        busy: list[DelayLine] = []
        awake_ns = 0
        while True:
            for descriptor, event in poll.poll():
                if descriptor in idle:
                    line = idle[descriptor]
                    if event & select.EPOLLERR:
                        line.clear_error()
                    busy.append(line)
                elif descriptor == 0:
                    return
                elif descriptor == self._control.fileno():
                    client, _ = self._control.accept()
                    clients[client.fileno()] = client
                    poll.register(client, select.EPOLLIN)
                elif descriptor in clients and not self._answer(clients[descriptor]):
                    clients.pop(descriptor).close()
            if not busy:
                continue
            awake_ns = time.monotonic_ns()
            next_ns = None
            still_busy = []
            for line in busy:
                line.collect()
                gone_due_ns = line.send_due(time.monotonic_ns() + _WAKE_NS)
                if gone_due_ns is not None:
                    self._late.add(time.monotonic_ns() - gone_due_ns)
                due_ns = line.due_ns
                if due_ns is None:
                    # If a frame has come meanwhile, this lets the next poll return at once.
                    poll.modify(line.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
                    continue
                still_busy.append(line)
                next_ns = due_ns if next_ns is None else min(next_ns, due_ns)
            busy = still_busy
            if next_ns is not None:
                timer.set(max(next_ns - _WAKE_NS, awake_ns + _GRAIN_NS))

    def _answer(self, client: socket.socket) -> bool:
        """Serve one request; returns whether the client is still there."""
        try:
            request = client.recv(_LARGEST_REQUEST)
            if not request:
                return False
            try:
                answer = self._do(json.loads(request))
            except (ValueError, KeyError, TypeError) as error:
                answer = {"error": str(error)}
            client.send(json.dumps(answer).encode())
        except OSError:
            return False
        return True

    def _do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["do"] == "report":
            return self.report().as_json()
        if request["do"] != "change":
            raise ValueError(f"do {request['do']!r}; valid: report, change")
        for line, middle in self._middles.items():
            if (line.link, line.sender) == (request["link"], request["from"]):
                given = {key: request[key] for key in asdict(line.settings) if key in request}
                settings = replace(line.settings, **given)
                middle.require_room(settings)
                line.collect()  # what has arrived came under the old ones
                line.set(settings)
                return {"settings": asdict(settings), "changed_s": time.monotonic()}
        raise ValueError(f"no delayed link {request['link']!r} from {request['from']!r}")

    def report(self) -> RelayReport:
        p50_s, p99_s, max_s = self._late.summary_s()
        return RelayReport(
            scheduling=self._scheduling,
            cpu_s=time.process_time(),
            wall_s=(time.monotonic_ns() - self._began_ns) / 1e9,
            late_p50_s=p50_s,
            late_p99_s=p99_s,
            late_max_s=max_s,
            directions=[each.counters() for each in self._middles],
        )


def _hurry() -> str:
    """Take the highest priority that is allowed, ahead of the hosts' processes; returns which."""
    with contextlib.suppress(OSError, AttributeError):
        _LIBC.prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: wake up on time
        _LIBC.mlockall(_MLOCKALL_FLAGS)
    gc.disable()  # nothing here makes reference cycles
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
    except OSError:
        pass
    else:
        return "fifo"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    except OSError:
        return "short-slice" if _take_short_slices() else "ordinary"
    return "nice"


def _take_short_slices() -> bool:
    """Ask for short time slices, which come sooner; every user may (Linux 6.12 and newer)."""
    number = {"x86_64": 314, "aarch64": 274}.get(os.uname().machine)  # sched_setattr
    if number is None:
        return False
    # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
    attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, 0, 0, _SHORTEST_SLICE_NS, 0, 0)
    return _LIBC.syscall(number, 0, attributes, 0) == 0


def main() -> None:
    """Relays until standard input ends; answers its first request when frames flow."""
    order = Requests().wait()
    if order is None:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(order["socket"])
        control.listen()
        try:
            relay = _Relay(
                [Middle.from_json(each) for each in order["middles"]], control, order["seed"]
            )
        except OSError as error:
            say({"error": f"{type(error).__name__}: {error}"})
            sys.exit(1)
        say({"ready": True})
        relay.run()


if __name__ == "__main__":
    main()
