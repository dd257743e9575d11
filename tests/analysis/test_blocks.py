"""A pair is of one machine and one code: other seeds are left out, counted, and said to be."""

from pathlib import Path
from typing import Any

import pytest

from analysis.data.load import load
from analysis.report import remarks
from analysis.summary.document import summarise
from analysis.summary.lookup import entry
from analysis.tables import ratios
from analysis.tables.by_arm import main_table
from tests.analysis.build import ResultsBuilder, edited

PAIR, LATENCY = "fixed-low/dblp", "round_latency_s.burst_mean"
ON_MACHINES = "measured on different machines"


def elsewhere(directory: Path, **facts: Any) -> None:
    """Change the manifest of a run."""
    with edited(directory / "manifest.json") as manifest:
        manifest |= facts


def five_seeds(folder: Path, moved: dict[int, dict[str, Any]], **facts: Any) -> ResultsBuilder:
    """`fixed-low` takes twice as long; ten times where `moved` took its run of a seed elsewhere."""
    build = ResultsBuilder(folder)
    for seed in range(1, 6):
        elsewhere(build.run(arm="dblp", seed=seed, burst_s=seed), **facts)
        longer = 10 if seed in moved else 2
        run = build.run(arm="fixed-low", seed=seed, burst_s=longer * seed)
        elsewhere(run, **facts | moved.get(seed, {}))
    return build


def cautioned(folder: Path) -> tuple[dict[str, Any], str]:
    results = load(folder)
    summary = summarise(results)
    return summary, " ".join(remarks.cautions(results, summary))


@pytest.mark.parametrize(
    ("elsewhere", "why"),
    [
        ({"cpu": "Other CPU"}, ON_MACHINES),
        ({"kernel": "6.2.0"}, ON_MACHINES),
        ({"machine_id": "alike"}, ON_MACHINES),
        ({"commit": "b" * 40}, "measured with different code"),
        ({"commit": "a" * 40 + "+changes"}, "measured with different code"),
        ({"code_sha256": "b" * 64}, "measured with different code"),
        (
            {"cpu": "Other CPU", "commit": "b" * 40},
            "measured on different machines or with different code",
        ),
    ],
)
def test_seeds_that_are_no_pairs_are_left_out_and_counted(tmp_path, elsewhere, why):
    five_seeds(tmp_path, {2: elsewhere, 5: elsewhere}, commit="a" * 40)
    summary, caution = cautioned(tmp_path)
    ratio = entry(summary, "ratios", PAIR, LATENCY)
    assert (ratio.value, ratio.n) == (pytest.approx(2.0), 3)
    assert entry(summary, "differences", "fixed-low-dblp", "accuracy").n == 3
    assert entry(summary, "arms", "fixed-low", LATENCY).n == 5
    assert f"no pairs: 2 of 5 seeds of {PAIR} ({why})" in caution
    assert f"{PAIR} leaves out seeds 2, 5: {why}." in ratios.ratio_table(summary).notes
    notes = main_table(summary).notes
    assert any("both have, of one machine and code" in note for note in notes)


def test_runs_of_one_code_are_pairs_whatever_their_commits(tmp_path):
    facts = {"commit": "a" * 40, "code_sha256": "c" * 64}
    five_seeds(tmp_path, {2: {"commit": "b" * 40}, 3: {"commit": "a" * 40 + "+changes"}}, **facts)
    summary, caution = cautioned(tmp_path)
    assert "no_pairs" not in summary and "no pair" not in caution and "versions of" not in caution
    elsewhere(tmp_path / "quick" / "fixed-low-s2", code_sha256="d" * 64)
    summary, caution = cautioned(tmp_path)
    assert summary["no_pairs"][PAIR] == {"seeds": [2], "of": 5, "differ": ["code"]}
    assert "2 versions of the code" in caution


def test_seeds_measured_whole_elsewhere_are_pairs(tmp_path):
    build = ResultsBuilder(tmp_path)
    for seed, machine in ((1, "Test CPU"), (2, "Other CPU"), (3, "Other CPU")):
        for arm, longer in (("dblp", 1), ("fixed-low", 2)):
            build.run(arm=arm, seed=seed, burst_s=longer * seed, machine=machine)
    summary, caution = cautioned(tmp_path)
    ratio = entry(summary, "ratios", PAIR, LATENCY)
    assert (ratio.value, ratio.n) == (pytest.approx(2.0), 3)
    assert "no_pairs" not in summary
    assert "different machines: " in caution


def test_an_arm_is_compared_with_itself_on_one_machine_only(tmp_path):
    build = ResultsBuilder(tmp_path)
    build.published = ["D21"]
    for seed in range(1, 6):
        for k, calm_s in ((20, 0.3), (40, 0.2 if seed < 5 else 2.0)):
            config = {"protocol": {"gather": f"phased:low=0.008,high={0.008 + k / 100}"}}
            machine = "Other CPU" if (seed, k) == (5, 40) else "Test CPU"
            options: dict[str, Any] = {"factors": {"k": k}, "config": config, "machine": machine}
            build.run(arm="dblp", seed=seed, calm_s=calm_s, burst_s=calm_s, **options)
    summary, caution = cautioned(tmp_path)
    (beside,) = summary["published"]["round_latency_s.mean"]
    assert (beside["ours"]["value"], beside["ours"]["n"]) == (pytest.approx(1.5), 4)
    assert f"no pairs: 1 of 5 seeds of dblp: k = 0.2 / k = 0.4 ({ON_MACHINES})" in caution
