"""Learning rates chosen by a validation part: what is trained, and the rule."""

import functools
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from analysis.tables import rendering
from testbed import experiment
from testbed.bench import rates
from testbed.cli.verbs import app
from testbed.shared.yaml_input import InputError
from tests.experiment.small import write

SMALL: dict[str, Any] = {
    "rounds": 6,
    "seeds": [1],
    "impairments": [],
    "training": {"model": "mlp", "dataset": "digits", "batch_size": 16, "evaluate_every": 2},
    "phases": {"detector": "schedule", "critical_rounds": [[0, 2]]},
    "arms": {"none": {"protocol": "none"}, "dblp": {"protocol": "dblp", "high": 0.5}},
}


@pytest.fixture
def small(tmp_path):
    return functools.partial(write, tmp_path, **SMALL)


def test_points_that_train_the_same_are_one(small):
    burst = [{"kind": "loss", "host": "server", "rounds": [3], "q": 0.9}]
    levels = [{"label": "calm", "impairments": []}, {"label": "burst"}]
    path = small(impairments=burst, factors={"when": levels})
    trials = rates.trials(experiment.load(path, arms=["none"]))
    assert {trial["point"] for trial in trials} == {"calm; burst"}
    assert [trial["learning_rate"] for trial in trials] == list(rates.CANDIDATES)
    levels.append({"label": "longer", "rounds": 8})
    trials = rates.trials(experiment.load(small(factors={"when": levels}), arms=["none"]))
    assert {trial["point"] for trial in trials} == {"calm; burst", "longer"}


def test_adam_has_smaller_candidates(small):
    training = SMALL["training"] | {"optimiser": "adamw"}
    trials = rates.trials(experiment.load(small(training=training), arms=["none"]))
    assert (trials[0]["learning_rate"], trials[-1]["learning_rate"]) == (0.000125, 0.016)


def record(rate, seed, value, metric="accuracy", arm="dblp"):
    of = {"point": "p", "arm": arm, "learning_rate": rate, "seed": seed}
    return of | {"metric": metric, "value": value}


def rows(*records):
    return [[cell.text for cell in row[1:]] for row in rates.table(records).rows]


def test_the_best_mean_wins_and_of_equal_ones_the_smaller_rate():
    ((_, rate, best, _),) = rows(
        *(record(r, s, v) for r, v in ((1, 0.5), (2, 0.7), (4, 0.7)) for s in (1003, 1001))
    )
    assert (rate, best) == ("2", "accuracy 0.7")
    ((_, rate, best, _),) = rows(record(1, 1, 9.0, "perplexity"), record(2, 1, 8.0, "perplexity"))
    assert (rate, best) == ("2 (at the end of the candidates)", "perplexity 8")
    (note,) = rates.table([record(1, 1003, 0.5), record(1, 1001, 0.5)]).notes
    assert "over seeds 1001, 1003, of equal ones" in note


def test_a_rate_whose_double_fails_with_some_seed_is_never_chosen():
    good = [record(rate, s, 0.8 + rate / 100) for rate in (1, 2) for s in (1, 2)]
    for failed in (None, 0.1):
        near = [record(4, 1, 0.85), record(4, 2, failed)]
        assert rows(*good, *near)[0][1].startswith("1 ")
    assert rows(*good, record(4, 1, 0.5), record(4, 2, 0.7))[0][1] == "2"


def test_a_rate_with_which_a_seed_diverged_is_never_chosen():
    lost = [record(8, 1, 0.9), record(8, 2, None)]
    assert rows(record(1, 1, 0.1), record(1, 2, 0.1), *lost)[0][1].startswith("1 ")
    assert rows(*lost) == [["dblp", "none", "-", "8: diverges"]]


def test_where_all_finalists_diverge_the_next_best_follow(monkeypatch):
    def train(trial):
        diverges = trial["seed"] > 1001 and trial["learning_rate"] > 2
        return trial | {"value": None if diverges else trial["learning_rate"]}

    monkeypatch.setattr(rates, "trained", lambda _, trials: [train(trial) for trial in trials])
    trials = [record(r, s, 0) for r in (1, 2, 4, 8, 16, 32) for s in (1001, 1002)]
    ((_, rate, best, _),) = rows(*rates.measure(trials))
    # And not 2, whose double diverges.
    assert (rate, best) == ("1 (at the end of the candidates)", "accuracy 1")
    alone = [trial for trial in trials if trial["seed"] == 1001]
    assert len(rates.measure(alone)) == 6


