"""Rounds of a server and workers in virtual time: closed forms, accounts, memory, repetition."""

import gc
import math
import tracemalloc
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from testbed.transport.wire import wire_bytes
from tests.simulate.rounds import CHUNK_BYTES, Star

LOSSY: dict[str, Any] = {
    "workers": 4,
    "chunks": 300,
    "loss": 0.02,
    "rate_bps": 1e8,
    "queue_bytes": 60_000,
}


def outcome(star):
    parts: list[object] = []
    for played in star.rounds:
        for reports in (played.gathered, played.broadcast):
            for name in sorted(reports):
                report = asdict(reports[name])
                parts.append(np.flatnonzero(report.pop("received")).tolist())
                parts.append(report)
        parts.append((played.gather_s, played.broadcast_s))
    return repr(parts)


def chunk_times(star, chunks):
    return wire_bytes(chunks, CHUNK_BYTES) * 8 / star.links["server", "switch"].rate_bps


@pytest.mark.parametrize(("chunks", "tolerance"), [(200, 0.0), (200, 0.3), (1, 0.0)])
def test_without_loss_a_leg_takes_what_its_chunks_take_on_the_link_and_a_round_trip(
    chunks, tolerance
):
    star = Star(workers=3, chunks=chunks, tolerance=tolerance, delay_s=0.002)
    (first,) = star.run(1)
    link_s = chunk_times(star, 3 * math.ceil(chunks * (1 - tolerance)))
    # Two links each way; the pace is 98 % of the link's share, in quanta of a twentieth.
    for leg_s in (first.gather_s, first.broadcast_s):
        assert link_s <= leg_s - 4 * 0.002 <= link_s / 0.98 + chunk_times(star, 9)
    assert {report.passes for report in first.gathered.values()} == {1}


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("tolerance", [0.0, 0.2])
def test_no_leg_beats_the_byte_bound_and_passes_take_a_round_trip_each(loss, tolerance):
    delay_s, chunks = 0.002, 1500
    star = Star(workers=1, chunks=chunks, tolerance=tolerance, delay_s=delay_s)
    star.links["worker-1", "switch"].set_loss(loss)
    (first,) = star.run(1)
    report = first.gathered["worker-1"]
    needed = math.ceil(chunks * (1 - tolerance))
    byte_bound_s = chunk_times(star, needed) / (1 - loss)
    assert report.passes is not None
    # Between two passes: a question and its answer; then the first chunk of the next one.
    pass_bound_s = byte_bound_s + (report.passes - 1) * 4 * delay_s
    spread = 1 - 4 * math.sqrt(max(loss, 1e-9) / chunks)  # of how many are lost
    assert report.ended_s - report.began_s >= spread * pass_bound_s - chunk_times(star, 2)
    assert first.gather_s <= 1.1 * pass_bound_s / 0.98 + 8 * delay_s
    assert (report.passes > 1) == (loss > tolerance)


def test_datagrams_without_contents_fare_as_those_with_them():
    whole, heads = (Star(contents=with_contents, **LOSSY) for with_contents in (True, False))
    whole.run(3)
    heads.run(3)
    assert outcome(whole) == outcome(heads)
    for buffer in whole.buffers.values():
        assert np.array_equal(buffer, whole.payload(2))
    assert not heads.buffers["worker-1"].any()


def test_rounds_leave_nothing_behind_in_memory():
    star = Star(workers=4, chunks=200, loss=0.01)
    sizes = []

    def note():
        star.rounds.clear()
        sizes.append(tracemalloc.get_traced_memory()[0])
        star.simulation.at(star.simulation.now_s + 0.04, note)

    tracemalloc.start()
    try:
        star.simulation.at(0.04, note)
        star.run(10**9, until_s=0.85)
    finally:
        tracemalloc.stop()
    assert len(sizes) >= 20
    early, late = np.mean(sizes[3:7]), np.mean(sizes[-4:])
    assert late - early < 100_000


@pytest.mark.parametrize("protocol", ["none", "dblp-stream"])
def test_transfers_leave_no_cycles_that_python_would_have_to_look_for(protocol):
    Star(protocol=protocol, **LOSSY).run(1)  # what is imported leaves some, once
    star = Star(protocol=protocol, **LOSSY)
    gc.collect()
    gc.disable()
    try:
        star.run(6)
        collected = gc.collect()
    finally:
        gc.enable()
    transfers = 6 * 2 * LOSSY["workers"]
    assert collected < transfers  # a cycle for each would have two objects at the least
