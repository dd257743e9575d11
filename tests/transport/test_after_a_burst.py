"""What a burst leaves behind: the next round knows of its losses, which may be over."""

import pytest

from testbed.transport.core.events import TransferDone
from tests.transport.two_parties import Two


@pytest.mark.parametrize("repair", ["streaming", "streaming:lost_first=true"])
def test_where_answers_take_long_few_copies_are_sent_that_nobody_needs(repair):
    # A payload takes 36 ms, and a round trip 100 ms: time for three times its chunks.
    two = Two(repair=repair, chunk_bytes=1432, rate_bps=33e6, delay_s=0.05, seed=1)
    for number, loss in enumerate((0.0, 0.9, 0.9, 0.0)):
        two.link.loss = loss
        two.send(number)
        two.receive(number, tolerance=0.4)
        two.run()
    reports = [each.report for each in two.worker.events if isinstance(each, TransferDone)]
    assert reports[1].chunks_sent > 300
    assert reports[3].chunks_sent <= 150
