"""Receiving and sending batches by the compiled library: one call each."""

import ctypes
import os

from testbed.transport.native.loading import LIBRARY


class _Receiving(ctypes.Structure):
    """struct receiving."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("messages", "rows", "peer")),
        *(
            (name, ctypes.c_uint32)
            for name in (
                *("count", "per_message", "datagram_bytes", "address_bytes", "control_bytes"),
                *("received", "unsorted"),
            )
        ),
        ("rows_room", ctypes.c_uint64),
        ("foreign", ctypes.c_uint64),
    ]


class _Sending(ctypes.Structure):
    """struct sending."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("messages", "vectors")),
        *((name, ctypes.c_uint32) for name in ("count", "per_message", "datagram_bytes")),
    ]


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


class ReceiveCall:
    """Receives into message headers that were prepared."""

    def __init__(self, **described: int) -> None:
        """Addresses and sizes of what is to be used, by the names of the structure."""
        assert LIBRARY is not None
        self._it = _Receiving(**described)
        self.address = ctypes.addressof(self._it)  # of its struct receiving
        self._receive = LIBRARY.receive
        self.received = 0  # messages that the last call received

    def __call__(self, descriptor: int) -> int | None:
        """How many rows hold datagrams now; None where the messages must be sorted out."""
        return self.result(self._receive(self.address, descriptor))

    @property
    def foreign(self) -> int:
        """How many datagrams of others than the peer C has dropped so far."""
        return int(self._it.foreign)

    def result(self, rows: int) -> int | None:
        """The same of a call that C made itself."""
        rows = _checked(rows)
        self.received = self._it.received
        return None if self._it.unsorted else rows


class SendCall:
    """Sends rows through message headers that were prepared."""

    def __init__(self, **described: int) -> None:
        """Addresses and sizes of what is to be used, by the names of the structure."""
        assert LIBRARY is not None
        self._it = _Sending(**described)
        self.address = ctypes.addressof(self._it)  # of its struct sending
        self._send = LIBRARY.send_rows

    def __call__(self, descriptor: int, rows: int, count: int) -> int:
        """How many of `count` rows, which begin at an address, the kernel took; OSError if none."""
        return _checked(self._send(self.address, descriptor, rows, count))
