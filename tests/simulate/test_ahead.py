"""A sender that sends ahead and a receiver that reads late change nothing."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.simulate.engine import Simulation
from testbed.simulate.peer import Way, schedule
from testbed.transport.pacing import Pacer
from tests.simulate.parties import Parties
from tests.transport.virtual import DoublingLink, random_payload, reports, way_back

SIZE = 74


def stepped(pacer, now_s, count, beyond):
    """It returns when batches go, by a driver that asks the pacer again and again."""
    batches, left = [], count
    while left:
        now_s = pacer.next_s(now_s, left + beyond)
        size = min(pacer.allowance(now_s, left + beyond), left)
        pacer.spend(size)
        batches.append((now_s, size))
        left -= size
    return batches


@settings(deadline=None)
@given(
    rate_bps=st.floats(1e5, 1e9),
    queue_bytes=st.one_of(st.just(math.inf), st.floats(1e3, 1e6)),
    transfer=st.integers(1, 2000),
    count=st.integers(1, 2000),
    beyond=st.integers(0, 3),
    idle_s=st.floats(0, 0.1),
)
def test_the_schedule_is_that_of_a_pacer_that_is_asked(
    rate_bps, queue_bytes, transfer, count, beyond, idle_s
):
    one, two = (
        Pacer(rate_bps=rate_bps, datagram_wire_bytes=SIZE, queue_bytes=queue_bytes)
        for _ in range(2)
    )
    for pacer in (one, two):
        pacer.fit(transfer)
        pacer.resume(1.0)
        pacer.spend(min(pacer.allowance(1.0), 3))
    times_s, sizes, _ = schedule(one, 1.0 + idle_s, count, beyond)
    batches = stepped(two, 1.0 + idle_s, count, beyond)
    if beyond:  # what would go with some of those behind is left to them
        batches = batches[: len(sizes)]
        assert sum(sizes) > count - pacer.most
    assert sizes.tolist() == [size for _, size in batches]
    assert np.allclose(times_s, [at_s for at_s, _ in batches], rtol=0, atol=1e-6)


class Two(Parties):
    def __init__(self, *, ahead, chunks, tolerance=0.0, repair="passes", late_s=0.0, **link):
        simulation = Simulation()
        self.link = DoublingLink(simulation, rate_bps=10e6, delay_s=0.005, seed=3, **link)
        ways = Way([self.link]), way_back(simulation, 0.005)
        super().__init__(simulation, ways, chunks=chunks, rate_bps=9e6, repair=repair, ahead=ahead)
        self.into = self.layout.new_buffer()
        self.send(2, random_payload(self.layout))
        simulation.at(late_s, lambda: self.receive(2, self.into, tolerance=tolerance))

    def ended(self):
        self.simulation.run(limit=200_000)
        self.simulation.at(self.simulation.now_s + 1, self.link.catch_up)  # nobody looks any more
        self.simulation.run()
        return [reports(peer)[0] for peer in (self.worker, self.server)]


CASES = [
    {"chunks": 400},
    {"chunks": 400, "loss": 0.3},
    {"chunks": 400, "loss": 0.3, "tolerance": 0.2},
    {"chunks": 400, "tolerance": 0.4},
    {"chunks": 400, "loss": 0.9, "tolerance": 0.1},
    {"chunks": 400, "jitter_s": 0.01, "duplicate": 0.05, "loss": 0.1},
    {"chunks": 400, "queue_bytes": 300},
    {"chunks": 400, "late_s": 0.02, "tolerance": 0.3},
    {"chunks": 3, "loss": 0.5},
    {"chunks": 400, "loss": 0.2, "repair": "streaming"},
    {"chunks": 400, "loss": 0.2, "repair": "selective", "tolerance": 0.1},
]


@pytest.mark.parametrize("case", CASES)
def test_a_transfer_ends_the_same_whether_its_plan_is_one_train_or_many_events(case):
    ahead, stepwise = Two(ahead=True, **case), Two(ahead=False, **case)
    for one, two in zip(ahead.ended(), stepwise.ended(), strict=True):
        for name in ("chunks_received", "passes", "chunks_sent", "duplicates", "control_bytes"):
            assert getattr(one, name) == getattr(two, name), name
        assert np.array_equal(one.received, two.received)
        for name in ("began_s", "ended_s"):
            assert getattr(one, name) == pytest.approx(getattr(two, name), abs=1e-9), name
    assert np.array_equal(ahead.into, stepwise.into)
    links = ahead.link, stepwise.link
    assert len({(link.sent, link.dropped, link.lost) for link in links}) == 1


def test_going_ahead_costs_fewer_events_and_what_has_not_departed_at_a_stop_does_not_depart():
    ahead, stepwise = (Two(ahead=ahead, chunks=2000, tolerance=0.5) for ahead in (True, False))
    sent, received = ahead.ended()
    assert 1000 == received.chunks_received < sent.chunks_sent < 1200
    assert ahead.link.sent == sent.chunks_sent
    stepwise.ended()
    assert ahead.simulation.events < 0.1 * stepwise.simulation.events
