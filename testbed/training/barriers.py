"""Barriers between server and workers, as JSON lines over a UNIX socket.

They must not travel through the network under study; UNIX sockets cross network namespaces.
"""

import json
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_LINE_LIMIT_BYTES = 4096
_BACKLOG = 512
_HELLO_S = 5.0  # in which a worker says its name

Connect = Callable[[Path, float], socket.socket]


class BarrierError(ConnectionError):
    """A peer left or sent something unexpected."""


class _Line:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._incoming = connection.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise BarrierError(f"coordination: {error}") from error

    def receive(self, name: str) -> dict[str, Any]:
        try:
            line = self._incoming.readline(_LINE_LIMIT_BYTES)
        except OSError as error:
            raise BarrierError(f"{name}: {error}") from error
        if not line.endswith(b"\n"):
            raise BarrierError(f"{name}: closed its connection")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise BarrierError(f"{name}: sent no JSON object")
        return message

    def close(self) -> None:
        self._incoming.close()
        self._connection.close()


class BarrierServer:
    """The server's side: waits for all workers, then releases them."""

    def __init__(
        self,
        listener: socket.socket,
        workers: Sequence[str],
        timeout_s: float,
        *,
        keep_going: bool = False,
    ) -> None:
        self._workers: dict[str, _Line] = {}
        self._order = list(workers)
        self._keep_going = keep_going
        self.lost: dict[str, str] = {}  # why, by worker
        self.ignored = 0  # connections of others
        deadline_s = time.monotonic() + timeout_s
        while len(self._workers) < len(workers):
            listener.settimeout(max(0.001, deadline_s - time.monotonic()))
            connection, _ = listener.accept()
            connection.settimeout(_HELLO_S)
            line = _Line(connection)
            try:
                name = line.receive("a worker").get("name")
            except BarrierError:
                name = None
            if not isinstance(name, str) or name not in workers or name in self._workers:
                self.ignored += 1
                line.close()
                continue
            connection.settimeout(timeout_s)
            self._workers[name] = line
        listener.close()

    @property
    def present(self) -> list[str]:
        return [name for name in self._order if name in self._workers]

    def gather(self, point: str) -> dict[str, dict[str, Any]]:
        """Wait until every worker has reached `point`; return their messages by name."""
        messages = {}
        for name in self.present:
            try:
                message = self._workers[name].receive(name)
            except BarrierError as error:
                self._lose(name, error)
                continue
            if message.get("at") != point:
                raise BarrierError(f"{name}: at {message.get('at')!r}, not {point!r}")
            messages[name] = message
        return messages

    def release(self, point: str) -> None:
        for name in self.present:
            try:
                self._workers[name].send({"go": point})
            except BarrierError as error:
                self._lose(name, error)

    def drop(self, name: str, reason: str) -> None:
        """Stop waiting for a worker that the caller knows to be gone."""
        if name in self._workers:
            # A worker that lives notices it by this, and ends.
            self._workers.pop(name).close()
            self.lost[name] = reason

    def _lose(self, name: str, error: Exception) -> None:
        if not self._keep_going or len(self._workers) == 1:
            raise error
        self.drop(name, str(error))


class BarrierClient:
    def __init__(self, connection: socket.socket, name: str) -> None:
        self._line = _Line(connection)
        self._line.send({"name": name})

    def reach(self, point: str, **facts: Any) -> None:
        """Tell the server that this worker is at `point`, with facts for it."""
        self._line.send({"at": point, **facts})

    def wait(self, point: str) -> None:
        message = self._line.receive("server")
        if message.get("go") != point:
            raise BarrierError(f"server: released {message.get('go')!r}, not {point!r}")


def connect(path: Path, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    connection.connect(str(path))
    return connection


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(_BACKLOG)
    return listener
