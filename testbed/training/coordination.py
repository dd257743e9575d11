"""Barriers between server and workers, out of band over a UNIX socket.

Barriers must not travel through the network under study. UNIX sockets cross network namespaces.
Each message is one JSON line.
"""

import json
import select
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_LINE_LIMIT_BYTES = 4096
_MOST_WAITING = 512

Connect = Callable[[Path, float], socket.socket]


class CoordinationError(ConnectionError):
    """A peer left or sent something unexpected."""


class _Line:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._incoming = connection.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise CoordinationError(f"coordination: {error}") from error

    def receive(self, name: str) -> dict[str, Any]:
        try:
            line = self._incoming.readline(_LINE_LIMIT_BYTES)
        except OSError as error:
            raise CoordinationError(f"{name}: {error}") from error
        if not line.endswith(b"\n"):
            raise CoordinationError(f"{name}: closed its connection")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise CoordinationError(f"{name}: sent no JSON object")
        return message

    @property
    def hung_up(self) -> bool:
        """Whether the other side has closed its end, also where some of its words are unread."""
        return bool(self._poll(0) & (select.POLLHUP | select.POLLERR))

    @property
    def audible(self) -> bool:
        """Whether `receive` would not wait for the other side's first word."""
        return bool(self._poll(select.POLLIN))

    def _poll(self, events: int) -> int:
        poll = select.poll()
        poll.register(self._connection, events)
        return next((found for _, found in poll.poll(0)), 0)

    def close(self) -> None:
        self._incoming.close()
        self._connection.close()


