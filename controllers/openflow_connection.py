"""One connection to a switch, which knows what each answer and error is about."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from controllers.framework import Datapath, hub
from controllers.openflow_messages import Order

REPLY_TIMEOUT_S = 2.0
_TRIES = 3
_PAUSE_S = 0.1
_log = logging.getLogger("controllers.switches")

Request = Callable[[Datapath], Any]


class SwitchError(ConnectionError):
    """A switch refused something, is late, or is gone; the message is one line."""


class RefusedError(SwitchError):
    """A switch answered with an error."""


class LateError(SwitchError):
    """A switch has not answered in time."""


class ClosedError(SwitchError):
    """The connection has ended."""


class _Waiting:
    def __init__(self) -> None:
        self.done = hub.Event()
        self.parts: list[Any] = []
        self.refusal = ""


class Connection:
    """One connection of a switch; `refused` gets a refused message's owner and a sentence."""

    def __init__(
        self, switch: str, datapath: Datapath, refused: Callable[[str, str], None]
    ) -> None:
        self.switch = switch
        self.datapath = datapath
        self._refused = refused
        self._is_open = True
        self._waiting: dict[int, _Waiting] = {}
        self._sent: dict[int, tuple[str, str]] = {}  # not yet confirmed: what, and whose

    def send(self, orders: Sequence[Order]) -> bool:
        """Send messages in one piece, in order; whether there was a connection to send them."""
        if not self._is_open or not orders:
            return self._is_open
        pieces = []
        for order in orders:
            self.datapath.set_xid(order.message)
            order.message.serialize()
            self._sent[order.message.xid] = order.what, order.owner
            pieces.append(bytes(order.message.buf))
        return bool(self.datapath.send(b"".join(pieces)))

    def barrier(self) -> None:
        """Return when the switch has processed everything sent before, however long it takes."""
        before = list(self._sent)
        parser = self.datapath.ofproto_parser
        waiting, xid = self._begin(parser.OFPBarrierRequest(self.datapath))
        while not waiting.done.wait(REPLY_TIMEOUT_S):
            _log.warning("%s confirms nothing for %g s", self.switch, REPLY_TIMEOUT_S)
        self._end(waiting, xid, "a barrier")
        for each in before:
            self._sent.pop(each, None)

    def ask(self, request: Request, what: str) -> list[Any]:
        """Send a request; return the body of its answer, all parts. Asks again in vain twice."""
        for last in (*[False] * (_TRIES - 1), True):
            try:
                return self._ask_once(request, what)
            except (RefusedError, LateError) as error:
                if last:
                    raise
                _log.warning("%s; asked again", error)
                hub.sleep(_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _ask_once(self, request: Request, what: str) -> list[Any]:
        waiting, xid = self._begin(request(self.datapath))
        if not waiting.done.wait(REPLY_TIMEOUT_S):
            del self._waiting[xid]
            raise LateError(
                f"{self.switch} did not answer a request for {what} within {REPLY_TIMEOUT_S:g} s"
            )
        return self._end(waiting, xid, f"a request for {what}")

    def _begin(self, message: Any) -> tuple[_Waiting, int]:
        if not self._is_open:
            raise ClosedError(f"switch {self.switch} is not connected")
        xid = self.datapath.set_xid(message)
        waiting = self._waiting[xid] = _Waiting()
        self.datapath.send_msg(message)
        return waiting, xid

    def _end(self, waiting: _Waiting, xid: int, what: str) -> list[Any]:
        self._waiting.pop(xid, None)
        if waiting.refusal:
            raise RefusedError(f"{self.switch} refused {what}: {waiting.refusal}")
        if not self._is_open:
            raise ClosedError(f"switch {self.switch} disconnected before it answered {what}")
        return waiting.parts

    # What the switch says

    def answered(self, message: Any) -> None:
        """Take a reply: to a barrier, or a part of statistics. One that nobody awaits is late."""
        if (waiting := self._waiting.get(message.xid)) is None:
            return
        waiting.parts.extend(getattr(message, "body", None) or [])
        if not getattr(message, "flags", 0) & message.datapath.ofproto.OFPMPF_REPLY_MORE:
            waiting.done.set()

    def failed(self, message: Any) -> None:
        """Take an error message, whose transaction id is that of what was refused."""
        why = _in_words(message)
        if (waiting := self._waiting.get(message.xid)) is not None:
            waiting.refusal = why
            waiting.done.set()
        elif (sent := self._sent.pop(message.xid, None)) is not None:
            what, owner = sent
            text = f"{self.switch} refused {what} of {owner}: {why}"
            _log.error("%s", text)
            self._refused(owner, text)
        else:
            _log.warning("%s reports an error about nothing sent from here: %s", self.switch, why)

    def closed(self) -> None:
        """Note that the connection has ended; whoever waits for an answer is told so."""
        self._is_open = False
        for waiting in self._waiting.values():
            waiting.done.set()


def _in_words(message: Any) -> str:
    """The error's name in the specification, such as OFPFMFC_TABLE_FULL, else its numbers."""
    name = message.datapath.ofproto.ofp_error_code_to_str(message.type, message.code)
    if name.startswith("Unknown"):
        return f"OpenFlow error type {message.type} code {message.code}"
    return str(name).partition("(")[0]
