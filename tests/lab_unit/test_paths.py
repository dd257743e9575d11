"""Paths, rates and fair shares, on descriptions of networks made by hand."""

from typing import Any

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.lab import paths


def description(*links: tuple[str, str, int, float]) -> dict[str, Any]:
    """A network of (first, second, rate in Mbit/s, one-way delay in ms)."""
    nodes = {node for first, second, _, _ in links for node in (first, second)}
    return {
        "hosts": {name: {} for name in sorted(nodes) if name.startswith(("server", "worker"))},
        "links": [
            {
                "name": f"{first}--{second}",
                "first": {"node": first},
                "second": {"node": second},
                "rate_bps": rate * 1_000_000,
                "queue_bytes": rate * 1000,
                "delay_s": delay / 1000,
            }
            for first, second, rate, delay in links
        ],
    }


STAR = description(("server", "s1", 100, 5), ("worker-1", "s1", 100, 5), ("worker-2", "s1", 20, 1))
DUMBBELL = description(
    *(("server", "s1", 100, 0), ("s1", "s2", 30, 10), ("worker-1", "s1", 100, 1)),
    *(("worker-2", "s2", 100, 1), ("worker-3", "s2", 100, 1)),
)
LEAF_SPINE = description(
    *(("server", "leaf-1", 100, 0), ("worker-1", "leaf-2", 100, 0), ("worker-2", "leaf-2", 50, 0)),
    *((f"leaf-{leaf}", f"spine-{spine}", 40, 1) for leaf in (1, 2) for spine in (2, 1)),
)


def test_a_path_is_a_list_of_directed_links():
    way = paths.path(DUMBBELL, "worker-2", "server")
    assert [link.as_json() for link in way] == [
        {"link": "worker-2--s2", "from": "worker-2"},
        {"link": "s1--s2", "from": "s2"},
        {"link": "server--s1", "from": "s1"},
    ]
    back = paths.path(DUMBBELL, "server", "worker-2")
    assert [(link.name, link.receiver) for link in reversed(back)] == [
        (link.name, link.sender) for link in way
    ]
    assert paths.path(DUMBBELL, "server", "server") == []


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_every_path_is_the_first_by_name_of_the_shortest(edges):
    names = sorted({(f"n{min(e)}", f"n{max(e)}") for e in edges if e[0] != e[1]} | {("n0", "n1")})
    network, graph = description(*((*ends, 1, 0) for ends in names)), networkx.Graph(names)
    reached = networkx.node_connected_component(graph, "n0")
    for first, way in paths.paths_to(network, reached, "n0").items():
        nodes = [*(link.sender for link in way), "n0"]
        assert nodes == min(networkx.all_shortest_paths(graph, first, "n0"))
    for node in graph.nodes - reached:
        with pytest.raises(ValueError, match=f"no path from '{node}' to 'n0'"):
            paths.paths_to(network, [node], "n0")


BOTH = ["worker-1", "worker-2"]


def test_fair_shares_follow_the_narrowest_link_and_who_else_uses_it():
    assert paths.fair_shares(STAR, BOTH, "rate_bps") == {"worker-1": 50e6, "worker-2": 20e6}
    # The server's link allows 33 Mbit/s each, the bottleneck in the middle two times 15.
    shares = paths.fair_shares(DUMBBELL, [*BOTH, "worker-3"], "rate_bps")
    assert shares["worker-1"] == pytest.approx(100e6 / 3)
    assert shares["worker-2"] == shares["worker-3"] == 15e6
    # Both workers may be hashed to the same spine.
    assert paths.fair_shares(LEAF_SPINE, BOTH, "rate_bps") == {"worker-1": 20e6, "worker-2": 20e6}


def test_queues_are_shared_like_links_and_hosts_that_take_no_part_have_no_share():
    assert paths.fair_shares(STAR, BOTH, "queue_bytes") == {"worker-1": 50_000, "worker-2": 20_000}
    assert paths.fair_shares(STAR, ["worker-1"], "queue_bytes") == {"worker-1": 100_000}


def test_unknown_nodes_are_refused():
    with pytest.raises(ValueError, match=r"unknown node 'nobody'; valid: s1, server, worker-1"):
        paths.path(STAR, "nobody", "server")
