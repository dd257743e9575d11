"""Congestion controls on a simulated bottleneck, with one acknowledgement per datagram.

The path is 50 Mbit/s and 10 ms, which hold 41 datagrams, unless a test says otherwise.
"""

import math

import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.transport.policies.congestion import CONGESTION_CONTROLS, Bbr, Reno
from tests.transport.fairness import jain
from tests.transport.link_flows import DATAGRAM_BYTES, AckedFlow

RATE_BPS = 50e6
RTT_S = 0.01
BDP_BYTES = RATE_BPS * RTT_S / 8
DCTCP = "dctcp:ecn_marking=true"
ALL = ["timely", "reno", "cubic", "bbr", "ltp", DCTCP]


class Dumbbell:
    """Flows from hosts of their own through one bottleneck."""

    def __init__(
        self,
        names: list[str],
        *,
        rate_bps: float = RATE_BPS,
        rtt_s: float = RTT_S,
        queue_bytes: float = BDP_BYTES,
        loss: float = 0.0,
        stagger_s: float = 1e-4,
        total_bytes: float = math.inf,
    ) -> None:
        self.simulation = Simulation()
        marks = DATAGRAM_BYTES * 20 if DCTCP in names else math.inf
        self.link = Link(
            self.simulation,
            rate_bps=rate_bps,
            delay_s=rtt_s / 2,
            queue_bytes=queue_bytes,
            mark_bytes=marks,
            loss=loss,
            seed=1,
        )
        self.flows = []
        for index, name in enumerate(names):
            control = CONGESTION_CONTROLS.create(
                name, rate_bps=rate_bps, datagram_bytes=DATAGRAM_BYTES
            )
            flow = AckedFlow(
                self.simulation,
                [self.link],
                control,
                return_delay_s=rtt_s / 2,
                total_bytes=total_bytes,
            )
            flow.start(index * stagger_s)
            self.flows.append(flow)

    def measure(self, from_s: float, until_s: float) -> tuple[float, list[float]]:
        """How busy the bottleneck is and each flow's goodput in bit/s, between two times."""
        self.simulation.run(until_s=from_s)
        busy_s = self.link.busy_s
        before = [flow.delivered_bytes for flow in self.flows]
        self.simulation.run(until_s=until_s)
        seconds = until_s - from_s
        goodput = [
            (flow.delivered_bytes - bytes_) * 8 / seconds
            for flow, bytes_ in zip(self.flows, before, strict=True)
        ]
        return (self.link.busy_s - busy_s) / seconds, goodput

    def mean_queue_bytes(self, until_s: float, samples: int = 100) -> float:
        """The mean length of the queue from now on."""
        now_s, total = self.simulation.now_s, 0.0
        for step in range(1, samples + 1):
            self.simulation.run(until_s=now_s + (until_s - now_s) * step / samples)
            total += self.link.queued_bytes
        return total / samples


# The model itself.


def test_jain_s_index():
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)


# One flow.


@pytest.mark.parametrize("name", ALL)
def test_one_flow_fills_the_path_and_bounds_the_queue(name):
    bell = Dumbbell([name], queue_bytes=1.5 * BDP_BYTES)
    busy, goodput = bell.measure(2.0, 4.0)
    assert busy >= 0.93
    assert goodput[0] >= 0.9 * RATE_BPS  # the bandwidth-delay product's worth each round trip
    assert bell.mean_queue_bytes(5.0) < 1.3 * BDP_BYTES
    if name in ("bbr", "ltp", DCTCP, "timely"):  # they do not need to fill the queue
        assert bell.mean_queue_bytes(6.0) < 0.75 * BDP_BYTES


@pytest.mark.parametrize("name", ["bbr", "ltp"])
def test_the_model_of_the_path_is_right_within_a_tenth(name):
    bell = Dumbbell([name], queue_bytes=2 * BDP_BYTES)
    bell.simulation.run(until_s=3.0)
    control = bell.flows[0].congestion
    assert isinstance(control, Bbr)
    assert control.bdp_bytes == pytest.approx(BDP_BYTES, rel=0.1)
    assert control.path.min_rtt_s == pytest.approx(RTT_S, rel=0.05)


