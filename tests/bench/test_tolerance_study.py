"""The study of what loss does to training: that it loses what it says, and nothing without loss."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from testbed.bench import trainings
from testbed.bench.tolerance import console, findings, grid
from testbed.bench.tolerance.grid import STUDIES, cases
from testbed.bench.tolerance.simulation import Case, Task, run
from testbed.training import datasets, models
from testbed.training.learner import Replica

SHORT = Task(
    name="short",
    model="small-cnn",
    dataset="digits",
    batch_size=16,
    rounds=6,
    evaluate_every=3,
    optimiser={"name": "sgd", "learning_rate": 0.05, "momentum": 0.5, "weight_decay": 0.0},
)


def case(loss, order="in-order", filling="zero", cause="early-stop", **changes):
    return Case(task=SHORT, loss=loss, cause=cause, order=order, filling=filling, seed=1, **changes)


def test_without_loss_it_is_training_with_the_mean_of_three_gradients():
    dataset = datasets.load("digits")
    shares = datasets.shares(datasets.Equal(), dataset.groups, 3, 1)
    learners = [
        Replica(
            models.build("small-cnn", 1, classes=10, input_shape=(1, 8, 8)),
            dataset=dataset,
            batches=datasets.batches(own, 16, 1, rank),
            optimiser=SHORT.optimiser,
        )
        for rank, own in enumerate(shares)
    ]
    size = sum(each.numel() for _, each in models.trained(learners[0]._model))
    parts = np.empty((3, size), dtype=np.float32)
    for _ in range(SHORT.rounds):
        for learner, part in zip(learners, parts, strict=True):
            learner.gradient(part)
        mean = ((parts[0] + parts[1]) + parts[2]) / np.float32(3)
        for learner in learners:
            learner.apply(mean, 0.05)
    assert run(case(0.0))["final"] == pytest.approx(
        float(np.mean([learner.evaluate() for learner in learners])), abs=1e-5
    )
    assert run(case(0.0, "shuffled", "rescale"))["curve"] == run(case(0.0))["curve"]


def test_loss_changes_the_outcome_and_a_seed_repeats_it():
    lossy = run(case(0.6, "shuffled"))
    assert lossy["curve"] != run(case(0.0))["curve"]
    assert lossy == run(case(0.6, "shuffled"))
    early, late = run(case(0.6, "shuffled", when="early")), run(case(0.6, "shuffled", when="late"))
    assert early["curve"] != late["curve"]
    assert [number for number, _ in lossy["curve"]] == [3, 6]


def test_each_leg_may_have_a_filling_of_its_own():
    curves = {
        filling: run(case(0.6, "shuffled", filling))["curve"]
        for filling in ("zero", "rescale", "zero+zero", "rescale+zero", "zero+rescale")
    }
    assert curves["zero+zero"] == curves["zero"]
    assert curves["rescale+zero"] not in (curves["zero"], curves["rescale"])
    assert curves["zero+rescale"] not in (curves["zero"], curves["rescale"])
    assert curves["zero+rescale"] != curves["rescale+zero"]


def test_in_order_loss_never_touches_the_last_weights(monkeypatch):
    seen = []
    apply = Replica.apply

    def spy(self, update, learning_rate):
        seen.append(update.copy())
        apply(self, update, learning_rate)

    monkeypatch.setattr(Replica, "apply", spy)
    record = run(case(0.4))
    assert len(seen) == 3 * SHORT.rounds
    chunks = record["chunks"]
    kept = -(-chunks * 6 // 10) * (SHORT.chunk_bytes // 4)
    for update in seen:
        assert not update[kept:].any()
        assert np.count_nonzero(update[:kept]) > 0.3 * kept


@pytest.mark.parametrize(("cause", "equal"), [("early-stop", True), ("network", False)])
def test_workers_miss_the_same_unless_the_network_lost_it(monkeypatch, cause, equal):
    seen = []
    apply = Replica.apply

    def spy(self, update, learning_rate):
        seen.append(update.copy())
        apply(self, update, learning_rate)

    monkeypatch.setattr(Replica, "apply", spy)
    run(case(0.4, "shuffled", cause=cause))
    for first in range(0, len(seen), 3):
        same = all(np.array_equal(seen[first], other) for other in seen[first : first + 3])
        assert same is equal


def test_every_task_and_its_parts_exist():
    torch.manual_seed(0)
    for task in (study.task for study in STUDIES):
        assert task.model in models.MODELS
        datasets.parameters(task.dataset)
    names = [each.name for each in cases()]
    assert len(set(names)) == len(names)
    assert any("/late/" in name for name in names)
    assert {each.seed for each in cases()} == {1, 2, 3, 4, 5}


def record(loss, seed, final, metric="accuracy"):
    return {
        "task": "t",
        "cause": "network",
        "order": "o",
        "filling": "f",
        "when": "always",
        "loss": loss,
        "seed": seed,
        "final": final,
        "metric": metric,
    }


def test_harm_is_paired_by_seed_and_in_points_or_per_cent():
    records = [record(0.0, 1, 0.9), record(0.0, 2, 0.5), record(0.4, 1, 0.88), record(0.4, 2, 0.49)]
    ((_, by_loss),) = findings.harm([*records, record(0.4, 3, 0.0)]).items()
    assert by_loss[0.4].value == pytest.approx(1.5)
    assert by_loss[0.4].values == pytest.approx((1.0, 2.0))
    texts = [record(0.0, 1, 8.0, "perplexity"), record(0.1, 1, 10.0, "perplexity")]
    ((_, by_loss),) = findings.harm(texts).items()
    assert by_loss[0.1].value == pytest.approx(25.0)


def test_the_largest_harmless_loss_stops_at_the_first_harm():
    def points(*harms):
        finals = [record(0.0, 1, 0.9)]
        finals += [record(0.1 * (i + 1), 1, 0.9 - h / 100) for i, h in enumerate(harms)]
        ((_, by_loss),) = findings.harm(finals).items()
        return findings.largest_harmless(by_loss)

    assert points(0.5, 0.9, 3.0, 0.0) == pytest.approx(0.2)
    assert points(2.0, 0.0) is None
    assert points(-1.0, 0.2) == pytest.approx(0.2)


def test_a_model_that_diverged_is_no_number():
    finals = [record(0.0, 1, 8.0, "perplexity"), record(0.0, 2, 8.0, "perplexity")]
    finals += [record(0.4, 1, 8.0, "perplexity"), record(0.4, 2, None, "perplexity")]
    found = findings.harm(finals)
    (row,) = findings.rows(found)
    assert row[3] == "40 %: diverges"
    assert row[4] == "none"


def test_an_interrupted_study_goes_on_where_it_was(tmp_path, monkeypatch):
    first, second = case(0.0), case(0.4)
    monkeypatch.setattr(grid, "cases", lambda quick: [first, second])
    trained: list[str] = []

    def interrupted(selected, run):
        for each in selected:
            if len(trained) == 1:
                raise KeyboardInterrupt
            trained.append(each.name)
            yield each, run(each)

    monkeypatch.setattr(trainings, "measure", interrupted)
    file = tmp_path / "study.json"
    with pytest.raises(KeyboardInterrupt):
        console.run(pattern="*", quick=False, json_file=file)
    assert not file.exists()
    seen: list[str] = []

    def measured(selected, run):
        seen.extend(each.name for each in selected)
        return ((each, run(each)) for each in selected)

    monkeypatch.setattr(trainings, "measure", measured)
    console.run(pattern="*", quick=False, json_file=file)
    assert trained == [first.name]
    assert seen == [second.name]
    stored = json.loads(file.read_text())
    assert [each["loss"] for each in stored] == [0.0, 0.4]
    assert list(tmp_path.glob("*.partial.jsonl")) == []
    assert "| short | in-order, zero | always | 40 %: " in file.with_suffix(".md").read_text()


def test_a_case_with_other_parameters_is_trained_again(tmp_path):
    keeper = trainings.Keeper(tmp_path / "study.partial.jsonl")
    keeper.keep(case(0.4), {"final": 1.0})
    path = tmp_path / "study.partial.jsonl"
    with path.open("a") as file:
        file.write('{"case": "cut o')
    assert trainings.read(path, [case(0.4)]) == {case(0.4).name: {"final": 1.0}}
    longer = replace(case(0.4), task=replace(SHORT, rounds=SHORT.rounds + 1))
    assert longer.name == case(0.4).name
    assert trainings.read(path, [longer]) == {}
