"""The interface of congestion controls, and the measurements of a path that most of them use.

Write a subclass of `CongestionControl`, or of `PathControl`, whose `path` measures round trips and
delivery rates. The constructor's keyword parameters are the options; the endpoint supplies
`rate_bps` and `datagram_bytes` where the user does not. One object serves one peer in all
transfers.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from testbed.transport.errors import check_number
from testbed.transport.path_estimates import FALLEN

DATAGRAM_BYTES = 1514  # of MTU size, on an Ethernet wire
INITIAL_WINDOW = 10  # datagrams; RFC 6928
MINIMUM_WINDOW = 2  # datagrams; RFC 9002, section 7.2
FLOOR_S = 1e-6  # the least round trip: the clock may not have advanced
_SMOOTHING = 1 / 8  # weight of a new sample in the smoothed round trip (RFC 6298, section 2)
# For how many rounds the largest feedback and the longest round trip are remembered.
_REPORT_ROUNDS = 10
_RTT_ROUNDS = 1000
_NOISE = 1.05  # a round trip below this multiple of the smallest met no queue to speak of
_LAG = 2  # rounds after which all data that was sent at a new rate has been acknowledged


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """One message of the receiver reports this about the path; all sizes are wire bytes.

    Each byte sent is reported once, as delivered or as lost, unless a STOP ends the transfer
    before; one that was reported lost and arrives late is reported again, as delivered.

    Attributes:
        now_s: when the message arrived, in seconds on one monotonic clock, as all times.
        delivered_bytes: newly known to have arrived since the last feedback.
        lost_bytes: newly declared lost.
        in_flight_bytes: sent, and neither arrived nor lost, after this feedback.
        rtt_s: a sample of the round trip, of the newest acknowledged datagram; None for none.
        app_limited: the sender had less to send than it was allowed to.
        newest_sent_s: when the newest delivered datagram was sent; None: now_s - rtt_s.
        newest_lost_sent_s: when the newest lost datagram was sent; None: a round trip ago.
        waited: what is reported lay unread at a busy receiver for an unknown time.
        lost_share: of the latest datagrams, as the repair estimates it; 0 where it does not.
        queueing: a full queue may cause the losses, as far as is known.
        sent_bytes: of this transfer.
        needed_bytes: of this transfer, so many would probably do without loss.
        timed_out: the sender took all in flight for lost, since no answer came.
    """

    now_s: float
    delivered_bytes: int
    lost_bytes: int
    in_flight_bytes: int
    rtt_s: float | None = None
    app_limited: bool = False
    newest_sent_s: float | None = None
    newest_lost_sent_s: float | None = None
    waited: bool = False
    lost_share: float = 0.0
    queueing: bool = True
    sent_bytes: int = 0
    needed_bytes: float = math.inf
    timed_out: bool = False


class CongestionControl(ABC):
    """Limits one path by a rate, a window, or both.

    Attributes:
        measures: whether feedback about the path moves it: a receiver then answers at once.
        infers_queue: whether it looks for a queue by delay or rate: batches are then small.
        steady_until_s: up to then neither rate nor window moves unless a feedback comes or a
            transfer begins: `on_sent` may hear of several batches later. -math.inf: each may move
            them. It is not inherited.
        receive_buffer_bytes: what the peer's socket holds while the peer is busy; set for it.
    """

    measures = True
    infers_queue = True
    steady_until_s: float = -math.inf
    receive_buffer_bytes = math.inf

    @property
    @abstractmethod
    def rate_bps(self) -> float:
        """The allowed pace now, in bits per second on the wire; math.inf for unpaced."""

    @property
    def window_bytes(self) -> float:
        """The allowed wire bytes in flight now; math.inf (the default) for unlimited."""
        return math.inf

    def on_transfer_begin(self, now_s: float) -> None:  # noqa: B027 - optional to override
        """Called when a transfer begins, with nothing in flight, after a pause of any length."""

    def on_sent(self, sent_bytes: int, now_s: float) -> None:  # noqa: B027 - optional to override
        """Called when `sent_bytes` of datagrams were handed to the network."""

    @abstractmethod
    def on_feedback(self, feedback: Feedback) -> None:
        """Called with each feedback."""


class MaxFilter:
    """The largest sample of the last `length` rounds."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._samples: deque[tuple[int, float]] = deque()  # descending values, ascending rounds

    @property
    def value(self) -> float:
        return self._samples[0][1] if self._samples else 0.0

    def clear(self) -> None:
        self._samples.clear()

    def add(self, value: float, round_: int) -> None:
        """Adds a sample; `round_` must not decrease."""
        samples = self._samples
        while samples and samples[-1][1] <= value:
            samples.pop()
        samples.append((round_, value))
        while samples[0][0] <= round_ - self._length:
            samples.popleft()


