"""The server's announcement of the phase to the workers: one byte, sent before each broadcast.

It is valid until the next one. The workers receive the broadcast and must know how much they may
give up. The paper does not say how its workers learn the phase.
"""


def encode(critical: bool) -> bytes:
    """The body of the announcement."""
    return b"\x01" if critical else b"\x00"


def decode(body: bytes) -> bool:
    """Whether the announced phase is critical; ValueError when the body is not one byte, 0 or 1."""
    if body not in (b"\x00", b"\x01"):
        raise ValueError(f"not a phase announcement: {body[:8]!r}")
    return body == b"\x01"
