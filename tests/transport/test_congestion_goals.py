"""Congestion controls reach their goals under the real sender and receiver, in virtual time."""

import copy
import functools
import math
import re
import statistics
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.bench.records import jain
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.transport import PayloadLayout
from testbed.transport.congestion import (
    Bbr,
    CompensatedRate,
    CongestionControl,
    FixedRate,
    Reno,
)
from testbed.transport.congestion.base import Feedback
from testbed.transport.events import Event, TransferDone
from testbed.transport.native.fast_path import FAST_PATH
from testbed.transport.path_estimates import PathEstimates
from testbed.transport.repair import REPAIRS
from tests.transport.test_congestion import SIZE, report
from tests.transport.virtual import Network, Two, bernoulli, layout_of, random_payload, transfer


class TransferFlow(Two):
    """One payload after another over a link that may have other flows."""

    def __init__(self, *, payload: Any, transfers: int = 1, pause_s: float = 0.0, **settings: Any):
        super().__init__(fast_path=FAST_PATH, peer_timeout_s=1e6, **settings)
        self.ended_s: list[float] = []  # when each transfer's STOP reached the sender
        self._payload = payload
        self._transfers = transfers
        self._pause_s = pause_s
        self.worker.on_event = self._on_sent

    @property
    def delivered(self) -> int:
        """Chunks that the receiver has of the transfers under way."""
        receivers = self.server.connection.incoming.receivers.values()
        return sum(receiver.received_count for receiver in receivers)

    @property
    def done(self) -> bool:
        return len(self.ended_s) == self._transfers

    def start(self, now_s: float) -> None:
        self.simulation.at(now_s, self._begin)

    def _begin(self) -> None:
        number = len(self.ended_s)
        self.receive(number)
        self.send(number, self._payload)

    def _on_sent(self, event: Event) -> None:
        assert isinstance(event, TransferDone)
        self.ended_s.append(self.simulation.now_s)
        assert self.intact == list(range(len(self.ended_s)))
        if not self.done:
            self.simulation.at(self.simulation.now_s + self._pause_s, self._begin)


@functools.cache
def payload_of(chunks: int) -> tuple[PayloadLayout, NDArray[np.uint8]]:
    layout = layout_of(chunks, chunk_bytes=1456)
    return layout, random_payload(layout)


class Scenario:
    """Flows of one kind through a bottleneck that holds `queue` bandwidth-delay products.

    They start `stagger_s` after one another, and by default have no end.
    """

    def __init__(
        self,
        control: str,
        repair: str = "selective",
        *,
        rate_bps: float,
        rtt_s: float,
        flows: int = 1,
        stagger_s: float = 0.0,
        queue: float = 2.0,
        loss: float = 0.0,
        chunks: int = 100_000,
        **settings: Any,
    ) -> None:
        self.simulation = Simulation()
        self.rate_bps = rate_bps
        self.rtt_s = rtt_s
        self.product_bytes = rate_bps * rtt_s / 8
        self.link = Link(
            self.simulation,
            rate_bps=rate_bps,
            delay_s=rtt_s / 2,
            queue_bytes=queue * self.product_bytes,
            loss=loss,
            seed=1,
        )
        layout, payload = payload_of(chunks)
        self.flows = []
        for number in range(flows):
            flow = TransferFlow(
                simulation=self.simulation,
                links=[self.link],
                congestion=control,
                rate_bps=rate_bps / flows,
                chunk_bytes=1456,
                repair=repair,
                layout=layout,
                payload=payload,
                delay_s=rtt_s / 2,
                **settings,
            )
            flow.start(number * stagger_s)
            self.flows.append(flow)

    @property
    def busy_s(self) -> float:
        """For how long the bottleneck has sent until now."""
        left_bytes = self.link.queued_bytes  # first: it serves
        entered = self.link.sent - self.link.dropped
        return (entered * SIZE - left_bytes) * 8 / self.link.rate_bps

    def run(self, round_trips: float) -> list[float]:
        """The share of the rate that came out of the bottleneck in each round trip from now on."""
        shares = []
        for _ in range(math.ceil(round_trips)):
            busy_s, lost = self.busy_s, self.link.lost
            self.simulation.run(until_s=self.simulation.now_s + self.rtt_s)
            lost_s = (self.link.lost - lost) * SIZE * 8 / self.link.rate_bps
            shares.append((self.busy_s - busy_s - lost_s) / self.rtt_s)
        return shares

    def run_watching_queue(self, round_trips: int) -> tuple[float, float]:
        """The mean share, and the mean queue in bandwidth-delay products."""
        shares, queues = [], []
        for _ in range(round_trips):
            shares += self.run(1)
            queues.append(self.link.queued_bytes / self.product_bytes)
        return statistics.mean(shares), statistics.mean(queues)

    def end(self) -> None:
        self.simulation.run(until_s=60.0, done=lambda: all(flow.done for flow in self.flows))
        assert all(flow.done for flow in self.flows)


