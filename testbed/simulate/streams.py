"""Sockets for barriers in virtual time: what is written can be read at once.

They have what `testbed.training.coordination` needs of a socket.
"""

from testbed.simulate.tasks import Signal, Tasks


class Stream:
    """One end of a connection."""

    def __init__(self, tasks: Tasks) -> None:
        self._signal = Signal(tasks)
        self._came = bytearray()
        self._closed = False
        self._other: Stream | None = None

    @classmethod
    def pair(cls, tasks: Tasks) -> "tuple[Stream, Stream]":
        """Two ends that are connected."""
        one, two = cls(tasks), cls(tasks)
        one._other, two._other = two, one
        return one, two

    def settimeout(self, timeout_s: float | None) -> None:
        """Nobody is late here: who waits in vain ends the simulation."""

    def makefile(self, mode: str) -> "Stream":
        """For reading."""
        return self

    def sendall(self, data: bytes) -> None:
        other = self._other
        if self._closed or other is None or other._closed:
            raise BrokenPipeError("the other end is closed")
        other._came += data
        other._signal.tell()

    def readline(self, limit: int) -> bytes:
        """A line, or less of it at the stream's end."""

        def ready() -> bool:
            return b"\n" in self._came or self._closed or self._other is None

        self._signal.wait_until(ready)
        end = self._came.find(b"\n")
        size = min(limit, end + 1 if end >= 0 else len(self._came))
        line = bytes(self._came[:size])
        del self._came[:size]
        return line

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        other, self._other = self._other, None
        if other is not None:
            other._other = None
            other._signal.tell()


class Listener:
    """Where streams come in."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._signal = Signal(tasks)
        self._waiting: list[Stream] = []

    def settimeout(self, timeout_s: float | None) -> None:
        """As for `Stream`."""

    def accept(self) -> tuple[Stream, None]:
        self._signal.wait_until(lambda: bool(self._waiting))
        return self._waiting.pop(0), None

    def connect(self) -> Stream:
        """The other side's end of a new connection."""
        here, there = Stream.pair(self._tasks)
        self._waiting.append(here)
        self._signal.tell()
        return there

    def close(self) -> None:
        """Nobody comes any more."""
