"""What `./lab plan` prints and draws of topologies."""

from __future__ import annotations

import yaml
from typer.testing import CliRunner

from testbed import experiment
from testbed.cli import plan_topology_view, topology_picture
from testbed.cli.verbs import app

DOCUMENT = {
    "name": "small",
    "rounds": 3,
    "seeds": [1, 2],
    "topology": {"name": "leaf-spine", "workers": 5, "core": {"delay_s": 0.002}},
    "factors": {"topology.spines": [2, 3]},
    "arms": {"dblp": {"protocol": "dblp"}},
}


def planned(folder, **changes):
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**DOCUMENT, **changes}))
    return path


def test_each_distinct_topology_is_told_once_and_drawn_twice(tmp_path):
    path = planned(tmp_path)
    words = ["--out", str(tmp_path / "out"), "--draw", str(tmp_path / "drawn")]
    done = CliRunner().invoke(app, ["plan", str(path), *words])
    assert done.exit_code == 0, done.output
    assert "leaf-spine, spines 2 (2 of 4 runs): 6 hosts, 6 switches" in done.output
    assert "leaf-spine, spines 3 (2 of 4 runs): 6 hosts, 7 switches" in done.output
    assert "longest round trip without queues 8 ms" in done.output
    assert not (tmp_path / "out").exists()
    for stem in ("small-topology", "small-topology-2"):
        assert (tmp_path / "drawn" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        svg = (tmp_path / "drawn" / f"{stem}.svg").read_text()
        assert all(f"<!-- worker-{rank} -->" in svg for rank in range(1, 6))


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path):
    path = planned(tmp_path)
    (tmp_path / "drawn").write_text("a file")
    words = ["--out", str(tmp_path / "out"), "--draw", str(tmp_path / "drawn")]
    done = CliRunner().invoke(app, ["plan", str(path), *words])
    assert done.exit_code != 0
    assert "drawn" in str(done.exception)
    assert type(done.exception).__name__ == "InputError"


def test_no_two_nodes_are_drawn_at_the_same_place(tmp_path):
    import topologies

    for name in set(topologies.TOPOLOGIES) - {"graph"}:  # which is written out
        parameters = topologies.parse({"name": name, "workers": 15})
        places = topology_picture.layout(topologies.build(parameters))
        assert len(set(places.values())) == len(places), name


def test_names_are_shortened_without_loss():
    names = ["server", "worker-1", "worker-2", "worker-3", "worker-7", "spine-1", "spine-2"]
    assert plan_topology_view.compressed(names) == "server  worker-1..3,7  spine-1,2"


def test_links_are_told_by_what_they_are_like(tmp_path):
    import topologies

    run = experiment.load(str(planned(tmp_path)))[0]
    kinds = plan_topology_view.link_kinds(topologies.build(run.experiment.topology))
    assert {words: len(names) for words, names in kinds.items()} == {
        "core: 100 Mbit/s, 2 ms, queue 150 kB": 8,
        "host: 100 Mbit/s, queue 150 kB": 6,
    }
