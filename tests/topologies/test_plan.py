"""What `./lab plan` prints of topologies."""

from __future__ import annotations

import yaml
from typer.testing import CliRunner

from testbed.cli.verbs import app

DOCUMENT = {
    "name": "small",
    "rounds": 3,
    "seeds": [1, 2],
    "topology": {"name": "leaf-spine", "workers": 5, "core": {"delay_s": 0.002}},
    "factors": {"topology.spines": [2, 3]},
    "arms": {"dblp": {"protocol": "dblp"}},
}


def test_each_distinct_topology_is_told_once_with_its_kinds_of_links(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT))
    done = CliRunner().invoke(app, ["plan", str(path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "leaf-spine, spines 2 (2 of 4 runs): 6 hosts, 6 switches" in done.output
    assert "leaf-spine, spines 3 (2 of 4 runs): 6 hosts, 7 switches" in done.output
    assert "longest round trip without queues 8 ms" in done.output
    assert not (tmp_path / "out").exists()
    assert "8 links: core: 100 Mbit/s, 2 ms, queue 150 kB" in done.output
    assert "6 links: host: 100 Mbit/s, queue 150 kB" in done.output