@pytest.mark.parametrize("metric", ["accuracy", "perplexity"])
def test_only_the_best_of_the_first_seed_train_with_the_others(monkeypatch, metric):
    def train(trial):
        value = {1: None, 2: 5.0, 4: 9.0, 8: 8.0, 16: 7.0, 32: 4.0}[trial["learning_rate"]]
        return trial | {"value": value and (value if metric == "accuracy" else 1 / value)}

    monkeypatch.setattr(rates, "trained", lambda _, trials: [train(trial) for trial in trials])
    trials = [record(r, s, 0, metric) for r in (1, 2, 4, 8, 16, 32) for s in (1001, 1002, 1003)]
    measured = rates.measure(trials)
    assert len(measured) == 6 + 3 * 2
    assert {r["learning_rate"] for r in measured if r["seed"] == 1002} == {4, 8, 16}
    ((_, rate, _, candidates),) = rows(*measured)
    assert rate == "4" and candidates.startswith("1: diverges, 2: (")


def test_the_verb_writes_every_training_and_the_table(small, tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "CANDIDATES", (0.002, 0.064))
    monkeypatch.setattr(rates, "SEEDS", (1001, 1002))
    monkeypatch.setattr(rates, "trained", lambda train, trials: [*map(train, trials)])
    file = tmp_path / "rates.json"
    done = CliRunner().invoke(app, ["bench", "rates", small(), "--json", str(file)])
    assert done.exit_code == 0, done.output
    records = json.loads(file.read_text())
    assert len(records) == 2 * 2 * 2
    assert {record["seed"] for record in records} == {1001, 1002}
    assert all(0 < record["value"] <= 1 and record["machine"]["commit"] for record in records)
    text = file.with_suffix(".md").read_text()
    assert text == rendering.to_markdown(rates.table(records))
    assert "0.064 (at the end of the candidates)" in text
    assert "chosen is the candidate" in done.output.lower()


def test_what_learns_nothing_is_refused(small):
    """Programs, too: `tests/cli/wrong_inputs.yaml`."""
    runs = experiment.load(small(training={"model": "mlp", "pace": {"kind": "payload-only"}}))
    with pytest.raises(InputError, match="bench rates: nothing is learnt with"):
        rates.run(runs, json_file=None)


def distance(point, level, order):
    """Counts levels of the sweep between a tuned point, which may be of several, and a level."""
    if not point or level in point:
        return 0
    return min(abs(order.index(level) - order.index(part)) for part in point.split("; "))


def test_the_rates_of_shipped_experiments_are_those_that_the_rule_chose():
    """But for one, chosen before a rate whose double fails was out."""
    kept = sorted((experiment.EXPERIMENTS / "results" / "tuning").glob("*.json"))
    kept = [path for path in kept if path.stem != "dblp-calm"]
    assert kept
    for path in kept:
        table = rates.table(json.loads(path.read_text()))
        assert path.with_suffix(".md").read_text() == rendering.to_markdown(table)
        chosen = [[cell.text for cell in row] for row in table.rows]
        arms = {arm for _, arm, *_ in chosen}
        runs = experiment.load(path.stem, seeds=1)
        levels = [", ".join(map(str, run.factors.values())) for run in runs]
        order = list(dict.fromkeys(levels))
        for run, level in zip(runs, levels, strict=True):
            # One that was not tuned has the rate of one of its kind, or that of `none`.
            of_kind = [arm for arm in arms if arm.startswith(run.arm.partition("-")[0])]
            (arm,) = [run.arm] if run.arm in arms else of_kind or ["none"]
            # A point that was not tuned has the rate of the next one that was.
            near = min((distance(row[0], level, order), row) for row in chosen if row[1] == arm)
            rate = float(near[1][2].split()[0])
            assert run.config()["training"]["learning_rate"] == rate, run.label


@pytest.mark.parametrize("name", ["dblp-bursts", "dblp-tolerances", "dblp-signal"])
def test_what_trains_as_dblp_calm_does_has_its_task_and_rates(name):
    calm = {run.arm: run.config()["training"] for run in experiment.load("dblp-calm", seeds=1)}
    for run in experiment.load(name, seeds=1):
        here = run.config()["training"]
        assert here | {"evaluate_every": 0} == calm[run.arm] | {"evaluate_every": 0}, run.label
