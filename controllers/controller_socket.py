"""The protocol of the controller's UNIX socket, and its client.

A request is one JSON object per line, and so is its reply. Replies come in the order of requests:

    {"do": "wait-ready"}      until the forwarding rules are installed
    {"do": "start"}           seconds count from here; the first `begin` does so, too
    {"do": "begin"|"end", "round": 3, "leg": "gather"}      `round` as leg means all of it
    {"do": "finish"}          ends all impairments
    {"do": "link", "from": "worker-1", "to": "s1", "set": {"rate_bps": 1000000}}
    {"do": "processes", "pids": {"worker-1": 17}}
    {"do": "announce-only"}   this connection may change no link, and name no process, any more

Those about time may carry `"at_s"`, the planned instant of the monotonic clock. A reply has
`"active"`, the names of the impairments in force (or of all during the leg that ends), `link`'s
also what is set `now`, or `"error"`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINE_LIMIT_BYTES = 1 << 16
_MOST_ROUNDS = 1 << 31
_PID_LIMIT = 1 << 22  # the kernel's own
LEGS = ("gather", "broadcast", "round")
REQUESTS = ("wait-ready", "processes", "start", "begin", "end", "finish", "link", "announce-only")
POWERFUL = ("processes", "link")  # refused after `announce-only`
LINK_SETTINGS = ("rate_bps", "queue_bytes", "delay_s", "jitter_s", "loss")


class ControllerError(ConnectionError):
    """The controller has gone, does not answer, or could not do what it was asked."""


def parse_request(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error
    if not isinstance(request, dict) or request.get("do") not in REQUESTS:
        raise ValueError(f"'do' must be one of {', '.join(REQUESTS)}")
    if request["do"] == "processes":
        pids = request.get("pids")
        if not isinstance(pids, dict) or not all(
            _is_number(pid, int) and 1 < pid < _PID_LIMIT for pid in pids.values()
        ):
            raise ValueError(f"'pids' must map names to process numbers from 2 to {_PID_LIMIT - 1}")
    elif request["do"] == "link":
        if not all(isinstance(request.get(key), str) for key in ("from", "to")):
            raise ValueError("'from' and 'to' must name the ends of a link")
        settings = request.get("set")
        if not isinstance(settings, dict) or not all(
            key in LINK_SETTINGS and _is_number(setting) for key, setting in settings.items()
        ):
            raise ValueError(f"'set' must map some of {', '.join(LINK_SETTINGS)} to numbers")
    elif request["do"] in ("begin", "end"):
        number = request.get("round", -1)
        if not _is_number(number, int) or not 0 <= number < _MOST_ROUNDS:
            raise ValueError(f"'round' must be a whole number from 0 to {_MOST_ROUNDS - 1}")
        if request.get("leg") not in LEGS:
            raise ValueError(f"'leg' must be one of {', '.join(LEGS)}")
    at_s = request.get("at_s", 0.0)
    if not _is_number(at_s) or not 0 <= at_s < 1e12:
        raise ValueError("'at_s' must be a time in seconds")
    return request


def _is_number(value: Any, kind: type = float) -> bool:
    return isinstance(value, int | kind) and not isinstance(value, bool)


class ControllerClient:
    """Tells the controller about the training's progress; every call returns when it has acted.

    Each raises ControllerError where it is gone, or does not answer within `timeout_s`; such a
    call may still take effect. Its connection is closed, and the next call opens another.
    """

    def __init__(self, path: Path, *, timeout_s: float = 20.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._may_reopen = True
        self._open()

    def _open(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(self._timeout_s)
        try:
            self._socket.connect(str(self._path))
        except OSError as error:
            self._socket.close()
            raise ControllerError(f"controller: cannot be reached: {error}") from error
        self._replies = self._socket.makefile("rb")

    def wait_ready(self) -> list[str]:
        """Return the impairments in force, once every switch has confirmed its rules."""
        return self._ask({"do": "wait-ready"})

    def processes(self, pids: Mapping[str, int]) -> None:
        """Name the training processes by host, so that impairments can act on them."""
        self._ask({"do": "processes", "pids": dict(pids)})

    def announce_only(self) -> None:
        """Give up, on this connection, all requests but those about times and rounds."""
        self._may_reopen = False  # another connection could do everything again
        self._reply({"do": "announce-only"})

    def start(self) -> None:
        """Let the time begin from which impairments count seconds."""
        self._announce({"do": "start"})

    def begin(self, round_number: int, leg: str) -> list[str]:
        """Announce a leg's begin; return the names of the impairments now in force."""
        return self._announce({"do": "begin", "round": round_number, "leg": leg})

    def end(self, round_number: int, leg: str) -> list[str]:
        """Announce a leg's end; return the names of all that were in force during it."""
        return self._announce({"do": "end", "round": round_number, "leg": leg})

    def finish(self) -> None:
        """End all impairments; returns once the end of each is logged."""
        self._announce({"do": "finish"})

    def link(self, sender: str, receiver: str, settings: Mapping[str, float]) -> dict[str, Any]:
        """Change settings of a link's direction, or none; the reply's `now` has all of them."""
        request = {"do": "link", "from": sender, "to": receiver, "set": dict(settings)}
        return self._reply(request)

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def _announce(self, request: dict[str, Any]) -> list[str]:
        return self._ask({**request, "at_s": time.monotonic()})

    def _ask(self, request: dict[str, Any]) -> list[str]:
        return list(self._reply(request)["active"])

    def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._replies.closed and self._may_reopen:
            self._open()
        try:
            reply = self._exchange(request)
        except BaseException:
            self.close()  # a late reply must not be read as the next one's
            raise
        if "error" in reply:
            raise ControllerError(f"controller: {reply['error']}")
        return reply

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._replies.readline(LINE_LIMIT_BYTES)
        except TimeoutError:
            raise ControllerError(
                f"controller: no answer to {request['do']!r} within {self._timeout_s:g} s"
            ) from None
        except (OSError, ValueError) as error:
            raise ControllerError(f"controller: gone: {error}") from error
        if not line.endswith(b"\n"):
            raise ControllerError("controller: gone: it closed its socket")
        return dict(json.loads(line))
