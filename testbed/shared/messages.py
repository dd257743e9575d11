"""Messages between processes: JSON objects, each with open files if need be, whole and in order.

The sockets are UNIX ones of the kind SEQPACKET, so several processes may send on one. Who asks
numbers the request, and the answer repeats the number: one that comes too late is passed over.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_PART_BYTES = 1 << 16
_MOST_BYTES, _MOST_FILES = 16_000_000, 8  # of a message that a peer sends
_FIRST, _LAST = 1, 2  # flags in a part's first byte
_NUMBER = "#"
_STAGE_TIMEOUT_S = 1.0
# The stage that is measured, by workload.
TRAINING, PROGRAMS = "training", "programs"

Message = tuple[dict[str, Any], list[int]]


class MessageError(ConnectionError):
    """The other side has gone, or says what is no message."""


class LateError(MessageError):
    """The other side takes or says nothing within the time; it may do so later."""


class Messages:
    """One end of a connection; `strays` counts parts that continue nothing."""

    def __init__(self, connected: socket.socket) -> None:
        self.strays = 0
        self._socket = connected
        self._socket.setblocking(False)
        self._numbers = itertools.count(1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(
        self, message: Mapping[str, Any], files: Sequence[int] = (), *, timeout_s: float = 60.0
    ) -> None:
        """Send a message and files, which stay open here; within 0 s is: now or never."""
        data, until_s = json.dumps(message).encode(), time.monotonic() + timeout_s
        for at in range(0, len(data), _PART_BYTES):
            flags = _FIRST * (at == 0) | _LAST * (at + _PART_BYTES >= len(data))
            part = [bytes([flags]), data[at : at + _PART_BYTES]]
            while not self._sent(part, files if at == 0 else ()):
                if not wait_for(self.fileno(), until_s - time.monotonic(), select.POLLOUT):
                    raise LateError("takes no message in time")

    def _sent(self, part: list[bytes], files: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._socket, part, files)
        except BlockingIOError:
            return False
        except OSError as error:
            raise MessageError(f"cannot send: {error.strerror}") from None
        return True

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next message and its files, which are now this process's to close."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        begun, text, files = False, bytearray(), list[int]()
        try:
            while True:
                part, more = self._part(until_s)
                if part[0] & _FIRST:  # whose sender was interrupted before is dropped
                    begun, text, files = True, bytearray(), _closed(files)
                elif not begun:  # another process's message came between it and its first part
                    self.strays += 1
                    _closed(more)
                    continue
                text += part[1:]
                files += more
                if len(text) > _MOST_BYTES or len(files) > _MOST_FILES:
                    most = f"{_MOST_BYTES:,} bytes and {_MOST_FILES} files"
                    raise MessageError(f"cannot receive: a message has at most {most}")
                if part[0] & _LAST:
                    break
            message = json.loads(text)
            if not isinstance(message, dict):
                raise MessageError("a message is not an object")
        except BaseException as error:
            _closed(files)
            if isinstance(error, (ValueError, RecursionError)):
                raise MessageError(f"cannot receive: {error}") from None
            raise
        return message, files

    def _part(self, until_s: float | None) -> tuple[bytes, list[int]]:
        while True:
            try:
                data, files, flags, _ = socket.recv_fds(self._socket, 1 + _PART_BYTES, _MOST_FILES)
            except BlockingIOError:
                left_s = None if until_s is None else until_s - time.monotonic()
                if not wait_for(self.fileno(), left_s):
                    raise LateError("no message in time") from None
                continue
            except OSError as error:
                raise MessageError(f"cannot receive: {error.strerror}") from None
            for file in files:  # Python 3.11 takes no flag that does so at once
                os.set_inheritable(file, False)
            if data and not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
                return data, files
            _closed(files)
            raise MessageError("closed" if not data else "is no message of this kind")

    def ask(
        self, message: Mapping[str, Any], files: Sequence[int] = (), *, timeout_s: float = 1e6
    ) -> Message:
        """Send a request and return its answer with its files."""
        number, until_s = next(self._numbers), time.monotonic() + timeout_s
        self.send({**message, _NUMBER: number}, files, timeout_s=timeout_s)
        while True:
            answer, opened = self.receive(max(0.0, until_s - time.monotonic()))
            if answer.pop(_NUMBER, None) == number:
                return answer, opened
            _closed(opened)

    def answer(
        self,
        request: Mapping[str, Any],
        message: Mapping[str, Any],
        files: Sequence[int] = (),
        *,
        timeout_s: float = 60.0,
    ) -> None:
        """Send the answer to a request."""
        self.send({**message, _NUMBER: request.get(_NUMBER)}, files, timeout_s=timeout_s)

    def close(self) -> None:
        """End the connection, also for copies of this end in other processes."""
        with suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _closed(files: Sequence[int]) -> list[int]:
    for file in files:
        os.close(file)
    return []


def pair() -> tuple[Messages, socket.socket]:
    """The two ends of a new connection; the other one is for another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Messages(ours), theirs


def connect(path: Path | str) -> Messages:
    """Connect to a listening socket; OSError when nobody listens."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connected.connect(str(path))
    except OSError:
        connected.close()
        raise
    return Messages(connected)


def wait_for(descriptor: int, timeout_s: float | None, event: int = select.POLLIN) -> bool:
    """Wait for an event of a descriptor; False when it took longer than the time (None: any)."""
    waiter = select.poll()  # `select` refuses descriptors above 1023
    waiter.register(descriptor, event)
    return bool(waiter.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000))


class ProgressWriter:
    """Progress from inside a sandbox to the command, of several processes on one connection."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages

    def stage(self, name: str) -> None:
        """A new stage of the run began; the command acts on it, so it waits a second for room."""
        self._send({"stage": name}, _STAGE_TIMEOUT_S)

    def round(self, number: int, total: int) -> None:
        """`number` of `total` rounds are done."""
        self._send({"round": number, "rounds": total}, 0)

    def _send(self, record: Mapping[str, Any], timeout_s: float) -> None:
        with suppress(MessageError):  # it is for the eye: a run never fails for it
            self.messages.send(record, timeout_s=timeout_s)
