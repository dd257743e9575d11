"""What all workers have in common of a broadcast, and what the server owes them."""

from typing import Any

import numpy as np
import pytest
import torch

from testbed.training.broadcasts import BroadcastMemory, announce_common, await_common
from testbed.training.filling import FILLINGS
from testbed.transport import PayloadLayout, ProtocolError, preset
from tests.training.one_round import LAYOUT, buffer_of, report
from tests.training.whole import Whole

WORKERS = ["a", "b", "c"]


def debts(filling):
    return BroadcastMemory(FILLINGS.create(filling), LAYOUT, WORKERS)


def reports(*masks):
    return {name: report(np.array(mask)) for name, mask in zip(WORKERS, masks, strict=False)}


def test_what_one_worker_lacks_is_owed_to_all():
    owing = debts("common-feedback")
    mean = buffer_of(np.arange(15, dtype=np.float32) + 1)
    payloads = owing.payloads(mean, WORKERS)
    assert all(payloads[name] is payloads["a"] for name in WORKERS)
    sent = reports([True, True, True, False], [True, False, True, True], [True] * 4)
    common = owing.common(sent)
    assert common.tolist() == [True, False, True, False]
    owing.settle(sent, common)
    again = owing.payloads(buffer_of(np.ones(15, np.float32)), WORKERS)["c"]
    owed = LAYOUT.rows(buffer_of(np.arange(15, dtype=np.float32) + 1)).copy()
    owed[common] = 0
    expected = LAYOUT.floats(owed.reshape(-1)) + 1
    assert np.array_equal(LAYOUT.floats(again), expected)


def test_without_it_each_worker_is_owed_its_own():
    owing = debts("error-feedback")
    owing.payloads(buffer_of(np.ones(15, np.float32)), WORKERS)
    sent = reports([True, True, True, False], [True] * 4, [True] * 4)
    assert owing.common(sent) is None
    owing.settle(sent, None)
    payloads = owing.payloads(buffer_of(np.ones(15, np.float32)), WORKERS)
    assert LAYOUT.floats(payloads["a"])[-1] == 2
    assert (LAYOUT.floats(payloads["b"]) == 1).all()


class Wire:
    """An endpoint's announcements, in order."""

    def __init__(self):
        self.announced = []

    def announce(self, body):
        assert len(body) <= 65536
        self.announced.append(body)

    def await_announcement(self):
        return self.announced.pop(0)


def test_it_is_announced_in_as_many_parts_as_it_takes():
    layout = PayloadLayout([("w", 600_000)], 4)
    common = np.random.default_rng(0).random(layout.chunk_count) < 0.5
    wire: Any = Wire()
    announce_common(wire, common)
    assert len(wire.announced) == 2
    assert np.array_equal(await_common(wire, layout), common)
    wire.announced = [b"\0" * 75_001]
    with pytest.raises(ProtocolError):
        await_common(wire, layout)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_replicas_are_equal_bit_for_bit_though_each_lacks_something_else(tmp_path, optimiser):
    # Without loss the end of each order is given up; where workers stop differs by their timing.
    arm = preset("bounded-energy", share=0.4, floor=0.02)
    whole = Whole(tmp_path, protocol=arm, rounds=12, filling="common-feedback", optimiser=optimiser)
    assert whole.run() == 0
    legs = [leg for leg in whole.events("transfers-worker-1") if leg["leg"] == "broadcast"]
    assert any(leg["chunks_received"] < leg["chunk_count"] for leg in legs)
    first, *others = (whole.weights(f"worker-{number}") for number in (1, 2, 3))
    for other in others:
        assert all(torch.equal(first[key], other[key]) for key in first)
