"""What `./lab new` writes runs: an experiment with a topology, an impairment and a control."""

from __future__ import annotations

import pytest
import yaml

from testbed.cli import new_file

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.usefixtures("unchanged_host")]


def test_a_new_experiment_runs_with_the_other_new_files(run_small, tmp_path):
    for kind in ("topology", "impairment", "congestion-control"):
        new_file.write(kind, f"{tmp_path}/my_{kind.replace('-', '_')}")
    new_file.write("experiment", f"{tmp_path}/my-first")
    document = yaml.safe_load((tmp_path / "my-first.yaml").read_text())
    document |= {"name": "small", "rounds": 6, "seeds": [1]}
    document["topology"] = {"name": "./my_topology.py", "workers": 2, "hops": 2}
    document["arms"] = {
        "mine": {"protocol": "dblp", "congestion_control": "./my_congestion_control.py"}
    }
    document["impairments"] = [
        {"kind": "./my_impairment.py", "host": "server", "rounds": [2], "share": 0.2}
    ]
    results = run_small(**document)
    results.assert_trained()
    assert len(results.events("rounds", "mine")) == 6
    begin, end = results.events("impairments", "mine")
    assert (begin["name"], end["details"]["falls"] > 0) == ("my_impairment-server", True)