def back_after(shares: list[float]) -> int | None:
    """The round trip from which on five in a row deliver 95 %, on average; None for never."""
    for begin in range(len(shares) - 4):
        five = shares[begin : begin + 5]
        if sum(five) / 5 >= 0.95 and five[0] >= 0.9:
            return begin
    return None


RATES_BPS = {0.01: 50e6, 0.05: 20e6}  # by round trip: products of 41 and 83 datagrams
CONTROLS = ["timely", "reno", "cubic", "bbr", "ltp"]
# Reno and LTP's share their code with Cubic and BBR.
SOME = [pytest.param(n, marks=[pytest.mark.long] * (n in ("reno", "ltp"))) for n in CONTROLS]
RTTS_S = pytest.mark.parametrize("rtt_s", [0.01, pytest.param(0.05, marks=pytest.mark.long)])


def usual(name, repair="selective", **settings):
    """50 Mbit/s and 10 ms."""
    return Scenario(name, repair, **{"rate_bps": 50e6, "rtt_s": 0.01, **settings})


@pytest.mark.parametrize("name", SOME)
def test_one_flow_fills_the_path_and_bounds_the_queue(name):
    scenario = usual(name, queue=1.5)
    scenario.run(50)
    share, queue = scenario.run_watching_queue(60)
    assert share >= 0.93
    assert queue < (1.3 if name in ("reno", "cubic") else 0.75)  # who needs to fill the queue
    if name in ("bbr", "ltp"):
        control = scenario.flows[0].path.congestion
        assert isinstance(control, Bbr)
        assert control.bdp_bytes == pytest.approx(scenario.product_bytes, rel=0.1)
        assert control.path.min_rtt_s == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("name", SOME)
def test_a_local_network_of_fifty_microseconds_is_filled(name):
    scenario = Scenario(name, rate_bps=1e9, rtt_s=50e-6, queue=24.2)
    scenario.run(400)
    assert mean(scenario.run(400)) >= 0.95


@pytest.mark.parametrize("name", SOME)
@RTTS_S
@pytest.mark.parametrize("round_trips", [pytest.param(1, marks=pytest.mark.long), 30])
def test_all_are_back_within_ten_round_trips_of_a_burst(name, rtt_s, round_trips):
    scenario = Scenario(name, rate_bps=RATES_BPS[rtt_s], rtt_s=rtt_s)
    scenario.run(50)
    scenario.link.set_loss(0.9)
    scenario.run(round_trips)
    scenario.link.set_loss(0.0)
    back = back_after(scenario.run(25))
    assert back is not None
    assert back <= 10


@pytest.mark.parametrize("name", SOME)
def test_where_everything_is_lost_for_a_while_none_falls_silent_and_all_recover(name):
    scenario = usual(name)
    scenario.run(50)
    scenario.link.set_loss(1.0)
    scenario.run(30)
    sent = scenario.link.sent
    scenario.run(30)
    assert scenario.link.sent > sent
    scenario.link.set_loss(0.0)
    scenario.run(60)
    assert mean(scenario.run(80)) >= 0.9


@pytest.mark.parametrize("name", SOME)
@RTTS_S
def test_a_repair_that_answers_when_asked_fills_the_path(name, rtt_s):
    scenario = Scenario(name, "passes", rate_bps=20e6, rtt_s=rtt_s)
    scenario.run(50)
    assert mean(scenario.run(50)) >= 0.85


