"""The process that delays the frames of all links of a lab, for kernels without netem.

It sleeps until the next frame is due, and looks for new frames when it is awake anyway. In dense
traffic it wakes up at most every `GRAIN_S`, which bounds both its cost and its lateness.
"""

# The first request of its parent names the links. Later ones come on a UNIX socket, from several
# processes:
#
#     {"do": "change", "link": "a--b", "from": "a", "delay_s": 0.01, "on_record": true}
#         with "rate_bps", the rate that the link has now, and
#         of an idle middle, with "source": the interface at which its frames will arrive, and
#         the socket of `opened_ring` as ancillary data; without, nothing changes and
#         "changed_s" is null. Whatever else is handed is closed.
#     {"do": "forget", "link": "a--b", "from": "a"}      its frames will not come, after all
#     {"do": "begin"}      what was measured so far is forgotten, apart from counters
#     {"do": "report"}
#
# Nobody who does not read answers can hold up frames: such a connection is closed.

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import select
import socket
import stat
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.lab.delay.delay_settings import Middle
from testbed.lab.delay.relayed_direction import DelayLine
from testbed.lab.helpers.process import Requests, run_at_once
from testbed.shared.messages import MessageError, Messages

GRAIN_S = 0.0002
_GRAIN_NS = round(GRAIN_S * 1e9)
# So much before its time a frame may leave: then frames of dense traffic are as early as late.
_EARLY_NS = _GRAIN_NS // 2
# The timer is set earlier by what it takes from its expiry until a frame has left: half of all
# wake-ups take longer. Learned in steps, since it depends on the machine and on its load.
_LEAST_AHEAD_NS, _MOST_AHEAD_NS, _AHEAD_STEP_NS = 30_000, 500_000, 2_000
_LIBC = ctypes.CDLL(None, use_errno=True)
_MLOCKALL_FLAGS = 3
_ABSOLUTE = 1


STRETCH_S = 1.0
# With so many frames, the two latest do not make the 99th percentile.
LEAST_FRAMES = 300
# A direction's mean wait is taken over so long, and of at least so many frames.
MEAN_S = 0.25
LEAST_FOR_MEAN = 20
# The histogram of lateness. Beyond 100 ms all values count as that; the maximum is exact.
_BIN_NS = 4_000
_BINS = 25_000
_COLLECTED = 2048


