"""A link whose rate is right on the average and scatters."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

# While paths are measured, the switch's port to the server gets a new rate every 5 ms, by a normal
# distribution whose standard deviation is a fifth of the configured rate. (Behind a link that
# scatters, one of the same rate would smooth the flow. In front of it, that one holds back what is
# faster: of a scatter of a tenth, up to 7 % of such calibrations see less than the limit.)
SCATTERING = """
_right_calibrate = calibrate

def calibrate(network, **options):
    import random
    import threading
    from testbed.lab.kernel.rtnetlink import Rtnetlink
    from testbed.lab.kernel.shaping import LinkShape, rate_message

    random.seed(1)
    over = threading.Event()
    link = next(each for each in network.links if each.name == "server--s1")

    def scatter():
        with Rtnetlink() as kernel:
            index = kernel.index("s1-eth1")
            while not over.wait(0.005):
                rate_bps = int(link.rate_bps * max(0.2, random.gauss(1, 0.2)))
                shape = LinkShape(rate_bps=rate_bps, queue_bytes=link.queue_bytes)
                kernel.send([rate_message(index, shape, "s1-eth1")])

    thread = threading.Thread(target=scatter)
    thread.start()
    try:
        return _right_calibrate(network, **options)
    finally:
        over.set()
        thread.join()
"""


def test_a_rate_that_scatters_by_a_fifth_is_found(wrong_lab: WrongLab):
    altered = {"testbed.verdict.calibration": SCATTERING}
    results = wrong_lab.run(altered_by=altered, every_path=True, rounds=3)
    gate = assert_invalid(results, "rate_spread", where="to server")
    assert gate["value"] < 0.5  # it is of the size that was made