class _Door:
    """Where workers wait that come back while rounds are under way; nothing here ever blocks.

    Attributes:
        strangers: connections that were closed: another name, or no name at all.
    """

    def __init__(self, listener: socket.socket, workers: Sequence[str], timeout_s: float) -> None:
        self.strangers = 0
        self._listener = listener
        self._workers = workers
        self._timeout_s = timeout_s
        self._nameless: list[socket.socket] = []
        self._waiting: dict[str, _Line] = {}
        listener.setblocking(False)

    def names(self) -> set[str]:
        """Who waits. Of two with one name the later counts: the other has died meanwhile."""
        self._accept()
        for connection in list(self._nameless):
            try:
                said = connection.recv(_LINE_LIMIT_BYTES, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            except OSError:
                said = b""
            if said and b"\n" not in said and len(said) < _LINE_LIMIT_BYTES:
                continue
            self._nameless.remove(connection)
            self._hear_name(connection)
        for name in [name for name, line in self._waiting.items() if line.hung_up]:
            self._waiting.pop(name).close()
        return set(self._waiting)

    def _accept(self) -> None:
        for _ in range(_MOST_WAITING):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody else knocks
                return
            connection.setblocking(False)
            self._nameless.append(connection)
            if len(self._nameless) > _MOST_WAITING:
                self._nameless.pop(0).close()
                self.strangers += 1

    def _hear_name(self, connection: socket.socket) -> None:
        connection.settimeout(self._timeout_s)
        line = _Line(connection)
        try:
            name = str(line.receive("a worker").get("name"))
        except CoordinationError:
            name = ""
        if name not in self._workers:
            self.strangers += 1
            line.close()
            return
        if name in self._waiting:
            self._waiting[name].close()
        self._waiting[name] = line

    def let_in(self, name: str) -> _Line:
        return self._waiting.pop(name)


class Coordinator:
    """The server's side: waits for all workers, then releases them.

    Args:
        listener: a listening UNIX socket that exists before the workers start.
        workers: names of all workers.
        timeout_s: how long a barrier may take.
        keep_going: whether to go on without a worker that left, and note it in `lost`; losing
            the last worker is an error in any case.
        take_back: whether a lost worker may come back. It waits at the listener until `newcomers`
            finds it there, and takes part once `seat` has said so.

    Attributes:
        lost: workers that are gone, each with the reason.
    """

    def __init__(
        self,
        listener: socket.socket,
        workers: Sequence[str],
        timeout_s: float,
        *,
        keep_going: bool = False,
        take_back: bool = False,
    ) -> None:
        self._workers: dict[str, _Line] = {}
        self._order = list(workers)
        self._keep_going = keep_going
        self.lost: dict[str, str] = {}
        listener.settimeout(timeout_s)
        expected = set(workers)
        while len(self._workers) < len(expected):
            connection, _ = listener.accept()
            connection.settimeout(timeout_s)
            line = _Line(connection)
            name = str(line.receive("a worker").get("name"))
            if name not in expected or name in self._workers:
                raise CoordinationError(f"coordination: unexpected worker {name!r}")
            self._workers[name] = line
        self._newcomers: dict[str, _Line] = {}
        self._door = _Door(listener, self._order, timeout_s) if take_back else None
        if not take_back:
            listener.close()

    @property
    def present(self) -> list[str]:
        """The workers that have not been lost, in rank order."""
        return [name for name in self._order if name in self._workers]

    @property
    def strangers(self) -> int:
        """How many connections were closed that named no worker of this run."""
        return self._door.strangers if self._door else 0

    # Workers that come back.

    def newcomers(self) -> list[str]:
        """Let in the lost workers that wait, in rank order; call it between rounds only.

        They can be talked to by `tell` and `hear` now. One whose name is still present goes on
        waiting: only the end of the other's connection makes room for it.
        """
        if self._door is None:
            return []
        for name in self.present:
            if self._workers[name].hung_up:
                self.lose(name, CoordinationError(f"{name}: closed its connection"))
        for name in self._door.names() - self._workers.keys():
            self._newcomers[name] = self._door.let_in(name)
        return [name for name in self._order if name in self._newcomers]

    def seat(self, name: str) -> None:
        """From now on a newcomer takes part as before it was lost."""
        self._workers[name] = self._newcomers.pop(name)
        self.lost.pop(name, None)

    def turn_away(self, name: str) -> None:
        """Close a newcomer's connection; it may come again."""
        self._newcomers.pop(name).close()

    def tell(self, name: str, point: str, **facts: Any) -> None:
        """Release one worker, present or newcomer; CoordinationError if it is gone."""
        self._line(name).send({"go": point, **facts})

    def hear(self, name: str, point: str) -> dict[str, Any]:
        """Wait until one worker, present or newcomer, has reached `point`; return its message."""
        return self._expect(name, self._line(name).receive(name), point)

    def has_spoken(self, name: str) -> bool:
        """Whether `hear` would not wait for this worker, because it spoke or is gone."""
        return self._line(name).audible

    def _line(self, name: str) -> _Line:
        return self._workers.get(name) or self._newcomers[name]

    # Barriers.

    def gather(self, point: str) -> dict[str, dict[str, Any]]:
        """Wait until every worker has reached `point`; return their messages by name."""
        messages = {}
        for name in self.present:
            try:
                message = self._workers[name].receive(name)
            except CoordinationError as error:
                self.lose(name, error)
                continue
            messages[name] = self._expect(name, message, point)
        return messages

    @staticmethod
    def _expect(name: str, message: dict[str, Any], point: str) -> dict[str, Any]:
        if message.get("at") != point:
            raise CoordinationError(f"{name}: at {message.get('at')!r}, not {point!r}")
        return message

    def release(self, point: str, **facts: Any) -> None:
        """Let all workers go on from `point`, with facts for them."""
        for name in self.present:
            try:
                self.tell(name, point, **facts)
            except CoordinationError as error:
                self.lose(name, error)

    def drop(self, name: str, reason: str) -> None:
        """Stop waiting for a worker that the caller knows to be gone."""
        if name in self._workers:
            # A worker that lives notices it by this, and ends.
            self._workers.pop(name).close()
            self.lost[name] = reason

    def lose(self, name: str, error: Exception) -> None:
        """Go on without a worker that has failed, or raise the error if that is not to be."""
        if not self._keep_going or len(self._workers) == 1:
            raise error
        self.drop(name, str(error))


def connect(path: Path, timeout_s: float) -> socket.socket:
    """A worker's connection to the server's listener."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    connection.connect(str(path))
    return connection


class Follower:
    """A worker's side."""

    def __init__(self, path: Path, name: str, timeout_s: float, connect: Connect = connect) -> None:
        self._timeout_s = timeout_s
        self._connection = connect(path, timeout_s)
        self._line = _Line(self._connection)
        self._line.send({"name": name})

    def reach(self, point: str, **facts: Any) -> None:
        """Tell the server that this worker is at `point`, with facts for it."""
        self._line.send({"at": point, **facts})

    def wait(self, *points: str) -> dict[str, Any]:
        """Wait until the server releases this worker from one of `points`; return its message."""
        message = self._line.receive("server")
        if message.get("go") not in points:
            valid = " or ".join(map(repr, points))
            raise CoordinationError(f"server: released {message.get('go')!r}, not {valid}")
        return message

    def wait_at_the_door(self) -> None:
        """Wait, however long, until the server lets this worker in between two rounds."""
        self._connection.settimeout(None)
        self.wait("join")
        self._connection.settimeout(self._timeout_s)


def listen(path: Path) -> socket.socket:
    """Open the listening socket for a `Coordinator`.

    All workers may connect before the first one is accepted: one that finds no room is refused.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(_MOST_WAITING)
    return listener
