"""An adapter: drives another implementation of a transport in `./lab bench peer`.

    ./lab bench peer examples/peer --adapter examples/peer/plain_tcp.py --quick

That ends with status 1: where the link loses 60 %, TCP is not done in the 8 s that a case has.

This one drives a folder with a `theirs.py` such as the one beside it. Change `open`, `send` and
`receive` for yours. Both ends of a transfer make an object of this class, each in a process of its
own. `testbed.bench.peer` says what `self.end` holds.
"""

import importlib
import socket
import sys
import time
from pathlib import Path

import numpy as np

from testbed.bench.peer import Adapter, Payload, UnfitError


class PlainTcp(Adapter):
    @classmethod
    def check(cls, checkout: Path) -> None:
        if not (checkout / "theirs.py").is_file():
            raise UnfitError(f"{checkout}: has no theirs.py, which this adapter drives")

    def open(self) -> None:
        """Not measured: import the implementation, and connect the two ends."""
        end = self.end
        sys.path.insert(0, str(end.checkout))
        self.theirs = importlib.import_module("theirs")
        # The link loses what goes to this port; what must not be lost goes to end.control_port.
        place = (end.server_address, end.data_port)
        if end.is_server:
            with socket.create_server(place) as listening:
                self.connection, _ = listening.accept()
        else:
            self.connection = connected(place)

    def send(self, payload: Payload) -> None:
        """Measured: return when the sender is done."""
        self.theirs.send_all(self.connection, payload.tobytes())

    def receive(self) -> Payload:
        """Measured: return all elements, 0 where one is missing."""
        data = self.theirs.receive_all(self.connection, self.end.elements * 4)
        return np.frombuffer(data, dtype=np.float32)


def connected(place: tuple[str, int]) -> socket.socket:
    for _ in range(200):  # the other end may still be importing
        try:
            return socket.create_connection(place)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise ConnectionRefusedError(f"nobody listens on {place}")
