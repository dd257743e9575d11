"""Protocol configurations and presets."""

import math
from typing import Any

import pytest

from testbed.transport import PRESETS, Fixed, Leg, Phased, ProtocolConfig, preset
from testbed.transport.errors import check_number
from testbed.transport.presets import REGISTRIES
from testbed.transport.tolerance import EarlyClose, PerLayer, TimeBound
from tests.transport.loopback import site


def test_presets_have_the_published_tolerances():
    dblp = preset("dblp")
    assert dblp.gather == dblp.broadcast == Phased(low=0.008, high=0.408)
    assert preset("fixed-low").gather == Fixed(0.008)
    assert preset("fixed-high").broadcast == Fixed(0.408)
    assert (preset("tcp").carrier, preset("tcp").congestion_control) == ("tcp", "cubic")
    assert preset("tcp").policy(Leg.BROADCAST).tolerance(False) == 0


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
    assert preset("dblp-stream", order="in-order").order == "in-order"
    optireduce = preset("optireduce", warm_up=7, wait=0.2)
    assert optireduce.gather == optireduce.broadcast == TimeBound(warm_up=7, wait=0.2)
    plot = preset("plot", tensors={"conv.*": 0.4})
    assert (plot.gather, plot.broadcast) == (PerLayer(0, tensors={"conv.*": 0.4}), Fixed(0))


@pytest.mark.parametrize(
    ("name", "overrides", "named"),
    [
        ("dbpl", {}, "valid: dblp, dblp-stream, fixed-low, .*, tcp"),
        ("dblp", {"lo": 0.1}, "valid: low, high, name"),
        ("dblp", {"low": 0.5}, "low is 0.5, above high"),
        ("dblp", {"congestion_control": "fixt"}, "valid: fixed"),
        ("dblp", {"carrier": "sctp"}, "carrier is 'sctp'; valid: udp, tcp"),
        ("dblp", {"codec": "int5"}, "codec: unknown codec 'int5'; valid: float32, bfloat16,"),
        ("dblp", {"codec": "int4:scale=2"}, "codec: codec 'int4' has no option 'scale'"),
        ("dblp", {"gather": {"tolerance": 0.1}}, "gather: .* needs the key 'policy'"),
        ("dblp", {"gather": "bounded-energy"}, "gather: .* needs an order that sends"),
        ("bounded-energy", {"marks": "layer-and-magnitude"}, "by-energy tells .* would change"),
        ("bounded-energy", {"within_rounds": 0}, "within_rounds is 0; valid: a whole number, 1 or"),
        ("tcp", {"gather": 0.1}, "reliable"),
        ("tcp", {"control": "datagrams"}, "leave it out"),
        ("tcp", {"marks": "layer-and-magnitude"}, "kernel TCP has its own way .*, and no marks"),
        ("tcp", {"congestion_control": "fixed:rate_bps=1"}, "kernel's name"),
    ],
)
def test_protocols_that_cannot_be_are_answered_with_what_is_valid(name, overrides, named):
    with pytest.raises(ValueError, match=named):
        preset(name, **overrides)


@pytest.mark.parametrize(
    ("axis", "text", "named"),
    [
        ("gather", "fixd:tolerance=0.1", "did you mean 'fixed'"),
        ("gather", "fixed", "needs the option tolerance"),
        ("gather", "fixed:tolerance=1", "tolerance is 1; valid: 0"),
        ("gather", "per-layer:default=0.1,first=x", "first is 'x'"),
        ("gather", "per-layer:default=0.1,tensors=a@b", "not of the form GLOB@TOLERANCE"),
        ("gather", "per-layer:default=0.1,tensors=5", "GLOB@TOLERANCE"),
        ("gather", "per-layer:default=0.1,tensors=a@1.5", "tensors: a is 1.5; valid: 0"),
        ("gather", "early-close:tolerance=0.1,deadline_s=0", "deadline_s is 0; valid: seconds, ab"),
        ("gather", "early-close:tolerance=0.1,deadline_s=1,patience=0.9", "patience is 0.9"),
        ("gather", "early-close:tolerance=0.1,deadline_s=1,must=7", "must is 7; valid: names or"),
        ("gather", "quick-loss-only:tolerance=0.1,quiet_s=-1", "quiet_s is -1"),
        ("gather", "time-bound:warm_up=65", "warm_up is 65; valid: a whole number, 1 to 64"),
        ("gather", "time-bound:quantile=0", "quantile is 0; valid: above 0, up to 1"),
        ("gather", "time-bound:wait=2", "wait is 2"),
        ("gather", "bounded-energy:at_most=0", "at_most is 0"),
        ("gather", "bounded-energy:patience=0.9", "patience is 0.9; valid: 1 or more"),
        ("repair", "streaming:lost_first=1", "lost_first: 1: must be true or"),
        ("repair", "passes:walk_s_per_chunk=-1", "^repair 'passes': walk_s_per_chunk is -1"),
        ("repair", "passes:poll_every=100", "poll_s is 0.0; valid: both"),
        ("order", "shuffled:seed=-1", "seed is -1"),
        ("order", "by-energy:per=chunk", "valid: payload, tensor"),
        ("order", "by-energy:floor=0", "floor is 0; valid: above 0, up to 1"),
        ("marks", "layer", "unknown kind of marks 'layer'; valid: none, layer-and-magnitude"),
        ("marks", "layer-and-magnitude:back=2", "back is 2; valid: 0 to 1"),
        ("congestion_control", "fixed:rate_bps=0", "above 0"),
        ("congestion_control", "compensated:rate_bps=1,most=101", "most is 101; valid: 1 to 100"),
        ("congestion_control", "cubic:datagram_bytes=0", "datagram_bytes is 0; valid: above 0"),
    ],
)
def test_options_that_cannot_be_are_answered_with_what_is_valid(axis, text, named):
    with pytest.raises(ValueError, match=named):
        REGISTRIES[axis].create(text)


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, 1.5])
def test_only_finite_numbers_in_the_range_are_numbers_and_only_whole_ones_are_whole(value):
    check_number("wait", 1, above=0, most=1, whole=True)
    with pytest.raises(ValueError, match=r"^wait is .*; valid: a whole number, above 0, up to 1$"):
        check_number("wait", value, above=0, most=1, whole=True)


@pytest.mark.parametrize("name", [*PRESETS, "tcp-reno"])
def test_a_description_builds_the_protocol_again(name):
    protocol = preset(name)
    described: dict[str, Any] = dict(protocol.describe())
    assert ProtocolConfig(**described) == protocol


def test_control_and_codecs_are_described_where_there_are_any():
    assert "control" not in preset("dblp").describe()
    assert preset("dblp", control="datagrams").describe()["control"] == "datagrams"
    assert preset("bounded-energy").control == "datagrams"
    assert "codec" not in preset("tcp").describe()
    assert preset("one-bit").describe()["codec"] == "one-bit"


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
        ({"rate_bps": "95Mbit"}, "rate_bps is '95Mbit'; valid: a number"),
        ({"peer_timeout_s": "30"}, "peer_timeout_s is '30'; valid: a number"),
        ({"session": 1.5}, "session is 1.5; valid: a whole number"),
        ({"layout": [("w", 3)]}, r"layout is \[\('w', 3\)\]; valid: a PayloadLayout"),
        ({"credentials": "keys"}, "credentials is 'keys'; valid: Credentials or None"),
    ],
)
def test_impossible_endpoints_are_refused(change, named):
    with pytest.raises(ValueError, match=named):
        site(workers=2).server(**change)
