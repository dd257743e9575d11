"""The process that delays the frames of all links of a lab, for kernels without netem.

It sleeps until the next frame is due, and looks for new frames when it is awake anyway. In dense
traffic it wakes up at most every `GRAIN_S`, which bounds both its cost and its lateness.
"""

# The first request of its parent names the links. Later ones come on a UNIX socket, from several
# processes:
#
#     {"do": "change", "link": "a--b", "from": "a", "delay_s": 0.01, "on_record": true}
#         with "rate_bps", the rate that the link has now, and
#         of a middle that rests, with "source": the interface at which its frames will arrive, and
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
import os
import select
import socket
import stat
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from testbed.lab.delay.delay_settings import Middle, RelayReport
from testbed.lab.delay.punctuality import Punctuality
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


class _Relay:
    """All directions, and the loop that serves them."""

    def __init__(self, middles: list[Middle], control: socket.socket, seed: int | None) -> None:
        self._scheduling = _hurry()
        self._control = control
        self._seed = seed
        self._poll = select.epoll()
        self._idle: dict[int, DelayLine] = {}
        self._lines: dict[DelayLine, int] = {}
        self._busy: list[DelayLine] = []
        self._middles = [middle for middle in middles for _ in middle.nodes]
        self._directions = [(middle.link, sender) for middle in middles for sender in middle.nodes]
        for number, middle in enumerate(self._middles):
            if not middle.rests:
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
        self._busy = [each for each in self._busy if each is not line]
        line.close()

    def run(self) -> None:
        """Relays until the parent closes the connection."""
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
        found = [each for each, its in self._lines.items() if its == number]
        if request["do"] == "forget":
            for line in found:
                self._end(line)
            return {}
        before = found[0].settings if found else self._middles[number].settings
        given = {key: request[key] for key in asdict(before) if key in request}
        settings = replace(before, **given)
        if not found:
            if "source" not in request:
                return {"changed_s": None}
            if ring is not None and not stat.S_ISSOCK(os.fstat(ring).st_mode):
                raise ValueError("what was handed for frames is not a socket")
            wanted = replace(self._middles[number], most_delay_s=settings.longest_s)
            self._middles[number] = wanted
        self._middles[number].require_room(settings.longest_s, request.get("rate_bps"))
        line = found[0] if found else self._begin(number, request["source"], ring)
        line.collect()  # what has arrived came under the old ones
        line.set(settings)
        waits = before.delay_s, before.jitter_s
        if request.get("on_record") and waits != (settings.delay_s, settings.jitter_s):
            until_ns = line.unusual_until_ns(time.monotonic_ns())
            self._punctuality.leave_out(number, until_ns)
        return {"settings": asdict(settings), "changed_s": time.monotonic()}

    def _report(self) -> dict[str, Any]:
        waits = self._punctuality.waits()
        return RelayReport(
            scheduling=self._scheduling,
            late_max_s=self._punctuality.late_max_s(),
            early_max_s=self._punctuality.early_max_ns / 1e9,
            worst=self._punctuality.worst(),
            delays=[line.delay(waits[self._lines[line]]) for line in self._lines],
            directions=[line.counters() for line in self._lines],
        ).as_json()


def _hurry() -> str:
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
                [Middle.from_json(each) for each in order["middles"]], control, order["seed"]
            )
        except OSError as error:
            requests.say({"error": f"{type(error).__name__}: {error}"})
            sys.exit(1)
        requests.say({"ready": True})
        relay.run()


if __name__ == "__main__":
    main()
