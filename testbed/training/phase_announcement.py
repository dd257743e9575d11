"""The server's announcement of the phase to the workers: one byte, sent before each broadcast.

The workers receive the broadcast and must know how much they may give up. The paper does not say
how its workers learn the phase.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """The training's phase, valid from one announcement to the next."""

    critical: bool

    def encode(self) -> bytes:
        """The body of the announcement."""
        return b"\x01" if self.critical else b"\x00"

    @classmethod
    def decode(cls, body: bytes) -> Phase:
        """Decode a body.

        Raises:
            ValueError: it is not one byte, 0 or 1.
        """
        if body not in (b"\x00", b"\x01"):
            raise ValueError(f"not a phase announcement: {body[:8]!r}")
        return cls(critical=body == b"\x01")
