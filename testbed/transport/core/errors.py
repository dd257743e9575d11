"""The exceptions of the transport."""


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
        super().__init__(f"lost {peer}: {reason}")
        self.peer = peer
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        # Without this, pickling between processes fails.
        return type(self), (self.peer, self.reason)
