"""What can go wrong in a transfer, as exceptions that say what and with whom."""


class TransportError(Exception):
    """Base of every error of this package that is not a mistake in its configuration."""


class ProtocolError(TransportError):
    """The other side sent something that the protocol does not allow; the text names what."""


class PeerLost(TransportError):  # noqa: N818 - the event that happened
    """A peer that still owed something is gone: its connection ended, or it fell silent.

    Attributes:
        peer: the name under which the endpoint's configuration lists the peer.
        reason: one line.
    """

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"lost {peer}: {reason}")
        self.peer = peer
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.peer, self.reason)  # else copies between processes fail