class Punctuality:
    """Lateness of all frames, and the mean wait in each direction.

    An average would hide that the relay stood still once. So the worst stretch counts, of a second
    and of enough frames that a single late one does not decide.
    """

    def __init__(self, directions: Sequence[tuple[str, str]], now_ns: int) -> None:
        self._directions = directions
        self._late_ns: NDArray[np.int64] = np.zeros(_COLLECTED, dtype=np.int64)
        self._wait_ns: NDArray[np.int64] = np.zeros(_COLLECTED, dtype=np.int64)
        self._number: NDArray[np.int64] = np.zeros(_COLLECTED, dtype=np.int64)
        self._usual: NDArray[np.bool_] = np.zeros(_COLLECTED, dtype=np.bool_)
        self._unusual_until_ns = [0.0] * len(directions)
        self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        """Forget all that was added, and begin anew."""
        count = len(self._directions)
        self._used = 0
        self._counts: NDArray[np.int64] = np.zeros(_BINS, dtype=np.int64)
        self._began_ns, self._ends_ns = now_ns, now_ns + round(STRETCH_S * 1e9)
        self._mean_ends_ns = now_ns + round(MEAN_S * 1e9)
        self._latest_ns, self._latest_number = 0, 0
        self.early_max_ns = self._max_ns = 0
        self._worst: dict[str, Any] | None = None
        # Of each direction: frames and their waits since the last mean was taken.
        self._new_frames: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        self._new_waits_ns: NDArray[np.float64] = np.zeros(count)
        self._least_ns: NDArray[np.float64] = np.full(count, np.inf)
        self._most_ns: NDArray[np.float64] = np.full(count, -np.inf)
        self._left_out: NDArray[np.int64] = np.zeros(count, dtype=np.int64)

    def leave_out(self, number: int, until_ns: float) -> None:
        """Take no mean of the waits in direction `number` until then: its delay was changed."""
        self._unusual_until_ns[number] = until_ns

    def add(
        self, number: int, now_ns: int, due_ns: NDArray[np.int64], came_ns: NDArray[np.int64]
    ) -> None:
        """Add frames that left a direction now: when they were due, and when they came."""
        if now_ns >= self._mean_ends_ns:
            self._count()
            self._take_means()
            self._mean_ends_ns = now_ns + round(MEAN_S * 1e9)
        if now_ns >= self._ends_ns:
            self._end_stretch(now_ns)
        usual = now_ns >= self._unusual_until_ns[number]
        done = 0
        while done < len(due_ns):
            count = min(len(due_ns) - done, _COLLECTED - self._used)
            span = slice(self._used, self._used + count)
            np.subtract(now_ns, due_ns[done : done + count], out=self._late_ns[span])
            np.subtract(now_ns, came_ns[done : done + count], out=self._wait_ns[span])
            self._number[span], self._usual[span] = number, usual
            self._used += count
            done += count
            if self._used == _COLLECTED:
                self._count()

    def _count(self) -> None:
        if not self._used:
            return
        late_ns, wait_ns = self._late_ns[: self._used], self._wait_ns[: self._used]
        number = self._number[: self._used]
        latest = int(late_ns.argmax())
        if late_ns[latest] > self._latest_ns:
            self._latest_ns, self._latest_number = int(late_ns[latest]), int(number[latest])
        self.early_max_ns = max(self.early_max_ns, -int(late_ns.min()))
        bins = np.clip(late_ns // _BIN_NS, 0, _BINS - 1)
        self._counts += np.bincount(bins, minlength=_BINS)
        count = len(self._directions)
        usual = self._usual[: self._used]
        self._left_out += np.bincount(number[~usual], minlength=count)
        number, wait_ns = number[usual], wait_ns[usual]
        self._new_frames += np.bincount(number, minlength=count)
        self._new_waits_ns += np.bincount(number, weights=wait_ns, minlength=count)
        self._used = 0

    def _end_stretch(self, now_ns: int) -> None:
        self._count()
        self._ends_ns = now_ns + round(STRETCH_S * 1e9)
        if self._counts.sum() < LEAST_FRAMES:
            return  # it goes on
        self._worst = self._worse_stretch()
        self._counts[:] = 0
        self._max_ns = max(self._max_ns, self._latest_ns)
        self._latest_ns = self._latest_number = 0
        self._began_ns = now_ns

    def _worse_stretch(self) -> dict[str, Any]:
        """Return the present stretch, or the worst one so far if that was later."""
        rank = int(np.searchsorted(np.cumsum(self._counts), 0.99 * int(self._counts.sum())))
        end_ns = (rank + 1) * _BIN_NS if rank < _BINS - 1 else math.inf  # of its bin
        late_p99_s = min(end_ns, self._latest_ns) / 1e9
        if self._worst is not None and self._worst["late_p99_s"] >= late_p99_s:
            return self._worst
        link, sender = self._directions[self._latest_number]
        return {
            "link": link,
            "from": sender,
            "at_s": self._began_ns / 1e9,
            "frames": int(self._counts.sum()),
            "late_p99_s": late_p99_s,
            "late_max_s": self._latest_ns / 1e9,
        }

    def _take_means(self) -> None:
        ready = self._new_frames >= LEAST_FOR_MEAN
        mean_ns = self._new_waits_ns[ready] / self._new_frames[ready]
        self._least_ns[ready] = np.minimum(self._least_ns[ready], mean_ns)
        self._most_ns[ready] = np.maximum(self._most_ns[ready], mean_ns)
        self._new_frames[ready] = 0
        self._new_waits_ns[ready] = 0

    def late_max_s(self) -> float:
        """Return the latest frame's lateness; 0 when nothing was added."""
        self._count()
        return max(self._max_ns, self._latest_ns) / 1e9

    def worst(self) -> dict[str, Any] | None:
        """Return the stretch with the largest 99th percentile; None before the first frame."""
        self._count()
        frames = int(self._counts.sum())
        if not frames or (frames < LEAST_FRAMES and self._worst is not None):
            return self._worst
        return self._worse_stretch()

    def waits(self) -> list[dict[str, Any]]:
        self._count()
        self._take_means()
        return [
            {
                "wait_least_s": _seconds(self._least_ns[number]),
                "wait_most_s": _seconds(self._most_ns[number]),
                "left_out": int(self._left_out[number]),
            }
            for number in range(len(self._directions))
        ]


def _seconds(time_ns: float) -> float | None:
    """Convert a time to seconds; None where there was nothing to measure."""
    return float(time_ns) / 1e9 if math.isfinite(time_ns) else None


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
        struct.pack_into("=qqqq", self._value, 0, 0, 0, *divmod(max(1, at_ns), 1_000_000_000))
        _LIBC.timerfd_settime(self._descriptor, _ABSOLUTE, self._value, None)


class _Relay:
    """All directions, and the loop that serves them."""

    def __init__(self, middles: list[Middle], control: socket.socket, seed: int | None) -> None:
        self._scheduling = _raise_priority()
        self._control = control
        self._seed = seed
        self._poll = select.epoll()
        self._idle: dict[int, DelayLine] = {}
        self._lines: dict[DelayLine, int] = {}
        self._busy: list[DelayLine] = []
        self._middles = [middle for middle in middles for _ in middle.nodes]
        self._directions = [(middle.link, sender) for middle in middles for sender in middle.nodes]
        for number, middle in enumerate(self._middles):
            if not middle.idle:
                self._begin(number, middle.interfaces[number % 2])
        self._punctuality = Punctuality(self._directions, time.monotonic_ns())

    def _begin(self, number: int, source: str, ring: int | None = None) -> DelayLine:
        """Take over a direction, whose frames arrive at an interface."""
        middle = self._middles[number]
        line = DelayLine(
            *self._directions[number],
            source,
            middle.interfaces[1 - number % 2],
            slots=middle.slots,
            settings=middle.settings,
            seed=None if self._seed is None else (self._seed, number),
            ring=ring,
        )
        self._lines[line] = number
        self._idle[line.fileno()] = line
        self._poll.register(line, select.EPOLLIN | select.EPOLLONESHOT)
        return line

    def _end(self, line: DelayLine) -> None:
        self._poll.unregister(line)
        del self._lines[line], self._idle[line.fileno()]
        self._busy = [busy for busy in self._busy if busy is not line]
        line.close()

    def run(self) -> None:
        timer, poll, idle = _Timer(), self._poll, self._idle
        # Edge-triggered, so that nobody has to read how often the timer expired.
        poll.register(timer, select.EPOLLIN | select.EPOLLET)
        poll.register(0, select.EPOLLIN)
        poll.register(self._control, select.EPOLLIN)
        clients: dict[int, Messages] = {}
        awake_ns = set_ns = 0
        ahead_ns = _EARLY_NS
        while True:
            for descriptor, event in poll.poll():
                if descriptor in idle:
                    line = idle[descriptor]
                    if event & select.EPOLLERR:
                        line.clear_error()
                    self._busy.append(line)
                elif descriptor == 0:
                    return
                elif descriptor == self._control.fileno():
                    client = Messages(self._control.accept()[0])
                    clients[client.fileno()] = client
                    poll.register(client, select.EPOLLIN)
                elif descriptor in clients and not self._answer(clients[descriptor]):
                    clients.pop(descriptor).close()
            if not self._busy:
                continue
            awake_ns = time.monotonic_ns()
            next_ns = None
            resting_ns = 0
            still_busy = []
            for line in self._busy:
                line.collect()
                for was_due_ns, came_ns in line.send_due(time.monotonic_ns() + _EARLY_NS):
                    now_ns, resting_ns = time.monotonic_ns(), _GRAIN_NS
                    if 0 < set_ns <= awake_ns:  # the first that leaves after the timer expired
                        step_ns = _AHEAD_STEP_NS if now_ns - set_ns > ahead_ns else -_AHEAD_STEP_NS
                        ahead_ns = min(max(_LEAST_AHEAD_NS, ahead_ns + step_ns), _MOST_AHEAD_NS)
                        set_ns = 0
                    self._punctuality.add(self._lines[line], now_ns, was_due_ns, came_ns)
                due_ns = line.due_ns
                if due_ns is None:
                    # If a frame has come meanwhile, this lets the next poll return at once.
                    poll.modify(line.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
                    continue
                still_busy.append(line)
                next_ns = due_ns if next_ns is None else min(next_ns, due_ns)
            self._busy = still_busy
            if next_ns is not None:
                set_ns = max(next_ns - ahead_ns, awake_ns + resting_ns)
                timer.set(set_ns)

    def _answer(self, client: Messages) -> bool:
        """Serve one request; returns whether the client is still there."""
        try:
            request, files = client.receive(0)
            with contextlib.ExitStack() as handed:
                for file in files:
                    handed.callback(os.close, file)
                try:
                    answer = self._do(request, files[0] if files else None)
                except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
                    answer = {"error": str(error)}
                except MemoryError:
                    answer = {"error": "no memory is left"}
            client.answer(request, answer, timeout_s=0)
        except MessageError:
            return False
        return True

    def _do(self, request: Mapping[str, Any], ring: int | None) -> dict[str, Any]:
        if request["do"] == "begin":
            self._punctuality.begin(time.monotonic_ns())
            return {}
        if request["do"] == "report":
            return self._report()
        if request["do"] not in ("change", "forget"):
            raise ValueError(f"do {request['do']!r}; valid: begin, change, forget, report")
        way = (request["link"], request["from"])
        if way not in self._directions:
            raise ValueError(f"no delayed link {way[0]!r} from {way[1]!r}")
        number = self._directions.index(way)
        line = next((line for line, its in self._lines.items() if its == number), None)
        if request["do"] == "forget":
            if line:
                self._end(line)
            return {}
        before = line.settings if line else self._middles[number].settings
        changes = {key: request[key] for key in asdict(before) if key in request}
        settings = replace(before, **changes)
        if line is None:
            if "source" not in request:
                return {"changed_s": None}
            if ring is not None and not stat.S_ISSOCK(os.fstat(ring).st_mode):
                raise ValueError("the file for frames is not a socket")
            middle = replace(self._middles[number], most_delay_s=settings.longest_s)
            self._middles[number] = middle
        self._middles[number].require_room(settings.longest_s, request.get("rate_bps"))
        line = line or self._begin(number, request["source"], ring)
        line.collect()  # what has arrived came under the old ones
        line.set(settings)
        waits = before.delay_s, before.jitter_s
        if request.get("on_record") and waits != (settings.delay_s, settings.jitter_s):
            until_ns = line.unusual_until_ns(time.monotonic_ns())
            self._punctuality.leave_out(number, until_ns)
        return {"settings": asdict(settings), "changed_s": time.monotonic()}

    def _report(self) -> dict[str, Any]:
        waits = self._punctuality.waits()
        return {
            "scheduling": self._scheduling,
            "late_max_s": self._punctuality.late_max_s(),
            "early_max_s": self._punctuality.early_max_ns / 1e9,
            "worst": self._punctuality.worst(),
            "delays": [line.delay(waits[number]) for line, number in self._lines.items()],
            "directions": [line.counters() for line in self._lines],
        }


def _raise_priority() -> str:
    """Take the highest priority that is allowed, ahead of the hosts' processes; returns which."""
    with contextlib.suppress(OSError, AttributeError):
        _LIBC.prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: wake up on time
        _LIBC.mlockall(_MLOCKALL_FLAGS)
    gc.disable()  # nothing here makes reference cycles
    if run_at_once():
        return "fifo"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    except OSError:
        return "ordinary"
    return "nice"


def main() -> None:
    """Relays until the parent closes the connection; answers its first request when frames flow."""
    requests = Requests()
    order = requests.wait()
    if order is None:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(order["socket"])
        control.listen()
        try:
            relay = _Relay(
                [Middle.from_json(fields) for fields in order["middles"]], control, order["seed"]
            )
        except OSError as error:
            requests.say({"error": f"{type(error).__name__}: {error}"})
            sys.exit(1)
        requests.say({"ready": True})
        relay.run()


if __name__ == "__main__":
    main()