@pytest.mark.parametrize("name", ALL)
def test_a_local_network_of_fifty_microseconds_is_filled(name):
    bell = Dumbbell([name], rate_bps=1e9, rtt_s=50e-6, queue_bytes=100 * DATAGRAM_BYTES)
    busy, _ = bell.measure(0.05, 0.2)
    assert busy >= 0.95


# Loss.


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("reno", 0.0, 0.2),
        ("cubic", 0.0, 0.25),
        ("bbr", 0.8, 1.0),
        ("timely", 0.8, 1.0),
        ("ltp", 0.9, 1.0),
    ],
)
def test_under_heavy_random_loss_those_that_measure_keep_their_rate_and_windows_do_not(
    name, least, most
):
    bell = Dumbbell([name], rate_bps=20e6, queue_bytes=2 * BDP_BYTES, loss=0.3)
    busy, _ = bell.measure(3.0, 6.0)
    assert least <= busy <= most


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("loss", [0.9, 1.0])
def test_a_microburst_that_takes_nearly_everything_ends_and_all_recover(name, loss):
    bell = Dumbbell([name], queue_bytes=2 * BDP_BYTES)
    bell.simulation.run(until_s=1.0)
    bell.link.loss = loss
    bell.simulation.run(until_s=1.5)
    sent = bell.flows[0].sent_bytes
    bell.simulation.run(until_s=2.0)
    assert bell.flows[0].sent_bytes > sent  # never silent for long
    bell.link.loss = 0.0
    busy, _ = bell.measure(3.0, 4.0)
    assert busy >= 0.9


# Several flows.


@pytest.mark.parametrize("name", ALL)
def test_a_newcomer_gets_its_half(name):
    bell = Dumbbell([name] * 2, queue_bytes=2 * BDP_BYTES, stagger_s=1.0)
    busy, goodput = bell.measure(4.0, 8.0)
    assert busy >= 0.9
    assert jain(goodput) > 0.95


# Transfers with pauses between them.


@pytest.mark.parametrize("name", ALL)
def test_later_transfers_are_as_fast_as_the_path_because_the_first_was_learnt_from(name):
    bell = Dumbbell([name], queue_bytes=2 * BDP_BYTES, total_bytes=0)
    flow, bytes_ = bell.flows[0], 30 * BDP_BYTES
    durations = []
    for _ in range(4):
        begin_s = bell.simulation.now_s + 2.0
        flow.start(begin_s, more_bytes=bytes_)
        bell.simulation.run(done=lambda: flow.ended_s is None)
        bell.simulation.run(done=lambda: flow.ended_s is not None)
        assert flow.ended_s is not None
        durations.append(flow.ended_s - begin_s)
        bell.simulation.run(until_s=bell.simulation.now_s + 1.0)
    bound_s = bytes_ * 8 / RATE_BPS + RTT_S
    assert durations[-1] <= 1.15 * bound_s
    assert durations[-1] <= 1.05 * durations[0]


def test_the_first_window_after_a_pause_is_not_a_burst():
    bell = Dumbbell(["reno"], queue_bytes=2 * BDP_BYTES)
    flow = bell.flows[0]
    bell.simulation.run(until_s=3.0)
    assert isinstance(flow.congestion, Reno)
    window = flow.congestion.window_bytes
    flow._total_bytes = 0  # nothing more to send
    bell.simulation.run(until_s=4.0)
    assert bell.link.queued_bytes == 0
    bell.link.most_queued_bytes = 0
    flow.start(5.0, more_bytes=flow.sent_bytes + window)
    bell.simulation.run(until_s=5.0 + 0.9 * RTT_S)
    assert bell.link.most_queued_bytes < 0.7 * window
