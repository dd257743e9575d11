"""Every kind of impairment at every place: the run is ok, and no packet vanishes.

A lab holds many in turn. What puts a relay into its link acts in the lab of the next place.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from controllers.impairments import KINDS
from tests.documentation import shown
from tests.documentation.shown import ROOT
from tests.lab.conftest import OkOrStalled, Results

pytestmark = pytest.mark.lab

Entry = dict[str, Any]
# The page's first example is the first part of the lab of the last place.
SHOWN = yaml.safe_load(next(shown.blocks(ROOT / "docs" / "how-to" / "impairment.md")).text)
AFTER_SHOWN = 30  # the first round after those of the example
TOPOLOGY = {"name": "dumbbell", "workers": 2, "extra_hosts": 2, "queue_bytes": 150_000}
# Of each place: the target and leg; who sends data there; traffic that passes it.
PLACES: dict[str, tuple[Entry, str, Entry]] = {
    "to the server": (
        {"host": "server", "leg": "gather"},
        "worker-1",
        {"from": "traffic-2", "host": "server"},
    ),
    "to a worker": (
        {"host": "worker-1", "leg": "broadcast"},
        "server",
        {"from": "traffic-2", "host": "worker-1"},
    ),
    "from a worker": (
        {"link": ["worker-1", "left"], "leg": "gather"},
        "worker-1",
        {"from": "worker-1", "host": "server"},
    ),
    "between switches": (
        {"link": ["left", "right"], "leg": "gather"},
        "worker-1",
        {"from": "traffic-1", "host": "server"},
    ),
    "back between switches": (
        {"link": ["right", "left"], "leg": "broadcast"},
        "server",
        {"from": "traffic-2", "host": "worker-1"},
    ),
}
NEXT = {
    "to the server": "to a worker",
    "to a worker": "from a worker",
    "from a worker": "between switches",
    "between switches": "to the server",
}
DROPPING = {"loss", "sender-drop", "burst"}


def entries(place: str, rate_bps: int) -> Iterator[Entry]:
    """Those that leave the middle of links as it is, and let routes and processes live."""
    at, sender, traffic = PLACES[place]
    leg = {"leg": at["leg"]}
    yield {"kind": "loss", "q": 0.3, **at}
    yield {"kind": "loss", "name": "all of it", "q": 0.1, "spare_control": False, **at}
    yield {"kind": "sender-drop", "q": 0.3, "host": sender, **leg}
    yield {"kind": "queue", "rate_bps": rate_bps * 2 // 5, "queue_bytes": 45_000, **at}
    changes = {"t_s": [0.0, 0.02], "rate_bps": [rate_bps // 4, rate_bps // 2]}
    yield {"kind": "trace", "changes": changes, "length_s": 0.05, **at}
    yield {"kind": "straggler", "name": "slow link", "host": "worker-1", "resource": "link"}
    yield {"kind": "straggler", "name": "slow worker", "host": "worker-1"}
    if at.get("link", ["left"])[0] != "worker-1":  # a burst needs a switch's port
        yield {"kind": "burst", "duration_s": 0.03, **at}
        yield {"kind": "burst", "name": "small", "duration_s": 0.03, "frame_bytes": 600, **at}
    yield {"kind": "background", "congestion_control": "cubic", "duration_s": 0.4, **leg, **traffic}


def of_middle(place: str, rate_bps: int) -> Iterator[Entry]:
    """Those for which a relay, or netem, is put into the link."""
    at = PLACES[place][0]
    yield {"kind": "delay", "delay_s": 0.004, **at}
    yield {"kind": "delay", "name": "uneven", "delay_s": 0.004, "jitter_s": 0.002, **at}
    changes = {
        "t_s": [0.0, 0.02, 0.04],
        "rate_bps": [rate_bps // 2, rate_bps // 4, rate_bps],
        "delay_s": [0.002, 0.006, 0.002],
        "jitter_s": [0.001, 0.002, 0.0],
        "loss": [0.0, 0.1, 0.02],
    }
    yield {"kind": "trace", "name": "recorded", "changes": changes, "length_s": 0.06, **at}


def in_turn(*entries: Entry, first: int = 3) -> list[Entry]:
    """Each in a round of its own, with two rounds between them."""
    common = {"straggler": {"factor": 3, "at_most_s": 0.5}}
    return [
        {"name": f"{entry['kind']} {number}", "rounds": [first + 3 * number]}
        | common.get(entry["kind"], {})
        | entry
        for number, entry in enumerate(entries)
    ]


def assert_accounted_for(results: Results, planned: list[Entry], check: OkOrStalled) -> None:
    """The run is ok; all met something; who drops did; and all ledgers are closed."""
    check(results.verdict())
    ended = [event for event in results.events("impairments") if event["action"] == "end"]
    assert {end["kind"] for end in ended} == {entry["kind"] for entry in planned}
    for end in ended:
        assert end["met"] or end["kind"] in ("link-down", "crash"), end
        assert end["kind"] not in DROPPING or 0 < end["dropped"] <= end["met"], end
    ledgers: Mapping[str, Any] = json.loads((results.run() / "conservation.json").read_text())
    assert {link["unexplained"] for link in ledgers["links"] + ledgers["switches"]} == {0}
    assert {link["interface_drops"] for link in ledgers["links"] if not link["went_down"]} <= {0}
    injected = sum(link["injected"] for link in ledgers["links"])
    assert injected == sum(end["dropped"] for end in ended if end["kind"] == "loss")
    bursts = [end for end in ended if end["kind"] == "burst"]
    frames = sum(switch["packet_outs"] for switch in ledgers["switches"])
    assert frames == sum(burst["frames_sent"] for burst in bursts)
    # A switch has no rule for those that came to it, and always one for what else comes.
    came = sum(
        burst["frames_sent"] - burst["dropped"] for burst in bursts if "->" in burst["target"]
    )
    if "link-down" not in {entry["kind"] for entry in planned}:
        assert came == sum(switch["table_misses"] for switch in ledgers["switches"])


# Filters of hosts and first links are also in test_run.py and test_impairments.py.
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(entry, marks=[] if entry == "between switches" else [pytest.mark.long])
        for entry in NEXT
    ],
)
def test_every_kind_at_a_place_is_accounted_for(run_small, ok_or_stalled, held_rate_bps, place):
    topology: Entry = {**TOPOLOGY, "rate_bps": held_rate_bps}
    result = [*entries(place, held_rate_bps), *of_middle(NEXT[place], held_rate_bps)]
    planned = in_turn(*result)
    if place == "between switches":
        topology |= SHOWN["topology"]
        planned = [*SHOWN["impairments"], *in_turn(*result, first=AFTER_SHOWN)]
    rounds = max(planned[-1]["rounds"]) + 4
    results = run_small(topology=topology, impairments=planned, rounds=rounds)
    assert_accounted_for(results, planned, ok_or_stalled)


VARIANTS: dict[str, Entry] = {
    "relay": {"topology": {"delay_s": 0.002}},
    "tcp": {"arms": {"dblp": {"protocol": "tcp", "congestion_control": "cubic"}}},
    "down": {"training": {"on_worker_loss": "continue"}},
}


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("place", PLACES)
def test_every_kind_at_every_place(run_small, ok_or_stalled, held_rate_bps, place, variant):
    changes = dict(VARIANTS[variant])
    topology = {**TOPOLOGY, "rate_bps": held_rate_bps, **changes.pop("topology", {})}
    result = [*entries(place, held_rate_bps), *of_middle(place, held_rate_bps)]
    if variant == "tcp":
        result = [entry for entry in result if entry["kind"] != "sender-drop"]
    elif variant == "relay":
        result += [{"kind": "delay", "name": "none", "delay_s": 0.0, **PLACES[place][0]}]
    elif variant == "down":
        at = PLACES[place][0]
        result = [entry for entry in result if entry["kind"] == "loss"]
        result += [{"kind": "link-down", "duration_s": 0.05, **at}]
        result += [{"kind": "crash", "host": "worker-2", "leg": at["leg"]}]
    planned = in_turn(*result)
    rounds = max(planned[-1]["rounds"]) + 4
    results = run_small(topology=topology, impairments=planned, rounds=rounds, **changes)
    assert_accounted_for(results, planned, ok_or_stalled)


def test_no_kind_is_left_out():
    result = {entry["kind"] for place in NEXT for entry in entries(place, 10**8)}
    result |= {entry["kind"] for place in NEXT for entry in of_middle(place, 10**8)}
    assert result | {"link-down", "crash"} == set(KINDS)
