"""Topologies of a user's own: files, plain Mininet ones, and those written out."""

from __future__ import annotations

import json

import pytest
from mininet.topo import LinearTopo, Topo

import topologies
from testbed import experiment
from testbed.shared.input_error import InputError
from tests.experiment import small
from topologies import graph

# The performance example of Mininet's introduction, without its share of the processor.
SIMPLE_PERF = """
from mininet.topo import Topo

class SingleSwitchTopo(Topo):
    def build(self, n=2, lossy=True):
        switch = self.addSwitch('s1')
        for h in range(n):
            host = self.addHost('h%s' % (h + 1))
            if lossy:
                self.addLink(host, switch, bw=10, delay='5ms', loss=10, use_htb=True)
            else:
                self.addLink(host, switch, bw=10, delay='5ms', loss=0, use_htb=True)
"""
# The old form: the constructor builds, after that of `Topo`.
OLD_STYLE = """
from mininet.topo import Topo
from mininet.link import TCLink

class MyTopo(Topo):
    def __init__(self):
        Topo.__init__(self)
        alice, bob, carol = (self.addHost(name) for name in ('alice', 'bob', 'carol'))
        left, right = self.addSwitch('s3'), self.addSwitch('s4')
        linkopts = dict(bw=10, delay='10ms', loss=0)
        self.addLink(alice, left, cls=TCLink, **linkopts)
        self.addLink(left, right, cls=TCLink, bw=5, delay='1s', max_queue_size=32, use_tbf=False)
        for host in (bob, carol):
            self.addLink(host, right, **linkopts)

topos = {'mytopo': (lambda: MyTopo())}
"""


def built(folder, text, *, overrides=(), **keys):
    return topologies.build(load(folder, text, overrides=overrides, **keys).experiment.topology)


def test_the_example_of_mininet_s_introduction_is_translated(tmp_path):
    topology = built(tmp_path, SIMPLE_PERF, n=3)
    assert topology.hosts() == ["server", "worker-1", "worker-2"]
    options = topology.link_options()
    assert list(options) == ["server--s1", "worker-1--s1", "worker-2--s1"]
    for option in options.values():
        expected = {"rate_bps": 10_000_000, "delay_s": 0.005, "loss": 0.1, "queue_bytes": 150_000}
        assert option.items() >= expected.items()


def test_options_of_build_are_keys_of_the_experiment(tmp_path):
    run = load(tmp_path, SIMPLE_PERF, n=3, lossy=False)
    assert run.config()["topology"]["n"] == 3
    for options in topologies.build(run.experiment.topology).link_options().values():
        assert options["loss"] == 0
    assert run.key != load(tmp_path, SIMPLE_PERF, n=3).key
    with pytest.raises(InputError, match=r"topology\.m: unknown key; valid: .*\bn\b"):
        load(tmp_path, SIMPLE_PERF, m=3)


@pytest.mark.parametrize(
    "constructor", ["Topo.__init__(self)", "super().__init__()", "super(MyTopo, self).__init__()"]
)
def test_a_constructor_that_builds_will_do(tmp_path, constructor):
    topology = built(tmp_path, OLD_STYLE.replace("Topo.__init__(self)", constructor))
    assert topology.hosts() == ["server", "worker-1", "worker-2"]
    assert topology.roles == {"alice": "server", "bob": "worker-1", "carol": "worker-2"}
    assert [*topology.link_options()] == ["server--s3", "s3--s4", "worker-1--s4", "worker-2--s4"]
    core = topology.link_options()["s3--s4"]
    assert core["queue_bytes"] == 32 * 1514
    assert (core["rate_bps"], core["delay_s"]) == (5_000_000, 1.0)


def test_a_constructor_with_options_takes_them_from_the_experiment(tmp_path):
    text = OLD_STYLE.replace("__init__(self):", "__init__(self, bw=10, **opts):").replace(
        "Topo.__init__(self)", "super().__init__(**opts)"
    )
    text = text.replace("dict(bw=10,", "dict(bw=bw,")
    for bw in (25, 2.5):
        topology = built(tmp_path, text, bw=bw)
        assert topology.link_options()["server--s3"]["rate_bps"] == 1e6 * bw


@pytest.mark.parametrize(
    ("name", "keys", "switches"),
    [
        ("topo import LinearTopo", {"k": 2, "n": 2, "workers": 3}, 2),
        ("topolib import TreeTopo", {"depth": 2, "fanout": 2, "workers": 3}, 3),
        ("topolib import TorusTopo", {"x": 3, "y": 3, "workers": 8}, 9),
    ],
)
def test_mininet_s_own_topologies_need_a_file_of_one_line(tmp_path, name, keys, switches):
    path = tmp_path / "mine.py"
    path.write_text(f"from mininet.{name} as Topology\n")
    topology = topologies.build(topologies.parse({"name": str(path), "workers": 2, **keys}))
    assert len(topology.switches()) == switches
    assert "server" in topology.hosts()


def test_links_of_renamed_hosts_can_be_overridden_by_their_new_names(tmp_path):
    topology = built(tmp_path, SIMPLE_PERF, n=3, links={"server--s1": {"loss": 0}})
    assert topology.link_options()["server--s1"]["loss"] == 0
    assert topology.port("server", "s1") == (0, 1)
    info = topology.linkInfo("server", "s1")
    assert (info["node1"], info["node2"]) == ("server", "s1")


