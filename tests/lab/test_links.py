"""Links in real networks: delay, jitter, loss, changes while they work, marks."""

import os
import statistics
from typing import Any

import pytest

from testbed.lab import sandbox
from testbed.lab.delay.relay import GRAIN_S

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

LATE_S = 0.002


def measured(trial: str) -> dict[str, Any]:
    return sandbox.result_of("tests.lab.link_trials", {"trial": trial})


@pytest.fixture(scope="module")
def star() -> dict[str, Any]:
    return measured("star")


def test_round_trips_are_twice_the_configured_delay(star, found_capabilities):
    result = star["delays"]
    # What the way takes without any delay: a fraction of a millisecond, or many where the
    # processor is emulated.
    usual_s, longest_s = statistics.median(result["plain"]), max(result["plain"])
    for name, delay_s in (("one", 0.001), ("five", 0.005), ("twenty", 0.02)):
        assert len(result[name]) == 60
        # On either way, a frame may leave half a grain before its time.
        assert min(result[name]) >= 2 * delay_s - GRAIN_S
        assert statistics.median(result[name]) < 2 * delay_s + usual_s + LATE_S
    # Jitter of 4 ms around 5 ms on either way: a round trip between 2 and 18 ms, spread widely.
    jittery = sorted(result["jittery"])
    assert 0.0019 < jittery[0] < 0.007 + usual_s
    # Two pings may be late by the machine, which stands still for a moment now and then.
    assert 0.012 < jittery[-3] < 0.018 + longest_s + LATE_S
    record = result["record"]
    assert record["in_order"]
    netem = found_capabilities["netem"].available
    assert record["by"] == ("netem" if netem else "relay")
    for direction in record["directions"]:
        assert direction["frames_in"] == direction["frames_out"]
        assert direction["frames_out"] > 60 or "lossy" in direction["link"]
        assert direction["dropped"] == direction["lost"] == 0


def test_an_experiment_may_choose_what_delays_its_links(found_capabilities):
    if not found_capabilities["netem"].available:  # then the star's links have a relay
        assert measured("netem")["unsupported"].startswith("netem: the kernel has no netem")
        return
    result = measured("relay")
    assert len(result["round_trips_s"]) == 5
    assert min(result["round_trips_s"]) >= 0.0398
    assert result["record"]["by"] == "relay"


def test_each_interface_has_one_processor_for_what_arrives(star, found_capabilities):
    result = star["steered"]
    if not result["done"]:
        pytest.skip("root of the initial user namespace")
    processors = sorted(os.sched_getaffinity(0))
    expected = [1 << processors[number % len(processors)] for number in range(3)]
    assert result["after"] == (expected if len(processors) > 1 else result["before"])
    if not found_capabilities["netem"].available:
        assert result["before"] == [0, 0, 0]  # it costs, and only netem's links need it


def test_a_lossy_direction_loses_its_share_and_counts_it(star):
    result = star["losses"]
    assert not any(result["before"])
    # Of 1000 none is missing; two went ahead, and hosts speak IPv6 with their neighbours.
    assert 1000 <= result["answered"] + result["lost"]["s1"] < 1020
    assert abs(result["lost"]["s1"] - 200) < 65  # five standard deviations
    assert result["lost"]["lossy"] == 0
    assert not any(result["in flight"])


@pytest.mark.parametrize("trial", ["changes", "woken"])
def test_rate_queue_and_delay_change_under_a_flow_without_a_gap(trial):
    """Also where a link that was made without gets its first delay, in a dense flow."""
    result = measured(trial)
    assert result["received"] == result["sent"] > 1000
    assert result["in_order"]
    for configured_bps, measured_bps in result["rates"]:
        assert measured_bps == pytest.approx(configured_bps, rel=0.05)
    # At most the pause that a longer delay makes, and a frame at the lowest rate; then the load
    # of whatever else runs here.
    assert result["longest_gap_s"] < 0.1
    (queue,) = (entry for entry in result["queue"] if entry["kind"] == "bfifo")
    assert queue["options"]["limit"] == 300_000
    assert queue["drops"] == 0


def test_a_switchs_port_with_two_queues_drops_what_is_not_protected():
    result = measured("classes")
    if not result["whole_batches"]:
        pytest.skip("this kernel cannot keep a refusal from the rest of a batch")
    protected, others = result["received"]
    assert protected == 60
    assert others <= 20  # the second queue holds 9
    assert result["drops"] == [0, 60 - others, 60 - others]


def test_marking_links_mark_or_the_run_is_unsupported(run_small, found_capabilities):
    topology = {
        "name": "star",
        "workers": 2,
        "rate_bps": 20_000_000,
        "queue_bytes": 150_000,
        "ecn_threshold_bytes": 30_000,
    }
    if found_capabilities["ecn-marking"].available:
        result = measured("marks")
        assert result["marked"] > 10
        assert result["drops"] == 0
        return
    status = run_small(topology=topology).verdict()
    assert status["verdict"] == "unsupported"
    assert status["reason"].startswith("ecn-marking: this kernel has no RED")
