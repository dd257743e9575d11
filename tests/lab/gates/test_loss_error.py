"""Losses that are not the configured ones."""

from __future__ import annotations

import os
import re

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

# Every filter is told to lose 12 % of the packets where 10 % was asked.
MORE = """
import dataclasses

_right_lose = {filter}.lose

def _lose(self, model, **options):
    model = dataclasses.replace(model, loss_good=model.loss_good + 0.02)
    _right_lose(self, model, **options)

{filter}.lose = _lose
"""
# In all rounds, so that enough packets come. Of 25,000, 12 % are not told from 10 % in one of
# 60,000 labs (binomial).
ROUNDS = 120
EVERY_ROUND = {"kind": "loss", "name": "tenth", "rounds": {"every": 1, "from": 0}, "q": 0.1}


@pytest.mark.parametrize(
    ("module", "name", "target", "rounds"),
    [
        ("packet_filter", "PacketFilter", {"host": "server"}, ROUNDS),
        pytest.param(
            "xdp_filter",
            "XdpFilter",
            {"link": ["worker-1", "s1"]},
            2 * ROUNDS,
            marks=pytest.mark.long,
        ),
    ],
)
def test_twelve_per_cent_where_ten_were_asked_are_found(
    wrong_lab: WrongLab, module: str, name: str, target: dict[str, object], rounds: int
):
    if name == "XdpFilter" and os.geteuid() != 0:
        pytest.skip("loading an XDP program needs real root")
    results = wrong_lab.run(
        altered_by={f"testbed.lab.kernel.{module}": MORE.format(filter=name)},
        rounds=rounds,
        impairments=[EVERY_ROUND | target],
    )
    gate = assert_invalid(results, "loss_error", where="tenth")
    assert 0.01 < gate["value"] < 0.03
    met = re.search(r"of (\d+) packets, expected", gate["note"])
    assert met and int(met[1]) > 25_000, gate["note"]


# The relay's generator draws too often below the loss.
RELAY = """
_right_set = DelayLine.set

def _set(self, settings):
    import dataclasses
    _right_set(self, dataclasses.replace(settings, loss=settings.loss * 1.2))

DelayLine.set = _set
"""


@pytest.mark.long
def test_a_link_that_loses_more_by_itself_than_it_should_is_found(wrong_lab: WrongLab):
    topology = {
        "name": "star",
        "workers": 2,
        "rate_bps": wrong_lab.rate_bps,
        "queue_bytes": 150_000,
        "delayed_by": "relay",
        "links": {"server--s1": {"loss": 0.1}},
    }
    results = wrong_lab.run(
        altered_by={"testbed.lab.delay.relayed_direction": RELAY},
        rounds=ROUNDS,
        topology=topology,
    )
    assert_invalid(results, "loss_error", where="server--s1 from")
