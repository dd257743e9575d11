"""Who may join: reads the HELLO of a stream that is nobody's yet, and judges it.

Threat model. The session identifier (32 random bits per run) tells runs apart and keeps out
strangers who can only guess it. Without TLS it is not secret from those who read the traffic; then
whoever reads can also forge. With TLS each side proves its name by a certificate that the other was
given beforehand, and each worker's datagrams are authenticated with a key of its own.

* A newcomer is read until its HELLO is complete, for HELLO_WITHIN_S at most. Nothing is answered
  before, so a stranger costs one connection and learns nothing.
* On a data port, datagrams of other sessions, addresses or ports are counted and dropped. A
  receiver answers on the control stream alone, so it cannot be used to amplify traffic. A hedge
  of control messages may be answered by up to 8, of 1.2 kB each, to the joined peer alone.
* A joined peer is trusted with its own data only. Its messages are checked, memory and work for it
  are bounded, and an invalid message ends its connection with a reason.
"""

from collections.abc import Mapping

from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.messages import (
    HEADER_BYTES,
    ControlParser,
    Hello,
    MessageType,
    body_limits,
)

SERVER = "server"  # its name; no worker has it
HELLO_WITHIN_S = 5.0
# The most newcomers at a time; the oldest makes room for the next.
MAX_NEWCOMERS = 64
# A HELLO's session follows its header; a wrong one ends the reading early.
_SESSION_BYTES = 4


class StrangerError(Exception):
    """A newcomer that is turned away without an answer; its text is the counter's name.

    Attributes:
        name: what it calls itself, where it has come so far.
    """

    def __init__(self, why: str, name: str | None = None) -> None:
        super().__init__(why)
        self.name = name


class Newcomer:
    """A control stream of which no complete HELLO has come yet.

    Attributes:
        until_s: when the patience with it ends.
    """

    def __init__(self, session: int, now_s: float) -> None:
        self.until_s = now_s + HELLO_WITHIN_S
        self._session = session
        self._head = b""
        self._parser = ControlParser({MessageType.HELLO: body_limits(1)[MessageType.HELLO]})

    def feed(self, data: bytes) -> Hello | None:
        """Takes the next bytes, none at the stream's end; returns the HELLO once it is complete.

        Raises StrangerError: "silent", "garbage" or "wrong-session".
        """
        if not data:
            raise StrangerError("silent")
        try:
            messages = self._parser.feed(data)
            if not messages:
                # One without the session must not fill memory with a long HELLO.
                self._head = (self._head + data)[: HEADER_BYTES + _SESSION_BYTES]
                named = self._head[HEADER_BYTES:]
                if len(named) == _SESSION_BYTES and int.from_bytes(named, "big") != self._session:
                    raise StrangerError("wrong-session")
                return None
            hello = Hello.parse(messages[0].body)
        except ProtocolError:
            raise StrangerError("garbage") from None
        if len(messages) > 1 or self._parser.pending_bytes:
            raise StrangerError("garbage")  # a peer waits for the WELCOME before it says more
        if hello.session != self._session:
            raise StrangerError("wrong-session", hello.name)
        return hello


class Admission:
    """Judges HELLOs for a server."""

    def __init__(
        self, *, addresses: Mapping[str, str], layout: PayloadLayout | None = None, terms: str = ""
    ) -> None:
        """`addresses`: name -> numeric IP address of each worker that is expected.

        Without a layout none is compared: a worker's further connections need not repeat it.
        """
        self._addresses = dict(addresses)
        self._layout = layout
        self._terms = terms

    def judge(self, hello: Hello, address: str, identity: str | None = None) -> None:
        """Returns if the worker may join.

        `address` is the stream's, `identity` the name that a certificate has proven, if any.
        Raises StrangerError for who is not expected, ProtocolError (to be said to the worker) for
        one of ours that cannot take part.
        """
        if hello.name not in self._addresses:
            raise StrangerError("unknown-name", hello.name)
        if address != self._addresses[hello.name]:
            raise StrangerError("unknown-address", hello.name)
        if identity is not None and identity != hello.name:
            raise StrangerError("another-name", hello.name)
        if hello.terms != self._terms:
            raise ProtocolError(
                f"the transports differ: the server has {self._terms}, {hello.name} {hello.terms}"
            )
        if self._layout is None or hello.layout == self._layout.encode():
            return
        theirs = PayloadLayout.decode(hello.layout)
        difference = self._layout.difference(theirs, ("the server", hello.name))
        if difference is not None:
            raise ProtocolError(f"the payload layouts differ: {difference}")
