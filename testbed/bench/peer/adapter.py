"""Adapters: how the benchmark opens another implementation and moves a payload with it.

Both ends of a transfer make an adapter of their own, each in its own process in its own network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.shared import own_code
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of

Payload = NDArray[np.float32]
BUILT_IN = {
    "dblp-authors": "testbed.bench.peer.dblp_authors:DblpAuthors",
    "dblp-authors-nodelay": "testbed.bench.peer.dblp_authors:WithoutDelay",
}
DEFAULT = "dblp-authors"


class UnfitError(Exception):
    """The checkout is not what the adapter drives; the message says in what, in one line."""


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of a transfer. The worker sends to the server.

    Attributes:
        checkout: the folder of the other implementation.
        is_server: whether this end receives.
        server_address: IPv4, of the receiving end.
        control_port: on the server, for what must not be lost.
        data_port: on the server, UDP or TCP: the link loses what goes to this port, and nothing
            else. Data that take another one are measured without loss.
        rate_bps: what the link carries, in bits of Ethernet frames; math.inf for no limit.
        tolerance: the share of the payload that may be missing.
        chunk_bytes: the largest payload that, with 16 bytes of header, fits a frame.
        elements: the length of the payload, in float32.
    """

    checkout: Path
    is_server: bool
    server_address: str
    control_port: int
    data_port: int
    rate_bps: float
    tolerance: float
    chunk_bytes: int
    elements: int


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
    """Another implementation."""

    name: str
    adapter: str
    checkout: Path


def named(adapter: str, checkout: Path) -> Peer:
    """The other implementation that a user names; nothing of it is loaded."""
    if not checkout.is_dir():
        raise InputError(f"CHECKOUT {checkout}: no such folder")
    if adapter in BUILT_IN:
        return Peer(name=adapter, adapter=BUILT_IN[adapter], checkout=checkout.absolute())
    if not own_code.is_own(adapter):
        raise InputError(f"--adapter {adapter}: {one_of(adapter, [*BUILT_IN, own_code.FORMS])}")
    name = own_code.short(adapter)
    return Peer(name=name, adapter=own_code.located(adapter), checkout=checkout.absolute())


def load(adapter: str) -> type[Adapter]:
    """The adapter's class; for processes at the ends alone."""
    loaded: type[Adapter] = own_code.load(adapter, axis="adapter", default="Adapter", base=Adapter)
    return loaded
