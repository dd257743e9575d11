"""Protocol configurations and presets."""

from typing import Any

import pytest

from testbed.transport import (
    PRESETS,
    Fixed,
    Leg,
    Phased,
    ProtocolConfig,
    preset,
)
from testbed.transport.policies.tolerance import EarlyClose, PerLayer, QuickLossOnly, TimeBound
from tests.transport.loopback import site


def test_presets_have_the_published_tolerances():
    dblp = preset("dblp")
    assert dblp.gather == dblp.broadcast == Phased(low=0.008, high=0.408)
    assert preset("fixed-low").gather == Fixed(0.008)
    assert preset("fixed-high").broadcast == Fixed(0.408)
    assert (preset("tcp").carrier, preset("tcp").congestion_control) == ("tcp", "cubic")
    assert preset("tcp").policy(Leg.BROADCAST).tolerance(False) == 0


def test_the_presets_in_the_style_of_others_are_composed_as_documented():
    ltp = preset("ltp")
    assert (ltp.gather, ltp.broadcast) == (EarlyClose(0.1, 0.1), Fixed(0))
    assert (ltp.repair, ltp.congestion_control) == ("selective", "ltp")
    apnet = preset("apnet")
    assert apnet.gather == apnet.broadcast == QuickLossOnly(0.1, 0.02)
    assert (apnet.repair, apnet.congestion_control) == ("selective", "fixed")
    per_layer = preset("per-layer")
    assert per_layer.gather == per_layer.broadcast == PerLayer(0.1, last=0.036)
    plot = preset("plot", tensors={"conv.*": 0.4})
    assert (plot.gather, plot.broadcast) == (PerLayer(0, tensors={"conv.*": 0.4}), Fixed(0))
    assert (plot.repair, plot.order) == ("passes", "shuffled")
    mlt = preset("mlt")
    assert mlt.gather == mlt.broadcast == PerLayer(0.1)
    assert (mlt.repair, mlt.congestion_control) == ("passes", "timely")
    optireduce = preset("optireduce", warm_up=7, wait=0.2)
    assert optireduce.gather == optireduce.broadcast == TimeBound(warm_up=7, wait=0.2)
    assert (optireduce.repair, optireduce.order) == ("once", "in-order")
    ours = preset("dblp-stream")
    assert ours.gather == preset("dblp").gather
    assert (ours.repair, ours.order) == ("streaming", "shuffled")


def test_overrides_reach_the_preset_and_its_fields():
    changed = preset("dblp", low=0.024, high=0.424, broadcast=0, name="dblp-reliable-broadcast")
    assert changed.gather == Phased(low=0.024, high=0.424)
    assert changed.broadcast == Fixed(0)
    assert changed.name == "dblp-reliable-broadcast"
    assert preset("tcp-bbr").congestion_control == "bbr"
    assert preset("tcp-bbr").name == "tcp-bbr"
    assert preset("ltp", deadline_s=0.5, must="*.bias").gather == EarlyClose(0.1, 0.5, "*.bias")
    assert preset("per-layer", tensors={"head.*": 0}).gather == PerLayer(
        0.1, last=0.036, tensors={"head.*": 0}
    )
    assert preset("dblp-stream", order="rotating").order == "rotating"


@pytest.mark.parametrize(
    ("name", "overrides", "named"),
    [
        ("dbpl", {}, "valid: dblp, dblp-stream, fixed-low, .*, tcp"),
        ("dblp", {"lo": 0.1}, "valid: low, high, name"),
        ("dblp", {"low": 1}, "low is 1"),
        ("optireduce", {"warm_up": True}, "warm_up is true; valid: a whole number, 1 to 64"),
        ("dblp", {"order": "rotating:share=2"}, "share is 2"),
        ("dblp", {"congestion_control": "fixt"}, "valid: fixed"),
        ("dblp", {"congestion_control": "fixed:rate_bps=0"}, "above 0"),
        ("dblp", {"carrier": "sctp"}, "valid: udp, tcp"),
        ("tcp", {"gather": 0.1}, "reliable"),
        ("tcp", {"control": "hedged"}, "leave it out"),
        ("dblp", {"coding": "two-values"}, "coding is two-values; our own transport sends chunks"),
        ("one-bit", {"coding": "bits"}, "coding is 'bits'; valid: plain, two-values"),
        ("one-bit", {"keep": 0.5}, r"keep is 0\.5; coding two-values sends all chunks: keep: 1"),
        ("dblp", {"control": "quic"}, "control is 'quic'; valid: tcp, hedged"),
        ("tcp", {"congestion_control": "fixed:rate_bps=1"}, "kernel's name"),
    ],
)
def test_mistakes_are_answered_with_what_is_valid(name, overrides, named):
    with pytest.raises(ValueError, match=named):
        preset(name, **overrides)


@pytest.mark.parametrize("name", [*PRESETS, "tcp-reno"])
def test_a_description_builds_the_protocol_again(name):
    protocol = preset(name)
    described: dict[str, Any] = dict(protocol.describe())
    assert ProtocolConfig(**described) == protocol


def test_hedges_and_codings_are_described_where_there_are_any():
    assert "control" not in preset("dblp").describe()
    assert preset("dblp", control="hedged").describe()["control"] == "hedged"
    assert preset("bounded-energy").control == "hedged"
    assert "coding" not in preset("tcp").describe()
    assert preset("one-bit").describe()["coding"] == "two-values"


def test_transfers_are_numbered_by_round_and_leg():
    numbers = [leg.transfer(index) for index in range(3) for leg in Leg]
    assert numbers == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"session": 2**32}, "session"),
        ({"peers": {}}, "peers"),
        ({"peers": {"worker-1": "127.0.0.1"}, "is_server": False}, "'server'"),
        ({"rate_bps": 0}, "rate_bps is 0"),
        ({"peer_timeout_s": float("inf")}, "peer_timeout_s is inf; valid: above 0, finite"),
        ({"quantum_s": 0}, "quantum_s is 0; valid: above 0, at most 1"),
        ({"control_port": 0}, "control_port"),
        ({"data_port": 65535}, "data_port"),
        ({"name": "boss"}, "name is 'boss'; valid: 'server' for the server"),
        (
            {"name": "server", "peers": {"server": "127.0.0.1"}, "is_server": False},
            "name is 'server'; valid: a worker's name",
        ),
        ({"peers": {"server": "127.0.0.2"}}, "peers has 'server'; valid: the names of workers"),
        ({"peers": {"worker-1": 7}}, r"peers has {'worker-1': 7}; valid: a name and an address"),
        ({"peers": ["worker-1"]}, r"peers is \['worker-1'\]; valid: a mapping of names"),
        ({"protocol": "dblp"}, r"protocol is 'dblp'; valid: .* preset\('dblp'\)"),
        ({"rate_bps": "95Mbit"}, "rate_bps is '95Mbit'; valid: a number of bits per second above"),
        ({"peer_timeout_s": "30"}, "peer_timeout_s is '30'; valid: a number of seconds"),
        ({"session": 1.5}, "session is 1.5; valid: a whole number"),
        ({"layout": [("w", 3)]}, r"layout is \[\('w', 3\)\]; valid: a PayloadLayout"),
        ({"credentials": "keys"}, "credentials is 'keys'; valid: Credentials or None"),
        ({"checksum": "yes"}, "checksum is 'yes'; valid: True or False"),
    ],
)
def test_impossible_endpoints_are_refused(change, named):
    with pytest.raises(ValueError, match=named):
        site(workers=2).server(**change)
