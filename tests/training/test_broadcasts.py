"""All workers have a part of a broadcast in common, and the server owes them the rest."""

from typing import Any

import numpy as np
import pytest

from testbed.training.coding import Outgoing
from testbed.training.fillings import FILLINGS
from testbed.training.server import BroadcastMemory, announce_common
from testbed.training.worker import await_common
from testbed.transport import PayloadLayout, ProtocolError
from tests.training.one_round import LAYOUT, buffer_of, gradients_of, report

WORKERS = ["a", "b", "c"]


def memory(filling):
    return BroadcastMemory(
        FILLINGS.create(filling), LAYOUT, WORKERS, lambda memory: Outgoing(memory, LAYOUT)
    )


def reports(*masks):
    return {name: report(np.array(mask)) for name, mask in zip(WORKERS, masks, strict=False)}


def test_what_one_worker_lacks_is_owed_to_all():
    owing = memory("common-feedback")
    mean = buffer_of(np.arange(15, dtype=np.float32) + 1)
    payloads = owing.payloads(mean, WORKERS, 1)
    assert all(payloads[name] is payloads["a"] for name in WORKERS)
    sent = reports([True, True, True, False], [True, False, True, True], [True] * 4)
    common = owing.common(sent)
    assert common.tolist() == [True, False, True, False]
    owing.settle(sent, common)
    again = owing.payloads(buffer_of(np.ones(15, np.float32)), WORKERS, 1)["c"]
    owed = LAYOUT.rows(buffer_of(np.arange(15, dtype=np.float32) + 1)).copy()
    owed[common] = 0
    expected = LAYOUT.floats(owed.reshape(-1)) + 1
    assert np.array_equal(LAYOUT.floats(again), expected)


def test_without_it_each_worker_is_owed_its_own():
    owing = memory("error-feedback")
    owing.payloads(buffer_of(np.ones(15, np.float32)), WORKERS, 1)
    sent = reports([True, True, True, False], [True] * 4, [True] * 4)
    assert owing.common(sent) is None
    owing.settle(sent, None)
    payloads = owing.payloads(buffer_of(np.ones(15, np.float32)), WORKERS, 1)
    assert LAYOUT.floats(payloads["a"])[-1] == 2
    assert (LAYOUT.floats(payloads["b"]) == 1).all()


@pytest.mark.parametrize("filling", ["zero", "hadamard"])
def test_what_depends_on_the_mean_alone_is_made_once_for_all_workers_in_each_round(filling):
    owing, alone = memory(filling), FILLINGS.create(filling).sender_memory(LAYOUT)
    for mean in gradients_of(3):
        gradient = buffer_of(mean)
        payloads = owing.payloads(gradient, WORKERS, 1)
        assert all(payloads[name] is payloads["a"] for name in WORKERS)
        assert payloads["a"].tobytes() == alone.payload(buffer_of(mean)).tobytes()
        assert gradient.tobytes() == buffer_of(mean).tobytes()
        sent = reports(*3 * [[True] * 4])
        assert owing.common(sent) is None
        owing.settle(sent, None)


class Wire:
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
