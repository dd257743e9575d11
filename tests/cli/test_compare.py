"""`./lab compare`: two results of one experiment, seed by seed."""

import json
import math
import statistics

import pytest
from typer.testing import CliRunner

from analysis import comparison
from analysis.report import kept_results
from testbed.cli.verbs import app
from testbed.shared.input_error import InputError
from tests.analysis.build import ResultsBuilder

ROOT = kept_results.ROOT / kept_results.RESULTS
SEEDS = range(1, 7)


def built(folder, factor, *, seeds=SEEDS, arms=("dblp", "tcp"), **named):
    """Runs whose rounds take `factor` times as long, and every seed has noise of its own."""
    results = ResultsBuilder(folder, arms=arms, **named)
    for arm in arms:
        for seed in seeds:
            noise = 1.02 if seed % 2 and factor != 1 else 1.0
            took_s = factor * noise * (1 + seed / 10)
            results.run(arm=arm, seed=seed, calm_s=0.1 * took_s, burst_s=took_s)
    return results.folder


def compare(*arguments):
    done = CliRunner().invoke(app, ["compare", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_ratios_are_paired_by_seed_and_have_an_interval(tmp_path):
    one, two = built(tmp_path / "one", 1.0), built(tmp_path / "two", 1.25, arms=("dblp",))
    output = compare(one, two, "--json", tmp_path / "found.json")
    document = json.loads((tmp_path / "found.json").read_text())
    by_metric = {entry["metric"]: entry for entry in document["compared"]}
    assert {entry["arm"] for entry in document["compared"]} == {"dblp"}
    ratio = by_metric["round_latency_s.burst_mean"]["ratio"]
    assert ratio["n"] == 6
    longer = pytest.approx(1.25 * math.sqrt(1.02))
    assert ratio["value"] == longer == by_metric["round_latency_s.p50"]["ratio"]["value"]
    # Seeds differ by up to half, and pairs by 2 %: the interval is that of pairs.
    assert ratio["low"] == pytest.approx(ratio["value"], rel=0.015) and ratio["low"] > 1.24
    assert by_metric["round_latency_s.burst_mean"]["first"] == pytest.approx(1.35)
    assert "1.262 [1.248, 1.277]" in output


def test_results_and_runs_are_named_as_everywhere(tmp_path):
    one, two = built(tmp_path / "one", 1.0), built(tmp_path / "two", 1.25)
    by_folder = compare(one, two)
    assert compare(one.name, two, "--out", tmp_path / "one") == by_folder
    runs = [path.parent for path in sorted(one.glob("*-s2*/config.json"))]  # of two arms
    output = compare(*(run.name for run in runs), "--out", tmp_path / "one")
    assert output == compare(*runs) and "dblp -> tcp" in output


def test_only_seeds_that_both_have_count(tmp_path):
    one, two = built(tmp_path / "one", 1.0), built(tmp_path / "two", 2.0, seeds=(2, 4, 9))
    compare(one, two, "--json", tmp_path / "found.json")
    document = json.loads((tmp_path / "found.json").read_text())
    (burst,) = (
        entry["ratio"]
        for entry in document["compared"]
        if (entry["arm"], entry["metric"]) == ("tcp", "round_latency_s.burst_mean")
    )
    assert (burst["n"], burst["low"]) == (2, None)  # too few for an interval
    assert burst["values"] == pytest.approx([2.0, 2.0])


def test_what_does_not_fit_together_is_told_in_one_line(tmp_path):
    one, two = (
        built(tmp_path / "one", 1.0, arms=("dblp",)),
        built(tmp_path / "two", 1.0, seeds=(9,)),
    )
    with pytest.raises(InputError, match="no ok run of one has the arm, point and seed"):
        compare(one, two)
    none = ResultsBuilder(tmp_path / "none")
    none.run(arm="dblp", seed=1, verdict="failed", reason="it broke")
    with pytest.raises(InputError, match=r"quick: no run is ok; ./lab explain .*quick says why"):
        compare(one, none.folder)
    with pytest.raises(InputError, match="nowhere"):
        compare(tmp_path / "nowhere", two)
    with pytest.raises(InputError, match="no results of 'nowhere'; valid: quick"):
        compare("nowhere", two, "--out", tmp_path / "one")
    with pytest.raises(InputError, match="valid: two results of an experiment, or two runs"):
        compare(one, next(one.glob("*/config.json")).parent)
    other = built(tmp_path / "other", 1.0, seeds=(9,), experiment="other")
    with pytest.raises(InputError, match="and other: valid: two results of one experiment"):
        compare(two, other)


def test_a_lab_takes_as_long_as_the_simulator_says():
    """Medians of the kept rows of `dblp`, over all conditions."""
    simulated, lab = (
        comparison.evidence(ROOT / f"lab-and-simulator{ending}") for ending in ("-simulated", "")
    )
    ratios = [
        compared.ratio.value or 0.0
        for compared in comparison.compare(simulated, lab)
        if (compared.arm, compared.metric) == ("dblp", "round_latency_s.p50")
    ]
    assert len(ratios) == 4
    assert 0.93 <= statistics.geometric_mean(ratios) <= 1.07
