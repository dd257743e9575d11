"""Announces steps as rounds to whoever runs the script, such as the lab.

Where the environment names a UNIX socket in LAB_MARKERS, rank 0 writes lines there and reads an
answer to each, as `testbed.workload.markers` says.
"""

import atexit
import os
import socket
import threading

ENVIRONMENT = "LAB_MARKERS"
# Whoever does not answer any more is told nothing more; the training goes on.
_LONGEST_S = 60.0
_AT_EXIT_S = 2.0

_announcer: "Rounds | None" = None


class Rounds:
    """The steps of one exchange as rounds; calls may come from any thread, `begin` alone waits."""

    def __init__(self, path: str | None) -> None:
        """`path` is the socket's; None: nobody listens. OSError where nothing is there."""
        self._lock = threading.Lock()
        self._unanswered = 0
        self._socket: socket.socket | None = None
        self._number = -1
        self._leg = ""
        self._parts = 0
        self._all_posted = False
        if path is not None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(_LONGEST_S)
            self._socket.connect(path)
            atexit.register(self._close)

    def begin(self, *, legs: bool) -> None:
        """A step's first bucket is there; returns when what belongs to its round is in force."""
        with self._lock:
            self._number += 1
            self._leg = "gather" if legs else ""
            self._all_posted, self._parts = False, 0
            self._say("begin", "round", self._leg)
            self._hear_all()

    def posted(self, parts: int) -> None:
        """So many more parts are on their first leg."""
        with self._lock:
            self._parts += parts

    def turned(self) -> None:
        """One more part's first leg is over."""
        with self._lock:
            self._parts -= 1
            self._turn()

    def all_posted(self) -> None:
        """No more parts follow in this step."""
        with self._lock:
            self._all_posted = True
            self._turn()

    def _turn(self) -> None:
        if self._leg == "gather" and self._all_posted and not self._parts:
            self._say("end", "gather")
            self._leg = "broadcast"
            self._say("begin", "broadcast")

    def end(self) -> None:
        """All means are there."""
        with self._lock:
            self._say("end", self._leg, "round")
            self._leg = ""

    def _say(self, word: str, *legs: str) -> None:
        if self._socket is None:
            return
        lines = [f"{word} {self._number} {leg}\n" for leg in legs if leg]
        try:
            self._socket.sendall("".join(lines).encode())
            self._unanswered += len(lines)
        except OSError:
            self._socket = None

    def _hear_all(self) -> None:
        """Waits for the answers to all that was said. What they refuse, the listener reports."""
        while self._socket is not None and self._unanswered:
            try:
                more = self._socket.recv(4096)
            except OSError:
                more = b""
            if not more:
                self._socket = None
                return
            self._unanswered -= more.count(b"\n")

    def _close(self) -> None:
        """The last round counts only once it has been heard."""
        with self._lock:
            if self._socket is not None:
                self._socket.settimeout(_AT_EXIT_S)
                self._hear_all()


def announced(rank: int) -> Rounds:
    """For one exchange: rank 0's first one in this process is announced, and no other."""
    global _announcer
    path = os.environ.get(ENVIRONMENT)
    if path is None or rank != 0 or _announcer is not None:
        return Rounds(None)
    _announcer = Rounds(path)
    return _announcer
