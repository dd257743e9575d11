"""The markers by which programs announce rounds: a protocol of lines on a UNIX socket.

A program writes `begin 12 gather` and `end 12 gather` to the socket that `LAB_MARKERS` names. A
line is answered with `ok` and the impairments in force (at an end: that were), or with `refused`
and the reason; `begin` only once what is anchored to the leg is in force.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controllers.controller_socket import LEGS, ControllerClient
from testbed.shared.input_error import shown

ENVIRONMENT = "LAB_MARKERS"
_LONGEST_LINE_BYTES = 256
_MOST_CLIENTS = 256
_MOST_ROUND = 10**9
_LINE = re.compile(rb"(begin|end) ([0-9]{1,10}) ([a-z]{1,20})")


class RefusedError(ValueError):
    """A line that changes nothing; the message says why."""


class Rounds:
    """The rounds that programs announce."""

    def __init__(self, controller: ControllerClient, log: Callable[[dict[str, Any]], None]) -> None:
        self._controller = controller
        self._log = log
        self._open: dict[str, tuple[int, float]] = {}  # leg -> round, when its begin was answered
        self._latest: dict[str, int] = {}  # leg -> the last round that began it
        self._record: dict[str, Any] = {}
        self._hit: set[str] = set()

    def take(self, line: bytes, now_s: float) -> list[str]:
        """Obey a line; return the names of impairments."""
        match = _LINE.fullmatch(line)
        if match is None:
            raise RefusedError(f"valid: begin ROUND LEG, or end ROUND LEG; legs: {', '.join(LEGS)}")
        number, leg = int(match[2]), match[3].decode()
        if leg not in LEGS or number > _MOST_ROUND:
            raise RefusedError(f"legs: {', '.join(LEGS)}; rounds: 0 to {_MOST_ROUND}")
        return self._begin(number, leg) if match[1] == b"begin" else self._end(number, leg, now_s)

    def _begin(self, number: int, leg: str) -> list[str]:
        if leg in self._open:
            raise RefusedError(f"the {leg} of round {self._open[leg][0]} has not ended")
        if number <= self._latest.get(leg, -1) or number < self._record.get("round", 0):
            raise RefusedError(f"round {max(self._latest.values())} has begun already")
        if number != self._record.get("round"):
            if self._open:
                other, (before, _) = next(iter(self._open.items()))
                raise RefusedError(f"the {other} of round {before} has not ended")
            self.finish()
            self._record = {"round": number}
        names = self._controller.begin(number, leg)
        # What the lab does before it answers is no part of the leg.
        began_s = time.monotonic()
        self._latest[leg] = number
        self._open[leg] = (number, began_s)
        self._record.setdefault("began_s", began_s)
        self._hit.update(names)
        return names

    def _end(self, number: int, leg: str, now_s: float) -> list[str]:
        if self._open.get(leg, (None, 0.0))[0] != number:
            raise RefusedError(f"the {leg} of round {number} has not begun")
        _, began_s = self._open.pop(leg)
        names = self._controller.end(number, leg)
        self._record["ended_s"] = now_s
        self._record[f"{leg}_s"] = now_s - began_s
        self._hit.update(names)
        return names

    def finish(self) -> None:
        """Log the round that is over; one that has an open leg, or none that ended, is no round."""
        record, self._record = self._record, {}
        hit, self._hit = sorted(self._hit), set()
        if not self._open and "ended_s" in record:
            whole_s = record.pop("round_s", None)
            legs_s = record.get("gather_s", 0.0) + record.get("broadcast_s", 0.0)
            record["latency_s"] = legs_s if whole_s is None else whole_s
            self._log({**record, "impairments": hit})


class MarkerSocket:
    """The socket, for a loop that waits for its descriptors to become readable."""

    def __init__(self, path: Path, rounds: Rounds) -> None:
        self.accepted = self.refused = 0
        self.first_refused = ""
        self._rounds = rounds
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        path.chmod(0o666)  # programs may have other users
        self._listener.listen(_MOST_CLIENTS)
        self._clients: dict[int, tuple[socket.socket, bytearray]] = {}

    def descriptors(self) -> list[int]:
        return [self._listener.fileno(), *self._clients]

    def serve(self, descriptor: int) -> None:
        now_s = time.monotonic()
        if descriptor == self._listener.fileno():
            with contextlib.suppress(OSError):  # it has gone again
                client, _ = self._listener.accept()
                client.setblocking(False)
                if len(self._clients) == _MOST_CLIENTS:
                    client.close()
                else:
                    self._clients[client.fileno()] = (client, bytearray())
        elif descriptor in self._clients:
            client, text = self._clients[descriptor]
            try:
                more = client.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                more = b""
            text += more
            if not more or not self._answered(client, text, now_s):
                client.close()
                del self._clients[descriptor]

    def _answered(self, client: socket.socket, text: bytearray, now_s: float) -> bool:
        """Obey the whole lines of what a client has sent; return False where it is to be closed."""
        while (end := text.find(b"\n")) >= 0:
            line = bytes(text[:end])
            del text[: end + 1]
            try:
                names = self._rounds.take(line.removesuffix(b"\r"), now_s)
                # A name's spaces would make it several names.
                words = ["ok", *("_".join(name.split()) for name in names)]
                self.accepted += 1
            except RefusedError as error:
                words = ["refused:", str(error)]
                self._refuse(line, str(error))
            try:
                client.sendall(" ".join(words).encode() + b"\n")
            except OSError:
                return False
        if len(text) > _LONGEST_LINE_BYTES:
            self._refuse(bytes(text), f"is longer than {_LONGEST_LINE_BYTES} bytes")
            return False
        return True

    def _refuse(self, line: bytes, why: str) -> None:
        self.refused += 1
        self.first_refused = self.first_refused or f"{shown(line.decode(errors='replace'))}: {why}"

    def close(self) -> None:
        for client, _ in self._clients.values():
            client.close()
        self._listener.close()
