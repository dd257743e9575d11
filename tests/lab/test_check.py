"""`./lab check` finds out by trying: take something away and it says so."""

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from testbed.machine import capabilities, steadiness
from tests.lab.conftest import finished

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


@pytest.fixture
def path_without(tmp_path):
    """A search path that finds every program but one."""

    def make(absent: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir()
        for place in reversed(os.environ["PATH"].split(":")):
            for program in Path(place).glob("*"):
                if program.name != absent:
                    (folder / program.name).unlink(missing_ok=True)
                    (folder / program.name).symlink_to(program)
        return str(folder)

    return make


def test_every_capability_says_what_for_and_how_and_fits_80_columns(path_without):
    """Here without a program that runs can do without, which is no failure."""
    done = finished("check", "--json", env=os.environ | {"PATH": path_without("iperf3")})
    assert done.returncode == 0, done
    result = json.loads(done.stdout)
    assert result["iperf3"]["available"] is False
    assert result["iperf3"]["reason"] == "iperf3: not installed"
    assert result["iperf3"]["how"] == "apt-get install iperf3"
    assert {"sandbox", "hosts", "switch", "netem", "ryu", "iperf3", "tcp-bbr"} <= set(result)
    for entry in result.values():
        assert set(entry) == {"available", "reason", "enables", "how"}
        assert entry["enables"]
        assert entry["how"]
        assert entry["available"] or entry["reason"]
    # A terminal; pipes cut nothing.
    table = io.StringIO()
    existing = {name: capabilities.Capability(**entry) for name, entry in result.items()}
    capabilities.show(existing, Console(file=table, width=80))
    lines = table.getvalue().splitlines()
    assert "./lab run quick can work here." in lines
    assert max(map(len, lines)) <= 80
    for name, entry in result.items():
        [row] = [line for line in lines if line.startswith(f"{name} ")]
        assert row.split()[1] == ("yes" if entry["available"] else "no")


def test_without_the_switch_nothing_runs_and_it_says_how_to_get_it(path_without):
    environment = os.environ | {"PATH": path_without("ovsdb-server"), "COLUMNS": "200"}
    done = finished("check", env=environment)
    assert done.returncode == 2, done
    assert "./lab run quick cannot work here" in done.stdout
    assert "apt-get install openvswitch-switch" in done.stdout


def test_a_rate_that_the_machine_holds_arrives_and_one_too_high_does_not(machine, held_rate_bps):
    (*_, (rate_bps, share)) = machine.trials
    assert rate_bps == held_rate_bps
    assert steadiness.SHARE_ARRIVED <= share < 1.02
    assert steadiness.share_arrived(10_000_000_000) < steadiness.SHARE_ARRIVED
