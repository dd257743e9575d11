"""Contrasts: whether a ratio changes along a sweep, seed by seed, corrected for being several."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.statistics import holm
from tests.analysis.build import ResultsBuilder, summary_of

GATHER = "gather_latency_s.burst_mean"
ROUND = "round_latency_s.burst_mean"
PAIR = "fixed-low/dblp"
# What dblp takes differs much between seeds, and the ratio little.
SEEDS = {1: 1.0, 2: 2.0, 3: 4.0, 4: 8.0, 5: 16.0}
RATIOS = {
    ("0", "lan"): [2.0, 2.1, 1.9, 2.0, 2.0],
    ("1", "lan"): [4.0, 4.0, 4.0, 4.1, 3.9],
    ("2", "lan"): [4.0, 3.9, 4.1, 4.0, 4.0],
    ("0", "wan"): [3.0, 3.0, 3.1, 2.9, 3.0],
    ("1", "wan"): [3.0, 3.1, 3.0, 3.0, 2.9],
    ("2", "wan"): [6.0, 6.1, 6.0, 6.0, 5.9],
}


def sweep(folder: Path, seeds: dict[int, float] = SEEDS) -> ResultsBuilder:
    build = ResultsBuilder(folder)
    for at, (seed, dblp_s) in enumerate(seeds.items()):
        for (price, place), ratios in RATIOS.items():
            for arm, factor in (("dblp", 1.0), ("fixed-low", ratios[at])):
                build.run(
                    arm=arm,
                    seed=seed,
                    factors={"place": place, "price": price},
                    burst_s=dblp_s * factor,
                )
    return build


def test_neighbours_differ_by_one_level_of_one_factor(tmp_path):
    sweep(tmp_path)
    found = summary_of(tmp_path)["contrasts"]
    ends = [tuple(tuple(each[end].values()) for end in ("from", "to")) for each in found]
    assert set(ends) == {
        *((("lan", price), ("wan", price)) for price in "012"),
        *(((place, a), (place, b)) for place in ("lan", "wan") for a, b in ("01", "12")),
    }
    assert len(ends) == 7


def test_a_contrast_is_paired_by_seed_and_corrected_over_its_family(tmp_path):
    sweep(tmp_path)
    summary = summary_of(tmp_path)
    by_ends = {
        (*each["from"].values(), *each["to"].values()): each["ratios"][PAIR]["round_latency_s"]
        for each in summary["contrasts"]
    }
    grows = by_ends["lan", "0", "lan", "1"]["burst_mean"]
    stays = by_ends["lan", "1", "lan", "2"]["burst_mean"]
    assert grows["value"] == pytest.approx(2.0, rel=0.02)
    assert grows["low"] > 1.85 and grows["n"] == 5  # although dblp's own times differ 16-fold
    assert stays["low"] < 1 < stays["high"]
    family = [ratio["burst_mean"] for ratio in by_ends.values()]
    corrected = holm([ratio["p_value"] for ratio in family])
    assert [ratio["p_value_corrected"] for ratio in family] == corrected
    assert grows["p_value"] < grows["p_value_corrected"] < 0.001 < stays["p_value_corrected"]


@pytest.mark.parametrize(
    ("arms", "machine"), [(("dblp",), "Test CPU"), (("dblp", "fixed-low"), "Other CPU")]
)
def test_a_point_that_lacks_an_arm_or_was_measured_elsewhere_has_no_contrast(
    tmp_path, arms, machine
):
    build = ResultsBuilder(tmp_path)
    for arm in ("dblp", "fixed-low"):
        build.run(arm=arm, seed=1, factors={"price": "0"})
    for arm in arms:
        build.run(arm=arm, seed=1, factors={"price": "1"}, machine=machine)
    assert summary_of(tmp_path)["contrasts"] == []
