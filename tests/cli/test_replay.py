"""`./lab replay` lists claims, refuses what it cannot run, and writes the verdicts of what ran."""

import json
import re

import pytest
from typer.testing import CliRunner

from analysis.summary import claims
from testbed.cli import execution, replay
from testbed.cli.terminal import console
from testbed.cli.verbs import app
from testbed.shared.input_error import InputError
from tests.analysis.build import ResultsBuilder


def test_it_lists_what_stored_results_test():
    done = CliRunner().invoke(app, ["replay"])
    assert done.exit_code == 0, done.output
    (line,) = (
        line for line in done.output.splitlines() if "burst-latency" in line and "D1 " in line
    )
    assert "./lab run burst-latency --arms dblp,fixed-low" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["D1", "no-such"], "replay no-such: unknown claim; valid: D1, "),
        (["--within", "soon"], "--within soon: not a time; valid: for example 60m or 2h"),
        (["--within", "0m"], "--within 0m: the shortest claim takes .*; valid: more"),
        (["--kept", "D1"], "--kept: valid alone"),
    ],
)
def test_what_it_cannot_run_is_one_line(arguments, message):
    refused = CliRunner().invoke(app, ["replay", *arguments])
    assert isinstance(refused.exception, InputError)
    assert re.search(message, str(refused.exception))


def test_within_an_hour_it_takes_what_fits():
    picked = replay.chosen([], "1h")
    once = {test.command(): test.minutes for test in picked}
    assert len(once) < len(picked) and sum(once.values()) <= 60
    assert replay.chosen(["D1"], None) == [t for t in replay.tests() if t.claim.id == "D1"]


def test_the_verdicts_of_what_ran_are_written(tmp_path, monkeypatch):
    build = ResultsBuilder(tmp_path, experiment="dblp-calm", arms=["fixed-low", "dblp"])
    build.published = ["D13"]
    for seed in range(1, 6):
        for arm, accuracy in (("fixed-low", 0.9), ("dblp", 0.8 + seed / 1000)):
            build.run(arm=arm, seed=seed, accuracy=accuracy)
    claim = next(claim for claim in claims.load() if claim.id == "D13")
    test = replay.Test(claim=claim, experiment="dblp-calm", simulated=True, minutes=1.0)
    executed = []

    def run(options, *, simulated):
        executed.append((options.name, options.arms, options.out, simulated))
        return True

    monkeypatch.setattr(execution, "run", run)
    assert replay.run([test], tmp_path, console())
    assert executed == [("dblp-calm", "dblp,fixed-low", tmp_path, True)]
    (row,) = json.loads((tmp_path / "replay" / "replay.json").read_text())["claims"]
    assert (row["claim"], row["verdict"]) == ("D13", "contradicted")
    page = (tmp_path / "replay" / "does-it-hold.md").read_text()
    assert "| D13: " in page and "contradicted" in page
    assert "| D1: " not in page  # it was not asked for
