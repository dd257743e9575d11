"""How the server tells the workers the phase: one byte, sent reliably before each broadcast.

The paper does not say how its workers learn the phase; they are the receivers of the broadcast and
must know what they may give up.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """The training's phase, valid from this broadcast to the next announcement."""

    critical: bool

    def encode(self) -> bytes:
        """The announcement's body."""
        return b"\x01" if self.critical else b"\x00"

    @classmethod
    def decode(cls, body: bytes) -> Phase:
        """Read a body.

        Raises:
            ValueError: it is not one byte, 0 or 1.
        """
        if body not in (b"\x00", b"\x01"):
            raise ValueError(f"not a phase announcement: {body[:8]!r}")
        return cls(critical=body == b"\x01")
