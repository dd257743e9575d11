"""Shortest paths, and changes of them that never make a loop."""

from collections import Counter
from typing import Any

import pytest

import topologies
from controllers.routing import Routes, routes, udp_rotations, waves
from testbed.lab.paths import directions
from testbed.run.simulated_network import describe


def network(**keys: Any) -> dict[str, Any]:
    description = describe(topologies.parse(keys)).as_json()
    for name, host in description["hosts"].items():
        host["mac"] = f"mac-{name}"
    return description


def paths(description: dict[str, Any], table: Routes, first: str, second: str) -> list[list[str]]:
    ends = {
        (own["node"], own["number"]): other["node"] for _, own, other in directions(description)
    }
    start = next(end for (node, _), end in ends.items() if node == first)
    complete: list[list[str]] = []
    open_ended = [[start]]
    while open_ended:
        path = open_ended.pop()
        hops = table[path[-1]].get(f"mac-{second}")
        for port in hops.ports if hops else ():
            node = ends[path[-1], port]
            assert node not in path, f"a loop: {[*path, node]}"
            (complete if node == second else open_ended).append([*path, node])
    return complete


def buckets(table: Routes) -> dict[tuple[str, str], Any]:
    return {
        (switch, mac): hops.buckets()
        for switch, rules in table.items()
        for mac, hops in rules.items()
    }


def test_a_fat_tree_has_as_many_paths_as_its_authors_say():
    tree = network(name="fat-tree", k=4, workers=15)
    table = routes(tree)
    # The server is in pod 1 at edge 1; worker-4 at edge 2 of the same pod, worker-1 in pod 2.
    assert len(paths(tree, table, "server", "worker-1")) == 4  # (k/2)^2
    assert len(paths(tree, table, "server", "worker-4")) == 2  # k/2
    assert len(paths(tree, table, "server", "worker-8")) == 1  # the same edge switch
    assert {len(path) for path in paths(tree, table, "worker-1", "server")} == {6}


def test_switches_in_a_row_look_at_different_digits_of_the_hash():
    tree = network(name="fat-tree", k=4, workers=15)
    table = routes(tree)
    edge, aggregation = table["edge-1-1"]["mac-worker-1"], table["agg-1-1"]["mac-worker-1"]
    taken = {(edge.buckets()[value % 2], aggregation.buckets()[value % 4]) for value in range(4)}
    assert len(taken) == 4
    assert len(aggregation.buckets()) == 4
    both = [udp_rotations(edge)[0][1], udp_rotations(aggregation)[0][1]]
    assert both == [0b01, 0b10]


def test_udp_s_source_port_turns_the_buckets_evenly():
    hops = routes(network(name="leaf-spine", workers=3, leaves=2, spines=4))["leaf-1"]
    choice = hops["mac-worker-1"]
    assert [value for value, _ in udp_rotations(choice)] == [0, 1, 2, 3]
    first_ports = {choice.buckets(rotation)[0] for rotation in range(4)}
    assert first_ports == set(choice.ports)
    assert udp_rotations(hops["mac-server"]) == []
    three = routes(network(name="leaf-spine", workers=3, leaves=2, spines=3))["leaf-1"]
    choice = three["mac-worker-1"]
    shares = Counter(
        choice.buckets(rotation)[0] for rotation, _ in enumerate(udp_rotations(choice))
    )
    assert sorted(shares.values()) == [2, 3, 3]


def test_a_failed_link_is_gone_around_and_the_rest_stays():
    fabric = network(name="leaf-spine", workers=3, leaves=2, spines=3)
    down = frozenset(("leaf-1", "spine-2"))
    before, after = routes(fabric), routes(fabric, [down])
    assert len(paths(fabric, before, "server", "worker-1")) == 3
    left = paths(fabric, after, "server", "worker-1")
    assert sorted(path[1] for path in left) == ["spine-1", "spine-3"]
    assert after["leaf-1"]["mac-server"] == before["leaf-1"]["mac-server"]


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "leaf-spine", "workers": 3, "leaves": 3, "spines": 2},
        {"name": "fat-tree", "k": 4, "workers": 4},
    ],
    ids=lambda keys: keys["name"],
)
def test_no_order_of_one_wave_s_changes_makes_a_loop(keys):
    """Also with only some of a wave in force, on the way to a failure and back."""
    fabric = network(**keys)
    hosts = list(fabric["hosts"])
    core = [link for link in fabric["links"] if link["first"]["node"] in fabric["switches"]]
    for link in core[::5]:
        down = frozenset((link["first"]["node"], link["second"]["node"]))
        whole, broken = routes(fabric), routes(fabric, [down])
        assert waves(whole, routes(fabric)) == []
        for old, new in ((whole, broken), (broken, whole)):
            table = {switch: dict(rules) for switch, rules in old.items()}
            for wave in waves(old, new):
                for change in sorted(wave, key=lambda change: change.switch, reverse=True):
                    if change.hops is None:
                        del table[change.switch][change.mac]
                    else:
                        table[change.switch][change.mac] = change.hops
                    target = change.mac.removeprefix("mac-")
                    for host in hosts:
                        if host != target:
                            paths(fabric, table, host, target)  # asserts that none loops
            assert buckets(table) == buckets(new)