def test_a_number_of_hosts_that_does_not_fit_is_said(tmp_path):
    with pytest.raises(InputError) as caught:
        load(tmp_path, SIMPLE_PERF, n=4)
    assert (
        "it has 4 hosts, none of them called 'server'; the server, workers (2) and extra_hosts (0) "
        "are 3; workers: 3 would fit"
    ) in str(caught.value)
    assert built(tmp_path, SIMPLE_PERF, n=4, extra_hosts=1).hosts()[1] == "traffic-1"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("bw=0.5", {"rate_bps": 500_000}),
        ("delay='100us', jitter='0.05ms'", {"delay_s": 1e-4, "jitter_s": 5e-5}),
        ("delay='0.6s'", {"delay_s": 0.6}),
        ("delay=0", {"delay_s": 0}),
        ("loss='2%'", {"loss": 0.02}),
        ("bw=10, enable_ecn=True", {"ecn_threshold_bytes": 30_000}),
        ("bw=None, max_queue_size=None, use_hfsc=False, speedup=0", {"rate_bps": 100_000_000}),
        ("rate_bps=3_000_000, delay_s=0.001", {"rate_bps": 3_000_000, "delay_s": 0.001}),
    ],
)
def test_options_of_a_link(tmp_path, written, expected):
    text = SIMPLE_PERF.replace("bw=10, delay='5ms', loss=10, use_htb=True", written)
    options = built(tmp_path, text, n=3).link_options()["server--s1"]
    assert {key: options[key] for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("delay=5", "delay=5: valid: a time with its unit, such as '5ms' or '100us'"),
        ("loss=120", "loss='120': valid: a number of per cent, up to 100"),
        ("bw='fast'", "bw='fast': valid: a number of Mbit/s"),
        ("max_queue_size=1", "max_queue_size=1: valid: 2 packets or more"),
        (
            "bw=20_000",
            "rate_bps: 20000000000: must be a whole number from 100_000 to 10_000_000_000",
        ),
        ("cls=dict", "cls=dict: the lab makes links itself; valid: "),
        ("bw=1, rate_bps=1_000_000", "rate_bps is given twice, once in Mininet's words"),
    ],
)
def test_what_a_link_cannot_have_is_one_line_that_names_it(tmp_path, options, message):
    text = SIMPLE_PERF.replace("bw=10, delay='5ms', loss=10, use_htb=True", options)
    with pytest.raises(InputError) as caught:
        load(tmp_path, text, n=3)
    assert f"line 10: link h1--s1: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "http" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(h + 1))", "(h + 1), cpu=.5)", "host h1: cpu=0.5: the lab makes hosts and their addr"),
        ("'s1')", "'s1', protocols='OpenFlow14')", "switch s1: protocols='OpenFlow14': the lab ma"),
        ("'s1')", "'s1', dpid=7)", "switch s1: dpid=7: valid: a text of 1 to 16 hexadecimal"),
    ],
)
def test_what_a_node_cannot_have_is_one_line_that_names_it(tmp_path, old, new, message):
    with pytest.raises(InputError) as caught:
        load(tmp_path, SIMPLE_PERF.replace(old, new, 1), n=3)
    assert message in str(caught.value)
    assert "leave it out" in str(caught.value) or "valid:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loss_is_a_share_in_a_topology_of_the_lab(tmp_path):
    text = """
from topologies.base import LabTopo
class Topology(LabTopo):
    def build(self, parameters):
        self.addSwitch("s1")
        for name in parameters.all_host_names():
            self.addLink(self.addHost(name), "s1", OPTIONS)
"""
    assert (
        built(tmp_path, text.replace("OPTIONS", "loss=0.5")).link_options()["server--s1"]["loss"]
        == 0.5
    )
    options = built(tmp_path, text.replace("OPTIONS", "bw=20, delay='1ms'")).link_options()
    assert options["server--s1"]["rate_bps"] == 20_000_000
    with pytest.raises(InputError, match="a share in a LabTopo, per cent in a plain Topo"):
        load(tmp_path, text.replace("OPTIONS", "bw=20, loss=2"))


class Bottleneck(Topo):
    def build(self):
        left, right = self.addSwitch("s1"), self.addSwitch("s2")
        self.addLink(left, right, bw=10, delay="5ms", loss=1)
        for name, switch in (("alice", left), ("bob", right)):
            self.addLink(self.addHost(name), switch)


def rebuilt(topo):
    """It returns what another process builds of the description, which reaches it as JSON."""
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
    options = {"name": "leaf-spine", "workers": 4, "core": {"delay_s": 0.002}}
    first = topologies.build(topologies.parse(options))
    assert rebuilt(first).link_options() == first.link_options()
    assert rebuilt(first).ports == first.ports


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speed": 1}, r"^link a--s1: speed=1: the lab makes links itself; "),
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
    topology = {"name": "./mine.py", "workers": 2, **keys}
    path = small.write(folder, topology=topology, impairments=[])
    return experiment.load(path, overrides=overrides)[0]


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
