"""The controller's UNIX socket: one JSON object per line in, one per line out, and a client.

Requests: `{"do": "wait-ready"}`, `{"do": "begin"|"end", "round": 3, "leg": "gather"}`.
Replies carry `"active"`, the names of the impairments in force; a request that is not understood
is answered with `"error"` and changes nothing.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

LINE_LIMIT_BYTES = 4096
LEGS = ("gather", "broadcast")


def parse_request(line: bytes) -> dict[str, Any]:
    """Check one request line.

    Raises:
        ValueError: what is wrong with it.
    """
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ValueError("not JSON") from error
    if not isinstance(request, dict) or request.get("do") not in ("wait-ready", "begin", "end"):
        raise ValueError("'do' must be wait-ready, begin or end")
    if request["do"] != "wait-ready":
        number = request.get("round")
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError("'round' must be a number, 0 or more")
        if request.get("leg") not in LEGS:
            raise ValueError(f"'leg' must be one of {', '.join(LEGS)}")
    return request


class ControllerClient:
    """Tells the controller where the training is; every call returns when it has acted."""

    def __init__(self, path: Path, *, timeout_s: float = 20.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._socket.connect(str(path))
        self._replies = self._socket.makefile("rb")

    def wait_ready(self) -> None:
        """Return when every switch has confirmed its forwarding rules by a barrier."""
        self._ask({"do": "wait-ready"})

    def begin(self, round_number: int, leg: str) -> list[str]:
        """Announce a leg's begin; return the names of the impairments now in force."""
        return self._ask({"do": "begin", "round": round_number, "leg": leg})

    def end(self, round_number: int, leg: str) -> list[str]:
        """Announce a leg's end; return the names of the impairments still in force."""
        return self._ask({"do": "end", "round": round_number, "leg": leg})

    def close(self) -> None:
        """Close the connection."""
        self._replies.close()
        self._socket.close()

    def _ask(self, request: dict[str, Any]) -> list[str]:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._replies.readline(LINE_LIMIT_BYTES)
        except OSError as error:
            raise ConnectionError(f"controller: {error}") from error
        if not line:
            raise ConnectionError("controller: closed its socket")
        reply = json.loads(line)
        if "error" in reply:
            raise ConnectionError(f"controller: {reply['error']}")
        return list(reply["active"])