@pytest.mark.parametrize(
    ("name", "least", "most_queued"),
    [("reno", 0.96, 1.0), ("cubic", 0.98, 1.0), ("bbr", 0.97, 0.4), ("ltp", 0.97, 0.4)],
)
def test_a_queue_of_one_product_keeps_the_path_full_however_seldom_the_answers(
    name, least, most_queued
):
    scenario = usual(name, "streaming", queue=1.0)
    scenario.run(60)
    dropped = scenario.link.dropped
    share, queue = scenario.run_watching_queue(80)
    assert share >= least
    assert queue <= most_queued
    assert most_queued == 1.0 or scenario.link.dropped - dropped <= 20


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("reno", 0.0, 0.2),
        ("cubic", 0.0, 0.25),
        ("bbr", 0.8, 1.0),
        ("timely", 0.8, 1.0),
        ("ltp", 0.9, 1.01),
    ],
)
def test_under_heavy_random_loss_those_that_measure_keep_their_rate_and_windows_do_not(
    name, least, most
):
    scenario = usual(name, rate_bps=20e6, queue=5, loss=0.3)
    scenario.run(120)
    assert least <= mean(scenario.run(100)) / 0.7 <= most


@pytest.mark.parametrize("name", SOME)
@RTTS_S
def test_the_rate_is_found_again_when_it_halves_and_when_it_doubles(name, rtt_s):
    scenario = Scenario(name, rate_bps=RATES_BPS[rtt_s], rtt_s=rtt_s)
    scenario.run(40)
    scenario.link.set_rate(RATES_BPS[rtt_s] / 2)
    scenario.run(30)
    assert mean(scenario.run(30)) >= 0.9
    scenario.link.set_rate(RATES_BPS[rtt_s])
    scenario.run(40)
    assert mean(scenario.run(30)) >= 0.85


@pytest.mark.parametrize("later_round_trips", [0, 1.3])
@pytest.mark.parametrize("name", ["bbr", "ltp"])
def test_a_full_queue_does_not_silence_the_answers(name, later_round_trips):
    # The window is several products long, and the queue drops the end of every batch.
    scenario = usual(name, "streaming", queue=1.0)
    scenario.run(100 + later_round_trips)
    scenario.link.set_rate(25e6)
    shares = scenario.run(100)
    assert mean(shares) >= 0.96
    assert shares.count(0.0) == 0


@pytest.mark.long
@pytest.mark.parametrize("name", SOME)
def test_a_flow_shares_fairly_with_a_newcomer(name):
    scenario = usual(name, flows=2, stagger_s=1.0)
    scenario.run(250)
    before = [flow.delivered for flow in scenario.flows]
    assert mean(scenario.run(250)) >= 0.9
    after = (flow.delivered for flow in scenario.flows)
    assert jain(end - begin for begin, end in zip(before, after, strict=True)) >= 0.95


@pytest.mark.parametrize("name", SOME)
def test_later_transfers_are_as_fast_as_the_path_because_the_first_was_learnt_from(name):
    chunks, pause_s = 1240, 2.0  # 30 bandwidth-delay products
    scenario = usual(name, chunks=chunks, transfers=4, pause_s=pause_s)
    scenario.end()
    ended_s = scenario.flows[0].ended_s
    last_s = ended_s[3] - ended_s[2] - pause_s
    assert last_s <= 1.15 * (chunks * SIZE * 8 / 50e6 + 0.01)
    assert last_s <= 1.05 * ended_s[0]


# Transfers that end.


def local(name, repair, **settings):
    """100 Mbit/s and 1 ms, with a queue of 100 datagrams."""
    queue = 100 * SIZE / 12_500
    return Scenario(name, repair, rate_bps=100e6, rtt_s=1e-3, queue=queue, **settings)


@pytest.mark.parametrize("name", ["fixed", *SOME])
@pytest.mark.parametrize("repair", ["selective", "streaming"])
def test_one_flow_is_close_to_the_byte_bound(name, repair):
    scenario = local(name, repair, chunks=600)
    scenario.end()
    bound_s = 600 * SIZE * 8 / 100e6
    # TIMELY starts slowly.
    assert scenario.flows[0].ended_s[0] <= (1.3 if name == "timely" else 1.05) * bound_s


@pytest.mark.parametrize("name", ["fixed", *SOME])
def test_incast_of_eight_completes_fairly_and_keeps_the_bottleneck_busy(name):
    transfers = {"chunks": 300, "transfers": 2, "pause_s": 0.02}
    scenario = local(name, "streaming", flows=8, stagger_s=1e-4, **transfers)
    scenario.simulation.run(until_s=30.0, done=lambda: any(flow.done for flow in scenario.flows))
    assert scenario.busy_s / scenario.simulation.now_s >= 0.93
    scenario.end()
    assert jain([1 / flow.ended_s[-1] for flow in scenario.flows]) >= 0.9


