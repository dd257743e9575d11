"""Topologies as graphs, their parameters, and what is said of them and when they are wrong."""

import networkx
import pytest
from pydantic import ValidationError

import topologies


def built(**keys):
    return topologies.build(topologies.parse(keys))


@pytest.mark.parametrize(
    ("keys", "switches", "links"),
    [
        ({"name": "star", "workers": 3}, 1, 4),
        ({"name": "dumbbell", "workers": 3}, 2, 5),
        ({"name": "leaf-spine", "workers": 3, "leaves": 3, "spines": 2}, 5, 3 * 2 + 4),
        ({"name": "fat-tree", "k": 4, "workers": 15}, 20, 32 + 16),
        ({"name": "clos", "workers": 16, "hosts_per_leaf": 4, "spines": 3}, 5 + 3, 5 * 3 + 17),
        ({"name": "star", "workers": 2, "extra_hosts": 2}, 1, 5),
    ],
)
def test_has_the_nodes_and_links_that_its_name_promises(keys, switches, links):
    topology = built(**keys)
    assert len(topology.switches()) == switches
    assert len(topology.links()) == links
    assert networkx.is_connected(topology.as_graph())


def test_a_clos_network_has_the_rates_of_its_oversubscription():
    """Four leaves of 8 hosts with 100 Mbit/s each; 4 to 1: 200 Mbit/s of each leaf over 5 links."""
    topology = built(name="clos", workers=31, hosts_per_leaf=8, spines=5, oversubscription=4)
    options = topology.link_options()
    assert options["leaf-1--spine-1"]["rate_bps"] == 40_000_000
    assert options["worker-31--leaf-4"]["rate_bps"] == 100_000_000
    assert {name for name in options if name.startswith(("server", "worker-7-"))} == {
        "server--leaf-1",
        "worker-7--leaf-1",
    }
    with pytest.raises(ValidationError, match=r"core.rate_bps\s+follows from oversubscription"):
        built(name="clos", core={"rate_bps": 1_000_000})
    assert built(name="clos", core={"delay_s": 0.02}).link_options()["leaf-1--spine-2"] == {
        "rate_bps": 400_000_000,
        "queue_bytes": 150_000,
        "delay_s": 0.02,
        "jitter_s": 0.0,
        "loss": 0.0,
        "ecn_threshold_bytes": None,
    }


def test_a_second_queue_is_told_where_there_is_one_and_changes_no_key_where_there_is_none():
    keys = {"name": "leaf-spine", "workers": 3, "core": {"priority_queue_bytes": 60_000}}
    options = built(**keys).link_options()
    queue_bytes = {name: option.get("priority_queue_bytes") for name, option in options.items()}
    assert queue_bytes["leaf-1--spine-1"] == 60_000
    assert queue_bytes["worker-1--leaf-2"] is None
    plain = topologies.parse({"name": "star"}).model_dump(mode="json")
    assert "priority_queue_bytes" not in {*plain, *plain["core"]}


def test_the_longest_round_trip_is_that_of_the_farthest_two_hosts():
    """Compared with a search from every host."""
    keys = {"name": "leaf-spine", "workers": 7, "leaves": 3, "spines": 2, "delay_s": 0.001}
    links = {"worker-3--leaf-1": {"delay_s": 0.02}, "leaf-2--spine-1": {"delay_s": 0.007}}
    links |= {"worker-6--leaf-1": {"delay_s": 0.05}}
    for changes in ({}, {"links": links}, {"workers": 1, "delay_s": 0.0}):
        topology = built(**{**keys, **changes})
        graph = topology.as_graph()
        for _, _, edge in graph.edges(data=True):
            edge["cost"] = 1e6 + edge["delay_s"]
        longest_s = 0.0
        for host in topology.hosts():
            costs = networkx.single_source_dijkstra_path_length(graph, host, weight="cost")
            longest_s = max(longest_s, *(costs[other] % 1e6 for other in topology.hosts()))
        assert topology.longest_rtt_s() == pytest.approx(2 * longest_s, abs=1e-9)


def test_thousands_of_hosts_are_built_in_seconds():
    """Nothing about it may take a time that grows with the square of their number."""
    topology = built(name="clos", workers=10_000, hosts_per_leaf=40, spines=4)
    assert len(topology.hosts()) == 10_001
    assert len(topology.switches()) == 251 + 4


@pytest.mark.parametrize("name", topologies.TOPOLOGIES)
def test_names_and_datapath_ids_are_the_same_each_time_and_fit_the_kernel(name):
    keys = {"name": name, "workers": 64, "extra_hosts": 32}
    if name == "fat-tree":
        keys |= {"k": 8}
    first, second = built(**keys), built(**keys)
    assert first.links(withInfo=True) == second.links(withInfo=True)
    ids = [first.nodeInfo(switch)["dpid"] for switch in first.switches()]
    assert len(set(ids)) == len(ids)
    interfaces = [f"{node}-eth{port}" for node, ports in first.ports.items() for port in ports]
    assert max(map(len, interfaces)) <= 15


def test_a_link_takes_what_it_does_not_say_from_larger_scopes():
    options = built(
        name="leaf-spine",
        workers=2,
        leaves=2,
        queue_bytes=50_000,
        core={"rate_bps": 40_000_000, "delay_s": 0.001},
        links={"spine-2--leaf-1": {"loss": 0.01, "queue_bytes": 20_000}},
    ).link_options()
    host = {"rate_bps": 100_000_000, "queue_bytes": 50_000, "delay_s": 0.0, "loss": 0.0}
    core = {"rate_bps": 40_000_000, "queue_bytes": 50_000, "delay_s": 0.001, "loss": 0.0}
    assert options["server--leaf-1"].items() >= host.items()
    assert options["leaf-1--spine-1"].items() >= core.items()
    assert (
        options["leaf-1--spine-2"].items() >= (core | {"loss": 0.01, "queue_bytes": 20_000}).items()
    )


def test_a_queue_in_bandwidth_delay_products_goes_by_the_longest_pair_of_hosts():
    topology = built(
        name="dumbbell",
        workers=2,
        delay_s=0.001,
        queue_bdp=2,
        core={"rate_bps": 20_000_000, "delay_s": 0.008, "queue_bdp": 0.5},
    )
    rtt_s = 2 * (0.001 + 0.008 + 0.001)
    assert topology.longest_rtt_s() == pytest.approx(rtt_s)
    options = topology.link_options()
    assert options["server--right"]["queue_bytes"] == round(2 * 100e6 * rtt_s / 8)
    assert options["left--right"]["queue_bytes"] == round(0.5 * 20e6 * rtt_s / 8)


# Further mistakes: `tests/cli/wrong_inputs.yaml`.
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"name": "star", "priority_queue_bytes": 30_000, "ecn_threshold_bytes": 30_000},
            "priority_queue_bytes and ecn_threshold_bytes exclude each other",
        ),
        ({"name": "star", "queue_bdp": 1, "queue_bytes": 9000, "delay_s": 1}, "exclude each other"),
        ({"name": "fat-tree", "k": 4, "workers": 16}, "room for 16 hosts, not for 17"),
    ],
)
def test_what_is_wrong_is_said(keys, expected):
    with pytest.raises(ValueError) as caught:
        topologies.parse(keys)
    assert expected in str(caught.value)
