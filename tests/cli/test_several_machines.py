"""Seeds of a sweep on several machines: together they are one report."""

from __future__ import annotations

import json
import shutil

import pytest

import analysis
from testbed.run import manifest
from tests.cli.test_verbs import SMALL

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
    told = simulate("one")
    assert "4 ok: nothing is left to do" in told
    assert "different machines: 2 on" in told
    assert "2 versions of the code: aaaaaaaaaa, bbbbbbbbbb" in told
    summary = json.loads((tmp_path / "one" / "small" / "report" / "summary.json").read_text())
    assert summary["verdicts"]["ok"] == 4
    # Each seed was measured on one machine, so both are pairs.
    assert summary["ratios"]["fixed-low/dblp"]["round_latency_s"]["mean"]["n"] == 2
    assert "no_pairs" not in summary


def test_alike_machines_are_two_blocks(simulate, tmp_path):
    simulate("one", "--arms", "dblp", "--seeds", "1")
    simulate("two", "--arms", "fixed-low", "--seeds", "1", machine="two")
    shutil.copytree(tmp_path / "two", tmp_path / "one", dirs_exist_ok=True)
    plan = tmp_path / "one" / "small" / "plan.json"
    plan.unlink()  # each has its own arm alone
    summary = json.loads(analysis.write_report(tmp_path / "one").summary.read_text())
    assert summary["no_pairs"]["fixed-low/dblp"] == {"seeds": [1], "of": 1, "differ": ["machine"]}
