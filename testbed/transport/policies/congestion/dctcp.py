"""DCTCP: reduces the window in proportion to the congestion (RFC 8257; SIGCOMM 2010).

Switches mark packets that they queue beyond a threshold. The sender estimates the marked fraction
and reduces its window by half of that fraction, once per round trip. Without marks it would behave
like Reno, so it cannot be created unless the configuration says that queues mark.
"""

from testbed.transport.core.congestion import Feedback
from testbed.transport.policies.congestion.options import (
    DATAGRAM_BYTES,
    INITIAL_WINDOW,
    check_options,
)
from testbed.transport.policies.congestion.reno import Reno


class Dctcp(Reno):
    """Reno, except that marks reduce the window in proportion to their number."""

    needs_ecn = True

    def __init__(
        self,
        *,
        datagram_bytes: int = DATAGRAM_BYTES,
        initial_window: float = INITIAL_WINDOW,
        gain: float = 1 / 16,
        ecn_marking: bool = False,
    ) -> None:
        """ValueError unless `ecn_marking` is true.

        Args:
            gain: weight of a new round trip's fraction of marks (RFC 8257, section 3.3).
            ecn_marking: states that the queues of the path mark datagrams and that the receiver's
                messages tell the sender which ones.
        """
        if ecn_marking is not True:
            raise ValueError(
                "dctcp needs queues that mark datagrams (ECN) and the path has none configured; "
                "valid: ecn_marking=true where there are some, or another congestion control"
            )
        super().__init__(datagram_bytes=datagram_bytes, initial_window=initial_window)
        check_options(at_most=1, gain=gain)
        self._gain = gain
        self._alpha = 1.0  # section 3.3: the most cautious value until the path is known
        self._delivered = 0
        self._marks = 0

    def _marked(self, feedback: Feedback) -> None:
        self._delivered += feedback.delivered_bytes
        self._marks += feedback.ecn_marked_bytes
        if self.path.round_began and self._delivered:
            self._alpha += self._gain * (self._marks / self._delivered - self._alpha)
            self._delivered = self._marks = 0
        if not feedback.ecn_marked_bytes:
            return
        sent_s = self.path.newest_sent_s(feedback)
        if sent_s is None or sent_s >= self._recovery_from_s:
            self._congested(feedback.now_s, self._window * (1 - self._alpha / 2))
