"""`./lab run` takes the profile for slow machines where the rate does not arrive, and says so."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from testbed.cli import execution
from testbed.cli.options import Sweep
from testbed.cli.plan import Chosen
from testbed.machine import steadiness
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import write_json
from tests.machine.test_machine import QUIET


def sized(monkeypatch, selection, *, reached=(1.0,)):
    """What is chosen on a machine where these shares of the rate arrive, one after another."""
    shares = iter(reached)

    monkeypatch.setattr(steadiness, "share_arrived", lambda rate: next(shares))
    monkeypatch.setattr(steadiness, "watch", lambda: QUIET)
    printed = io.StringIO()
    found = execution.sized(chosen(selection), Console(file=printed, width=1000))
    return found.selections[0].profile, printed.getvalue()


def chosen(selection):
    return Chosen(results=Path("no-such"), selections=[selection])


def test_a_machine_that_holds_the_rate_changes_nothing(monkeypatch):
    profile, said = sized(monkeypatch, Sweep(name="quick"), reached=(0.5, 0.99))
    assert (profile, said) == (None, "")


def test_a_slow_machine_takes_half_the_rate_and_says_so_in_one_line(monkeypatch):
    profile, said = sized(monkeypatch, Sweep(name="quick"), reached=(0.5, 0.6))
    assert profile == "slow"
    assert len(said.splitlines()) == 1
    assert "profile slow instead of laptop" in said
    assert "there arrived 50% of 100, 60% of 100 Mbit/s" in said
    monkeypatch.undo()
    config = Sweep(name="quick", profile="slow").loaded()[0].config()
    assert (config["profile"], config["topology"]["rate_bps"]) == ("slow", 50_000_000)
    assert all(each < config["rounds"] for each in config["impairments"][0]["rounds"])


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
