"""Runs keep their keys: `./lab resume` finds what a user has run with an earlier edition."""

from __future__ import annotations

import json

import pytest

from testbed.experiment import load
from testbed.experiment.shipped import EXPERIMENTS


@pytest.mark.parametrize("name", ["quick", "burst-price"])
def test_a_new_key_with_a_default_leaves_the_keys_of_earlier_runs_as_they_were(name: str):
    # A change of one of these files that gives other runs takes its name from this list.
    plan = (EXPERIMENTS / "results" / name / "plan.jsonl").read_text(encoding="utf-8")
    runs = [json.loads(line) for line in plan.splitlines()]
    seeds = len({run["seed"] for run in runs})
    kept = {run["key"] for run in runs}
    assert kept == {run.key for run in load(name, seeds=seeds)}
