"""Topologies of a user's own: in a file, and written out."""

import pytest

import topologies
from testbed import experiment
from testbed.shared.input_error import InputError
from tests.experiment import small

STAR = """
from topologies.base import LabTopo

class Topology(LabTopo):
    def build(self, parameters):
        self.addSwitch("s1")
        for name in parameters.host_names():
            self.addLink(self.addHost(name), "s1")
"""


ALICE = """
from topologies.settings import TopologyParameters

class Parameters(TopologyParameters):
    def host_names(self):
        return ["alice", "bob"]
"""


def with_build(*lines: str) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return STAR[: STAR.index("        self.addSwitch")] + body


def load(folder, text, **keys):
    (folder / "mine.py").write_text(text)
    topology = {"name": "./mine.py", "workers": 2, **keys}
    return experiment.load(small.write(folder, topology=topology, impairments=[]))[0]


def test_a_link_has_the_options_of_its_file_and_else_those_of_the_experiment(tmp_path):
    text = STAR.replace('(name), "s1"', '(name), "s1", loss=0.5, delay_s="1 ms"')
    run = load(tmp_path, text, rate_bps=20_000_000, links={"s1--worker-1": {"loss": 0}})
    options = topologies.build(run.experiment.topology).link_options()
    assert [*options] == ["server--s1", "worker-1--s1", "worker-2--s1"]
    expected = {"loss": 0.5, "delay_s": 0.001, "rate_bps": 20_000_000}
    assert options["server--s1"].items() >= expected.items()
    assert options["worker-1--s1"].items() >= (expected | {"loss": 0}).items()


def test_an_own_topology_may_use_core_for_any_link(tmp_path):
    text = STAR.replace('(name), "s1"', '(name), "s1", rate_bps=parameters.core.rate_bps')
    run = load(tmp_path, text, core={"rate_bps": 20_000_000})
    options = topologies.build(run.experiment.topology).link_options()
    assert {link["rate_bps"] for link in options.values()} == {20_000_000}


def test_training_needs_a_server(tmp_path):
    with pytest.raises(InputError, match=r"small.yaml: topology.hosts: training needs a server"):
        load(tmp_path, STAR + ALICE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STAR + "Parameters = 3\n", "Parameters does not derive from TopologyParameters"),
        (
            STAR.replace("self.addHost(name)", "self.addHost(name, dpid='1')"),
            "node server: dpid: the lab makes nodes itself; leave it out",
        ),
        (with_build("raise RuntimeError('no\\n way')"), "RuntimeError: no way"),
        (
            with_build(
                "self.addSwitch('s1')",
                "for name in parameters.host_names(): self.addLink(self.addHost(name), 's1')",
                "self.addSwitch('s2')",
            ),
            "'s2' is not connected to 'server'",
        ),
        (with_build("self.addSwitch('s1'); self.addLink('s1', 's1')"), "leads back"),
        (with_build("self.addSwitch('s1', dpid=7)"), "unexpected keyword argument 'dpid'"),
        (with_build("self.addHost('server', ip='10.0.0.1')"), "node server: ip: the lab makes"),
        (STAR.replace("self.addHost(name), ", "self.addHost(name), bw=5, second="), "bw: unknown"),
        (
            with_build(
                "self.addSwitch('quite-long-name')",
                "self.spread(parameters.host_names(), ['quite-long-name'])",
            ),
            "its interface quite-long-name-eth3 has 20 characters; valid: up to 15",
        ),
        ("from mininet.topo import LinearTopo as Topology", "expected a class that derives from"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path, text, expected):
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert expected in message
    assert "mine.py" in message
    assert "\n" not in message
