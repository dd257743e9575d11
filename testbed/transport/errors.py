"""The exceptions of the transport, and the check of the numbers that a user gives."""

import math
import sys
from typing import Any

from testbed.shared.input_error import shown


class TransportError(Exception):
    """Base of every error of this package except mistakes in its configuration."""


class ProtocolError(TransportError):
    """The other side sent something that the protocol does not allow; the text says what."""


class PeerLost(TransportError):  # noqa: N818 - the event that happened
    """A needed peer is gone: its connection ended, or it was silent for too long.

    Attributes:
        peer: the name under which the endpoint's configuration lists the peer.
        reason: one line.
    """

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer = peer
        self.reason = reason

    def __str__(self) -> str:
        return f"lost {self.peer}: {self.reason}"


def check_number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    whole: bool = False,
) -> None:
    """Raises ValueError, which says what is valid, unless it is a finite number in the range."""
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    # A whole number may be beyond all floats, where nobody could multiply it.
    if number and abs(value) <= sys.float_info.max and least <= value <= most and value > above:
        return
    kind = "a whole number, " if whole else "seconds, " if name.endswith("_s") else ""
    if math.isinf(least):
        limits = f"above {above:g}" + ("" if math.isinf(most) else f", up to {most:g}")
    else:
        limits = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
    raise ValueError(f"{name} is {shown(value)}; valid: {kind}{limits}")
