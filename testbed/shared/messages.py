"""Messages between processes: JSON objects, each with open files if need be, whole and in order.

The sockets are UNIX ones of the kind SEQPACKET, so several processes may send on one. An answer
repeats its request's number: one that comes too late is passed over.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

_PACKET_BYTES = 1 << 16  # a larger message goes along as a file in memory
_STORED = b"@"  # the packet of such a message
_MOST_BYTES, _MOST_FILES = 16_000_000, 8  # of a message that a peer sends
_NUMBER = "#"
_STAGE_TIMEOUT_S = 1.0
# The stage that is measured, by workload.
TRAINING, PROGRAMS = "training", "programs"

Message = tuple[dict[str, Any], list[int]]


class MessageError(ConnectionError):
    """The other side has gone, or sent something that is no message."""


class LateError(MessageError):
    """The other side neither takes nor sends a message in time; it may do so later."""


class Messages:
    """One end of a connection."""

    def __init__(self, connected: socket.socket) -> None:
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
        with ExitStack() as to_close:
            if len(data) > _PACKET_BYTES:
                stored = os.memfd_create("message")
                to_close.callback(os.close, stored)
                os.write(stored, data)
                data, files = _STORED, [stored, *files]
            while not self._send_packet(data, files):
                if not wait_for(self.fileno(), until_s - time.monotonic(), select.POLLOUT):
                    raise LateError("takes no message in time")

    def _send_packet(self, data: bytes, files: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._socket, [data], files)
        except BlockingIOError:
            return False
        except OSError as error:
            raise MessageError(f"cannot send: {error.strerror}") from None
        return True

    def receive(self, timeout_s: float | None = None) -> Message:
        """Return the next message and its files, which are now this process's to close."""
        data, files = self._receive_packet(timeout_s)
        try:
            message = json.loads(_stored(files.pop(0)) if data == _STORED and files else data)
            if not isinstance(message, dict):
                raise ValueError("a message is not an object")
        except BaseException as error:
            _close(files)
            if isinstance(error, (ValueError, RecursionError, OSError)):
                raise MessageError(f"cannot receive: {error}") from None
            raise
        return message, files

    def _receive_packet(self, timeout_s: float | None) -> tuple[bytes, list[int]]:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                data, files, flags, _ = socket.recv_fds(
                    self._socket, _PACKET_BYTES, 1 + _MOST_FILES
                )
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
            _close(files)
            most = f"a message has at most {_MOST_BYTES:,} bytes and {_MOST_FILES} files"
            raise MessageError(f"cannot receive: {most}" if data else "closed")

    def ask(
        self, message: Mapping[str, Any], files: Sequence[int] = (), *, timeout_s: float = 1e6
    ) -> Message:
        """Send a request; return its answer and that one's files."""
        number, until_s = next(self._numbers), time.monotonic() + timeout_s
        self.send({**message, _NUMBER: number}, files, timeout_s=timeout_s)
        while True:
            answer, opened = self.receive(max(0.0, until_s - time.monotonic()))
            if answer.pop(_NUMBER, None) == number:
                return answer, opened
            _close(opened)

    def answer(
        self,
        request: Mapping[str, Any],
        message: Mapping[str, Any],
        files: Sequence[int] = (),
        *,
        timeout_s: float = 60.0,
    ) -> None:
        self.send({**message, _NUMBER: request.get(_NUMBER)}, files, timeout_s=timeout_s)

    def close(self) -> None:
        """End the connection, also for copies of this end in other processes."""
        with suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _stored(file: int) -> bytes:
    try:
        size = os.fstat(file).st_size
        if size > _MOST_BYTES:
            raise ValueError(f"{size:,} bytes; a message has at most {_MOST_BYTES:,}")
        return os.pread(file, size, 0)
    finally:
        os.close(file)


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


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
        self._send({"round": number, "rounds": total}, 0)

    def _send(self, record: Mapping[str, Any], timeout_s: float) -> None:
        with suppress(MessageError):  # it is for the eye: a run never fails for it
            self.messages.send(record, timeout_s=timeout_s)
