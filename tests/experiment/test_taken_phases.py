"""Critical rounds taken from finished runs: what is found, what is refused, what the key is of."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed import experiment
from testbed.cli.verbs import app
from testbed.run import planning
from testbed.shared.input_error import InputError
from testbed.training.run_context import _PHASES
from tests.experiment import small

ROUNDS = 6
NAME = "quick/dblp-s1-abc"
ARMS = {"dblp": {"protocol": "dblp"}, "none": {"protocol": "none"}}


def write(folder: Path, name: str = NAME, **changes: object) -> str:
    phases = {"detector": "schedule", "from": name}
    return small.write(folder, **{"rounds": ROUNDS, "arms": ARMS, "phases": phases, **changes})


def finished(
    results: Path,
    critical: str = "110010",
    *,
    name: str = NAME,
    arm: str = "dblp",
    seed: int = 1,
    verdict: str | None = "ok",
    factors: Mapping[str, object] | None = None,
) -> Path:
    """A run directory whose rounds were critical where `critical` has a 1."""
    folder = results / name
    (folder / "events").mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"arm": arm, "seed": seed, "factors": factors or {}})
    )
    records = [{"round": n, "critical": each == "1"} for n, each in enumerate(critical)]
    (folder / "events" / "rounds.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    if verdict is not None:
        (folder / "status.json").write_text(json.dumps({"verdict": verdict}))
    return folder


def load(path: str, folder: Path, **options: object) -> list[experiment.Run]:
    return experiment.load(path, results=folder / "runs", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("critical", "at_first"), [("110010", True), ("000000", False)])
def test_a_run_follows_the_rounds_that_were_taken_from_its_configuration_alone(
    tmp_path, critical, at_first
):
    folder = finished(tmp_path / "runs", critical)
    config = json.loads(json.dumps(load(write(tmp_path), tmp_path)[0].config()))
    shutil.rmtree(folder)
    detector = _PHASES.validate_python(config["phases"]).create(rounds_per_epoch=1)
    assert detector.critical == at_first


@pytest.mark.parametrize("name", ["dblp-s1-abc", "quick/dblp-s1-abc", "runs/quick/dblp-s1-abc/"])
def test_a_run_is_named_as_it_is_printed_or_by_its_folder(tmp_path, name):
    finished(tmp_path / "runs")
    runs = load(write(tmp_path, name), tmp_path)
    assert len(runs) == 4
    taken = {"detector": "schedule", "critical_rounds": [[0, 1], [4, 4]], "from": name}
    assert all(run.config()["phases"] == taken for run in runs)


def test_a_folder_is_looked_for_beside_the_experiment_s_file_first(tmp_path, monkeypatch):
    finished(tmp_path / "here", "000001", name="mine")
    finished(tmp_path / "there", "100000", name="mine")
    monkeypatch.chdir(tmp_path / "there")
    path = write(tmp_path / "here", "mine")
    assert load(path, tmp_path)[0].config()["phases"]["critical_rounds"] == [[5, 5]]


def test_of_an_arm_each_seed_takes_the_run_with_the_same_seed(tmp_path):
    finished(tmp_path / "runs", "100000", name="quick/dblp-s1-abc")
    finished(tmp_path / "runs", "111000", name="quick/dblp-s2-def", seed=2)
    finished(tmp_path / "runs", "111111", name="quick/dblp-stream-s2-fed", arm="dblp-stream")
    finished(tmp_path / "runs", "111111", name="quick/dblp-s2-def.attempt1", seed=2)
    held = finished(tmp_path / "runs", "111000", name="quick/dblp-s2-held", seed=2)
    config = {"arm": "dblp", "seed": 2, "phases": {"from": "quick/dblp"}}
    (held / "config.json").write_text(json.dumps(config))
    runs = load(write(tmp_path, "quick/dblp"), tmp_path)
    taken = {(run.arm, run.seed): run.config()["phases"]["critical_rounds"] for run in runs}
    assert taken == {
        ("dblp", 1): [[0, 0]],
        ("none", 1): [[0, 0]],
        ("dblp", 2): [[0, 2]],
        ("none", 2): [[0, 2]],
    }


def test_in_a_sweep_each_run_takes_the_one_at_its_point(tmp_path):
    for high, critical in ((0.2, "100000"), (0.4, "111000")):
        name, point = f"quick/dblp-s1-{high}", {"arms.dblp.high": high}
        finished(tmp_path / "runs", critical, name=name, factors=point)
    path = write(tmp_path, "quick/dblp", seeds=[1], factors={"arms.dblp.high": [0.4, 0.2]})
    runs = load(path, tmp_path)
    taken = {
        (run.arm, *run.factors.values()): run.config()["phases"]["critical_rounds"] for run in runs
    }
    assert taken == {
        ("dblp", 0.4): [[0, 2]],
        ("none", 0.4): [[0, 2]],
        ("dblp", 0.2): [[0, 0]],
        ("none", 0.2): [[0, 0]],
    }
    planning.extend(tmp_path / "runs", runs)
    shutil.rmtree(tmp_path / "runs" / "quick")
    assert [run.key for run in load(path, tmp_path)] == [run.key for run in runs]
    with pytest.raises(InputError, match="no such run"):  # was never planned
        load(write(tmp_path, "quick/dblp", rounds=7), tmp_path)


def test_the_key_is_of_the_rounds_and_not_of_where_they_came_from(tmp_path):
    finished(tmp_path / "runs")
    finished(tmp_path / "runs", name="other/fixed-low-s7-def", arm="fixed-low", seed=7)
    finished(tmp_path / "runs", "110000", name="other/fixed-low-s8-fed", arm="fixed-low", seed=8)
    by_hand = {"detector": "schedule", "critical_rounds": [[0, 1], [4, 4]]}
    keys = [
        load(path, tmp_path)[0].key
        for path in (
            write(tmp_path),
            write(tmp_path, "other/fixed-low-s7-def"),
            write(tmp_path, phases=by_hand),
        )
    ]
    assert len(set(keys)) == 1
    assert load(write(tmp_path, "other/fixed-low-s8-fed"), tmp_path)[0].key != keys[0]


def test_rounds_that_stand_there_win_over_the_run_s_name(tmp_path):
    phases = {"detector": "schedule", "critical_rounds": [[3, 3]], "from": "gone"}
    config = load(write(tmp_path, phases=phases), tmp_path)[0].config()
    assert config["phases"] == phases


@pytest.mark.parametrize(
    ("name", "near"),
    [
        *((name, None) for name in ("nope", "..", "", "x" * 300, "quick/*")),
        *(("quick/dbpl", "quick/dblp"), ("quick/dblp-s1-abd", "quick/dblp-s1-abc")),
    ],
)
def test_an_unknown_run_is_refused_in_one_line_that_names_the_nearest(tmp_path, name, near):
    finished(tmp_path / "runs")
    with pytest.raises(InputError) as refused:
        load(write(tmp_path, name), tmp_path)
    said = str(refused.value)
    assert said.startswith(f"{tmp_path}/small.yaml: phases.from: {name!r}: no such run or arm; ")
    assert "\n" not in said
    assert said.endswith(f"; did you mean {near!r}?") == bool(near)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"verdict": None}, "this run is not finished; valid: a run that is ok or invalid"),
        ({"name": f"{NAME}.partial", "verdict": None}, "this run is not finished"),
        ({"verdict": "failed"}, "this run ended as failed; valid: a run that is ok or invalid"),
        ({"critical": "1100"}, "this run has 4 rounds, the experiment 6; valid: a run with as"),
    ],
)
def test_a_run_that_does_not_fit_is_refused(tmp_path, changes, expected):
    finished(tmp_path / "runs", **changes)
    with pytest.raises(InputError, match=f"phases.from: 'quick/dblp-s1-abc': {expected}"):
        load(write(tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [('{"round"\n', ""), ('{"round": 0, "critical": false}\n', ": rounds are missing")],
)
def test_a_damaged_log_is_refused(tmp_path, damage, expected):
    folder = finished(tmp_path / "runs")
    with (folder / "events" / "rounds.jsonl").open("a") as log:
        log.write(damage)
    pattern = rf"quick/dblp-s1-abc.*rounds\.jsonl: cannot be read{expected}"
    with pytest.raises(InputError, match=pattern):
        load(write(tmp_path), tmp_path)


def test_an_arm_without_the_seed_or_with_several_runs_of_it_is_refused(tmp_path):
    finished(tmp_path / "runs")
    with pytest.raises(InputError, match=r"no finished run with seed 2; seeds that it has: 1"):
        load(write(tmp_path, "quick/dblp"), tmp_path)
    finished(tmp_path / "runs", name="quick/dblp-s1-def")
    with pytest.raises(InputError, match=r"2 runs with seed 1; valid: one of dblp-s1-abc, dblp-s1"):
        load(write(tmp_path, "quick/dblp"), tmp_path)


def test_plan_looks_in_the_folder_of_results_and_blames_the_option(tmp_path):
    finished(tmp_path / "runs")
    out = ["--out", str(tmp_path / "runs")]
    path = write(tmp_path, phases={"detector": "gradient-norm"})
    options = ["--set", "phases={detector: schedule, from: quick/dblp-s1-abc}"]
    planned = CliRunner().invoke(app, ["plan", path, *options, *out])
    assert planned.exit_code == 0, planned.output
    wrong = ["--set", "phases={detector: schedule, from: quick/gone}"]
    refused = CliRunner().invoke(app, ["plan", path, *wrong, *out])
    assert isinstance(refused.exception, InputError)
    assert str(refused.exception).startswith(f"--set {wrong[1]}: {path}: phases.from: 'quick/gone'")
