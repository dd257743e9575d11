"""Detectors that are asked again about gradients without loss: exact counts, table and figure."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis.data import detector_replay, kept_rows
from analysis.data.load import Results, load
from analysis.data.per_run import per_run
from analysis.figures import catalogue, detector, style
from analysis.report import kept_results
from analysis.summary import detector_sweep
from analysis.summary.detector_sweep import Sweep, sweep
from analysis.summary.document import summarise
from analysis.tables.detector_replay import detector_table
from analysis.tables.rendering import to_csv
from testbed.cli import places, report_view
from testbed.training.phases.replay import replay
from tests.analysis.build import ResultsBuilder, write_lines

PHASES = {"detector": "gradient-norm", "eta": 0.5, "cadence": 2}
KEPT = 0.4  # of the norm, where the tolerance is high
# The norms at rounds 0, 2, 4, ... before loss; a seed each. The first falls once, the second rises
# once, just when the loss begins, which hides it.
LOOKS = {1: (10.0, 10.0, 10.0, 10.0, 4.0), 2: (10.0, 10.0, 20.0, 20.0, 20.0)}
WITHOUT_LOSS = {1: "TTFFFFFFTT", 2: "TTFFTTFFFF"}
WITH_LOSS = {1: "TTFFTTTTTT", 2: "TTFFFFFFFF"}


def flags(text: str) -> list[bool]:
    return [letter == "T" for letter in text]


def build_run(
    build: ResultsBuilder,
    arm: str,
    seed: int,
    said: str,
    *,
    lossy: bool,
    measured: bool = False,
    phases: dict | None = None,
) -> Path:
    """A run that read these norms and said this; after a round that is not critical comes loss."""
    directory = build.run(arm=arm, seed=seed, config={"phases": phases or PHASES})
    before = [True, *flags(said)[:-1]]
    kept = [KEPT if lossy and not critical else 1.0 for critical in before]
    log = directory / "events" / "rounds.jsonl"
    rounds = [json.loads(line) for line in log.read_text().splitlines()]
    for number, each in enumerate(rounds):
        norm = LOOKS[seed][number // 2] if number % 2 == 0 else 777.0  # nobody looks at this one
        each |= {"critical": flags(said)[number], "gradient_norm": norm * kept[number]}
        each["tolerance_gather"] = 0.5 if kept[number] < 1 else 0.0
    write_lines(log, rounds)
    for path in (directory / "events").glob("transfers-*.jsonl"):
        transfers = [json.loads(line) for line in path.read_text().splitlines()]
        missing = 7 if lossy else 0
        write_lines(path, [each | {"chunks_received": 100 - missing} for each in transfers])
    if measured:
        effects = [
            {"round": number, "gathered": {"norm_ratio": each}, "applied": {}, "divergence": 0.0}
            for number, each in enumerate(kept)
        ]
        write_lines(directory / "events" / "effects.jsonl", effects)
    return directory


def experiment(folder: Path, *, measured: bool = False) -> Results:
    build = ResultsBuilder(folder)
    for seed in LOOKS:
        build_run(build, "dblp", seed, WITH_LOSS[seed], lossy=True, measured=measured)
        build_run(build, "tcp-cubic", seed, WITHOUT_LOSS[seed], lossy=False)
        build_run(build, "none", seed, WITHOUT_LOSS[seed], lossy=False)
    return load(folder, detect=replay)


def test_what_was_missed_and_invented_is_counted_against_the_reliable_run(tmp_path):
    results = experiment(tmp_path)
    found = {(row["arm"], row["seed"]): row for row in per_run(results).to_dicts()}
    shares = {
        seed: tuple(
            found["dblp", seed][f"replayed.reliable.{name}"]
            for name in ("critical", "missed", "invented")
        )
        for seed in LOOKS
    }
    assert shares == {1: (0.4, 0.0, 0.4), 2: (0.4, 0.2, 0.0)}
    assert found["tcp-cubic", 1]["replayed.reliable.critical"] == 0.4
    assert found["tcp-cubic", 1]["replayed.reliable.invented"] == 0.0
    assert "replayed.before_loss.missed" not in found["dblp", 1]


def test_the_reliable_transport_comes_before_kernel_tcp_and_lossy_arms_never(tmp_path):
    assert detector_replay.find(experiment(tmp_path)).reliable_arm == "none"
    build = ResultsBuilder(tmp_path / "other")
    build_run(build, "dblp", 1, WITH_LOSS[1], lossy=True)
    assert detector_replay.find(load(tmp_path / "other", detect=replay)).reliable_arm is None
    build_run(build, "tcp-cubic", 1, WITHOUT_LOSS[1], lossy=False)
    assert detector_replay.find(load(tmp_path / "other", detect=replay)).reliable_arm == "tcp-cubic"


def test_where_every_round_was_measured_the_norms_before_loss_are_replayed_too(tmp_path):
    results = experiment(tmp_path, measured=True)
    dblp = [each for each in detector_replay.find(results).runs if each.run.arm == "dblp"]
    assert [each.norms["before_loss"][::2] for each in dblp] == [
        pytest.approx(LOOKS[1]),
        pytest.approx(LOOKS[2]),
    ]
    summary = summarise(results)
    assert summary["arms"]["dblp"]["replayed"]["before_loss"]["invented"]["value"] == 0.2
    log = next(results.folder.glob("dblp-s1*")) / "events" / "effects.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # not every round
    assert len(summarise(load(tmp_path, detect=replay))["arms"]["dblp"]["replayed"]) == 2
    found = per_run(load(tmp_path, detect=replay)).filter(arm="dblp", seed=1).to_dicts()[0]
    assert found["replayed.before_loss.invented"] is None


def test_a_run_whose_detector_does_not_repeat_what_it_said_is_left_out_and_counted(tmp_path):
    build = ResultsBuilder(tmp_path)
    build_run(build, "dblp", 1, "TTFFFFTTTT", lossy=True)  # not what these norms lead to
    build_run(build, "dblp", 2, WITH_LOSS[2], lossy=True)
    for seed in LOOKS:
        build_run(build, "none", seed, WITHOUT_LOSS[seed], lossy=False)
    results = load(tmp_path, detect=replay)
    found = detector_replay.find(results)
    assert found.unlike == ["dblp-s1"] and len(found.runs) == 3
    table = detector_table(summarise(results), sweep(results))
    assert table.notes[-1].startswith("1 runs are left out")


@pytest.mark.parametrize(
    "phases",
    [
        {"detector": "schedule", "critical_rounds": [[0, 1]]},
        {"detector": "gradient-norm", "eta": 0.5, "cadence": "epoch"},
        {"detector": "accordion"},
    ],
)
def test_a_detector_that_reads_more_than_norms_is_not_replayed(tmp_path, phases):
    build = ResultsBuilder(tmp_path)
    build_run(build, "none", 1, WITHOUT_LOSS[1], lossy=False, phases=phases)
    results = load(tmp_path, detect=replay)
    assert detector_replay.find(results).runs == [] and sweep(results).rows.is_empty()
    assert detector_table(summarise(results), sweep(results)).rows == []


def test_the_table_has_the_runs_own_setting_and_its_records_every_setting(tmp_path):
    results = experiment(tmp_path)
    table = detector_table(summarise(results), sweep(results))
    texts = [[cell.text for cell in row] for row in table.rows]
    # Over both seeds: 10 of 20 rounds critical, 8 without loss, 2 missed, 4 invented; chance 0.5.
    assert texts == [
        ["dblp", "none", "50.0", "40.0", "10.0", "20.0", "0.400"],
        ["tcp-cubic", "none", "40.0", "40.0", "0", "0", "1.00"],
    ]
    records = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(records) == 6 * 10 * 5  # runs, etas, cadences
    (own,) = [
        each
        for each in records
        if (each["arm"], each["seed"], each["is_own"]) == ("dblp", "2", "True")
    ]
    assert (own["eta"], own["cadence"], own["rounds"], own["critical"]) == ("0.5", "2", "10", "0.2")
    assert (own["reliable_missed"], own["reliable_invented"]) == ("0.2", "0.0")


def test_another_eta_or_cadence_is_asked_of_the_recorded_norms(tmp_path):
    found = sweep(experiment(tmp_path))
    # The norms of `none`, seeds 1 and 2: one fall by 0.6, one rise by 1.
    assert found.share("", "none", 0.6, 2).values == (0.4, 0.4)
    assert found.share("", "none", 0.7, 2).values == (0.2, 0.4)
    assert found.share("", "none", 1.0, 2).values == (0.2, 0.4)
    assert found.share("", "none", 0.5, 20).values == (1.0, 1.0)  # never looks again


def test_of_many_seeds_the_first_are_asked_at_all_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(detector_sweep, "MOST_SEEDS", 1)
    rows = sweep(experiment(tmp_path)).rows
    assert rows.filter(seed=1).height == 3 * 10 * 5
    assert set(rows["seed"]) == {1}


def test_the_figure_has_a_line_per_arm_against_eta_and_against_the_cadence(tmp_path):
    results = experiment(tmp_path)
    figure = detector.critical_share(sweep(results), style.arm_styles(results.arms))
    assert figure is not None
    by_eta, by_cadence = figure.axes
    colour = style.ARMS["dblp"].colour.light
    (dblp,) = [line for line in by_eta.lines if line.get_color() == colour]
    at = np.asarray(dblp.get_xdata(), dtype=float).tolist().index(0.5)
    assert np.asarray(dblp.get_ydata(), dtype=float)[at] == pytest.approx(50.0)
    assert len(by_eta.lines) == len(by_cadence.lines) == 3 + 1  # the arms, the runs' own setting
    assert detector.critical_share(Sweep(), {}) is None


def test_a_report_has_it_where_detectors_can_be_asked_and_says_nothing_where_not(tmp_path, undrawn):
    experiment(tmp_path)
    with_it = analysis.write_report(tmp_path, detect=replay)
    assert "what the phase detector says of gradients without loss" in with_it.index.read_text()
    assert (with_it.index.parent / "detector.csv").read_text().count("\n") == 1 + 300
    without = analysis.write_report(tmp_path)
    assert "what the phase detector says of gradients" not in without.index.read_text()


def test_the_figure_is_in_the_catalogue(tmp_path):
    results = experiment(tmp_path)
    drawn = catalogue.draw_all(results, summarise(results), sweep(results))
    assert "detector-replay" in [each.name for each in drawn]


def test_the_verb_report_asks_the_detectors_again(tmp_path, undrawn):
    experiment(tmp_path)
    report_view.write(places.find("quick", tmp_path))
    assert len((tmp_path / "quick" / "report" / "detector.csv").read_text().splitlines()) == 1 + 300


def test_what_is_kept_of_the_runs_gives_the_same_numbers(tmp_path, undrawn):
    results = experiment(tmp_path / "runs", measured=True)
    folder = kept_results.keep(tmp_path / "runs", root=tmp_path / "project", detect=replay)
    summary = summarise(kept_rows.read(folder))
    assert summary == summarise(results)
    assert summary["arms"]["dblp"]["replayed"]["reliable"]["invented"]["value"] == 0.2
