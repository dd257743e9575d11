"""Sweeps: each point has its own numbers and says what it lacks; how ratios change between them."""

from pathlib import Path

import pytest

import analysis
from analysis.statistics import holm
from analysis.tables import ratios
from tests.analysis.build import ResultsBuilder, summary_of
from tests.analysis.test_metrics import without_gather

TOLERANCES = {"dblp": "phased:low=0.008,high=0.408", "fixed-low": "fixed:tolerance=0.008"}
FACTOR = "impairments.0.q"


def sweep(folder: Path, *, seeds: int = 2, published: list[str] | None = None) -> ResultsBuilder:
    """At a loss of 0.6 fixed-low takes twice, at 0.9 four times as long as dblp in bursts."""
    build = ResultsBuilder(folder)
    build.published = published
    for seed in range(1, seeds + 1):
        for q, factor in ((0.6, 2), (0.9, 4)):
            for arm in ("dblp", "fixed-low"):
                run(build, arm, seed, q, burst_s=seed * (factor if arm == "fixed-low" else 1))
    return build


def run(build: ResultsBuilder, arm: str, seed: int, q: float, **options) -> Path:
    config = {
        "protocol": {"gather": TOLERANCES[arm]},
        "impairments": [{"kind": "loss", "name": "loss-server", "rounds": [4], "q": q}],
    }
    return build.run(arm=arm, seed=seed, factors={FACTOR: q}, config=config, **options)


def test_a_ratio_over_a_sweep_counts_each_point_for_as_much(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed in (1, 2):
        for q, dblp_s, factor in ((0.6, 1, 2), (0.9, 100, 8)):  # sums would give 7.94
            run(build, "dblp", seed, q, burst_s=dblp_s)
            run(build, "fixed-low", seed, q, burst_s=dblp_s * factor)
    ratio = summary_of(tmp_path)["ratios"]["fixed-low/dblp"]["round_latency_s"]["burst_mean"]
    assert ratio["value"] == pytest.approx(4)


def test_in_results_without_gathers_the_bounds_stand_beside_the_ratio_of_rounds(tmp_path):
    sweep(tmp_path)
    for log in tmp_path.rglob("rounds.jsonl"):
        without_gather(log)
    summary = summary_of(tmp_path)
    (table, *_) = ratios.point_tables(summary)
    assert len(table.columns) == 4 and "Round latency, burst rounds" in table.title
    assert table.records[1]["byte_bound"] == pytest.approx(0.992 / 0.592)
    assert "gather_latency_s.burst_mean" not in summary["points"][0]["published"]


def test_points_stand_in_the_experiments_order_whatever_ran_first(tmp_path):
    build = ResultsBuilder(tmp_path)
    levels = [{"label": "mild", "x": 1}, {"label": "hard", "x": 2}]
    build.factors = {"burst": levels, "k": [20, 3]}
    for burst, k in (("hard", 3), ("mild", 3), ("hard", 20), ("mild", 20)):
        build.run(arm="dblp", seed=1, factors={"burst": burst, "k": k})
    points = [tuple(point["factors"].values()) for point in summary_of(tmp_path)["points"]]
    assert points == [("mild", "20"), ("mild", "3"), ("hard", "20"), ("hard", "3")]


def test_a_point_without_a_known_loss_is_beside_no_limit(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.published = ["limit-bytes"]
    for k in (20, 40):
        for arm in ("dblp", "fixed-low"):
            build.run(arm=arm, seed=1, factors={"k": k}, config={"impairments": []})
    summary = summary_of(tmp_path)
    assert [point["published"] for point in summary["points"]] == [{}, {}]
    assert summary["published"] == {}
    assert summary["published_elsewhere"] == ["Limit: only bytes cost time"]


def test_many_runs_are_folded_away_but_not_those_that_failed(tmp_path, undrawn):
    build = sweep(tmp_path, seeds=7)
    run(build, "dblp", 90, 0.9, verdict="failed", reason="the server ended with signal 9")
    page = analysis.write_report(tmp_path).index.read_text()
    folded = page.split("<summary>All 29 planned runs")
    assert len(folded) == 2
    assert "the server ended with signal 9" in folded[0]


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


def test_neighbours_are_contrasted_by_seed_and_corrected_over_their_family(tmp_path):
    build = ResultsBuilder(tmp_path)
    for at, (seed, dblp_s) in enumerate(SEEDS.items()):
        for (price, place), of_seeds in RATIOS.items():
            for arm, factor in (("dblp", 1.0), ("fixed-low", of_seeds[at])):
                factors = {"place": place, "price": price}
                build.run(arm=arm, seed=seed, factors=factors, burst_s=dblp_s * factor)
    contrasts = summary_of(tmp_path)["contrasts"]
    by_ends = {
        (*contrast["from"].values(), *contrast["to"].values()): contrast["ratios"][
            "fixed-low/dblp"
        ]["round_latency_s"]
        for contrast in contrasts
    }
    assert len(contrasts) == 7  # one level of one factor differs
    assert set(by_ends) == {
        *(("lan", price, "wan", price) for price in "012"),
        *((place, a, place, b) for place in ("lan", "wan") for a, b in ("01", "12")),
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
