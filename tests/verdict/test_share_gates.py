"""Hosts that use more of the processors than their share make the run invalid."""

from __future__ import annotations

from testbed.experiment import Limits
from testbed.verdict import share_gates
from testbed.verdict.share_gates import ShareUse

LIMITS = Limits().model_dump()


def judged(**hosts):
    uses = {name: ShareUse(cpu=cpu, used=used, used_s=used) for name, (cpu, used) in hosts.items()}
    [gate] = share_gates.gates(uses, LIMITS)
    return gate


def test_less_than_the_share_is_no_error_and_a_little_more_passes():
    assert judged(first=(0.5, 0.1), second=(2.0, 2.05)).outcome == "passed"


def test_the_host_that_exceeds_its_share_most_is_named():
    gate = judged(first=(0.5, 0.6), second=(2.0, 2.3))
    assert gate.stops
    assert "first: 0.600 of 0.5" in gate.sentence()


def test_an_account_that_cannot_be_read_proves_nothing():
    gate = judged(first=(0.5, None), second=(0.5, 0.1))
    assert gate.outcome == "not measured"
    assert "no account of first" in gate.sentence()


def test_without_shares_the_gate_does_not_apply():
    assert judged().outcome == "not applicable"
