"""Repairs race in virtual time: against the byte bound, and against each other."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest

from testbed.transport import SendingPath
from testbed.transport.congestion import FixedRate
from testbed.transport.repair import REPAIRS
from testbed.transport.tolerance import required_chunks
from tests.transport.virtual import Network, bernoulli, layout_of, random_payload, transfer

RATE_BPS = 100e6
_CHUNK_S = 1514 * 8 / RATE_BPS
_CHUNKS = 300
_ROUND_TRIPS_S = (1e-4, 1e-2)


@dataclass(frozen=True)
class Run:
    """Means over some transfers with different losses."""

    completion_s: float  # until the receiver had enough
    bound_s: float  # the byte bound
    sent: float  # datagrams
    needed: float  # how many the byte bound allows for
    control: float  # bytes of both sides, as a fraction of the bytes sent
    idle_s: float  # how long the link had nothing to send
    stop_s: float  # from enough to STOP's arrival at the sender


@functools.cache
def run(repair, *, chunks=_CHUNKS, loss=0.0, rtt_s=1e-3, tolerance=0.008, seeds=2, jitter_s=0.0):
    layout = layout_of(chunks, chunk_bytes=1456, last_elements=364)
    payload = random_payload(layout)
    path = SendingPath(congestion=FixedRate(rate_bps=RATE_BPS), chunk_bytes=1456)
    began_s, rows = 0.0, []
    for seed in range(seeds + 1):  # the first one teaches the path's round trip and loss
        network = Network(
            survives=bernoulli(loss, seed), rate_bps=RATE_BPS, delay_s=rtt_s / 2, jitter_s=jitter_s
        )
        outcome = transfer(
            payload,
            layout,
            tolerance=tolerance,
            network=network,
            path=path,
            repair=REPAIRS.create(repair),
            began_s=began_s,
            number=seed,
        )
        sent, got = outcome.sender.report("r"), outcome.receiver.report("s")
        assert sent.received is not None
        assert np.array_equal(sent.received, outcome.receiver.received)
        assert got.chunks_received == required_chunks(chunks, tolerance)
        rows.append(
            (
                got.ended_s - began_s,
                required_chunks(chunks, tolerance) * _CHUNK_S / (1 - loss),
                sent.chunks_sent,
                required_chunks(chunks, tolerance) / (1 - loss),
                (sent.control_bytes + got.control_bytes) / sent.bytes_sent,
                network.link.free_s - began_s - network.link.sent * _CHUNK_S,
                outcome.ended_s - got.ended_s,
            )
        )
        began_s = outcome.ended_s + 0.05
    return Run(*np.mean(rows[1:], axis=0))


@pytest.mark.parametrize("repair", list(REPAIRS))
@pytest.mark.parametrize("rtt_s", _ROUND_TRIPS_S)
def test_without_loss_the_link_is_never_idle(repair, rtt_s):
    result = run(repair, rtt_s=rtt_s, seeds=1)
    assert result.completion_s <= 1.05 * result.bound_s + rtt_s / 2
    assert result.sent <= _CHUNKS  # nothing twice
    assert result.control <= 0.02
    assert result.idle_s < 2 * _CHUNK_S


@pytest.mark.parametrize("loss", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("rtt_s", _ROUND_TRIPS_S)
def test_streaming_is_close_to_the_byte_bound(loss, rtt_s):
    result = run("streaming", loss=loss, rtt_s=rtt_s)
    assert result.completion_s <= 1.1 * result.bound_s + 2 * rtt_s
    # Nor does it get there by sending everything several times.
    assert result.sent <= 1.15 * result.needed + 2 * rtt_s / _CHUNK_S
    assert result.control <= 0.02
    assert result.stop_s == pytest.approx(rtt_s / 2)


@pytest.mark.parametrize(("loss", "chunks"), [(0.6, 163), (0.9, 40)])
def test_streaming_takes_half_as_long_as_passes_for_short_payloads(loss, chunks):
    streaming, passes = (
        run(repair, chunks=chunks, loss=loss, rtt_s=1e-2, seeds=4)
        for repair in ("streaming", "passes")
    )
    assert passes.completion_s >= 2 * streaming.completion_s


def test_one_outstanding_chunk_does_not_cost_a_round_trip_per_attempt():
    streaming, passes = (
        run(repair, chunks=1, loss=0.9, rtt_s=1e-2, tolerance=0.0, seeds=20)
        for repair in ("streaming", "passes")
    )
    # Ten attempts on average; one copy after the other would take 100 ms, as passes do.
    assert streaming.completion_s < 0.04
    assert passes.completion_s > 0.06


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_selective_repairs_while_data_flows(loss):
    options = {"chunks": 687, "loss": loss, "rtt_s": 1e-2, "tolerance": 0.0, "seeds": 3}
    result = run("selective", **options)
    assert result.sent <= 1.03 * result.needed
    assert result.control <= 0.02
    if loss:
        passes = run("passes", **options)
        assert result.completion_s < passes.completion_s + 1e-2


@pytest.mark.parametrize("repair", ["streaming", "selective"])
@pytest.mark.parametrize("jitter_s", [1e-3, 5e-3])
def test_reordering_is_not_taken_for_loss(repair, jitter_s):
    result = run(repair, rtt_s=1e-2, jitter_s=jitter_s, tolerance=0.0)
    assert result.sent <= 1.03 * _CHUNKS
    assert result.completion_s <= 1.05 * result.bound_s + 1e-2 + jitter_s
