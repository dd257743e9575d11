"""Topologies that are files of their own, through the experiment that names them."""

from __future__ import annotations

import pytest
import yaml

import topologies
from testbed import experiment
from testbed.shared.yaml_input import InputError

GOOD = """
from typing import Literal
from topologies import TopologyParameters
from topologies.base import LabTopo

class Parameters(TopologyParameters):
    hops: int = 2

class Topology(LabTopo):
    def build(self, parameters):
        line = [self.addSwitch(f"s{each}") for each in range(1, parameters.hops + 1)]
        for near, far in zip(line, line[1:]):
            self.addLink(near, far, delay_s=0.002)
        self.spread(parameters.all_host_names(), line)
"""
PLAIN = """
from mininet.topo import Topo
from topologies import TopologyParameters as Parameters

class Topology(Topo):
    def build(self, parameters):
        self.addSwitch("s1")
        for name in parameters.host_names():
            self.addLink(self.addHost(name), "s1")
"""


def with_build(*lines: str) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return PLAIN[: PLAIN.index("        self.addSwitch")] + body


def load(folder, text, *, overrides=(), **keys):
    (folder / "mine.py").write_text(text)
    document = {
        "name": "small",
        "rounds": 3,
        "seeds": [1],
        "topology": {"name": "./mine.py", "workers": 2, **keys},
        "arms": {"dblp": {"protocol": "dblp"}},
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(document))
    return experiment.load(str(path), overrides=overrides)[0]


def test_it_is_found_beside_the_experiment_and_has_keys_of_its_own(tmp_path):
    topology = load(tmp_path, GOOD, hops=3).config()["topology"]
    assert topology["name"] == str(tmp_path / "mine.py")
    assert topology["hops"] == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PLAIN + "Parameters = 3\n", "Parameters does not derive from TopologyParameters"),
        (with_build("raise RuntimeError('no\\n way')"), "RuntimeError: no way"),
        (
            with_build(
                "self.addSwitch('s1')",
                "for name in parameters.host_names(): self.addLink(self.addHost(name), 's1')",
                "self.addSwitch('s2')",
            ),
            "'s2' is not connected to 'server'",
        ),
        (
            with_build(
                "for name in ('s1', 's2'): self.addSwitch(name)",
                "self.addLink('s1', 's2')",
                "for name in parameters.host_names(): self.addLink(self.addHost(name), 's1')",
                "self.addLink('server', 's2')",
            ),
            "host 'server' has 2 links",
        ),
        (
            with_build("self.addSwitch('s1')", "self.addSwitch('s1')"),
            "node 's1' is there twice",
        ),
        (with_build("self.addLink('a', 'b')"), "there is no node 'a'"),
        (with_build("self.addSwitch('s1', dpid='3'); self.addLink('s1', 's1')"), "leads back"),
        (
            with_build(
                "self.addSwitch('quite-long-name')",
                "self.spread(parameters.host_names(), ['quite-long-name'])",
            ),
            "its interface quite-long-name-eth3 has 20 characters; valid: up to 15",
        ),
    ],
)
def test_a_broken_file_is_one_line(tmp_path, text, expected):
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert expected in message
    assert "mine.py" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "signature",
    ["self, parameters", "self", "self, hops=2", "self, **options", "self, given", "self, *given"],
)
def test_mininet_s_own_forms_of_build_will_do(tmp_path, signature):
    text = PLAIN.replace("self, parameters", signature).replace(
        "parameters.host_names()", "('server', 'worker-1', 'worker-2')"
    )
    topology = topologies.build(load(tmp_path, text).experiment.topology)
    assert topology.hosts() == ["server", "worker-1", "worker-2"]