class PathMonitor:
    """Measures one path from every transfer's begin, each batch and all feedback."""

    def __init__(self, *, min_rtt_window_s: float = math.inf) -> None:
        self.latest_rtt_s: float | None = None
        self.smoothed_rtt_s: float | None = None  # the mean of RFC 6298
        self.round_rtt_s: float | None = None  # the smallest sample of the last round that had one
        self.base_rtt_s = math.inf  # the smallest sample ever
        self.min_rtt_s = math.inf  # the smallest sample of the last `min_rtt_window_s`
        self.min_rtt_expired = self.round_trip_fell = False
        self.rounds = 0  # completed round trips
        self.round_began = False  # whether the last feedback ended a round and so began another
        self.delivered_bytes = 0  # totals
        self.lost_bytes = 0
        self.delivery_rate_bps: float | None = None  # the last feedback's sample of delivered data
        self.arrival_rate_bps: float | None = None  # the same of data that was delivered or lost
        self.min_rtt_window_s = min_rtt_window_s
        self._min_rtt_at_s = 0.0
        self._round_from_s = -math.inf
        self._least_rtt_s = math.inf  # of this round
        self._restarted = True
        self.report_bytes = MaxFilter(_REPORT_ROUNDS)  # what one feedback covered
        # For how long data lay at a busy receiver, 0 if it was not, and how many it found then.
        self.unread_s, self.unread_bytes = MaxFilter(_REPORT_ROUNDS), MaxFilter(_REPORT_ROUNDS)
        self._rtts = MaxFilter(_RTT_ROUNDS)
        # (time, bytes delivered until then, bytes lost, when the newest delivered was sent)
        self._records: deque[tuple[float, int, int, float]] = deque()

    def queued(self) -> bool:
        """The last round shows a queue that may overflow."""
        if self.round_rtt_s is None or self.round_rtt_s < _NOISE * self.base_rtt_s:
            return False
        return self.round_rtt_s > (self.base_rtt_s + self._rtts.value) / 2

    def newest_sent_s(self, feedback: Feedback) -> float | None:
        if feedback.newest_sent_s is not None:
            return feedback.newest_sent_s
        return None if feedback.rtt_s is None else feedback.now_s - feedback.rtt_s

    def newest_lost_sent_s(self, feedback: Feedback) -> float:
        """Returns a round trip ago where the feedback does not say."""
        if feedback.newest_lost_sent_s is not None:
            return feedback.newest_lost_sent_s
        return feedback.now_s - (feedback.rtt_s or self.smoothed_rtt_s or 0.0)

    def on_transfer_begin(self, now_s: float) -> None:
        """Ends the measurement: nothing is in flight, and no rate is measured across the pause."""
        self._records.clear()
        self._restarted = True

    def on_sent(self, now_s: float) -> None:
        if self._restarted:
            self._records.clear()
            self._records.append((now_s, self.delivered_bytes, self.lost_bytes, now_s))
            self._restarted = False

    def on_feedback(self, feedback: Feedback) -> None:
        now_s = feedback.now_s
        self.delivered_bytes += feedback.delivered_bytes
        self.lost_bytes += feedback.lost_bytes
        self._sample_rtt(feedback)
        sent_s = self.newest_sent_s(feedback) if feedback.delivered_bytes else None
        self.round_began = sent_s is not None and sent_s >= self._round_from_s
        if self.round_began:
            self.rounds += 1
            self._round_from_s = now_s
            if not math.isinf(self._least_rtt_s):
                self.round_rtt_s, self._least_rtt_s = self._least_rtt_s, math.inf
                self._rtts.add(self.round_rtt_s, self.rounds)
        if feedback.delivered_bytes and sent_s is None:
            # It lay unread for an unknown time: no rate is measured across that, later either.
            self.on_transfer_begin(now_s)
        self._sample_rate(now_s, sent_s)
        if sent_s is not None:
            waited = feedback.waited
            unread_s = max(0.0, now_s - sent_s - self.min_rtt_s) if waited else 0.0
            self.unread_s.add(unread_s, self.rounds)
            self.unread_bytes.add(feedback.delivered_bytes if waited else 0, self.rounds)
        if feedback.waited:
            self.on_transfer_begin(now_s)  # the next rate is not measured across the wait
        self.report_bytes.add(feedback.delivered_bytes + feedback.lost_bytes, self.rounds)
        if feedback.in_flight_bytes == 0:
            # The next send starts a new measurement; the time until then is not the path's.
            self._restarted = True

    def _sample_rtt(self, feedback: Feedback) -> None:
        self.min_rtt_expired = self.round_trip_fell = False
        sample_s = feedback.rtt_s
        if sample_s is None and feedback.newest_sent_s is not None:
            # This includes the receiver's delay, but the round trip is not longer.
            most_s = feedback.now_s - feedback.newest_sent_s
            sample_s = most_s if most_s < self.base_rtt_s else None
        if sample_s is None:
            return
        rtt_s = max(sample_s, FLOOR_S)
        self.latest_rtt_s = rtt_s
        self._least_rtt_s = min(self._least_rtt_s, rtt_s)
        self.round_trip_fell = FLOOR_S < rtt_s < FALLEN * self.base_rtt_s < math.inf
        if self.smoothed_rtt_s is None or self.round_trip_fell:
            self.smoothed_rtt_s = rtt_s
            self._rtts.clear()
        else:
            self.smoothed_rtt_s += _SMOOTHING * (rtt_s - self.smoothed_rtt_s)
        self.base_rtt_s = min(self.base_rtt_s, rtt_s)
        expired = feedback.now_s - self._min_rtt_at_s > self.min_rtt_window_s
        if rtt_s <= self.min_rtt_s or expired:
            self.min_rtt_expired = rtt_s > self.min_rtt_s
            self.min_rtt_s = rtt_s
            self._min_rtt_at_s = feedback.now_s

    def _sample_rate(self, now_s: float, sent_s: float | None) -> None:
        self.delivery_rate_bps = self.arrival_rate_bps = None
        if sent_s is None:
            return
        records = self._records
        while len(records) > 1 and records[1][0] <= sent_s:
            records.popleft()
        if records and records[0][0] <= sent_s:
            at_s, delivered, lost, base_sent_s = records[0]
            elapsed_s = max(now_s - at_s, sent_s - base_sent_s)
            # A shorter time than a round trip means that two feedbacks came together.
            if elapsed_s >= min(self.min_rtt_s, now_s - sent_s) > 0:
                gained = self.delivered_bytes - delivered
                self.delivery_rate_bps = gained * 8 / elapsed_s
                self.arrival_rate_bps = (gained + self.lost_bytes - lost) * 8 / elapsed_s
        records.append((now_s, self.delivered_bytes, self.lost_bytes, sent_s))


