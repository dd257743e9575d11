"""Compressed both ways: a part of gradients and of their mean travels; the rest is added later."""

import math

import numpy as np
import pytest
import torch

from testbed.ddp import BoundedLoss, InputError
from testbed.ddp.exchange import shard
from testbed.transport import preset
from tests.ddp.ranks import (
    Ledger,
    assert_complete,
    drawn,
    exchange,
    last,
    launch,
    values,
)
from tests.ddp.test_lateness import LATE_AT, late

SIZES = (70_000, 30_000)
PARAMETERS = [torch.zeros(size) for size in SIZES]
RANKS, CHUNK_BYTES = 3, 1440
PER_CHUNK = CHUNK_BYTES // 4
KEEP = 0.25


def whole_numbers(rank, step):
    """Multiples of the number of ranks, so that no sum or mean of them is rounded."""
    draws = torch.Generator().manual_seed(100 * step + rank)
    return [RANKS * torch.randint(-9, 10, (size,), generator=draws).float() for size in SIZES]


def chosen_chunks(mean, index, place, owners):
    """Returns how many chunks of an owner's part of a mean are not zero, and how many there are."""
    span = shard(SIZES[index], place, owners, PER_CHUNK)
    part = np.pad(mean[span], (0, -(span.stop - span.start) % PER_CHUNK)).reshape(-1, PER_CHUNK)
    return np.count_nonzero(part.any(axis=1)), len(part)


def partly(rank, protocol, collective):
    """Without loss: the ledger, what of each mean is not zero, a step's bytes and largest loss."""
    state = BoundedLoss(
        preset(protocol, keep=KEEP),
        rate_bps=math.inf,
        chunk_bytes=CHUNK_BYTES,
        timeout_s=60,
        collective=collective,
    )
    ledger, counts = Ledger(SIZES), []
    owners = RANKS if collective == "sharded" else 1
    for step in range(8):
        gradients = whole_numbers(rank, step)
        means = exchange(state, gradients, PARAMETERS)
        ledger.enter(gradients, means)
        if step >= 2:
            counts += [
                chosen_chunks(mean.numpy(), index, place, owners)
                for index, mean in enumerate(means)
                for place in range(owners)
            ]
    ledger.close(state)
    report = last(state)
    state.close()
    return ledger, counts, report.bytes_sent, max(bucket.loss for bucket in report.buckets)


@pytest.mark.parametrize(
    ("protocol", "collective"), [("none", "sharded"), ("none", "server"), ("top-k", "sharded")]
)
def test_of_a_mean_the_chosen_chunks_travel_and_not_one_value_is_ever_lost(protocol, collective):
    outcomes = values(launch(partly, RANKS, protocol=protocol, collective=collective))
    ledgers = [ledger for ledger, *_ in outcomes]
    for index, size in enumerate(SIZES):
        assert all(np.array_equal(one.applied[index], ledgers[0].applied[index]) for one in ledgers)
        left = sum(ledger.left.get(index, np.zeros(size)).astype(float) for ledger in ledgers)
        sent = sum(ledger.sent[index] for ledger in ledgers)
        assert np.array_equal(RANKS * ledgers[0].applied[index] + left, sent)
        assert left.any()
    for _, counts, _, lost in outcomes:
        assert lost == pytest.approx(1 - KEEP, abs=0.02)
        assert {some for some, _ in counts} == {math.ceil(KEEP * there) for _, there in counts}
    whole = 2 * (RANKS - 1) * 4 * sum(SIZES)  # of all ranks, both ways
    assert KEEP < sum(sent for *_, sent, _ in outcomes) / whole < 1.1 * KEEP


def in_four_bits(rank):
    """All ranks have the same gradients: the ledger, the bytes of a step, and its residuals."""
    protocol = preset("none", keep=0.5, codec="int4")
    state = BoundedLoss(protocol, rate_bps=math.inf, chunk_bytes=CHUNK_BYTES, timeout_s=60)
    ledger = Ledger(SIZES)
    for step in range(6):
        gradients = drawn(SIZES, step)
        ledger.enter(gradients, exchange(state, gradients, PARAMETERS))
    ledger.close(state)
    sent = last(state).bytes_sent
    state.close()
    return ledger, sent


def test_what_four_bits_round_is_added_later_and_drawn_anew_by_each_rank_and_alike_in_each_run():
    outcomes, again = (values(launch(in_four_bits, RANKS)) for _ in range(2))
    ledgers = [ledger for ledger, _ in outcomes]
    assert_complete(ledgers)
    for ledger, (other, _) in zip(ledgers, again, strict=True):
        assert all(map(np.array_equal, ledger.applied, other.applied))
        assert all(np.array_equal(ledger.left[slot], other.left[slot]) for slot in ledger.left)
    # What two ranks sent of the same gradient was not rounded alike.
    part = shard(SIZES[0], 2, RANKS, 2 * (CHUNK_BYTES - 4))
    one, two = (ledgers[rank].left[0][part] for rank in (0, 1))
    assert np.any(one != two)
    whole = 2 * (RANKS - 1) * 4 * sum(SIZES)
    assert sum(sent for *_, sent in outcomes) < 0.5 * 1.2 / 8 * whole


@pytest.mark.parametrize(("culprit", "codec"), [(0, "int4"), (2, "float32")])
def test_late_ranks_get_the_same_part_of_the_mean_and_owe_their_gradient(culprit, codec):
    outcomes = values(launch(late, 3, culprit=culprit, keep=0.5, codec=codec))
    assert_complete([ledger for ledger, _ in outcomes])
    _, buckets = outcomes[0][1][LATE_AT]
    assert [bucket.late for bucket in buckets] == [(culprit,)] * 2


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"mode": "reliable"}, "'none' keeps 0.25 of the chunks and sends int4, with mode 'rel"),
        ({"filling": "zero"}, "filling 'zero'; valid: mode='bounded' and filling='error-feedback'"),
        ({"filling": "rescale"}, "filling 'rescale'; valid: "),
    ],
)
def test_what_nobody_would_add_later_is_refused(settings, line):
    with pytest.raises(InputError, match=line):
        BoundedLoss(preset("none", keep=KEEP, codec="int4"), rate_bps=1e9, **settings)


def chunk_sizes(_):
    codecs = ("float32", "int4")
    states = [BoundedLoss(preset("none", codec=codec), rate_bps=math.inf) for codec in codecs]
    return [state._rendezvous.chunk_bytes for state in states]


def test_chunks_of_which_a_part_is_chosen_are_small_whatever_the_mtu():
    assert values(launch(chunk_sizes, 2)) == 2 * [[32_000, 1456]]
