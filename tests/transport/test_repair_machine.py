"""Any interleaving of sending, delivery, loss, duplication, reordering and time; all repairs."""

from collections import deque
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from testbed.transport import SendingPath
from testbed.transport.chunk_energy import Selection
from testbed.transport.messages import ControlMessage
from testbed.transport.order import sending_order
from testbed.transport.repair import REPAIRS
from testbed.transport.tolerance import required_chunks
from tests.transport.virtual import Recorder, layout_of, new_receiver, new_sender, random_payload

_WIRE_BYTES = 32 + 42  # a datagram of layout_of's chunks


class Repairs(RuleBasedStateMachine):
    """One transfer; what is in the network is in plain lists."""

    @initialize(
        name=st.sampled_from(list(REPAIRS)),
        chunks=st.integers(1, 30),
        tolerance=st.sampled_from([0.0, 0.1, 0.5]),
        keep=st.sampled_from([1.0, 0.5, 0.1]),
        window=st.sampled_from([0.0, 3 * _WIRE_BYTES, float("inf")]),
        rate_bps=st.sampled_from([float("inf"), 1e6]),
    )
    def begin(self, name, chunks, tolerance, keep, window, rate_bps):
        layout = layout_of(chunks, last_elements=2)
        self.now_s = 0.0
        self.control = Recorder(rate_bps=rate_bps, window_bytes=window)
        self.limit = 1 if not window else window // _WIRE_BYTES
        self.sent_rows = layout.rows(random_payload(layout, chunks))
        selection, order = Selection(keep), sending_order("shuffled", "none", keep, seed=1)
        self.chosen = selection.chosen(layout, self.sent_rows)
        self.required = required_chunks(selection.count(layout), tolerance)
        repair = REPAIRS.create(name)
        self.has_passes = repair.receiver(transfer=6, datagram_wire_bytes=100).has_passes
        path = SendingPath(congestion=self.control, chunk_bytes=16)
        payload = self.sent_rows.reshape(-1)
        self.sender = new_sender(layout, payload=payload, repair=repair, path=path, order=order)
        common = {"repair": repair, "order": order}
        self.receiver, into = new_receiver(layout, tolerance=tolerance, **common)
        self.into = layout.rows(into)
        self.network: list[np.ndarray] = []
        self.to_receiver: deque[ControlMessage] = deque()
        self.to_sender: deque[ControlMessage] = deque()

    def collect(self):
        if not self.sender.stopped:
            self.sender.offer(self.now_s)  # as drivers do after every event
            self.to_receiver.extend(self.sender.poll_messages())
        self.to_sender.extend(self.receiver.poll_messages())

    def deliver(self, frames):
        if not self.receiver.stopped:
            self.receiver.on_datagrams(frames, self.now_s)

    @precondition(lambda self: not self.sender.stopped)
    @rule(taken=st.floats(0, 1))
    def send(self, taken):
        frames = self.sender.offer(self.now_s)
        count = round(taken * len(frames))
        self.network.extend(frames[:count].copy())
        self.sender.sent(count, self.now_s)
        self.collect()

    @precondition(lambda self: self.network)
    @rule(data=st.data(), fate=st.sampled_from(["deliver", "duplicate", "drop"]))
    def carry(self, data, fate):
        at = data.draw(st.integers(0, len(self.network) - 1))
        if fate != "drop":
            self.deliver(self.network[at][np.newaxis])
        if fate != "duplicate":
            del self.network[at]
        self.collect()

    @precondition(lambda self: self.network)
    @rule(keep=st.integers(0, 2**30))
    def carry_many(self, keep):
        """Every second one or so arrives, in one batch."""
        arriving = [frame for i, frame in enumerate(self.network) if keep >> (i % 30) & 1]
        self.network.clear()
        if arriving:
            self.deliver(np.stack(arriving))
        self.collect()

    @precondition(lambda self: self.to_receiver)
    @rule(attentive=st.booleans())
    def tell_receiver(self, attentive):
        self.receiver.attentive = attentive
        self.receiver.on_message(self.to_receiver.popleft(), self.now_s)
        self.collect()

    @precondition(lambda self: self.to_sender)
    @rule()
    def tell_sender(self):
        self.sender.on_message(self.to_sender.popleft(), self.now_s)
        self.collect()

    @rule(step_s=st.sampled_from([1e-5, 1e-3, 0.1]))
    def wait(self, step_s):
        self.now_s += step_s
        if not self.sender.stopped:
            self.sender.on_deadline(self.now_s)
        deadline_s = None if self.receiver.stopped else self.receiver.next_deadline_s()
        if deadline_s is not None and deadline_s <= self.now_s:
            self.receiver.on_deadline(self.now_s)
        self.collect()

    @invariant()
    def what_is_here_is_right(self):
        received = self.receiver.received
        assert np.array_equal(self.into[received], self.sent_rows[received])
        assert not self.into[~received].any()
        assert not (received & ~self.chosen).any()
        assert self.receiver.received_count == int(received.sum())

    @invariant()
    def the_bound_decides(self):
        assert self.receiver.stopped == (self.receiver.received_count >= self.required)
        assert self.receiver.stopped or not self.sender.stopped

    @invariant()
    def the_window_is_kept_and_every_datagram_is_accounted_for(self):
        repair: Any = self.sender._repair
        sent = self.sender._datagrams_sent
        assert 0 <= repair.in_flight <= min(sent, self.limit)
        sent_bytes, heard = sum(self.control.sent), self.control.heard
        assert sent_bytes == sent * _WIRE_BYTES
        delivered = sum(feedback.delivered_bytes for feedback in heard)
        lost = sum(feedback.lost_bytes for feedback in heard)
        # A late one is lost first and delivered then.
        assert delivered + lost >= (sent - repair.in_flight) * _WIRE_BYTES
        assert max(delivered, lost) <= sent_bytes
        for feedback in heard:
            assert feedback.in_flight_bytes >= 0
            assert feedback.rtt_s is None or feedback.rtt_s >= 0
            assert feedback.newest_sent_s is None or feedback.newest_sent_s <= feedback.now_s
        if not self.has_passes:
            arrived = repair.scoreboard.arrived & self.chosen
            assert not np.any(arrived & ~self.receiver.received)

    @invariant()
    def the_sender_never_waits_for_nothing(self):
        if self.sender.stopped or self.to_receiver or self.to_sender:
            return
        waits_for_answer = self.sender.asked_s is not None
        assert waits_for_answer or self.sender.next_deadline_s(self.now_s) is not None

    def teardown(self):
        """From wherever things stand, a network without loss ends the transfer."""
        if not hasattr(self, "sender"):
            return
        for _ in range(2000):
            if self.sender.stopped:
                break
            self.send(1.0)
            self.wait(1e-3)
            while self.network:
                self.deliver(self.network.pop(0)[np.newaxis])
            self.collect()
            while self.to_receiver:
                self.tell_receiver(True)
            while self.to_sender:
                self.tell_sender()
        assert self.sender.stopped
        received = self.sender.report("r").received
        assert received is not None
        assert np.array_equal(received, self.receiver.received)
        self.what_is_here_is_right()


Repairs.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestRepairs = Repairs.TestCase
