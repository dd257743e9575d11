"""Drives other implementations through adapters; both ends of a transfer make one each.

To add an adapter: a file of the user's own (`--adapter ./mine.py`), or a module and a line here.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.bench import coordinator
from testbed.bench.coordinator import Participant, Process
from testbed.lab.kernel import privileges
from testbed.shared import own_code
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of

Payload = NDArray[np.float32]
_AUTHORS = Path(__file__).with_name("dblp_authors.py")
BUILT_IN = {
    "dblp-authors": f"{_AUTHORS}:DblpAuthors",
    "dblp-authors-nodelay": f"{_AUTHORS}:WithoutDelay",
}
DEFAULT = "dblp-authors"


class UnfitError(Exception):
    """The checkout is not what the adapter drives; the message says in what, in one line."""


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of a transfer. The worker sends to the server."""

    checkout: Path  # the folder of the other implementation
    is_server: bool  # it receives
    server_address: str  # IPv4
    control_port: int  # on the server, for what must not be lost
    data_port: int  # on the server, UDP or TCP: the link loses what goes to this port alone
    rate_bps: float  # of Ethernet frames; math.inf for no limit
    tolerance: float  # the share of the payload that may be missing
    chunk_bytes: int  # the largest payload that, with 16 bytes of header, fits a frame
    elements: int  # of the payload, in float32


class Adapter(ABC):
    """Drives another implementation at one end. All that it raises ends the case, in its words."""

    def __init__(self, end: End) -> None:
        self.end = end

    @classmethod  # noqa: B027 (an adapter may be content with any folder)
    def check(cls, checkout: Path) -> None:
        """Raise UnfitError unless the folder holds what this drives; called once, before all."""

    @abstractmethod
    def open(self) -> None:
        """Import the implementation and connect the two ends. Not measured."""

    @abstractmethod
    def send(self, payload: Payload) -> None:
        """Send a payload (elements,); return when the sender is done with it. Measured."""

    @abstractmethod
    def receive(self) -> Payload:
        """Receive a payload and return it (elements,), 0 where it is missing. Measured."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    name: str
    adapter: str
    checkout: str  # the folder, by its whole path


def named(adapter: str, checkout: Path) -> Peer:
    """Find the other implementation that a user names; nothing of it is loaded."""
    if not checkout.is_dir():
        raise InputError(f"CHECKOUT {checkout}: no such folder")
    folder = str(checkout.absolute())
    if adapter in BUILT_IN:
        return Peer(name=adapter, adapter=BUILT_IN[adapter], checkout=folder)
    if not own_code.is_own(adapter):
        raise InputError(f"--adapter {adapter}: {one_of(adapter, [*BUILT_IN, own_code.FORMS])}")
    return Peer(name=own_code.short(adapter), adapter=own_code.located(adapter), checkout=folder)


def start(
    adapter: str, checkout: Path, enter: Callable[[], None], folder: Path, end: End | None = None
) -> Process:
    """Start the process, in a folder to write into; without an end it checks the checkout alone."""

    def begin(participant: Participant) -> None:
        enter()
        os.chdir(folder)
        sys.dont_write_bytecode = True  # nothing is left in the user's clone
        privileges.abandon()
        _drive(adapter, checkout, end, participant)

    return coordinator.start(begin)


def _drive(adapter: str, checkout: Path, end: End | None, participant: Participant) -> None:
    doing = "check"
    try:
        kind: type[Adapter] = own_code.load(
            adapter, axis="adapter", default="Adapter", base=Adapter
        )
        kind.check(checkout)
        if end is None:
            participant.ready()
            if participant.next_transfer():
                participant.report({})
            return
        doing = "open"
        side = kind(end)
        side.open()
        participant.ready()
        doing = "receive" if end.is_server else "send"
        _transfer(side, end, participant)
    except (InputError, UnfitError) as error:
        participant.fail(str(error))
    except BaseException as error:  # SystemExit too: the code is not ours
        # Before this process ends and the other end notices, which is not to blame.
        participant.fail(f"{doing}: {type(error).__name__}: {error}")


def _transfer(adapter: Adapter, end: End, participant: Participant) -> None:
    # No element is 0, which is what stands for a missing one.
    payload = np.arange(1, end.elements + 1, dtype=np.float32)
    while participant.next_transfer():
        received: Payload | None = None
        cpu_s, began_s = time.process_time(), time.monotonic()
        if end.is_server:
            received = adapter.receive()
        else:
            adapter.send(payload)
        ended_s = time.monotonic()
        used_s = time.process_time() - cpu_s
        participant.report(
            {
                "cpu_s": used_s,
                "began_s": began_s,
                "ended_s": ended_s,
                "chunks_received": 0 if received is None else _arrived(received, payload, end),
                "chunk_count": end.elements,
            }
        )


def _arrived(received: Payload, sent: Payload, end: End) -> int:
    """Count the elements that came; ValueError where they are not what was sent, or too few."""
    values = np.asarray(received)
    if values.shape != sent.shape or values.dtype != sent.dtype:
        returned = f"returned {values.dtype} of shape {values.shape}"
        raise ValueError(f"{returned}; expected float32 of shape {sent.shape}")
    arrived = values != 0
    if not np.array_equal(values[arrived], sent[arrived]):
        raise ValueError("returned values that were not sent")
    count = int(np.count_nonzero(arrived))
    # The last chunk may be the only one that is short.
    allowed = end.tolerance * end.elements + end.chunk_bytes / values.itemsize
    if end.elements - count > allowed:
        share = 1 - count / end.elements
        raise ValueError(f"{share:.2%} of the payload is missing, of at most {end.tolerance:.2%}")
    return count
