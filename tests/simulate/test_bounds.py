"""`dblp` and `fixed-low` between their two limits: bytes decide near by, and passes far away.

docs/concepts/byte-bound.md has the limits, docs/concepts/passes.md what a pass costs.
"""

import math

import numpy as np
import pytest

from testbed.transport.core.wire import wire_bytes
from tests.simulate.rounds import CHUNK_BYTES, Star

_TOLERANCES = {"dblp": 0.408, "fixed-low": 0.008}
_CHUNKS, _LOSS = 20_000, 0.6


def gather(arm, *, delay_s, rate_bps):
    """A gather from one worker, over a link that loses; how long it took, and its report."""
    star = Star(
        workers=1,
        chunks=_CHUNKS,
        protocol=arm,
        tolerance=_TOLERANCES[arm],
        delay_s=delay_s,
        rate_bps=rate_bps,
        queue_bytes=math.inf,
    )
    random = np.random.default_rng(7)
    star.links["worker-1", "switch"].loss = lambda: random.random() < _LOSS
    (only,) = star.run(1)
    return only.gather_s, only.gathered["worker-1"]


@pytest.mark.parametrize("arm", _TOLERANCES)
def test_near_by_a_transfer_takes_the_bytes_of_the_byte_bound(arm):
    rate_bps = 1e9
    gather_s, report = gather(arm, delay_s=1e-6, rate_bps=rate_bps)
    needed = math.ceil(round(_CHUNKS * (1 - _TOLERANCES[arm]), 6))
    assert report.chunks_received == needed
    sent = gather_s * 0.98 * rate_bps / 8 / wire_bytes(1, CHUNK_BYTES)
    # So many must be sent until `needed` of them have come through; the spread is that of chance.
    expected = needed / (1 - _LOSS)
    deviation = math.sqrt(needed * _LOSS) / (1 - _LOSS)
    assert abs(sent - expected) < 3 * deviation + 40  # and a batch for each pass


@pytest.mark.parametrize(("arm", "passes"), [("dblp", 2), ("fixed-low", 10)])
def test_far_away_it_takes_a_round_trip_for_each_pass(arm, passes):
    assert passes == math.ceil(math.log(_TOLERANCES[arm]) / math.log(_LOSS))
    delay_s = 0.25  # of each of two links, so a round trip takes a second
    gather_s, report = gather(arm, delay_s=delay_s, rate_bps=1e11)
    assert report.passes == passes
    # After half a round trip the worker hears that all have joined, and after another one its first
    # pass arrives. Each other pass is asked for and comes.
    assert gather_s == pytest.approx(4 * delay_s * passes, rel=0.01)