# A rate that makes up for losses which no queue causes.


SHARE_BPS = 33e6


def feedback(lost_share, queueing=False, sent=160):
    sizes = {"sent_bytes": sent * SIZE, "needed_bytes": 100 * SIZE}
    return report(1.0, lost_bytes=SIZE, lost_share=lost_share, queueing=queueing, **sizes)


@pytest.mark.parametrize(
    ("lost_share", "times"),
    [(0.0, 1.0), (1e-9, 1.0), (0.2, 1.25), (0.5, 2.0), (0.9, 3.0), (1.0, 3.0)],
)
def test_of_a_late_transfer_as_much_arrives_as_without_loss_up_to_a_bound(lost_share, times):
    control = CompensatedRate(rate_bps=SHARE_BPS)
    assert control.steady_until_s == math.inf
    control.on_feedback(feedback(lost_share))
    assert control.rate_bps == pytest.approx(times * SHARE_BPS)
    assert control.steady_until_s == math.inf  # it is late already
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
    assert control.steady_until_s == -math.inf
    control.on_sent(2 * SIZE, 2.1)  # it needs no answer to know that it is late
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
    estimates = PathEstimates()
    assert estimates.may_queue(full_s)  # nobody knows
    estimates.on_round_trip(0.0002)
    assert not estimates.may_queue(full_s)
    estimates.on_round_trip(latest_s)
    assert estimates.may_queue(full_s) == may


def sent_and_took_s(control, *, loss=0.0, link_bps=100e6, rivals=0):
    """Returns what a transfer of 200 chunks takes after three calm ones: datagrams, and seconds.

    `rivals` of the same kind send to the same link; its queue holds 50 kB for each.
    """
    simulation, flows = Simulation(), []
    queue_bytes = 50_000 * (1 + rivals)
    link = Link(simulation, rate_bps=100e6, delay_s=1e-4, queue_bytes=queue_bytes, seed=3)
    layout = PayloadLayout([("weights", 72_000)])
    for kind in (control, *(copy.deepcopy(control) for _ in range(rivals))):
        flow = TransferFlow(
            simulation=simulation,
            links=[link],
            congestion=kind,
            repair="streaming:lost_first=true",
            layout=layout,
            payload=random_payload(layout, 1),
            delay_s=1e-4,
            transfers=4,
            pause_s=0.01,
            queue_bytes=50_000,
        )
        flow.start(0.0)
        flows.append(flow)
    simulation.run(done=lambda: all(len(flow.ended_s) == 3 for flow in flows), limit=10**6)
    calm, began_s = link.sent, simulation.now_s
    link.set_loss(loss)
    link.set_rate(link_bps)
    simulation.run(done=lambda: all(flow.done for flow in flows), limit=10**6)
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


# How often a control hears feedback, as its page says.


PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/congestion-control.md"
KINDS = {"a rate alone (`fixed`)": "rate", "a window (`reno`)": "window"}
LOSSES = (0.0, 0.1, 0.5)
PAGE_LAYOUT = PayloadLayout([("weights", 139 * 364)], 1456)


def feedbacks(repair: str, kind: str, loss: float) -> int:
    control: CongestionControl = (
        FixedRate(rate_bps=97e6) if kind == "rate" else Reno(datagram_bytes=1514)
    )
    heard: list[Feedback] = []
    hear = control.on_feedback

    def on_feedback(feedback: Feedback) -> None:
        heard.append(feedback)
        hear(feedback)

    control.on_feedback = on_feedback  # type: ignore[method-assign]
    network = Network(
        survives=bernoulli(loss, 1), rate_bps=100e6, queue_bytes=150_000, delay_s=0.005
    )
    transfer(
        random_payload(PAGE_LAYOUT),
        PAGE_LAYOUT,
        network=network,
        congestion=control,
        repair=REPAIRS.create(repair),
    )
    return len(heard)


def test_the_page_s_table_is_what_happens():
    rows = [
        f"| `{repair}` | {words} | "
        + " | ".join(str(feedbacks(repair, kind, loss)) for loss in LOSSES)
        + " |"
        for repair in ("passes", "selective", "streaming")
        for words, kind in KINDS.items()
    ]
    _, _, shown = PAGE.read_text(encoding="utf-8").partition("<!-- feedback:")
    table = [line for line in shown.splitlines() if re.match(r"\| `", line)]
    assert table == rows, "\n" + "\n".join(rows)
