"""`sender-drop`: what YAML may say, and that controller and sender agree by their shared memory."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from controllers import impairment_plan
from controllers.impairments.loss import SenderDrop, SenderDropParameters
from testbed.scripting import by_hand
from testbed.shared import drop_order

PLACES = impairment_plan.Places(
    hosts=["server", "worker-1", "worker-2"],
    switches={"s1"},
    links=[(host, "s1") for host in ("server", "worker-1", "worker-2")],
    working_hosts=["server", "worker-1", "worker-2"],
)


def resolved(*entries):
    keys = {"kind": "sender-drop", "rounds": [1], "q": 0.7}
    parsed = [SenderDropParameters.model_validate(keys | entry) for entry in entries or ({},)]
    return impairment_plan.resolve(parsed, PLACES, rounds=5, seed=1)


def made(document, lab):
    return SenderDrop(SenderDropParameters.model_validate(document), lab)


@pytest.fixture
def lab(tmp_path):
    return SimpleNamespace(
        hosts=dict.fromkeys(PLACES.hosts), shared=tmp_path, sleep=lambda duration_s: None
    )


def drawn(orders):
    return [gone for order in orders if (gone := order.draw(10_000)) is not None]


def test_every_worker_leaves_out_its_share_while_it_is_in_force_and_no_longer(lab):
    (document,) = entries = resolved()
    impairment = made(document, lab)
    orders = {host: drop_order.orders(lab.shared, host, entries) for host in PLACES.hosts}
    assert not orders["server"]
    assert not drawn(orders["worker-1"])
    impairment.begin()
    first, second = (drawn(orders[host])[0] for host in ("worker-1", "worker-2"))
    assert 0.67 < np.mean(first) < 0.73
    assert not np.array_equal(first, second)  # each draws its own
    impairment.end()
    assert not drawn(orders["worker-1"])
    effect = impairment.effect()
    assert effect.met == 20_000
    assert effect.dropped == np.count_nonzero(first) + np.count_nonzero(second)
    impairment.begin()
    impairment.end()
    assert impairment.effect().met == 0  # of its last occurrence alone


def test_the_draws_follow_from_the_seed_and_the_name(lab):
    def draws(**keys):
        (document,) = entries = resolved({"host": "worker-1", **keys})
        made(document, lab).begin()
        return drawn(drop_order.orders(lab.shared, "worker-1", entries))[0]

    assert np.array_equal(draws(), draws())
    assert not np.array_equal(draws(), draws(name="another"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "server"}, "leg: 'gather': 'server' sends nothing then; valid: broadcast, both"),
        ({"leg": "broadcast"}, "leg: 'broadcast': 'workers' sends nothing then; valid: gather"),
        ({"host": "traffic-1"}, "host: 'traffic-1' does not train; valid: workers, server"),
        ({"host": "worker-9"}, "impairments.0.host: unknown host 'worker-9'"),
    ],
)
def test_it_is_refused_where_nobody_sends(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        resolved(options)
    assert resolved({"host": "server", "leg": "broadcast"})
    assert resolved({"host": "server", "duration_s": 0.5})


def test_a_shell_which_has_no_sender_leaves_it_out():
    assert not by_hand.take_over_impairments({"impairments": resolved()})
