"""A sender whose data do not arrive, although control messages do: it sends less, and pauses."""

from __future__ import annotations

from testbed.transport.core.congestion import Feedback

BATCH = 32  # datagrams between two pauses

# Answers must have named nothing new for so long, and so many of them. Time alone says little: a
# busy peer may have answered once a second.
_TIME_S = 1.0
_ANSWERS = 16
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Fruitlessness:
    """What the answers to one transfer have named.

    Attributes:
        since_s: since when they have named nothing new; None while data arrive.
        resume_s: until when to pause, once it `pauses`.
    """

    def __init__(self, now_s: float) -> None:
        self.since_s: float | None = None
        self.resume_s = now_s
        self._answers = 0
        self._pause_s = _FIRST_PAUSE_S

    def pauses(self, now_s: float) -> bool:
        """Whether control messages have come for a while, but no data has arrived."""
        enough = self._answers >= _ANSWERS
        return self.since_s is not None and enough and now_s - self.since_s >= _TIME_S

    def on_answer(self, feedback: Feedback | None, now_s: float) -> None:
        """Notes whether an answer tells of arrivals, or of losses alone."""
        if feedback is None:
            return
        if feedback.delivered_bytes:
            self.forget()
            self._pause_s = _FIRST_PAUSE_S
        elif feedback.lost_bytes:
            self._answers += 1
            if self.since_s is None:
                self.since_s = self.resume_s = now_s

    def on_sent(self, now_s: float) -> None:
        """A batch went while it pauses: the next one waits, each time longer."""
        self.resume_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def forget(self) -> None:
        """What was answered says nothing any more."""
        self.since_s, self._answers = None, 0

    def excuse(self, away_s: float) -> None:
        """For so long this side sent nothing that an answer could have named."""
        if self.since_s is not None:
            self.since_s += away_s
