"""A rate that makes up for losses which no queue causes."""

import copy

import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.transport import PayloadLayout
from testbed.transport.core.congestion import Feedback
from testbed.transport.core.path_estimates import PathEstimates
from testbed.transport.policies.congestion import CompensatedRate, FixedRate
from tests.transport.link_transfers import TransferFlow
from tests.transport.virtual import random_payload

SHARE_BPS = 33e6


def feedback(lost_share, queueing=False, sent=160):
    return Feedback(
        now_s=1.0,
        delivered_bytes=1514,
        lost_bytes=1514,
        in_flight_bytes=0,
        lost_share=lost_share,
        queueing=queueing,
        sent_bytes=sent * 1514,
        enough_bytes=100 * 1514,
    )


@pytest.mark.parametrize(
    ("lost_share", "times"),
    [(0.0, 1.0), (1e-9, 1.0), (0.2, 1.25), (0.5, 2.0), (0.9, 3.0), (1.0, 3.0)],
)
def test_of_a_late_transfer_as_much_arrives_as_without_loss_up_to_a_bound(lost_share, times):
    control = CompensatedRate(rate_bps=SHARE_BPS)
    assert control.steady
    control.on_feedback(feedback(lost_share))
    assert control.rate_bps == pytest.approx(times * SHARE_BPS)
    assert control.steady == (times == 1)
    control.on_feedback(feedback(lost_share, queueing=True))
    assert control.rate_bps == SHARE_BPS


def test_each_transfer_begins_at_its_own_rate_and_keeps_to_it_until_it_is_late():
    control = CompensatedRate(rate_bps=SHARE_BPS, most=10)
    control.on_feedback(feedback(0.9))
    assert control.rate_bps == pytest.approx(10 * SHARE_BPS)
    control.on_transfer_begin(2.0)
    assert control.rate_bps == SHARE_BPS
    control.on_feedback(feedback(0.9, sent=149))
    assert control.rate_bps == SHARE_BPS
    assert not control.steady
    control.on_sent(2 * 1514, 2.1)  # it needs no answer to know that it is late
    assert control.rate_bps == pytest.approx(10 * SHARE_BPS)


@pytest.mark.parametrize(
    ("full_s", "latest_s", "may"),
    [
        (0.012, 0.0021, False),  # half of the smallest and 2 ms more are 2.1 ms
        (0.012, 0.0024, True),
        (0.0012, 0.0007, False),  # half of the full queue are 0.6 ms
        (0.0012, 0.0009, True),
    ],
)
def test_a_queue_may_cause_losses_that_half_fills_it(full_s, latest_s, may):
    known = PathEstimates()
    assert known.may_queue(full_s)  # nobody knows
    known.on_round_trip(0.0002)
    assert not known.may_queue(full_s)
    known.on_round_trip(latest_s)
    assert known.may_queue(full_s) == may


def sent_and_took_s(control, *, loss=0.0, link_bps=100e6, rivals=0):
    """What a transfer of 200 chunks takes after three calm ones: datagrams, and seconds.

    `rivals` of the same kind send to the same link; its queue holds 50 kB for each.
    """
    simulation, flows = Simulation(), []
    queue_bytes = 50_000 * (1 + rivals)
    link = Link(simulation, rate_bps=100e6, delay_s=1e-4, queue_bytes=queue_bytes, seed=3)
    layout = PayloadLayout([("weights", 72_000)])
    for kind in (control, *(copy.deepcopy(control) for _ in range(rivals))):
        flow = TransferFlow(
            simulation,
            [link],
            kind,
            repair="streaming:lost_first=true",
            layout=layout,
            payload=random_payload(layout, 1),
            return_delay_s=1e-4,
            transfers=4,
            pause_s=0.01,
            queue_bytes=50_000,
        )
        flow.start(0.0)
        flows.append(flow)
    simulation.run(done=lambda: all(len(flow.ended_s) == 3 for flow in flows), limit=10**6)
    calm, began_s = link.sent, simulation.now_s
    link.loss = loss
    link.set_rate(link_bps)
    simulation.run(done=lambda: all(flow.done for flow in flows), limit=10**6)
    assert all(flow.intact for flow in flows)
    assert link.dropped > 0 or link_bps == 100e6
    return link.sent + link.dropped - calm, max(flow.ended_s[3] for flow in flows) - began_s


def test_losses_without_a_queue_cost_less_time():
    _, fixed_s = sent_and_took_s(FixedRate(rate_bps=SHARE_BPS), loss=0.9)
    _, took_s = sent_and_took_s(CompensatedRate(rate_bps=SHARE_BPS), loss=0.9)
    assert took_s < 0.5 * fixed_s


@pytest.mark.parametrize(("link_bps", "rivals"), [(10e6, 0), (30e6, 2)])
def test_losses_of_a_full_queue_are_answered_by_few_more_datagrams(link_bps, rivals):
    sent, took_s = sent_and_took_s(FixedRate(rate_bps=32e6), link_bps=link_bps, rivals=rivals)
    more, also_s = sent_and_took_s(CompensatedRate(rate_bps=32e6), link_bps=link_bps, rivals=rivals)
    assert more < 1.2 * sent
    assert also_s < 1.1 * took_s
