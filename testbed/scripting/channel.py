"""The connection between a script and the first process of its lab: requests, answers, open files.

A message is one JSON object on a line; the kernel hands over its files with its first byte.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

_MOST_FILES = 8
_READ_BYTES = 1 << 16


class ChannelError(ConnectionError):
    """The other side has gone, or says what is no message."""


class Channel:
    """One end of the connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._rest = b""
        self.interrupted = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        """Send a message and files, which stay open here."""
        self._send(_encoded(message), files)

    def ask(
        self, message: Mapping[str, Any], files: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """Send a message and return the answer with its files."""
        data = _encoded(message)
        try:
            self._send(data, files)
            return self.receive()
        except BaseException as error:
            # What a signal's handler raises ends the connection: the answer is still to come, and
            # would be taken for that to the next message.
            self.interrupted = self.interrupted or not isinstance(error, ChannelError)
            self.close()
            raise

    def _send(self, data: bytes, files: Sequence[int]) -> None:
        try:
            sent = socket.send_fds(self._socket, [data], files)
            self._socket.sendall(data[sent:])
        except TimeoutError:  # of a signal's handler: this socket has no timeout
            raise
        except OSError as error:
            raise ChannelError(f"cannot send: {error.strerror}") from None

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and its files, which are now this process's to close."""
        parts, files = [self._rest], []
        try:
            while b"\n" not in parts[-1]:
                data, received, flags, _ = socket.recv_fds(self._socket, _READ_BYTES, _MOST_FILES)
                files += received
                for file in received:  # Python 3.11 takes no flag that does so at once
                    os.set_inheritable(file, False)
                if not data:
                    raise ChannelError("closed")
                if flags & socket.MSG_CTRUNC:
                    raise ChannelError("handed over more files than there is room for")
                parts.append(data)
            line, _, self._rest = b"".join(parts).partition(b"\n")
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ChannelError("a message is not an object")
        except BaseException as error:
            for file in files:
                os.close(file)
            # A signal's handler may raise a TimeoutError: this socket has no timeout.
            is_ours = isinstance(error, OSError | ValueError)
            if not is_ours or isinstance(error, ChannelError | TimeoutError):
                raise
            raise ChannelError(f"cannot receive: {error}") from None
        return message, files

    def close(self) -> None:
        """End the connection, also for copies of this end in other processes."""
        with suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _encoded(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
