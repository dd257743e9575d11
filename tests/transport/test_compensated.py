"""A rate that makes up for losses which no queue causes."""

import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.transport import PayloadLayout, preset
from testbed.transport.core.congestion import Feedback
from testbed.transport.policies.congestion import CONGESTION_CONTROLS, CompensatedRate, FixedRate
from testbed.transport.policies.repair import REPAIRS
from tests.transport.link_transfers import TransferFlow
from tests.transport.virtual import random_payload

SHARE_BPS = 33e6


def feedback(lost_share, queueing=False):
    return Feedback(
        now_s=1.0,
        delivered_bytes=1514,
        lost_bytes=1514,
        in_flight_bytes=0,
        lost_share=lost_share,
        queueing=queueing,
    )


def control_of_late_transfer(**options):
    """One that has sent 100 datagrams in earlier transfers, hit ones 900, and 151 in this one."""
    control = CompensatedRate(rate_bps=SHARE_BPS, **options)
    for count in (900, 100, 900, 100, 900, 151):
        control.on_transfer_begin(0.0)
        control.on_sent(count * 1514, 0.0)
    return control


@pytest.mark.parametrize(
    ("lost_share", "times"), [(0.0, 1.0), (0.2, 1.25), (0.5, 2.0), (0.9, 3.0), (1.0, 3.0)]
)
def test_of_a_late_transfer_as_much_arrives_as_without_loss_up_to_a_bound(lost_share, times):
    control = control_of_late_transfer()
    assert control.steady
    control.on_feedback(feedback(lost_share))
    assert control.rate_bps == pytest.approx(times * SHARE_BPS)
    assert control.steady == (times == 1)
    control.on_feedback(feedback(lost_share, queueing=True))
    assert control.rate_bps == SHARE_BPS


def test_each_transfer_begins_at_its_own_rate_and_keeps_to_it_until_it_is_late():
    control = control_of_late_transfer(most=10)
    control.on_feedback(feedback(0.9))
    assert control.rate_bps == pytest.approx(10 * SHARE_BPS)
    control.on_transfer_begin(2.0)
    assert control.rate_bps == SHARE_BPS
    control.on_sent(149 * 1514, 2.0)
    control.on_feedback(feedback(0.9))
    assert control.rate_bps == SHARE_BPS
    assert not control.steady  # two datagrams more, and it is late
    control.on_sent(2 * 1514, 2.0)
    assert control.rate_bps == pytest.approx(10 * SHARE_BPS)


def test_nothing_is_late_before_there_was_another():
    control = CompensatedRate(rate_bps=SHARE_BPS)
    control.on_transfer_begin(0.0)
    control.on_sent(10**9, 0.0)
    control.on_feedback(feedback(0.9))
    assert control.rate_bps == SHARE_BPS


@pytest.mark.parametrize("most", [0.5, 101, "2", True])
def test_a_bound_that_is_none_is_refused(most):
    with pytest.raises(ValueError, match=r"most is .*; valid: 1 to 100"):
        CompensatedRate(rate_bps=1e6, most=most)


def test_own_protocols_have_it_and_need_a_rate():
    assert preset("bounded-energy").congestion_control == "compensated"
    assert preset("bounded-energy").needs_rate
    assert CONGESTION_CONTROLS.create("compensated:most=2", rate_bps=1e6, datagram_bytes=1514)


def sent_and_took_s(control, *, loss=0.0, link_bps=100e6):
    """What a transfer takes after three calm ones: how many datagrams, and seconds."""
    simulation = Simulation()
    link = Link(simulation, rate_bps=100e6, delay_s=1e-4, queue_bytes=50_000, seed=3)
    layout = PayloadLayout([("weights", 72_000)])
    flow = TransferFlow(
        simulation,
        [link],
        control,
        repair=REPAIRS.create("streaming:lost_first=true"),
        layout=layout,
        payload=random_payload(layout, 1),
        return_delay_s=1e-4,
        transfers=4,
        pause_s=0.01,
    )
    flow.start(0.0)
    simulation.run(done=lambda: len(flow.ended_s) == 3, limit=10**6)
    calm = link.sent
    link.loss = loss
    link.set_rate(link_bps)
    simulation.run(done=lambda: flow.done, limit=10**6)
    assert flow.intact
    assert link.dropped > 0 or link_bps > SHARE_BPS
    return link.sent + link.dropped - calm, flow.ended_s[3] - flow.ended_s[2]


def test_losses_without_a_queue_cost_less_time():
    _, fixed_s = sent_and_took_s(FixedRate(rate_bps=SHARE_BPS), loss=0.9)
    _, took_s = sent_and_took_s(CompensatedRate(rate_bps=SHARE_BPS), loss=0.9)
    assert took_s < 0.5 * fixed_s


def test_losses_of_a_full_queue_are_answered_by_few_more_datagrams():
    sent, took_s = sent_and_took_s(FixedRate(rate_bps=SHARE_BPS), link_bps=10e6)
    more, also_s = sent_and_took_s(CompensatedRate(rate_bps=SHARE_BPS), link_bps=10e6)
    assert more < 1.2 * sent
    assert also_s < 1.1 * took_s
