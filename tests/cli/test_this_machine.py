"""`./lab run` takes the profile for slow machines where the rate does not arrive, and says so."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from testbed.cli import this_machine
from testbed.cli.choosing import Chosen
from testbed.cli.options import Selection
from testbed.machine import highest_rate, steadiness
from testbed.shared.input_error import InputError


def sized(monkeypatch, selection, *, reached=(1.0,)):
    """What is chosen on a machine where these shares of the rate arrive, one after another."""
    shares = iter(reached)

    def attempt(rate_bps):
        arrived_bps = next(shares) * rate_bps
        return highest_rate.Trial(
            rate_bps=rate_bps,
            incast_bps=arrived_bps,
            broadcast_bps=arrived_bps,
            idle=0.5,
            lab_cores=0.5,
            switch_cores=0.3,
        )

    quiet = steadiness.Moment(late_p50_s=1e-4, late_p99_s=1e-3, others=0.0, stolen=0.0)
    monkeypatch.setattr(highest_rate, "attempt", attempt)
    monkeypatch.setattr(steadiness, "watch", lambda: quiet)
    printed = io.StringIO()
    chosen = Chosen(results=None, selections=[selection])  # type: ignore[arg-type]
    found = this_machine.sized(chosen, Console(file=printed, width=1000))
    return found.selections[0].profile, printed.getvalue()


def test_a_machine_that_holds_the_rate_changes_nothing(monkeypatch):
    profile, said = sized(monkeypatch, Selection(name="quick"), reached=(0.5, 0.99))
    assert (profile, said) == (None, "")


def test_a_slow_machine_takes_half_the_rate_and_says_so_in_one_line(monkeypatch):
    profile, said = sized(monkeypatch, Selection(name="quick"), reached=(0.5, 0.6))
    assert profile == "slow"
    assert len(said.splitlines()) == 1
    assert "profile slow instead of laptop" in said
    assert "there arrived 50% of 100, 60% of 100 Mbit/s" in said
    monkeypatch.undo()
    config = Selection(name="quick", profile="slow").runs()[0].config()
    assert (config["profile"], config["topology"]["rate_bps"]) == ("slow", 50_000_000)
    assert all(each < config["rounds"] for each in config["impairments"][0]["rounds"])


@pytest.mark.parametrize(
    "selection",
    [Selection(name="quick", profile="laptop"), Selection(name="protocols")],
    ids=["a profile was asked for", "there is no such profile"],
)
def test_nothing_is_probed_where_nothing_could_follow(monkeypatch, selection):
    assert sized(monkeypatch, selection, reached=())[0] == selection.profile


def test_why_no_lab_can_be_built_is_left_to_others(monkeypatch):
    def fails(rates_bps):
        raise InputError("no lab can be built: /dev/net/tun")

    monkeypatch.setattr(steadiness, "probe", fails)
    chosen = Chosen(results=None, selections=[Selection(name="quick")])  # type: ignore[arg-type]
    assert this_machine.sized(chosen, Console()) is chosen
