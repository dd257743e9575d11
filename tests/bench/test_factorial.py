"""The factorial: cells that lose the same, effects that are those of known numbers."""

import json
import math

import numpy as np
import pytest

from testbed.bench import study, trainings
from testbed.bench.factorial import console, design, effects, report
from testbed.bench.factorial.design import CELLS, LEVELS, Cell
from testbed.bench.factorial.effects import PARTS, Group, Results, contrasts
from testbed.bench.factorial.findings import Findings
from testbed.bench.factorial.training import Case, Task, run
from testbed.training.learner import Replica

SHORT = Task(
    name="short",
    model="mlp",
    dataset="digits",
    batch_size=16,
    rounds=6,
    optimiser="sgd",
    learning_rate=0.05,
    momentum=0.5,
)
GROUP = Group("mlp", "sgd")
LARGEST = "largest-magnitude-first"


def case(cell, loss=0.4, link_loss=0.2):
    gather, broadcast = cell.legs
    return Case(
        task=SHORT,
        loss=loss,
        link_loss=link_loss,
        order=cell.order,
        gather=gather,
        broadcast=broadcast,
        seed=1,
    )


# What is trained.


def test_every_cell_of_every_task_is_trained_at_each_rate_and_seed():
    names = [each.name for each in design.cases()]
    assert len(set(names)) == len(names)
    for subject in design.SUBJECTS:
        task = (subject.task.name, subject.task.optimiser)
        own = [each for each in design.cases() if (each.task.name, each.task.optimiser) == task]
        assert len(own) == 5 * len(subject.rates) * (1 + len(subject.cells))
    assert {each.loss for each in design.cases()} == {0.0, design.LOSS}
    lossy = study.named(design.cases(), "*-[mc]*/0.4/*", "")
    assert {each.link_loss for each in lossy} == {design.LINK_LOSS}


@pytest.fixture(scope="module")
def records():
    return {cell: run(case(cell)) for cell in CELLS[::5]}  # every level of each factor


def test_all_cells_lose_the_same_and_no_two_learn_the_same(records):
    lost = [each["realised_loss"] for each in records.values()]
    assert all(each == lost[0] for each in lost)
    assert lost[0]["gather"] == lost[0]["broadcast"] == pytest.approx(0.4, abs=0.01)
    drifts = {each["divergence"][-1][1] for each in records.values()}
    assert len(drifts) == len(records)


def test_replicas_drift_apart_by_what_links_lose_and_not_by_what_receivers_give_up(records):
    cell = CELLS[0]
    assert [number for number, _ in records[cell]["divergence"]] == [1, 6]
    assert records[cell]["divergence"][-1][1] > 0
    assert run(case(cell, link_loss=0.0))["divergence"] == [(1, 0.0), (6, 0.0)]


def test_without_tolerance_a_link_that_loses_changes_nothing():
    lossless = run(case(CELLS[0], loss=0.0, link_loss=0.0))
    assert run(case(CELLS[0], loss=0.0, link_loss=0.7))["final"] == lossless["final"]


def test_a_link_that_loses_takes_from_what_is_sent_first_and_in_order_the_end_is_never_sent(
    monkeypatch,
):
    updates = []
    apply = Replica.apply

    def spy(self, update, learning_rate):
        updates.append(update.copy())
        apply(self, update, learning_rate)

    monkeypatch.setattr(Replica, "apply", spy)
    run(case(CELLS[0]))
    sent = math.ceil(len(updates[0]) * 0.85)  # about 0.6 / 0.8 of all
    first = np.array(updates)[:, :sent]
    assert not np.array(updates)[:, sent:].any()
    assert all(0.1 < 1 - np.count_nonzero(each) / each.size < 0.7 for each in first)
    assert not np.array_equal(updates[0] != 0, updates[1] != 0)


# Effects.


