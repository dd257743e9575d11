"""Plans grow; what does not belong together is refused, and nothing measured is lost unsaid."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed import experiment
from testbed.cli import execution, plan
from testbed.cli.options import LabExecution, Sweep
from testbed.run import planning, runner
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import read_json, write_status
from tests.experiment import small

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

ARMS = {"dblp": {"protocol": "dblp"}, "fixed-low": {"protocol": "fixed-low"}}
CONTROL = (EXAMPLES / "own_congestion_control.py").read_text()

write = functools.partial(small.write, arms=ARMS)


def measure(out: Path, runs: list[experiment.Run], verdict: Any = "ok") -> None:
    for run in runs:
        directory = runner.directory_of(out, run).path
        directory.mkdir(parents=True, exist_ok=True)
        write_status(directory, verdict)


def planned(out: Path) -> list[tuple[str, int]]:
    runs = read_json(out / "small" / "plan.json")["runs"]
    return sorted((run["arm"], run["seed"]) for run in runs)


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({}, {"overrides": ["rounds=5"]}, "rounds is 4 there, 5 here"),
        ({"rounds": 9}, {}, "rounds is 4 there, 9 here"),
        ({"training": {"batch_size": 8}}, {}, "training.batch_size is"),
        ({"impairments": []}, {}, "impairments has 1 entries there, 0 here"),
        ({"arms": {"dblp": {"protocol": "fixed-high"}}}, {}, 'arm dblp: name is "dblp" there'),
    ],
)
def test_what_does_not_belong_together_is_refused_and_named(tmp_path, changes, options, words):
    out, path = tmp_path / "out", write(tmp_path, rounds=4)
    first = experiment.load(path, seeds=1)
    planning.extend(out, first)
    measure(out, first)
    before = (out / "small" / "plan.json").read_bytes()
    other = experiment.load(write(tmp_path, **{"rounds": 4, **changes}), **options)
    with pytest.raises(InputError) as caught:
        planning.extend(out, other)
    assert words in str(caught.value)
    assert "--out DIR" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (out / "small" / "plan.json").read_bytes() == before
    planning.extend(tmp_path / "elsewhere", other)


def test_where_nothing_was_measured_the_new_plan_replaces_the_old_one(tmp_path):
    out, path = tmp_path / "out", write(tmp_path)
    first = experiment.load(path, seeds=1)
    planning.extend(out, first, [{"name": path, "seeds": 1}])
    measure(out, first, "failed")
    planning.extend(out, experiment.load(path, arms=["dblp"], overrides=["rounds=5"], seeds=1))
    assert planned(out) == [("dblp", 1)]
    assert planning.selections(out / "small") == []
    with pytest.raises(InputError, match="name: 'report'"):  # the index's
        planning.extend(out, experiment.load(write(tmp_path, name="report")))


def test_other_arms_seeds_and_points_add_to_the_plan(tmp_path):
    out, path = tmp_path / "out", write(tmp_path, factors={"impairments.0.q": [0.5]})
    for options in (
        {"arms": ["dblp"], "seeds": 1},
        {"arms": ["fixed-low"], "seeds": 2},
        {"arms": ["dblp"], "seeds": 1, "congestion_control": "reno"},
    ):
        runs = experiment.load(path, **options)  # type: ignore[arg-type]
        assert planning.extend(out, runs) == []
        measure(out, runs)
    label = "dblp@congestion_control=reno"
    expected = [("dblp", 1), (label, 1), ("fixed-low", 1), ("fixed-low", 2)]
    assert planned(out) == sorted(expected)
    # The same settings written in another way belong together.
    queue_bytes = runs[0].experiment.topology.queue_bytes
    topology = {**small.BASE["topology"], "queue_bytes": queue_bytes}
    write(tmp_path, factors={"impairments.0.q": [0.5, 0.7]}, topology=topology)
    for _ in range(2):
        planning.extend(out, experiment.load(path, seeds=1))
        document = read_json(out / "small" / "experiment.json")
        assert document["arms"] == ["dblp", label, "fixed-low"]
        assert document["factors"] == {"impairments.0.q": [0.5, 0.7]}
        assert len(planned(out)) == 6


def test_runs_of_own_code_that_changed_leave_the_plan_and_that_is_said(tmp_path):
    (tmp_path / "mine.py").write_text(CONTROL)
    arms = {**ARMS, "own": {"protocol": "dblp", "congestion_control": "./mine.py"}}
    out, path = tmp_path / "out", write(tmp_path, arms=arms)
    first = experiment.load(path, seeds=2)
    planning.extend(out, first)
    measure(out, first)
    (tmp_path / "mine.py").write_text(CONTROL + "# better")
    (remark,) = planning.extend(out, experiment.load(path, seeds=1, arms=["own"]))
    assert "2 ok runs leave the tables and stay on disk: mine.py changed since" in remark
    assert planned(out) == [*((arm, seed) for arm in ARMS for seed in (1, 2)), ("own", 1)]


def test_a_plan_is_resumed_as_it_was_planned(tmp_path):
    out, path = tmp_path / "out", write(tmp_path)
    for selection in (
        Sweep(name=path, arms="dblp", seeds=1),
        Sweep(name=path, arms="fixed-low", seeds=3, congestion_control="reno"),
    ):
        planning.extend(out, selection.loaded(), [selection.stored()])
    every = {entry["key"] for entry in read_json(out / "small" / "plan.json")["runs"]}
    assert len(every) == 4
    for name in ("small", str(out / "small")):
        chosen = plan.choose(Sweep(name=name, out=out))
        assert {run.key for run in chosen.runs} == every
    narrowed = plan.choose(Sweep(name=str(out / "small"), seeds=5))
    assert narrowed.results == out
    assert len(narrowed.runs) == 10
    assert len(plan.choose(Sweep(name=path, out=out)).runs) == 4  # what the file says


@pytest.mark.parametrize("damaged", [None, 5, ["x"]])
def test_a_damaged_plan_has_no_selections(tmp_path, damaged):
    (tmp_path / planning.FILE).write_text(json.dumps({"selections": damaged}))
    assert planning.selections(tmp_path) == []


def test_further_options_come_on_top_of_what_was_planned(tmp_path):
    out, path = tmp_path / "out", write(tmp_path)
    first = Sweep(name=path, arms="dblp", seeds=1, settings=["rounds=30"])
    planning.extend(out, first.loaded(), [first.stored()])
    for name, results in ((str(out / "small"), tmp_path), ("small", out)):
        more = Sweep(name=name, seeds=3, out=results)
        more.require(results)
        chosen = plan.choose(more)
        assert chosen.results == out
        assert {(run.arm, run.seed, run.experiment.rounds) for run in chosen.runs} == {
            ("dblp", seed, 30) for seed in (1, 2, 3)
        }
        other = Sweep(name=name, arms="fixed-low", settings=["rounds=40"], out=results)
        (run,) = plan.choose(other).runs
        assert (run.arm, run.seed, run.experiment.rounds) == ("fixed-low", 1, 40)
    with pytest.raises(InputError, match="unknown experiment 'small'"):
        Sweep(name="small").require(tmp_path)


def test_done_runs_are_not_run_again_and_not_recorded_unsaid(tmp_path):
    out, path = tmp_path / "out", write(tmp_path)
    runs = experiment.load(path, arms=["dblp"], seeds=1)
    planning.extend(out, runs)
    measure(out, runs)
    options = LabExecution(name=path, arms="dblp", seeds=1, out=out, pcap="server")
    with pytest.raises(InputError, match=r"--pcap: 1 of these runs .* not be recorded"):
        execution.run(options)
    with pytest.raises(InputError, match="unknown host 'worker-77'"):
        execution.run(replace(options, pcap="worker-77"))
