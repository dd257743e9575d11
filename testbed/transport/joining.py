"""Admission of newcomers: reads the HELLO of a stream that is no peer's yet, and judges it.

Nothing is sent before, so an unknown sender learns nothing (`docs/concepts/connection.md`).
"""

from collections.abc import Container
from dataclasses import dataclass

from testbed.transport.errors import ProtocolError
from testbed.transport.layout import PayloadLayout
from testbed.transport.messages import HEADER_BYTES, ControlParser, Hello, MessageType, body_limits

SERVER = "server"  # its name; no worker has it
HELLO_WITHIN_S = 5.0
# The most newcomers at a time; the oldest makes room for the next.
MAX_NEWCOMERS = 64
# A HELLO's session follows its header; a wrong one ends the reading early.
_SESSION_BYTES = 4


class UnknownSenderError(Exception):
    """A newcomer that is turned away without an answer; its text is the counter's name."""

    def __init__(self, why: str, name: str | None = None) -> None:
        super().__init__(why)
        self.name = name  # what it calls itself, where it has come so far


class Newcomer:
    """A control stream of which no complete HELLO has come yet."""

    def __init__(self, session: int, now_s: float) -> None:
        self.until_s = now_s + HELLO_WITHIN_S  # when the patience with it ends
        self._session = session
        self._head = b""
        self._parser = ControlParser({MessageType.HELLO: body_limits(1)[MessageType.HELLO]})

    def feed(self, data: bytes) -> Hello | None:
        """Takes the next bytes, none at the stream's end; returns the HELLO once it is complete."""
        if not data:
            raise UnknownSenderError("silent")
        try:
            messages = self._parser.feed(data)
            if not messages:
                # One without the session must not fill memory with a long HELLO.
                self._head = (self._head + data)[: HEADER_BYTES + _SESSION_BYTES]
                named = self._head[HEADER_BYTES:]
                if len(named) == _SESSION_BYTES and int.from_bytes(named, "big") != self._session:
                    raise UnknownSenderError("wrong-session")
                return None
            hello = Hello.parse(messages[0].body)
        except ProtocolError:
            raise UnknownSenderError("garbage") from None
        if len(messages) > 1 or self._parser.pending:
            raise UnknownSenderError("garbage")  # a peer waits for the WELCOME before it says more
        if hello.session != self._session:
            raise UnknownSenderError("wrong-session", hello.name)
        return hello


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Judges HELLOs for a server."""

    names: Container[str]  # of the workers that are expected
    layout: PayloadLayout | None = None
    terms: str = ""

    def judge(self, hello: Hello, *, at_home: bool, identity: str | None) -> None:
        """Returns if the worker may join; `at_home`: it has the address of its name."""
        if hello.name not in self.names:
            raise UnknownSenderError("unknown-name", hello.name)
        if not at_home:
            raise UnknownSenderError("unknown-address", hello.name)
        if identity is not None and identity != hello.name:
            raise UnknownSenderError("another-name", hello.name)
        if hello.terms != self.terms:
            raise ProtocolError(
                f"the transports differ: the server has {self.terms}, {hello.name} {hello.terms}"
            )
        if self.layout is None or hello.layout == self.layout.encode():
            return
        theirs = PayloadLayout.decode(hello.layout)
        difference = self.layout.difference(theirs, ("the server", hello.name))
        if difference is not None:
            raise ProtocolError(f"the payload layouts differ: {difference}")