def record(cell, seed, final, *, rate=0.1, model="mlp", metric="accuracy", drift=0.1):
    order, fillings = (cell.order, cell.fillings) if cell else ("in-order", "zero+zero")
    return {
        "task": model,
        "model": model,
        "optimiser": "sgd",
        "metric": metric,
        "learning_rate": rate,
        "link_loss": 0.2,
        "order": order,
        "filling": fillings,
        "loss": 0.4 if cell else 0.0,
        "seed": seed,
        "final": final,
        "divergence": [[6, drift]] if cell else [],
    }


def made(of_cell, seeds=(1, 2, 3, 4, 5)):
    """Records whose points are those of a function of the cell, plus what a seed decides."""
    return [
        record(cell, seed, (of_cell(cell) + 3 * seed) / 100) for cell in CELLS for seed in seeds
    ]


def test_there_is_an_effect_for_each_degree_of_freedom():
    named = contrasts()
    assert len(named) == len(CELLS) - 1
    weights = np.array([[each[cell] for cell in CELLS] for each in named.values()])
    assert np.linalg.matrix_rank(weights) == len(CELLS) - 1
    assert np.abs(weights.sum(axis=1)).max() < 1e-12


def test_effects_are_those_that_the_numbers_were_made_of():
    def points(cell):
        both = cell.order == LARGEST and cell.memory == "both"
        return 50 + 4 * (cell.order == "shuffled") - 2 * (cell.filling == "rescale") + 6 * both

    found = Results(made(points)).effects(contrasts())

    def value(name):
        return found[GROUP, name].estimate.value

    assert value("order=shuffled") == pytest.approx(4)
    assert value("order=rotating") == pytest.approx(0)
    assert value("filling=rescale") == pytest.approx(-2)
    assert value(f"order={LARGEST},memory=both") == pytest.approx(6)
    assert value(f"order={LARGEST}") == pytest.approx(6 / 3)
    assert value("memory=both") == pytest.approx(6 / 4)
    assert value(f"order={LARGEST},memory=both,filling=rescale") == pytest.approx(0)
    assert found[GROUP, "order=shuffled"].estimate.n == 5


def test_p_values_are_corrected_for_all_effects_of_all_groups():
    noise = np.random.default_rng(0)
    finals = [
        record(cell, seed, 0.5 + noise.normal(0, 0.01), model=model)
        for model in ("mlp", "small-cnn")
        for cell in CELLS
        for seed in range(1, 6)
    ]
    found = list(Results(finals).effects(contrasts()).values())
    assert len(found) == 2 * 23
    least, corrected = min((each.p_value or 0.0, each.corrected) for each in found)
    assert corrected == pytest.approx(min(1, least * len(found)))


def test_order_and_memory_add_up_to_both_whichever_comes_first():
    points = dict(zip(CELLS, np.random.default_rng(1).normal(50, 10, len(CELLS)), strict=True))
    found = {
        name: each.estimate.value or 0.0
        for (_, name), each in Results(made(points.__getitem__)).effects(PARTS).items()
    }
    both = points[Cell(LARGEST, "both", "zero")] - points[CELLS[0]]
    assert found["both"] == pytest.approx(both)
    assert found["order-without-memory"] + found["memory-largest-first"] == pytest.approx(both)
    assert found["memory-in-order"] + found["order-with-memory"] == pytest.approx(both)


# Learning rates.


def test_the_rate_of_a_seed_is_chosen_by_the_others():
    cell = CELLS[0]
    finals = {0.1: [0.9, 0.5, 0.5], 0.4: [0.2, 0.6, 0.6]}  # seed 1 alone is for the first rate
    results = Results(
        [
            record(cell, seed, final, rate=rate)
            for rate, each in finals.items()
            for seed, final in enumerate(each, start=1)
        ]
    )
    assert results.values(GROUP, cell) == {1: 20.0, 2: 50.0, 3: 50.0}


def test_a_rate_at_which_a_model_diverged_is_not_chosen():
    records = [record(CELLS[0], seed, 0.3, rate=0.1) for seed in (1, 2, 3)]
    records += [record(CELLS[0], seed, 0.9 if seed > 2 else None, rate=0.4) for seed in (1, 2, 3)]
    assert set(Results(records).values(GROUP, CELLS[0]).values()) == {30.0}


