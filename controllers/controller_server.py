"""Serves the controller's UNIX socket (see `controller_socket`): reads requests, writes replies."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controllers.controller_socket import LINE_LIMIT_BYTES, POWERFUL, parse_request
from controllers.framework import eventlet, hub
from testbed.lab.kernel.commands import CommandError
from testbed.shared import failure

_PAUSE_S = 0.1


class ControllerServer:
    """Each client has a green thread of its own. What is no request is refused and counted."""

    def __init__(
        self, answer: Callable[[dict[str, Any]], dict[str, Any]], log: logging.Logger
    ) -> None:
        self._answer = answer
        self._log = log
        self.refused = 0

    def serve(self, path: str) -> None:
        """Accept clients without end."""
        Path(path).unlink(missing_ok=True)  # of a controller that was killed
        listener = eventlet.listen(path, family=socket.AF_UNIX)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:  # too many open files, or a client that is gone already
                self._log.warning("no client accepted: %s", error)
                hub.sleep(_PAUSE_S)
            else:
                hub.spawn(self._until_gone, connection)

    def _until_gone(self, connection: Any) -> None:
        # A client killed with unread replies must not end the controller.
        with contextlib.closing(connection), contextlib.suppress(ConnectionError):
            self._converse(connection.makefile("rwb"))

    def _converse(self, stream: Any) -> None:
        withheld: set[str] = set()  # of this connection
        while line := stream.readline(LINE_LIMIT_BYTES):
            reply = self._reply(line, withheld)
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()
            if not line.endswith(b"\n"):  # too long, or cut off: what follows means nothing
                return

    def _reply(self, line: bytes, withheld: set[str]) -> dict[str, Any]:
        try:
            if not line.endswith(b"\n"):
                raise ValueError(f"no line of at most {LINE_LIMIT_BYTES} bytes")
            request = parse_request(line)
            if request["do"] in withheld:
                raise ValueError(f"{request['do']!r}: this connection may only announce")
        except ValueError as error:
            self.refused += 1
            self._log.warning("refused request %d: %s", self.refused, error)
            return {"error": str(error)}
        if request["do"] == "announce-only":
            withheld.update(POWERFUL)
            return {}
        try:
            return self._answer(request)
        except (ValueError, CommandError) as error:
            return {"error": str(error)}
        except Exception as error:
            # The error must reach training, which must not go on without the impairment.
            self._log.exception("request %r failed", line)
            return {"error": failure.in_words(error)}
