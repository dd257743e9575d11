"""`./lab run` fits its profile to a slow machine, and seeds of several machines are one report."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from testbed.cli import execution
from testbed.cli.options import Sweep
from testbed.cli.plan import Chosen
from testbed.machine import steadiness
from testbed.run import manifest
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import write_json
from tests.cli.test_verbs import SMALL
from tests.machine.test_machine import QUIET


def sized(monkeypatch, selection, *, reached=(1.0,)):
    shares = iter(reached)

    monkeypatch.setattr(steadiness, "share_arrived", lambda rate: next(shares))
    monkeypatch.setattr(steadiness, "watch", lambda: QUIET)
    printed = io.StringIO()
    chosen_runs = execution.sized(chosen(selection), Console(file=printed, width=1000))
    return chosen_runs.selections[0].profile, printed.getvalue()


def chosen(selection):
    return Chosen(results=Path("no-such"), selections=[selection])


def test_a_machine_that_holds_the_rate_changes_nothing(monkeypatch):
    profile, printed = sized(monkeypatch, Sweep(name="quick"), reached=(0.5, 0.99))
    assert (profile, printed) == (None, "")


def test_a_slow_machine_takes_half_the_rate_and_says_so_in_one_line(monkeypatch):
    profile, printed = sized(monkeypatch, Sweep(name="quick"), reached=(0.5, 0.6))
    assert profile == "slow"
    assert len(printed.splitlines()) == 1
    assert "profile slow instead of laptop" in printed
    assert "there arrived 50% of 100, 60% of 100 Mbit/s" in printed
    monkeypatch.undo()
    config = Sweep(name="quick", profile="slow").loaded()[0].config()
    assert (config["profile"], config["topology"]["rate_bps"]) == ("slow", 50_000_000)
    assert all(number < config["rounds"] for number in config["impairments"][0]["rounds"])


@pytest.mark.parametrize(
    "selection",
    [Sweep(name="quick", profile="laptop"), Sweep(name="protocols")],
    ids=["a profile was asked for", "there is no such profile"],
)
def test_nothing_is_probed_where_nothing_could_follow(monkeypatch, selection):
    assert sized(monkeypatch, selection, reached=())[0] == selection.profile


def test_why_no_lab_can_be_built_is_left_to_others(monkeypatch):
    def fails(rates_bps):
        raise InputError("no lab can be built: /dev/net/tun")

    monkeypatch.setattr(steadiness, "probe", fails)
    quick = chosen(Sweep(name="quick"))
    assert execution.sized(quick, Console()) is quick


@pytest.mark.parametrize("profile", ["slow", "laptop"])
def test_what_has_been_planned_goes_on_in_its_profile(monkeypatch, tmp_path, profile):
    monkeypatch.setattr(steadiness, "probe", None)
    (tmp_path / "quick").mkdir()
    write_json(tmp_path / "quick" / "plan.json", {"profile": profile})
    quick = replace(chosen(Sweep(name="quick")), results=tmp_path)
    (selection,) = execution.sized(quick, Console()).selections
    assert (selection.profile or "laptop") == profile


SWEEP = SMALL.replace("[1]", "[1, 2]").replace(
    "{ dblp:", "{ fixed-low: { protocol: fixed-low }, dblp:"
)


@pytest.fixture
def simulate(tmp_path, monkeypatch, in_process):
    """Execute some runs, as a machine with this id and commit would; returns what was printed."""
    path = tmp_path / "small.yaml"
    path.write_text(SWEEP)

    def execute(folder, *options, machine="one", commit="a" * 40, status=0):
        (tmp_path / "id").write_text(machine)
        monkeypatch.setattr(manifest, "_MACHINE_ID", tmp_path / "id")
        monkeypatch.setattr(manifest, "commit", lambda: commit)
        monkeypatch.setattr(manifest, "code_sha256", lambda: f"hash of {commit}")
        words = ("simulate", path, "--out", tmp_path / folder, *options)
        ended, out, err = in_process(*words)
        assert ended == status, err
        return out + err

    return execute


def test_seeds_of_two_machines_make_one_report(simulate, tmp_path):
    simulate("one", "--set", "seeds=[1]")
    simulate("two", "--set", "seeds=[2]", machine="two", commit="b" * 40)
    shutil.copytree(tmp_path / "two", tmp_path / "one", dirs_exist_ok=True)
    output = simulate("one")
    assert "4 ok: nothing is left to do" in output
    assert "different machines: 2 on" in output
    assert "2 versions of the code: aaaaaaaaaa, bbbbbbbbbb" in output
    summary = json.loads((tmp_path / "one" / "small" / "report" / "summary.json").read_text())
    assert summary["verdicts"]["ok"] == 4
    # Each seed was measured on one machine, so both are pairs.
    assert summary["ratios"]["fixed-low/dblp"]["round_latency_s"]["mean"]["n"] == 2
    assert "no_pairs" not in summary