def texts():
    """Loss helps by a half at the large rate and not at the small one, which is better."""
    finals = {(0.1, None): 8.0, (0.1, CELLS[0]): 8.0, (0.4, None): 20.0, (0.4, CELLS[0]): 10.0}
    return [
        record(cell, seed, final * (1 + seed / 100), rate=rate, model="gpt2", metric="perplexity")
        for (rate, cell), final in finals.items()
        for seed in range(1, 6)
    ]


def test_an_effect_of_the_rate_is_not_there_where_each_side_has_its_best():
    (rates,) = Findings(texts()).rates.values()
    assert list(rates) == ["0.1", "0.4", "best"]
    assert rates["0.4"].ratio.value == pytest.approx(0.5)
    assert rates["best"].ratio.value == pytest.approx(1.0)
    assert rates["best"].without.value == pytest.approx(8.0 * 1.03)


# What is printed, kept and quoted.


def test_numbers_that_pages_quote_are_found_by_name():
    findings = Findings([*made(lambda cell: 50 + 4 * (cell.order == "shuffled")), *texts()])
    entry = findings.entry
    assert entry("effect mlp/sgd order=shuffled")["value"] == pytest.approx(4)
    assert entry("effect-p mlp/sgd order=shuffled")["value"] < 0.05
    assert entry("part mlp/sgd both")["value"] == pytest.approx(0)
    assert entry("cell mlp/sgd shuffled/none/zero")["value"] == pytest.approx(54 + 9)
    assert entry("divergence mlp/sgd shuffled/none/zero")["value"] == pytest.approx(0.1)
    assert entry("drift mlp/sgd memory=both")["value"] == pytest.approx(1)
    assert entry("rate gpt2/sgd 0.4:ratio")["value"] == pytest.approx(0.5)
    for wrong in ("cell mlp/sgd shuffled/none/nothing", "effects mlp/sgd order=shuffled"):
        with pytest.raises(LookupError):
            entry(wrong)


def test_two_seeds_are_shown_as_they_are_and_no_effect_is_starred():
    records = made(lambda cell: 50 + 4 * (cell.order == "shuffled"), seeds=(1, 2))
    text = study.markdown(console.tables, records)
    assert "| order=shuffled | 4.0 (values 4.0, 4.0) |" in text
    assert "\\*" not in text


def test_a_study_is_kept_with_its_tables_and_figure(tmp_path, monkeypatch, capsys):
    finals = {each["loss"]: each for each in (run(case(CELLS[0])), run(case(CELLS[0], loss=0.0)))}
    selected = [case(CELLS[0]), case(CELLS[0], loss=0.0, link_loss=0.0)]
    monkeypatch.setattr(design, "cases", lambda quick: selected)
    monkeypatch.setattr(
        trainings, "measure", lambda cases, run: ((each, finals[each.loss]) for each in cases)
    )
    file = tmp_path / "study.json"
    console.run(pattern="*", quick=False, json_file=file)
    kept = json.loads(file.read_text())
    assert [each["loss"] for each in kept] == [0.0, 0.4]
    assert {each["machine"]["commit"] for each in kept}
    assert file.with_suffix(".md").read_text() == study.markdown(console.tables, kept)
    assert "without loss" in capsys.readouterr().out
    assert file.with_suffix(".png").stat().st_size > 10_000


def test_every_level_has_its_line_in_the_tables():
    (parts, named, cells, drifts) = report.tables(Findings(made(lambda cell: 50)))
    assert len(parts.rows) == len(PARTS)
    assert len(named.rows) == len(contrasts())
    assert len(cells.rows) == len(CELLS) + 1
    assert len(drifts.rows) == len(CELLS) + sum(len(each) - 1 for each in LEVELS.values())
    assert effects.drift({"divergence": [[6, 0.0]]}) == -math.inf
