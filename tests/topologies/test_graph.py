"""Topologies that are written out, and those made of a Mininet `Topo` that exists already."""

from __future__ import annotations

import json

import pytest
from mininet.topo import LinearTopo, Topo

import topologies
from testbed.shared.input_error import InputError
from topologies import graph


class Bottleneck(Topo):
    def build(self):
        left, right = self.addSwitch("s1"), self.addSwitch("s2")
        self.addLink(left, right, bw=10, delay="5ms", loss=1)
        for name, switch in (("alice", left), ("bob", right)):
            self.addLink(self.addHost(name), switch)


def rebuilt(topo):
    """What another process builds of the description, which reaches it as JSON."""
    return topologies.build(topologies.parse(json.loads(json.dumps(graph.described(topo)))))


def test_a_plain_topo_keeps_its_names_links_and_ports():
    made = rebuilt(Bottleneck())
    assert set(made.hosts()) == {"alice", "bob"}
    options = made.link_options()
    assert options["s1--s2"]["rate_bps"] == 10_000_000
    assert (options["s1--s2"]["delay_s"], options["s1--s2"]["loss"]) == (0.005, 0.01)
    assert options["alice--s1"]["rate_bps"] == 100_000_000
    assert made.port("s1", "s2") == Bottleneck().port("s1", "s2")
    linear = rebuilt(LinearTopo(k=3, n=2))
    assert sorted(linear.links()) == sorted(LinearTopo(k=3, n=2).links())


def test_a_topology_of_the_lab_stays_the_same():
    given = {"name": "leaf-spine", "workers": 4, "core": {"delay_s": 0.002}}
    first = topologies.build(topologies.parse(given))
    assert rebuilt(first).link_options() == first.link_options()
    assert rebuilt(first).ports == first.ports


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speed": 1}, r"^link a--s1: unknown option 'speed'; "),
        ({"bw": 0.01}, r"^link a--s1: rate_bps: 10000: must be .* from 100_000 "),
    ],
)
def test_what_the_lab_cannot_build_is_one_line(options, words):
    topo = Topo()
    topo.addSwitch("s1")
    topo.addHost("a")
    topo.addLink("a", "s1", **options)
    with pytest.raises(InputError, match=words):
        graph.described(topo)


def test_a_host_without_a_link_is_refused():
    topo = Topo()
    for name in ("a", "b"):
        topo.addLink(topo.addHost(name), topo.addSwitch("s1") if name == "a" else "s1")
    topo.addHost("c")
    with pytest.raises(ValueError, match="host 'c' has 0 links"):
        rebuilt(topo)


def test_training_needs_its_roles(tmp_path):
    from testbed import experiment
    from testbed.experiment.files import find

    path = tmp_path / "own.yaml"
    described = json.dumps(graph.described(Bottleneck()))
    text = find("quick").read_text().replace("published: [dblp-burst-latency]\n", "")
    begin, end = text.index("topology:"), text.index("training:")
    impairments = text.index("impairments:")
    path.write_text(f"{text[:begin]}topology: {described}\n{text[end:impairments]}")
    with pytest.raises(InputError, match="training needs a server, worker-1"):
        experiment.load(str(path))
