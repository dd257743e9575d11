"""What the congestion controls must reach, on paths of 10 and 50 ms, in virtual time."""

import pytest

from tests.transport.congestion_scenarios import Scenario, back_after, burst
from tests.transport.fairness import jain
from tests.transport.link_flows import AckedFlow

RATES_BPS = {0.01: 50e6, 0.05: 20e6}  # by round trip: products of 41 and 83 datagrams
LOSSY = ["timely", "reno", "cubic", "bbr", "ltp"]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("rtt_s", RATES_BPS)
@pytest.mark.parametrize("round_trips", [1, pytest.param(10, marks=pytest.mark.long), 30])
def test_all_are_back_within_ten_round_trips_of_a_burst(name, rtt_s, round_trips):
    scenario = Scenario(name, rate_bps=RATES_BPS[rtt_s], rtt_s=rtt_s)
    burst(scenario, loss=0.9, round_trips=round_trips)
    back = back_after(scenario.run(25))
    assert back is not None
    assert back <= 10


@pytest.mark.parametrize("repair", ["passes", "streaming"])
@pytest.mark.parametrize("name", ["timely", "bbr"])
def test_those_that_measure_are_back_as_soon_with_a_real_sender(name, repair):
    scenario = Scenario(name, repair, rate_bps=20e6, rtt_s=0.01)
    burst(scenario, loss=0.9, round_trips=20)
    back = back_after(scenario.run(25))
    assert back is not None
    assert back <= 10


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("rtt_s", RATES_BPS)
def test_a_repair_that_answers_when_asked_fills_the_path(name, rtt_s):
    scenario = Scenario(name, "passes", rate_bps=20e6, rtt_s=rtt_s)
    scenario.run(50)
    assert mean(scenario.run(50)) >= 0.85


@pytest.mark.parametrize(("name", "least"), [("reno", 0.96), ("cubic", 0.98)])
def test_a_queue_of_one_product_keeps_the_path_full_however_seldom_the_answers(name, least):
    scenario = Scenario(name, "streaming", rate_bps=50e6, rtt_s=0.01, queue=1.0)
    scenario.run(100)
    assert mean(scenario.run(150)) >= least


@pytest.mark.parametrize("name", ["bbr", "ltp"])
def test_those_with_a_model_of_the_path_keep_its_queue_short_however_seldom_the_answers(name):
    scenario = Scenario(name, "streaming", rate_bps=50e6, rtt_s=0.01, queue=1.0)
    scenario.run(100)
    dropped, shares, queues = scenario.link.dropped, [], []
    for _ in range(150):
        shares += scenario.run(1)
        queues.append(scenario.link.queued_bytes / (50e6 * 0.01 / 8))
    assert mean(shares) >= 0.97
    assert mean(queues) <= 0.4
    assert scenario.link.dropped - dropped <= 20


@pytest.mark.parametrize(("name", "least"), [("timely", 0.9), ("bbr", 0.93), ("ltp", 0.93)])
@pytest.mark.parametrize("rtt_s", RATES_BPS)
def test_one_per_cent_of_random_loss_costs_little(name, least, rtt_s):
    scenario = Scenario(name, rate_bps=RATES_BPS[rtt_s], rtt_s=rtt_s, loss=0.01)
    scenario.run(60)
    assert mean(scenario.run(100)) >= least


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("rtt_s", RATES_BPS)
def test_the_rate_is_found_again_when_it_halves_and_when_it_doubles(name, rtt_s):
    scenario = Scenario(name, rate_bps=RATES_BPS[rtt_s], rtt_s=rtt_s)
    scenario.run(60)
    scenario.link.set_rate(RATES_BPS[rtt_s] / 2)
    scenario.run(30)
    assert mean(scenario.run(60)) >= 0.9  # bbr empties the queue once in a hundred round trips
    scenario.link.set_rate(RATES_BPS[rtt_s])
    scenario.run(40)
    assert mean(scenario.run(60)) >= 0.85


@pytest.mark.parametrize("later_round_trips", [0, 1.3, 5.2])
@pytest.mark.parametrize("name", ["bbr", "ltp"])
def test_a_full_queue_does_not_silence_the_answers(name, later_round_trips):
    # The window is several products long, and the queue drops the end of every batch.
    scenario = Scenario(name, "streaming", rate_bps=50e6, rtt_s=0.01, queue=1.0)
    scenario.run(100 + later_round_trips)
    scenario.link.set_rate(25e6)
    shares = scenario.run(100)
    assert mean(shares) >= 0.96
    assert shares.count(0.0) == 0


@pytest.mark.parametrize("name", ["timely", "reno", "cubic", "bbr"])
@pytest.mark.parametrize(
    ("flows", "least"),
    # Two, of which one is there before: test_congestion_links.py
    [pytest.param(2, 0.88, marks=pytest.mark.long), (8, 0.9)],
)
def test_flows_share_fairly(name, flows, least):
    scenario = Scenario(name, rate_bps=50e6, rtt_s=0.01, flows=flows, stagger_s=0.02)
    scenario.run(300)
    before = scenario.delivered()
    assert mean(scenario.run(300)) >= 0.93
    shares = [end - begin for begin, end in zip(before, scenario.delivered(), strict=True)]
    assert jain(shares) >= least


@pytest.mark.parametrize(
    ("flows", "stagger_s", "queue", "rtt_s"), [(8, 0.5, 2.0, 0.01), (4, 0.3, 0.5, 0.01)]
)
def test_who_begins_behind_a_full_queue_does_not_grow_without_bound(flows, stagger_s, queue, rtt_s):
    scenario = Scenario(
        "ltp", rate_bps=50e6, rtt_s=rtt_s, queue=queue, flows=flows, stagger_s=stagger_s
    )
    product_bytes = 50e6 * rtt_s / 8
    for _ in range(round(flows * stagger_s / rtt_s) + 100):
        scenario.run(1)
        # Its round trip is up to three times that of the empty path; in STARTUP it sends three
        # times its estimate, which is ten times what is delivered at the most.
        flows_now = [flow for flow in scenario.flows if isinstance(flow, AckedFlow)]
        assert max(flow.in_flight_bytes for flow in flows_now) < 90 * product_bytes
