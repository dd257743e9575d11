"""Parts of a sweep on several machines: together they are one report, and what lacks is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import analysis
from analysis.data.load import load
from testbed.cli import choosing
from testbed.cli.options import Sweep
from testbed.run import manifest
from tests.cli.test_verbs import SMALL

SWEEP = SMALL.replace("[1]", "[1, 2]").replace(
    "{ dblp:", "{ fixed-low: { protocol: fixed-low }, dblp:"
)


@pytest.fixture
def simulate(tmp_path, monkeypatch, in_process):
    """Execute a part, as a machine with this id and commit would; returns what was printed."""
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


def verdicts(folder: Path) -> list[tuple[int, str]]:
    return sorted((run.seed, run.verdict) for run in load(folder).runs)


def test_parts_of_two_machines_make_one_report(simulate, tmp_path):
    told = simulate("one", "--shard", "1/2")
    assert "missing: 2 of 4 planned runs (planned for shard 2/2, not started here)" in told
    assert verdicts(tmp_path / "one") == [(1, "ok"), (1, "ok"), (2, "missing"), (2, "missing")]
    told = simulate("two", "--shard", "2/2", machine="two", commit="b" * 40)
    assert "planned for shard 1/2" in told

    shutil.copytree(tmp_path / "two", tmp_path / "one", dirs_exist_ok=True)
    written = analysis.write_report(tmp_path / "one")
    summary = json.loads(written.summary.read_text())
    assert summary["verdicts"]["ok"] == 4
    said = " ".join(written.cautions)
    assert "missing" not in said
    assert "different machines: 2 on" in said
    assert "2 versions of the code: aaaaaaaaaa, bbbbbbbbbb" in said
    # Each seed was measured on one machine, so both are pairs.
    assert summary["ratios"]["fixed-low/dblp"]["round_latency_s"]["mean"]["n"] == 2
    assert "no_pairs" not in summary


def test_alike_machines_are_two_blocks(simulate, tmp_path):
    simulate("one", "--arms", "dblp", "--shard", "1/2")
    simulate("two", "--arms", "fixed-low", "--shard", "1/2", machine="two")
    shutil.copytree(tmp_path / "two", tmp_path / "one", dirs_exist_ok=True)
    plan = tmp_path / "one" / "small" / "plan.json"
    plan.unlink()  # each has its own arm alone
    summary = json.loads(analysis.write_report(tmp_path / "one").summary.read_text())
    assert summary["no_pairs"]["fixed-low/dblp"] == {"seeds": [1], "of": 1, "differ": ["machine"]}


def test_a_part_is_continued_as_that_part(simulate, tmp_path):
    simulate("one", "--shard", "2/2")
    folder = tmp_path / "one" / "small"
    (of_it, *_) = folder.glob("*-s2-*")
    shutil.rmtree(of_it)
    simulate("one", "--shard", "2/2")
    assert verdicts(tmp_path / "one") == [(1, "missing"), (1, "missing"), (2, "ok"), (2, "ok")]
    for resumed, seeds in ((None, {2}), ("1/2", {1}), ("1/1", {1, 2})):
        found = choosing.chosen(Sweep(name=str(folder), shard=resumed))
        assert {run.seed for run in found.runs} == seeds
        assert {run.seed for run in found.planned} == {1, 2}


def test_a_plan_shows_a_part(simulate, tmp_path, in_process):
    words = ("plan", tmp_path / "small.yaml", "--shard", "1/2", "--out", tmp_path / "x")
    status, out, err = in_process(*words)
    assert status == 0, err
    assert "-s1-" in out and "-s2-" not in out
    assert "valid: at most 2 parts" in simulate("x", "--shard", "1/3", status=2)