class PathControl(CongestionControl):
    """A control that measures its path.

    Args:
        datagram_bytes: one datagram on the wire.
    """

    min_rtt_window_s = math.inf  # for how long the smallest round trip counts

    def __init__(self, *, datagram_bytes: int = DATAGRAM_BYTES) -> None:
        check_number("datagram_bytes", datagram_bytes, above=0)
        self.path = PathMonitor(min_rtt_window_s=self.min_rtt_window_s)
        self._datagram_bytes = datagram_bytes
        self._initial_bytes = float(INITIAL_WINDOW * datagram_bytes)

    def on_transfer_begin(self, now_s: float) -> None:
        self.path.on_transfer_begin(now_s)

    def on_sent(self, sent_bytes: int, now_s: float) -> None:
        self.path.on_sent(now_s)


class Plateau(NamedTuple):
    """The rate has grown by `growth` for `patience` rounds, the delivery by less than `gain`."""

    growth: float
    gain: float
    patience: int = 1


class DeliveryPlateau:
    """Detects that the rate has grown, but no more data is delivered."""

    def __init__(self) -> None:
        self._rate_bps = 0.0
        self._delivered_bps = 0.0
        self._plateau_rounds = 0
        self._rates: deque[float] = deque(maxlen=_LAG)

    def forget(self) -> None:
        """Starts anew, after a pause or when the rate was set by other means."""
        self._rate_bps = self._delivered_bps = 0.0
        self._plateau_rounds = 0
        self._rates.clear()

    def plateau_bps(
        self, rate_bps: float, delivered_bps: float | None, plateau: Plateau
    ) -> float | None:
        """Returns the earlier rate that delivered as much, or None. Call it once per round."""
        if len(self._rates) < _LAG or delivered_bps is None:
            self._rates.append(rate_bps)
            return None
        caused_bps = self._rates[0]
        self._rates.append(rate_bps)
        if delivered_bps * plateau.gain < self._delivered_bps and caused_bps >= self._rate_bps:
            # More was sent and less arrived: it is not the rate that has made the difference.
            self.forget()
            return None
        if self._rate_bps < caused_bps < plateau.growth * self._rate_bps:
            return None
        grown = caused_bps > self._rate_bps > 0
        if grown and delivered_bps < plateau.gain * self._delivered_bps:
            self._plateau_rounds += 1
            if self._plateau_rounds < plateau.patience:
                return None
            before_bps = self._rate_bps
            self.forget()
            return before_bps
        self._rate_bps, self._delivered_bps = caused_bps, delivered_bps
        self._plateau_rounds = 0
        return None
