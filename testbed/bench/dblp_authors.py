"""Drives the DBLP authors' development code, github.com/ZechenM/bound-tolerance-research.

It has no licence: it stays in the user's clone. Both functions print what goes wrong and return
False or None. Without TCP_NODELAY, the second of a bitmap's two writes waits up to 40 ms.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import socket
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from testbed.bench.peer import Adapter, Payload, UnfitError

_NO_EVALUATION, _STALE_PROBE, _SIGNAL_BYTES = b"N", b"P", 5
_TENSOR = "payload"
_CONNECT_S = 20.0


class DblpAuthors(Adapter):
    """The functions of the snapshot of August 2025, called as its own trainer calls them."""

    no_delay: ClassVar[bool] = False

    @classmethod
    def check(cls, checkout: Path) -> None:
        for name in ("mlt.py", "config.py", "utility.py"):
            if not (checkout / name).is_file():
                raise UnfitError(
                    f"{checkout}: has no {name}; expected a clone of "
                    "github.com/ZechenM/bound-tolerance-research, or --adapter ./mine.py"
                )
        source = (checkout / "mlt.py").read_text(encoding="utf-8", errors="replace")
        for function in ("send_data_mlt", "recv_data_mlt", "change_UDP_rate"):
            if f"def {function}(" not in source:
                raise UnfitError(
                    f"{checkout}/mlt.py: has no function {function}; expected the branch main of "
                    "August 2025"
                )

    def open(self) -> None:
        end = self.end
        sys.path.insert(0, str(end.checkout))
        self._code: Any = importlib.import_module("mlt")
        settings: Any = importlib.import_module("config")
        settings.DEBUG = 0
        settings.CHUNK_SIZE = end.chunk_bytes
        settings.loss_tolerance = end.tolerance
        # `mlt` has copied the rate of `config`. Unlimited is beyond any link here.
        self._code.change_UDP_rate(min(end.rate_bps, 1e12) / 1e6)
        self._round = 0
        self._chunks = math.ceil(end.elements * 4 / end.chunk_bytes)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if end.is_server:
            self._udp.bind((end.server_address, end.data_port))
            with socket.create_server((end.server_address, end.control_port)) as listening:
                listening.settimeout(_CONNECT_S)
                self._tcp, self._other = listening.accept()
            self._tcp.settimeout(None)
        else:
            self._tcp = _connected(end.server_address, end.control_port)
        if self.no_delay:
            self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, payload: Payload) -> None:
        """Say that no accuracy follows, as the trainer does, and send."""
        end = self.end
        addresses = {
            "tcp": (end.server_address, end.control_port),
            "udp": (end.server_address, end.data_port),
        }
        self._round += 1
        self._tcp.sendall(_NO_EVALUATION)
        done, last_line = _called(
            self._code.send_data_mlt, self._sockets(), addresses, payload.tobytes(), self._round
        )
        if done is not True:
            raise RuntimeError(f"send_data_mlt returned {done}{last_line}")

    def receive(self) -> Payload:
        self._round += 1
        # A sender's last probe may have crossed the receiver's stop.
        while (first := self._tcp.recv(1, socket.MSG_PEEK)) == _STALE_PROBE:
            self._tcp.recv(_SIGNAL_BYTES, socket.MSG_WAITALL)
        if not first:
            raise ConnectionError("the sender has closed its connection")
        count = self.end.elements
        tensor = {"key": _TENSOR, "shape": (count,), "tensor_data_len": count * 4}
        answer, last_line = _called(
            self._code.recv_data_mlt,
            *(self._sockets(), self._other, self._round, [tensor], self._chunks),
        )
        if answer is None:
            raise RuntimeError(f"recv_data_mlt returned None{last_line}")
        return np.asarray(answer[0][_TENSOR].numpy())

    def _sockets(self) -> dict[str, socket.socket]:
        return {"tcp": self._tcp, "udp": self._udp}


class WithoutDelay(DblpAuthors):
    """The same with TCP_NODELAY: what the protocol takes, without that wait."""

    no_delay = True


def _called(function: Any, *arguments: Any) -> tuple[Any, str]:
    """Return what a function returns, and the last line that it printed, which may say why."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        answer = function(*arguments)
    lines = printed.getvalue().split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return answer, f": {last}" if last else ""


def _connected(address: str, port: int) -> socket.socket:
    until_s = time.monotonic() + _CONNECT_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=None)
        except ConnectionRefusedError:  # the other end imports for as long as this one
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)
